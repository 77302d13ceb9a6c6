"""Tables of benchmarks: a file in one of the field's layouts, as rows with our column names.

A layout is a function from a path to a list of dicts; `columns` maps our names to the file's.
Nothing here knows what a row is for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from judgebench.benchmark.source import Located, locate
from judgebench.errors import DataError, choices

Row: TypeAlias = dict[str, Any]


def _csv(path: Path) -> list[Row]:
    import pandas

    separator = "\t" if path.suffix == ".tsv" else ","
    # Everything is text: "007" stays, an empty cell is an empty text, "NA" is an answer.
    frame = pandas.read_csv(path, sep=separator, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    return _records(frame)


def _jsonl(path: Path) -> list[Row]:
    rows = []
    with open(path, encoding="utf-8", newline="\n") as file:
        # Lines end at \n only: U+2028 and U+0085 occur within records.
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    rows.append(json.loads(line))
                except json.JSONDecodeError as error:
                    raise DataError(f"{path}, line {number}: not JSON ({error.msg}).") from None
    return rows


def _json(path: Path) -> list[Row]:
    with open(path, encoding="utf-8") as file:
        content = json.load(file)
    if not isinstance(content, list):
        raise DataError(f"{path}: a list of objects is expected, not {type(content).__name__}.")
    return content


def _parquet(path: Path) -> list[Row]:
    import pyarrow.parquet as pq

    rows: list[Row] = pq.read_table(path).to_pylist()
    return rows


def _plain(path: Path) -> list[Row]:
    """A text file as one row."""
    return [{"text": path.read_text(encoding="utf-8")}]


def _arena_hard_questions(path: Path) -> list[Row]:
    """`uid, category, subcategory, prompt`; the shape of 2024 has `question_id` and `turns`."""
    return [
        {
            "instruction_id": row.get("uid") or row["question_id"],
            "turns": [row["prompt"] if "prompt" in row else row["turns"][0]["content"]],
            "category": row.get("subcategory") or row.get("category"),
        }
        for row in _jsonl(path)
    ]


def _arena_hard_answers(path: Path) -> list[Row]:
    """The last message's text, plain or as `{answer}`; of several rows of a uid the last one counts."""
    rows: dict[str, Row] = {}
    for row in _jsonl(path):
        if "messages" in row:
            content = row["messages"][-1]["content"]
            output = content["answer"] if isinstance(content, dict) else content
        else:
            output = row["choices"][0]["turns"][0]["content"]
        uid = row.get("uid") or row["question_id"]
        rows[uid] = {"instruction_id": uid, "outputs": [output]}
    return list(rows.values())


def _fastchat_questions(path: Path) -> list[Row]:
    return [
        {"instruction_id": row["question_id"], "turns": row["turns"], "category": row.get("category")}
        for row in _jsonl(path)
    ]


def _fastchat_answers(path: Path) -> list[Row]:
    """Answers and references of FastChat: `choices[0].turns`; `$ERROR$` is no answer."""
    rows = []
    for row in _jsonl(path):
        outputs = row["choices"][0]["turns"]
        if not any(output in ("$ERROR$", "ERROR") for output in outputs):
            rows.append({"instruction_id": row["question_id"], "outputs": outputs})
    return rows


FORMATS: dict[str, Callable[[Path], list[Row]]] = {
    "csv": _csv,
    "tsv": _csv,
    "jsonl": _jsonl,
    "ndjson": _jsonl,
    "json": _json,
    "parquet": _parquet,
    "text": _plain,
    "arena_hard_questions": _arena_hard_questions,
    "arena_hard_answers": _arena_hard_answers,
    "fastchat_questions": _fastchat_questions,
    "fastchat_answers": _fastchat_answers,
}


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

    def read(self, data_dir: Path | None, **names: str) -> tuple[list[Row], Located]:
        """The rows and where they came from. `names` fill the marks of the URL.

        Raises:
            DataError: no such file, format or column, or a file that does not parse.
        """
        url = self.url.format(**names) if names else self.url
        located = locate(url, data_dir)
        kind = self.format or located.path.suffix.lstrip(".").lower()
        if kind not in FORMATS:
            raise DataError(f"{url}: the format {choices(kind, FORMATS)}")
        stat = located.path.stat()
        try:
            rows = _read(kind, located.path, stat.st_mtime_ns)
        except (ValueError, KeyError, TypeError, IndexError, OSError) as error:
            problem = f"{type(error).__name__}: {error}"
            raise DataError(f"{located.path} does not read as {kind}: {problem}.") from error
        if self.where:
            rows = [row for row in rows if all(str(row.get(k)) == str(v) for k, v in self.where.items())]
        return (self._renamed(rows, located.path) if self.columns else rows), located

    def _renamed(self, rows: list[Row], path: Path) -> list[Row]:
        if rows:
            missing = [theirs for theirs in self.columns.values() if theirs not in rows[0]]
            if missing:
                raise DataError(f"{path} has no such column: {choices(missing[0], map(str, rows[0]))}")
        taken = set(self.columns.values())
        return [
            {k: v for k, v in row.items() if k not in taken}
            | {ours: row.get(theirs) for ours, theirs in self.columns.items()}
            for row in rows
        ]


@lru_cache(maxsize=32)
def _read(kind: str, path: Path, mtime_ns: int) -> list[Row]:
    # The jobs of a sweep read the same files; rows are never changed in place.
    return FORMATS[kind](path)


def _records(frame: Any) -> list[Row]:
    names = [str(name) for name in frame.columns]
    return [dict(zip(names, row, strict=True)) for row in frame.itertuples(index=False, name=None)]
