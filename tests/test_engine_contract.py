"""The laws of `judgebench.engine`, held by every engine. A new one is a line in `CASES`."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from fakes import FakeEngine, collect, ends, feed, on_loop, request, tries, until
from servers import Fault, Server, misbehaving, reply_to, serving

from judgebench.engine import Attempt, Delta, Engine, Failure, Response
from judgebench.engine.faults import fault_of
from judgebench.engine.flow import Policy
from judgebench.engine.litellm import LiteLLM
from judgebench.engine.openai import OpenAI, Remote
from judgebench.engine.replay import Recorded, Replay
from judgebench.engine.wire import response_of, settings_body
from judgebench.errors import ConfigError, EngineError
from judgebench.request import Request


@dataclass(frozen=True)
class Case:
    """An engine under test.

    `asks`: it calls the server, so that faults, windows and retries can be provoked there.
    `idle`: an expression that makes one; running it over nothing may import none of `vendors`.
    """

    name: str
    make: Callable[..., Engine]  # server, concurrency
    asks: bool = True
    idle: str = ""
    vendors: tuple[str, ...] = ()


def fake(server: Server, concurrency: int = 8) -> Engine:
    async def reply(request: Request) -> Response:
        body = {**request.input, **settings_body(request), "model": request.descriptor.model}
        if body.get("n"):
            raise ConfigError("n")
        number, server.count = server.count, server.count + 1
        server.in_flight += 1
        server.most_in_flight = max(server.most_in_flight, server.in_flight)
        try:
            await asyncio.sleep(server.latency_s)
            planned = server.plan(number, body) if server.plan else None
            if isinstance(planned, Fault):
                if planned.kind == "stall":
                    await asyncio.sleep(planned.stall_s)
                status = 500 if planned.status == 200 else planned.status
                raise fault_of(status, planned.body, planned.headers, time.time())
            return response_of(request, planned or reply_to(body, server.labels))
        finally:
            server.in_flight -= 1

    return FakeEngine(reply, Policy(concurrency, max_attempts=12, max_wait_s=0.02))


def openai(server: Server, concurrency: int = 8) -> Engine:
    return OpenAI(concurrency, timeout_s=30, max_attempts=12, max_wait_s=0.02)


def litellm(server: Server, concurrency: int = 8) -> Engine:
    return LiteLLM(concurrency, timeout_s=30, max_attempts=12, max_wait_s=0.02)


def replay(server: Server, concurrency: int = 8) -> Engine:
    texts = [str(number) for number in range(60)]
    return Replay(lambda: {ask(server, text).key: Recorded(text_of(server, text)) for text in texts})


CASES = [
    Case("fake", fake, idle="__import__('fakes').FakeEngine(str)", vendors=("aiohttp",)),
    Case(
        "openai",
        openai,
        idle="__import__('judgebench.engine.openai').engine.openai.OpenAI()",
        vendors=("aiohttp",),
    ),
    Case(
        "litellm",
        litellm,
        idle="__import__('judgebench.engine.litellm').engine.litellm.LiteLLM()",
        vendors=("litellm", "aiohttp", "httpx"),
    ),
    Case(
        "replay", replay, asks=False, idle="__import__('judgebench.engine.replay').engine.replay.Replay(exit)"
    ),
]

every = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
asking = pytest.mark.parametrize("case", [case for case in CASES if case.asks], ids=lambda case: case.name)


def ask(server: Server, text: str, **settings: Any) -> Request:
    return request(text, url=server.url, seed=7, **settings)


def text_of(server: Server, text: str, **settings: Any) -> str:
    """What the server answers: worked out without any engine."""
    one = ask(server, text, **settings)
    body = {**one.input, **one.settings(), "model": one.descriptor.model}
    return str(reply_to(body, server.labels)["choices"][0]["message"]["content"])


@every
def test_law_1_one_end_for_each_request_joined_by_key(case: Case) -> None:
    with serving() as server:
        asks = [ask(server, str(number)) for number in range(60)]
        events = collect(case.make(server), asks)
        found = ends(events)
        assert len(found) == 60
        for one in asks:
            end = found[one.key]
            assert isinstance(end, Response)
            assert end.output == text_of(server, one.subject.instruction_id)


@asking
def test_law_1_holds_on_a_server_that_misbehaves(case: Case) -> None:
    with serving(plan=misbehaving(seed=3)) as server:
        asks = [ask(server, str(number)) for number in range(60)]
        events = collect(case.make(server), asks)
        found = ends(events)
        assert {key: end.output for key, end in found.items()} == {
            one.key: text_of(server, one.subject.instruction_id) for one in asks
        }
        assert len(tries(events)) == server.count - 60 > 10


@every
def test_law_2_the_last_attempts_deltas_are_the_text(case: Case) -> None:
    with serving() as server:
        events = collect(case.make(server), [ask(server, "1")])
        pieces: dict[int, str] = {}
        for event in events:
            if isinstance(event, Delta):
                pieces[event.number] = pieces.get(event.number, "") + event.text
        end = events[-1]
        assert isinstance(end, Response)
        assert not pieces or pieces[max(pieces)] == end.output


@asking
def test_law_3_pulls_as_far_as_the_window_and_no_further(case: Case) -> None:
    pulled = 0

    async def slow_feed(server: Server) -> AsyncIterator[Request]:
        nonlocal pulled
        for number in range(30):
            pulled += 1
            yield ask(server, str(number))

    async def work(server: Server) -> None:
        done = 0
        async for event in case.make(server, 4).run(slow_feed(server)):
            done += isinstance(event, Response)
            assert pulled <= done + 4 + 4  # the window, and what has been answered but not been read here
        assert done == 30

    with serving(latency_s=0.01) as server:
        on_loop(work(server))
        assert pulled == 30
        assert 2 <= server.most_in_flight <= 4


@asking
def test_law_3_a_slow_consumer_holds_no_slot(case: Case) -> None:
    async def work(server: Server) -> None:
        run = case.make(server, 2).run(feed(ask(server, str(number)) for number in range(20)))
        await anext(run)
        await until(lambda: server.count == 20)
        assert sum([isinstance(event, Response) async for event in run]) == 19

    with serving() as server:
        on_loop(work(server))


@every
def test_law_4_no_request_no_resource(case: Case) -> None:
    code = f"""
