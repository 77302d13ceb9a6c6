"""The database that a process writes a descriptor's answers to."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from judgebench.request import Descriptor
from judgebench.store import layout, schema


def writable(root: Path, role: str, descriptor: Descriptor) -> sqlite3.Connection:
    """Open, and where it is new make, the database of a descriptor, with its `metadata.json`.

    Raises:
        StoreError: the folder cannot be written, or the file is no database of ours.
    """
    path = layout.database(root, role, descriptor)
    facts = {
        "provider": descriptor.provider,
        "model": descriptor.model,
        "descriptor_hash": descriptor.hash,
        "descriptor": descriptor.text,
    }
    db = schema.open_writer(path, role, facts)
    layout.write_metadata(path.parent, descriptor)
    return db
