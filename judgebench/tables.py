"""The files of a run: declared schemas, and parquet that holds exactly that.

Every file has a schema declared in advance with a name and a version in its metadata
(`judgebench_schema: leaderboard/1`), so an all-null column keeps its type and a value of another type is
refused before anything is written. Identical content gives identical bytes: no times, no host, no
pandas index. Files appear whole or not at all.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral, Real
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from judgebench.errors import DataError, choices
from judgebench.verdict import VERDICT_SCHEMA

SCHEMA_KEY = b"judgebench_schema"
PROVENANCE_KEY = b"judgebench_provenance"
_TYPES: dict[str, pa.DataType] = {
    "text": pa.string(),
    "real": pa.float64(),
    "count": pa.int64(),
    "flag": pa.bool_(),
}


def declare(name: str, version: int, fields: Iterable[tuple[str, pa.DataType, bool]]) -> pa.Schema:
    """A schema of (column, type, nullable) fields with its name and version in the metadata."""
    declared = [pa.field(column, kind, nullable=nullable) for column, kind, nullable in fields]
    return pa.schema(declared, metadata={SCHEMA_KEY: f"{name}/{version}".encode()})


def _fields(text: str) -> list[tuple[str, pa.DataType, bool]]:
    """Fields written as `column type` or, nullable, `column type?`."""
    words = text.split()
    pairs = zip(words[::2], words[1::2], strict=True)
    return [(column, _TYPES[kind.rstrip("?")], kind.endswith("?")) for column, kind in pairs]


LEADERBOARD = declare(
    "leaderboard",
    1,
    _fields("""
    model text  benchmark text  protocol text  judge text  baseline text?  reader text?
    win_rate real?  low real?  high real?  standard_error real?
    n_wins count?  n_losses count?  n_draws count?  n_total count  n_asked count  coverage real
    discrete_win_rate real?  mean_score real?  score_low real?  score_high real?  score_standard_error real?
    consistency real?  judge_failure_share real  refusal_share real  truncation_share real
    avg_length count  n_clusters count  confidence real  interval text
"""),
)
METRICS = declare(
    "metrics",
    1,
    _fields(
        "benchmark text  protocol text  judge text  model text  baseline text?  metric text  category text?"
        " value real?  low real?  high real?  standard_error real?  n count  coverage real"
    ),
)
COMPLETIONS = declare(
    "completions",
    1,
    _fields("""
        benchmark text  role text  model text  instruction_id text  turn count  sample count
        output text?  finish_reason text?  origin text?  reason text?  chars count
        descriptor text  input_hash text?
    """),
)
JUDGE_CHECK = declare(
    "judge_check",
    1,
    _fields("""
        benchmark text  protocol text  judge text  category text?  accuracy real?  low real?  high real?
        standard_error real?  n count  n_asked count  coverage real  n_correct count  n_ties count
        n_wrong count  n_clusters count  first_slot_share real?
    """),
)

_ALWAYS = frozenset(
    """
    verdict_key benchmark protocol judge instruction_id turn cluster_id candidate model_a
    candidate_sample sample reader template_hash judge_descriptor candidate_chars baseline_chars
    candidate_truncated
    """.split()
)
_KINDS = {"text": "text", "int": "count", "float": "real", "bool": "flag"}
VERDICTS = declare(
    "verdicts",
    1,
    [(name, _TYPES[_KINDS[kind]], name not in _ALWAYS) for name, kind in VERDICT_SCHEMA.items()],
)
_KNOWN = {
    "leaderboard": LEADERBOARD,
    "metrics": METRICS,
    "verdicts": VERDICTS,
    "completions": COMPLETIONS,
    "judge_check": JUDGE_CHECK,
}


def write_parquet(
    frame: pd.DataFrame,
    path: str | os.PathLike[str],
    schema: pa.Schema,
    provenance: Mapping[str, str] | None = None,
) -> None:
    """Write a frame with exactly the columns of a schema: zstd, whole or not at all.

    NaN and None are null. Lone surrogates, which no file can hold, become U+FFFD. The provenance must be
    derived from content (versions, hashes, pins), never from the clock, or identical runs will differ.

    Raises:
        DataError: a column is missing, unknown or twice there, or holds a value of another type or a null
            where none is allowed; the message names the column and the row.
    """
    name_and_version(schema.metadata, "The schema given to write_parquet")
    names = [field.name for field in schema]
    for name in frame.columns:
        if name not in names:
            raise DataError(f"Column {choices(name, names)}")
        if list(frame.columns).count(name) > 1:
            raise DataError(f"Column {name!r} is there twice.")
    if absent := [name for name in names if name not in frame]:
        raise DataError(f"Column {absent[0]!r} is missing; {os.fspath(path)} needs {', '.join(names)}.")
    metadata = dict(schema.metadata)
    metadata[PROVENANCE_KEY] = json.dumps(
        dict(provenance or {}), sort_keys=True, ensure_ascii=False, separators=(",", ":")
    ).encode()
    arrays = [_array(frame[field.name], field) for field in schema]
    table = pa.Table.from_arrays(arrays, schema=schema.with_metadata(metadata))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", version="2.6", row_group_size=1 << 17)
    replace(Path(path), sink.getvalue().to_pybytes())


def read_parquet(path: str | os.PathLike[str], schema: pa.Schema | None = None) -> pd.DataFrame:
    """A frame written by `write_parquet`; columns that may be null are nullable (Int64, boolean, …).

    Args:
        path: of the file.
        schema: what it must be; without it, any schema of this file in the version known here.

    Raises:
        DataError: no such file, no parquet, or written under another schema or version.
    """
    try:
        table = pq.read_table(os.fspath(path))
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{os.fspath(path)} cannot be read as parquet: {error}") from None
    name, version = name_and_version(table.schema.metadata, os.fspath(path))
    if schema is not None:
        wanted, known = name_and_version(schema.metadata, "The schema given to read_parquet")
    elif name in _KNOWN:
        wanted, known = name_and_version(_KNOWN[name].metadata, name)
        schema = _KNOWN[name]
    else:
        raise DataError(f"{os.fspath(path)}: schema {choices(name, _KNOWN)} Pass its schema to read it.")
    if (name, version) != (wanted, known):
        newer = " It was written by a newer judgebench: upgrade to read it." if version > known else ""
        raise DataError(f"{os.fspath(path)} holds {name}/{version}, not {wanted}/{known}.{newer}")
    if not table.schema.equals(schema, check_metadata=False):
        raise DataError(f"{os.fspath(path)} says {name}/{version}, but its columns are others.")
    return pd.DataFrame(
        {
            field.name: table[field.name].to_pandas(
                types_mapper=_NULLABLE.get if field.nullable else None  # else an Int with nulls turns float
            )
            for field in schema
        }
    )


def provenance(path: str | os.PathLike[str]) -> dict[str, str]:
    """What `write_parquet` was told about the origin of a file."""
    metadata = pq.read_schema(os.fspath(path)).metadata or {}
    found: dict[str, str] = json.loads(metadata.get(PROVENANCE_KEY, b"{}"))
    return found


_NULLABLE = {
    pa.int32(): pd.Int32Dtype(),
    pa.int64(): pd.Int64Dtype(),
    pa.bool_(): pd.BooleanDtype(),
}
SURROGATE = re.compile("[\ud800-\udfff]")


def name_and_version(metadata: Mapping[bytes, bytes] | None, where: str) -> tuple[str, int]:
    """Which schema a file's metadata say it has. Raises `DataError` where they say nothing."""
    name, _, version = (metadata or {}).get(SCHEMA_KEY, b"").decode().partition("/")
    if not version.isdecimal():
        raise DataError(f"{where} has no {SCHEMA_KEY.decode()} in its metadata: not a file of judgebench.")
    return name, int(version)


