"""The flow that the engines over HTTP share: a window of workers, retries, pauses, preflight.

An engine gives a `call` that asks once: it returns a `Response` or raises a `Fault`. Everything
around the call happens here. This file does not know HTTP.

    requests ──pull──► at most `concurrency` workers ──call──► buffer ──yield──► consumer

- A worker pulls when it is free, so nothing is read ahead of the window, and it is free as soon as
  its answer is read: finished events wait in a bounded buffer, and only a full one holds workers.
- The first request of each model is its preflight: the others of that model wait until it has ended.
- What every further request would meet too raises `EngineError`. Before it is raised nothing new is
  sent, and what is being answered gets `GRACE_S` to arrive, because it is paid for already.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from judgebench.engine import FATAL, Attempt, Event, Failure, Reason, Response
from judgebench.engine.advice import advice, named, reproach, way_out
from judgebench.engine.endpoint import Endpoint, jittered
from judgebench.engine.faults import Fault
from judgebench.errors import ConfigError, EngineError
from judgebench.request import Connection, Request

log = logging.getLogger(__name__)

GRACE_S = 10.0

# So many equal failures before the first answer of a model, and it is taken for broken. What is about
# a row (context, filter) or passes by itself (rate limits) never counts.
HOPELESS: dict[Reason, int] = {"bad_request": 5, "server": 20, "timeout": 20, "malformed": 20, "empty": 20}

Headers: TypeAlias = Callable[[Mapping[str, str]], None]
Call: TypeAlias = Callable[[Request, Connection, Headers], Awaitable[Response]]
"""Asks once, at one deployment, and hands on the reply's headers, whatever it was."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How calls are executed: calls in flight at most, tries a request, the longest wait between two."""

    concurrency: int = 64
    max_attempts: int = 5
    max_wait_s: float = 60.0
    adaptive: bool = True  # whether the calls in flight follow the pace of the answers

    def __post_init__(self) -> None:
        if self.concurrency < 1 or self.max_attempts < 1 or self.max_wait_s < 0:
            raise ConfigError(
                f"concurrency={self.concurrency!r} and max_attempts={self.max_attempts!r} start at 1 "
                f"(one attempt: no retry), max_wait_s={self.max_wait_s!r} at 0."
            )


async def stream(requests: AsyncIterable[Request], call: Call, policy: Policy) -> AsyncGenerator[Event, None]:
    """Answer each request pulled: `Attempt` events as they happen, then one `Response` or `Failure`.

    Closing the generator cancels the calls in flight and returns when all of them have ended.

    Raises:
        EngineError: a model that cannot be used at all; all that was answered is yielded before.
    """
    flow = _Flow(requests, call, policy)
    try:
        flow.hire()
        while flow.workers or flow.finished:
            while flow.finished:
                event = flow.finished.popleft()
                if len(flow.finished) < flow.bound:
                    flow.room.set()
                yield event
            if flow.workers:
                flow.news.clear()
                await flow.news.wait()
        if flow.error is not None:
            raise flow.error
    finally:
        await flow.close()


class _Model:
    """What is known of one descriptor: whether its preflight ended, whether it ever answered."""

    __slots__ = ("alike", "answered", "aside", "gate", "last")

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.answered = False
        self.aside: set[Connection] = set()  # deployments that are of no use
        self.last = ("", "")
        self.alike = 0

    def hopeless(self, failure: Failure) -> bool:
        """True when failures alike have come so often that the next ones would fail as well."""
        if self.answered or failure.reason not in HOPELESS:
            return False
        same = (failure.reason, failure.detail)
        self.alike = self.alike + 1 if same == self.last else 1
        self.last = same
        return self.alike >= HOPELESS[failure.reason]


