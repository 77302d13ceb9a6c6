"""`fill`: every request one outcome, every key one call, stored answers never asked again."""

import asyncio
import random
import sqlite3
import threading
import time
from dataclasses import dataclass

import pytest
from fakes import FakeEngine, on_loop

from judgebench.engine import Failure, Response
from judgebench.errors import ConfigError, EngineError, Interrupted
from judgebench.request import Connection, Descriptor, Request, Subject, prompt_input
from judgebench.stage import fill
from judgebench.store import Answer, RoleRoot, layout
from judgebench.tally import Tally

M = Descriptor("fake", "m")


def asks(texts, descriptor=M):
    return [
        Request(descriptor, Connection(), prompt_input(text), Subject("b", str(n), 1, "m"), 0, n)
        for n, text in enumerate(texts)
    ]


@dataclass(frozen=True, eq=False)
class Forbidden:
    """An engine that must not be touched."""

    def run(self, requests):
        raise AssertionError("a run of hits started an engine")


class Asked:
    """Collects outcomes and what the engine was asked."""

    def __init__(self, path, role="completions"):
        self.path, self.role = path, role
        self.calls = []

    def fill(self, requests, reply=lambda request: "echo " + request.input["prompt"], **options):
        def counted(request):
            self.calls.append(request.input["prompt"])
            return reply(request)

        engine = options.pop("engine", FakeEngine(counted))
        engines = options.pop("engines", lambda request: engine)
        outcomes = {}

        def deliver(batch):
            for request, result in batch:
                assert request.tag not in outcomes, "an outcome was delivered twice"
                outcomes[request.tag] = result

        async def work():
            store = RoleRoot(self.path, self.role, "run")
            try:
                return await fill(requests, store=store, engine_of=engines, deliver=deliver, **options)
            finally:
                store.close()

        try:
            self.tally = on_loop(work(), 60)
        finally:
            self.outcomes = outcomes
        return [outcomes[request.tag] for request in requests] if isinstance(requests, list) else outcomes


@pytest.fixture
def stage(tmp_path):
    return Asked(tmp_path)


def outputs(results):
    return [r.output if isinstance(r, Answer) else r.reason for r in results]


@pytest.mark.parametrize("concurrency", [1, 5, 64])
def test_row_i_has_answer_i_whatever_finishes_first(stage, concurrency):
    async def reply(request):
        n = int(request.input["prompt"])
        await asyncio.sleep((9 - n % 10) * 0.003)
        return f"echo {n}"

    from judgebench.engine.flow import Policy

    engine = FakeEngine(reply, Policy(concurrency=concurrency, max_wait_s=0.01))
    results = stage.fill(asks(map(str, range(40))), engine=engine)
    assert outputs(results) == [f"echo {n}" for n in range(40)]


def test_a_rerun_asks_nothing_and_starts_no_engine(stage):
    requests = asks(map(str, range(700)))
    first = outputs(stage.fill(requests))
    again = outputs(stage.fill(requests, engine=Forbidden()))
    assert again == first
    assert stage.tally.hits == 700
    assert stage.tally.calls == 0


def test_a_key_that_is_committed_between_a_look_up_and_its_asking_is_not_asked_twice(stage, monkeypatch):
    """The second chunk holds the key of the first; its look-up ends just before the first one's commit."""
    looked, delivered = threading.Event(), threading.Event()
    first, second = asks(["same"] + [f"f{n}" for n in range(255)]), asks(["same"])
    late = type(second[0])(M, Connection(), second[0].input_text, Subject("b", "late", 1, "m"), 0, 999)
    lookup = RoleRoot.lookup

    def slow(store, requests):
        found = lookup(store, requests)
        if requests[0].tag == 999:
            looked.set()
            assert delivered.wait(10)
            time.sleep(0.2)  # the answer is delivered on the loop meanwhile
        return found

    monkeypatch.setattr(RoleRoot, "lookup", slow)
    monkeypatch.setattr(RoleRoot, "claim", lambda store, requests: {})

    async def reply(request):
        if request.input["prompt"] == "same":
            await asyncio.to_thread(looked.wait, 10)
            delivered.set()
        return "one"

    results = stage.fill([*first, late], reply=reply)
    assert stage.calls.count("same") == 1
    assert outputs(results)[-1] == "one"
    assert stage.tally.shared == 1


