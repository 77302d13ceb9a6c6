"""The budget: limits are kept before each call, and what was bought is kept when they end."""

import asyncio
import json

import pytest
from fakes import FakeEngine, on_loop, request
from hypothesis import given
from hypothesis import strategies as st
from servers import Server
from test_stage import Asked, asks, outputs

from judgebench.budget import Budget, budget_of
from judgebench.cli import main
from judgebench.engine import Failure, Response, Usage
from judgebench.engine.faults import Fault
from judgebench.errors import ConfigError
from judgebench.request import Connection, Descriptor, Price, Request, Subject, prompt_input


@pytest.fixture
def stage(tmp_path):
    return Asked(tmp_path)


def answer(cost=None, read=10, written=5):
    return lambda asked: Response(asked, "yes", usage=Usage(read, None, written), cost_usd=cost)


def test_calls_are_limited_stored_ones_are_served_and_a_rerun_goes_on(stage):
    rows = asks([f"q{n}" for n in range(20)])
    found = outputs(stage.fill(rows, budget=Budget({"max_calls": 8})))
    assert len(stage.calls) == 8
    assert found.count("over_budget") == 12
    again = outputs(stage.fill(rows, budget=Budget({"max_calls": 8})))
    assert len(stage.calls) == 16
    assert again.count("over_budget") == 4
    assert stage.tally.hits == 8
    assert "over_budget" not in outputs(stage.fill(rows, budget=Budget({"max_calls": 8})))
    assert len(set(stage.calls)) == len(stage.calls) == 20


def test_with_no_room_at_all_the_engine_is_not_started(stage):
    found = outputs(stage.fill(asks(["a", "b"]), budget=Budget({"max_calls": 0})))
    assert found == ["over_budget", "over_budget"]
    assert stage.calls == []


def priced(count, price, **settings):
    model = Descriptor("vllm", "m", settings)
    subjects = (Subject("b", str(n), 1, "m") for n in range(count))
    return [
        Request(
            model,
            Connection(price=Price(*price) if price else None),
            prompt_input(f"question {n}"),
            subject,
            0,
            n,
        )
        for n, subject in enumerate(subjects)
    ]


@given(
    limit=st.floats(0, 0.05),
    costs=st.lists(st.integers(1, 100), min_size=1, max_size=30),
    window=st.integers(1, 16),
)
def test_money_is_never_overspent(limit, costs, window):
    """Answers of at most `max_tokens` tokens: whatever is in flight, the sum stays below the limit."""
    rows = priced(len(costs), (0.0, 10.0), max_tokens=100)
    budget = Budget({"max_cost_usd": limit})
    spent = []

    async def work():
        async def one(row):
            if await budget.admit(row):
                await asyncio.sleep(0)
                usd = costs[row.tag] * 10 / 1e6
                spent.append(usd)
                budget.settle(Response(row, "x", usage=Usage(10, None, costs[row.tag]), cost_usd=usd))

        gate = asyncio.Semaphore(window)

        async def bounded(row):
            async with gate:
                await one(row)

        async with asyncio.timeout(10):
            await asyncio.gather(*map(bounded, rows))

    on_loop(work())
    assert sum(spent) <= limit * (1 + 1e-9)
    assert budget.spent.usd == pytest.approx(sum(spent))
    left = limit - sum(spent)
    assert len(spent) == len(costs) or left < 100 * 10 / 1e6 + 1e-12, "it stopped with room for another"


def test_a_run_stops_before_the_money_is_gone(stage):
    rows = priced(50, (0.0, 100.0), max_tokens=100)
    budget = Budget({"max_cost_usd": 0.1})  # ten answers of the full length, or twenty of half of it
    found = outputs(stage.fill(rows, answer(cost=0.005, written=50), budget=budget))
    assert 19 <= len(stage.calls) <= 20
    assert budget.spent.usd == pytest.approx(0.005 * len(stage.calls))
    assert budget.spent.usd <= 0.1
    assert found.count("over_budget") == 50 - len(stage.calls)


def test_without_max_tokens_the_first_answer_is_waited_for(stage):
    flying, most = 0, []

    async def slow(asked):
        nonlocal flying
        flying += 1
        most.append(flying)
        await asyncio.sleep(0.01)
        flying -= 1
        return Response(asked, "x", usage=Usage(10, None, 10), cost_usd=0.001)

    stage.fill(priced(10, (0.0, 100.0)), slow, budget=Budget({"max_cost_usd": 1.0}))
    assert most[:2] == [1, 1]
    assert max(most) > 2
    assert len(stage.calls) == 10


def test_a_price_that_nobody_knows_is_no_zero(stage):
    with pytest.raises(ConfigError, match=r"nobody says what vllm/m costs.*price"):
        stage.fill(priced(2, None), budget=Budget({"max_cost_usd": 1.0}))
    assert stage.calls == []
    assert "over_budget" not in outputs(
        stage.fill(priced(2, (0.0, 0.0)), budget=Budget({"max_cost_usd": 1.0}))
    )


