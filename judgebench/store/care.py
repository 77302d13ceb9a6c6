"""The health of a store: `verify` re-derives everything, `repair` saves what can be read, `compact` tidies.

A key is a hash of what is stored, so that every row can be checked against itself. A damaged file is
moved aside, never deleted, and every row of it that can be read and is what it claims goes into a
new one.
"""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from judgebench.errors import StoreError
from judgebench.request import Descriptor, Subject, digest
from judgebench.store import database, layout, merging, schema
from judgebench.store.merging import Rules
from judgebench.store.process import is_alive
from judgebench.store.rescue import SUFFIX as RESCUE

DAMAGED = ".damaged"
EVERYTHING = 9_000_000_000_000_000_000  # larger than any rowid
GAP = 200_000  # row numbers tried one by one where a file cannot be read through


@dataclass(frozen=True)
class Problem:
    """What is wrong with a file, in words. `mended_by`: the verb that helps, if one does."""

    path: Path
    text: str
    mended_by: str | None = None


def verify(root: Path, role: str) -> Iterator[Problem]:
    """Everything about a role that is not as it must be. Reads only."""
    for place in sorted((root / role).glob("*/*/*")):
        if place.is_dir():
            yield from _verify_place(place, role)
    for path in sorted(root.glob(f"*{RESCUE}")):
        yield Problem(path, "answers that could not be stored when they came", "merge")


def _verify_place(place: Path, role: str) -> Iterator[Problem]:
    descriptor: Descriptor | None = None
    try:
        descriptor = layout.read_metadata(place)
    except (OSError, ValueError, KeyError, TypeError) as error:
        yield Problem(place / "metadata.json", f"cannot be read ({type(error).__name__})", "repair")
    if descriptor is not None and descriptor.hash != place.name:
        yield Problem(place / "metadata.json", f"describes {descriptor.hash}, in the folder of another")
    for path in layout.files_in(place, role):
        yield from _verify_file(path, place.name)
    for path in sorted(place.glob(f"*{DAMAGED}-*")):
        yield Problem(path, "was moved aside as damaged; what could be read of it is in the store")


def _verify_file(path: Path, descriptor_hash: str) -> Iterator[Problem]:
    try:
        db = schema.open_reader(path)
    except StoreError as error:
        yield Problem(path, str(error), None if "schema" in str(error) else "repair")
        return
    if db is None:
        return
    with closing(db):
        try:
            yield from _verify_rows(db, path, descriptor_hash)
        except sqlite3.DatabaseError as error:
            yield Problem(path, f"is damaged: {error}", "repair")


def _verify_rows(db: sqlite3.Connection, path: Path, descriptor_hash: str) -> Iterator[Problem]:
    checked = [row[0] for row in db.execute("PRAGMA integrity_check(5)")]
    if checked != ["ok"]:
        yield Problem(path, f"is damaged: {'; '.join(checked)}", "repair")
        return
    told = dict(db.execute("SELECT key, value FROM meta"))
    if told.get("descriptor_hash", descriptor_hash) != descriptor_hash:
        yield Problem(path, f"holds answers of {told['descriptor_hash']}, in the folder of another")
    wrong = Counter(
        "answers whose text has another hash than their key"
        for input_hash, input_text in db.execute("SELECT input_hash, input_text FROM responses")
        if digest(input_text) != input_hash
    )
    columns = ", ".join(schema.SUBJECT_COLUMNS)
    for key, input_hash, sample, *facts in db.execute(
        f"SELECT subject_key, input_hash, sample, {columns} FROM subjects"
    ):
        if Subject(*facts).key(input_hash, sample) != key:
            wrong["uses whose columns have another hash than their key"] += 1
    for what, sql in (
        ("uses without an answer", _LOOSE_SUBJECTS),
        ("answers that nothing uses", _LOOSE_ANSWERS),
    ):
        wrong[what] += db.execute(sql).fetchone()[0]
    for what, count in wrong.items():
        if count:
            yield Problem(path, f"{count:,} {what}", "repair")


