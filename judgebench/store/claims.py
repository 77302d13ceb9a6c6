"""Claims: of two processes that want the same answer, one buys it and the other waits for it.

A claim is a row: key, owner, expiry. Claims are taken for a whole lookup chunk in one transaction a
database, together with a second look for answers that came meanwhile; they are renewed by a thread
while their owner lives, and go with the commit of the answer. A claim that ran out, or whose owner
was a process of this machine that is no more, is taken over.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from judgebench.errors import StoreError
from judgebench.request import Descriptor
from judgebench.store import database, layout, schema
from judgebench.store.filesystem import is_network
from judgebench.store.process import is_alive, owner

EXPIRY_S = 30.0
BEAT_S = 8.0

AnswerKey = tuple[str, int]  # input hash, sample

_STORED = "SELECT input_hash, sample FROM responses WHERE refresh_at IS NULL AND input_hash IN (%s)"
_CLAIMED = "SELECT input_hash, sample, owner, expires_at FROM claims WHERE input_hash IN (%s)"
_CLAIM = "INSERT OR REPLACE INTO claims (input_hash, sample, owner, expires_at) VALUES (?, ?, ?, ?)"


class Claims:
    """The claims of one role root in this process. Methods may be called from any thread."""

    def __init__(self, root: Path, role: str) -> None:
        self._root, self._role = root, role
        self.owner = owner()
        self._connections: dict[str, sqlite3.Connection] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._beat: threading.Thread | None = None

    def take(
        self, descriptor: Descriptor, keys: Sequence[AnswerKey], fresh_since: str | None = None
    ) -> tuple[set[AnswerKey], set[AnswerKey]]:
        """Claim keys that nobody has: (those that are stored by now, those that others are buying).

        All other keys are ours. With `fresh_since` a stored answer counts only if it is not older.

        Raises:
            StoreError: the store cannot be written; then nothing should be bought either.
        """
        stored: set[AnswerKey] = set()
        held: set[AnswerKey] = set()
        if is_network(self._root):
            return stored, held  # no file is shared there
        wanted = set(keys)
        hashes = sorted({input_hash for input_hash, _ in keys})
        fresh = "" if fresh_since is None else f" AND created_at >= '{fresh_since}'"
        instant = time.time()
        with self._lock:
            db = self._connection(descriptor)
            try:
                db.execute("BEGIN IMMEDIATE")
                for sql, chunk in schema.in_chunks(_STORED + fresh, hashes):
                    stored.update(key for key in db.execute(sql, chunk) if key in wanted)
                for sql, chunk in schema.in_chunks(_CLAIMED, hashes):
                    for input_hash, sample, other, expires_at in db.execute(sql, chunk):
                        if other != self.owner and expires_at > instant and is_alive(other):
                            held.add((input_hash, sample))
                held &= wanted - stored
                ours = wanted - stored - held
                db.executemany(_CLAIM, [(*key, self.owner, instant + EXPIRY_S) for key in sorted(ours)])
                db.execute("COMMIT")
            except sqlite3.Error as error:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise StoreError(
                    f"The store cannot write {layout.database(self._root, self._role, descriptor)}: {error}."
                ) from error
            if ours and self._beat is None:
                self._beat = threading.Thread(target=self._renew, name=f"claims-{self._role}", daemon=True)
                self._beat.start()
        return stored, held

    def close(self) -> None:
        """Give up what is still claimed."""
        self._over.set()
        if self._beat is not None:
            self._beat.join()
        with self._lock:
            for db in self._connections.values():
                with contextlib.suppress(sqlite3.Error):  # what cannot be given up runs out by itself
                    db.execute("DELETE FROM claims WHERE owner = ?", (self.owner,))
                db.close()
            self._connections.clear()

    def _renew(self) -> None:
        while not self._over.wait(BEAT_S):
            with self._lock:
                for db in self._connections.values():
                    with contextlib.suppress(sqlite3.Error):  # the next beat comes before the expiry
                        db.execute(
                            "UPDATE claims SET expires_at = ? WHERE owner = ?",
                            (time.time() + EXPIRY_S, self.owner),
                        )

    def _connection(self, descriptor: Descriptor) -> sqlite3.Connection:
        db = self._connections.get(descriptor.hash)
        if db is None:
            db = database.writable(self._root, self._role, descriptor)
            # A claim lost in a power cut is no loss: its owner is gone too.
            db.execute("PRAGMA synchronous=NORMAL")
            self._connections[descriptor.hash] = db
        return db
