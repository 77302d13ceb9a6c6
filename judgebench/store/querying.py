"""SQL over all databases of a role at once, read-only.

SQLite attaches ten files at most, so the rows come together in a private temporary database, and as
little of them as the query needs: it is compiled first against empty tables, which tells the columns
that it reads. Of those, only the narrow ones are copied. Prompts, outputs, reasoning and logprobs,
which make up nearly all of a store, are fetched from their own file when a row's value is really
used: after WHERE, and not at all for an aggregate over other columns. Measured: docs/store.md.
"""

from __future__ import annotations

import re
import sqlite3
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from judgebench.errors import ConfigError, choices
from judgebench.store import flat, schema
from judgebench.store.layout import ROLES
from judgebench.store.looking import Source, each

# Beside the two roles' views. Each also has who answered, and `key` where it has an input key.
TABLES = ("responses", "subjects", "attempts", "superseded", "tombstones")
_LAZY = ("input_text", "output", "reasoning", "top_logprobs")
_DESCRIPTOR = "descriptor"  # one text for all rows of a file: not copied to each
_FILES_OPEN = 32  # for fetching; a file in WAL mode holds three descriptors
_SQL_TYPES = {str: "TEXT", int: "INTEGER", float: "REAL"}
_READS = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)

Columns = dict[str, type]


@dataclass
class Rows:
    """What a query gave. `problems`: a sentence for each file that is missing from it."""

    columns: list[str]
    rows: list[tuple[Any, ...]]
    problems: list[str] = field(default_factory=list)


def columns(table: str, role: str) -> Columns:
    """Column -> type of a table or view, as a query sees it."""
    if table in ROLES:
        return {**flat.columns(table), "key": str}
    known = {column.name: column.type.python_type for column in schema.metadata.tables[table].columns}
    who = dict.fromkeys(("provider", schema.ANSWERED_BY[role], "descriptor_hash", "descriptor"), str)
    return known | who | ({"key": str} if "input_hash" in known else {})


def query(root: Path, sql: str, role: str | None = None) -> Rows:
    """Run one SELECT over the views `completions` and `judgements`, and a role's tables.

    `role` says whose `responses`, `subjects` … are meant; default: that of the view which is named too.

    Raises:
        ConfigError: SQL that is wrong, or that would write; a table whose role is not clear.
    """
    if role not in (None, *ROLES):
        raise ConfigError(f"role: {choices(role, ROLES)}")
    named = [name for name in ROLES if re.search(rf"\b{name}\b", sql, re.IGNORECASE)]
    of_tables = role or (named[0] if len(named) == 1 else None)
    needed = _needed(sql, of_tables)
    problems: list[str] = []
    with closing(sqlite3.connect("", isolation_level=None)) as db:  # on disk, once it outgrows memory
        db.execute("PRAGMA journal_mode=OFF")
        db.execute("PRAGMA synchronous=OFF")
        fetch = _Fetch(problems)
        with closing(fetch):
            for table, read in needed.items():
                _gather(db, root, table, table if table in ROLES else str(of_tables), read, fetch, problems)
            db.create_function("_fetch", 4, fetch)
            db.create_function("_descriptor", 1, fetch.descriptor)
            db.execute("PRAGMA query_only=ON")
            _only_reads(db, [])
            try:
                cursor = db.execute(sql)
                names = [column[0] for column in cursor.description or ()]
                return Rows(names, cursor.fetchall(), problems)
            except (sqlite3.Error, sqlite3.Warning) as error:
                raise _wrong(error, sql, of_tables) from None


def _needed(sql: str, role: str | None) -> dict[str, set[str]]:
    """Table -> columns that a query reads. Compiles it, runs nothing."""
    shape = role or ROLES[1]
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        for table in (*ROLES, *TABLES):
            named = ", ".join(f"{n} {_SQL_TYPES[t]}" for n, t in columns(table, shape).items())
            db.execute(f"CREATE TABLE {table} ({named})")
        seen: list[tuple[int, str | None, str | None]] = []
        _only_reads(db, seen)
        try:
            db.execute(f"EXPLAIN {sql}").fetchall()
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise _wrong(error, sql, shape) from None
    if not any(action == sqlite3.SQLITE_SELECT for action, _, _ in seen):
        raise ConfigError(_REFUSED)
    needed: dict[str, set[str]] = {}
    for action, name, column in seen:
        if action == sqlite3.SQLITE_READ and name in (*ROLES, *TABLES):
            table = str(name)
            read = needed.setdefault(table, set())
            if not column:
                continue
            if column not in columns(table, shape):
                raise _wrong(sqlite3.OperationalError(f"no such column: {column}"), sql, shape)
            read.add(column)
    if role is None and not needed.keys() <= set(ROLES):
        raise ConfigError(
            f"Both roles have a table {min(needed.keys() - set(ROLES))}: say which is meant with "
            f"role={ROLES[0]} or role={ROLES[1]}."
        )
    return needed


_REFUSED = (
    "query only reads, one SELECT (or WITH … SELECT) at a time: nothing was done. To delete answers by "
    "column there is judgebench forget; to have them asked anew, judgebench refresh."
)


def _only_reads(db: sqlite3.Connection, seen: list[tuple[int, str | None, str | None]]) -> None:
    def allow(
        action: int, table: str | None, column: str | None, database: str | None, inner: str | None
    ) -> int:
        seen.append((action, table, column))
        return sqlite3.SQLITE_OK if action in _READS else sqlite3.SQLITE_DENY

    db.set_authorizer(allow)


