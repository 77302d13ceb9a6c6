"""What a store holds, for people: counts by descriptor, and one answer with everything around it.

Reads only, a file at a time, each as of one instant. A file that cannot be read is named among the
`problems` (a sentence each) and passed over. How it looks is told elsewhere.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from judgebench.errors import ConfigError, StoreError
from judgebench.request import Descriptor, Key
from judgebench.store import layout, schema
from judgebench.store.deletion import EVERYTHING, Condition

NAMED = 5  # answers that an error names where a key fits several

T = TypeVar("T")


class Source(NamedTuple):
    """One database file, open."""

    path: Path
    descriptor: Descriptor
    db: sqlite3.Connection


def each(
    root: Path, role: str, read: Callable[[Source], T], problems: list[str], *, descriptor_hash: str = ""
) -> Iterator[T]:
    """What `read` makes of each database file of a role whose descriptor's hash begins like this."""
    for path in layout.databases(root, role):
        if not path.parent.name.startswith(descriptor_hash):
            continue
        try:
            descriptor = layout.read_metadata(path.parent)
            db = schema.open_reader(path)
            if db is None:
                continue
            with closing(db):
                db.execute("BEGIN")  # one snapshot, whatever is written meanwhile
                made = read(Source(path, descriptor, db))
        except StoreError as error:
            problems.append(str(error))
        except sqlite3.Error as error:
            problems.append(f"{path} cannot be read: {error}.{schema.way_out(error)}")
        except (OSError, ValueError, KeyError, TypeError) as error:
            told = f"{path.parent / 'metadata.json'} cannot be read ({type(error).__name__})"
            problems.append(f"{told}: mend it with judgebench repair.")
        else:
            yield made


# --- what there is -----------------------------------------------------------------------------------


@dataclass
class Entry:
    """What is stored of one descriptor in one role. Money and tokens are of answers, paid ones only."""

    role: str
    descriptor: Descriptor
    rows: int = 0  # of the role's view
    answers: int = 0
    size: int = 0  # bytes of its files, whatever the conditions
    paid: int = 0  # answers
    cost_usd: float = 0.0
    unpriced: int = 0  # paid answers of unknown price
    input_tokens: int = 0
    output_tokens: int = 0
    first: str | None = None  # when the first answer came, and the last
    last: str | None = None
    benchmarks: Counter[str] = field(default_factory=Counter)  # rows
    failed: Counter[str] = field(default_factory=Counter)  # tries, by reason

    def add(self, other: Entry) -> None:
        """Take in another file of the same descriptor."""
        for name in (
            *("rows", "answers", "size", "paid", "cost_usd"),
            *("unpriced", "input_tokens", "output_tokens"),
        ):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.first = min(filter(None, (self.first, other.first)), default=None)
        self.last = max(filter(None, (self.last, other.last)), default=None)
        self.benchmarks += other.benchmarks
        self.failed += other.failed


_COUNTS = """
    SELECT count(*), coalesce(sum(origin = 'paid'), 0),
    coalesce(sum(CASE WHEN origin = 'paid' THEN cost_usd END), 0),
    coalesce(sum(origin = 'paid' AND cost_usd IS NULL), 0),
    coalesce(sum(CASE WHEN origin = 'paid' THEN input_tokens END), 0),
    coalesce(sum(CASE WHEN origin = 'paid' THEN output_tokens END), 0),
    min(created_at), max(created_at) FROM responses WHERE """


def entries(root: Path, wanted: Mapping[str, Condition], problems: list[str]) -> list[Entry]:
    """What is stored, by role, provider, model and descriptor. `wanted`: of `conditions`."""
    found: dict[tuple[str, str], Entry] = {}
    for role, chosen in wanted.items():

        def read(source: Source, role: str = role, chosen: Condition = chosen) -> Entry | None:
            return _entry(source, role, chosen) if chosen.fits(source.descriptor) else None

        for entry in each(root, role, read, problems):
            if entry is None:
                continue
            known = found.setdefault((role, entry.descriptor.hash), entry)
            if known is not entry:
                known.add(entry)
    kept = [e for e in found.values() if e.rows or e.failed or wanted[e.role] is EVERYTHING]
    kept.sort(key=lambda e: (e.role, e.descriptor.provider, e.descriptor.model, e.descriptor.hash))
    return kept


