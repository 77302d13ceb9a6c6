"""Where reasoning ends: the cases of FAULTS B15, and laws that hold for any text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judgebench.reasoning import REASONING_RULE, Split, split_reasoning

PIECES = st.lists(
    st.sampled_from(
        ["<think>", "</think>", "<thinking>", "</THINK>", "[THINK]", "[/THINK]", "`", "```\n", "a", " ", "\n"]
    )
    | st.text(max_size=5),
    max_size=12,
).map("".join)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think>maybe [[A]]</think>\n[[B]]", "[[B]]"),
        ("</think> [[B]]", "[[B]]"),
        ("<think>x <think>[[A]]</think> y</think>[[B]]", "[[B]]"),
        ("it began before the text</think>\n\n[[B]]", "[[B]]"),
        ("  \n<THINK>x</THINK>[[B]]", "[[B]]"),
        ("<think>one</think>\n<think>two</think>[[B]]", "[[B]]"),
        ('<think seconds="3">x</think>[[B]]', "[[B]]"),
        ("<think>I must write </think> at the end.</think>[[B]]", "[[B]]"),
        ("[THINK]x[/THINK]y", "y"),
        ("◁think▷x◁/think▷y", "y"),
        ("<seed:think>x</seed:think>y", "y"),
        ("<think>only this</think>\n", ""),
    ],
)
def test_leading_reasoning_is_split_off(text: str, answer: str) -> None:
    split = split_reasoning(text)
    assert split.answer == answer
    assert split.reason is None
    assert split.reasoning is not None


@pytest.mark.parametrize(
    "text",
    [
        "The tag:\n```html\n<think>x</think>\n```\nIt is closed by `</think>`.",
        "Close it with `</think>` and go on.",
        "```\n</think>\n```\nis a code block.",
        "Models write <think> first and </think> last.",
        "no tag, 1 < 2",
        "",
        "<reasoning>asked for by the prompt</reasoning> 4",
    ],
)
def test_a_tag_inside_an_answer_survives(text: str) -> None:
    assert split_reasoning(text) == Split(None, text, None)


@pytest.mark.parametrize(
    "text", ["<think>maybe [[A]] and so on", "<think>a<think>b</think>[[A]]", "\n<think>"]
)
def test_a_block_never_closed_leaves_no_answer(text: str) -> None:
    split = split_reasoning(text)
    assert (split.answer, split.reason) == ("", "unclosed_reasoning")


def test_the_reasoning_is_kept() -> None:
    assert split_reasoning("<think>\nfirst\n</think>\n<think>second</think>x").reasoning == "first\n\nsecond"
    assert split_reasoning("<think>\n\n</think>x").reasoning == ""


@given(PIECES)
def test_total_and_nothing_is_invented(text: str) -> None:
    split = split_reasoning(text)
    assert text.endswith(split.answer)
    assert (split.reason is None) or (split.answer == "" and split.reason == "unclosed_reasoning")
    assert (split.reasoning is None) == (split.answer == text and split.reason is None) or text == ""


@given(PIECES)
def test_idempotent(text: str) -> None:
    answer = split_reasoning(text).answer
    assert split_reasoning(answer) == Split(None, answer, None)


@given(PIECES, st.sampled_from(["fine", "[[A]]", "1 < 2"]))
def test_a_block_put_before_a_text_changes_nothing(reasoning: str, answer: str) -> None:
    if "think" not in reasoning.lower():
        assert split_reasoning(f"<think>{reasoning}</think>{answer}").answer == answer


def test_the_rule_has_a_version() -> None:
    assert REASONING_RULE == "reasoning/1"
