"""Stored rows as parquet files that can be passed on: their names, columns and checks.

    {role}/{provider}/{model}/{descriptor_hash}/metadata.json
    {role}/{provider}/{model}/{descriptor_hash}/{answers|subjects|tombstones}-{hash of the content}.parquet

Files are named by their content, so that nothing is ever overwritten and a collection grows by files. What
comes in is checked against every name that it claims: the file's, the folder's, the descriptor's, each
row's. This file does not know where the files travel; `packing` writes them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from judgebench.errors import StoreError
from judgebench.request import Descriptor, Subject
from judgebench.store import layout, schema
from judgebench.tables import declare, name_and_version

Row: TypeAlias = tuple[Any, ...]

VERSION = 1
GROUP_ROWS = 10_000  # of a row group: what a viewer reads for a page, and what is in memory at once
METADATA = "metadata.json"

_PATH = re.compile(
    r"(?P<folder>(?P<role>completions|judgements)/[^/]+/[^/]+/(?P<descriptor>[0-9a-f]{24}))/"
    r"(?:metadata\.json|(?P<kind>[a-z]+)-(?P<digest>[0-9a-f]{32})\.parquet)"
)
_KINDS: dict[type, pa.DataType] = {str: pa.string(), int: pa.int64(), float: pa.float64()}


def _declared(kind: str, names: Sequence[str], columns: Any) -> pa.Schema:
    fields = [(name, _KINDS[columns[name].type.python_type], bool(columns[name].nullable)) for name in names]
    return declare(f"store_{kind}", VERSION, fields)


SUBJECT_ROW = tuple(schema.subjects.columns.keys())
TOMBSTONE_ROW = tuple(schema.tombstones.columns.keys())
SCHEMAS = {
    "answers": _declared("answers", schema.ANSWER_COLUMNS, schema.responses.columns),
    "subjects": _declared("subjects", SUBJECT_ROW, schema.subjects.columns),
    "tombstones": _declared("tombstones", TOMBSTONE_ROW, schema.tombstones.columns),
}
KEY_COLUMNS = ("input_hash", "sample", "created_at")  # of answers: what tells whether they are there


class Piece(NamedTuple):
    """A file of a collection by its path; `kind` and `digest` are null for `metadata.json`."""

    path: str
    folder: str
    role: str
    descriptor_hash: str
    kind: str | None
    digest: str | None


def piece(path: str) -> Piece | None:
    """A path of a collection in parts, or null for a file that is not part of one.

    Raises:
        StoreError: a kind of file that a newer judgebench wrote.
    """
    match = _PATH.fullmatch(path)
    if match is None:
        return None
    if match["kind"] is not None and match["kind"] not in SCHEMAS:
        raise StoreError(
            f"{path}: files of the kind {match['kind']!r} are not known here. They were written by a newer "
            "judgebench: upgrade to read them (pip install -U judgebench)."
        )
    return Piece(path, match["folder"], match["role"], match["descriptor"], match["kind"], match["digest"])


@dataclass
class Known:
    """What a collection holds of one descriptor."""

    answers: dict[tuple[str, int], str] = field(default_factory=dict)  # (input_hash, sample) -> bought at
    subjects: set[str] = field(default_factory=set)
    tombstones: dict[tuple[str, str], str] = field(default_factory=dict)  # (scope, key) -> deleted at

    def add_answers(self, rows: Iterable[Row]) -> None:
        """Take in rows of `KEY_COLUMNS`."""
        for input_hash, sample, bought_at in rows:
            key = (input_hash, sample)
            self.answers[key] = max(bought_at, self.answers.get(key, ""))

    def add_tombstones(self, rows: Iterable[Row]) -> None:
        """Take in rows of `TOMBSTONE_ROW`."""
        for scope, key, deleted_at in rows:
            self.tombstones[scope, key] = max(deleted_at, self.tombstones.get((scope, key), ""))

    def buried(self, input_hash: str, sample: int, bought_at: str, subject_key: str | None = None) -> bool:
        """Whether an answer of that instant, or this use of it, was deleted after it was bought."""
        answer = self.tombstones.get(("answer", f"{input_hash}:{sample}"), "")
        subject = "" if subject_key is None else self.tombstones.get(("subject", subject_key), "")
        return bought_at <= max(answer, subject)

    def holds(self, input_hash: str, sample: int) -> bool:
        """Whether an answer is there and not deleted."""
        bought_at = self.answers.get((input_hash, sample))
        return bought_at is not None and not self.buried(input_hash, sample, bought_at)


def name_of(path: Path) -> str:
    """The part of a file's name that its content gives."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:32]


