"""Claims: two runs that want the same answer buy it once, whatever becomes of the one that buys."""

import asyncio
import multiprocessing
import os
import signal
import sqlite3
import time
from collections import Counter

import pytest
from fakes import FakeEngine, on_loop
from storing import ask, database, put, rows

from judgebench.engine import Failure
from judgebench.engine.faults import Fault
from judgebench.engine.flow import Policy
from judgebench.errors import StoreError
from judgebench.stage import fill
from judgebench.store import Answer, RoleRoot, claims


@pytest.fixture
def two(tmp_path):
    roots = [RoleRoot(tmp_path, "judgements", f"run-{n}") for n in (1, 2)]
    yield roots
    for root in roots:
        root.close()


def test_what_one_claims_the_other_does_not_buy(two):
    one, other = two
    both, mine, theirs = ask("both"), ask("mine"), ask("theirs")
    assert one.claim([both, mine]) == {}
    assert one.claim([both]) == {}  # ours stays ours
    assert other.claim([both, theirs]) == {both.key: None}
    assert one.claim([theirs]) == {theirs.key: None}


def test_an_answer_that_came_meanwhile_is_in_the_way_and_gets_its_new_subject(two):
    one, other = two
    one.claim([ask()])
    put(one, ask(), output="bought")
    (answer,) = other.claim([ask(model_a="new")]).values()
    assert (answer.output, answer.hit) == ("bought", True)
    other.flush()
    assert rows(one, "SELECT count(*) FROM subjects") == [(2,)]
    assert rows(one, "SELECT count(*) FROM claims") == [(0,)]


def test_a_failure_and_a_close_give_the_claim_up(two):
    one, other = two
    one.claim([ask("fails"), ask("left")])
    one.note(Failure(ask("fails"), "server"))
    one.flush()
    assert other.claim([ask("fails")]) == {}
    one.close()
    assert other.claim([ask("left")]) == {}


def _claim_and_wait(path, ready):
    root = RoleRoot(path, "judgements", "run")
    root.claim([ask()])
    ready.set()
    time.sleep(60)


def test_a_killed_owner_is_taken_over_at_once(two):
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    owner = context.Process(target=_claim_and_wait, args=(two[0].root, ready))
    owner.start()
    assert ready.wait(20)
    assert two[0].claim([ask()]) == {ask().key: None}
    assert owner.pid is not None
    os.kill(owner.pid, signal.SIGKILL)
    owner.join(20)
    assert two[0].claim([ask()]) == {}


@pytest.mark.parametrize(("seconds", "held"), [(5, True), (-1, False)])
def test_an_owner_elsewhere_is_believed_until_its_claim_runs_out(two, seconds, held):
    one, _ = two
    put(one, ask("other"))
    db = sqlite3.connect(database(one))
    row = (ask().input_hash, 0, "another machine|1|1|x", time.time() + seconds)
    db.execute("INSERT INTO claims VALUES (?, ?, ?, ?)", row)
    db.commit()
    db.close()
    assert one.claim([ask()]) == ({ask().key: None} if held else {})


def test_the_number_of_a_dead_process_that_is_used_again_does_not_hold(two):
    one, _ = two
    put(one, ask("other"))
    machine = two[0]._claims.owner.split("|")[0]
    db = sqlite3.connect(database(one))
    owner = f"{machine}|{os.getpid()}|1|x"  # our number, another start
    db.execute("INSERT INTO claims VALUES (?, 0, ?, ?)", (ask().input_hash, owner, time.time() + 99))
    db.commit()
    db.close()
    assert one.claim([ask()]) == {}


def test_claims_are_renewed_while_their_owner_lives(two, monkeypatch):
    monkeypatch.setattr(claims, "BEAT_S", 0.02)
    one, _ = two
    one.claim([ask()])
    first = rows(one, "SELECT expires_at FROM claims")
    until = time.monotonic() + 10
    while rows(one, "SELECT expires_at FROM claims") == first and time.monotonic() < until:
        time.sleep(0.02)
    assert rows(one, "SELECT expires_at FROM claims") > first


def test_where_the_store_cannot_be_written_nothing_is_bought(tmp_path):
    (tmp_path / "judgements").write_text("in the way")
    root = RoleRoot(tmp_path, "judgements", "run")
    with pytest.raises(StoreError, match="cannot write"):
        root.claim([ask()])
    root.close()


def run_two(path, reply, asks, **policy):
    """Two identical runs at once: what each got, and how often each prompt was asked."""
    calls = Counter()

    async def counted(request):
        calls[request.input["prompt"]] += 1
        return await reply(request, calls)

    async def one(number):
        store = RoleRoot(path, "judgements", f"run-{number}")
        got = {}
        engine = FakeEngine(counted, Policy(concurrency=8, max_wait_s=0.01, **policy))

        def deliver(batch):
            for request, result in batch:
                assert request.tag not in got
                got[request.tag] = result

        try:
            tally = await fill(asks, store=store, engine_of=lambda request: engine, deliver=deliver)
        finally:
            await asyncio.to_thread(store.close)
        return got, tally

    async def both():
        return await asyncio.gather(one(1), one(2))

    return on_loop(both(), 60), calls


def test_two_runs_started_together_buy_each_answer_once(tmp_path):
    async def reply(request, calls):
        await asyncio.sleep(0.002)
        return "echo " + request.input["prompt"]

    asks = [ask(f"q{n % 600}", str(n)) for n in range(700)]
    asks = [type(a)(a.descriptor, a.connection, a.input_text, a.subject, 0, n) for n, a in enumerate(asks)]
    results, calls = run_two(tmp_path, reply, asks)
    assert calls == Counter({f"q{n}": 1 for n in range(600)})
    for got, _ in results:
        assert [got[n].output for n in range(700)] == [f"echo q{n % 600}" for n in range(700)]
    assert sum(tally.calls for _, tally in results) == 600
    assert all(tally.done == 700 for _, tally in results)


def test_what_fails_for_one_is_asked_by_the_other(tmp_path):
    async def reply(request, calls):
        await asyncio.sleep(0.01)
        if calls[request.input["prompt"]] == 1:
            raise Fault("bad_request", "no")
        return "fine"

    results, calls = run_two(tmp_path, reply, [ask("q")])
    assert calls == {"q": 2}
    assert sorted(type(got[0]).__name__ for got, _ in results) == ["Answer", "Failure"]
    assert next(got[0] for got, _ in results if isinstance(got[0], Answer)).output == "fine"