def _fits(value: object, kind: pa.DataType) -> bool:
    """Whether Arrow may convert a value: alone it parses '8' as 8.0, takes True for 1.0, cuts 2.5 to 2."""
    if pa.types.is_string(kind):
        return isinstance(value, str)
    if pa.types.is_boolean(kind):
        return isinstance(value, bool | np.bool_)
    if isinstance(value, bool):
        return False
    if pa.types.is_integer(kind):
        return isinstance(value, Integral) or (isinstance(value, Real) and float(value).is_integer())
    return isinstance(value, Real) if pa.types.is_floating(kind) else True


def _array(column: pd.Series, field: pa.Field[Any]) -> pa.Array[Any]:
    if column.dtype == object and pa.types.is_string(field.type):
        column = column.map(lambda x: SURROGATE.sub("\ufffd", x) if isinstance(x, str) else x)
    null = column.isna().to_numpy()
    if not field.nullable and null.any():
        raise DataError(f"Column {field.name!r} is null in row {int(null.argmax())}; it may not be.")
    rows = np.flatnonzero(~null)
    for row in rows if column.dtype == object else rows[:1]:
        if not _fits(value := column.iloc[row], field.type):
            raise DataError(f"Column {field.name!r}, row {row}: {value!r} is not of type {field.type}.")
    try:
        array = pa.Array.from_pandas(column, type=field.type)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        for row in rows:
            try:
                pa.Array.from_pandas(column.iloc[row : row + 1], type=field.type)
            except (pa.ArrowException, OverflowError, TypeError, ValueError):
                wrong = f"row {row}: {column.iloc[row]!r} is not of type {field.type}"
                raise DataError(f"Column {field.name!r}, {wrong}.") from None
        raise DataError(f"Column {field.name!r} is not of type {field.type}: {error}") from None
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def replace(path: Path, content: bytes) -> None:
    """A file appears whole under its name, also after a crash or a power cut, with the user's umask."""
    with appearing(path) as file:
        file.write(content)


@contextmanager
def appearing(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which appears whole under its name when the block ends, as `replace` has it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    if hasattr(os, "O_DIRECTORY"):  # not on Windows, where the rename itself is durable
        folder = os.open(path.parent, os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
