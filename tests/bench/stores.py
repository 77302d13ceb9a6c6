"""The store alone, beside plain sqlite3 with the same rows, tables and durability.

`BENCH_ROWS` judgements of 4 KB (prompt and reply), each with its subject.
"""

from __future__ import annotations

import gc
import hashlib
import os
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from judgebench.engine import Response, Usage
from judgebench.request import Connection, Descriptor, Request, Subject, messages_input
from judgebench.store import RoleRoot, layout, schema
from tests.bench.loopback import SETTINGS, Line, median
from tests.bench.prose import prose

ROWS = int(os.environ.get("BENCH_ROWS", 100_000))
SINGLE = 300
ROUNDS = 3
CHUNK = 500
GROUP = 2000


def judged(count: int) -> list[Response]:
    """Judgements as a stage would put them: a prompt of 3.5 KB, a reply of 0.5 KB, a subject."""
    descriptor, connection = Descriptor("vllm", "m", SETTINGS), Connection("http://127.0.0.1/v1")
    usage, template = Usage(900, None, 120, None), _digest("template")[:16]
    answers = []
    for number in range(count):
        old, new = (f"{_digest(name)[:24]}:{_digest(f'{name} {number}')}:0" for name in ("old", "new"))
        subject = Subject("bench", str(number), 0, "old", "new", "direct", "pairwise", template, old, new)
        # As long as prompts are: some two thirds to four thirds of the mean.
        prompt = prose(f"prompt {number}", 2500 + 200 * (number % 11))
        text = messages_input([{"role": "user", "content": prompt}])
        request = Request(descriptor, connection, text, subject, 0, number)
        reply = prose(f"reply {number}", 500) + "\n\n[[A]]"
        answers.append(Response(request, reply, "stop", served_model="m", usage=usage, latency_s=0.05))
    return answers


def payload(answers: Sequence[Response]) -> int:
    """Bytes of prompts and replies."""
    return sum(len(a.request.input_text.encode()) + len(a.output.encode()) for a in answers)


def size(folder: Path) -> int:
    """Bytes on disk of a store, its journals too."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


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


_JOINED = (
    "SELECT r.*, s.subject_key FROM responses AS r "
    "JOIN subjects AS s ON s.input_hash = r.input_hash AND s.sample = r.sample"
)


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
            found = self.db.execute(f"{_JOINED} WHERE r.input_hash IN ({marks})", chunk).fetchall()
            assert len(found) == len(chunk)


def timed(work: Callable[..., None], *facts: int) -> float:
    began = time.perf_counter()
    work(*facts)
    return time.perf_counter() - began


def _ignored(_: object) -> None:
    pass


def lines() -> Iterator[Line]:
    answers = judged(ROWS)
    requests = [answer.request for answer in answers]
    ours: dict[str, list[float]] = {"put": [], "single": [], "lookup": []}
    plain: dict[str, list[float]] = {"put": [], "single": [], "lookup": []}
    gc.freeze()  # the rows of the bench are nobody's garbage
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as place:
            folder, apart = Path(place, "store"), Path(place, "apart")
            ours["put"].append(puts(folder, answers))
            ratio = size(folder) / payload(answers)
            ours["lookup"].append(lookups(folder, requests))
            ours["single"].append(singles(apart, answers[:SINGLE]))
            raw = Plain(folder, answers)
            plain["single"].append(timed(raw.write, 0, SINGLE, 1))
            plain["put"].append(timed(raw.write, SINGLE, ROWS, GROUP) * ROWS / (ROWS - SINGLE))
            plain["lookup"].append(timed(raw.read))
            raw.db.close()
    gc.unfreeze()
    name = f"store: {ROWS:,} judgements of {payload(answers) / ROWS / 1024:.1f} KB"
    for key, what, rows, target in (
        ("lookup", "warm lookups with subjects", ROWS, ">= 50,000 /s"),
        ("put", "durable puts, in groups", ROWS, ">= 10,000 /s"),
        ("single", "durable puts, each waited for", SINGLE, ">= 3,000 /s"),
    ):
        each, theirs = rows / median(ours[key]), rows / median(plain[key])
        yield Line(name, f"{what}: ours", f"{each:,.0f} /s", target)
        yield Line("", f"{what}: plain sqlite3, ours / plain", f"{theirs:,.0f} /s, {each / theirs:.2f}")
        name = ""
    yield Line("", "size on disk / prompts and replies", f"{ratio:.2f}", "<= 1.35")