_LOOSE_SUBJECTS = (
    "SELECT count(*) FROM subjects s WHERE NOT EXISTS (SELECT 1 FROM responses r "
    "WHERE r.input_hash = s.input_hash AND r.sample = s.sample)"
)
_LOOSE_ANSWERS = (
    "SELECT count(*) FROM responses r WHERE NOT EXISTS (SELECT 1 FROM subjects s "
    "WHERE s.input_hash = r.input_hash AND s.sample = r.sample)"
)


@dataclass
class Repaired:
    """What became of one file. Counts are of answers."""

    path: Path
    aside: Path
    saved: int = 0
    lost: int | None = 0  # null where the file does not tell how many there were
    subjects: int = 0


def repair(root: Path, role: str) -> Iterator[Repaired]:
    """Make anew every file that is not sound, from what can be read of it."""
    for place in sorted((root / role).glob("*/*/*")):
        if not place.is_dir():
            continue
        _repair_metadata(place, role)
        for path in layout.files_in(place, role):
            if any(problem.mended_by == "repair" for problem in _verify_file(path, place.name)):
                yield _repair_file(path, role)


def _repair_metadata(place: Path, role: str) -> None:
    try:
        layout.read_metadata(place)
        return
    except (OSError, ValueError, KeyError, TypeError):
        pass
    for path in layout.files_in(place, role):
        try:
            with closing(sqlite3.connect(path)) as db:
                told = db.execute("SELECT value FROM meta WHERE key = 'descriptor'").fetchone()
        except sqlite3.Error:
            continue
        if told is not None:
            (place / "metadata.json").unlink(missing_ok=True)
            layout.write_metadata(place, Descriptor.from_json(told[0]))
            return
    raise StoreError(
        f"{place} has no readable metadata.json, and no file in it says what model it is of: restore "
        "metadata.json from a copy."
    )


def _repair_file(path: Path, role: str) -> Repaired:
    descriptor = layout.read_metadata(path.parent)
    aside = _move_aside(path)
    done = Repaired(path, aside)
    with (
        closing(database.opened(path, role, descriptor)) as new,
        closing(sqlite3.connect(f"file:{aside}?mode=rw", uri=True)) as old,
    ):
        old.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
        try:
            done.lost = int(old.execute("SELECT count(*) FROM responses").fetchone()[0])
        except sqlite3.Error:
            done.lost = None
        tables = {name: list(_readable(old, name)) for name in ("responses", "subjects", "tombstones")}
        answers = [_in_order(row, schema.ANSWER_COLUMNS) for row in tables["responses"]]
        subjects = [_in_order(row, schema.subjects.columns.keys()) for row in tables["subjects"]]
        buried = [_in_order(row, ("scope", "key", "deleted_at")) for row in tables["tombstones"]]
        merged = merging.into(
            new,
            descriptor,
            [row for row in answers if _whole(row)],
            [row for row in subjects if _genuine(row)],
            buried,
            Rules(),
        )
        for name in ("attempts", "superseded"):
            columns = schema.metadata.tables[name].columns.keys()
            put = schema.insert(name, columns)
            for row in _readable(old, name):
                try:
                    new.execute(put, _in_order(row, columns))
                except sqlite3.Error:
                    continue
    done.saved, done.subjects = merged.answers, merged.subjects
    if done.lost is not None:
        done.lost -= done.saved
    return done


def _move_aside(path: Path) -> Path:
    stamp = schema.now().replace(":", "").replace(".", "")
    aside = path.with_name(f"{path.name}{DAMAGED}-{stamp}")
    for suffix in ("-wal", "-shm", ""):  # the log belongs to the file and is read with it
        beside = path.with_name(path.name + suffix)
        if beside.exists():
            beside.rename(aside.with_name(aside.name + suffix))
    return aside


