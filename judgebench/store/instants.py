"""Since when a job refreshes: kept until it is through, so that a job that is killed goes on where it was."""

from __future__ import annotations

from pathlib import Path

from judgebench.errors import StoreError
from judgebench.store.schema import now


def since(root: Path, role: str, identity: str, *, keep: bool) -> str:
    """The instant that was kept for a job, else the present one, which is then kept if `keep`."""
    path = _path(root, role, identity)
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        pass
    instant = now()
    if keep:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(instant + "\n", encoding="ascii")
        except OSError as error:
            raise StoreError(f"The store cannot write {path}: {error}. Name another: store.root=…") from error
    return instant


def end(root: Path, role: str, identity: str) -> None:
    """The job is through."""
    _path(root, role, identity).unlink(missing_ok=True)


def _path(root: Path, role: str, identity: str) -> Path:
    return root / role / ".refresh" / identity[:32]