def read_descriptor(path: str, file: Path) -> Descriptor:
    """The descriptor of a `metadata.json` at a path of a collection.

    Raises:
        StoreError: it is not the one that the folder is named after, or a newer judgebench wrote it.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        descriptor = Descriptor(**content["descriptor"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{path} holds no descriptor that this judgebench knows ({type(error).__name__}). If a newer "
            "one wrote it, upgrade (pip install -U judgebench)."
        ) from None
    found = piece(path)
    assert found is not None
    if layout.folder(Path(), found.role, descriptor).as_posix() != found.folder:
        raise StoreError(
            f"{path} describes {descriptor.provider}/{descriptor.model} ({descriptor.hash}), which does not "
            "belong into that folder. It is not what judgebench wrote: nothing of it is taken."
        )
    return descriptor


def check(path: str, file: Path) -> None:
    """Look at a file at a path of a collection before anything of it is taken.

    Raises:
        StoreError: its content is not what its name says, or a newer judgebench wrote it.
    """
    found = piece(path)
    assert found is not None
    if name_of(file) != found.digest:
        raise StoreError(
            f"{path}: its content does not have the hash in its name. It was changed or cut short: "
            "nothing of it is taken."
        )
    with open(file, "rb") as source:
        _opened(path, source)


def read(path: str, source: Path | BinaryIO, columns: Sequence[str] | None = None) -> Iterator[Row]:
    """The rows of a file; only the parts that hold these columns are read. See `check`."""
    if isinstance(source, Path):
        with open(source, "rb") as file:
            yield from read(path, file, columns)
        return
    parquet = _opened(path, source)
    names = list(columns or parquet.schema_arrow.names)
    try:
        for batch in parquet.iter_batches(GROUP_ROWS, columns=names):
            yield from zip(*(batch.column(name).to_pylist() for name in names), strict=True)
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise StoreError(f"{path} cannot be read: {type(error).__name__}: {error}") from None


def _opened(path: str, source: BinaryIO) -> pq.ParquetFile:
    found = piece(path)
    assert found is not None
    assert found.kind is not None
    try:
        parquet = pq.ParquetFile(source)
    except (OSError, pa.ArrowException) as error:
        raise StoreError(f"{path} cannot be read as parquet: {error}") from None
    name, version = name_and_version(parquet.schema_arrow.metadata, path)
    if version > VERSION:
        raise StoreError(
            f"{path} holds {name}/{version}; this judgebench knows up to version {VERSION}. Upgrade it "
            "(pip install -U judgebench). Nothing of it is taken."
        )
    if name != f"store_{found.kind}" or not parquet.schema_arrow.equals(SCHEMAS[found.kind]):
        raise StoreError(f"{path} does not have the columns of {found.kind}: nothing of it is taken.")
    return parquet


def honest_subjects(descriptor: Descriptor, rows: Iterable[Row], forged: list[str]) -> Iterator[Row]:
    """Uses whose key is the hash of what they say; the keys of others are added to `forged`."""
    for row in rows:
        if Subject._make(row[3:-1]).key(row[1], row[2]) == row[0]:
            yield row
        else:
            forged.append(f"{descriptor.hash}:{row[1]}:{row[2]} (subject {row[0]})")


def in_force(known: Known, uses: Mapping[str, tuple[str, int]]) -> list[tuple[str, str, str]]:
    """Tombstones without those of uses whose answer was bought anew later. `uses`: subject_key -> answer."""
    return [
        (scope, key, deleted_at)
        for (scope, key), deleted_at in sorted(known.tombstones.items())
        if scope == "answer" or known.answers.get(uses.get(key, ("", 0)), "") <= deleted_at
    ]