def test_what_is_in_flight_elsewhere_is_kept_when_an_engine_breaks(stage):
    other = Descriptor("fake", "broken")

    async def slow(request):
        await asyncio.sleep(0.3)
        return "paid"

    async def broken(request):
        await asyncio.sleep(0.05)
        raise EngineError("no such model")

    lanes = {M: FakeEngine(slow), other: FakeEngine(broken)}
    requests = asks(map(str, range(8)))
    (bad,) = asks(["bad"], other)
    bad = Request(other, Connection(), bad.input_text, bad.subject, 0, 99)
    with pytest.raises(EngineError, match="no such model"):
        stage.fill([*requests, bad], engines=lambda request: lanes[request.descriptor])
    assert outputs(stage.outcomes[n] for n in range(8)) == ["paid"] * 8


def test_what_is_in_flight_is_kept_when_a_request_cannot_be_made(stage):
    def requests():
        yield from asks(map(str, range(256)))
        time.sleep(0.05)
        raise ConfigError("cannot be rendered")

    async def slow(request):
        await asyncio.sleep(0.1)
        return "paid"

    with pytest.raises(ConfigError, match="cannot be rendered"):
        stage.fill(requests(), reply=slow)
    assert len(stage.outcomes) == len(stage.calls) > 0


def test_a_resume_asks_exactly_what_is_missing(stage):
    everything = [str(n) for n in range(1000)]
    stored = random.Random(0).sample(everything, 900)
    stage.fill(asks(stored))
    stage.calls.clear()
    results = stage.fill(asks(everything))
    assert sorted(stage.calls) == sorted(set(everything) - set(stored))
    assert outputs(results) == [f"echo {n}" for n in everything]


def test_equal_requests_share_one_call_and_keep_their_subjects(stage):
    results = stage.fill(asks(["Hi", "Hi", "Bye"]))
    assert sorted(stage.calls) == ["Bye", "Hi"]
    assert outputs(results) == ["echo Hi", "echo Hi", "echo Bye"]
    assert (stage.tally.calls, stage.tally.shared) == (2, 1)
    (db,) = (sqlite3.connect(path) for path in layout.databases(stage.path, "completions"))
    assert db.execute("SELECT instruction_id FROM subjects ORDER BY 1").fetchall() == [("0",), ("1",), ("2",)]
    db.close()


def test_failures_are_outcomes_and_are_asked_again(stage):
    from judgebench.engine.flow import Fault

    def ill(request):
        n = int(request.input["prompt"])
        if n in (2, 4):
            raise Fault("rate_limited", "429")
        return "" if n == 5 else "fine"

    requests = asks("1 2 3 4 5".split())
    first = outputs(stage.fill(requests, ill))
    assert first == ["fine", "rate_limited", "fine", "rate_limited", "empty"]
    stage.calls.clear()
    second = outputs(stage.fill(requests))
    assert sorted(stage.calls) == ["2", "4", "5"]
    assert second == ["fine", "echo 2", "fine", "echo 4", "echo 5"]


def test_only_asks_nobody(stage):
    stage.fill(asks(["a"]))
    results = stage.fill(asks(["a", "b"]), mode="only", engine=Forbidden())
    assert outputs(results) == ["echo a", "not_cached"]
    assert stage.tally.failures == {"not_cached": 1}


def test_a_broken_engine_raises_and_keeps_what_came(stage):
    from judgebench.engine.flow import Fault, Policy

    async def reply(request):
        if request.input["prompt"] == "7":
            await asyncio.sleep(0.2)
            raise Fault("auth", "the key was revoked")
        return "fine"

    with pytest.raises(EngineError, match="revoked"):
        stage.fill(asks(map(str, range(8))), engine=FakeEngine(reply, Policy(concurrency=2)))
    results = stage.fill(asks(map(str, range(7))), engine=Forbidden())
    assert outputs(results) == ["fine"] * 7


