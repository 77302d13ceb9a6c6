"""The store alone, beside plain sqlite3 with the same rows, tables and durability."""

from __future__ import annotations

import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from judgebench.engine import Response, Usage
from judgebench.request import Request
from judgebench.store import RoleRoot, layout, schema
from tests.bench.loopback import Line, judge_requests, median, texts

ROWS = 20_000
SINGLE = 300
ROUNDS = 3
CHUNK = 500
GROUP = 2000


def responses(requests: Sequence[Request]) -> list[Response]:
    usage = Usage(500, None, 5, None)
    return [
        Response(request, "[[A]]", "stop", served_model="m", usage=usage, latency_s=0.05)
        for request in requests
    ]


def puts(folder: Path, answers: Sequence[Response]) -> float:
    """Seconds until all are durable."""
    root = RoleRoot(folder, "judgements", "bench")
    began = time.perf_counter()
    for answer in answers:
        root.put(answer, [answer.request], _ignored)
    root.flush()
    took = time.perf_counter() - began
    root.close()
    return took


def singles(folder: Path, answers: Sequence[Response]) -> float:
    """Seconds when each waits for its own commit."""
    root = RoleRoot(folder, "judgements", "bench")
    began = time.perf_counter()
    for answer in answers:
        kept = threading.Event()
        root.put(answer, [answer.request], lambda _, kept=kept: kept.set())  # type: ignore[misc]
        root.flush()
        assert kept.is_set()
    took = time.perf_counter() - began
    root.close()
    return took


def lookups(folder: Path, requests: Sequence[Request]) -> float:
    root = RoleRoot(folder, "judgements", "bench")
    began = time.perf_counter()
    for start in range(0, len(requests), CHUNK):
        assert None not in root.lookup(requests[start : start + CHUNK])
    took = time.perf_counter() - began
    root.close()
    return took


class Plain:
    """The same rows by hand."""

    def __init__(self, folder: Path, answers: Sequence[Response]) -> None:
        descriptor = answers[0].request.descriptor
        source = sqlite3.connect(layout.database(folder, "judgements", descriptor))
        self.rows = source.execute("SELECT * FROM responses").fetchall()
        self.subjects = source.execute("SELECT * FROM subjects").fetchall()
        source.close()
        self.path = folder / "plain.db"
        self.db = schema.open_writer(self.path, "judgements", {})
        self.insert = [
            f"INSERT INTO {table} VALUES ({','.join('?' * len(rows[0]))})"
            for table, rows in (("responses", self.rows), ("subjects", self.subjects))
        ]

    def write(self, start: int, stop: int, step: int) -> None:
        """One transaction for each `step` rows."""
        for first in range(start, stop, step):
            rows = slice(first, min(first + step, stop))
            self.db.execute("BEGIN IMMEDIATE")
            self.db.executemany(self.insert[0], self.rows[rows])
            self.db.executemany(self.insert[1], self.subjects[rows])
            self.db.execute("COMMIT")

    def read(self) -> None:
        hashes = [row[0] for row in self.rows]
        for start in range(0, len(hashes), CHUNK):
            chunk = hashes[start : start + CHUNK]
            marks = ",".join("?" * len(chunk))
            found = self.db.execute(
                f"SELECT * FROM responses WHERE input_hash IN ({marks})", chunk
            ).fetchall()
            assert len(found) == len(chunk)


def timed(work: Callable[..., None], *facts: int) -> float:
    began = time.perf_counter()
    work(*facts)
    return time.perf_counter() - began


def _ignored(_: object) -> None:
    pass


def lines() -> Iterator[Line]:
    requests = list(judge_requests("http://127.0.0.1/v1", texts(ROWS)))
    answers = responses(requests)
    ours: dict[str, list[float]] = {"put": [], "single": [], "lookup": []}
    plain: dict[str, list[float]] = {"put": [], "single": [], "lookup": []}
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as place:
            folder, apart = Path(place, "store"), Path(place, "apart")
            ours["put"].append(puts(folder, answers))
            ours["lookup"].append(lookups(folder, requests))
            ours["single"].append(singles(apart, answers[:SINGLE]))
            raw = Plain(folder, answers)
            plain["single"].append(timed(raw.write, 0, SINGLE, 1))
            plain["put"].append(timed(raw.write, SINGLE, ROWS, GROUP) * ROWS / (ROWS - SINGLE))
            plain["lookup"].append(timed(raw.read))
            raw.db.close()
    name = f"store: {ROWS:,} rows of 2 KB"
    for key, what, rows in (
        ("put", "durable puts", ROWS),
        ("single", "single-row commits", SINGLE),
        ("lookup", "warm lookups", ROWS),
    ):
        each, theirs = rows / median(ours[key]), rows / median(plain[key])
        yield Line(name, f"{what}, ours / plain sqlite3", f"{each / theirs:.2f}")
        yield Line("", f"{what}: ours, plain sqlite3", f"{each:,.0f}, {theirs:,.0f} /s")
        name = ""
