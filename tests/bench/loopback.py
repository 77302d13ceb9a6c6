"""What the benches share: a loopback server in its own process, judge requests, and lines of a table."""

from __future__ import annotations

import asyncio
import gc
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from hydra.utils import instantiate
from omegaconf import OmegaConf

from judgebench.engine import Event, Response
from judgebench.loop import background
from judgebench.request import Connection, Descriptor, Request, Subject, coerce_settings, messages_input
from judgebench.stage import fill
from judgebench.store import RoleRoot
from judgebench.tally import Tally
from judgebench.usage import conf_dir

T = TypeVar("T")

LATENCY_S = 0.05
IN_FLIGHT = 128
SETTINGS = coerce_settings({"temperature": 0, "max_tokens": 16, "seed": 1})
_SERVER = Path(__file__).resolve().parent.parent / "servers.py"


class Line(NamedTuple):
    """One line of the table. `target` is text for people: a bench never fails for being slow."""

    bench: str
    what: str
    value: str
    target: str = ""


@contextmanager
def server(latency_s: float = LATENCY_S) -> Iterator[str]:
    """A server's base URL, for the length of a `with`."""
    command = [sys.executable, str(_SERVER), "--latency", str(latency_s), "--labels", "[[A]],[[B]]"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def texts(count: int, size: int = 2048) -> list[str]:
    """Prompts of `size` bytes, all different."""
    return [(f"{number} " + "word " * (size // 5 + 1))[:size] for number in range(count)]


def judge_requests(url: str, prompts: Sequence[str]) -> Iterator[Request]:
    """Judge requests, made one by one as a stage makes them."""
    descriptor, connection = Descriptor("vllm", "m", SETTINGS), Connection(url)
    for number, text in enumerate(prompts):
        subject = Subject(
            "bench", f"item-{number}", 0, "baseline", "candidate", "direct", "pairwise", "t", "a", "b"
        )
        yield Request(
            descriptor, connection, messages_input([{"role": "user", "content": text}]), subject, 0, number
        )


class Timed:
    """An engine that notes when its first and its last answer came, and how long each call took."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.first = self.last = 0.0

    async def run(self, requests: AsyncIterable[Request]) -> AsyncGenerator[Event, None]:
        events = self.engine.run(requests)
        try:
            async for event in events:
                if isinstance(event, Response):
                    self.last = time.perf_counter()
                    self.first = self.first or self.last
                yield event
        finally:
            await events.aclose()


class Stage(NamedTuple):
    """What one `fill` took. `span_s`: from the end of the preflight to the last answer."""

    tally: Tally
    wall_s: float
    cpu_s: float
    span_s: float


def run_stage(store: Path, requests: Iterator[Request], engine: Any) -> Stage:
    """The real judgement stage, to its last commit."""
    timed = Timed(engine)

    async def work() -> Tally:
        root = RoleRoot(store, "judgements", "bench")
        try:
            return await fill(requests, store=root, engine_of=lambda _: timed, deliver=lambda outcomes: None)
        finally:
            root.close()

    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    tally = on_loop(work())
    return Stage(tally, time.perf_counter() - wall, time.process_time() - cpu, timed.last - timed.first)


def on_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run on the process's one loop, as the product does."""
    return asyncio.run_coroutine_threadsafe(work, background()).result()


def conf(name: str, kind: type[T]) -> T:
    """What a conf file builds."""
    built = instantiate(OmegaConf.load(conf_dir() / f"{name}.yaml"), _convert_="all")
    assert isinstance(built, kind)
    return built


def median(values: Sequence[float]) -> float:
    return statistics.median(values)
