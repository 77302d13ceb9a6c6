"""Which process something belongs to, and whether that process still runs."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from functools import lru_cache
from pathlib import Path


def owner() -> str:
    """A name for this process and one use of it, by which others can tell whether it still runs."""
    return f"{_machine()}|{os.getpid()}|{_started(os.getpid())}|{secrets.token_hex(4)}"


def is_alive(owner: str) -> bool:
    """Whether an owner may be alive: only a process of this very machine can be known to be gone."""
    machine, pid, started, _ = owner.rsplit("|", 3)
    if machine != _machine() or os.name != "posix":
        return True
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _started(int(pid)) in (started, "")


@lru_cache(maxsize=1)
def _machine() -> str:
    """This machine since its last start, and this container: where process numbers mean something."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text()[:8])
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def _started(pid: int) -> str:
    """When a process started, in clock ticks since boot: numbers are used again. Empty where unknown."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return ""