def _entry(source: Source, role: str, chosen: Condition) -> Entry:
    entry = Entry(role, source.descriptor)
    db, sql, values = source.db, chosen.sql, chosen.values
    entry.benchmarks.update(
        dict(db.execute(f"SELECT benchmark, count(*) FROM {role} WHERE {sql} GROUP BY 1", values))
    )
    entry.rows = entry.benchmarks.total()
    if chosen is EVERYTHING:
        counts = db.execute(f"{_COUNTS} 1")
    else:
        picked = f"(input_hash, sample) IN (SELECT input_hash, sample FROM {role} WHERE {sql})"
        counts = db.execute(_COUNTS + picked, values)
    entry.answers, entry.paid, entry.cost_usd, entry.unpriced, *rest = counts.fetchone()
    entry.input_tokens, entry.output_tokens, entry.first, entry.last = rest
    if chosen.on_attempts:
        reasons = db.execute(f"SELECT reason, count(*) FROM attempts WHERE {sql} GROUP BY 1", values)
        entry.failed.update(dict(reasons))
    entry.size = sum(
        beside.stat().st_size
        for beside in (source.path.with_name(source.path.name + end) for end in ("", "-wal"))
        if beside.exists()
    )
    return entry


# --- one answer --------------------------------------------------------------------------------------


class Lineage(NamedTuple):
    """A completion that a judgement showed. `output` is null where the store does not hold it."""

    slot: str  # answer_a, answer_b
    model: str | None
    key: str
    output: str | None


@dataclass
class Found:
    """One answer and everything around it; rows are column -> value."""

    role: str
    descriptor: Descriptor
    key: Key
    answer: dict[str, Any] | None = None  # null where nothing usable came
    subjects: list[dict[str, Any]] = field(default_factory=list)
    attempts: list[dict[str, Any]] = field(default_factory=list)
    superseded: list[dict[str, Any]] = field(default_factory=list)
    showed: list[Lineage] = field(default_factory=list)  # of a judgement
    used_by: list[dict[str, Any]] = field(default_factory=list)  # of a completion: rows of judgements


class Place(NamedTuple):
    """Where an answer is."""

    role: str
    key: Key


_KEYED = " UNION ".join(
    f"SELECT input_hash, sample FROM {table} WHERE input_hash >= :low AND input_hash < :high "
    "AND (:sample IS NULL OR sample = :sample)"
    for table in ("responses", "attempts", "superseded")
)


def locate(root: Path, roles: Sequence[str], text: str, problems: list[str]) -> Place:
    """The answer that a key means: `descriptor_hash:input_hash:sample`, of the hashes any beginning.

    The sample, and the descriptor's hash, may be left out where that leaves one answer.

    Raises:
        ConfigError: no key, or it fits none or several.
    """
    descriptor_hash, input_hash, sample = _parsed(text)
    bounds = {"low": input_hash, "high": input_hash + "g", "sample": sample}
    places: list[Place] = []
    for role in roles:

        def read(source: Source, role: str = role) -> list[Place]:
            rows = source.db.execute(_KEYED, bounds).fetchall()
            return [Place(role, Key(source.descriptor.hash, *row)) for row in rows]

        for found in each(root, role, read, problems, descriptor_hash=descriptor_hash):
            places += found
    places = list(dict.fromkeys(places))
    if len(places) == 1:
        return places[0]
    if places:
        raise ConfigError(f"{text!r} fits {_listed(places)}. Give more of it.")
    gone = _buried(root, roles, descriptor_hash, input_hash, sample)
    raise ConfigError(
        f"{text!r}: {gone or 'no answer of this key is in the store.'} A key is "
        "descriptor_hash:input_hash:sample, as judgebench query 'SELECT key FROM judgements' lists them."
    )


def _parsed(text: str) -> tuple[str, str, int | None]:
    parts = text.strip().rstrip("…").lower().split(":")  # a table may have cut it
    if len(parts) == 1:
        parts = ["", *parts]
    sample = parts[2] if len(parts) == 3 else ""
    hexadecimal = not set("".join(parts[:2])) - set("0123456789abcdef")
    if len(parts) > 3 or not hexadecimal or not (sample.isdecimal() or not sample) or not any(parts):
        raise ConfigError(
            f"{text!r} is no key: write descriptor_hash:input_hash:sample, of the hashes as much as tells "
            "them apart (3f2a:9c01:0), or choose by column: where.instruction_id=…"
        )
    return parts[0], parts[1], int(sample) if sample else None


def _listed(places: Sequence[Place]) -> str:
    named = ", ".join(f"{place.key} ({place.role})" for place in places[:NAMED])
    return f"{len(places):,} answers: {named}" + (" …" if len(places) > NAMED else "")


def _buried(root: Path, roles: Sequence[str], descriptor_hash: str, start: str, sample: int | None) -> str:
    end = "" if sample is None else f":{sample}"
    sql = "SELECT key, deleted_at FROM tombstones WHERE scope = 'answer' AND key >= ? AND key < ?"
    for role in roles:
        read = lambda source: source.db.execute(sql, (start, start + "g")).fetchall()  # noqa: E731
        for rows in each(root, role, read, [], descriptor_hash=descriptor_hash):
            for key, deleted_at in rows:
                if key.endswith(end):
                    return f"it was deleted on {deleted_at[:10]}."
    return ""


