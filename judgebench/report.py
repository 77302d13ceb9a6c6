"""Tables for people: terminal, Markdown, CSV.

Names of models, judges and benchmarks are other people's text. They are shown literally everywhere:
control characters, ANSI sequences and line breaks as escapes, markup of a terminal, Markdown, HTML or
a spreadsheet without effect. Files are UTF-8 on every platform. This file does not know how the numbers
come about.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from judgebench.tables import SURROGATE, replace

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
    replace(Path(path), SURROGATE.sub("\ufffd", text).encode("utf-8"))


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