def _readable(db: sqlite3.Connection, table: str) -> Iterator[dict[str, Any]]:
    """Every row of a table that can be read: from its beginning, from its end, then one by one."""
    last = 0
    db.row_factory = sqlite3.Row
    try:
        for row in db.execute(f"SELECT rowid AS _row, * FROM {table} ORDER BY rowid"):
            last = row["_row"]
            yield dict(row)
        return
    except sqlite3.Error:
        pass
    first = EVERYTHING
    try:
        for row in db.execute(f"SELECT rowid AS _row, * FROM {table} ORDER BY rowid DESC"):
            if row["_row"] <= last:
                return
            first = row["_row"]
            yield dict(row)
    except sqlite3.Error:
        pass
    for number in range(last + 1, min(first, last + GAP)):
        try:
            row = db.execute(f"SELECT rowid AS _row, * FROM {table} WHERE rowid = ?", (number,)).fetchone()
        except sqlite3.Error:
            continue
        if row is not None:
            yield dict(row)


def _in_order(row: dict[str, Any], columns: Any) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in columns)


def _whole(row: tuple[Any, ...]) -> bool:
    """Whether an answer's columns are of their types, and as many as must be there."""
    facts = dict(zip(schema.ANSWER_COLUMNS, row, strict=True))
    texts = ("input_hash", "input_text", "output", "origin", "created_at", "created_by", "run_id")
    return isinstance(facts["sample"], int) and all(_is_text(facts[name]) for name in texts)


def _genuine(row: tuple[Any, ...]) -> bool:
    key, input_hash, sample, *facts, _ = row
    try:
        return bool(Subject(*facts).key(input_hash, sample) == key)
    except (TypeError, ValueError):
        return False


def _is_text(value: Any) -> bool:
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:  # bytes that are no UTF-8
        return False


@dataclass
class Compacted:
    """What one descriptor's files came to."""

    place: Path
    before: int  # bytes
    after: int
    folded: int = 0  # segments
    conflicts: int = 0
    still_open: tuple[str, ...] = ()  # segments that another process may be writing


def compact(root: Path, role: str, *, force: bool = False) -> Iterator[Compacted]:
    """Fold segments into their database and give back what deletions left free.

    A segment that was not closed is folded only if its writer is known to be dead, or under `force`.
    """
    for place in sorted((root / role).glob("*/*/*")):
        files = layout.files_in(place, role)
        if not files:
            continue
        done = Compacted(place, sum(path.stat().st_size for path in files), 0)
        descriptor = layout.read_metadata(place)
        main = layout.database(root, role, descriptor)
        with closing(database.opened(main, role, descriptor)) as db:
            for path in files:
                if not database.is_segment(path):
                    continue
                if not force and not _is_over(path):
                    done.still_open = (*done.still_open, path.name)
                    continue
                with merging.reading(path) as rows:
                    if rows is not None:
                        done.conflicts += len(merging.into(db, descriptor, *rows, Rules()).conflicts)
                        _carry(db, path)
                for suffix in ("-journal", "-wal", "-shm", ""):
                    path.with_name(path.name + suffix).unlink(missing_ok=True)
                done.folded += 1
            db.execute("DELETE FROM claims WHERE expires_at < ?", (time.time(),))
            db.execute("VACUUM")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        done.after = sum(path.stat().st_size for path in layout.files_in(place, role))
        yield done


def _carry(db: sqlite3.Connection, path: Path) -> None:
    """What a merge leaves behind: failed tries, superseded answers and canaries of a segment."""
    db.execute("ATTACH ? AS segment", (str(path),))
    try:
        for name in ("attempts", "superseded", "canaries"):
            columns = ", ".join(schema.metadata.tables[name].columns.keys())
            db.execute(f"INSERT INTO main.{name} ({columns}) SELECT {columns} FROM segment.{name}")
    finally:
        db.execute("DETACH segment")


def _is_over(path: Path) -> bool:
    db = schema.open_reader(path)
    if db is None:
        return False
    with closing(db):
        told = dict(db.execute("SELECT key, value FROM meta WHERE key IN ('closed', 'owner')"))
    return "closed" in told or ("owner" in told and not is_alive(told["owner"]))