def select(
    root: Path, wanted: Mapping[str, Condition], limit: int | None, problems: list[str]
) -> list[Place]:
    """The first answers that meet the conditions, at most `limit`; without a limit it must be one.

    Raises:
        ConfigError: several, and no limit.
    """
    places: list[Place] = []
    for role, chosen in wanted.items():
        sql = f"SELECT DISTINCT input_hash, sample FROM {role} WHERE {chosen.sql}"
        if limit is not None:
            sql += f" ORDER BY created_at, input_hash, sample LIMIT {limit:d}"

        def read(source: Source, role: str = role, chosen: Condition = chosen, sql: str = sql) -> list[Place]:
            if not chosen.fits(source.descriptor):
                return []
            rows = source.db.execute(sql, chosen.values).fetchall()
            return [Place(role, Key(source.descriptor.hash, *row)) for row in rows]

        for found in each(root, role, read, problems):
            places += found
            if limit is not None and len(places) >= limit:
                return list(dict.fromkeys(places))[:limit]
    places = list(dict.fromkeys(places))
    if limit is None and len(places) > 1:
        raise ConfigError(f"where fits {_listed(places)}. Name one by its key, or the first few: limit=3.")
    return places


def detail(root: Path, place: Place, problems: list[str]) -> Found:
    """Everything about an answer that `locate` or `select` found."""
    role, key = place
    found: Found | None = None
    for part in each(
        root, role, lambda source: _around(source, place), problems, descriptor_hash=key.descriptor_hash
    ):
        if found is None:
            found = part
            continue
        found.answer = found.answer or part.answer
        for name in ("subjects", "attempts", "superseded"):
            getattr(found, name).extend(getattr(part, name))
    if found is None:
        raise StoreError(f"{key} is there no longer: {' '.join(problems) or 'it was deleted just now.'}")
    if role == "judgements":
        found.showed = _showed(root, found.subjects, problems)
    else:
        sql = (
            "SELECT judge, benchmark, instruction_id, protocol, orientation, model_a, model_b, input_hash, "
            "sample, output FROM judgements WHERE answer_a = :key OR answer_b = :key"
        )
        for rows in each(root, "judgements", lambda source: _rows(source, sql, {"key": str(key)}), problems):
            found.used_by += rows
    return found


def _around(source: Source, place: Place) -> Found:
    given = {"input_hash": place.key.input_hash, "sample": place.key.sample}
    at = "WHERE input_hash = :input_hash AND sample = :sample"
    answers = _rows(source, f"SELECT * FROM responses {at}", given)
    return Found(
        place.role,
        source.descriptor,
        place.key,
        answers[0] if answers else None,
        _rows(source, f"SELECT * FROM subjects {at} ORDER BY benchmark, instruction_id, model_a", given),
        _rows(source, f"SELECT * FROM attempts {at} ORDER BY created_at, number", given),
        _rows(source, f"SELECT * FROM superseded {at} ORDER BY superseded_at", given),
    )


def _rows(source: Source, sql: str, given: Mapping[str, Any]) -> list[dict[str, Any]]:
    cursor = source.db.execute(sql, given)
    names = [column[0] for column in cursor.description]
    known = {"descriptor_hash": source.descriptor.hash}
    return [dict(zip(names, row, strict=True)) | known for row in cursor]


def _showed(root: Path, subjects: Sequence[Mapping[str, Any]], problems: list[str]) -> list[Lineage]:
    slots = {
        (slot, subject[f"model_{slot[-1]}"], subject[slot]): None
        for subject in subjects
        for slot in ("answer_a", "answer_b")
        if subject[slot] is not None
    }
    return [Lineage(*slot, _output(root, slot[2], problems)) for slot in sorted(slots, key=str)]


def _output(root: Path, key: str, problems: list[str]) -> str | None:
    descriptor_hash, _, rest = key.partition(":")
    input_hash, _, sample = rest.partition(":")
    if not sample.isdecimal() or descriptor_hash == "frame":
        return None  # it came in a data frame and was never in the store
    sql = "SELECT output FROM responses WHERE input_hash = ? AND sample = ?"
    read = lambda source: source.db.execute(sql, (input_hash, int(sample))).fetchone()  # noqa: E731
    rows = list(each(root, "completions", read, problems, descriptor_hash=descriptor_hash))
    return next((str(row[0]) for row in rows if row is not None), None)
