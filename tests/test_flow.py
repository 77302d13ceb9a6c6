"""Retries, waits, pauses, preflight: the flow around a call, by value."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from email.utils import formatdate
from itertools import pairwise
from typing import Any

import pytest
from fakes import FakeEngine, collect, ends, feed, on_loop, request, tries, until

from judgebench.engine import Attempt, Event, Failure, Response, Usage
from judgebench.engine.faults import Fault, fault_of, retry_after
from judgebench.engine.flow import HOPELESS, Policy
from judgebench.errors import ConfigError, EngineError
from judgebench.request import Request

NOW = 1792567680.0  # Wed, 21 Oct 2026 07:28:00 GMT
QUICK = Policy(concurrency=4, max_attempts=3, max_wait_s=0.01)


def error(message: str, **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, **more}}


async def gather(events: list[Event], run: AsyncIterator[Event]) -> None:
    """All events up to the error that ends the run."""
    async for event in run:
        events.append(event)  # noqa: PERF401


def many(count: int, **options: Any) -> list[Request]:
    return [request(str(number), **options) for number in range(count)]


def failing_first(times: int, fault: Callable[[], Fault]) -> Callable[[Request], str]:
    seen: dict[Any, int] = {}

    def reply(one: Request) -> str:
        seen[one.key] = seen.get(one.key, 0) + 1
        if seen[one.key] <= times:
            raise fault()
        return "A"

    return reply


@pytest.mark.parametrize(
    ("headers", "body", "wait"),
    [
        ({"Retry-After": "30"}, None, 30.0),
        ({"retry-after": "0.5"}, None, 0.5),
        ({"retry-after-ms": "250"}, None, 0.25),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:30 GMT"}, None, 30.0),
        ({"Retry-After": "Wed, 21 Oct 2026 07:20:00 GMT"}, None, 0.0),
        ({"x-ratelimit-reset-tokens": "6m0s"}, None, 360.0),
        ({"x-ratelimit-reset-requests": "76ms"}, None, 0.076),
        ({"x-ratelimit-reset-tokens": "1h2m3.5s"}, None, 3723.5),
        ({"x-ratelimit-reset-tokens": "6m0s", "x-ratelimit-remaining-tokens": "120"}, None, None),
        ({}, {"error": {"message": "Rate limit reached. Please try again in 5.289s."}}, 5.289),
        ({}, {"error": {"message": "Please retry after 20 seconds."}}, 20.0),
        ({}, {"error": {"details": [{"@type": "RetryInfo", "retryDelay": "44s"}]}}, 44.0),
        ({"Retry-After": "-5"}, None, 0.0),
        ({"Retry-After": "soon"}, None, None),
        ({"Retry-After": "soon"}, {"error": {"message": "try again in 2s"}}, 2.0),
        ({"Retry-After": "nan"}, None, None),
        ({}, None, None),
    ],
)
def test_b06_what_the_server_asks_to_wait(headers: dict[str, str], body: Any, wait: float | None) -> None:
    assert retry_after(headers, body, NOW) == (None if wait is None else pytest.approx(wait))


@pytest.mark.parametrize(
    ("status", "body", "reason", "retry"),
    [
        (429, error("You exceeded your current quota", code="insufficient_quota"), "quota", False),
        (
            429,
            error("You exceeded your current quota", details=[{"retryDelay": "44s"}]),
            "rate_limited",
            True,
        ),
        (402, error("Payment required"), "quota", False),
        (400, error("Your credit balance is too low to access the API"), "quota", False),
        (401, error("Incorrect API key provided"), "auth", False),
        (403, error("Country not supported"), "auth", False),
        (403, "<html>Attention required</html>", "bad_request", False),
        (403, error("You are not allowed to request logprobs from this model"), "no_logprobs", False),
        (404, error("The model `x` does not exist", code="model_not_found"), "not_found", False),
        (400, error("too long", code="context_length_exceeded"), "context_overflow", False),
        (400, {"message": "This model's maximum context length is 4096 tokens."}, "context_overflow", False),
        (400, error("the request exceeds the available context size", code=400), "context_overflow", False),
        (422, {"error": "`inputs` tokens + `max_new_tokens` must be <= 4096"}, "context_overflow", False),
        (400, error("prompt is too long: 9 tokens", type="invalid_request_error"), "context_overflow", False),
        (400, error("The response was filtered", code="content_filter"), "content_filter", False),
        (400, [error("Unknown field", status="INVALID_ARGUMENT")], "bad_request", False),
        (422, {"detail": [{"msg": "field required"}]}, "bad_request", False),
        (408, error("slow"), "timeout", True),
        (409, None, "server", True),
        (425, None, "server", True),
        (429, error("Rate limit reached", code="rate_limit_exceeded"), "rate_limited", True),
        (500, error("oops"), "server", True),
        (502, "<html>bad gateway</html>", "server", True),
        (503, None, "server", True),
        (504, None, "timeout", True),
        (529, error("Overloaded", type="overloaded_error"), "server", True),
    ],
)
def test_b61_what_is_asked_again_and_what_is_not(status: int, body: Any, reason: str, retry: bool) -> None:
    fault = fault_of(status, body, {}, NOW)
    assert (fault.reason, fault.retry) == (reason, retry)
    assert fault.pause == (status in (429, 503, 529) and retry)


def test_attempts_are_bounded_and_told() -> None:
    events = collect(FakeEngine(failing_first(9, lambda: Fault("server", "503", retry=True)), QUICK), many(1))
    assert [type(event) for event in events] == [Attempt, Attempt, Failure]
    assert [event.number for event in tries(events)] == [1, 2]
    assert all(0 < event.wait_s <= 0.01 for event in tries(events))


def test_one_attempt_means_no_retry() -> None:
    policy = Policy(max_attempts=1)
    events = collect(
        FakeEngine(failing_first(9, lambda: Fault("server", "503", retry=True)), policy), many(1)
    )
    assert [type(event) for event in events] == [Failure]


@pytest.mark.parametrize("wrong", [{"concurrency": 0}, {"max_attempts": 0}, {"max_wait_s": -1.0}])
def test_impossible_policies_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Policy(**wrong)


def test_b05_answers_join_by_key_in_any_order() -> None:
    async def reply(one: Request) -> str:
        number = int(one.subject.instruction_id)
        await asyncio.sleep((9 - number) * 0.01)
        return f"echo {number}"

    found = ends(collect(FakeEngine(reply, Policy(concurrency=5)), many(10)))
    assert {int(end.request.subject.instruction_id): end.output for end in found.values()} == {
        number: f"echo {number}" for number in range(10)
    }


def test_a_wait_over_the_cap_fails_the_row_and_blocks_nobody() -> None:
    def reply(one: Request) -> str:
        if one.subject.instruction_id == "1":
            raise Fault("rate_limited", "429 slow down", retry=True, pause=True, wait_s=3600.0)
        return "A"

    start = time.monotonic()
    found = ends(collect(FakeEngine(reply, Policy(concurrency=2)), many(5)))
    assert time.monotonic() - start < 2
    failures = [end for end in found.values() if isinstance(end, Failure)]
    assert [failure.reason for failure in failures] == ["rate_limited"]
    assert "3600" in failures[0].detail
    assert len(found) == 5


def test_a_pause_is_shared_by_the_callers_of_one_endpoint_only() -> None:
    calls: list[tuple[str | None, float]] = []
    paused: list[bool] = []

    async def reply(one: Request) -> str:
        calls.append((one.connection.base_url, time.monotonic()))
        await asyncio.sleep(0.001)
        if one.connection.base_url == "http://a/v1" and one.subject.instruction_id == "0" and not paused:
            paused.append(True)
            raise Fault("rate_limited", "429", retry=True, pause=True, wait_s=0.3)
        return "A"

    of_one, of_other = many(20, url="http://a/v1"), many(20, url="http://b/v1", model="b")
    asks = [ask for pair in zip(of_one, of_other, strict=True) for ask in pair]
    events = collect(FakeEngine(reply, Policy(concurrency=40, max_wait_s=1)), asks)
    assert len(ends(events)) == 40
    gaps = {
        host: max(later - earlier for earlier, later in pairwise(at for url, at in calls if url == host))
        for host in ("http://a/v1", "http://b/v1")
    }
    assert gaps["http://a/v1"] >= 0.29
    assert gaps["http://b/v1"] < 0.29
    assert len(tries(events)) == 1


def test_a_window_wider_than_the_rate_limit_loses_few_rows() -> None:
    """Without the falling limit about a third of them fail."""
    granted: list[float] = []

    async def reply(one: Request) -> str:
        await asyncio.sleep(0.01)
        now = time.monotonic()
        if sum(now - at < 0.1 for at in granted) >= 10:  # ten calls a tenth of a second
            raise Fault("rate_limited", "429", retry=True, pause=True, wait_s=0.1)
        granted.append(now)
        return "A"

    found = ends(collect(FakeEngine(reply, Policy(concurrency=64, max_wait_s=1)), many(200)))
    assert sum(isinstance(end, Response) for end in found.values()) >= 190


def test_the_first_request_of_each_model_goes_alone() -> None:
    open_now: dict[str, int] = {}
    most_before: dict[str, int] = {}
    answered: set[str] = set()

    async def reply(one: Request) -> str:
        model = one.descriptor.model
        open_now[model] = open_now.get(model, 0) + 1
        if model not in answered:
            most_before[model] = max(most_before.get(model, 0), open_now[model])
        await asyncio.sleep(0.02)
        answered.add(model)
        open_now[model] -= 1
        return "A"

    asks = [one for pair in zip(many(9), many(9, model="other"), strict=True) for one in pair]
    assert len(ends(collect(FakeEngine(reply, Policy(concurrency=6)), asks))) == 18
    assert most_before == {"m": 1, "other": 1}


def test_preflight_without_logprobs_raises_and_keeps_what_it_cost() -> None:
    events: list[Event] = []

    async def work() -> None:
        def reply(one: Request) -> Response:
            return Response(one, "A", usage=Usage(10, None, 1), cost_usd=0.5)

        await gather(events, FakeEngine(reply).run(feed(many(9, logprobs=5))))

    with pytest.raises(EngineError, match=r"judge does not return logprobs.*protocol=pairwise"):
        on_loop(work())
    assert len(events) == 1
    assert isinstance(events[0], Failure)
    assert (events[0].reason, events[0].cost_usd, events[0].output) == ("no_logprobs", 0.5, "A")


def test_logprobs_that_fail_to_come_later_fail_their_row() -> None:
    def reply(one: Request) -> Response:
        return Response(one, "A", top_logprobs=None if one.subject.instruction_id == "3" else "[]")

    found = ends(collect(FakeEngine(reply), many(6, logprobs=5)))
    assert [end.reason for end in found.values() if isinstance(end, Failure)] == ["no_logprobs"]


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        ({"finish_reason": "stop"}, "empty"),
        ({"finish_reason": None}, "empty"),
        ({"finish_reason": "content_filter"}, "content_filter"),
        ({"finish_reason": "length", "reasoning": "hm"}, "truncated_in_reasoning"),
        ({"finish_reason": "length", "usage": Usage(1, None, 9, 9)}, "truncated_in_reasoning"),
        ({"finish_reason": "length"}, "empty"),
    ],
)
def test_b08_an_answer_without_text_is_a_failure(made: dict[str, Any], reason: str) -> None:
    events = collect(FakeEngine(lambda one: Response(one, "", cost_usd=0.1, **made)), many(1))
    assert [type(event) for event in events] == [Failure]
    assert isinstance(events[0], Failure)
    assert (events[0].reason, events[0].cost_usd) == (reason, 0.1)


def test_b115_the_same_refusal_of_the_first_rows_stops_the_run_once() -> None:
    calls = 0

    def reply(one: Request) -> str:
        nonlocal calls
        calls += 1
        raise Fault("bad_request", "400 messages: unexpected field")

    with pytest.raises(EngineError, match="400 messages: unexpected field"):
        collect(FakeEngine(reply, QUICK), many(1000))
    assert calls <= HOPELESS["bad_request"] + QUICK.concurrency


def test_refusals_after_an_answer_are_their_rows_own() -> None:
    def reply(one: Request) -> str:
        if one.subject.instruction_id == "0":
            return "A"
        raise Fault("bad_request", "400 no")

    found = ends(collect(FakeEngine(reply, QUICK), many(40)))
    assert sum(isinstance(end, Failure) for end in found.values()) == 39


def test_overflow_and_filter_never_stop_a_run() -> None:
    def reply(one: Request) -> str:
        raise Fault("context_overflow", "400 too long")

    assert len(ends(collect(FakeEngine(reply, QUICK), many(40)))) == 40


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (lambda: Fault("auth", "401 Incorrect key"), "SOME_KEY"),
        (lambda: Fault("quota", "429 insufficient_quota"), "Top up"),
        (lambda: Fault("not_found", "404 no model m"), "/models"),
        (lambda: Fault("server", "connection refused", retry=True, down=True), "Start the server"),
    ],
)
def test_fatal_faults_at_preflight_raise_advice_at_once(fault: Callable[[], Fault], words: str) -> None:
    calls = 0

    def reply(one: Request) -> str:
        nonlocal calls
        calls += 1
        raise fault()

    with pytest.raises(EngineError, match=words) as raised:
        collect(FakeEngine(reply), many(50, key="SOME_KEY"))
    assert calls == 1
    assert "\n" not in str(raised.value)


def test_a_server_that_goes_away_ends_the_run_after_the_attempts() -> None:
    def reply(one: Request) -> str:
        if one.subject.instruction_id == "0":
            return "A"
        raise Fault("server", "connection refused", retry=True, down=True)

    with pytest.raises(EngineError, match="connection refused"):
        collect(FakeEngine(reply, QUICK), many(50))


def test_what_was_answered_is_yielded_before_a_fatal_fault_is_raised() -> None:
    """A quota that ends mid-run: nothing new is sent, and what is being answered still counts."""
    calls = 0

    async def reply(one: Request) -> str:
        nonlocal calls
        calls += 1
        if one.subject.instruction_id == "8":
            raise Fault("quota", "429 insufficient_quota")
        await asyncio.sleep(0 if one.subject.instruction_id < "5" else 0.1)
        return "A"

    events: list[Event] = []

    async def work() -> None:
        await gather(events, FakeEngine(reply, Policy(concurrency=4)).run(feed(many(9) + many(500))))

    with pytest.raises(EngineError, match="quota"):
        on_loop(work())
    answers = sum(isinstance(event, Response) for event in events)
    assert answers == calls - 1
    assert calls <= 12


def test_the_buffer_is_bounded() -> None:
    pulled = 0

    async def endless() -> AsyncIterator[Request]:
        nonlocal pulled
        while True:
            pulled += 1
            yield request(str(pulled))

    async def work() -> None:
        run = FakeEngine(lambda one: "A", Policy(concurrency=2)).run(endless())
        await anext(run)
        await asyncio.sleep(0.2)
        held = pulled
        await asyncio.sleep(0.1)
        assert held == pulled <= 256 + 2 * 2
        for _ in range(300):
            await anext(run)
        await until(lambda: pulled > held)
        await run.aclose()

    on_loop(work())


def test_an_error_of_the_feed_reaches_the_consumer() -> None:
    async def broken() -> AsyncIterator[Request]:
        yield request("1")
        raise KeyError("row 2")

    async def work() -> None:
        async for _ in FakeEngine(lambda one: "A").run(broken()):
            pass

    with pytest.raises(KeyError, match="row 2"):
        on_loop(work())


def test_waits_are_no_busy_waits() -> None:
    policy = Policy(concurrency=64, max_wait_s=1)
    start, used = time.monotonic(), time.process_time()

    def reply(one: Request) -> str:
        if time.monotonic() - start < 0.5:
            raise Fault("rate_limited", "429", retry=True, pause=True, wait_s=0.6)
        return "A"

    assert len(ends(collect(FakeEngine(reply, policy), many(100)))) == 100
    assert time.monotonic() - start > 0.6
    assert time.process_time() - used < 0.3


def test_dates_are_read_against_the_clock() -> None:
    wait = retry_after({"Retry-After": formatdate(time.time() + 60, usegmt=True)}, None, time.time())
    assert wait == pytest.approx(60, abs=1.1)
