"""Deployments, rates and the limit that follows what an endpoint bears."""

import asyncio
import logging
import time
from collections import Counter
from dataclasses import replace

import pytest
from fakes import FakeEngine, collect, ends, on_loop, request, tries
from hypothesis import given
from hypothesis import strategies as st
from servers import Fault as Bad
from servers import serving

from judgebench.engine import Response, Usage
from judgebench.engine.endpoint import MINUTE_S, Endpoint, Rate
from judgebench.engine.flow import Policy
from judgebench.engine.openai import OpenAI
from judgebench.errors import ConfigError, EngineError
from judgebench.model import Model
from judgebench.request import Connection

QUICK = OpenAI(concurrency=8, timeout_s=5, max_attempts=3, max_wait_s=0.05)


def spread(count, *connections):
    """Requests of one model that several deployments serve."""
    first, *others = connections
    connection = replace(first, also=tuple(others))
    return [replace(request(str(n)), connection=connection) for n in range(count)]


# deployments


def test_replicas_share_the_load():
    with serving(latency_s=0.01) as one, serving(latency_s=0.01) as two, serving(latency_s=0.01) as three:
        asks = spread(240, *(Connection(server.url) for server in (one, two, three)))
        found = ends(collect(replace(QUICK, concurrency=24), asks))
        assert len(found) == 240
        assert all(isinstance(event, Response) for event in found.values())
        counts = [server.count for server in (one, two, three)]
        assert sum(counts) == 240
        assert min(counts) > 40, counts


def test_the_slower_one_gets_less():
    with serving(latency_s=0.005) as quick, serving(latency_s=0.1) as slow:
        asks = spread(200, Connection(slow.url), Connection(quick.url))
        assert len(ends(collect(QUICK, asks))) == 200
        assert quick.count > 3 * slow.count


def test_a_key_that_fails_is_set_aside_and_no_row_is_lost(monkeypatch, caplog):
    monkeypatch.setenv("GOOD_KEY", "sk-good")
    monkeypatch.setenv("BAD_KEY", "sk-bad")

    with serving(key="sk-good", latency_s=0.005) as server:
        asks = spread(60, Connection(server.url, "BAD_KEY"), Connection(server.url, "GOOD_KEY"))
        with caplog.at_level(logging.WARNING):
            events = collect(QUICK, asks)
    assert all(isinstance(event, Response) for event in ends(events).values())
    assert Counter(attempt.reason for attempt in tries(events)) == {"auth": 1}
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert "BAD_KEY" in told[0]
    assert "sk-" not in told[0]
    assert server.count == 61


def test_a_key_that_is_not_there_is_set_aside(monkeypatch, caplog):
    monkeypatch.setenv("GOOD_KEY", "sk-good")
    monkeypatch.delenv("NO_KEY", raising=False)
    with serving() as server, caplog.at_level(logging.WARNING):
        asks = spread(20, Connection(server.url, "GOOD_KEY"), Connection(server.url, "NO_KEY"))
        assert all(isinstance(event, Response) for event in ends(collect(QUICK, asks)).values())
    assert "NO_KEY is not set" in caplog.text


def test_when_all_keys_fail_the_run_stops(monkeypatch):
    monkeypatch.setenv("K1", "sk-1")
    monkeypatch.setenv("K2", "sk-2")
    with serving(key="sk-good") as server:
        with pytest.raises(EngineError, match="auth"):
            collect(QUICK, spread(20, Connection(server.url, "K1"), Connection(server.url, "K2")))
        assert server.count == 2


def test_a_server_that_is_down_is_left_alone(caplog):
    with serving() as server:
        down = Connection("http://127.0.0.1:9/v1")
        events = collect(QUICK, spread(100, down, Connection(server.url)))
        assert all(isinstance(event, Response) for event in ends(events).values())
        assert len(tries(events)) == 1
        with pytest.raises(EngineError, match="connection refused"):
            collect(QUICK, spread(3, down, Connection("http://127.0.0.1:10/v1")))


def test_a_server_that_dies_amid_a_run_costs_no_row():
    with serving(latency_s=0.01) as stays:
        with serving(latency_s=0.01) as dies:
            asks = spread(300, Connection(stays.url), Connection(dies.url))

            async def work():
                found = []
                async for event in replace(QUICK, max_wait_s=0.01).run(_feed(asks)):
                    found.append(event)
                    if len(found) == 60:
                        await asyncio.to_thread(dies.__exit__)
                return found

            events = on_loop(work())
            dies.__enter__()  # for the `with` to close
        assert all(isinstance(event, Response) for event in ends(events).values())


async def _feed(asks):
    for one in asks:
        yield one


def test_a_model_with_several_deployments():
    many = Model(
        "vllm", "m", base_url=["http://a/v1", "http://b/v1"], endpoint_id="mine", api_key_env=["A", "B"]
    )
    assert [(c.base_url, c.api_key_env) for c in many.connection.deployments] == [
        ("http://a/v1", "A"),
        ("http://b/v1", "B"),
    ]
    one = Model("vllm", "m", base_url="http://c/v1", endpoint_id="mine")
    assert many.descriptor().hash == one.descriptor().hash
    keys = Model("openai", "m", api_key_env=["A", "B"])
    assert [c.api_key_env for c in keys.connection.deployments] == ["A", "B"]
    assert keys.descriptor().hash == Model("openai", "m").descriptor().hash


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"base_url": ["http://a/v1", "http://b/v1"]}, "endpoint_id=NAME"),
        (
            {"base_url": ["http://a/v1"] * 3, "endpoint_id": "x", "api_key_env": ["A", "B"]},
            "3 base_urls and 2 variables",
        ),
        ({"base_url": ["http://a/v1", "b/v1"], "endpoint_id": "x"}, "leads to no address"),
        ({"requests_per_minute": 0}, "requests_per_minute"),
        ({"price": {"input": 1}}, "price of 'm'"),
        ({"price": {"input": 1, "output": 2, "reasoning": 3}}, "price of 'm'"),
        ({"price": {"input": 1, "output": -2}}, "price of 'm'"),
    ],
)
def test_deployments_that_cannot_be_meant(settings, message):
    with pytest.raises(ConfigError, match=message):
        Model("vllm", "m", **settings)


