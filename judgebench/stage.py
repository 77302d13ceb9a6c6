"""One `fill` for both paid stages: requests in, each answered from the store or by an engine, once.

The feed renders and looks up in chunks on a worker thread; hits are delivered as they are found,
misses flow to their engine, which pulls them as it likes. Requests that share a key share one call.
An answer counts when it is committed, never before. Memory is bounded by the chunk, the engine's
window and the writer's backlog, whatever the number of rows.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Container,
    Iterable,
    Iterator,
)
from itertools import islice
from typing import Literal, NamedTuple, TypeAlias

from judgebench.budget import Budget
from judgebench.engine import Attempt, Engine, Event, Failure, Response
from judgebench.engine.replay import Replay
from judgebench.errors import ConfigError, EngineError, Interrupted, StoreError
from judgebench.request import Descriptor, Key, Request
from judgebench.store import Answer, RoleRoot
from judgebench.tally import Tally

CHUNK = 256
BACKLOG = 4096  # requests between the feed and the last commit
GRACE_S = 10.0  # for calls in flight, once something else has broken: they are paid for
POLL_S = 0.25  # how often to look for answers that another process is buying

Mode = Literal["use", "refresh", "only", "off"]
MODES = ("use", "refresh", "only", "off")


class Outcome(NamedTuple):
    """What became of one request."""

    request: Request
    result: Answer | Failure


Deliver: TypeAlias = Callable[[list[Outcome]], None]
Preflight: TypeAlias = Callable[[Engine, Request], Awaitable[None]]


async def fill(
    requests: Iterable[Request],
    *,
    store: RoleRoot,
    engine_of: Callable[[Request], Engine],
    mode: Mode = "use",
    deliver: Deliver,
    tally: Tally | None = None,
    stop: asyncio.Event | None = None,
    preflight: Preflight | None = None,
    budget: Budget | None = None,
) -> Tally:
    """Answer every request from the store or by its engine, and keep what was answered.

    Args:
        requests: made lazily, on a worker thread; several may share a key.
        store: where answers are looked up and kept.
        engine_of: the engine of a request; called for misses only.
        mode: `use`; `only` (a miss is the failure `not_cached`); `off` needs a throw-away store,
            `refresh` one that knows since when.
        deliver: gets each request's outcome exactly once, on the event loop, in any order.
        tally: counted up while the fill runs, for a progress line.
        stop: when set, no new request is sent; those in flight are kept.
        preflight: called with a model's engine and first miss, before that is sent.
        budget: what may be spent; a miss that it has no room for is the failure `over_budget`.

    Raises:
        EngineError: a model that cannot be used; what was answered before is stored.
        StoreError: the store could not keep an answer.
        Interrupted: `stop` was set before all requests were answered.
    """
    filling = _Fill(store, engine_of, mode, deliver, tally or Tally(), preflight, budget or Budget({}))
    try:
        async with asyncio.TaskGroup() as group:
            filling.group = group
            told = group.create_task(filling.halt_on(stop or asyncio.Event()))
            await filling.feed(iter(requests))
            await filling.lanes_ended()
            told.cancel()
    except BaseExceptionGroup as several:
        raise _first(several) from None
    finally:
        await asyncio.to_thread(store.flush)
        filling.drain()
    if filling.error is not None:
        raise filling.error
    if filling.stopped:
        raise Interrupted(f"Stopped after {filling.tally.done} of at least {filling.tally.asked} requests.")
    if filling.waiting:
        raise EngineError(f"An engine ended and left {len(filling.waiting)} requests without an answer.")
    return filling.tally


def _first(several: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = several
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class _Fill:
    """The state of one fill. Everything here runs on the event loop but `_take`."""

    def __init__(
        self,
        store: RoleRoot,
        engine_of: Callable[[Request], Engine],
        mode: Mode,
        deliver: Deliver,
        tally: Tally,
        preflight: Preflight | None,
        budget: Budget,
    ) -> None:
        self.store, self.engine_of, self.mode = store, engine_of, mode
        self.deliver, self.tally, self.preflight = deliver, tally, preflight
        self.budget = budget
        self.flown: set[Descriptor] = set()
        self.group: asyncio.TaskGroup
        self.stop = asyncio.Event()  # nothing new is sent; what is in flight is kept
        self.error: Exception | None = None  # what broke first
        self.driven: list[asyncio.Task[None]] = []
        self.stopped = False
        self.waiting: dict[Key, list[Request]] = {}  # asked or about to be asked, by key
        self.elsewhere: dict[Key, list[Request]] = {}  # asked by another process
        self.committed_lately: dict[Key, Answer] = {}  # since the last chunk was looked up
        self.served: set[Key] = set()  # priced hits that were counted
        self.lanes: dict[Engine, asyncio.Queue[Request | None]] = {}
        self.loop = asyncio.get_running_loop()
        self.room = asyncio.Semaphore(BACKLOG)
        self.committed: list[tuple[Key, Answer | None]] = []
        self.handover = threading.Lock()  # between the writer's thread and the loop

    async def halt_on(self, stop: asyncio.Event) -> None:
        """Stop when the user says so."""
        await stop.wait()
        self.stop.set()

    def broke(self, error: Exception) -> None:
        """Something failed: send nothing more, and give the calls in flight time to come in."""
        if self.error is None:
            self.error = error
            self.loop.call_later(GRACE_S, self._cancel)
        self.stop.set()

    def _cancel(self) -> None:
        for lane in self.driven:
            lane.cancel()

    async def lanes_ended(self) -> None:
        """Return when no engine is at work any more."""
        await asyncio.gather(*self.driven, return_exceptions=True)

    async def feed(self, requests: Iterator[Request]) -> None:
        """Look chunks up, deliver the hits, hand the misses to their engines."""
        try:
            await self._feed(requests)
        except Exception as error:
            self.broke(error)
        for lane in self.lanes.values():
            await lane.put(None)

    async def _feed(self, requests: Iterator[Request]) -> None:
        while not self.stop.is_set():
            self.committed_lately.clear()
            chunk, answers, in_the_way = await asyncio.to_thread(self._take, requests)
            if not chunk:
                break
            self.tally.asked += len(chunk)
            misses: list[Request] = []
            hits: list[Outcome] = []
            for request, answer in zip(chunk, answers, strict=True):
                answer = answer or in_the_way.get(request.key)
                if answer is None:
                    misses.append(request)
                else:
                    hits.append(self._hit(request, answer))
            if hits:
                self.deliver(hits)
            await self._ask(misses, in_the_way)
        else:
            self.stopped = True
        await self._wait_for_others()

    def _hit(self, request: Request, answer: Answer) -> Outcome:
        priced = answer.cost_usd is not None
        self.tally.hit(answer, priced and request.key not in self.served)
        if priced:
            self.served.add(request.key)
        self.tally.note(request, answer)
        return Outcome(request, answer)

    def _take(
        self, requests: Iterator[Request]
    ) -> tuple[list[Request], list[Answer | None], dict[Key, Answer | None]]:
        """The next chunk, what is stored of it, and what another process has or buys."""
        chunk = list(islice(requests, CHUNK))
        answers = self.store.lookup(chunk) if chunk else []
        misses = [request for request, answer in zip(chunk, answers, strict=True) if answer is None]
        known = (self.waiting, self.elsewhere)
        self.tally.missed.note(self.store, [r for r in misses if not any(r.key in keys for keys in known)])
        asking = misses and self.mode != "only"
        return chunk, answers, self.store.claim(misses) if asking else {}

    async def _ask(self, misses: Iterable[Request], in_the_way: Container[Key]) -> None:
        for request in misses:
            if self.mode == "only" and request.descriptor.provider != "shipped":  # that asks nobody
                self._fail(Failure(request, "not_cached", "The store was asked only."), [request])
                continue
            key = request.key
            if key in self.committed_lately:  # between its lookup and now
                self.tally.shared += 1
                self.deliver([Outcome(request, self.committed_lately[key])])
                continue
            for known in (self.waiting, self.elsewhere):
                if key in known:
                    known[key].append(request)
                    break
            else:
                if not await self._make_room():
                    return
                if key in in_the_way:
                    self.elsewhere[key] = [request]
                else:
                    self.waiting[key] = [request]
                    await self._send(request)

    async def _make_room(self) -> bool:
        """A place in the backlog; false where the run was stopped first."""
        while self.room.locked() and self.elsewhere and not self.waiting:
            await self._look_elsewhere()  # all of the backlog is asked by others
        if not self.room.locked():
            await self.room.acquire()  # does not wait
            return True
        return await self._unless_stopped(self.room.acquire())

    async def _wait_for_others(self) -> None:
        """Until what another process asked is stored, or has become ours to ask."""
        while self.elsewhere:
            if self.stop.is_set():
                self.stopped = True
                return
            await self._look_elsewhere()

    async def _look_elsewhere(self) -> None:
        self.tally.waiting = f"{len(self.elsewhere)} are being asked by another run"
        await self._unless_stopped(asyncio.sleep(POLL_S))
        claimed = [requests[0] for requests in self.elsewhere.values()]
        in_the_way = await asyncio.to_thread(self.store.claim, claimed)
        self.tally.waiting = ""
        hits: list[Outcome] = []
        for request in claimed:
            key = request.key
            answer = in_the_way.get(key)
            if key in in_the_way and answer is None:
                continue
            requests = self.elsewhere.pop(key)
            if answer is not None:
                self.room.release()
                hits += [self._hit(asked, answer) for asked in requests]
            else:
                self.waiting[key] = requests
                await self._send(request)
        if hits:
            self.deliver(hits)

    async def _send(self, request: Request) -> None:
        engine = self.engine_of(request)
        if self.preflight is not None and request.descriptor not in self.flown:
            self.flown.add(request.descriptor)
            await self.preflight(engine, request)
        await self._lane(engine).put(request)

    def _lane(self, engine: Engine) -> asyncio.Queue[Request | None]:
        lane = self.lanes.get(engine)
        if lane is None:
            lane = self.lanes[engine] = asyncio.Queue()  # bounded by `room`
            self.driven.append(self.group.create_task(self._drive(engine, lane)))
        return lane

    async def _drive(self, engine: Engine, lane: asyncio.Queue[Request | None]) -> None:
        asked: set[Key] = set()
        events: AsyncGenerator[Event, None] = engine.run(self._source(lane, engine, asked))
        try:
            async for event in events:
                if isinstance(event, Response | Failure):
                    asked.discard(event.request.key)
                    self.budget.settle(event)
                if isinstance(event, Response):
                    self.store.put(event, self.waiting[event.request.key], self._on_commit(event.request.key))
                elif isinstance(event, Failure):
                    self.store.note(event)
                    self.room.release()
                    self._fail(event, self.waiting.pop(event.request.key))
                elif isinstance(event, Attempt):
                    self.tally.retried(event)
                    self.budget.again(event)
                    if event.output is not None or event.cost_usd is not None:
                        self.store.note(event)
        except Exception as error:
            self.broke(error)
        finally:
            await events.aclose()
            self.budget.lose(asked)

    async def _source(
        self, lane: asyncio.Queue[Request | None], engine: Engine, asked: set[Key]
    ) -> AsyncIterator[Request]:
        priced = bool(self.budget) and not isinstance(engine, Replay)  # a replay asks nobody
        waits = not getattr(engine, "gathers", False)
        while not self.stop.is_set():
            if lane.empty():
                pulled = asyncio.ensure_future(lane.get())
                if not await self._unless_stopped(pulled):
                    break
                request = pulled.result()
            else:
                request = lane.get_nowait()
            if request is None:
                return
            if priced and request.descriptor.provider != "shipped":
                admitted = asyncio.ensure_future(self.budget.admit(request, waits=waits))
                if not await self._unless_stopped(admitted):
                    break
                if not admitted.result():
                    self._over_budget(request)
                    continue
            asked.add(request.key)
            yield request
        self.stopped = True

    async def _unless_stopped(self, waited: Awaitable[object]) -> bool:
        """Wait for something, or for the stop; whether it came to be. Only waits that block pay."""
        wanted, halted = asyncio.ensure_future(waited), asyncio.ensure_future(self.stop.wait())
        try:
            await asyncio.wait((wanted, halted), return_when=asyncio.FIRST_COMPLETED)
            return wanted.done()
        finally:
            wanted.cancel()
            halted.cancel()

    def _on_commit(self, key: Key) -> Callable[[Answer | None], None]:
        def done(answer: Answer | None) -> None:  # on the writer's thread, once a row
            with self.handover:
                first = not self.committed
                self.committed.append((key, answer))
            if first:
                self.loop.call_soon_threadsafe(self.drain)

        return done

    def drain(self) -> None:
        """Deliver what was committed since the last time."""
        with self.handover:
            batch, self.committed = self.committed, []
        outcomes: list[Outcome] = []
        for key, answer in batch:
            requests = self.waiting.pop(key)
            self.room.release()
            if answer is None:
                # What is still in flight goes to the same rescue file; the flush at the end raises.
                self.broke(self.store.error or StoreError("The store could not keep an answer."))
                continue
            self.committed_lately[key] = answer
            self.tally.waiting = ""
            self.tally.paid(answer)
            self.tally.shared += len(requests) - 1
            for request in requests:
                self.tally.note(request, answer)
                outcomes.append(Outcome(request, answer))
        if outcomes:
            self.deliver(outcomes)

    def _over_budget(self, request: Request) -> None:
        detail = f"{self.budget.over} leaves no room for a further call"
        self.room.release()
        self._fail(Failure(request, "over_budget", detail), self.waiting.pop(request.key))

    def _fail(self, failure: Failure, requests: list[Request]) -> None:
        for request in requests:
            self.tally.failed(failure if request is failure.request else Failure(request, failure.reason))
        self.deliver([Outcome(request, failure) for request in requests])


def check_mode(mode: str) -> Mode:
    """A store mode by name; `ConfigError` for any other."""
    if mode not in MODES:
        raise ConfigError(f"store.mode={mode!r} is not known. Choices: {', '.join(MODES)}.")
    return mode  # type: ignore[return-value]