def test_a_known_price_comes_from_the_table():
    row = request(provider="openai", model="gpt-4.1-mini", max_tokens=1000)
    assert on_loop(Budget({"max_cost_usd": 1.0}).admit(row))
    assert not on_loop(Budget({"max_cost_usd": 0.001}).admit(row))


def test_an_answer_whose_cost_nobody_told_counts_as_the_most(stage):
    budget = Budget({"max_cost_usd": 0.0101})
    stage.fill(priced(50, (0.0, 10.0), max_tokens=100), lambda asked: "x", budget=budget)
    assert len(stage.calls) == 10 == budget.unpriced
    assert "10 answers at the most they can have cost" in budget.told()


def test_tries_that_are_made_again_count(stage):
    """Run 1: an attempt that was billed and an answer; run 2 is served and spends nothing (B59)."""
    seen = set()

    def twice(asked):
        if asked.key not in seen:
            seen.add(asked.key)
            raise Fault("empty", "nothing", retry=True, wait_s=0.0, output="", cost_usd=0.01)
        return Response(asked, "x", usage=Usage(10, None, 5), cost_usd=0.01)

    rows = priced(1, (0.0, 1.0), max_tokens=10)
    budget = Budget({"max_cost_usd": 1.0, "max_calls": 100})
    stage.fill(rows, twice, budget=budget)
    assert budget.spent.calls == 2
    assert budget.spent.usd == pytest.approx(0.02)
    assert stage.tally.cost_usd == pytest.approx(0.02)
    rerun = Budget({"max_cost_usd": 1.0, "max_calls": 100})
    stage.fill(rows, twice, budget=rerun)
    assert rerun.spent.calls == 0
    assert stage.tally.served_usd == pytest.approx(0.01)
    assert stage.tally.cost_usd == 0


def test_tokens_are_limited(stage):
    budget = Budget({"max_tokens_total": 1000})
    stage.fill(priced(40, None, max_tokens=50), answer(read=10, written=40), budget=budget)
    assert 0.8 * 1000 <= budget.spent.tokens <= 1000


def test_an_engine_that_gathers_is_not_kept_waiting(stage):
    class Gathers(FakeEngine):
        """Asks nobody before it has all requests, as a batch does."""

        gathers = True

        async def run(self, requests):
            for row in [row async for row in requests]:
                yield Response(row, "x", usage=Usage(1, None, 1))

    engine = Gathers(lambda asked: "")
    found = outputs(stage.fill(asks(["a", "b", "c"]), engine=engine, budget=Budget({"max_calls": 2})))
    assert sorted(found) == ["over_budget", "x", "x"]


def test_calls_that_end_without_a_word_are_spent():
    budget = Budget({"max_calls": 2})
    row = request("a", max_tokens=5)
    assert on_loop(budget.admit(row))
    budget.lose([row.key])
    budget.lose([row.key])
    assert budget.spent.calls == 1


def test_a_failure_costs_what_it_tells():
    budget = Budget({"max_cost_usd": 1.0})
    row = request("a", price=(1.0, 1.0), max_tokens=5)
    assert on_loop(budget.admit(row))
    budget.settle(Failure(row, "content_filter", usage=Usage(3, None, 4), cost_usd=0.25))
    assert budget.spent == (1, 7, 0.25)


@pytest.mark.parametrize("limits", [{"max_calls": -1}, {"max_cost_usd": float("nan")}, {"max_calls": True}])
def test_limits_are_numbers_from_0_on(limits):
    with pytest.raises(ConfigError, match=r"budget\.max_"):
        Budget(limits)


def test_jobs_of_one_sweep_share_and_runs_do_not():
    assert budget_of({"max_calls": 3}, "a") is budget_of({"max_calls": 3}, "a")
    assert budget_of({"max_calls": 3}, "a") is not budget_of({"max_calls": 3}, "b")
    assert budget_of({"max_calls": 3}, None) is not budget_of({"max_calls": 3}, None)


def test_the_command_line(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("JUDGEBENCH_STORE", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    with Server() as server:
        words = [
            "run",
            "limit=6",
            "check_judge=false",
            "candidate=server",
            "candidate.name=c",
            "judge=server",
            "judge.name=j",
            f"candidate.base_url={server.url}",
            f"judge.base_url={server.url}",
            "protocol=pairwise",
            "store.canary=false",
        ]
        assert main([*words, "budget.max_calls=4"]) == 3
        told = capfd.readouterr()
        assert server.count == 4
        assert "4 of 4 calls" in told.out
        assert "budget.max_calls=4 ran out" in told.err
        assert "over_budget" in told.out
        assert main([*words, "budget.max_cost_usd=1"]) == 1
        assert "nobody says what" in capfd.readouterr().err
        assert server.count == 4
        assert main([*words, "budget.max_calls=1000"]) in (0, 3)
        assert server.count > 4
        assert main(["run", "budget.max_calls=many"]) == 1
        assert "budget.max_calls" in capfd.readouterr().err
        assert json.loads(next((tmp_path / "runs").glob("*/run.json")).read_text())["config"]["budget"]
