"""Durable writes: one thread for a role root, one transaction a database and group.

Rows are handed over at once and committed together, at most `GROUP_S` seconds after the first of
them came in; a commit never holds up a provider's slot. After the commit, and only then, `done` is
called with what the store holds: where another process was faster, its answer, not ours.
"""

from __future__ import annotations

import contextlib
import math
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from judgebench.errors import StoreError
from judgebench.request import Descriptor, clean
from judgebench.store import database, schema
from judgebench.store.rescue import Rescue

GROUP_S = 0.05
GROUP_ROWS = 2000

Row: TypeAlias = tuple[Any, ...]  # in the order of ANSWER_COLUMNS
AnswerKey: TypeAlias = tuple[Any, ...]  # input hash, sample


class Write(NamedTuple):
    """One answer (or none), its subjects, failed tries.

    `done` gets the stored row after the commit, or null where the commit failed.
    """

    descriptor: Descriptor
    answer: tuple[Any, ...] | None  # in the order of ANSWER_COLUMNS
    subjects: Sequence[tuple[Any, ...]]  # subject_key, input_hash, sample, SUBJECT_COLUMNS, run_id
    attempts: Sequence[tuple[Any, ...]]  # in the order of the table
    done: Callable[[tuple[Any, ...] | None], None] | None
    settled: tuple[Any, ...] | None = None  # the key whose claim ends with this commit
    # Whether an answer that is there already (the row, its refresh_at) gives way to this one.
    stale: Callable[[tuple[Any, ...], str | None], bool] | None = None


_ANSWER = schema.insert("responses", schema.ANSWER_COLUMNS)
_SUBJECT = schema.insert("subjects", schema.subjects.columns.keys())
_ATTEMPT = schema.insert("attempts", schema.attempts.columns.keys())
# A use that was deleted and is there again. An answer's tombstone stays: its instant tells old from new.
_UNBURY = "DELETE FROM tombstones WHERE scope = 'subject' AND key = ?"
_FREE = "DELETE FROM claims WHERE input_hash = ? AND sample = ?"
_READ = ", ".join(schema.ANSWER_COLUMNS)
_STORED = f"SELECT {_READ}, refresh_at FROM responses WHERE input_hash = ? AND sample = ?"
_SUPERSEDE = (
    f"INSERT INTO superseded ({_READ}, superseded_at) "
    f"SELECT {_READ}, ? FROM responses WHERE input_hash = ? AND sample = ?"
)
_DROP = "DELETE FROM responses WHERE input_hash = ? AND sample = ?"


_INT64 = 2**63

# Errors about what is to be stored, not about where.
_OF_DATA = (sqlite3.InterfaceError, sqlite3.ProgrammingError, sqlite3.DataError, sqlite3.IntegrityError)


def bound(*values: Any) -> Row:
    """A row as SQLite can hold it, so that no odd value takes the rows of its commit with it.

    Text is valid UTF-8, whole numbers have 64 bits, fractions are finite. All else becomes null.
    """
    return tuple(
        value if value is None else clean(value) if type(value) is str else _bound(value) for value in values
    )


def _bound(value: Any) -> Any:
    if isinstance(value, str):
        return clean(str(value))
    if isinstance(value, int | Integral):
        whole = int(value)
        return whole if -_INT64 <= whole < _INT64 else None
    if isinstance(value, float | Real):
        return float(value) if math.isfinite(value) else None
    return None


