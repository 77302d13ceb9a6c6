"""Choosing stored rows and writing them into files that can be passed on: see `parcel`.

The same rows give the same bytes: sorted by key, in row groups of a fixed size. Writers may go on meanwhile:
each database is read in one transaction.
"""

from __future__ import annotations

import heapq
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import groupby, islice
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from judgebench.request import Descriptor
from judgebench.store import layout, schema
from judgebench.store.deletion import Condition
from judgebench.store.parcel import GROUP_ROWS, SCHEMAS, SUBJECT_ROW, Known, Row, name_of

FILE_ROWS = 200_000
_BOUGHT_AT = schema.ANSWER_COLUMNS.index("created_at")


class Choice(Protocol):
    """Which rows of a role are meant."""

    def fits(self, descriptor: Descriptor) -> bool:
        """Whether rows of this descriptor may be meant."""

    def pick(self, db: sqlite3.Connection, role: str, descriptor: Descriptor) -> Iterable[Row]:
        """The meant rows of a database as subject_key, input_hash, sample."""

    @property
    def whole(self) -> bool:
        """Whether nothing is left out, deletions included."""


@dataclass(frozen=True)
class Everything:
    """All rows."""

    whole: bool = True

    def fits(self, descriptor: Descriptor) -> bool:
        """Every descriptor."""
        return True

    def pick(self, db: sqlite3.Connection, role: str, descriptor: Descriptor) -> Iterable[Row]:
        """Every answer, those without a use too."""
        return db.execute(
            "SELECT s.subject_key, r.input_hash, r.sample FROM responses r LEFT JOIN subjects s "
            "ON s.input_hash = r.input_hash AND s.sample = r.sample"
        )


@dataclass(frozen=True)
class Matching:
    """Rows of the view that a condition selects."""

    wanted: Condition
    whole: bool = False

    def fits(self, descriptor: Descriptor) -> bool:
        """Whether a descriptor has the wanted settings."""
        return self.wanted.fits(descriptor)

    def pick(self, db: sqlite3.Connection, role: str, descriptor: Descriptor) -> Iterable[Row]:
        """The rows that the condition selects."""
        return db.execute(
            f"SELECT subject_key, input_hash, sample FROM {role} WHERE {self.wanted.sql}", self.wanted.values
        )


@dataclass(frozen=True)
class Named:
    """Answers by key, and those of their uses that `own` tells from a descriptor's hash and a row."""

    answers: Mapping[str, Set[tuple[str, int]]]  # descriptor hash -> (input_hash, sample)
    own: Callable[[str, Row], bool]
    whole: bool = False

    def fits(self, descriptor: Descriptor) -> bool:
        """Whether answers of this descriptor are named."""
        return descriptor.hash in self.answers

    def pick(self, db: sqlite3.Connection, role: str, descriptor: Descriptor) -> Iterator[Row]:
        """The named answers, then their uses."""
        wanted = self.answers[descriptor.hash]
        for key in db.execute("SELECT input_hash, sample FROM responses"):
            if key in wanted:
                yield (None, *key)
        for row in db.execute(f"SELECT {', '.join(SUBJECT_ROW)} FROM subjects"):
            if row[1:3] in wanted and self.own(descriptor.hash, row):
                yield row[:3]

    def lacking(self, found: Mapping[str, int]) -> dict[str, int]:
        """Descriptors of which a store lacks answers, and how many. `found`: those it has, by descriptor."""
        lacking = {name: len(keys) - found.get(name, 0) for name, keys in self.answers.items()}
        return {name: count for name, count in sorted(lacking.items()) if count}


class Shelf:
    """One descriptor's rows in a root as of one instant, whoever writes meanwhile."""

    def __init__(self, descriptor: Descriptor, role: str, dbs: Sequence[sqlite3.Connection]) -> None:
        self.descriptor, self.role = descriptor, role
        self.folder = layout.folder(Path(), role, descriptor).as_posix()
        self._dbs = dbs

    def pick(self, choice: Choice) -> int:
        """Choose rows; gives how many answers are meant."""
        for db in self._dbs:
            rows = iter(choice.pick(db, self.role, self.descriptor))
            db.execute("CREATE TEMP TABLE picked (subject_key, input_hash, sample)")
            while some := list(islice(rows, GROUP_ROWS)):
                db.executemany("INSERT INTO picked VALUES (?, ?, ?)", some)
            db.execute("CREATE INDEX temp.picked_answers ON picked (input_hash, sample)")
            db.execute("CREATE INDEX temp.picked_subjects ON picked (subject_key)")
        return sum(1 for _ in self._sorted("SELECT DISTINCT input_hash, sample FROM picked ORDER BY 1, 2", 2))

    def answers(self) -> Iterator[Row]:
        """The chosen answers in the order of `ANSWER_COLUMNS`, sorted by key."""
        return self._sorted(
            f"SELECT {', '.join(schema.ANSWER_COLUMNS)} FROM responses WHERE (input_hash, sample) IN "
            "(SELECT input_hash, sample FROM picked) ORDER BY input_hash, sample",
            2,
        )

    def subjects(self) -> Iterator[tuple[Row, str]]:
        """The chosen uses in the order of `SUBJECT_ROW`, sorted by key, with when their answer was bought."""
        rows = self._sorted(
            f"SELECT {', '.join(f's.{name}' for name in SUBJECT_ROW)}, r.created_at FROM subjects s "
            "JOIN responses r ON r.input_hash = s.input_hash AND r.sample = s.sample "
            "WHERE s.subject_key IN (SELECT subject_key FROM picked) ORDER BY s.subject_key",
            1,
        )
        return ((row[:-1], row[-1]) for row in rows)

    def tombstones(self) -> Iterator[Row]:
        """What was deleted, sorted by key."""
        return self._sorted("SELECT scope, key, deleted_at FROM tombstones ORDER BY scope, key", 2)

    def _sorted(self, sql: str, width: int) -> Iterator[Row]:
        """Rows of all databases in one order, each key once."""
        merged = heapq.merge(*(db.execute(sql) for db in self._dbs), key=lambda row: row[:width])
        return (next(same) for _, same in groupby(merged, key=lambda row: row[:width]))


