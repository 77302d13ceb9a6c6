"""Bring rows from elsewhere into a role root: another store, a shared copy, an older machine.

Idempotent, and the same whatever the order: of two different answers to one key, one stays by a
stated rule and the other is kept in `superseded`; what was deleted here does not come back. A row
whose text does not have the hash that it claims is refused. One transaction a database, so a
killed merge is finished by running it again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

from judgebench.errors import ConfigError, StoreError, choices
from judgebench.request import Descriptor, digest
from judgebench.store import database, layout, schema
from judgebench.store.reuse import REUSED
from judgebench.store.schema import now

Row: TypeAlias = Sequence[Any]

# Which of two different answers to one key stays: the one bought first, the one bought last, the
# one that is here; or none: the merge is refused.
ON_CONFLICT = ("older", "newer", "keep", "refuse")
DELETIONS = ("keep", "apply")
CHUNK = 2000

_COLUMNS = schema.ANSWER_COLUMNS
_AT = {name: position for position, name in enumerate(_COLUMNS)}
_READ = ", ".join(_COLUMNS)
_SUBJECT_COLUMNS = tuple(schema.subjects.columns.keys())
_PUT = schema.insert("responses", _COLUMNS)
_PUT_SUBJECT = schema.insert("subjects", _SUBJECT_COLUMNS)
_BURY = "INSERT OR REPLACE INTO tombstones (scope, key, deleted_at) VALUES (?, ?, ?)"
_DELETED_AT = "SELECT deleted_at FROM tombstones WHERE scope = ? AND key = ?"
_SUPERSEDE = (
    f"INSERT INTO superseded ({_READ}, superseded_at) SELECT {', '.join('?' * len(_COLUMNS))}, ? "
    "WHERE NOT EXISTS (SELECT 1 FROM superseded WHERE input_hash = ? AND sample = ? AND output = ? "
    "AND created_at = ?)"
)


@dataclass
class Conflict:
    """Two different answers to one key."""

    descriptor_hash: str
    input_hash: str
    sample: int
    here: str
    there: str
    kept: str  # `here` or `there`


@dataclass
class Merged:
    """What a merge did. Counts are of rows."""

    answers: int = 0  # added
    subjects: int = 0  # added
    known: int = 0  # answers that were here already
    buried: int = 0  # rows that were not taken, since they were deleted here
    deleted: int = 0  # rows removed here, since they were deleted there
    spared: int = 0  # rows deleted there that stay here
    orphans: int = 0  # subjects without an answer on either side
    forged: list[str] = field(default_factory=list)  # keys whose text has another hash
    conflicts: list[Conflict] = field(default_factory=list)

    def __iadd__(self, other: Merged) -> Merged:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)
        return self


def add(
    root: Path,
    role: str,
    descriptor: Descriptor,
    answers: Iterable[Row],
    subjects: Iterable[Row],
    tombstones: Iterable[tuple[str, str, str]] = (),
    *,
    on_conflict: str = "older",
    deletions: str = "keep",
) -> Merged:
    """Merge rows of one descriptor into a root.

    Args:
        answers: in the order of `schema.ANSWER_COLUMNS`.
        subjects: subject_key, input_hash, sample, `schema.SUBJECT_COLUMNS`, run_id.
        tombstones: scope (`answer` or `subject`), key, deleted_at.
        on_conflict: see `ON_CONFLICT`.
        deletions: what was deleted there and is here: `keep` it (counted as spared), or `apply`.

    Raises:
        StoreError: the root cannot be written, or a conflict under `refuse`; nothing was changed.
    """
    rules = Rules(on_conflict, deletions)
    with closing(database.writable(root, role, descriptor)) as db:  # rolls back what was not committed
        return into(db, descriptor, answers, subjects, tombstones, rules)


@dataclass(frozen=True)
class Rules:
    """What a merge does where the two sides disagree; see `add`."""

    on_conflict: str = "older"
    deletions: str = "keep"

    def __post_init__(self) -> None:
        if self.on_conflict not in ON_CONFLICT:
            raise ConfigError(f"on_conflict: {choices(self.on_conflict, ON_CONFLICT)}")
        if self.deletions not in DELETIONS:
            raise ConfigError(f"deletions: {choices(self.deletions, DELETIONS)}")


def into(
    db: sqlite3.Connection,
    descriptor: Descriptor,
    answers: Iterable[Row],
    subjects: Iterable[Row],
    tombstones: Iterable[tuple[str, str, str]],
    rules: Rules,
) -> Merged:
    """The same as `add`, into an open database."""
    merged = Merged()
    try:
        db.execute("BEGIN IMMEDIATE")
        # Their deletions first: what they deleted and bought anew is newer than their tombstone.
        for chunk in _chunks(tombstones):
            _bury(db, chunk, merged, rules.deletions)
        for chunk in _chunks(answers):
            _add_answers(db, descriptor, chunk, merged, rules.on_conflict)
        for chunk in _chunks(subjects):
            _add_subjects(db, chunk, merged)
        if rules.deletions == "apply":
            _drop_orphans(db, merged)
        db.execute("COMMIT")
    except sqlite3.Error as error:
        raise StoreError(f"Could not merge into {descriptor.model} ({descriptor.hash}): {error}.") from error
    return merged


def merge(source: Path, root: Path, role: str, rules: Rules) -> Iterator[tuple[Descriptor, Merged]]:
    """Merge a role of another store root into ours, file by file. The source is only read."""
    for path in layout.databases(source, role):
        descriptor = layout.read_metadata(path.parent)
        with reading(path) as rows:
            if rows is not None:
                with closing(database.writable(root, role, descriptor)) as db:
                    yield descriptor, into(db, descriptor, *rows, rules)


Rows: TypeAlias = tuple[Iterable[Row], Iterable[Row], Iterable[tuple[str, str, str]]]


@contextmanager
def reading(path: Path) -> Iterator[Rows | None]:
    """Answers, subjects and tombstones of a file, in one snapshot while others write; null if it is new."""
    db = schema.open_reader(path)
    if db is None:
        yield None
        return
    with closing(db):
        try:
            db.execute("BEGIN")
            yield (
                db.execute(f"SELECT {_READ} FROM responses"),
                db.execute(f"SELECT {', '.join(_SUBJECT_COLUMNS)} FROM subjects"),
                db.execute("SELECT scope, key, deleted_at FROM tombstones"),
            )
        except sqlite3.DatabaseError as error:
            raise StoreError(f"{path} is damaged: {error}. Mend it first: judgebench repair.") from error


def _bury(
    db: sqlite3.Connection, chunk: Sequence[tuple[str, str, str]], merged: Merged, deletions: str
) -> None:
    for scope, key, deleted_at in chunk:
        if scope == "answer":
            input_hash, _, sample = key.rpartition(":")
            here = db.execute(
                "SELECT created_at FROM responses WHERE input_hash = ? AND sample = ?", (input_hash, sample)
            ).fetchone()
            alive = here is not None and here[0] <= deleted_at
        else:
            alive = bool(db.execute("SELECT 1 FROM subjects WHERE subject_key = ?", (key,)).fetchone())
        if alive and deletions == "keep":
            merged.spared += 1
            continue
        if alive:
            merged.deleted += 1
            if scope == "answer":
                which = "WHERE input_hash = ? AND sample = ?"
                for table in ("responses", "subjects", "superseded", "attempts"):
                    db.execute(f"DELETE FROM {table} {which}", (input_hash, sample))
            else:
                db.execute("DELETE FROM subjects WHERE subject_key = ?", (key,))
        known = db.execute(_DELETED_AT, (scope, key)).fetchone()
        if known is None or known[0] < deleted_at:
            db.execute(_BURY, (scope, key, deleted_at))


def _add_answers(
    db: sqlite3.Connection, descriptor: Descriptor, chunk: Sequence[Row], merged: Merged, rule: str
) -> None:
    instant = now()
    for row in chunk:
        input_hash, sample = row[0], row[1]
        if digest(row[_AT["input_text"]]) != input_hash:
            merged.forged.append(f"{descriptor.hash}:{input_hash}:{sample}")
            continue
        dead = db.execute(
            "SELECT deleted_at FROM tombstones WHERE scope = 'answer' AND key = ?",
            (f"{input_hash}:{sample}",),
        ).fetchone()
        if dead is not None and row[_AT["created_at"]] <= dead[0]:
            merged.buried += 1
            continue
        key = (input_hash, sample)
        ours = db.execute(
            f"SELECT {_READ} FROM responses WHERE input_hash = ? AND sample = ?", key
        ).fetchone()
        if ours is None:
            db.execute(_PUT, tuple(row))
            merged.answers += 1
            continue
        merged.known += 1
        if _said(ours) == _said(row):
            if ours[_AT["origin"]] == REUSED != row[_AT["origin"]]:  # a copy gives way to what was paid for
                _replace(db, row)
            continue
        if rule == "refuse":
            raise StoreError(
                f"Two different answers to {descriptor.hash}:{input_hash}:{sample}: here "
                f"{ours[_AT['output']][:80]!r}, there {row[_AT['output']][:80]!r}. Nothing was merged; "
                "on_conflict=older, newer or keep says which one stays."
            )
        first, last = sorted((ours, tuple(row)), key=_age)
        stays = {"older": first, "newer": last}.get(rule, ours)
        goes = last if stays == first else first
        kept = "here" if stays == ours else "there"
        merged.conflicts.append(
            Conflict(descriptor.hash, input_hash, sample, ours[_AT["output"]], row[_AT["output"]], kept)
        )
        db.execute(_SUPERSEDE, (*goes, instant, *key, goes[_AT["output"]], goes[_AT["created_at"]]))
        if kept == "there":
            _replace(db, row)


def _replace(db: sqlite3.Connection, row: Row) -> None:
    db.execute("DELETE FROM responses WHERE input_hash = ? AND sample = ?", tuple(row[:2]))
    db.execute(_PUT, tuple(row))


def _said(row: Row) -> tuple[Any, ...]:
    return tuple(row[_AT[name]] for name in ("output", "reasoning", "top_logprobs"))


def _age(row: Row) -> tuple[Any, ...]:
    # Of two bought in the same millisecond the text decides, so that the order of merging does not.
    return (row[_AT["created_at"]], *("" if part is None else part for part in _said(row)))


def _add_subjects(db: sqlite3.Connection, chunk: Sequence[Row], merged: Merged) -> None:
    for row in chunk:
        subject_key, input_hash, sample = row[0], row[1], row[2]
        if db.execute(_DELETED_AT, ("subject", subject_key)).fetchone():
            merged.buried += 1
        elif not db.execute(
            "SELECT 1 FROM responses WHERE input_hash = ? AND sample = ?", (input_hash, sample)
        ).fetchone():
            merged.orphans += 1
        else:
            merged.subjects += db.execute(_PUT_SUBJECT, tuple(row)).rowcount


def _drop_orphans(db: sqlite3.Connection, merged: Merged) -> None:
    """Answers that a deletion of subjects left without any."""
    merged.deleted += db.execute(
        "DELETE FROM responses WHERE NOT EXISTS (SELECT 1 FROM subjects s WHERE "
        "s.input_hash = responses.input_hash AND s.sample = responses.sample)"
    ).rowcount


def _chunks(rows: Iterable[Any]) -> Iterator[list[Any]]:
    iterator = iter(rows)
    while chunk := list(islice(iterator, CHUNK)):
        yield chunk
