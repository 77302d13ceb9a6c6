"""The shape of a role database, its versions, and how a connection to it is opened.

Both roles have the same tables: `responses` (one row a raw answer), `subjects` (what an answer was
used for), `attempts` (what was paid for or tried and gave no usable answer), `superseded`, `claims`,
`tombstones`, `canaries`, `meta`; and one view named after the role, the flat table that people read
and delete by. The store never interprets an answer.
"""

from __future__ import annotations

import errno
import random
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import (
    Column,
    Float,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
)
from sqlalchemy.dialects import sqlite as dialect
from sqlalchemy.schema import CreateIndex, CreateTable

from judgebench.errors import StoreError
from judgebench.store.filesystem import is_network

SCHEMA_VERSION = 2
BUSY_S = 30  # how long to wait for another writer
IN_CHUNK = 500  # host parameters of one IN (…): 134,000 to 172,000 rows a second here, see docs/store.md
# Who answered, as the role's view calls it.
ANSWERED_BY = {"completions": "model", "judgements": "judge"}

metadata = MetaData()


def _answer_columns() -> list[Column[object]]:
    return [
        Column("input_hash", Text, nullable=False),
        Column("sample", Integer, nullable=False),
        Column("input_text", Text, nullable=False),
        Column("output", Text, nullable=False),
        Column("reasoning", Text),
        Column("finish_reason", Text),
        Column("top_logprobs", Text),
        Column("origin", Text, nullable=False),
        Column("served_model", Text),
        Column("fingerprint", Text),
        Column("backend_version", Text),
        Column("input_tokens", Integer),
        Column("cached_tokens", Integer),
        Column("output_tokens", Integer),
        Column("reasoning_tokens", Integer),
        Column("cost_usd", Float),
        Column("latency_s", Float),
        Column("created_at", Text, nullable=False),
        Column("created_by", Text, nullable=False),
        Column("run_id", Text, nullable=False),
    ]


def _subject_columns() -> list[Column[object]]:
    return [
        Column("benchmark", Text, nullable=False),
        Column("instruction_id", Text, nullable=False),
        Column("turn", Integer, nullable=False),
        Column("model_a", Text, nullable=False),
        Column("model_b", Text),
        Column("orientation", Text),
        Column("protocol", Text),
        Column("template_hash", Text),
        Column("answer_a", Text),
        Column("answer_b", Text),
    ]


responses = Table(
    "responses",
    metadata,
    *_answer_columns(),
    Column("refresh_at", Text),  # since when it shall be asked anew; it serves nobody until then
    PrimaryKeyConstraint("input_hash", "sample"),
)
subjects = Table(
    "subjects",
    metadata,
    # A hash of all columns below but run_id: UNIQUE over nullable columns does not hold in SQL.
    Column("subject_key", Text, primary_key=True),
    Column("input_hash", Text, nullable=False),
    Column("sample", Integer, nullable=False),
    *_subject_columns(),
    Column("run_id", Text, nullable=False),
    Index("subjects_by_answer", "input_hash", "sample"),
)
attempts = Table(
    "attempts",
    metadata,
    Column("input_hash", Text, nullable=False),
    Column("sample", Integer, nullable=False),
    *_subject_columns(),
    Column("number", Integer),
    Column("reason", Text, nullable=False),
    Column("detail", Text),
    Column("output", Text),
    Column("finish_reason", Text),
    Column("input_tokens", Integer),
    Column("output_tokens", Integer),
    Column("cost_usd", Float),
    Column("created_at", Text, nullable=False),
    Column("run_id", Text, nullable=False),
)
superseded = Table("superseded", metadata, *_answer_columns(), Column("superseded_at", Text, nullable=False))
claims = Table(
    "claims",
    metadata,
    Column("input_hash", Text, nullable=False),
    Column("sample", Integer, nullable=False),
    Column("owner", Text, nullable=False),
    Column("expires_at", Float, nullable=False),
    PrimaryKeyConstraint("input_hash", "sample"),
)
tombstones = Table(
    "tombstones",
    metadata,
    Column("scope", Text, nullable=False),  # 'subject' or 'answer'
    Column("key", Text, nullable=False),  # subject_key, or input_hash:sample
    Column("deleted_at", Text, nullable=False),
    PrimaryKeyConstraint("scope", "key"),
)
# What a model says to a fixed question, so that a checkpoint that changes under its name is noticed.
canaries = Table(
    "canaries",
    metadata,
    Column("input_hash", Text, nullable=False),
    Column("output", Text, nullable=False),
    Column("served_model", Text),
    Column("fingerprint", Text),
    Column("backend_version", Text),
    Column("cost_usd", Float),
    Column("created_at", Text, nullable=False),
    Column("run_id", Text, nullable=False),
)
meta = Table("meta", metadata, Column("key", Text, primary_key=True), Column("value", Text, nullable=False))

