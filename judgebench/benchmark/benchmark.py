"""From the rows of files to instructions, shipped answers and known truths, checked on the way."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from judgebench.benchmark.source import Located
from judgebench.benchmark.table import Row, Table
from judgebench.errors import ConfigError, DataError, choices
from judgebench.request import clean

Answers = Mapping[str, tuple[str | None, ...]]  # instruction_id -> an answer for each turn


@dataclass(frozen=True, slots=True)
class Instruction:
    """One item. `cluster_id`: items that share it are one for statistics."""

    instruction_id: str
    turns: tuple[str, ...]
    system: str | None = None
    reference: tuple[str | None, ...] | None = None
    category: str | None = None
    language: str | None = None
    cluster_id: str = ""


class Truth(NamedTuple):
    """A known preference: which of two shipped answers is better (1 = `better` is)."""

    instruction_id: str
    better: str
    worse: str
    preference: float  # P(better beats worse) that people or construction give; 0.5 = a tie


@dataclass(frozen=True)
class Benchmark:
    """Where a benchmark's files lie and how they read.

    Args:
        name: the benchmark's name in tables and in the store.
        instructions: rows with `turns` (or `instruction`), optionally `instruction_id`, `system`,
            `reference`, `category`, `language`, `cluster_id`.
        id: where ids come from: the column `instruction_id`, or the row's `position`.
        outputs: shipped answers: rows with `output` or `outputs` (a list, one a turn), joined by
            `instruction_id` if they have it, else by the exact `instruction` text, else by row.
            A mapping's key tells whose they are; under the key `*`, or in a list, the column `model`
            does, or the URL holds `{model}`.
        reference: a table of reference answers, joined by `instruction_id`.
        truth: `{better, worse}`: two shipped models of which one is better in every item.
        labels: a table of known preferences: `instruction_id`, `better`, `worse`.
        baseline: whom candidates are compared with unless the run names another.
        rows: how many instructions the whole set has; another number is refused.
        licence: as its publisher states it.
    """

    name: str
    instructions: Table
    id: Literal["column", "position"] = "column"
    outputs: Sequence[Table] | Mapping[str, Table | None] = ()
    reference: Table | None = None
    truth: Mapping[str, str] | None = None
    labels: Table | None = None
    baseline: str | None = None
    rows: int | None = None
    licence: str | None = None

    def load(self, data_dir: Path | None, *, limit: int | None = None, shard: str | None = None) -> Loaded:
        """Read, check, select: the ids of the whole file first, then shard, then the first `limit`.

        Raises:
            DataError: no rows, another number of rows, a missing column, a duplicate or empty id.
        """
        rows, located = self.instructions.read(data_dir)
        if not rows:
            raise DataError(f"{located.path} holds no instructions.")
        if self.rows is not None and len(rows) != self.rows:
            raise DataError(f"{located.path} holds {len(rows)} instructions; {self.name} has {self.rows}.")
        sources = [located]
        references: Answers = {}
        if self.reference is not None:
            reference_rows, from_where = self.reference.read(data_dir)
            sources.append(from_where)
            references = {str(r["instruction_id"]): _turns(r, "outputs", "output") for r in reference_rows}
        everything = [_instruction(row, n, self.id, located.path, references) for n, row in enumerate(rows)]
        _check_unique([item.instruction_id for item in everything], located.path)
        return Loaded(self, data_dir, tuple(everything), _select(everything, limit, shard), sources)


@dataclass
class Loaded:
    """A benchmark in memory. `instructions` are the selected ones, in source order."""

    benchmark: Benchmark
    data_dir: Path | None
    everything: tuple[Instruction, ...]
    instructions: tuple[Instruction, ...]
    sources: list[Located]
    _shipped: dict[str, Answers | None] = field(default_factory=dict)
    _shipped_from: dict[str, Located] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether all instructions are selected; official numbers are of the whole set."""
        return len(self.instructions) == len(self.everything)

    def shipped(self, model: str) -> Answers | None:
        """The answers that the benchmark ships for a model, or null if it ships none of it."""
        if model not in self._shipped:
            self._shipped[model] = self._read_shipped(model)
        return self._shipped[model]

    def source_of(self, model: str) -> Located:
        """The file that holds a model's shipped answers."""
        return self._shipped_from[model]

    def shipped_models(self) -> list[str]:
        """The names of models with shipped answers, as far as the files tell without fetching."""
        names: set[str] = set()
        for fixed, table in self._tables():
            if fixed is not None:
                names.add(fixed)
            elif "{model}" in table.url:
                names.update(self._names_in_folder(table))
            else:
                try:
                    names.update(str(row["model"]) for row in table.read(self.data_dir)[0] if "model" in row)
                except DataError:
                    continue
        return sorted(names)

    def truths(self) -> list[Truth]:
        """What is known about pairs of shipped answers, of the selected instructions."""
        known: list[Truth] = []
        chosen = {item.instruction_id for item in self.instructions}
        if self.benchmark.truth is not None:
            better, worse = self.benchmark.truth["better"], self.benchmark.truth["worse"]
            known += [Truth(i.instruction_id, better, worse, 1.0) for i in self.instructions]
        if self.benchmark.labels is not None:
            rows, located = self.benchmark.labels.read(self.data_dir)
            for number, row in enumerate(rows):
                truth = _truth(row, number, located.path)
                if truth is not None and truth.instruction_id in chosen:
                    known.append(truth)
        return known

    def content_hash(self) -> str:
        """16 hex digits over the selected instructions: what was evaluated, wherever it lay."""
        lines = (
            json.dumps([i.instruction_id, i.turns, i.system, i.reference, i.category], ensure_ascii=False)
            for i in self.instructions
        )
        return hashlib.sha256(clean("\n".join(lines)).encode()).hexdigest()[:16]

    def _tables(self) -> list[tuple[str | None, Table]]:
        outputs = self.benchmark.outputs
        if isinstance(outputs, Mapping):
            named = [(str(name), table) for name, table in outputs.items() if table is not None]
            return [(None if name == "*" else name, table) for name, table in named]
        return [(None, table) for table in outputs]

    def _names_in_folder(self, table: Table) -> Iterable[str]:
        from judgebench.benchmark.source import mirror_path

        before, _, after = table.url.partition("{model}")
        mirrored = mirror_path(before + "x" + after)
        path = self.data_dir / mirrored if mirrored and self.data_dir else Path(before + "x" + after)
        if path.parent.is_dir() and before.endswith("/"):
            return (p.name.removesuffix(after) for p in path.parent.iterdir() if p.name.endswith(after))
        return ()

    def _read_shipped(self, model: str) -> Answers | None:
        for fixed, table in self._tables():
            if fixed is not None:
                if fixed != model:
                    continue
                rows, located = table.read(self.data_dir)
            elif "{model}" in table.url:
                try:
                    rows, located = table.read(self.data_dir, model=model)
                except DataError:
                    continue
            else:
                rows, located = table.read(self.data_dir)
                rows = [row for row in rows if str(row.get("model")) == model]
            if rows:
                if located not in self.sources:
                    self.sources.append(located)
                self._shipped_from[model] = located
                beside = table.url == self.benchmark.instructions.url
                return self._joined(rows, located.path, model, beside)
        return None

    def _joined(self, rows: Sequence[Row], path: Path, model: str, beside: bool) -> Answers:
        if beside:  # a column of the instructions' own file
            keys = [item.instruction_id for item in self.everything]
        elif "instruction_id" in rows[0]:
            keys = [str(row["instruction_id"]) for row in rows]
        elif "instruction" in rows[0]:
            # The exact text: some instructions differ in outer white space only.
            by_text = {item.turns[0]: item.instruction_id for item in self.everything}
            unknown = [row["instruction"] for row in rows if clean(row["instruction"]) not in by_text]
            if unknown:
                raise DataError(
                    f"{path}: {len(unknown)} answers of {model!r} belong to no instruction of "
                    f"{self.benchmark.name}; the first: {unknown[0][:100]!r}."
                )
            keys = [by_text[clean(row["instruction"])] for row in rows]
        elif len(rows) == len(self.everything):
            keys = [item.instruction_id for item in self.everything]
        else:
            raise DataError(f"{path} has neither instruction_id nor instruction, and another number of rows.")
        _check_unique(keys, path)
        return {key: _turns(row, "outputs", "output") for key, row in zip(keys, rows, strict=True)}


