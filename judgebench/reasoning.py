"""Where a model's reasoning ends and its answer begins: one rule, one version.

Some models write their reasoning into the text, as a leading `<think>` block. Judges and readers
must see the answer alone; the store keeps the text as it came. The rule:

- Only a *leading* block is reasoning. A tag further down is part of the answer, say of one about HTML.
- Blocks nest, and several in a row all go.
- A closing tag that nothing opened ends reasoning too (chat templates often swallow the opening one),
  unless it is quoted or stands in code.
- A leading block that is never closed leaves no answer: what is in it was never meant as one.

`REASONING_RULE` names the rule and is recorded with everything that was made by it.
This file does not know readers, templates or the store.
"""

from __future__ import annotations

import re
from typing import NamedTuple

REASONING_RULE = "reasoning/1"

# The spellings seen in public chat templates: DeepSeek and Qwen, Claude-style prompts, Gemma, Seed, Kimi,
# Magistral. `<reasoning>` is left out on purpose: prompts ask for it, so it is part of the answer.
_TAG = re.compile(
    r"<(?P<close>/)?(?:think|thinking|thought|seed:think)(?:\s[^<>\n]{0,60})?>"
    r"|◁(?P<close_kimi>/)?think▷"
    r"|\[(?P<close_mistral>/)?(?-i:THINK)\]",
    re.IGNORECASE,
)
_BEFORE_TAG = " \t\r\n\ufeff\u200b"
_QUOTES = "`\"'“”‘’«»"


class Split(NamedTuple):
    """A text in two: `reasoning` is None when there was none, `reason` says why `answer` is missing."""

    reasoning: str | None
    answer: str
    reason: str | None


def split_reasoning(text: str) -> Split:
    """Split leading reasoning off `text`. Total; text without reasoning is returned as it is.

    `reason` is None or "unclosed_reasoning" (then `answer` is "").

    >>> split_reasoning("<think>maybe A</think> B")
    Split(reasoning='maybe A', answer='B', reason=None)
    """
    if "<" not in text and "◁" not in text and "THINK]" not in text:
        return Split(None, text, None)
    reasoning: list[str] = []
    start = 0
    depth = 0
    for tag in _TAG.finditer(text):
        if tag["close"] or tag["close_kimi"] or tag["close_mistral"]:
            if depth == 0 and _is_quoted(text, start, tag):
                continue
            depth = max(depth - 1, 0)
            if depth == 0:
                reasoning.append(text[start : tag.start()])
                start = tag.end()
        elif depth or not text[start : tag.start()].strip(_BEFORE_TAG):
            if depth == 0:
                start = tag.end()
            depth += 1
        else:  # the answer has begun, and this tag is part of it
            break
    if depth:
        reasoning.append(text[start:])
        return Split(_join(reasoning), "", "unclosed_reasoning")
    if not reasoning:
        return Split(None, text, None)
    return Split(_join(reasoning), text[start:].lstrip(), None)


def _join(parts: list[str]) -> str:
    return "\n\n".join(part for part in map(str.strip, parts) if part)


def _is_quoted(text: str, start: int, tag: re.Match[str]) -> bool:
    """Whether a closing tag is only mentioned: between quotation marks or backticks, or in a code block."""
    around = text[max(tag.start() - 1, 0) : tag.start()] + text[tag.end() : tag.end() + 1]
    return any(mark in _QUOTES for mark in around) or text.count("```", start, tag.start()) % 2 == 1