ANSWER_COLUMNS = tuple(column.name for column in _answer_columns())
SUBJECT_COLUMNS = tuple(column.name for column in _subject_columns())
# The view's columns, in its order; `answered_by` is `model` or `judge` there.
VIEW_COLUMNS = (
    *SUBJECT_COLUMNS,
    "answered_by",
    *(c for c in ANSWER_COLUMNS if c != "run_id"),
    "subject_run_id",
    "run_id",
    "subject_key",
)


def now() -> str:
    """The present instant, UTC, to the millisecond, as the store writes it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def insert(table: str, columns: Iterable[str]) -> str:
    """SQL that adds a row unless its key is there."""
    names = list(columns)
    return f"INSERT OR IGNORE INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"


def in_chunks(sql: str, values: Sequence[str]) -> Iterator[tuple[str, Sequence[str]]]:
    """`sql`, which holds one `IN (%s)`, for as many values at a time as SQLite likes."""
    for start in range(0, len(values), IN_CHUNK):
        chunk = values[start : start + IN_CHUNK]
        yield sql % ",".join("?" * len(chunk)), chunk


def _ddl(table: Table) -> list[str]:
    rendered = [str(CreateTable(table, if_not_exists=True).compile(dialect=dialect.dialect()))]
    rendered += [
        str(CreateIndex(index, if_not_exists=True).compile(dialect=dialect.dialect()))
        for index in sorted(table.indexes, key=lambda i: str(i.name))
    ]
    return rendered


def _view(role: str) -> str:
    named = {
        "answered_by": f"(SELECT value FROM meta WHERE key = 'model') AS {ANSWERED_BY[role]}",
        "subject_run_id": "s.run_id AS subject_run_id",
        "run_id": "r.run_id AS run_id",
    }
    subject_side = {*SUBJECT_COLUMNS, "subject_key"}
    columns = ", ".join(
        named.get(c, f"s.{c} AS {c}" if c in subject_side else f"r.{c} AS {c}") for c in VIEW_COLUMNS
    )
    return (
        f"CREATE VIEW IF NOT EXISTS {role} AS SELECT {columns} FROM subjects AS s "
        "JOIN responses AS r ON r.input_hash = s.input_hash AND r.sample = s.sample"
    )


def _create(db: sqlite3.Connection, role: str) -> None:
    for table in metadata.sorted_tables:
        for statement in _ddl(table):
            db.execute(statement)
    db.execute(_view(role))


def _to_2(db: sqlite3.Connection) -> None:
    db.execute("ALTER TABLE responses ADD COLUMN refresh_at TEXT")
    for statement in _ddl(canaries):
        db.execute(statement)


# MIGRATIONS[n] brings a database from version n to n + 1, in the caller's transaction.
MIGRATIONS: dict[int, Callable[[sqlite3.Connection], None]] = {1: _to_2}


def _as_current(db: sqlite3.Connection, version: int) -> None:
    """Let today's queries read an older database that is not to be changed: temporary views stand in."""
    if version < 2:
        answer = ", ".join(ANSWER_COLUMNS)
        db.execute(f"CREATE TEMP VIEW responses AS SELECT {answer}, NULL AS refresh_at FROM main.responses")
        empty = ", ".join(f"NULL AS {name}" for name in canaries.columns.keys())  # noqa: SIM118
        db.execute(f"CREATE TEMP VIEW canaries AS SELECT {empty} WHERE 0")


