from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from judgebench.answers import Answers, missing_reason
from judgebench.benchmark import Benchmark, Loaded, Table
from judgebench.engine import Failure
from judgebench.errors import ConfigError, DataError
from judgebench.model import Model
from judgebench.request import Request, digest
from judgebench.stage import Outcome, fill
from judgebench.store import Answer, RoleRoot
from tests.fakes import FakeEngine, on_loop

ITEMS = [
    {"instruction_id": "one", "turns": ["q1"], "m": "shipped", "system": "be brief"},
    {"instruction_id": "two", "turns": ["q1", "q2"], "m": ["s1", None]},
    {"instruction_id": "three", "turns": ["q1", "q2", "q3"], "m": None},
]


def answered(text: str, finish: str | None = "stop") -> Answer:
    return Answer(text, None, finish, None, "paid", None, 1, 1, None, "2026", hit=False)


@pytest.fixture
def loaded(tmp_path: Path) -> Loaded:
    path = tmp_path / "items.json"
    path.write_text(json.dumps(ITEMS), encoding="utf-8")
    tables = {"m": Table(str(path), columns={"outputs": "m"})}
    return Benchmark("b", Table(str(path)), outputs=tables, baseline="m").load(None)


def live(loaded: Loaded, **settings: Any) -> Answers:
    return Answers(Model("vllm", "live", **settings), loaded, "candidate")


def messages(request: Request) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in request.input["messages"]]


def turn(side: Answers, number: int, reply: Callable[[Request], Answer]) -> list[Request]:
    requests = list(side.requests(number))
    side.take([Outcome(request, reply(request)) for request in requests])
    return requests


def ways(side: Answers) -> dict[str, tuple[list[str], str | None]]:
    return {talk.instruction.instruction_id: (talk.outputs, talk.reason) for talk in side.conversations}


def test_a_turn_sees_the_stored_answers_of_the_turns_before(loaded: Loaded) -> None:
    side = live(loaded)
    first = turn(side, 1, lambda request: answered(f"1 {request.subject.instruction_id}"))
    assert messages(first[0]) == [("system", "be brief"), ("user", "q1")]
    assert messages(first[1]) == [("user", "q1")]
    second = turn(side, 2, lambda request: answered("2"))
    assert [request.subject.instruction_id for request in second] == ["two", "three"]
    assert messages(second[0]) == [("user", "q1"), ("assistant", "1 two"), ("user", "q2")]
    third = turn(side, 3, lambda request: answered("3"))
    assert messages(third[0])[1::2] == [("assistant", "1 three"), ("assistant", "2")]
    assert all(talk.complete for talk in side.conversations)
    assert [request.subject.turn for request in (*first, *second, *third)] == [1, 1, 1, 2, 2, 3]
    lineage = side.by_item["three"][0].keys
    assert lineage == [str(requests[-1].key) for requests in (first, second, third)]


def test_a_failed_turn_fails_those_after_it(loaded: Loaded) -> None:
    side = live(loaded)
    requests = list(side.requests(1))
    side.take([Outcome(requests[1], Failure(requests[1], "content_filter"))])
    side.take([Outcome(requests[2], answered("ok"))])
    assert [request.subject.instruction_id for request in side.requests(2)] == ["three"]
    rows = [row for row in side.rows() if row["instruction_id"] == "two"]
    assert [(row["turn"], row["reason"], row["output"]) for row in rows] == [
        (1, "content_filter", None),
        (2, "previous_turn_failed", None),
    ]
    assert missing_reason([side.by_item["two"][0]]) == "answer_content_filter"


def test_think_blocks_stay_in_the_store_and_out_of_later_turns(loaded: Loaded) -> None:
    side = live(loaded)
    texts = {"one": "<think>a</think>\nb", "two": "<think>x</think>\n\nanswer", "three": "<think>never ends"}
    turn(side, 1, lambda request: answered(texts[request.subject.instruction_id]))
    assert side.by_item["one"][0].outputs == [texts["one"]]
    assert side.by_item["one"][0].answers == ["b"]
    second = list(side.requests(2))
    assert [messages(request)[1] for request in second] == [("assistant", "answer")]
    assert side.by_item["three"][0].reason == "previous_turn_failed"  # there is no answer to show
    assert side.by_item["one"][0].chars == 1
    rows = {row["instruction_id"]: row for row in side.rows() if row["turn"] == 1}
    assert rows["one"]["output"] == texts["one"]


