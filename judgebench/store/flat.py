"""The flat table of a role, as people read it: the view's columns, and who answered, row by row.

Rows are chosen by the same conditions as a deletion. Reads only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from judgebench.store import layout, schema
from judgebench.store.deletion import Condition, condition

# Behind the view's own: `descriptor` is canonical JSON.
WHO_ANSWERED = ("provider", "descriptor_hash", "descriptor")
_ORDER = "benchmark, model_a, model_b, instruction_id, turn, orientation, sample, subject_key"


def columns(role: str) -> dict[str, type]:
    """Column -> str, int or float, in the order of `rows`."""
    kinds = {
        column.name: column.type.python_type
        for table in (schema.responses, schema.subjects)
        for column in table.columns
    }
    named = {"answered_by": schema.ANSWERED_BY[role]}
    view = {named.get(name, name): kinds.get(name, str) for name in schema.VIEW_COLUMNS}
    return view | dict.fromkeys(WHO_ANSWERED, str)


def rows(root: Path, role: str, where: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows that meet `where` (all of them if it is empty), database by database, in a fixed order.

    Raises:
        ConfigError: a column that the role's view lacks.
    """
    wanted = condition(role, where) if where else Condition("1", [], True, {})
    names = [*columns(role)][: -len(WHO_ANSWERED)]
    sql = f"SELECT {', '.join(names)} FROM {role} WHERE {wanted.sql} ORDER BY {_ORDER}"
    for path in layout.databases(root, role):
        descriptor = layout.read_metadata(path.parent)
        db = schema.open_reader(path) if wanted.fits(descriptor) else None
        if db is None:
            continue
        with closing(db):
            who = dict(
                zip(WHO_ANSWERED, (descriptor.provider, descriptor.hash, descriptor.text), strict=True)
            )
            for row in db.execute(sql, wanted.values):
                yield dict(zip(names, row, strict=True)) | who
