"""Where a descriptor's database lies: `{root}/{role}/{provider}/{model}/{descriptor_hash}/`.

Path parts are readable and never collide: an id that is already a safe file name everywhere stands
for itself, any other becomes a readable prefix, `~` and a hash of the id. `~` is not a safe
character, so the two kinds cannot meet. `metadata.json` in the folder holds the true ids.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from judgebench.request import Descriptor, digest

ROLES = ("completions", "judgements")

_SAFE = re.compile(r"[a-z0-9][a-z0-9._-]{0,58}[a-z0-9]|[a-z0-9]")
_RESERVED = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?")


def part(name: str) -> str:
    """A file name for any text, unique also where case is folded.

    >>> part("gpt-4.1"), part("CON")
    ('gpt-4.1', 'CON~a3dbc4b6')
    """
    if _SAFE.fullmatch(name) and not _RESERVED.fullmatch(name):
        return name
    readable = re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._")[:50]
    return f"{readable}~{digest(name)[:8]}"


def folder(root: Path, role: str, descriptor: Descriptor) -> Path:
    """The folder of one descriptor's answers."""
    return root / role / part(descriptor.provider) / part(descriptor.model) / descriptor.hash


def database(root: Path, role: str, descriptor: Descriptor) -> Path:
    """The database of one descriptor's answers."""
    return folder(root, role, descriptor) / f"{role}.db"


def files(root: Path, role: str, descriptor: Descriptor) -> list[Path]:
    """The database files of a descriptor that are there: its database, then segments, sorted."""
    return files_in(folder(root, role, descriptor), role)


def databases(root: Path, role: str) -> list[Path]:
    """Every database file of a role, sorted."""
    return [path for place in sorted((root / role).glob("*/*/*")) for path in files_in(place, role)]


def files_in(place: Path, role: str) -> list[Path]:
    """The database files in a descriptor's folder: its database, then segments, sorted."""
    main = place / f"{role}.db"
    segments = sorted(place.glob(f"{role}.*.db"))
    return [main, *segments] if main.exists() else segments


def metadata_text(descriptor: Descriptor) -> str:
    """What `metadata.json` holds."""
    content = {"descriptor_hash": descriptor.hash, "descriptor": json.loads(descriptor.text)}
    return json.dumps(content, ensure_ascii=False, indent=2, sort_keys=True)


def write_metadata(place: Path, descriptor: Descriptor) -> None:
    """Write `metadata.json` by temp and rename, once."""
    target = place / "metadata.json"
    if target.exists():
        return
    handle, temporary = tempfile.mkstemp(dir=place, prefix=".metadata-")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(metadata_text(descriptor))
    os.chmod(temporary, 0o644)
    os.replace(temporary, target)


def read_metadata(place: Path) -> Descriptor:
    """The descriptor of a folder."""
    content = json.loads((place / "metadata.json").read_text(encoding="utf-8"))
    return Descriptor(**content["descriptor"])


def descriptors(root: Path, role: str, provider: str, model: str) -> Iterator[Descriptor]:
    """The descriptors under which answers of a model are stored, in no order. Reads metadata only."""
    yield from descriptors_in(root / role / part(provider) / part(model))


def descriptors_in(place: Path) -> Iterator[Descriptor]:
    """The descriptors in a model's folder. One that cannot be read is passed over: `verify` tells of it."""
    for path in place.glob("*/metadata.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            yield read_metadata(path.parent)