def files(
    path: str,
    name: str | None = None,
    columns: Mapping[str, str] | None = None,
    outputs: Sequence[str] | Mapping[str, str] = (),
    answers: str | None = None,
    labels: str | None = None,
    baseline: str | None = None,
) -> Benchmark:
    """A benchmark of your own files: CSV, TSV, JSONL, JSON or Parquet.

    Args:
        path: the instructions, one a row: `instruction` or `turns`, optionally `instruction_id`
            (else the row's number), `system`, `reference`, `category`, `language`, `cluster_id`.
        name: shown in tables; default the file's stem.
        columns: our name -> the file's, where they differ.
        outputs: columns of that file that hold models' answers; a mapping names models by column.
        answers: a file of answers with the columns model, output and instruction_id (or
            instruction), or one file a model with `{model}` in its path.
        labels: a file of known truths: instruction_id, better, worse.
        baseline: whom candidates are compared with.
    """
    columns = dict(columns or {})
    named = dict(outputs) if isinstance(outputs, Mapping) else {column: column for column in outputs}
    tables: dict[str, Table] = {
        model: Table(path, columns=columns | {"output": column}) for model, column in named.items()
    }
    has_id = "instruction_id" in columns or _has_column(path, "instruction_id")
    if tables and answers:
        raise ConfigError("benchmark.outputs names columns and benchmark.answers a file: give one of them.")
    return Benchmark(
        name=name or Path(path).stem,
        instructions=Table(path, columns=columns),
        id="column" if has_id else "position",
        outputs=[Table(answers)] if answers else tables,
        labels=Table(labels) if labels else None,
        baseline=baseline,
    )


