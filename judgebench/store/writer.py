"""Durable writes: one thread for a role root, one transaction a database and group.

Rows are handed over at once and committed together, at most `GROUP_S` seconds after the first of
them came in; a commit never holds up a provider's slot. After the commit, and only then, `done` is
called with what the store holds: where another process was faster, its answer, not ours.
"""

from __future__ import annotations

import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from judgebench.errors import StoreError
from judgebench.request import Descriptor
from judgebench.store import layout, schema

GROUP_S = 0.05
GROUP_ROWS = 2000


class Write(NamedTuple):
    """One answer (or none), its subjects, failed tries.

    `done` gets the stored row after the commit, or null where the commit failed.
    """

    descriptor: Descriptor
    answer: tuple[Any, ...] | None  # in the order of ANSWER_COLUMNS
    subjects: Sequence[tuple[Any, ...]]  # subject_key, input_hash, sample, SUBJECT_COLUMNS, run_id
    attempts: Sequence[tuple[Any, ...]]  # in the order of the table
    done: Callable[[tuple[Any, ...] | None], None] | None


def _insert(table: str, width: int) -> str:
    return f"INSERT OR IGNORE INTO {table} VALUES ({','.join('?' * width)})"


_ANSWER = _insert("responses", len(schema.ANSWER_COLUMNS))
_SUBJECT = _insert("subjects", len(schema.subjects.columns))
_ATTEMPT = _insert("attempts", len(schema.attempts.columns))
_STORED = f"SELECT {', '.join(schema.ANSWER_COLUMNS)} FROM responses WHERE input_hash = ? AND sample = ?"


class Writer:
    """The only writer of a role root in this process. Starts its thread at the first row."""

    def __init__(self, root: Path, role: str) -> None:
        self._root, self._role = root, role
        self._queue: queue.SimpleQueue[Write | threading.Event] = queue.SimpleQueue()
        self._connections: dict[str, sqlite3.Connection] = {}
        self._thread: threading.Thread | None = None
        self._error: StoreError | None = None
        self.commits = 0

    def put(self, write: Write) -> None:
        """Hand a row over. Raises the `StoreError` of an earlier commit that failed."""
        if self._error is not None:
            raise self._error
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name=f"writer-{self._role}", daemon=True)
            self._thread.start()
        self._queue.put(write)

    def flush(self) -> None:
        """Return when all that was handed over is committed, or raise `StoreError`."""
        if self._thread is not None:
            reached = threading.Event()
            self._queue.put(reached)
            reached.wait()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Commit, end the thread, close every connection."""
        try:
            self.flush()
        finally:
            if self._thread is not None:
                self._queue.put(_END)
                self._thread.join()
                self._thread = None

    def _loop(self) -> None:
        ended = False
        while not ended:
            group: list[Write] = []
            reached: list[threading.Event] = []
            deadline = None
            while len(group) < GROUP_ROWS and not reached:
                try:
                    wait: float | None = None if deadline is None else max(0.0, deadline - time.monotonic())
                    item = self._queue.get(timeout=wait)
                except queue.Empty:
                    break
                if isinstance(item, Write):
                    group.append(item)
                    deadline = deadline or time.monotonic() + GROUP_S
                else:
                    ended = item is _END
                    reached.append(item)
            if group and self._error is None:
                self._commit(group)
            for event in reached:
                event.set()
        for db in self._connections.values():
            db.close()

    def _commit(self, group: list[Write]) -> None:
        by_database: dict[str, list[Write]] = {}
        for write in group:
            by_database.setdefault(write.descriptor.hash, []).append(write)
        for writes in by_database.values():
            try:
                stored: dict[tuple[Any, ...], tuple[Any, ...]] | None = self._commit_one(writes)
            except (sqlite3.Error, OSError, StoreError) as error:
                path = layout.database(self._root, self._role, writes[0].descriptor)
                self._error = (
                    error
                    if isinstance(error, StoreError)
                    else StoreError(f"The store could not commit to {path}: {error}.")
                )
                stored = None
            for write in writes:
                if write.done is not None and write.answer is not None:
                    write.done(None if stored is None else stored.get(write.answer[:2], write.answer))

    def _commit_one(self, writes: list[Write]) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        """Commit one database's rows; the answers of others that were there first, by key."""
        db = self._connection(writes[0].descriptor)
        answers = [write.answer for write in writes if write.answer is not None]
        theirs: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        db.execute("BEGIN IMMEDIATE")
        try:
            before = db.total_changes
            db.executemany(_ANSWER, answers)
            if db.total_changes - before != len(answers):
                for answer in answers:
                    row = db.execute(_STORED, answer[:2]).fetchone()
                    if row != answer:
                        theirs[answer[:2]] = row
            db.executemany(_SUBJECT, [row for write in writes for row in write.subjects])
            db.executemany(_ATTEMPT, [row for write in writes for row in write.attempts])
            db.execute("COMMIT")
        except BaseException:
            db.execute("ROLLBACK")
            raise
        self.commits += 1
        return theirs

    def _connection(self, descriptor: Descriptor) -> sqlite3.Connection:
        db = self._connections.get(descriptor.hash)
        if db is None:
            path = layout.database(self._root, self._role, descriptor)
            facts = {
                "provider": descriptor.provider,
                "model": descriptor.model,
                "descriptor_hash": descriptor.hash,
                "descriptor": descriptor.text,
            }
            db = schema.open_writer(path, self._role, facts)
            self._connections[descriptor.hash] = db
            layout.write_metadata(path.parent, descriptor)
        return db


_END = threading.Event()