class _Flow:
    def __init__(self, requests: AsyncIterable[Request], call: Call, policy: Policy) -> None:
        self.requests = aiter(requests)
        self.call = call
        self.policy = policy
        self.workers: set[asyncio.Task[None]] = set()
        self.calling: set[asyncio.Task[None]] = set()  # the workers whose call is at the provider
        self.idle = 0
        self.pulling = asyncio.Lock()
        self.ended = False  # nothing more is pulled
        self.finished: deque[Event] = deque()
        self.bound = max(256, 4 * policy.concurrency)
        self.news = asyncio.Event()
        self.room = asyncio.Event()
        self.endpoints: dict[tuple[str, str | None, str | None], Endpoint] = {}
        self.models: dict[str, _Model] = {}
        self.error: BaseException | None = None
        self.loop = asyncio.get_running_loop()
        self.grace: asyncio.TimerHandle | None = None

    # workers

    def hire(self) -> None:
        worker = self.loop.create_task(self.work())
        self.workers.add(worker)
        worker.add_done_callback(
            self.leave
        )  # a task that is cancelled before its first step runs no `finally`

    def leave(self, worker: asyncio.Task[None]) -> None:
        self.workers.discard(worker)
        self.news.set()

    async def work(self) -> None:
        me = asyncio.current_task()
        assert me is not None
        try:
            while (request := await self.pull()) is not None:
                await self.answer(request, me)
        except Exception as error:
            self.stop(error, me)

    async def pull(self) -> Request | None:
        self.idle += 1
        try:
            async with self.pulling:
                if self.ended:
                    return None
                try:
                    request = await anext(self.requests)
                except StopAsyncIteration:
                    self.ended = True
                    return None
        finally:
            self.idle -= 1
        if not self.idle and len(self.workers) < self.policy.concurrency:
            self.hire()
        return request

    def stop(self, error: BaseException, me: asyncio.Task[None]) -> None:
        """Send nothing more; what is at the provider may still arrive for a while."""
        self.ended = True
        if self.error is None:
            self.error = error
            for worker in self.workers - self.calling - {me}:
                worker.cancel()
            self.grace = self.loop.call_later(GRACE_S, self.cancel)

    def cancel(self) -> None:
        for worker in self.workers:
            worker.cancel()

    async def close(self) -> None:
        self.cancel()
        if self.grace is not None:
            self.grace.cancel()
        await asyncio.gather(*self.workers, return_exceptions=True)

    async def tell(self, event: Event) -> None:
        """Hand over an event. It is in the buffer before anything is awaited: no cancel loses it."""
        self.finished.append(event)
        self.news.set()
        if len(self.finished) >= self.bound and self.error is None:
            self.room.clear()
            await self.room.wait()

    # one request

    async def answer(self, request: Request, me: asyncio.Task[None]) -> None:
        model = self.models.get(request.descriptor.hash)
        if model is None:
            model = self.models[request.descriptor.hash] = _Model()
        elif not model.gate.is_set():
            await model.gate.wait()
        event = await self.attempts(request, model, me)
        if isinstance(event, Failure):
            if model.hopeless(event):
                self.finished.append(event)
                raise EngineError(
                    f"{named(request, request.connection)} failed its first {model.alike} requests in the "
                    f"same way: {event.reason}, {event.detail}"
                )
        else:
            model.answered = True
        model.gate.set()
        await self.tell(event)

    async def attempts(self, request: Request, model: _Model, me: asyncio.Task[None]) -> Response | Failure:
        most, number, tries = self.policy.max_attempts, 0, 0
        tokens = len(request.input_text) // 4 + int(request.descriptor.settings.get("max_tokens") or 0)
        while True:
            connection, endpoint = self.place(request, model)
            await endpoint.enter(tokens)
            if connection in model.aside:  # while this request waited for its turn
                endpoint.leave()
                continue
            start = self.loop.time()
            self.calling.add(me)
            try:
                response = _usable(await self.call(request, connection, endpoint.heard))
                endpoint.answered(self.loop.time() - start, response.usage, tokens)
                return response
            except Fault as caught:
                fault = caught
            except EngineError as error:  # such as a key that is not there
                if not self.spare(request, model, connection):
                    raise
                fault = Fault("auth", str(error))
            finally:
                self.calling.discard(me)
                endpoint.leave()
            number += 1
            if self.elsewhere(request, model, connection, endpoint, fault):
                await self.tell(Attempt(request, number, fault.reason, fault.detail, 0.0))
                continue
            tries += 1
            if not model.answered and (way := way_out(request, fault)):
                self.finished.append(_failure(request, fault))
                what = f"{named(request, connection)} cannot be used like this: {fault.detail.rstrip('.')}."
                raise EngineError(f"{what} {way}")
            if _breaks(fault, model, last=tries == most):
                self.finished.append(_failure(request, fault))
                raise EngineError(advice(request, connection, fault))
            if not fault.retry or tries == most or self.error is not None:
                break
            wait = self.wait(fault, tries)
            if wait > self.policy.max_wait_s:
                limit = f"asks to wait {fault.wait_s:g} s, max_wait_s is {self.policy.max_wait_s:g}"
                return Failure(request, "rate_limited", f"{fault.detail} ({limit})")
            if fault.pause:
                endpoint.pause(wait)
            await self.tell(
                Attempt(request, number, fault.reason, fault.detail, wait, fault.output, fault.cost_usd)
            )
            await asyncio.sleep(jittered(wait))
        return _failure(request, fault)

    # deployments

    def place(self, request: Request, model: _Model) -> tuple[Connection, Endpoint]:
        """The deployment that is asked least at the moment."""
        usable = [each for each in request.connection.deployments if each not in model.aside]
        if len(usable) == 1:
            return usable[0], self.endpoint(request, usable[0])
        places = [(each, self.endpoint(request, each)) for each in usable]
        return min(places, key=lambda place: place[1].load)

    def spare(self, request: Request, model: _Model, connection: Connection) -> bool:
        """Whether the model can do without a deployment."""
        return any(each not in model.aside and each != connection for each in request.connection.deployments)

    def elsewhere(
        self, request: Request, model: _Model, connection: Connection, endpoint: Endpoint, fault: Fault
    ) -> bool:
        """Take a deployment out that is of no use; true where another one is to be asked instead."""
        if not self.spare(request, model, connection):
            return False
        if fault.down:
            endpoint.unreachable()
            others = [each for each in request.connection.deployments if each not in model.aside]
            return any(not self.endpoint(request, each).downs for each in others)
        if fault.reason not in FATAL:
            return False
        if connection not in model.aside:
            model.aside.add(connection)
            left = len(request.connection.deployments) - len(model.aside)
            log.warning(
                "%s goes on without one of its deployments (%d left): %s",
                named(request, connection),
                left,
                reproach(connection, fault),
            )
        return True

    def wait(self, fault: Fault, number: int) -> float:
        """What the server asks for, else 1, 2, 4, … s, at most `max_wait_s`."""
        if fault.wait_s is not None:
            return fault.wait_s
        return min(2.0 ** (number - 1), self.policy.max_wait_s) * random.uniform(0.5, 1.0)

    def endpoint(self, request: Request, connection: Connection) -> Endpoint:
        key = (request.descriptor.provider, connection.base_url, connection.api_key_env)
        endpoint = self.endpoints.get(key)
        if endpoint is None:
            several = len(request.connection.deployments) > 1
            endpoint = Endpoint(self.policy.concurrency, adapts=self.policy.adaptive, probes=several)
            self.endpoints[key] = endpoint
        endpoint.keep(connection.requests_per_minute, connection.tokens_per_minute)
        return endpoint


