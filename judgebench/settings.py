"""The plain mappings of a root config, `seed` and `store`, by key and kind.

They are read where they are used; that a value is of its kind is checked by name before anything is paid
(`judgebench.kinds`). Every key may be missing: a job that is made in Python needs to name none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict

from judgebench.stage import Mode


class Seeds(TypedDict, total=False):
    """The three seeds of a run; see `conf/run.yaml`."""

    sampling: int | None
    order: int | None
    bootstrap: int | None


class RoleStore(TypedDict, total=False):
    """What one role has of its own."""

    mode: Mode | None


class Store(TypedDict, total=False):
    """Where answers are kept and which of them serve; see `conf/run.yaml`."""

    root: str | None
    mode: Mode | None
    also: str | Sequence[str] | None
    mixed: Literal["report", "refuse", "ignore"] | None
    canary: bool
    completions: RoleStore | None
    judgements: RoleStore | None
