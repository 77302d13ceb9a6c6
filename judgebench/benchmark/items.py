"""From rows to instructions, answers and known truths, each checked as it is read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from judgebench.benchmark.formats import Row
from judgebench.errors import ConfigError, DataError, choices
from judgebench.request import clean

Turns: TypeAlias = tuple[str | None, ...]  # an answer, or none, for each turn


@dataclass(frozen=True, slots=True)
class Instruction:
    """One item. `cluster_id`: items that share it are one for statistics."""

    instruction_id: str
    turns: tuple[str, ...]
    system: str | None = None
    reference: Turns | None = None
    category: str | None = None
    language: str | None = None
    cluster_id: str = ""


class Truth(NamedTuple):
    """A known preference: which of two shipped answers is better (1 = `better` is)."""

    instruction_id: str
    better: str
    worse: str
    preference: float  # P(better beats worse) that people or construction give; 0.5 = a tie


def instructions(
    rows: Sequence[Row], path: Path, rule: str, references: Mapping[str, Turns]
) -> list[Instruction]:
    """The items of a file, ids fixed over the whole of it.

    Raises:
        DataError: a missing, empty or duplicate id, or no instruction text.
    """
    if rule == "auto":
        rule = "column" if any("instruction_id" in row for row in rows) else "position"
    items = [_instruction(row, number, rule, path, references) for number, row in enumerate(rows)]
    check_unique([item.instruction_id for item in items], str(path))
    return items


def _instruction(
    row: Row, number: int, rule: str, path: Path, references: Mapping[str, Turns]
) -> Instruction:
    where = f"{path}, row {number}"
    if rule == "position":
        identity = str(number)
    elif "instruction_id" not in row:
        raise DataError(
            f"{where}: {choices('instruction_id', map(str, row))} Map it with "
            "benchmark.columns.instruction_id=COLUMN, or leave all ids out, and rows are numbered."
        )
    else:
        identity = identity_of(row["instruction_id"], where)
    turns = _instruction_turns(row)
    if not turns or any(turn is None or turn == "" for turn in turns):
        known = ", ".join(map(str, row))
        raise DataError(
            f"{where} ({identity!r}): no text in the column instruction (or turns). Columns: {known}. "
            "Map one with benchmark.columns.instruction=COLUMN."
        )
    reference = references.get(identity)
    if reference is None and row.get("reference") is not None:
        reference = answer(row["reference"], len(turns), f"{where}, reference")
    return Instruction(
        instruction_id=identity,
        turns=tuple(turn for turn in turns if turn is not None),
        system=_text(row.get("system")),
        reference=reference if reference and any(reference) else None,
        category=_text(row.get("category")),
        language=_text(row.get("language")),
        cluster_id=_text(row.get("cluster_id")) or identity,
    )


def identity_of(value: Any, where: str) -> str:
    """An id as text."""
    identity = "" if value is None else clean(str(value))
    if not identity.strip():
        raise DataError(f"{where}: the instruction_id is empty.")
    if "\0" in identity:
        raise DataError(f"{where}: the id {identity!r} holds a NUL character.")
    return identity


def _instruction_turns(row: Row) -> Turns:
    value = row.get("turns")
    if isinstance(value, str):  # a list in a CSV cell
        listed = _listed(value)
        return tuple(map(_cleaned, listed)) if listed else (_cleaned(value),)
    if isinstance(value, (list, tuple)):
        return tuple(map(_cleaned, value))
    return (_cleaned(row.get("instruction")),)


def answer(value: Any, turns: int, where: str) -> Turns:
    """An answer (or reference) to an item of so many turns: a text, or a list with one a turn.

    For an item of several turns a text may hold such a list as JSON. An answer to a single turn that
    happens to be a JSON list stays as it is.
    """
    if isinstance(value, str) and turns > 1:
        listed = _listed(value)
        value = listed if listed is not None and len(listed) <= turns else value
    if isinstance(value, (list, tuple)):
        if len(value) > turns:
            raise DataError(f"{where}: {len(value)} texts for {turns} turns.")
        return tuple(_plain(item, where) for item in value)
    return (_plain(value, where),)


def _plain(value: Any, where: str) -> str | None:
    if isinstance(value, (dict, list, tuple)):
        raise DataError(f"{where}: a text is expected, not {str(value)[:80]!r}.")
    return _cleaned(value)


def _listed(text: str) -> list[Any] | None:
    if not text.startswith("["):
        return None
    try:
        parsed = json.loads(text)
    except ValueError:
        return None
    texts = isinstance(parsed, list) and all(item is None or isinstance(item, str) for item in parsed)
    return parsed if texts else None


def _cleaned(value: Any) -> str | None:
    return None if value is None else clean(str(value))


def _text(value: Any) -> str | None:
    return None if value == "" else _cleaned(value)


def truth(row: Row, number: int, path: Path) -> Truth | None:
    """One label; null where nobody gave one."""
    where = f"{path}, row {number}"
    for name in ("instruction_id", "better", "worse"):
        if name not in row:
            raise DataError(f"{path} has no such column: {choices(name, map(str, row))}")
    if row["better"] in (None, ""):
        return None
    given = row.get("preference")
    try:
        preference = 1.0 if given in (None, "") else float(given)
    except (TypeError, ValueError):
        preference = -1.0
    if not 0 <= preference <= 1:
        raise DataError(f"{where}: the preference {given!r} is no number from 0 to 1.")
    identity = identity_of(row["instruction_id"], where)
    return Truth(identity, clean(str(row["better"])), clean(str(row["worse"])), preference)


def check_unique(ids: Sequence[str], where: str) -> None:
    """Refuse a duplicate id, naming both rows."""
    seen: dict[str, int] = {}
    for position, identity in enumerate(ids):
        if identity in seen:
            raise DataError(
                f"{where}: the id {identity!r} stands in row {seen[identity]} and in row {position} (counted "
                "from 0). Ids are text and must be unique: 1 and '1' are the same one, '01' is another."
            )
        seen[identity] = position


def select(items: Sequence[Instruction], limit: int | None, shard: str | None) -> tuple[Instruction, ...]:
    """Shard `i/n` by hash of the id, then the first `limit` in source order."""
    chosen = list(items)
    if shard is not None:
        part, _, parts = str(shard).partition("/")
        if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
            raise ConfigError(f"shard={shard!r}: write i/n with 1 <= i <= n, for example shard=1/4.")
        chosen = [i for i in chosen if _bucket(i.instruction_id, int(parts)) == int(part) - 1]
    if limit is not None:
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            raise ConfigError(f"limit={limit!r}: a whole number of at least 1, or null for all.")
        chosen = chosen[:limit]
    if not chosen:
        raise DataError(
            f"No instruction is left: none of the {len(items)} falls into shard={shard}. Take fewer shards."
        )
    return tuple(chosen)


def _bucket(identity: str, parts: int) -> int:
    return int.from_bytes(hashlib.sha256(identity.encode()).digest()[:8], "big") % parts