def test_the_same_second_turn_whether_the_first_was_stored_or_not(tmp_path: Path, loaded: Loaded) -> None:
    """FAULTS B112: request bytes, hence keys, and row objects are the same."""

    def run(reply: Callable[[Request], Any]) -> tuple[Answers, list[str]]:
        side, sent = live(loaded), []

        def noted(request: Request) -> Any:
            sent.append(request.input_text)
            return reply(request)

        engine = FakeEngine(noted)
        root = RoleRoot(tmp_path / "store", "completions", "run")
        try:
            for number in (1, 2, 3):
                on_loop(
                    fill(side.requests(number), store=root, engine_of=lambda _: engine, deliver=side.take)
                )
        finally:
            root.close()
        return side, sent

    def fails_later(request: Request) -> str:
        if len(request.input["messages"]) > 2:
            raise ConnectionError("not now")
        return "<think>t</think>first"

    with pytest.raises(Exception):  # noqa: B017, PT011
        run(fails_later)
    mended, sent = run(lambda request: "later" if len(request.input["messages"]) > 2 else "never asked again")
    assert len(sent) == 2  # the second turns of two and three are one request
    first_again = {talk.instruction.instruction_id: talk.outputs for talk in mended.conversations}
    assert first_again["three"] == ["<think>t</think>first", "later", "later"]
    rows = list(mended.rows())
    again, sent_again = run(lambda request: "nothing is asked")
    assert sent_again == []
    assert list(again.rows()) == rows


def test_shipped_answers_cost_no_call(loaded: Loaded) -> None:
    side = Answers(Model("shipped", "m"), loaded, "baseline")
    assert side.shipped is not None
    requests = [*side.requests(1)]
    assert [request.subject.instruction_id for request in requests] == ["one", "two"]
    assert ways(side)["three"] == ([], "not_shipped")  # null in the file: counted, never sent
    assert side.descriptor.provider == "shipped"
    place = {"source": "b", "instruction_id": "one", "turn": 1, "model": "m", "sha256": digest("shipped")}
    assert requests[0].input["shipped"] == place
    side.take([Outcome(request, answered("s1")) for request in requests])
    assert list(side.requests(2)) == []
    assert missing_reason([side.by_item["two"][0]]) == "not_shipped"
    # A live model of a shipped name takes its answers, unless told otherwise.
    assert Answers(Model("openai", "m"), loaded, "candidate").descriptor.provider == "shipped"
    assert Answers(Model("openai", "m", shipped=False), loaded, "candidate").descriptor.provider == "openai"


def test_the_key_of_a_shipped_answer_is_of_its_text_however_the_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "items.csv"
    path.write_text("instruction,one,two\nq,first,second\n", encoding="utf-8")
    keys = {}
    for column in ("one", "two"):
        table = Table(str(path), columns={"output": column})
        own = Benchmark("b", Table(str(path)), id="position", outputs={"m": table})
        (request,) = Answers(Model("shipped", "m"), own.load(None), "candidate").requests(1)
        keys[column] = request.key
    assert keys["one"] != keys["two"]


def test_an_answer_that_ended_within_its_reasoning_is_not_judged(loaded: Loaded) -> None:
    side = live(loaded)
    requests = [*side.requests(1)]
    cut = Answer("<think>long thoughts", finish_reason="length")
    side.take([Outcome(request, cut) for request in requests])
    talk = side.by_item["one"][0]
    assert talk.complete
    assert missing_reason([talk]) == "answer_unclosed_reasoning"
    row = next(row for row in side.rows() if row["instruction_id"] == "one")
    assert (row["output"], row["reason"]) == ("<think>long thoughts", "unclosed_reasoning")


