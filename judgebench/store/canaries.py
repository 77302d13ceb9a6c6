"""What models said to a fixed question, kept beside their answers; see `judgebench.canary`."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from judgebench.request import Descriptor
from judgebench.store import database, layout, schema
from judgebench.store.schema import now

_KEEP = schema.insert("canaries", schema.canaries.columns.keys())


class Canary(NamedTuple):
    """What a model said to the fixed question, and its server of itself."""

    output: str
    served_model: str | None
    fingerprint: str | None
    backend_version: str | None


_LAST = (
    f"SELECT created_at, {', '.join(Canary._fields)} FROM canaries WHERE input_hash = ? "
    "ORDER BY created_at DESC LIMIT 1"
)


def last(root: Path, role: str, descriptor: Descriptor, input_hash: str) -> tuple[str, Canary] | None:
    """When a canary was last kept, and what it was."""
    kept = []
    for path in layout.files(root, role, descriptor):
        db = schema.open_reader(path)
        if db is not None:
            with closing(db):
                kept += db.execute(_LAST, (input_hash,)).fetchall()
    row = max(kept, default=None, key=lambda row: str(row[0]))
    return None if row is None else (row[0], Canary._make(row[1:]))


def keep(
    root: Path,
    role: str,
    descriptor: Descriptor,
    input_hash: str,
    canary: Canary,
    cost_usd: float | None,
    run_id: str,
) -> None:
    """Keep what a model said."""
    with closing(database.writable(root, role, descriptor)) as db:
        db.execute(_KEEP, (input_hash, *canary, cost_usd, now(), run_id))
