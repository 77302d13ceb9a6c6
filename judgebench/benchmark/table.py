"""Tables of benchmarks: a file in one of the field's layouts, as rows with our column names.

`columns` maps our names to the file's. What a row is for is not known here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from judgebench.benchmark.formats import FORMATS, Row
from judgebench.benchmark.source import Located, locate
from judgebench.errors import DataError, choices


@dataclass(frozen=True)
class Table:
    """A file of rows.

    Args:
        url: see `judgebench.benchmark.source`; `{model}` stands for a model's name, one file each.
        format: one of `FORMATS`; default: the file's ending.
        columns: our name -> the file's; names that are not mapped are taken as they are.
        where: keep the rows whose columns (the file's) have these values.
    """

    url: str
    format: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    where: Mapping[str, Any] = field(default_factory=dict)

    def read(self, data_dir: Path | None, **marks: str) -> tuple[list[Row], Located]:
        """The rows and where they came from. `marks` fill those of the URL: `model="m"` its `{model}`.

        Raises:
            Absent, Unreachable: the file cannot be had.
            DataError: no such format or column, or a file that does not parse.
        """
        located = self.locate(data_dir, **marks)
        return self._ours(_read(self._kind(located), located), located.path), located

    def read_of(self, model: str, data_dir: Path | None) -> tuple[list[Row], Located]:
        """The rows of one model, whose name stands in the column `model`; raises as `read` does."""
        located = self.locate(data_dir)
        kind, column = self._kind(located), self.columns.get("model", "model")
        return self._ours(_by_value(kind, located, column).get(model, []), located.path), located

    def locate(self, data_dir: Path | None, **marks: str) -> Located:
        """The file, unread; raises `Absent` and `Unreachable`."""
        url = self.url
        for mark, value in marks.items():
            url = url.replace("{" + mark + "}", value)
        return locate(url, data_dir)

    def _kind(self, located: Located) -> str:
        # A fetched file lies in the cache under a name without a suffix.
        kind = self.format or (located.path.suffix or Path(located.url).suffix).lstrip(".").lower()
        if kind not in FORMATS:
            raise DataError(f"{located.url}: the format {choices(kind, FORMATS, len(FORMATS))}")
        return kind

    def _ours(self, rows: list[Row], path: Path) -> list[Row]:
        if self.where:
            rows = [row for row in rows if all(str(row.get(k)) == str(v) for k, v in self.where.items())]
        if not self.columns or not rows:
            return rows
        known = columns_of(rows)
        missing = [theirs for theirs in self.columns.values() if theirs not in known]
        if missing:
            raise DataError(f"{path} has no such column: {choices(missing[0], known)}")
        taken = set(self.columns.values())
        return [
            {k: v for k, v in row.items() if k not in taken}
            | {ours: row.get(theirs) for ours, theirs in self.columns.items()}
            for row in rows
        ]


def columns_of(rows: Sequence[Row]) -> list[str]:
    """The names in any of the rows: JSON need not repeat all in each."""
    return list(dict.fromkeys(name for row in rows for name in row))


# The jobs of a sweep read the same files, so rows are kept, by content, and never changed in place.


@lru_cache(maxsize=32)
def _read(kind: str, located: Located) -> list[Row]:
    try:
        return FORMATS[kind](located.path)
    except (ValueError, LookupError, TypeError, AttributeError, OSError, RecursionError) as error:
        problem = " ".join(f"{type(error).__name__}: {error}".split())
        raise DataError(f"{located.path} does not read as {kind}: {problem}.") from error


@lru_cache(maxsize=8)
def _by_value(kind: str, located: Located, column: str) -> dict[str, list[Row]]:
    rows = _read(kind, located)
    found: dict[str, list[Row]] = {}
    if rows and column not in columns_of(rows):
        whose = choices(column, columns_of(rows))
        raise DataError(f"{located.path} has no column that says whose the answers are: {whose}")
    for row in rows:
        found.setdefault(str(row.get(column)), []).append(row)
    return found
