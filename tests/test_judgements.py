from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from judgebench.answers import Answers, Conversation
from judgebench.benchmark import Benchmark, Instruction, Table
from judgebench.engine import Failure
from judgebench.errors import ConfigError
from judgebench.judgements import Judgements, Match
from judgebench.model import Model
from judgebench.protocol import Protocol
from judgebench.reader import LabelLogprobs, LastLabel, Score
from judgebench.request import Request
from judgebench.stage import Outcome
from judgebench.store import Answer
from judgebench.verdict import battles

LABELS = LastLabel({"A": 0.0, "B": 1.0, "C": 0.5})
PAIR = [{"role": "user", "content": "{{ instruction }}|{{ answer_a }}|{{ answer_b }}"}]
JUDGE = Model("openai", "judge")


class Given:
    """A side as it is after the completion stage."""

    def __init__(self, label: str, outputs: Mapping[str, Any], turns: int = 1) -> None:
        self.label, self.benchmark = label, "b"
        self.by_item: dict[str, list[Conversation]] = {}
        for identity, given in outputs.items():
            item = Instruction(
                identity, tuple(f"q{n}" for n in range(turns)), category="c", cluster_id=identity
            )
            samples = given if isinstance(given, tuple) else (given,)
            self.by_item[identity] = [self._talk(item, n, output) for n, output in enumerate(samples)]

    def _talk(self, item: Instruction, sample: int, output: Any) -> Conversation:
        talk = Conversation(item, sample)
        for turn, text in enumerate([output] if isinstance(output, str) else output or []):
            talk.add(text, f"{self.label}:{item.instruction_id}{turn}:{sample}", "stop", "paid")
        if not talk.complete:
            talk.reason = "timeout"
        return talk


def pairwise(**settings: Any) -> Protocol:
    settings = {"chat": PAIR, "reader": LABELS, **settings}
    return Protocol("p", "pairwise", **settings)


def planned(
    protocol: Protocol, candidate: Given, baseline: Given | None, judges: Mapping[str, Model] | None = None
) -> Judgements:
    return Judgements(protocol, judges or {"j": JUDGE}, [Match(candidate, baseline)], 0, None)


def judged(judgements: Judgements, reply: Callable[[Request], Any]) -> tuple[pd.DataFrame, list[Request]]:
    """Verdicts, when `reply` gives a text, (text, log probabilities) or a reason to fail; taken backwards."""
    requests = list(judgements.requests())
    outcomes: list[Outcome] = []
    for request in requests:
        given = reply(request)
        if isinstance(given, ValueError):
            outcomes.append(Outcome(request, Failure(request, str(given))))
            continue
        text, top = given if isinstance(given, tuple) else (given, None)
        answer = Answer(text, None, "stop", top, "paid", "judge-0613", 1, 1, None, "2026", hit=False)
        outcomes.append(Outcome(request, answer))
    judgements.take(outcomes[::-1])
    return judgements.verdicts(), requests


def shown(request: Request) -> Sequence[str]:
    text: str = request.input["messages"][0]["content"]
    return text.split("|")


def test_both_orders_and_who_stood_where() -> None:
    """FAULTS B17: each row says who stood where, what was said, and who won, without arithmetic."""
    verdicts, requests = judged(
        planned(pairwise(), Given("cand", {"q1": "good"}), Given("base", {"q1": "bad"})),
        lambda request: "[[B]]" if shown(request)[2] == "good" else "[[A]]",
    )
    assert [shown(request) for request in requests] == [["q0", "bad", "good"], ["q0", "good", "bad"]]
    facts = ["orientation", "model_a", "model_b", "label", "preference", "winner"]
    assert verdicts[facts].values.tolist() == [
        ["direct", "base", "cand", "B", 1.0, "cand"],
        ["reversed", "cand", "base", "A", 0.0, "cand"],
    ]
    assert verdicts["answer_a"].tolist() == ["base:q10:0", "cand:q10:0"]
    fought = battles(verdicts).iloc[0]
    assert (fought["preference"], fought["consistent"], fought["n_asked"]) == (1.0, True, 2)
    assert [r.subject.orientation for r in requests] == ["direct", "reversed"]
    assert verdicts["verdict_key"].is_unique


def test_the_row_of_alpaca_eval() -> None:
    """FAULTS B17: 'M' at -1.47e-5 and 'm' at -12.2285: who stood in the second place is preferred."""
    top = [{"token": "M", "logprob": -1.47e-5}, {"token": "m", "logprob": -12.2285}]
    protocol = pairwise(reader=LabelLogprobs({"m": 0.0, "M": 1.0}, exact=True), orders="alpaca_eval")
    cand, base = Given("cand", {"q1": "a"}), Given("base", {"q1": "b"})
    text = "q0"  # an instruction that is swapped, or not: the row says so
    verdicts, requests = judged(
        planned(protocol, cand, base),
        lambda request: ("M", json.dumps([{"token": "M", "logprob": -1.47e-5, "top_logprobs": top}])),
    )
    assert shown(requests[0])[0] == text
    row = verdicts.iloc[0]
    fought = battles(verdicts).iloc[0]["preference"]
    wanted = 4.8889e-6 if row["orientation"] == "reversed" else 1 - 4.8889e-6
    assert fought == pytest.approx(wanted, rel=1e-4)
    assert row["winner"] == row["model_b"]


