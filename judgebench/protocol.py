"""A protocol: how judging is done, as data.

A template with a chat and a text rendering, labels and their numbers, a reader, orders, a rule for
identical answers, and the settings that it requires of the judge. Which models take part, and where
answers are kept, is not known here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from judgebench.benchmark import Instruction, Table
from judgebench.benchmark.formats import alpaca_eval_swapped
from judgebench.errors import ConfigError, DataError, choices
from judgebench.prompt import Template, chat_template, conversation, official_template, text_template
from judgebench.reader import Reader
from judgebench.request import digest
from judgebench.store.reuse import NO_LOGPROBS, TRUNCATED

MODES = ("pairwise", "pointwise")
REUSE = ("any", "readable", "complete")
DIRECT, REVERSED = "direct", "reversed"

_SHARED = frozenset({"instruction", "turns", "system", "reference", "category", "language"})
FIELDS = {
    "pairwise": _SHARED | {"answer_a", "answer_b", "conversation_a", "conversation_b"},
    "pointwise": _SHARED | {"answer_a", "conversation_a"},
}
_NEEDED = {
    "pairwise": (frozenset({"answer_a", "conversation_a"}), frozenset({"answer_b", "conversation_b"})),
    "pointwise": (frozenset({"answer_a", "conversation_a"}),),
}


def _both(instruction: Instruction, seed: int) -> tuple[str, ...]:
    return (DIRECT, REVERSED)


def _direct(instruction: Instruction, seed: int) -> tuple[str, ...]:
    return (DIRECT,)


def _seeded(instruction: Instruction, seed: int) -> tuple[str, ...]:
    """One order an item: a hash of seed and item, so that neither run order nor concurrency matters."""
    bit = hashlib.sha256(f"{seed}\n{instruction.instruction_id}".encode()).digest()[0] & 1
    return (REVERSED,) if bit else (DIRECT,)


def _alpaca_eval(instruction: Instruction, seed: int) -> tuple[str, ...]:
    """AlpacaEval's one order: of the unstripped instruction text and its annotator seed 0."""
    return (REVERSED,) if alpaca_eval_swapped(instruction.turns[0]) else (DIRECT,)


ORDERS: dict[str, Callable[[Instruction, int], tuple[str, ...]]] = {
    "both": _both,
    "direct": _direct,
    "seeded": _seeded,
    "alpaca_eval": _alpaca_eval,
}


@dataclass(frozen=True)
class Official:
    """A published prompt: where it lies, what marks it has, and the hash that it must have.

    Args:
        source: a table row's column (`table` and `column`), or a text file (`table` with one row).
        sha256: of the prompt's text without outer white space; another text is refused.
        fields: the prompt's marks -> our fields.
        markup: `chatml` where ChatML marks part system and user.
    """

    table: Table
    column: str
    sha256: str
    fields: Mapping[str, str]
    markup: str | None = None

    def template(self, data_dir: Path | None) -> Template:
        """Read and check the prompt."""
        rows, located = self.table.read(data_dir)
        if len(rows) != 1 or self.column not in rows[0]:
            raise DataError(f"{located.path}: one row with a column {self.column!r} is expected.")
        text = str(rows[0][self.column])
        found = digest(text.strip())
        if found != self.sha256:
            raise DataError(
                f"{located.path}: the prompt has the hash {found}, and {self.sha256} is expected: "
                "it is not the official text that this protocol names."
            )
        return official_template(text, self.fields, self.markup)