import asyncio, sys, threading
engine = {case.idle}
async def nothing():
    for request in ():
        yield request
async def work():
    return [event async for event in engine.run(nothing())]
assert asyncio.run(work()) == []
assert threading.active_count() == 1
print([name for name in {case.vendors!r} if name in sys.modules])
"""
    here = os.path.dirname(__file__)
    env = {**os.environ, "PYTHONPATH": here}
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd=here)
    assert out.stdout == "[]\n", out.stderr


@asking
def test_law_5_closing_cancels_and_frees(case: Case) -> None:
    async def work(server: Server) -> tuple[int, int]:
        engine = case.make(server)
        async for _ in engine.run(feed([ask(server, "0")])):
            pass  # what a library keeps for good is there now
        before = len(asyncio.all_tasks())
        run = engine.run(feed(ask(server, str(number)) for number in range(1, 30)))
        assert isinstance(await anext(run), Response)
        waiting = asyncio.ensure_future(anext(run))
        await until(lambda: server.in_flight == 8)
        start = time.monotonic()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await run.aclose()
        assert time.monotonic() - start < 2
        await until(lambda: len(asyncio.all_tasks()) <= before)
        return sockets_to(server), server.count

    # The preflight of the second run answers, and then all stall.
    with serving(plan=lambda number, body: Fault(kind="stall", stall_s=60) if number > 1 else None) as server:
        left, count = on_loop(work(server))
        assert left == 0
        assert count == 10


def sockets_to(server: Server) -> int:
    import psutil

    return sum(
        bool(link.raddr) and link.raddr.port == server.port
        for link in psutil.Process().net_connections("tcp")
    )


@asking
def test_law_6_one_bad_request_fails_alone(case: Case) -> None:
    def plan(number: int, body: dict[str, Any]) -> Fault | None:
        bad = body["messages"][0]["content"] == "3"
        return Fault(400, {"error": {"message": "strange role", "code": "invalid"}}) if bad else None

    with serving(plan=plan) as server:
        events = collect(case.make(server), [ask(server, str(number)) for number in range(6)])
        failures = [event for event in events if isinstance(event, Failure)]
        assert [failure.reason for failure in failures] == ["bad_request"]
        assert "strange role" in failures[0].detail
        assert len(ends(events)) == 6
        assert tries(events) == []


ODD_REPLIES: dict[str, Any] = {
    "a number": {"choices": [{"message": {"content": 5}}]},
    "an object": {"choices": [{"message": {"content": {"x": 1}}}]},
    "true": {"choices": [{"message": {"content": True}}]},
    "a list of texts": {"choices": [{"message": {"content": ["A"]}}]},
    "a part that is no text": {"choices": [{"message": {"content": [{"type": "text", "text": 5}]}}]},
    "a number as text": {"choices": [{"text": 5}]},
    "a refusal that is no text": {"choices": [{"message": {"content": None, "refusal": {"a": 1}}}]},
}


@asking
@pytest.mark.parametrize("odd", ODD_REPLIES.values(), ids=ODD_REPLIES)
def test_law_6_an_odd_reply_fails_its_row_alone(case: Case, odd: Any) -> None:
    def plan(number: int, body: dict[str, Any]) -> Any:
        return odd if body["messages"][0]["content"] == "3" else None

    with serving(plan=plan) as server:
        engine = case.make(server)
        if isinstance(engine, Remote):
            engine = replace(engine, max_attempts=2)
        events = collect(engine, [ask(server, str(number)) for number in range(6)])
    failures = [event for event in events if isinstance(event, Failure)]
    assert [failure.reason for failure in failures] == ["malformed"]
    assert failures[0].detail
    assert "Traceback" not in failures[0].detail
    assert len(ends(events)) == 6


@asking
def test_law_6_a_broken_engine_raises(case: Case) -> None:
    refused = Fault(401, {"error": {"message": "Incorrect API key provided", "code": "invalid_api_key"}})
    with serving(plan=lambda number, body: refused) as server:
        with pytest.raises(EngineError, match="Incorrect API key"):
            collect(case.make(server), [ask(server, str(number)) for number in range(30)])
        assert server.count == 1


@asking
def test_law_6_what_cannot_be_honoured_raises_before_the_call(case: Case) -> None:
    with serving() as server:
        with pytest.raises(ConfigError, match="n"):
            collect(case.make(server), [ask(server, "1", n=2)])
        assert server.count == 0


@asking
def test_law_7_retries_are_told(case: Case) -> None:
    busy = Fault(503, {"error": {"message": "loading"}})
    with serving(plan=lambda number, body: busy if number < 2 else None) as server:
        events = collect(case.make(server), [ask(server, "1")])
        assert [type(event) for event in events] == [Attempt, Attempt, Response]
        assert [(event.number, event.reason) for event in tries(events)] == [(1, "server"), (2, "server")]


@every
def test_equal_settings_make_equal_engines(case: Case) -> None:
    if case.name in ("openai", "litellm"):
        with serving() as server:
            assert case.make(server) == case.make(server)
            assert hash(case.make(server)) == hash(case.make(server))
            assert case.make(server) != case.make(server, 9)
            assert isinstance(case.make(server), Engine)
