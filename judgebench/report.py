"""Typed tables out: parquet for programs, and tables for people.

Every file has a schema declared in advance with a name and a version in its metadata
(`judgebench_schema: leaderboard/1`), so an all-null column keeps its type and a value of another type is
refused before anything is written. Identical content gives identical bytes: no times, no host, no
pandas index. Files are UTF-8 on every platform and appear whole or not at all.

Names of models, judges and benchmarks are other people's text. They are shown literally everywhere:
control characters, ANSI sequences and line breaks as escapes, markup of a terminal, Markdown, HTML or
a spreadsheet without effect. This file does not know how the numbers come about.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from judgebench.errors import DataError, choices

SCHEMA_KEY = b"judgebench_schema"
PROVENANCE_KEY = b"judgebench_provenance"
_TYPES: dict[str, pa.DataType] = {"text": pa.string(), "real": pa.float64(), "count": pa.int64()}


def declare(name: str, version: int, fields: Iterable[tuple[str, pa.DataType, bool]]) -> pa.Schema:
    """A schema of (column, type, nullable) fields with its name and version in the metadata."""
    declared = [pa.field(column, kind, nullable=nullable) for column, kind, nullable in fields]
    return pa.schema(declared, metadata={SCHEMA_KEY: f"{name}/{version}".encode()})


def _fields(text: str) -> list[tuple[str, pa.DataType, bool]]:
    """Fields written as `column type` or, nullable, `column type?`."""
    words = text.split()
    pairs = zip(words[::2], words[1::2], strict=True)
    return [(column, _TYPES[kind.rstrip("?")], kind.endswith("?")) for column, kind in pairs]


_LEADERBOARD = """
    model text  benchmark text  protocol text  judge text  baseline text?  reader text?
    win_rate real?  low real?  high real?  standard_error real?
    n_wins count?  n_losses count?  n_draws count?  n_total count  n_asked count  coverage real
    discrete_win_rate real?  mean_score real?  score_low real?  score_high real?  score_standard_error real?
    consistency real?  judge_failure_share real  refusal_share real  truncation_share real
    avg_length count  n_clusters count  confidence real  interval text
"""
LEADERBOARD = declare("leaderboard", 1, _fields(_LEADERBOARD))
COMBINED = declare("combined", 1, _fields("run text " + _LEADERBOARD))
METRICS = declare(
    "metrics",
    1,
    _fields(
        "benchmark text  protocol text  judge text  model text  baseline text?  metric text  category text?"
        " value real?  low real?  high real?  standard_error real?  n count  coverage real"
    ),
)
_KNOWN = {"leaderboard": LEADERBOARD, "combined": COMBINED, "metrics": METRICS}

# --- parquet ---------------------------------------------------------------------------------------


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
    _name_and_version(schema.metadata, "The schema given to write_parquet")
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
    _replace(Path(path), sink.getvalue().to_pybytes())


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
    name, version = _name_and_version(table.schema.metadata, os.fspath(path))
    if schema is not None:
        wanted, known = _name_and_version(schema.metadata, "The schema given to read_parquet")
    elif name in _KNOWN:
        wanted, known = _name_and_version(_KNOWN[name].metadata, name)
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


def combine(paths: Iterable[str | os.PathLike[str]]) -> pd.DataFrame:
    """The leaderboards of many runs in one frame (schema `COMBINED`: `run` first, then as written).

    Each path is a leaderboard file, or a folder: its own `leaderboard.parquet` if it has one, else all those
    below it, so that a sweep is one path. `run` is the folder as given (or found), with forward slashes; a
    file reached twice counts once. Sorted as one leaderboard, then by run.

    Raises:
        DataError: a path without any leaderboard.
    """
    found: dict[Path, str] = {}
    for path in map(Path, paths):
        own = path / "leaderboard.parquet" if path.is_dir() else path
        files = [own] if own.is_file() else sorted(path.rglob("leaderboard.parquet"))
        if not files:
            raise DataError(f"{os.fspath(path)!r} holds no leaderboard.parquet; give run folders or files.")
        for file in files:
            found.setdefault(file.resolve(), file.parent.as_posix())
    frames = [_as_run(read_parquet(file), run) for file, run in found.items()]
    if not frames:
        return COMBINED.empty_table().to_pandas()
    table = pd.concat(frames, ignore_index=True)
    keys = ["benchmark", "protocol", "judge", "_best", "model", "baseline", "run"]
    table["_best"] = -table["win_rate"].fillna(table["mean_score"])
    return table.sort_values(keys, ignore_index=True).drop(columns="_best")


def _as_run(frame: pd.DataFrame, run: str) -> pd.DataFrame:
    if "run" not in frame:
        frame.insert(0, "run", run)
    return frame


_NULLABLE = {
    pa.int32(): pd.Int32Dtype(),
    pa.int64(): pd.Int64Dtype(),
    pa.bool_(): pd.BooleanDtype(),
}
_SURROGATE = re.compile("[\ud800-\udfff]")


def _name_and_version(metadata: Mapping[bytes, bytes] | None, where: str) -> tuple[str, int]:
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
        column = column.map(lambda x: _SURROGATE.sub("\ufffd", x) if isinstance(x, str) else x)
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


def _replace(path: Path, content: bytes) -> None:
    """A file appears whole under its name, also after a crash or a power cut, with the user's umask."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
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


