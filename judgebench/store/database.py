"""The file that a process writes a descriptor's answers to.

On a local disk it is the descriptor's one database, in WAL mode, which any number of processes
share. On a network file system WAL does not work and locks cannot be trusted: there every process
writes a segment of its own, readers take the union, and `compact` folds segments into the database.
"""

from __future__ import annotations

import os
import secrets
import socket
import sqlite3
from functools import lru_cache
from pathlib import Path

from judgebench.request import Descriptor
from judgebench.store import layout, schema
from judgebench.store.filesystem import is_network
from judgebench.store.process import owner


def writable(root: Path, role: str, descriptor: Descriptor) -> sqlite3.Connection:
    """Open, and where it is new make, the file that this process writes, with its `metadata.json`.

    Raises:
        StoreError: the folder cannot be written, or the file is no database of ours.
    """
    return opened(path_for(root, role, descriptor), role, descriptor)


def path_for(root: Path, role: str, descriptor: Descriptor) -> Path:
    """Where `writable` writes."""
    main = layout.database(root, role, descriptor)
    if not is_network(main):
        return main
    return main.with_name(f"{role}.{_process(os.getpid())}.db")


def opened(path: Path, role: str, descriptor: Descriptor) -> sqlite3.Connection:
    """Open one file of a descriptor for writing."""
    facts = {
        "provider": descriptor.provider,
        "model": descriptor.model,
        "descriptor_hash": descriptor.hash,
        "descriptor": descriptor.text,
    }
    db = schema.open_writer(path, role, facts)
    if is_segment(path):
        db.execute("DELETE FROM meta WHERE key IN ('closed', 'owner')")
        db.execute("INSERT INTO meta (key, value) VALUES ('owner', ?)", (owner(),))
    layout.write_metadata(path.parent, descriptor)
    return db


def close(db: sqlite3.Connection) -> None:
    """Close what `writable` opened; a segment is marked as complete, so that `compact` may fold it."""
    try:
        (path,) = (row[2] for row in db.execute("PRAGMA database_list") if row[1] == "main")
        if is_segment(Path(path)):
            db.execute("INSERT OR REPLACE INTO meta (key, value) VALUES ('closed', ?)", (schema.now(),))
    finally:
        db.close()


def is_segment(path: Path) -> bool:
    """Whether a file is one process's part of a descriptor's answers."""
    return path.name.count(".") > 1


@lru_cache(maxsize=4)
def _process(pid: int) -> str:
    """This process's name for its segments; never used again by another."""
    return f"{layout.part(socket.gethostname())[:40]}-{pid}-{secrets.token_hex(4)}"
