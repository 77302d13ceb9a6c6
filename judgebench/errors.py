"""What can go wrong with a run, as one tree.

    JudgebenchError            shown to people as one paragraph; exit code 1
    ├── ConfigError            a setting that cannot be meant: names the value, the choices, the way out
    ├── DataError              a file that is not what its conf says: missing column, duplicate id, empty
    ├── StoreError             a store that cannot be opened, read or written
    ├── EngineError            a model that cannot be used at all: no key, server down, no such model
    └── Interrupted            the user stopped the run; what was paid for is stored

A failure of one *request* is no exception but data: `judgebench.engine.Failure`.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class JudgebenchError(Exception):
    """Root of all errors that are meant for people."""


class ConfigError(JudgebenchError):
    """A setting that is unknown, contradictory or impossible."""


class DataError(JudgebenchError):
    """Input data that do not fit their declaration."""


class StoreError(JudgebenchError):
    """A role root or database that cannot be used."""


class EngineError(JudgebenchError):
    """A model that cannot be used at all: every further request would fail in the same way."""


class Interrupted(JudgebenchError):
    """Stopped by the user or by a signal; stored answers are safe."""


def choices(value: object, known: Iterable[str], limit: int = 12) -> str:
    """The tail of a message about an unknown value: the nearest names first, then the rest.

    >>> choices("pairwize", ["pointwise", "pairwise"])
    "'pairwize' is not known. Did you mean 'pairwise'? Choices: pairwise, pointwise."
    """
    names = sorted(set(known))
    if not names:
        return f"{value!r} is not known, and there is nothing to choose from."
    near = get_close_matches(str(value), names, n=1)
    meant = f" Did you mean {near[0]!r}?" if near else ""
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return f"{value!r} is not known.{meant} Choices: {', '.join(names[:limit])}{rest}."
