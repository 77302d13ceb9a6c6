"""`judgebench ls` and `judgebench query`: what a store holds, as a tree and by SQL. Both only read.

`console`, `tell` and `save` are how every verb that looks speaks: on a terminal in its width, into a
pipe in 110 columns, and everything that a model or a person named is shown literally.
"""

from __future__ import annotations

import json
import logging
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from judgebench.errors import ConfigError, choices
from judgebench.folder import COMPLETE, MISSING, Job
from judgebench.report import csv, literal, size, write_text
from judgebench.request import Descriptor
from judgebench.store.deletion import conditions
from judgebench.store.layout import ROLES
from judgebench.store.looking import Entry, entries
from judgebench.store.querying import Rows, query
from judgebench.store.root import root_of
from judgebench.tables import SURROGATE, appearing

log = logging.getLogger("judgebench")

PIPE_WIDTH = 110
NARROW = 8  # columns that stand beside each other; more are shown one below the other
CELL = 60  # characters of a cell in a table; one below the other, three lines
SETTING = 40  # characters of a setting's value


def console() -> Console:
    """Where people read."""
    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)


def tell(problems: Iterable[str]) -> int:
    """Name what could not be read, on stderr; the exit status: 3 if anything is missing."""
    told = list(dict.fromkeys(problems))
    for problem in told:
        log.warning("%s What is shown is without it.", problem)
    return MISSING if told else COMPLETE


def role_of(role: str | None) -> str | None:
    """A role's name, checked.

    Raises:
        ConfigError: no such role.
    """
    if role not in (None, *ROLES):
        raise ConfigError(f"role: {choices(role, ROLES)}")
    return role


def checked_limit(limit: int | None) -> int | None:
    """A number of rows, checked.

    Raises:
        ConfigError: no whole number from 1.
    """
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise ConfigError(f"limit={limit!r}: a whole number from 1, or null.")
    return limit


def save(frame: pd.DataFrame, output: str, kinds: Sequence[str]) -> Path:
    """Write a frame as the file's ending says, whole or not at all.

    Raises:
        ConfigError: another ending, or a column that is there twice.
    """
    path = Path(output).expanduser()
    kind = path.suffix.lower().removeprefix(".")
    if kind not in kinds:
        raise ConfigError(f"output={output}: the ending says the kind of file: {', '.join(kinds)}.")
    if twice := [name for name, count in Counter(frame.columns).items() if count > 1]:
        raise ConfigError(f"output={output}: column {twice[0]!r} is there twice; name one with AS.")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"output={output}: there is no folder {path.absolute().parent}.")
    if kind == "csv":
        write_text(path, csv(frame))
        return path
    clean = frame.map(lambda value: SURROGATE.sub("\ufffd", value) if isinstance(value, str) else value)
    with appearing(path) as file:
        if kind == "parquet":
            pq.write_table(pa.Table.from_pandas(clean, preserve_index=False), file, compression="zstd")
        else:
            for row in clean.astype(object).where(clean.notna(), None).to_dict("records"):
                file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
    return path


# --- ls ----------------------------------------------------------------------------------------------


@dataclass
class Ls:
    """See `conf/ls.yaml`. `result`: a frame, one row a descriptor and role."""

    role: str | None = None
    where: Mapping[str, Any] = field(default_factory=dict)
    output: str | None = None
    store: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, job: Job) -> int:
        """Print the tree; 3 where a file could not be read.

        Raises:
            ConfigError: an unknown role or column, an `output` of no known kind.
        """
        root = root_of(self.store)
        problems: list[str] = []
        found = entries(root, conditions(role_of(self.role), self.where), problems)
        self.result = entry_frame(found)
        shown = console()
        shown.print(Text(f"store {literal(str(root))}"), soft_wrap=True)
        if self.output:
            path = save(self.result, self.output, ("parquet", "csv"))
            shown.print(Text(f"{len(found):,} rows in {literal(str(path))}"), soft_wrap=True)
        else:
            for tree in trees(found):
                shown.print(tree)
            if not found:
                shown.print("Nothing matches." if self.where else "Nothing is stored here.")
        return tell(problems)