def test_an_empty_shipped_answer_is_an_answer(tmp_path: Path) -> None:
    path = tmp_path / "items.csv"
    path.write_text('instruction,m\nq,""\n', encoding="utf-8")
    own = Benchmark(
        "b", Table(str(path)), id="position", outputs={"m": Table(str(path), columns={"output": "m"})}
    )
    side = Answers(Model("shipped", "m"), own.load(None), "candidate")
    root = RoleRoot(tmp_path / "store", "completions", "run")
    try:
        on_loop(fill(side.requests(1), store=root, engine_of=lambda _: side.shipped, deliver=side.take))  # type: ignore[arg-type, return-value]
    finally:
        root.close()
    assert ways(side) == {"0": ([""], None)}
    assert side.by_item["0"][0].complete


def test_a_misspelt_shipped_name_is_not_answered_by_the_embedded_model(loaded: Loaded) -> None:
    loaded.benchmark.outputs["starter-new"] = loaded.benchmark.outputs["m"]  # type: ignore[index]
    with pytest.raises(ConfigError, match=r"did you mean 'starter-new'\?.*candidate\.shipped=false"):
        Answers(Model("llamacpp", "starter-nwe"), loaded, "candidate")
    for fine in (Model("llamacpp", "starter-nwe", shipped=False), Model("llamacpp", "gemma")):
        assert Answers(fine, loaded, "candidate").shipped is None


def test_a_model_that_is_not_shipped_names_the_choices(loaded: Loaded) -> None:
    with pytest.raises(ConfigError, match=r"ships no answers of 'n'\. It ships: m"):
        Answers(Model("shipped", "n"), loaded, "baseline")
    loaded.unreachable["far"] = "hf://far cannot be fetched."
    with pytest.raises(DataError, match="hf://far"):
        Answers(Model("shipped", "far"), loaded, "baseline")


def test_two_files_of_one_name_are_told_apart_by_content(tmp_path: Path) -> None:
    hashes = []
    for text in ("x", "y", "x"):
        path = tmp_path / str(len(hashes)) / "own.csv"
        path.parent.mkdir()
        path.write_text(f"instruction,m\nq,{text}\n", encoding="utf-8")
        own = Benchmark(
            "b", Table(str(path)), id="position", outputs={"m": Table(str(path), columns={"output": "m"})}
        )
        hashes.append(Answers(Model("shipped", "m"), own.load(None), "candidate").descriptor.hash)
    # Where the file lies on this machine is no part of what an answer is.
    assert hashes[0] == hashes[2] != hashes[1]


def test_samples(loaded: Loaded) -> None:
    side = live(loaded, samples=3, sampling={"temperature": 1, "seed": 10})
    requests = list(side.requests(1))
    assert [(r.subject.instruction_id, r.sample, r.settings()["seed"]) for r in requests[:3]] == [
        ("one", 0, 10), ("one", 1, 11), ("one", 2, 12),
    ]  # fmt: skip
    assert len({request.key for request in requests}) == len({r.input_hash for r in requests}) * 3
    assert (
        requests[0].key == next(iter(live(loaded, sampling={"temperature": 1, "seed": 10}).requests(1))).key
    )


def test_base_models_get_text(loaded: Loaded) -> None:
    side = live(loaded, form="text")
    turn(side, 1, lambda request: answered("a1"))
    assert [request.input["prompt"] for request in side.requests(2)] == [
        "Question: q1\nAnswer: a1\n\nQuestion: q2\nAnswer:"
    ] * 2
    own = live(loaded, form="text", template="{% if system %}[{{ system }}] {% endif %}{{ turns[0].user }}")
    assert [request.input["prompt"] for request in own.requests(1)] == ["[be brief] q1", "q1", "q1"]


def test_truncated_and_failed_shares(loaded: Loaded) -> None:
    side = live(loaded)
    turn(side, 1, lambda request: answered("cut off", "length"))
    assert all(talk.truncated for talk in side.conversations)
