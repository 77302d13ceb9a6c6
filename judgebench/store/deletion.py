"""Deletion by column: which rows of a role's view match, what goes with them, and their removal.

The unit is a row of the view. `subjects` removes the matching rows and then the answers that are
left without any; `answers` removes the answers of the matching rows, whoever else uses them. Each
database is one transaction, so a killed deletion is finished by running it again. What is marked
for refresh stays, serves nobody, and is superseded by the next answer.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from judgebench.errors import ConfigError, choices
from judgebench.request import Descriptor
from judgebench.store import layout, schema
from judgebench.store.schema import now

SCOPES = ("subjects", "answers")
ANY_MODEL = "any_model"
RANGED = frozenset({"created_at", "cost_usd", "latency_s", "input_tokens", "output_tokens"})
DESCRIPTOR = "descriptor"


@dataclass
class Condition:
    """`where` as SQL over a view, and as a test of descriptors."""

    sql: str
    values: list[Any]
    on_attempts: bool  # whether the attempts table has all these columns
    descriptor: Mapping[str, Any]

    def fits(self, descriptor: Descriptor) -> bool:
        """Whether a descriptor has the wanted settings."""
        fields = json.loads(descriptor.text)
        for path, wanted in self.descriptor.items():
            value: Any = fields
            for step in ("settings." + path if path not in fields else path).split("."):
                value = value.get(step) if isinstance(value, dict) else None
            if not _same(value, wanted):
                return False
        return True


def condition(role: str, where: Mapping[str, Any]) -> Condition:
    """Parse `where.COLUMN=VALUE` conditions, all of which must hold.

    A value is a text, a list (any of them), a glob (`*`, `?`), null, a comparison (`<2026-01-01`,
    `>=…`) or a range (`2026-01-01..2026-02-01`, without its end). `any_model` is either slot;
    `descriptor.NAME` a setting.

    Raises:
        ConfigError: no condition, or a column that the role's view lacks.
    """
    named = schema.ANSWERED_BY[role]
    columns = [named if c == "answered_by" else c for c in schema.VIEW_COLUMNS]
    parts: list[str] = []
    values: list[Any] = []
    on_attempts = True
    settings: dict[str, Any] = {}
    for column, wanted in where.items():
        if column == DESCRIPTOR:
            settings = _flat(wanted)
            continue
        if column == ANY_MODEL:
            both = [_compare(slot, wanted) for slot in ("model_a", "model_b")]
            parts.append(f"({both[0][0]} OR {both[1][0]})")
            values += both[0][1] + both[1][1]
            continue
        if column not in columns:
            raise ConfigError(f"where.{column}: {choices(column, [*columns, ANY_MODEL, 'descriptor.NAME'])}")
        on_attempts &= column in schema.attempts.columns
        sql, bound = _compare(column, wanted)
        parts.append(sql)
        values += bound
    if not parts and not settings:
        raise ConfigError("Nothing is selected: name at least one column, for example where.benchmark=NAME.")
    return Condition(" AND ".join(parts) or "1", values, on_attempts, settings)


EVERYTHING = Condition("1", [], True, {})


def conditions(role: str | None, where: Mapping[str, Any]) -> dict[str, Condition]:
    """`where` for the role, or for every role whose view has all the columns. Empty: everything.

    Raises:
        ConfigError: a column that no role has.
    """
    roles = [role] if role else layout.ROLES
    if not where:
        return dict.fromkeys(roles, EVERYTHING)
    found: dict[str, Condition] = {}
    problem: ConfigError | None = None
    for name in roles:
        try:
            found[name] = condition(name, where)
        except ConfigError as error:
            problem = error
    if not found and problem is not None:
        raise problem
    return found


def _flat(tree: Any, before: str = "") -> dict[str, Any]:
    if not isinstance(tree, Mapping):
        return {before: tree}
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= _flat(value, f"{before}.{name}" if before else str(name))
    return flat


def _same(value: Any, wanted: Any) -> bool:
    if wanted is None or value is None:
        return value is wanted
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(wanted) == float(value)
        except ValueError:
            return False
    return str(value).lower() == str(wanted).lower() if isinstance(value, bool) else str(value) == str(wanted)


def _compare(column: str, wanted: Any) -> tuple[str, list[Any]]:
    if wanted is None:
        return f"{column} IS NULL", []
    if isinstance(wanted, Sequence) and not isinstance(wanted, str):
        several = [_compare(column, item) for item in wanted]
        if not several:
            raise ConfigError(f"where.{column}=[] selects nothing.")
        return f"({' OR '.join(sql for sql, _ in several)})", [v for _, vs in several for v in vs]
    text = str(wanted)
    for operator in ("<=", ">=", "<", ">"):
        if text.startswith(operator):
            return f"{column} {operator} ?", [text.removeprefix(operator).strip()]
    if column in RANGED and (span := re.fullmatch(r"(.+?)\.\.(.+)", text)):
        return f"({column} >= ? AND {column} < ?)", [span[1], span[2]]
    if "*" in text or "?" in text:
        # GLOB has classes in brackets; here a bracket is only a bracket.
        return f"{column} GLOB ?", [text.replace("[", "[[]")]
    return f"{column} = ?", [text]


@dataclass
class Match:
    """What a deletion would take from one database."""

    path: Path
    descriptor: Descriptor
    rows: Counter[str] = field(default_factory=Counter)  # benchmark -> rows of the view
    answers: int = 0  # raw answers that go
    kept: int = 0  # raw answers that stay, since others use them
    cost_usd: float = 0.0
    unpriced: int = 0
    tokens: int = 0
    # (benchmark, model) -> rows that go with the answers though nobody named them
    losing: Counter[tuple[str, str]] = field(default_factory=Counter)
    lost_rows: int = 0
    attempts: int = 0  # failed tries with the same columns


def find(root: Path, role: str, wanted: Condition, scope: str) -> Iterator[Match]:
    """What would go, database by database; reads only."""
    for path, descriptor in _databases(root, role, wanted):
        db = schema.open_reader(path)
        if db is None:
            continue
        with closing(db):
            match = _measure(db, path, descriptor, role, wanted, scope)
        if match is not None:
            yield match


def delete(root: Path, role: str, wanted: Condition, scope: str, *, hard: bool = False) -> int:
    """Remove what `find` tells, and leave tombstones. Returns how many rows of the view went.

    `hard` overwrites what is removed and rewrites the file, so that no byte of it is left there; the
    tombstones, which hold hashes only, stay: without them a merge would bring the rows back.
    """
    gone = 0
    for path, _ in _databases(root, role, wanted):
        with closing(schema.open_writer(path, role, {})) as db:
            if hard:
                db.execute("PRAGMA secure_delete=ON")
            db.execute("BEGIN IMMEDIATE")
            removed = _delete_one(db, role, wanted, scope)
            db.execute("COMMIT")
            gone += removed
            if hard:  # also where nothing matched: an earlier deletion may have left its pages
                db.execute("VACUUM")
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return gone


def mark(root: Path, role: str, wanted: Condition) -> int:
    """Mark the answers of matching rows to be asked anew. Returns how many were marked."""
    marked = 0
    for path, _ in _databases(root, role, wanted):
        with closing(schema.open_writer(path, role, {})) as db:
            db.execute("BEGIN IMMEDIATE")
            _pick(db, role, wanted, "answers")
            marked += db.execute(
                f"UPDATE responses SET refresh_at = ? WHERE origin != 'shipped' AND {_OF_DOOMED}", (now(),)
            ).rowcount
            db.execute("COMMIT")
    return marked


def _databases(root: Path, role: str, wanted: Condition) -> Iterator[tuple[Path, Descriptor]]:
    for path in layout.databases(root, role):
        descriptor = layout.read_metadata(path.parent)
        if wanted.fits(descriptor):
            yield path, descriptor


_PICK = "CREATE TEMP TABLE picked AS SELECT subject_key, input_hash, sample FROM {role} WHERE {sql}"
_DOOMED = {
    # Answers that lose their last subject with the picked rows.
    "subjects": """
        CREATE TEMP TABLE doomed AS SELECT DISTINCT p.input_hash, p.sample FROM picked p WHERE NOT EXISTS (
            SELECT 1 FROM subjects s WHERE s.input_hash = p.input_hash AND s.sample = p.sample
            AND s.subject_key NOT IN (SELECT subject_key FROM picked))""",
    "answers": "CREATE TEMP TABLE doomed AS SELECT DISTINCT input_hash, sample FROM picked",
}
_OF_DOOMED = "(input_hash, sample) IN (SELECT input_hash, sample FROM doomed)"


def _pick(db: sqlite3.Connection, role: str, wanted: Condition, scope: str) -> int:
    db.execute("DROP TABLE IF EXISTS temp.picked")
    db.execute("DROP TABLE IF EXISTS temp.doomed")
    db.execute(_PICK.format(role=role, sql=wanted.sql), wanted.values)
    db.execute("CREATE INDEX temp.picked_by_key ON picked (subject_key)")
    db.execute(_DOOMED[scope])
    return int(db.execute("SELECT count(*) FROM picked").fetchone()[0])


def _measure(
    db: sqlite3.Connection, path: Path, descriptor: Descriptor, role: str, wanted: Condition, scope: str
) -> Match | None:
    picked = _pick(db, role, wanted, scope)
    match = Match(path, descriptor)
    if wanted.on_attempts and wanted.sql != "1":
        sql = f"SELECT count(*) FROM attempts WHERE {wanted.sql}"
        match.attempts = int(db.execute(sql, wanted.values).fetchone()[0])
    if not picked and not match.attempts:
        return None
    match.rows.update(
        dict(
            db.execute(
                "SELECT benchmark, count(*) FROM subjects WHERE subject_key IN "
                "(SELECT subject_key FROM picked) GROUP BY 1"
            )
        )
    )
    match.answers = int(db.execute("SELECT count(*) FROM doomed").fetchone()[0])
    shared = db.execute("SELECT count(*) FROM (SELECT DISTINCT input_hash, sample FROM picked)").fetchone()[0]
    match.kept = int(shared) - match.answers
    # Money is a property of answers, so it is summed there and never over the view.
    cost, unpriced, tokens = db.execute(
        "SELECT coalesce(sum(cost_usd), 0), coalesce(sum(cost_usd IS NULL), 0), "
        "coalesce(sum(coalesce(input_tokens, 0) + coalesce(output_tokens, 0)), 0) "
        f"FROM responses WHERE origin = 'paid' AND {_OF_DOOMED}"
    ).fetchone()
    match.cost_usd, match.unpriced, match.tokens = float(cost), int(unpriced), int(tokens)
    if scope == "answers":
        others = db.execute(
            f"SELECT benchmark, model_a, model_b, count(*) FROM subjects WHERE {_OF_DOOMED} AND subject_key "
            "NOT IN (SELECT subject_key FROM picked) GROUP BY 1, 2, 3"
        )
        for benchmark, model_a, model_b, count in others:
            match.lost_rows += count
            for model in {model_a, model_b} - {None}:
                match.losing[benchmark, model] += count
    return match


def _delete_one(db: sqlite3.Connection, role: str, wanted: Condition, scope: str) -> int:
    picked = _pick(db, role, wanted, scope)
    subjects = "subject_key IN (SELECT subject_key FROM picked)"
    if scope == "answers":
        subjects = f"({subjects} OR {_OF_DOOMED})"
    instant = now()
    db.execute(
        f"INSERT OR REPLACE INTO tombstones SELECT 'subject', subject_key, ? FROM subjects WHERE {subjects}",
        (instant,),
    )
    db.execute(
        "INSERT OR REPLACE INTO tombstones SELECT 'answer', input_hash || ':' || sample, ? FROM doomed",
        (instant,),
    )
    gone = db.execute(f"DELETE FROM subjects WHERE {subjects}").rowcount
    for table in ("responses", "attempts", "superseded"):
        db.execute(f"DELETE FROM {table} WHERE {_OF_DOOMED}")
    if wanted.on_attempts and wanted.sql != "1":
        db.execute(f"DELETE FROM attempts WHERE {wanted.sql}", wanted.values)
    return int(gone) if picked else 0