def open_writer(path: Path, role: str, facts: dict[str, str]) -> sqlite3.Connection:
    """A connection that may write; creates or migrates the database. `facts` go into `meta`.

    Raises:
        StoreError: the folder cannot be written, or the file is no database of ours.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        # The page size counts only before the first write, WAL stays with the file. 8 KB pages
        # hold a typical row whole; FULL makes a commit survive a power cut, not only a crash.
        journal = "DELETE" if is_network(path.parent) else "WAL"
        for pragma in ("page_size=8192", f"journal_mode={journal}", "synchronous=FULL"):
            _patiently(db, f"PRAGMA {pragma}")
        version = check_version(db, path)
        if version < SCHEMA_VERSION:
            db.execute("BEGIN IMMEDIATE")
            version = check_version(db, path)  # another process may have been faster
            if version == 0:
                _create(db, role)
            else:
                for number in range(version, SCHEMA_VERSION):
                    MIGRATIONS[number](db)
            db.executemany("INSERT OR IGNORE INTO meta VALUES (?, ?)", {"role": role, **facts}.items())
            db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
            db.execute("COMMIT")
    except (sqlite3.Error, OSError) as error:
        raise StoreError(f"The store cannot write {path}: {error}.{way_out(error)}") from error
    return db


def _patiently(db: sqlite3.Connection, sql: str) -> None:
    """Execute where SQLite does not wait by itself: it answers `locked` at once while another
    process turns the same new file to WAL."""
    until = time.monotonic() + BUSY_S
    while True:
        try:
            db.execute(sql)
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise
            time.sleep(0.005 + 0.02 * random.random())


def open_reader(path: Path) -> sqlite3.Connection | None:
    """A read-only connection, or null where there is no database yet.

    A database that another process writes is read as of its last commit. On a folder that may not
    be written, SQLite cannot make the shared-memory file of WAL mode; then the file is opened as
    immutable, but only if no `-wal` file lies beside it (its rows would be missed).
    """
    if not path.exists():
        return None
    quoted = quote(str(path.absolute()))
    wal = path.with_name(path.name + "-wal")
    modes = ["mode=ro"] if wal.exists() else ["mode=ro", "mode=ro&immutable=1"]
    problem: Exception | None = None
    for mode in modes:
        try:
            db = sqlite3.connect(
                f"file:{quoted}?{mode}",
                uri=True,
                timeout=BUSY_S,
                isolation_level=None,
                check_same_thread=False,
            )
            version = check_version(db, path)
            if version == 0:
                db.close()
                return None  # created, not yet set up by its writer
            _as_current(db, version)
            db.execute("SELECT 1 FROM responses LIMIT 1")
            return db
        except sqlite3.Error as error:
            problem = error
    raise StoreError(f"The store cannot read {path}: {problem}.{way_out(problem)}")


def check_version(db: sqlite3.Connection, path: Path) -> int:
    """The schema version of a database; a newer one than ours is refused."""
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"{path} has store schema {version}; this judgebench knows up to {SCHEMA_VERSION}. "
            "Upgrade judgebench (pip install -U judgebench), or name another store.root. Nothing was changed."
        )
    return version


def way_out(error: Exception | None) -> str:
    """What to do about an error of SQLite or of the disk, as a sentence to add; empty where unknown."""
    text = str(error)
    if "malformed" in text or "not a database" in text:
        return " The file is damaged; it was left as it is. Save what can be read: judgebench repair."
    if "readonly" in text or isinstance(error, PermissionError):
        return " The folder may not be written: name another one with store.root=…"
    if "full" in text or getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
        return " The disk, or your quota of it, is full: free some, or name another store.root."
    if "disk I/O error" in text:
        return " The disk or the network file system failed: see judgebench verify."
    return ""