# --- tables for people -----------------------------------------------------------------------------

TRUNCATION_NOTED = 0.02  # a share of cut answers above this is said under the table
PLOT_FROM = 100  # columns of a terminal that has room for a picture of the intervals
PLOT_WIDTH = 25
_ASCII = str.maketrans("·–●─┊", "|-o-:")


class Section(NamedTuple):
    """One table: the cells are raw text, not yet made safe for where they will stand."""

    title: str
    head: list[str]
    cells: list[list[str]]
    notes: list[str]
    intervals: list[tuple[float, float, float]]  # low, value, high on 0 to 100; empty for scores


def sections(leaderboard: pd.DataFrame) -> Iterator[Section]:
    """What a person wants to see of a leaderboard (or several combined), a table per benchmark, protocol,
    judge and kind. Columns that say nothing here are left out; rank 1 is best, equal values share one."""
    pointwise = leaderboard["baseline"].isna().rename("pointwise")
    keys = [leaderboard["benchmark"], leaderboard["protocol"], leaderboard["judge"], pointwise]
    for (benchmark, protocol, judge, scored), part in leaderboard.groupby(keys, sort=False):
        names = ("mean_score", "score_low", "score_high") if scored else ("win_rate", "low", "high")
        value, low, high = (part[name].astype(float) for name in names)
        digits = 2 if scored else 1
        against = part["baseline"].dropna().unique()
        title = f"{benchmark} · {protocol} · judge {judge}"
        title += f" · against {against[0]}" if len(against) == 1 else ""
        level = ", ".join(f"{100 * x:g}" for x in part["confidence"].unique())
        ranks = value.rank(ascending=False, method="min")
        columns = {"#": [_shown(rank, 0, "–") for rank in ranks], "model": [*part["model"]]}
        if len(against) > 1:
            columns["against"] = [*part["baseline"]]
        if "run" in part:
            columns["run"] = [*part["run"]]
        columns["score" if scored else "win rate"] = [_shown(x, digits) for x in value]
        columns[f"{level} % interval"] = [_interval(*pair, digits) for pair in zip(low, high, strict=True)]
        columns["n"] = [f"{n:,}" for n in part["n_total"]]
        if (part["coverage"] < 1).any():
            # Rounded down: 99.96 % with a verdict is not all of them.
            columns["read"] = [f"{np.floor(1000 * x) / 10:.1f} %" if x < 1 else "" for x in part["coverage"]]
        if part["consistency"].notna().any():
            columns["agree"] = [_shown(100 * x, 0) + " %" * (x == x) for x in part["consistency"]]
        columns["length"] = [f"{n:,}" for n in part["avg_length"]]
        intervals = [] if scored else [*zip(low, value, high, strict=True)]
        cells = [list(row) for row in zip(*columns.values(), strict=True)]
        yield Section(title, list(columns), cells, _notes(part, bool(scored)), intervals)


def _notes(part: pd.DataFrame, scored: bool) -> list[str]:
    notes = []
    kinds = {
        "No verdict through the judge": (part["judge_failure_share"], 0.0),
        "Answers cut off": (part["truncation_share"], TRUNCATION_NOTED),
    }
    for text, (share, above) in kinds.items():
        named = part.assign(share=share)[share > above].sort_values("share", ascending=False, kind="stable")
        pairs = zip(named["model"], named["share"], strict=True)
        listed = [f"{model} {100 * share:.1f} %" for model, share in pairs]
        more = [f"{len(listed) - 4} more"] if len(listed) > 4 else []
        if listed:
            notes.append(f"{text}: {', '.join(listed[:4] + more)}.")
    if not scored and part["n_total"].any() and part["consistency"].isna().all():
        notes.append("Each pair was read in one order only: position bias cannot be seen here.")
    if part["consistency"].notna().any():
        notes.append("agree: the two orders of a pair name the same winner.")
    return notes


def terminal(leaderboard: pd.DataFrame, *, console: Console | None = None) -> None:
    """Print a leaderboard for people: colours on a terminal only, 80 columns are enough."""
    console = console or Console()
    if leaderboard.empty:
        console.print("No battles to rank.")
    for section in sections(leaderboard):
        console.print(_rich_table(section, console))