# rates


@given(
    limit=st.integers(1, 50),
    asks=st.lists(st.tuples(st.floats(0, 10), st.integers(1, 20)), min_size=1, max_size=80),
)
def test_no_minute_holds_more_than_the_limit(limit, asks):
    rate, now, taken = Rate(limit), 0.0, []
    for pause, amount in asks:
        now += pause
        for _ in range(200):
            wait = rate.wait(amount, now)
            if not wait:
                break
            now += wait
        else:
            raise AssertionError("it never fits")
        rate.take(amount, now)
        taken.append((now, amount))
    for end, _ in taken:
        inside = [amount for instant, amount in taken if end - MINUTE_S + 1e-9 < instant <= end]
        assert sum(inside) <= limit or len(inside) == 1


def test_requests_a_minute_are_kept_by_waiting(monkeypatch):
    monkeypatch.setattr("judgebench.engine.endpoint.MINUTE_S", 0.4)
    with serving() as server:
        connection = Connection(server.url, requests_per_minute=10)
        began = time.monotonic()
        events = collect(QUICK, spread(25, connection))
        assert time.monotonic() - began >= 0.8
        assert all(isinstance(event, Response) for event in ends(events).values())
        assert not tries(events)


def test_tokens_are_corrected_by_what_was_taken():
    rate = Rate(100)
    rate.take(90, 0.0)
    assert rate.wait(20, 1.0) == pytest.approx(59.0)
    rate.correct(-80)
    assert rate.wait(20, 1.0) == 0


def test_a_quota_header_holds_new_calls_before_it_runs_out():
    headers = {"x-ratelimit-remaining-requests": "3", "x-ratelimit-reset-requests": "0.3s"}

    async def work():
        endpoint = Endpoint(64)
        endpoint.busy = 2
        endpoint.heard(headers)
        assert endpoint.until == 0, "two in flight, three left"
        endpoint.busy = 5
        endpoint.heard(headers)
        left = endpoint.until - endpoint.loop.time()
        assert 0.2 < left <= 0.3
        assert endpoint.limit == 64, "nothing was refused"
        endpoint.heard({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "never"})

    on_loop(work())


# the limit


def drive(capacity, latency_s, *, window=512, rounds=60, adapts=True):
    """The limit over rounds of a server that answers `capacity` calls at once and queues the rest."""

    async def work():
        endpoint = Endpoint(window, adapts=adapts)
        limits = []
        for _ in range(rounds):
            flying = int(endpoint.limit)
            endpoint.busy = flying
            for place in range(flying):
                endpoint.answered(latency_s * (1 + place // capacity), Usage(10, None, 20), 0)
            limits.append(endpoint.limit)
        return limits

    return on_loop(work())


def test_it_doubles_while_the_pace_holds():
    limits = drive(capacity=10_000, latency_s=0.1)
    assert limits[:3] == [128, 256, 512]
    assert limits[-1] == 512


def test_it_eases_off_when_answers_only_queue():
    limits = drive(capacity=64, latency_s=0.1, rounds=12)
    assert max(limits[4:]) < 400
    assert min(limits[4:]) >= 64


def test_without_adapting_the_window_is_the_limit():
    assert set(drive(capacity=8, latency_s=0.1, adapts=False)) == {512.0}


def test_longer_answers_are_no_overload():
    async def work():
        endpoint = Endpoint(256)
        for tokens in (20, 2000):
            for _ in range(40):
                for _ in range(int(endpoint.limit)):
                    endpoint.answered(0.01 * (20 + tokens), Usage(10, None, tokens), 0)
        return endpoint.limit

    assert on_loop(work()) == 256


def test_a_lasting_slowness_is_no_lasting_brake():
    async def work():
        endpoint, limits = Endpoint(256), []
        for latency in (0.1, 1.0):
            for _ in range(150):
                endpoint.busy = int(endpoint.limit)
                for _ in range(endpoint.busy):
                    endpoint.answered(latency, Usage(10, None, 0), 0)
                limits.append(endpoint.limit)
        return limits

    limits = on_loop(work())
    assert min(limits[150:]) < 200
    assert limits[-1] > min(limits[150:])


def test_a_rate_limit_halves_and_the_rest_follows():
    busy = Bad(status=429, headers={"Retry-After": "0"})
    with serving(plan=lambda number, body: busy if 20 <= number < 24 else None) as server:
        events = collect(
            replace(QUICK, concurrency=32), [request(str(n), url=server.url) for n in range(200)]
        )
        assert all(isinstance(event, Response) for event in ends(events).values())
        assert server.count == 204


def test_the_window_is_never_passed():
    flying, most = 0, 0

    async def reply(one):
        nonlocal flying, most
        flying += 1
        most = max(most, flying)
        await asyncio.sleep(0.001)
        flying -= 1
        return "x"

    collect(FakeEngine(reply, Policy(concurrency=200)), [request(str(n)) for n in range(2000)])
    assert 64 < most <= 200