@dataclass(frozen=True)
class Protocol:
    """How judging is done.

    Args:
        name: in tables and in the store; never part of a key.
        mode: `pairwise` or `pointwise`.
        reader: turns replies into verdicts; see `judgebench.reader`.
        chat: messages `[{role, content}]` with Jinja contents, for chat judges.
        text: a Jinja text, for base models.
        official: instead of both, a published prompt.
        orders: `both`, `direct`, `seeded` or `alpaca_eval` (pairwise only).
        identical: two identical answers are a `draw` without a call, or are `judge`d.
        settings: what the judge is asked with; merged over its own sampling.
        chat_settings, text_settings: more of them, by the judge's form.
        reuse: which stored replies are served: `any`; `readable` (none without the logprobs that the
            reader needs); `complete` (nor one that its length limit cut off).
    """

    name: str
    mode: Literal["pairwise", "pointwise"]
    reader: Reader
    chat: Sequence[Mapping[str, str]] | None = None
    text: str | None = None
    official: Official | None = None
    orders: str = "both"
    identical: Literal["draw", "judge"] = "draw"
    settings: Mapping[str, Any] = field(default_factory=dict)
    chat_settings: Mapping[str, Any] = field(default_factory=dict)
    text_settings: Mapping[str, Any] = field(default_factory=dict)
    reuse: Literal["any", "readable", "complete"] = "readable"

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ConfigError(f"protocol.mode: {choices(self.mode, MODES)}")
        if self.orders not in ORDERS:
            raise ConfigError(f"protocol.orders: {choices(self.orders, ORDERS)}")
        if self.identical not in ("draw", "judge"):
            raise ConfigError(f"protocol.identical: {choices(self.identical, ('draw', 'judge'))}")
        if self.reuse not in REUSE:
            raise ConfigError(f"protocol.reuse: {choices(self.reuse, REUSE)}")

    def template(self, form: str, data_dir: Path | None) -> Template:
        """The checked template for a judge of this form.

        Raises:
            ConfigError: no rendering for this form, an unknown field, or an answer not shown.
        """
        if self.official is not None:
            template = self.official.template(data_dir)
            if form != "chat":
                raise ConfigError(f"The official prompt of {self.name!r} is for chat judges, not {form}.")
        elif form == "chat" and self.chat is not None:
            template = chat_template(self.chat)
        elif form == "text" and self.text is not None:
            template = text_template(self.text)
        else:
            raise ConfigError(
                f"The protocol {self.name!r} has no {form} rendering: take another judge or protocol."
            )
        template.check(FIELDS[self.mode], _NEEDED[self.mode], self.name)
        return template

    @property
    def refuse(self) -> frozenset[str]:
        """The stored replies that are not served, in the words of `judgebench.store.reuse`."""
        refused = set()
        if self.reuse != "any" and "top_logprobs" in self.reader.needs:
            refused.add(NO_LOGPROBS)
        if self.reuse == "complete":
            refused.add(TRUNCATED)
        return frozenset(refused)

    def settings_for(self, form: str) -> dict[str, Any]:
        """The settings that this protocol puts over a judge's own."""
        return {**self.settings, **(self.chat_settings if form == "chat" else self.text_settings)}

    def orientations(self, instruction: Instruction, seed: int) -> tuple[str | None, ...]:
        """In which orders an item is judged; a pointwise one has none."""
        return (None,) if self.mode == "pointwise" else ORDERS[self.orders](instruction, seed)


def values(
    instruction: Instruction, answers_a: Sequence[str], answers_b: Sequence[str] | None
) -> dict[str, Any]:
    """The fields that a template may show, for the whole conversation.

    `answer_a` is the last answer, `conversation_a` all turns as `[{user, assistant}]`.
    """
    reference = instruction.reference
    fields: dict[str, Any] = {
        "instruction": instruction.turns[0],
        "turns": instruction.turns,
        "system": instruction.system,
        "reference": None if reference is None else _joined(reference),
        "category": instruction.category,
        "language": instruction.language,
        "answer_a": answers_a[-1],
        "conversation_a": conversation(instruction.turns, answers_a),
    }
    if answers_b is not None:
        fields |= {"answer_b": answers_b[-1], "conversation_b": conversation(instruction.turns, answers_b)}
    return fields


def _joined(reference: Sequence[str | None]) -> str:
    given = [text for text in reference if text]
    if len(given) == 1:
        return given[0]
    return "\n\n".join(f"(turn {number}) {text}" for number, text in enumerate(reference, 1) if text)
