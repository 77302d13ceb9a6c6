"""Where data lie: a URL at a pin, a local mirror of it, or a file of the package.

    hf://datasets/OWNER/REPO@REVISION/PATH     a Hugging Face repository     DATA/hub/OWNER/REPO/PATH
    github://OWNER:REPO@COMMIT/PATH            a GitHub repository           DATA/git/OWNER/REPO/PATH
    data:PATH                                  only in the data folder       DATA/PATH
    package:PATH                               shipped with judgebench
    anything else                              a local path, or any URL that fsspec opens

With a data folder (`data_dir`, `$JUDGEBENCH_DATA`) the mirror is read if the file is there; else the
URL is fetched once into the user's cache. A pinned file never changes, so the cache is never asked again.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

from judgebench.errors import DataError


class Absent(DataError):
    """There is no such file, which somebody who knows of it would have answered."""


class Unreachable(DataError):
    """Whether there is such a file cannot be told: whoever has it does not answer."""


_HF = re.compile(r"hf://(datasets/|spaces/|models/)?([^/]+)/([^/@]+)(?:@([^/]+))?/(.+)")
_GITHUB = re.compile(r"github://([^:/]+):([^@/]+)(?:@([^/]+))?/(.+)")


@dataclass(frozen=True, slots=True)
class Located:
    """A file on this disk, the URL it stands for, its pin and SHA-256."""

    path: Path
    url: str
    revision: str | None
    sha256: str


def mirror_path(url: str) -> Path | None:
    """Where a hub or git URL lies below a data folder.

    >>> mirror_path("hf://datasets/tatsu-lab/alpaca_eval@17853a4/df_gamed.csv").as_posix()
    'hub/tatsu-lab/alpaca_eval/df_gamed.csv'
    """
    if hub := _HF.fullmatch(url):
        return Path("hub", hub[2], hub[3], *hub[5].split("/"))
    if git := _GITHUB.fullmatch(url):
        return Path("git", git[1], git[2], *git[4].split("/"))
    if url.startswith("data:"):
        return Path(*url.removeprefix("data:").lstrip("/").split("/"))
    return None


def revision(url: str) -> str | None:
    """The pin in a hub or git URL."""
    hub, git = _HF.fullmatch(url), _GITHUB.fullmatch(url)
    return hub[4] if hub else git[3] if git else None


def locate(url: str, data_dir: Path | None) -> Located:
    """A local file for a URL.

    Raises:
        Absent, Unreachable: neither in the data folder nor to be fetched; says both ways out.
    """
    mirrored = mirror_path(url)
    if url.startswith("package:"):
        path = Path(str(files("judgebench") / "data" / url.removeprefix("package:")))
    elif mirrored is not None and data_dir is not None and os.path.isfile(data_dir / mirrored):
        path = data_dir / mirrored
    elif url.startswith("data:"):
        where = f"{data_dir / mirrored}" if data_dir and mirrored else f"data_dir/{mirrored}"
        raise Absent(
            f"{where} is missing. Set data_dir=… or JUDGEBENCH_DATA to a folder that holds it; "
            "docs/data.md says how to fill one from the public files."
        )
    elif mirrored is not None or "://" in url:
        path = _fetched(url, data_dir, mirrored)
    else:
        path = Path(url).expanduser()
    if not os.path.isfile(path):  # false, and no error, for a name that is too long
        raise Absent(
            f"There is no file {str(path)!r}"
            + ("" if path.is_absolute() else f" in {Path.cwd()}")
            + f"{_near(path)}. Give its path, or a URL that holds it."
        )
    return Located(path, url, revision(url), content_hash(path))


def _near(path: Path) -> str:
    """The names in a folder that a mistyped one may have meant."""
    try:
        near = get_close_matches(path.name, sorted(os.listdir(path.parent)), n=3)
    except OSError:
        return ""
    return f" (near it: {', '.join(near)})" if near else ""


def _fetched(url: str, data_dir: Path | None, mirrored: Path | None) -> Path:
    import fsspec
    import platformdirs

    cache = Path(platformdirs.user_cache_dir("judgebench", appauthor=False)) / "files"
    try:
        options = {"cache_storage": str(cache)}
        return Path(fsspec.open_local(f"filecache::{_fetchable(url)}", filecache=options))
    except DataError:
        raise
    except Exception as error:  # every file system raises its own kind
        said = " ".join(f"{type(error).__name__}: {error}".split())[:200].rstrip(": ")
        place = f", or put the file at {(data_dir or Path('DATA_DIR')) / mirrored}" if mirrored else ""
        kind = Absent if isinstance(error, FileNotFoundError) else Unreachable
        raise kind(
            f"{url} cannot be fetched ({said}). Check the URL and the network{place}"
            + ("." if data_dir or not mirrored else " and set data_dir=DATA_DIR.")
        ) from error


def _fetchable(url: str) -> str:
    git = _GITHUB.fullmatch(url)
    if git is None:
        return url
    if git[3] is None:
        raise DataError(f"{url!r} names no commit: write github://OWNER:REPO@COMMIT/PATH.")
    return f"https://raw.githubusercontent.com/{git[1]}/{git[2]}/{git[3]}/{git[4]}"


def content_hash(path: Path) -> str:
    """SHA-256 of a file's bytes, remembered by path, size and mtime."""
    stat = path.stat()
    return _hash(str(path.absolute()), stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=1024)
def _hash(path: str, size: int, mtime_ns: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
