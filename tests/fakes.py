"""Engines and requests for tests: a function-backed engine, request makers, one loop for all."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
)
from dataclasses import dataclass, field
from typing import Any, TypeVar

from judgebench.engine import Attempt, Event, Failure, Response
from judgebench.engine.flow import Policy, stream
from judgebench.loop import background
from judgebench.request import (
    Connection,
    Descriptor,
    Price,
    Request,
    Subject,
    coerce_settings,
    messages_input,
    prompt_input,
)

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class FakeEngine:
    """An engine of one function: `reply` gives an answer's text, a `Response`, or raises a `Fault`."""

    reply: Callable[[Request], Any | Awaitable[Any]]
    policy: Policy = field(default_factory=lambda: Policy(max_wait_s=0.01))

    def run(self, requests: AsyncIterable[Request]) -> AsyncGenerator[Event, None]:
        async def call(request: Request, connection: Connection, heard: Any) -> Response:
            reply = self.reply(request)
            if asyncio.iscoroutine(reply):
                reply = await reply
            return reply if isinstance(reply, Response) else Response(request, reply)

        return stream(requests, call, self.policy)


def request(
    text: str = "Hi",
    *,
    url: str | None = None,
    provider: str = "vllm",
    model: str = "m",
    sample: int = 0,
    chat: bool = True,
    key: str | None = None,
    price: tuple[float, ...] | None = None,
    **settings: Any,
) -> Request:
    """A request of `text`; `settings` are the descriptor's."""
    return Request(
        Descriptor(provider, model, coerce_settings(settings)),
        Connection(url, key, price=Price(*price) if price else None),
        messages_input([{"role": "user", "content": text}]) if chat else prompt_input(text),
        Subject("test", text, 1, model),
        sample,
    )


async def feed(requests: Iterable[Request]) -> AsyncIterator[Request]:
    for one in requests:
        yield one


def on_loop(work: Coroutine[Any, Any, T], timeout_s: float = 30) -> T:
    """Run on the process's one loop, as the product does."""
    return asyncio.run_coroutine_threadsafe(work, background()).result(timeout_s)


def collect(engine: Any, requests: Iterable[Request]) -> list[Event]:
    """All events of a run."""

    async def work() -> list[Event]:
        return [event async for event in engine.run(feed(requests))]

    return on_loop(work())


async def until(true: Callable[[], bool], timeout_s: float = 10) -> None:
    """Wait for what another thread or task brings about."""
    async with asyncio.timeout(timeout_s):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def ends(events: Iterable[Event]) -> dict[Any, Response | Failure]:
    """The terminal event of each request by its key; a second one is an error."""
    found: dict[Any, Response | Failure] = {}
    for event in events:
        if isinstance(event, Response | Failure):
            assert event.request.key not in found
            found[event.request.key] = event
    return found


def tries(events: Iterable[Event]) -> list[Attempt]:
    return [event for event in events if isinstance(event, Attempt)]