def test_an_engine_that_forgets_a_request_is_found_out(stage):
    @dataclass(frozen=True, eq=False)
    class Forgetful:
        async def run(self, requests):
            async for request in requests:
                if request.input["prompt"] != "1":
                    yield Response(request, "fine")

    with pytest.raises(EngineError, match="1 requests without an answer"):
        stage.fill(asks("0 1 2".split()), engine=Forgetful())


def test_two_models_go_to_their_own_engines_side_by_side(stage):
    other = Descriptor("fake", "other")
    ours, theirs = FakeEngine(lambda r: "ours"), FakeEngine(lambda r: "theirs")
    third = Request(other, Connection(), prompt_input("a"), Subject("b", "9", 1, "o"), 0, 9)
    requests = [*asks("a b".split()), third]
    results = stage.fill(requests, engines=lambda r: ours if r.descriptor == M else theirs)
    assert outputs(results) == ["ours", "ours", "theirs"]


def test_a_stop_keeps_what_is_in_flight_and_says_so(stage):
    stop = asyncio.Event()
    from judgebench.engine.flow import Policy

    async def reply(request):
        await asyncio.sleep(0.05)
        if request.input["prompt"] == "3":
            stop.set()
        return "kept"

    with pytest.raises(Interrupted):
        stage.fill(asks(map(str, range(5000))), engine=FakeEngine(reply, Policy(concurrency=4)), stop=stop)
    assert 3 <= len(stage.outcomes) <= 12
    assert all(isinstance(result, Answer) for result in stage.outcomes.values())
    kept = len(stage.outcomes)
    again = stage.fill(asks(map(str, range(5000))))
    assert sum(output == "kept" for output in outputs(again)) == kept


def test_hits_flow_past_slow_misses(stage):
    everything = [str(n) for n in range(3000)]
    missing = set(random.Random(1).sample(everything, 20))
    stage.fill(asks([text for text in everything if text not in missing]))

    async def slow(request):
        await asyncio.sleep(0.1)
        return "late"

    began = time.monotonic()
    stage.fill(asks(everything), engine=FakeEngine(slow))
    # One after the other the misses alone would take 2 s; the preflight is sent alone.
    assert time.monotonic() - began < 1.5
    assert stage.tally.calls == 20


def test_requests_are_made_lazily(stage):
    made = []

    def endless():
        for request in asks(map(str, range(100_000))):
            made.append(request)
            yield request

    from judgebench.engine.flow import Policy

    stop = asyncio.Event()

    async def reply(request):
        stop.set()
        return "one"

    with pytest.raises(Interrupted):
        stage.fill(endless(), engine=FakeEngine(reply, Policy(concurrency=1)), stop=stop)
    assert len(made) < 20_000


def test_money_is_counted_once_an_answer(stage):
    def priced(request):
        return Response(request, "yes", cost_usd=0.01)

    requests = asks(["a", "a", "b"])
    stage.fill(requests, priced)
    assert stage.tally.cost_usd == pytest.approx(0.02)
    stage.fill(requests, priced)
    assert stage.tally.cost_usd == 0
    assert stage.tally.served_usd == pytest.approx(0.02)


def test_unknown_money_is_not_zero(stage):
    stage.fill(asks(["a"]))
    assert stage.tally.unpriced == 1


def test_a_tally_follows_while_it_runs(stage):
    tally = Tally()
    stage.fill(asks("a b c".split()), tally=tally)
    assert (tally.asked, tally.done) == (3, 3)


def test_failure_outcomes_carry_the_reason(stage):
    from judgebench.engine.flow import Fault

    def refuse(request):
        raise Fault("context_overflow", "too long")

    (result,) = stage.fill(asks(["a"]), refuse)
    assert isinstance(result, Failure)
    assert (result.reason, result.detail) == ("context_overflow", "too long")