def entry_frame(found: Sequence[Entry]) -> pd.DataFrame:
    """Entries as a table. Counts of several names are JSON."""
    rows = [
        {
            "role": entry.role,
            "provider": entry.descriptor.provider,
            "model": entry.descriptor.model,
            "descriptor_hash": entry.descriptor.hash,
            "descriptor": entry.descriptor.text,
            **{
                name: getattr(entry, name)
                for name in (
                    *("rows", "answers", "size", "paid", "cost_usd", "unpriced"),
                    *("input_tokens", "output_tokens", "first", "last"),
                )
            },
            "benchmarks": json.dumps(entry.benchmarks, ensure_ascii=False, sort_keys=True),
            "failed": entry.failed.total(),
            "failures": json.dumps(entry.failed, ensure_ascii=False, sort_keys=True),
        }
        for entry in found
    ]
    return pd.DataFrame(rows).rename(columns={"size": "size_bytes", "first": "first_at", "last": "last_at"})


def trees(found: Sequence[Entry]) -> Iterable[Tree]:
    """A tree for each role: model, then descriptor, with aligned counts."""
    by_role: dict[str, dict[tuple[str, str], list[Entry]]] = defaultdict(lambda: defaultdict(list))
    for entry in found:
        by_role[entry.role][entry.descriptor.provider, entry.descriptor.model].append(entry)
    for role, models in by_role.items():
        total = Entry(role, found[0].descriptor)
        for entry in found:
            if entry.role == role:
                total.add(entry)
        cells = [_cells(e) for group in models.values() for e in group] + [_cells(total)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        tree = Tree(Text.assemble((role, "bold"), "  ", (_aligned(total, widths), "")), guide_style="dim")
        for (provider, model), group in models.items():
            named = Text.assemble((f"{literal(provider)}/", "dim"), (literal(model), "cyan"))
            branch = tree.add(named)
            told = settings([entry.descriptor for entry in group])
            for entry in group:
                head = Text.assemble((entry.descriptor.hash[:8], "bold"), "  ", (told[entry.descriptor], ""))
                branch.add(Text("\n").join([head, Text(_aligned(entry, widths)), *_dim(entry)]))
        yield tree


def _cells(entry: Entry) -> tuple[str, ...]:
    money = f"${entry.cost_usd:,.4f}" if entry.paid else "nothing paid"
    if entry.unpriced:
        money += f" + {entry.unpriced:,} of unknown price"
    return (
        f"{entry.rows:,} rows",
        f"{entry.answers:,} answers",
        size(entry.size),
        money,
        f"{entry.input_tokens:,} in",
        f"{entry.output_tokens:,} out",
    )


def _aligned(entry: Entry, widths: Sequence[int]) -> str:
    return "  ".join(f"{cell:>{width}}" for cell, width in zip(_cells(entry), widths, strict=True))


def _dim(entry: Entry) -> list[Text]:
    days = [day[:10] for day in (entry.first, entry.last) if day]
    parts = [" to ".join(dict.fromkeys(days))] if days else []
    if entry.benchmarks:
        named = sorted(entry.benchmarks.items())
        parts.append(", ".join(f"{literal(name)} {count:,}" for name, count in named))
    told = [Text("; ".join(parts), "dim")] if parts else []
    if entry.failed:
        reasons = ", ".join(f"{literal(name)} {count:,}" for name, count in entry.failed.most_common())
        tries = "1 failed try" if entry.failed.total() == 1 else f"{entry.failed.total():,} failed tries"
        told.append(Text(f"{tries}: {reasons}", "yellow"))
    return told


def settings(descriptors: Sequence[Descriptor]) -> dict[Descriptor, str]:
    """Descriptor -> its settings in a line: of several of a model, those in which they differ."""
    flat = {descriptor: _flat(descriptor) for descriptor in descriptors}
    names = dict.fromkeys(name for facts in flat.values() for name in facts)
    if len(flat) > 1:
        names = {n: None for n in names if len({facts.get(n) for facts in flat.values()}) > 1}
    return {
        descriptor: "  ".join(f"{name}={facts.get(name, 'not set')}" for name in names)
        for descriptor, facts in flat.items()
    }


def _flat(descriptor: Descriptor) -> dict[str, str]:
    fields = json.loads(descriptor.text)
    facts = {name: fields[name] for name in ("endpoint", "weights", "chat_template") if name in fields}
    facts |= fields.get("settings", {})
    flat = {}
    for name, value in facts.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if name == "logprobs" and isinstance(value, dict) and {"count", "positions"} <= set(value):
            text = f"{value['count']} at {value['positions']}"
        text = literal(text)
        flat[literal(name)] = text if len(text) <= SETTING else f"{text[: SETTING - 9]}…{text[-8:]}"
    return flat


# --- query -------------------------------------------------------------------------------------------


@dataclass
class Query:
    """See `conf/query.yaml`. `result`: a frame."""

    sql: Sequence[str]
    role: str | None = None
    limit: int | None = 50
    output: str | None = None
    store: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, job: Job) -> int:
        """Print the rows or write them; 3 where a file could not be read.

        Raises:
            ConfigError: no SQL, wrong SQL, SQL that would write, an `output` of no known kind.
        """
        sql = " ".join(self.sql).strip()
        if not sql:
            raise ConfigError(
                "Which rows? Give one SELECT, quoted: judgebench query 'SELECT judge, count(*) FROM "
                "judgements GROUP BY 1'."
            )
        limit = checked_limit(self.limit)
        found = query(root_of(self.store), sql, role_of(self.role))
        self.result = frame(found)
        shown = console()
        if self.output:
            path = save(self.result, self.output, ("parquet", "csv", "jsonl"))
            shown.print(Text(f"{len(found.rows):,} rows in {literal(str(path))}"), soft_wrap=True)
        else:
            _print_rows(shown, found, limit)
        return tell(found.problems)