def test_one_order_that_failed_leaves_no_preference() -> None:
    verdicts, _ = judged(
        planned(pairwise(), Given("cand", {"x": "c", "y": "c"}), Given("base", {"x": "b", "y": "b"})),
        lambda r: (
            ValueError("content_filter")
            if r.subject.instruction_id == "x" and r.subject.orientation == "direct"
            else "[[A]]"
        ),
    )
    assert verdicts["reason"].isna().tolist() == [False, True, True, True]
    fought = battles(verdicts).set_index("instruction_id")
    assert pd.isna(fought.loc["x", "preference"])
    assert fought.loc["x", "reason"] == "content_filter"
    assert fought.loc["y", "preference"] == 0.5  # the first place, twice
    assert not fought.loc["y", "consistent"]
    assert fought.loc["y", "first_slot"] == 1.0


def test_one_order_only() -> None:
    """FAULTS B106."""
    verdicts, requests = judged(
        planned(pairwise(orders="direct"), Given("cand", {"x": "c"}), Given("base", {"x": "b"})),
        lambda r: "[[B]]",
    )
    assert len(requests) == 1
    fought = battles(verdicts).iloc[0]
    assert (fought["preference"], fought["n_asked"]) == (1.0, 1)
    assert pd.isna(fought["consistent"])


def test_unreadable_is_never_a_tie() -> None:
    verdicts, _ = judged(
        planned(
            pairwise(orders="direct"),
            Given("c", {str(n): "x" for n in range(3)}),
            Given("b", dict.fromkeys("012", "y")),
        ),
        lambda r: ["[[C]]", "I cannot say.", "[[A]] or [[B]]"][int(r.subject.instruction_id)],
    )
    assert verdicts["preference"].isna().tolist() == [False, True, True]
    assert verdicts["winner"].tolist()[0] == "tie"
    assert verdicts["reason"].notna().tolist() == [False, True, True]
    assert verdicts["source"].isna().tolist() == [False, True, True]
    assert verdicts["served_model"].tolist() == ["judge-0613"] * 3


def test_identical_answers_are_a_draw_by_rule() -> None:
    cand, base = (
        Given("cand", {"x": "<think>a</think>same", "y": "c"}),
        Given("base", {"x": "same", "y": "b"}),
    )
    verdicts, requests = judged(planned(pairwise(), cand, base), lambda r: "[[B]]")
    assert [request.subject.instruction_id for request in requests] == ["y", "y"]
    rule = verdicts[verdicts["instruction_id"] == "x"]
    assert rule["source"].tolist() == ["rule", "rule"]
    assert rule["preference"].tolist() == [0.5, 0.5]
    assert rule["input_hash"].isna().all()
    assert rule["origin"].isna().all()
    assert verdicts["verdict_key"].notna().all()
    assert battles(verdicts)["source"].tolist() == ["rule", "judge"]
    _, asked = judged(planned(pairwise(identical="judge"), cand, base), lambda r: "[[C]]")
    assert len(asked) == 4


def test_a_model_against_itself_is_never_sent() -> None:
    """FAULTS B105: 0.5 by definition, and marked."""
    same = Given("base", {"x": ("a", "b"), "y": ("c", "d")})
    verdicts, requests = judged(planned(pairwise(identical="judge"), same, same), lambda r: "[[A]]")
    assert requests == []
    assert set(verdicts["label"]) == {"self"}
    assert battles(verdicts)["preference"].tolist() == [0.5, 0.5]


def test_missing_answers_are_counted_and_not_sent() -> None:
    cand, base = Given("cand", {"x": None, "y": "c"}), Given("base", {"x": "b", "y": None})
    base.by_item["y"][0].reason = "not_shipped"
    verdicts, requests = judged(planned(pairwise(), cand, base), lambda r: "[[A]]")
    assert requests == []
    assert verdicts["reason"].tolist() == ["answer_timeout"] * 2 + ["not_shipped"] * 2
    assert verdicts["preference"].isna().all()


def test_samples_of_both() -> None:
    """Every candidate sample is judged by every judge sample; the mean is over all of an item's."""
    protocol = pairwise(orders="direct")
    judgements = planned(
        protocol,
        Given("cand", {"x": ("a", "b")}),
        Given("base", {"x": "z"}),
        {"j": Model("openai", "judge", samples=3)},
    )
    verdicts, requests = judged(
        judgements, lambda r: "[[B]]" if shown(r)[2] == "a" or r.sample == 0 else "[[A]]"
    )
    assert [(r.sample, shown(r)[2]) for r in requests] == [(s, text) for text in "ab" for s in range(3)]
    assert verdicts[["candidate_sample", "sample"]].values.tolist() == [
        [c, s] for c in range(2) for s in range(3)
    ]
    assert verdicts["verdict_key"].is_unique
    fought = battles(verdicts)
    assert len(fought) == 1
    assert fought["preference"].tolist() == [pytest.approx(4 / 6)]


