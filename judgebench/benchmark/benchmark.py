"""A benchmark: where its files lie, and what they hold, loaded and checked before anything is asked."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeAlias

from judgebench.benchmark import items
from judgebench.benchmark.formats import Row
from judgebench.benchmark.items import Instruction, Truth, Turns
from judgebench.benchmark.source import Absent, Located, Unreachable, mirror_path
from judgebench.benchmark.table import Table, columns_of
from judgebench.errors import ConfigError, DataError, choices
from judgebench.request import clean

log = logging.getLogger("judgebench")

Answers: TypeAlias = Mapping[str, Turns]  # by instruction_id


@dataclass(frozen=True)
class Benchmark:
    """Where a benchmark's files lie and how they read.

    Args:
        name: the benchmark's name in tables and in the store.
        instructions: rows with `turns` (or `instruction`), optionally `instruction_id`, `system`,
            `reference`, `category`, `language`, `cluster_id`.
        id: where ids come from: the `column` instruction_id, the row's `position`, or `auto`: the column
            if there is one, else the position.
        outputs: shipped answers: rows with `output` or `outputs` (a list, one a turn), joined by
            `instruction_id` if they have it, else by the exact `instruction` text, else by row.
            A mapping's key tells whose they are, and a plain text there is a column of the instructions'
            file; under the key `*`, or in a list, the column `model` does, or the URL holds `{model}`.
        reference: a table of reference answers, joined by `instruction_id`.
        truth: `{better, worse}`: two shipped models of which one is better in every item.
        labels: a table of known preferences: `instruction_id`, `better`, `worse`.
        baseline: whom candidates are compared with unless the run names another.
        rows: how many instructions the whole set has; another number is refused.
        licence: as its publisher states it.
        redistribute: whether its terms let one pass its texts on; null where they do not say. `push` asks.
    """

    name: str
    instructions: Table
    id: Literal["column", "position", "auto"] = "column"
    outputs: Sequence[Table] | Mapping[str, Table | str | None] = ()
    reference: Table | None = None
    truth: Mapping[str, str] | None = None
    labels: Table | None = None
    baseline: str | None = None
    rows: int | None = None
    licence: str | None = None
    redistribute: bool | None = None

    def load(self, data_dir: Path | None, *, limit: int | None = None, shard: str | None = None) -> Loaded:
        """Read, check, select: the ids of the whole file first, then shard, then the first `limit`.

        Raises:
            DataError: no rows, another number of rows, a missing column, a duplicate or empty id.
        """
        rows, located = self.instructions.read(data_dir)
        if not rows:
            raise DataError(
                f"{located.path} holds no instructions: it needs a row for each, with its text in a column "
                "instruction (or turns)."
            )
        if self.rows is not None and len(rows) != self.rows:
            raise DataError(f"{located.path} holds {len(rows)} instructions; {self.name} has {self.rows}.")
        sources = [located]
        references: Answers = {}
        if self.reference is not None:
            reference_rows, from_where = self.reference.read(data_dir)
            sources.append(from_where)
            references = _references(reference_rows, from_where.path)
        everything = items.instructions(rows, located.path, self.id, references)
        chosen = items.select(everything, limit, shard)
        for fixed, table in self.tables():
            # A misspelt column would make a shipped model a live one, asked and paid for.
            if fixed is not None and table.url == self.instructions.url:
                table.read(data_dir)
        return Loaded(self, data_dir, tuple(everything), chosen, sources)

    def tables(self) -> list[tuple[str | None, Table]]:
        """The tables of shipped answers, each with the model whose they are, or null where that varies."""
        if not isinstance(self.outputs, Mapping):
            return [(None, table) for table in self.outputs]
        own = self.instructions
        return [
            (None if name == "*" else str(name), table)
            for name, given in self.outputs.items()
            if given is not None
            for table in [
                replace(own, columns={**own.columns, "output": given}) if isinstance(given, str) else given
            ]
        ]


@dataclass
class Loaded:
    """A benchmark in memory. `instructions` are the selected ones, in source order."""

    benchmark: Benchmark
    data_dir: Path | None
    everything: tuple[Instruction, ...]
    instructions: tuple[Instruction, ...]
    sources: list[Located]
    unreachable: dict[str, str] = field(
        default_factory=dict
    )  # model -> why its answers could not be looked for
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
        for fixed, table in self.benchmark.tables():
            if fixed is not None:
                names.add(fixed)
            elif "{model}" in table.url:
                names.update(_names_in_folder(table.url, self.data_dir))
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
            if located not in self.sources:
                self.sources.append(located)
            labels = [items.truth(row, number, located.path) for number, row in enumerate(rows)]
            given = [label for label in labels if label is not None]
            self._check_known([label.instruction_id for label in given], f"{located.path}: labels")
            known += [label for label in given if label.instruction_id in chosen]
        return known

    def content_hash(self) -> str:
        """16 hex digits over the selected instructions: what was evaluated, wherever it lay."""
        lines = (
            json.dumps([i.instruction_id, i.turns, i.system, i.reference, i.category], ensure_ascii=False)
            for i in self.instructions
        )
        return hashlib.sha256(clean("\n".join(lines)).encode()).hexdigest()[:16]

    def _read_shipped(self, model: str) -> Answers | None:
        for fixed, table in self.benchmark.tables():
            if fixed not in (None, model):
                continue
            names = _names_in_folder(table.url, self.data_dir) if "{model}" in table.url else [model]
            if names and model not in names:
                continue  # a local folder is taken at its word: nobody is asked over the network
            try:
                if fixed is not None:
                    rows, located = table.read(self.data_dir)
                elif "{model}" in table.url:
                    rows, located = table.read(self.data_dir, model=model)
                else:
                    rows, located = table.read_of(model, self.data_dir)
            except (Absent, Unreachable) as error:
                if "{model}" not in table.url:
                    raise
                if isinstance(error, Unreachable):
                    self.unreachable[model] = str(error)
                continue
            if rows:
                if located not in self.sources:
                    self.sources.append(located)
                self._shipped_from[model] = located
                # A column of the instructions' own file belongs to its rows.
                beside = fixed is not None and table.url == self.benchmark.instructions.url
                return self._joined(rows, table, f"{located.path}, answers of {model!r}", beside)
        return None

    def _joined(self, rows: Sequence[Row], table: Table, where: str, beside: bool) -> Answers:
        known = columns_of(rows)
        column = "output" if "output" in table.columns or "outputs" not in known else "outputs"
        if column not in known:
            raise DataError(f"{where}: no such column: {choices(column, known)}")
        if beside:
            keys = [item.instruction_id for item in self.everything]
        elif "instruction_id" in known:
            keys = [items.identity_of(row.get("instruction_id"), where) for row in rows]
            self._check_known(keys, where)
        elif "instruction" in known:
            return self._joined_by_text(rows, column, where)
        elif len(rows) == len(self.everything):
            keys = [item.instruction_id for item in self.everything]
        else:
            raise DataError(
                f"{where}: there is no column instruction_id or instruction to join by, and {len(rows)} rows "
                f"are not the {len(self.everything)} of the instructions."
            )
        items.check_unique(keys, where)
        turns = {item.instruction_id: len(item.turns) for item in self.everything}
        return {
            key: items.answer(row.get(column), turns[key], f"{where}, {key!r}")
            for key, row in zip(keys, rows, strict=True)
            if key in turns
        }

    def _joined_by_text(self, rows: Sequence[Row], column: str, where: str) -> Answers:
        """By the exact text: some instructions differ in outer white space only.

        Where several instructions have one text, its answers are theirs in order, and a single one
        is the answer to each.
        """
        by_text: dict[str, list[Instruction]] = {}
        for item in self.everything:
            by_text.setdefault(item.turns[0], []).append(item)
        given: dict[str, list[Row]] = {}
        for row in rows:
            given.setdefault(clean(str(row.get("instruction"))), []).append(row)
        unknown = [text for text in given if text not in by_text]
        if unknown:
            raise DataError(
                f"{where}: {len(unknown)} belong to no instruction of {self.benchmark.name} (the text must "
                f"be the same, white space too); the first: {unknown[0][:100]!r}."
            )
        joined: dict[str, Turns] = {}
        for text, several in given.items():
            same = by_text[text]
            if len(several) not in (1, len(same)):
                raise DataError(f"{where}: {len(several)} for {len(same)} instructions {text[:100]!r}.")
            for number, item in enumerate(same):
                row = several[number % len(several)]
                joined[item.instruction_id] = items.answer(
                    row.get(column), len(item.turns), f"{where}, {item.instruction_id!r}"
                )
        return joined

    def _check_known(self, keys: Sequence[str], where: str) -> None:
        """A file that covers more than this benchmark is fine; one of which nothing belongs to it is not."""
        known = {item.instruction_id for item in self.everything}
        unknown = [key for key in keys if key not in known]
        if unknown and len(unknown) == len(keys):
            raise DataError(
                f"{where}: none of the {len(keys)} ids is one of {self.benchmark.name}; the first: "
                f"{unknown[0]!r}, and there {self.everything[0].instruction_id!r}."
            )
        if unknown:
            log.warning("%s: %d ids are not in %s", where, len(unknown), self.benchmark.name)


def _references(rows: Sequence[Row], path: Path) -> Answers:
    found: dict[str, Turns] = {}
    for number, row in enumerate(rows):
        if "instruction_id" not in row:
            raise DataError(f"{path} has no such column: {choices('instruction_id', map(str, row))}")
        value = row.get("outputs", row.get("output"))
        turns = len(value) if isinstance(value, list) else 1
        where = f"{path}, row {number}"
        found[items.identity_of(row["instruction_id"], where)] = items.answer(value, turns, where)
    return found


def _names_in_folder(url: str, data_dir: Path | None) -> list[str]:
    """Whose files lie where `{model}` stands for the name, as far as they lie on this disk."""
    mirrored = mirror_path(url)
    if mirrored is None and "://" in url:
        return []
    pattern = data_dir / mirrored if mirrored and data_dir else Path(url).expanduser()
    before, _, after = pattern.as_posix().partition("{model}")
    parent, start = Path(before).parent if not before.endswith("/") else Path(before), Path(before).name
    start = "" if before.endswith("/") else start
    if not parent.is_dir():
        return []
    if "/" not in after:
        # Names may hold a slash: org/name.jsonl.
        found = [path.relative_to(parent).as_posix() for path in parent.rglob(f"*{_literal(after)}")]
    else:
        end = after.partition("/")[0]
        found = [
            path.name + after[len(end) :]
            for path in parent.iterdir()
            if path.name.endswith(end) and (path / after[len(end) + 1 :]).is_file()
        ]
    return sorted(name[len(start) : -len(after)] for name in found if name.startswith(start))


def _literal(text: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", text)


def files(
    path: str,
    name: str | None = None,
    columns: Mapping[str, str] | None = None,
    outputs: Sequence[str] | Mapping[str, str] | None = None,
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
        outputs: columns of that file that hold models' answers; a mapping {model: column}
            where they are called otherwise.
        answers: a file of answers with the columns model, output and instruction_id (or
            instruction), or one file a model with `{model}` in its path.
        labels: a file of known truths: instruction_id, better, worse.
        baseline: whom candidates are compared with.
    """
    columns = dict(columns or {})
    named = dict(outputs) if isinstance(outputs, Mapping) else {column: column for column in outputs or ()}
    tables: dict[str, Table] = {
        model: Table(path, columns=columns | {"output": column}) for model, column in named.items()
    }
    if tables and answers:
        raise ConfigError("benchmark.outputs names columns and benchmark.answers a file: give one of them.")
    return Benchmark(
        name=name or Path(path).stem,
        instructions=Table(path, columns=columns),
        id="auto",
        outputs=[Table(answers)] if answers else tables,
        labels=Table(labels) if labels else None,
        baseline=baseline,
    )