def _failure(request: Request, fault: Fault) -> Failure:
    return Failure(
        request, fault.reason, fault.detail, fault.output, fault.finish_reason, fault.usage, fault.cost_usd
    )


def _usable(response: Response) -> Response:
    """The response, if it holds what was asked for; a paid answer that does not is a `Fault`."""
    reason: Reason
    if not response.output:
        if response.finish_reason == "content_filter":
            reason, detail = "content_filter", "the provider withheld the text"
        elif response.finish_reason == "length" and (response.reasoning or response.usage.reasoning):
            reason, detail = "truncated_in_reasoning", "max_tokens ended the answer while it was reasoning"
        else:
            reason, detail = "empty", "the answer holds no text"
    elif response.top_logprobs is None and "logprobs" in response.request.descriptor.settings:
        reason, detail = "no_logprobs", "judge does not return logprobs"
    else:
        return response
    raise Fault(
        reason,
        detail,
        output=response.output or response.reasoning,
        finish_reason=response.finish_reason,
        usage=response.usage,
        cost_usd=response.cost_usd,
    )


def _breaks(fault: Fault, model: _Model, *, last: bool) -> bool:
    """True when the fault is the model's and not the request's."""
    if fault.down:
        return last or not model.answered
    if fault.moved or fault.reason == "no_logprobs":
        return not model.answered
    return fault.reason in FATAL