def test_several_judges() -> None:
    judges = {"one": JUDGE, "two": Model("openai", "other", label="second")}
    verdicts, requests = judged(
        planned(pairwise(orders="direct"), Given("c", {"x": "c"}), Given("b", {"x": "b"}), judges),
        lambda r: "[[A]]",
    )
    assert verdicts["judge"].tolist() == ["judge", "second"]
    assert len({request.descriptor for request in requests}) == 2
    with pytest.raises(ConfigError, match="Two judges are called 'judge'"):
        planned(pairwise(), Given("c", {}), Given("b", {}), {"one": JUDGE, "two": Model("vllm", "judge")})


def test_pointwise() -> None:
    protocol = Protocol("s", "pointwise", Score(1, 10), chat=[{"role": "user", "content": "{{ answer_a }}"}])
    verdicts, requests = judged(
        planned(protocol, Given("cand", {"x": "a", "y": "b"}), None), lambda r: "Rating: [[7]]"
    )
    assert [request.input["messages"][0]["content"] for request in requests] == ["a", "b"]
    assert verdicts["score"].tolist() == [7.0, 7.0]
    assert verdicts[["model_b", "orientation", "winner", "baseline"]].isna().all(axis=None)
    assert [request.subject.model_b for request in requests] == [None, None]


def test_conversations_of_two_turns() -> None:
    conversation = "{% for turn in conversation_%s %}{{ turn.user }}={{ turn.assistant }};{% endfor %}"
    chat = [{"role": "user", "content": "|".join(conversation.replace("%s", side, 1) for side in "ab")}]
    cand, base = Given("cand", {"x": ["c1", "c2"]}, 2), Given("base", {"x": ["b1", "b2"]}, 2)
    _, requests = judged(planned(pairwise(chat=chat), cand, base), lambda r: "[[A]]")
    assert [shown(r) for r in requests] == [
        ["q0=b1;q1=b2;", "q0=c1;q1=c2;"],
        ["q0=c1;q1=c2;", "q0=b1;q1=b2;"],
    ]
    with pytest.raises(ConfigError, match=r"'x' has 2 turns.*shows only one"):
        list(planned(pairwise(), cand, base).requests())


def test_answers_full_of_marks_are_shown_as_they_are_and_whole() -> None:
    nasty = "{{ 1 }} {answer_b} ${x} |[[B]]\n" + "x" * 5000
    _, requests = judged(
        planned(pairwise(), Given("c", {"x": nasty}), Given("b", {"x": "b"})), lambda r: "[[A]]"
    )
    assert requests[0].input["messages"][0]["content"] == f"q0|b|{nasty}"


def test_a_changed_reference_asks_again_only_where_it_changed(tmp_path: Path) -> None:
    """FAULTS B104: the reference is part of what is asked, hence of the key."""
    chat = [
        {
            "role": "user",
            "content": "{{ answer_a }}{{ answer_b }}{% if reference %}{{ reference }}{% endif %}",
        }
    ]
    keys: list[list[str]] = []
    for reference in ("4", "5"):
        path = tmp_path / "items.json"
        rows = [{"instruction": "q", "m": "x", "n": "y", "reference": text} for text in (reference, None)]
        path.write_text(json.dumps(rows), encoding="utf-8")
        tables = {name: Table(str(path), columns={"output": name}) for name in "mn"}
        loaded = Benchmark("b", Table(str(path)), id="position", outputs=tables).load(None)
        sides = [Answers(Model("shipped", name), loaded, "candidate") for name in "mn"]
        for side in sides:
            answer = Answer(side.label, None, None, None, "shipped", None, None, None, None, "", hit=True)
            side.take([Outcome(request, answer) for request in side.requests(1)])
        plan = Judgements(pairwise(chat=chat, orders="direct"), {"j": JUDGE}, [Match(*sides)], 0, None)
        keys.append([request.input_hash for request in plan.requests()])
    assert keys[0][0] != keys[1][0]
    assert keys[0][1] == keys[1][1]


def test_planning_again_leaves_the_first_plan_alone() -> None:
    judgements = planned(pairwise(), Given("c", {"x": "c", "y": "c"}), Given("b", {"x": "b", "y": "c"}))
    requests = list(judgements.requests())
    before = judgements.verdicts()
    again = list(judgements.again())
    assert [request.key for request in again] == [request.key for request in requests]
    assert [request.subject for request in again] == [request.subject for request in requests]
    pd.testing.assert_frame_equal(judgements.verdicts(), before)