def _wrong(error: Exception, sql: str, role: str | None) -> ConfigError:
    text = str(error)
    if "not authorized" in text or "one statement" in text or "prohibited" in text:
        return ConfigError(_REFUSED)
    shape = role or ROLES[1]
    named = [t for t in (*ROLES, *TABLES) if re.search(rf"\b{t}\b", sql, re.IGNORECASE)] or [shape]
    known = [name for table in named for name in columns(table, shape)]
    if unknown := re.search(r"no such column: (?:\w+\.)?(\w+)", text):
        near = choices(unknown[1], known, 0).partition("Did you mean ")[2].partition("?")[0]
        text += f" (did you mean {near}?)" if near else ""
    listed = "; ".join(f"{table}: {', '.join(columns(table, shape))}" for table in named)
    return ConfigError(
        f"SQL: {text}. Columns of {listed}. Views: {', '.join(ROLES)}; tables of a role: {', '.join(TABLES)}."
    )


# --- bringing rows together --------------------------------------------------------------------------


def _gather(
    db: sqlite3.Connection,
    root: Path,
    table: str,
    role: str,
    read: set[str],
    fetch: _Fetch,
    problems: list[str],
) -> None:
    """Make `table`: a view over the copied columns, in which the wide ones are fetched."""
    known = columns(table, role)
    lazy = [n for n in known if n in read and n in _LAZY and table in (*ROLES, "responses")]
    copied = [n for n in known if n in read and n not in lazy and n != _DESCRIPTOR]
    held = copied + [n for n in ("input_hash", "sample") if lazy and n not in copied]
    typed = "".join(f", {n} {_SQL_TYPES[known[n]]}" for n in held)
    db.execute(f"CREATE TABLE _{table} (_file INTEGER{typed})")
    put = f"INSERT INTO _{table} VALUES ({', '.join('?' * (len(held) + 1))})"

    def copy(source: Source) -> None:
        who = {
            "provider": source.descriptor.provider,
            schema.ANSWERED_BY[role]: source.descriptor.model,
            "descriptor_hash": source.descriptor.hash,
        }
        given: list[Any] = [fetch.number(source)]
        parts = ["?"]
        for name in held:
            if name in who:
                parts.append("?")
                given.append(who[name])
            elif name == "key" and table != "tombstones":
                parts.append("? || ':' || input_hash || ':' || sample")
                given.append(source.descriptor.hash)
            else:
                parts.append(name)
        try:
            db.executemany(put, source.db.execute(f"SELECT {', '.join(parts)} FROM {table}", given))
        except sqlite3.Error:
            db.execute(f"DELETE FROM _{table} WHERE rowid > ?", (filled,))  # of a damaged file, no row
            raise

    filled = 0
    db.execute("BEGIN")
    for _ in each(root, role, copy, problems):
        filled = db.execute(f"SELECT coalesce(max(rowid), 0) FROM _{table}").fetchone()[0]
    db.execute("COMMIT")
    shown = [
        name
        if name in held
        else f"_fetch('{name}', _file, input_hash, sample) AS {name}"
        if name in lazy
        else f"_descriptor(_file) AS {name}"
        if name == _DESCRIPTOR
        else f"NULL AS {name}"  # nobody reads it; `*` and NATURAL JOIN keep their meaning
        for name in known
    ]
    db.execute(f"CREATE VIEW {table} AS SELECT {', '.join(shown)} FROM _{table}")


class _Fetch:
    """Values that are not copied: descriptors, and wide ones by key from the files that hold them.

    What cannot be read is null, and told among the problems.
    """

    def __init__(self, problems: list[str]) -> None:
        self._problems = problems
        self._paths: list[Path] = []
        self._descriptors: list[str] = []
        self._open: OrderedDict[int, sqlite3.Connection | None] = OrderedDict()

    def number(self, source: Source) -> int:
        """The number of a file, to be given to a call."""
        self._paths.append(source.path)
        self._descriptors.append(source.descriptor.text)
        return len(self._paths) - 1

    def descriptor(self, number: int) -> str:
        """The descriptor of a file's answers, as canonical JSON."""
        return self._descriptors[number]

    def __call__(self, column: str, number: int, input_hash: str, sample: int) -> Any:
        try:
            db = self._reader(number)
            sql = f"SELECT {column} FROM responses WHERE input_hash = ? AND sample = ?"
            row = None if db is None else db.execute(sql, (input_hash, sample)).fetchone()
        except Exception as error:  # SQLite would hide what it was
            self._tell(f"{self._paths[number]}: some values cannot be read and are null here: {error}.")
            return None
        if row is None:
            self._tell(f"{self._paths[number]}: rows were deleted while the query ran; they are null here.")
            return None
        return row[0]

    def _tell(self, problem: str) -> None:
        if problem not in self._problems:
            self._problems.append(problem)

    def _reader(self, number: int) -> sqlite3.Connection | None:
        if number not in self._open:
            if len(self._open) >= _FILES_OPEN:
                _close(self._open.popitem(last=False)[1:])
            self._open[number] = schema.open_reader(self._paths[number])
        self._open.move_to_end(number)
        return self._open[number]

    def close(self) -> None:
        """Close the files."""
        _close(self._open.values())
        self._open.clear()


def _close(connections: Iterable[sqlite3.Connection | None]) -> None:
    for db in connections:
        if db is not None:
            db.close()