def _rich_table(section: Section, console: Console) -> Table:
    def text(raw: str, style: str = "") -> Text:
        # `Text` is never parsed for markup. What the terminal cannot encode is replaced, not raised.
        if not console.encoding.startswith("utf"):
            raw = raw.translate(_ASCII)
        return Text(literal(raw).encode(console.encoding, "backslashreplace").decode(console.encoding), style)

    table = Table(
        title=text(section.title, "bold"),
        title_justify="left",
        caption=text("", "dim")
        if not section.notes
        else Text("\n").join(text(x, "dim") for x in section.notes),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        header_style="bold",
    )
    plot = bool(section.intervals) and console.width >= PLOT_FROM
    styles = {"model": "cyan", "win rate": "bold", "score": "bold", "#": "dim", "run": "dim", "against": ""}
    for name in section.head:
        named = name in ("model", "run", "against")
        table.add_column(
            text(name),
            justify="left" if named else "right",
            style=styles.get(name, "dim" if "interval" in name else ""),
            overflow="fold",
            no_wrap=not named,
        )
    if plot:
        table.add_column(text(f"0{'50':^{PLOT_WIDTH - 4}}100"), no_wrap=True)
    for index, row in enumerate(section.cells):
        picture = [text(_picture(*section.intervals[index]), "dim")] if plot else []
        table.add_row(*[text(cell) for cell in row], *picture)
    return table


def _picture(low: float, value: float, high: float) -> str:
    """An interval drawn on a line from 0 to 100, with the middle marked."""
    line = [" "] * PLOT_WIDTH
    line[PLOT_WIDTH // 2] = "┊"
    if value == value:
        first, at, last = (round(x / 100 * (PLOT_WIDTH - 1)) for x in (low, value, high))
        line[first : last + 1] = "─" * (last + 1 - first)
        line[at] = "●"
    return "".join(line)


def _shown(value: float, digits: int, missing: str = "n/a") -> str:
    return f"{value:.{digits}f}" if value == value else missing


def _interval(low: float, high: float, digits: int) -> str:
    return f"[{low:.{digits}f}, {high:.{digits}f}]" if low == low else ""


def literal(text: str) -> str:
    """Text on one line in which every character is seen: others (control, ANSI, direction, newline) as
    escapes.

    >>> literal("a\\x1b[31m\\nb")
    'a\\\\x1b[31m\\\\nb'
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


# --- Markdown and CSV ------------------------------------------------------------------------------

# Entities are never markup in CommonMark, not even inside a table, where `\\|` depends on the reader.
_MARKUP = re.compile(r"[&<>|\\`*\[\]~$@!#]|(?<![^\W_])_|_(?![^\W_])|:(?=//)|(?<=www)\.", re.IGNORECASE)


def markdown(frame: pd.DataFrame) -> str:
    """A frame as GitHub tables: a leaderboard as `terminal` shows it, any other frame as it is."""
    if {"baseline", "win_rate", "n_total", "coverage"} <= set(frame):
        parts = [*sections(frame)]
    else:
        cells = [[_cell(value) for value in row] for row in frame.itertuples(index=False)]
        parts = [Section("", [*map(str, frame.columns)], cells, [], [])]
    return "\n".join(_pipe_table(part) for part in parts)


def _pipe_table(section: Section) -> str:
    left = ("model", "run", "against")
    number = [name not in left and bool(section.title) for name in section.head]
    rule = [("---:" if right else ":---") for right in number]
    rows = [section.head, *section.cells]
    lines = ["| " + " | ".join(_escaped(cell) for cell in row) + " |" for row in rows]
    lines.insert(1, "| " + " | ".join(rule) + " |")
    title = [f"### {_escaped(section.title)}", ""] if section.title else []
    notes = [line for note in section.notes for line in ("", _escaped(note))]
    return "\n".join([*title, *lines, *notes, ""])


def _escaped(text: str) -> str:
    return _MARKUP.sub(lambda found: f"&#{ord(found[0])};", literal(text))


def _cell(value: Any) -> str:
    if pd.isna(value):
        return ""
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:.1f}"
    return str(value)


def csv(frame: pd.DataFrame) -> str:
    """A frame as CSV, numbers in full. Text that a spreadsheet would run as a formula gets a leading
    apostrophe; control characters and line breaks are escaped, so a row is a line."""

    def safe(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        text = literal(value)
        return "'" + text if text.lstrip().startswith(tuple("=+-@＝＋－＠")) else text

    plain = frame.rename(columns=safe).astype(object).map(safe)
    return plain.to_csv(index=False, lineterminator="\n")


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write UTF-8 whatever the locale, whole or not at all; lone surrogates become U+FFFD."""
    _replace(Path(path), _SURROGATE.sub("\ufffd", text).encode("utf-8"))
