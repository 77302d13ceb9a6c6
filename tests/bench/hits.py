"""Judgements that are stored: render, look up, read, rank; and a whole `judgebench run` of hits."""

from __future__ import annotations

import gc
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterable, Iterator
from pathlib import Path

from judgebench.answers import Conversation
from judgebench.benchmark import Instruction
from judgebench.combine import Tables
from judgebench.engine import Event, Response
from judgebench.judgements import Judgements, Match
from judgebench.model import Model
from judgebench.protocol import Protocol
from judgebench.request import Request
from judgebench.stage import fill
from judgebench.store import RoleRoot
from tests.bench.loopback import Line, conf, median, on_loop, server

ITEMS = 10_000  # judged in both orders
ROUNDS = 5


class Side:
    """A model's answers, of some 900 characters each."""

    benchmark = "bench"

    def __init__(self, label: str) -> None:
        self.label = label
        self.by_item: dict[str, list[Conversation]] = {}
        for number in range(ITEMS):
            name = str(number)
            question = (f"Question {number}: which of the two is it, and why?",)
            talk = Conversation(Instruction(name, question, category=f"c{number % 8}", cluster_id=name), 0)
            talk.add(f"{label} says {number}: " + "word " * 180, f"{label}:{number}:0", "stop", "shipped")
            self.by_item[name] = [talk]


class Instant:
    """An engine without latency."""

    async def run(self, requests: AsyncIterable[Request]) -> AsyncGenerator[Event, None]:
        async for request in requests:
            verdict = "[[A]]" if request.tag % 3 else "[[B]]"
            yield Response(request, "This one is clearer and keeps to the task.\n" * 5 + verdict, "stop")


def judgements(sides: tuple[Side, Side]) -> Judgements:
    judge = Model("vllm", "m", base_url="http://127.0.0.1/v1")
    match = Match(candidate=sides[1], baseline=sides[0])
    return Judgements(conf("protocol/pairwise", Protocol), {"judge": judge}, [match], 0, None)


def filled(store: Path, asked: Judgements) -> None:
    async def work() -> None:
        root = RoleRoot(store, "judgements", "bench")
        try:
            engine = Instant()
            await fill(asked.requests(), store=root, engine_of=lambda _: engine, deliver=asked.take)
        finally:
            root.close()

    on_loop(work())


def lines() -> Iterator[Line]:
    sides = Side("x"), Side("y")
    render_s, whole_s = [], []
    with tempfile.TemporaryDirectory() as folder:
        filled(Path(folder), judgements(sides))
        for _ in range(ROUNDS):
            gc.collect()
            began = time.perf_counter()
            count = sum(1 for _ in judgements(sides).requests())
            render_s.append(time.perf_counter() - began)
            gc.collect()
            asked = judgements(sides)
            began = time.perf_counter()
            filled(Path(folder), asked)
            tables = Tables(asked.verdicts(), {}, 0)
            whole_s.append(time.perf_counter() - began)
            assert len(tables.leaderboard) == 1
    read = median([whole - render for whole, render in zip(whole_s, render_s, strict=True)])
    yield Line(
        f"hits: {count:,} judgements of 2 KB",
        "look up, read, rank",
        f"{count / read:,.0f} /s",
        ">= 10,000 /s",
    )
    yield Line("", "render, look up, read, rank", f"{count / median(whole_s):,.0f} /s")
    yield from warm_run()


def warm_run() -> Iterator[Line]:
    """`judgebench run` on the whole of `starter`, every answer stored, from process start to exit."""
    took = []
    with tempfile.TemporaryDirectory() as folder, server(0.0) as url:
        words = [
            "run", f"store.root={folder}/store", f"output_dir={folder}/out", "protocol=pairwise",
            "candidate=server", "candidate.name=c", f"candidate.base_url={url}",
            "judge=server", "judge.name=j", f"judge.base_url={url}",
        ]  # fmt: skip
        command = [sys.executable, "-m", "judgebench.cli", *words]
        for _ in range(ROUNDS + 1):
            began = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            took.append(time.perf_counter() - began)
    what = "`judgebench run` of `starter`, all hits, start to exit"
    yield Line("", what, f"{median(took[1:]):.2f} s", "< 3 s")