def _has_column(path: str, column: str) -> bool:
    rows, _ = Table(path).read(None)
    return bool(rows) and column in rows[0]


def _instruction(row: Row, number: int, rule: str, path: Path, references: Answers) -> Instruction:
    if rule == "position":
        identity = str(number)
    elif row.get("instruction_id") is None or str(row["instruction_id"]).strip() == "":
        raise DataError(f"{path}, row {number}: {choices('instruction_id', row)} Or take id=position.")
    else:
        identity = str(row["instruction_id"])
    if "\0" in identity:
        raise DataError(f"{path}, row {number}: the id {identity!r} holds a NUL character.")
    turns = _turns(row, "turns", "instruction")
    if not turns or any(turn is None or turn == "" for turn in turns):
        known = ", ".join(map(str, row))
        raise DataError(f"{path}, row {number} ({identity!r}): no instruction text. Columns: {known}.")
    reference = references.get(identity)
    if reference is None and row.get("reference") is not None:
        reference = _turns(row, "reference", "reference")
    return Instruction(
        instruction_id=identity,
        turns=tuple(turn for turn in turns if turn is not None),
        system=_text(row.get("system")),
        reference=reference if reference and any(reference) else None,
        category=_text(row.get("category")),
        language=_text(row.get("language")),
        cluster_id=_text(row.get("cluster_id")) or identity,
    )


def _turns(row: Row, many: str, one: str) -> tuple[str | None, ...]:
    value = row.get(many, row.get(one))
    if many in row and isinstance(value, str) and value.startswith("["):
        try:
            parsed = json.loads(value)  # a list in a CSV cell
        except ValueError:
            parsed = value
        value = parsed if isinstance(parsed, list) else value
    if isinstance(value, (list, tuple)):
        return tuple(None if item is None else clean(str(item)) for item in value)
    return (None if value is None else clean(str(value)),)


def _text(value: Any) -> str | None:
    return None if value is None or value == "" else clean(str(value))


def _truth(row: Row, number: int, path: Path) -> Truth | None:
    missing = [name for name in ("instruction_id", "better", "worse") if name not in row]
    if missing:
        raise DataError(f"{path} has no such column: {choices(missing[0], row)}")
    preference = row.get("preference")
    if row["better"] in (None, ""):
        return None  # not labelled
    return Truth(
        str(row["instruction_id"]),
        str(row["better"]),
        str(row["worse"]),
        1.0 if preference in (None, "") else float(preference),
    )


def _check_unique(ids: Sequence[str], path: Path) -> None:
    seen: dict[str, int] = {}
    for position, identity in enumerate(ids):
        if identity in seen:
            raise DataError(
                f"{path}: the id {identity!r} stands in row {seen[identity]} and in row {position}. "
                "Ids are text and must be unique: 1 and '1' are the same one, '01' is another."
            )
        seen[identity] = position


def _select(items: Sequence[Instruction], limit: int | None, shard: str | None) -> tuple[Instruction, ...]:
    chosen = list(items)
    if shard is not None:
        part, _, parts = str(shard).partition("/")
        if not (part.isdigit() and parts.isdigit() and 1 <= int(part) <= int(parts)):
            raise ConfigError(f"shard={shard!r}: write i/n with 1 <= i <= n, for example shard=1/4.")
        chosen = [i for i in chosen if _bucket(i.instruction_id, int(parts)) == int(part) - 1]
    if limit is not None:
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            raise ConfigError(f"limit={limit!r}: a whole number of at least 1, or null for all.")
        chosen = chosen[:limit]
    if not chosen:
        raise DataError("No instruction is left after shard and limit.")
    return tuple(chosen)


def _bucket(identity: str, parts: int) -> int:
    return int.from_bytes(hashlib.sha256(identity.encode()).digest()[:8], "big") % parts