class Writer:
    """The only writer of a role root in this process. Starts its thread at the first row."""

    def __init__(self, root: Path, role: str) -> None:
        self._root, self._role = root, role
        self._connections: dict[str, sqlite3.Connection] = {}
        self._thread: threading.Thread | None = None
        self._error: StoreError | None = None
        self._broken = False  # nothing can be written any more
        self._rescue = Rescue(root, role)
        self.commits = 0
        # The open group and how far the thread is. A row wakes the thread only when it opens a group:
        # a wake a row costs more of the stage's CPU than the commits do.
        self._change = threading.Condition()
        self._group: list[Write] = []
        self._opened_at = 0.0
        self._given = self._kept = 0  # rows
        self._hurry = self._ended = False

    @property
    def error(self) -> StoreError | None:
        """Why rows could not be committed, and where their answers are instead; null while all is well."""
        if self._error is None or not self._rescue.rows:
            return self._error
        return StoreError(
            f"{self._error} {self._rescue.rows:,} answers in hand were written to {self._rescue.path}: once "
            f"the store can be written again, bring them in with: judgebench merge {self._rescue.path}"
        )

    def put(self, write: Write) -> None:
        """Hand a row over. It never fails: `done` and `flush` tell."""
        with self._change:
            if self._thread is None:
                self._ended = False
                self._thread = threading.Thread(target=self._loop, name=f"writer-{self._role}", daemon=True)
                self._thread.start()
            self._given += 1
            self._group.append(write)
            if len(self._group) == 1:
                self._opened_at = time.monotonic()
                self._change.notify_all()
            elif len(self._group) == GROUP_ROWS:
                self._change.notify_all()

    def flush(self) -> None:
        """Return when all that was handed over is committed, or raise `StoreError`."""
        with self._change:
            given = self._given
            while self._kept < given:
                self._hurry = True
                self._change.notify_all()
                self._change.wait()
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        """Commit, end the thread, close every connection."""
        with self._change:
            thread, self._thread = self._thread, None
            self._ended = True
            self._change.notify_all()
        if thread is not None:
            thread.join()
        if self.error is not None:
            raise self.error

    def _loop(self) -> None:
        while group := self._take():
            try:
                self._commit(group)
            except Exception as error:  # of a `done`: the thread lives on, else a flush would wait for ever
                self._fail(StoreError(f"The store's writer stopped: {type(error).__name__}: {error}."))
            with self._change:
                self._kept += len(group)
                self._change.notify_all()
        for db in self._connections.values():
            with contextlib.suppress(sqlite3.Error):
                database.close(db)
        self._connections.clear()

    def _take(self) -> list[Write]:
        """The next group, once its time is over, it is full, or somebody waits; empty at the end."""
        with self._change:
            self._change.wait_for(lambda: self._group or self._ended)
            self._change.wait_for(
                lambda: self._hurry or self._ended or len(self._group) >= GROUP_ROWS,
                timeout=max(0.0, self._opened_at + GROUP_S - time.monotonic()),
            )
            group, self._group = self._group, []
            self._hurry = False
        return group

    def _fail(self, error: StoreError) -> None:
        if self._error is None:
            self._error = error

    def _commit(self, group: list[Write]) -> None:
        by_database: dict[str, list[Write]] = {}
        for write in group:
            by_database.setdefault(write.descriptor.hash, []).append(write)
        for writes in by_database.values():
            stored = self._stored(writes)
            for write in writes:
                if write.done is not None and write.answer is not None:
                    write.done(stored.get(write.answer[:2]))

    def _stored(self, writes: list[Write]) -> dict[AnswerKey, Row]:
        """Commit one database's rows; what it then holds for each of their answers, by key.

        Where the store cannot be written, the answers go to a rescue file. Where it refuses the data,
        the rows are committed one by one, so that an odd one takes none of the others with it.
        """
        try:
            if not self._broken:
                return self._commit_one(writes)
        except (sqlite3.Error, OSError, StoreError) as error:
            if isinstance(error, _OF_DATA):
                return self._one_by_one(writes, error)
            self._broken = True
            path = database.path_for(self._root, self._role, writes[0].descriptor)
            self._fail(
                error
                if isinstance(error, StoreError)
                else StoreError(f"The store could not commit to {path}: {error}.{schema.way_out(error)}")
            )
        except (ValueError, OverflowError, TypeError) as error:
            return self._one_by_one(writes, error)
        for write in writes:
            if write.answer is not None:
                self._rescue.keep(write.descriptor, write.answer, write.subjects)
        return {}

    def _one_by_one(self, writes: list[Write], error: Exception) -> dict[AnswerKey, Row]:
        if len(writes) == 1:
            key = writes[0].settled or ("of no answer", "")
            self._fail(StoreError(f"The store cannot hold the row {key[0]}:{key[1]}: {error}."))
            return {}
        stored: dict[AnswerKey, Row] = {}
        for write in writes:
            stored |= self._stored([write])
        return stored

    def _commit_one(self, writes: list[Write]) -> dict[AnswerKey, Row]:
        db = self._connection(writes[0].descriptor)
        answers = [write.answer for write in writes if write.answer is not None]
        stored: dict[AnswerKey, Row] = {answer[:2]: answer for answer in answers}
        db.execute("BEGIN IMMEDIATE")
        try:
            before = db.total_changes
            db.executemany(_ANSWER, answers)
            if db.total_changes - before != len(answers):
                for write in writes:
                    if write.answer is not None:
                        stored[write.answer[:2]] = _settle(db, write)
            subjects = [row for write in writes for row in write.subjects]
            db.executemany(_SUBJECT, subjects)
            db.executemany(_UNBURY, [row[:1] for row in subjects])
            db.executemany(_ATTEMPT, [row for write in writes for row in write.attempts])
            db.executemany(_FREE, [write.settled for write in writes if write.settled is not None])
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:  # SQLite rolls back by itself where the disk is full
                db.execute("ROLLBACK")
            raise
        self.commits += 1
        return stored

    def _connection(self, descriptor: Descriptor) -> sqlite3.Connection:
        db = self._connections.get(descriptor.hash)
        if db is None:
            db = database.writable(self._root, self._role, descriptor)
            self._connections[descriptor.hash] = db
        return db


def _settle(db: sqlite3.Connection, write: Write) -> Row:
    """The answer that stays where one met another that was there first: that one, unless it is stale."""
    assert write.answer is not None
    key = write.answer[:2]
    found = db.execute(_STORED, key).fetchone()
    if found is None:  # `INSERT OR IGNORE` passes over a row that lacks what it must have, too
        raise sqlite3.IntegrityError("a value that must be there is null")
    *there, refresh_at = found
    row = tuple(there)
    if row == write.answer:
        return write.answer
    if write.stale is None or not write.stale(row, refresh_at):
        return row
    db.execute(_SUPERSEDE, (schema.now(), *key))
    db.execute(_DROP, key)
    db.execute(_ANSWER, write.answer)
    return write.answer