def frame(found: Rows) -> pd.DataFrame:
    """Rows as a frame; whole numbers stay so beside nulls (Int64)."""
    made = pd.DataFrame.from_records(found.rows, columns=found.columns)
    for position in range(made.shape[1]):
        values = [row[position] for row in found.rows]
        kinds = {type(value) for value in values} - {type(None)}
        if kinds == {int} and None in values:
            column = pd.Series(pd.array(values, dtype="Int64"), name=made.columns[position])
            made = pd.concat([made.iloc[:, :position], column, made.iloc[:, position + 1 :]], axis=1)
    return made


def _print_rows(shown: Console, found: Rows, limit: int | None) -> None:
    rows = found.rows if limit is None else found.rows[:limit]
    if len(found.columns) <= NARROW:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for position, name in enumerate(found.columns):
            figures = all(isinstance(row[position], (int, float, type(None))) for row in found.rows)
            table.add_column(Text(literal(name)), justify="right" if figures else "left", overflow="fold")
        for row in rows:
            table.add_row(*[_cell(value, CELL) for value in row])
        shown.print(table)
    else:
        width = max(map(len, found.columns), default=0)
        for number, row in enumerate(rows, 1):
            shown.print(Text(f"── {number} ──", "dim"))
            table = Table.grid(padding=(0, 2))
            table.add_column(width=width, style="dim")
            table.add_column(overflow="fold")
            for name, value in zip(found.columns, row, strict=True):
                table.add_row(Text(literal(name)), _cell(value, 3 * CELL))
            shown.print(table)
    more = f"; {len(rows):,} are shown (limit=N, or all of them: output=FILE.parquet)"
    told = "1 row" if len(found.rows) == 1 else f"{len(found.rows):,} rows"
    shown.print(told + (more if len(rows) < len(found.rows) else "") + ".", soft_wrap=True)


def _cell(value: Any, room: int) -> Text:
    if value is None:
        return Text("null", "dim")
    if isinstance(value, float):
        return Text(f"{value:.6g}")
    text = value.hex() if isinstance(value, bytes) else str(value)
    cut = len(text) > room
    return Text(literal(text[:room]) + ("…" if cut else ""))
