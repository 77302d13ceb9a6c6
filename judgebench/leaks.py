"""What must not leave this machine: keys in what is about to be shared, and paths that tell where it was.

A finding tells the row and the column, never the text. Patterns are those of well-known providers and want
a digit: benchmarks are full of `Bearer YOUR_TOKEN`, and a refusal that is mostly wrong is waved through.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from judgebench.overrides import looks_secret, secrets

_DIGIT = r"(?=[\w.~+/-]*\d)"
# What a text must hold for its pattern to be tried: finding it costs a tenth of trying.
_KEYS = {
    "sk-": rf"(?<![\w/.-])sk-{_DIGIT}[A-Za-z0-9_-]{{20,}}",
    "hf_": r"(?<!\w)hf_[A-Za-z0-9]{30,}",
    "AKIA": r"(?<!\w)AKIA[0-9A-Z]{16}(?!\w)",
    "ASIA": r"(?<!\w)ASIA[0-9A-Z]{16}(?!\w)",
    "AIza": r"(?<!\w)AIza[\w-]{35}",
    "github_pat_": r"(?<!\w)github_pat_\w{22,}",
    **{f"gh{kind}_": rf"(?<!\w)gh{kind}_[A-Za-z0-9]{{30,}}" for kind in "pousr"},
    "gsk_": r"(?<!\w)gsk_\w{20,}",
    "xai-": r"(?<!\w)xai-\w{20,}",
    "xox": r"(?<!\w)xox[abeprs]-[\w-]{10,}",
    "glpat-": r"(?<!\w)glpat-[\w-]{20}",
    "PRIVATE KEY": r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----",
    "eyJ": r"(?<!\w)eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,}",
    "earer ": rf"[Bb]earer {_DIGIT}[\w.~+/-]{{20,}}",
}
_PATTERNS = {mark: re.compile(pattern) for mark, pattern in _KEYS.items()}
_HEADER = re.compile(r"authorization|x-api-key|api[_-]key\s*[:=]", re.IGNORECASE)
_ROOTED = re.compile(r"(?:file:|/|~|\\\\|[A-Za-z]:[\\/])")
_AT_HOME = re.compile(r"(?:/home/|/Users/|[\\/]Users[\\/]|/root/)\w")


class Leak(NamedTuple):
    """Where something was found and what kind of thing. `key` is what `allow_secrets` takes."""

    key: str
    column: str
    kind: str

    def __str__(self) -> str:
        return f"{self.key} in {self.column}: {self.kind}"


class Scan:
    """Looks through what is to be shared. Secrets of this process's environment are known by value.

    Args:
        allowed: keys whose findings the user has looked at.
    """

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        self._allowed = frozenset(allowed)
        self._held = tuple(value for value in secrets() if len(value) >= 16)
        self._home = str(Path.home())
        self.found: list[Leak] = []

    def row(self, key: str, columns: Mapping[str, Any], *, ours: frozenset[str]) -> None:
        """Look through a row. In columns of `ours`, which no prompt reaches, paths are looked for as well."""
        if key in self._allowed:
            return
        texts = {name: value for name, value in columns.items() if isinstance(value, str)}
        # Nearly every row holds no mark at all, which is told of all columns at once.
        marked = self._marked("\n".join(texts.values()))
        for column, text in texts.items():
            kind = (self._key(text) if marked else None) or (self._path(text) if column in ours else None)
            if kind is not None:
                self.found.append(Leak(key, column, kind))

    def settings(self, key: str, tree: Any, column: str = "descriptor") -> None:
        """Look through a descriptor, whose names tell something as well."""
        if key in self._allowed:
            return
        for name, value in _leaves(tree, column):
            if looks_secret(name.rpartition(".")[2].lower()):
                self.found.append(Leak(key, name, "a setting that is named like a secret"))
            elif isinstance(value, str) and (kind := self._key(value) or self._path(value) or _header(value)):
                self.found.append(Leak(key, name, kind))

    def _marked(self, text: str) -> bool:
        return any(mark in text for mark in _PATTERNS) or any(secret in text for secret in self._held)

    def _key(self, text: str) -> str | None:
        if any(mark in text and pattern.search(text) for mark, pattern in _PATTERNS.items()):
            return "looks like a key"
        if any(secret in text for secret in self._held):
            return "the value of a secret variable of this environment"
        return None

    def _path(self, text: str) -> str | None:
        here = _ROOTED.match(text) or _AT_HOME.search(text) or (len(self._home) > 1 and self._home in text)
        return "a path of this machine" if here else None


def _header(text: str) -> str | None:
    return "looks like a header" if _HEADER.search(text) else None


def _leaves(tree: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _leaves(value, f"{name}.{key}")
    elif isinstance(tree, (list, tuple)):
        for value in tree:
            yield from _leaves(value, name)
    else:
        yield name, tree
