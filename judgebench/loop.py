"""One event loop a process, on a background thread; the main thread waits and owns the signals.

Jobs and notebooks share it: a notebook's own running loop is never touched, and vendors that bind
to a loop see only one.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from judgebench.errors import Interrupted

T = TypeVar("T")
GRACE_S = 20.0  # how long answers in flight may take after the first Ctrl-C

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def background() -> asyncio.AbstractEventLoop:
    """The process's loop, started at the first call."""
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="judgebench-loop", daemon=True).start()
        return _loop


def wait(work: Callable[[asyncio.Event], Coroutine[Any, Any, T]], grace_s: float = GRACE_S) -> T:
    """Run `work(stop)` on the loop and return what it returns.

    The first Ctrl-C or SIGTERM sets `stop`: no new request is sent, those in flight get `grace_s`
    seconds. The second, or the end of the grace, cancels.

    Raises:
        Interrupted: the work ended by cancellation.
    """
    loop = background()
    stop = asyncio.Event()
    future = asyncio.run_coroutine_threadsafe(work(stop), loop)
    asked = threading.Event()
    with _signals(asked):
        try:
            while not asked.is_set():
                # Short waits, since a main thread in a lock does not run signal handlers everywhere.
                try:
                    return future.result(timeout=0.2)
                except concurrent.futures.TimeoutError:
                    if future.done():
                        raise
            asked.clear()  # before the message: who reads it may be quick with the second one
            loop.call_soon_threadsafe(stop.set)
            print(
                "Stopping: answers in flight are kept; again to leave at once.", file=sys.stderr, flush=True
            )
            for _ in range(int(grace_s / 0.2)):
                try:
                    return future.result(timeout=0.2)
                except concurrent.futures.TimeoutError:
                    if future.done():
                        raise
                if asked.is_set():
                    break
            future.cancel()
            concurrent.futures.wait([future], timeout=5)
            raise Interrupted("Left before the answers in flight came in; everything stored is safe.")
        except concurrent.futures.CancelledError:
            raise Interrupted("The run was cancelled; everything stored is safe.") from None


@contextmanager
def _signals(asked: threading.Event) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # a notebook's or a launcher's thread: its owner handles signals
        return
    previous = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        previous[number] = signal.signal(number, lambda *_: asked.set())
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
