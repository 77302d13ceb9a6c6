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
import random
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from judgebench.engine import FATAL, Attempt, Event, Failure, Reason, Response
from judgebench.engine.faults import Fault
from judgebench.errors import ConfigError, EngineError
from judgebench.request import Request, endpoint_of

GRACE_S = 10.0
JITTER = 0.1  # of each wait, so that the workers of one endpoint do not return in the same instant

# So many equal failures before the first answer of a model, and it is taken for broken. What is about
# a row (context, filter) or passes by itself (rate limits) never counts.
HOPELESS: dict[Reason, int] = {"bad_request": 5, "server": 20, "timeout": 20, "malformed": 20, "empty": 20}

Call: TypeAlias = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Policy:
    """How calls are executed: calls in flight, tries a request, and the longest wait between two."""

    concurrency: int = 64
    max_attempts: int = 5
    max_wait_s: float = 60.0

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


class _Endpoint:
    """What the callers of one endpoint share: a pause, and how many may call at once.

    A rate limit halves the number, each answer adds a little to it again. Without that, a window wider
    than the limit spends its attempts on asking in unison: at 64 in flight against 10 calls a second,
    Retry-After 1, 97 of 300 rows fail after five tries each; with it 1 (measured).
    """

    __slots__ = ("busy", "limit", "loop", "until", "waiting", "window")

    def __init__(self, window: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.window = window
        self.limit = float(window)
        self.busy = 0
        self.until = 0.0
        self.waiting: deque[asyncio.Future[None]] = deque()

    async def enter(self) -> None:
        while True:
            left = self.until - self.loop.time()
            if left > 0:
                await asyncio.sleep(_jittered(left))
            elif self.busy < self.limit:
                self.busy += 1
                return
            else:
                turn = self.loop.create_future()
                self.waiting.append(turn)
                await turn

    def leave(self) -> None:
        self.busy -= 1
        free = int(self.limit) - self.busy
        while free > 0 and self.waiting:
            turn = self.waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                free -= 1

    def pause(self, wait_s: float) -> None:
        now = self.loop.time()
        if self.until <= now:  # the other refusals of the same burst say nothing new
            self.limit = max(1.0, min(self.limit, self.busy + 1) / 2)
        self.until = max(self.until, now + wait_s)

    def answered(self) -> None:
        if self.limit < self.window:
            self.limit = min(self.window, self.limit + 1 / self.limit)


class _Model:
    """What is known of one descriptor: whether its preflight ended, whether it ever answered."""

    __slots__ = ("alike", "answered", "gate", "last")

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.answered = False
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
        self.endpoints: dict[tuple[str, str | None, str | None], _Endpoint] = {}
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
                    f"{_name(request)} failed its first {model.alike} requests in the same way: "
                    f"{event.reason}, {event.detail}"
                )
        else:
            model.answered = True
        model.gate.set()
        await self.tell(event)

    async def attempts(self, request: Request, model: _Model, me: asyncio.Task[None]) -> Response | Failure:
        endpoint = self.endpoint(request)
        most = self.policy.max_attempts
        for number in range(1, most + 1):
            await endpoint.enter()
            self.calling.add(me)
            try:
                response = _usable(await self.call(request))
                endpoint.answered()
                return response
            except Fault as caught:
                fault = caught
            finally:
                self.calling.discard(me)
                endpoint.leave()
            if _breaks(fault, model, last=number == most):
                self.finished.append(_failure(request, fault))
                raise EngineError(_advice(request, fault))
            if not fault.retry or number == most or self.error is not None:
                break
            wait = self.wait(fault, number)
            if wait > self.policy.max_wait_s:
                limit = f"asks to wait {fault.wait_s:g} s, max_wait_s is {self.policy.max_wait_s:g}"
                return Failure(request, "rate_limited", f"{fault.detail} ({limit})")
            if fault.pause:
                endpoint.pause(wait)
            await self.tell(
                Attempt(request, number, fault.reason, fault.detail, wait, fault.output, fault.cost_usd)
            )
            await asyncio.sleep(_jittered(wait))
        return _failure(request, fault)

    def wait(self, fault: Fault, number: int) -> float:
        """What the server asks for, else 1, 2, 4, … s, at most `max_wait_s`."""
        if fault.wait_s is not None:
            return fault.wait_s
        return min(2.0 ** (number - 1), self.policy.max_wait_s) * random.uniform(0.5, 1.0)

    def endpoint(self, request: Request) -> _Endpoint:
        connection = request.connection
        key = (request.descriptor.provider, connection.base_url, connection.api_key_env)
        endpoint = self.endpoints.get(key)
        if endpoint is None:
            endpoint = self.endpoints[key] = _Endpoint(self.policy.concurrency)
        return endpoint


def _jittered(wait_s: float) -> float:
    return wait_s * random.uniform(1.0, 1.0 + JITTER)


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


def _name(request: Request) -> str:
    descriptor = request.descriptor
    place = endpoint_of(request.connection.base_url, None)
    return f"{descriptor.provider}/{descriptor.model}" + (f" at {place}" if place else "")


def _advice(request: Request, fault: Fault) -> str:
    """One paragraph: who, what it said, and the way out."""
    variable = request.connection.api_key_env
    if fault.down:
        way = "Start the server or set the model's base_url (and a proxy, where one is needed)."
    elif fault.reason == "auth":
        way = (
            f"Check the key in the environment variable {variable}, and what it is allowed to use."
            if variable
            else "No key was sent: name the environment variable that holds it in the model's api_key_env."
        )
    elif fault.reason == "quota":
        way = "Top up the account and run again: every stored answer is kept."
    elif fault.reason == "no_logprobs":
        way = "Take a judge that does, or a protocol that reads the text: protocol=pairwise."
    else:
        way = "Check the model's name and base_url; GET {base_url}/models lists what is served."
    return f"{_name(request)} cannot be used ({fault.reason}): {fault.detail.rstrip('.')}. {way}"
