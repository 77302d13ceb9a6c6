"""`judgebench run` where all of 100,000 judgements are stored, from process start to leaderboard.

`BENCH_ROWS` is the number of judgements. The store is filled once (by the same command, with a judge that
answers at once) and kept below `BENCH_FOLDER` (default: the temporary folder), so a second bench starts
warm; remove the folder to be rid of it.
"""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterable, Iterator
from pathlib import Path
from typing import NamedTuple

from judgebench.engine import Event, Response, Usage
from judgebench.request import Request
from tests.bench.loopback import Line, median
from tests.bench.prose import prose

ROWS = int(os.environ.get("BENCH_ROWS", 100_000))
ROUNDS = 3
ENGINES = "litellm openai aiohttp xllamacpp".split()
# The process itself tells which engine's library it has loaded.
_MAIN = f"""
import sys
from judgebench.cli import main
status = main()
loaded = set({ENGINES!r}) & set(sys.modules)
sys.exit(f"loaded: {{loaded}}" if loaded else status)
"""


class Instant:
    """A judge without latency, whose replies are explained as a judge's are."""

    async def run(self, requests: AsyncIterable[Request]) -> AsyncGenerator[Event, None]:
        async for request in requests:
            verdict = ("[[A]]", "[[B]]", "[[C]]")[int(request.input_hash[:8], 16) % 7 % 3]
            text = prose(request.input_hash[:12], 500) + "\n\n" + verdict
            usage = Usage(len(request.input_text) // 4, None, len(text) // 4, None)
            yield Response(request, text, "stop", served_model="j-1", usage=usage, latency_s=0.8)


class Spent(NamedTuple):
    """What one process took: wall and CPU seconds, peak memory in bytes."""

    wall_s: float
    cpu_s: float
    peak: int


def spent(command: list[str]) -> Spent:
    """Run a command; the figures are the kernel's, of this child alone."""
    began = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    wall = time.perf_counter() - began
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {child.returncode}.")
    return Spent(wall, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)


def instructions(path: Path, count: int) -> None:
    """A CSV of instructions and two models' answers."""
    if path.exists():
        return
    half = path.with_suffix(".part")
    with open(half, "w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["instruction", "category", "old", "new"])
        for number in range(count):
            answers = [prose(f"{model} {number}", 1060 + 37 * (number % 11)) for model in ("old", "new")]
            rows.writerow([prose(f"question {number}", 260), f"kind {number % 8}", *answers])
    half.rename(path)


def words(folder: Path, rows: int) -> list[str]:
    """The command's words: both orders of each instruction, one judge."""
    return [
        "run", f"store.root={folder / 'store'}", f"output_dir={folder / 'out'}", "protocol=pairwise",
        "benchmark=files", f"benchmark.path={folder / 'bench.csv'}", "benchmark.outputs=[old,new]",
        "candidate=native", "candidate.name=new", "baseline.name=old",
        "judge=server", "judge.name=j", "judge.base_url=http://127.0.0.1:9/v1",
    ]  # fmt: skip


def filled(rows: int) -> tuple[Path, list[str]]:
    """A folder whose store holds every judgement, and the command that finds them there."""
    home = Path(os.environ.get("BENCH_FOLDER", tempfile.gettempdir()))
    folder = home / f"judgebench-bench-{rows}"
    folder.mkdir(parents=True, exist_ok=True)
    instructions(folder / "bench.csv", rows // 2)
    asked = words(folder, rows)
    if not (folder / "filled").exists():
        engine = ["judge.engine._target_=tests.bench.full.Instant", "~judge.engine.concurrency"]
        spent([sys.executable, "-m", "judgebench.cli", *asked, *engine, "store.canary=false"])
        (folder / "filled").touch()
    return folder, [sys.executable, "-c", _MAIN, *asked]


def lines() -> Iterator[Line]:
    folder, command = filled(ROWS)
    stored = sum(file.stat().st_size for file in (folder / "store" / "judgements").rglob("*.db"))
    runs = [spent(command) for _ in range(ROUNDS + 1)][1:]  # the first one warms the file cache
    wall, cpu = median([run.wall_s for run in runs]), median([run.cpu_s for run in runs])
    name = f"full hit: `judgebench run`, {ROWS:,} stored judgements of {stored / ROWS / 1024:.1f} KB"
    yield Line(name, "process start to leaderboard, wall", f"{wall:.1f} s", "<= 10 s")
    yield Line("", "peak memory of the process", f"{max(run.peak for run in runs) / 1e9:.2f} GB", "<= 1 GB")
    yield Line("", "CPU", f"{cpu:.1f} s")
    yield Line("", f"engines loaded ({', '.join(ENGINES)})", "none", "none")