@contextmanager
def shelves(root: Path, role: str, choice: Choice) -> Iterator[list[Shelf]]:
    """The descriptors of a role of which rows are meant; each database is read in one transaction."""
    with ExitStack() as stack:
        found: list[Shelf] = []
        for place, paths in groupby(layout.databases(root, role), key=lambda path: path.parent):
            descriptor = layout.read_metadata(place)
            if not choice.fits(descriptor):
                continue
            dbs = []
            for path in paths:
                db = schema.open_reader(path)
                if db is not None:
                    stack.callback(db.close)
                    db.execute("BEGIN")
                    db.execute("SELECT 1 FROM responses LIMIT 1").fetchone()  # the snapshot begins here
                    dbs.append(db)
            if dbs:
                found.append(Shelf(descriptor, role, dbs))
        yield found


@dataclass
class Packed:
    """New rows of one descriptor as files below a folder: path in the collection -> file."""

    files: dict[str, Path] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SCHEMAS, 0))
    known: int = 0  # answers that are there already
    buried: int = 0  # rows that were deleted there
    uses: Counter[Row] = field(default_factory=Counter)  # (benchmark, model_a, model_b) of new subjects


def pack(
    shelf: Shelf, known: Known, place: Path, *, deletions: bool, look: Callable[[str, Row], None]
) -> Packed:
    """Write the chosen rows that a collection does not hold yet; what was deleted there stays away.

    Args:
        deletions: write tombstones too.
        look: is shown each row that is written, with its kind.
    """
    packed = Packed()

    def answers() -> Iterator[Row]:
        for row in shelf.answers():
            if known.buried(row[0], row[1], row[_BOUGHT_AT]):
                packed.buried += 1
            elif known.holds(row[0], row[1]):
                packed.known += 1
            else:
                yield row

    def subjects() -> Iterator[Row]:
        for row, bought_at in shelf.subjects():
            if known.buried(row[1], row[2], bought_at, row[0]):
                packed.buried += 1
            elif row[0] not in known.subjects:
                packed.uses[row[3], row[6], row[7]] += 1
                yield row

    def tombstones() -> Iterator[Row]:
        return (row for row in shelf.tombstones() if known.tombstones.get(row[:2], "") < row[2])

    sources = {"answers": answers(), "subjects": subjects()} | (
        {"tombstones": tombstones()} if deletions else {}
    )
    for kind, rows in sources.items():
        for digest, file, count in _write(place, kind, _shown(kind, rows, look)):
            packed.files[f"{shelf.folder}/{kind}-{digest}.parquet"] = file
            packed.rows[kind] += count
    return packed


def _shown(kind: str, rows: Iterable[Row], look: Callable[[str, Row], None]) -> Iterator[Row]:
    for row in rows:
        look(kind, row)
        yield row


def _write(place: Path, kind: str, rows: Iterator[Row]) -> Iterator[tuple[str, Path, int]]:
    """Parquet files of at most `FILE_ROWS` rows: the hash of their content, where they are, how many rows."""
    declared = SCHEMAS[kind]
    first = next(rows, None)
    while first is not None:
        count = 0
        unnamed = place / "unnamed.parquet"
        with pq.ParquetWriter(unnamed, declared, compression="zstd", version="2.6") as file:
            while first is not None and count < FILE_ROWS:
                group = [first, *islice(rows, min(GROUP_ROWS, FILE_ROWS - count) - 1)]
                columns = [
                    pa.array(column, part.type)
                    for column, part in zip(zip(*group, strict=True), declared, strict=True)
                ]
                file.write_table(pa.Table.from_arrays(columns, schema=declared), row_group_size=len(group))
                count += len(group)
                first = next(rows, None)
        named = name_of(unnamed)
        yield named, unnamed.replace(place / f"{kind}-{named}.parquet"), count
