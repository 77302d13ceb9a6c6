"""`judgebench forget` and `refresh`: by column, delete from the store, or have it asked anew.

Both show what they would touch and what it cost, ask, and are exact.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from judgebench.errors import ConfigError, choices
from judgebench.folder import COMPLETE, Job
from judgebench.store.deletion import SCOPES, Condition, Match, conditions, delete, find, mark
from judgebench.store.layout import ROLES
from judgebench.store.root import root_of


@dataclass
class _ByColumn(ABC):
    """Select rows by column, show them, ask, act. `result`: how many rows (answers) were touched, by role."""

    where: Mapping[str, Any]
    role: str | None = None
    yes: bool = False
    store: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, job: Job) -> int:
        """Show, ask, act; 0 also where nothing matches.

        Raises:
            ConfigError: an unknown column or role, or no answer to be had without a terminal.
        """
        if self.role not in (None, *ROLES):
            raise ConfigError(f"role: {choices(self.role, ROLES)}")
        self._check()
        root = root_of(self.store)
        wanted = conditions(self.role, self.where)
        found = {role: list(find(root, role, wanted[role], self._scope())) for role in wanted}
        self.result: dict[str, int] = dict.fromkeys(wanted, 0)
        print(f"store {root}")
        if not any(found.values()):
            print("Nothing matches: nothing is touched.")
            return COMPLETE
        for role in wanted:
            print(preview(role, found[role], self._scope()))
        if not self._sure():
            print("Nothing was touched.")
            return COMPLETE
        for role in wanted:
            self.result[role] = self._act(root, role, wanted[role])
        self._tell()
        return COMPLETE

    def _check(self) -> None:
        if not self.where:
            raise ConfigError(
                "Nothing is selected: name at least one column, for example where.benchmark=NAME."
            )
        if not isinstance(self.yes, bool):
            raise ConfigError(f"yes={self.yes!r}: true or false. Nothing was touched.")

    def _sure(self) -> bool:
        if self.yes:
            return True
        if not sys.stdin.isatty():
            raise ConfigError(
                "Nothing was touched: there is no terminal to ask on. Add yes=true if you mean it."
            )
        return input(self._question()).strip().lower() in ("y", "yes")

    @abstractmethod
    def _scope(self) -> str:
        """Which answers of the matching rows are meant."""

    @abstractmethod
    def _question(self) -> str:
        """What is asked before it is done."""

    @abstractmethod
    def _act(self, root: Path, role: str, wanted: Condition) -> int:
        """Do it; how many rows or answers were touched."""

    @abstractmethod
    def _tell(self) -> None:
        """Say what was done."""


@dataclass
class Forget(_ByColumn):
    """See `conf/forget.yaml`."""

    scope: str = "subjects"
    hard: bool = False

    def _check(self) -> None:
        super()._check()
        if self.scope not in SCOPES:
            raise ConfigError(f"scope: {choices(self.scope, SCOPES)}")
        if not isinstance(self.hard, bool):
            raise ConfigError(f"hard={self.hard!r}: true or false. Nothing was touched.")

    def _scope(self) -> str:
        return self.scope

    def _question(self) -> str:
        return "Delete this without a trace? [y/N] " if self.hard else "Delete this? [y/N] "

    def _act(self, root: Path, role: str, wanted: Condition) -> int:
        return delete(root, role, wanted, self.scope, hard=self.hard)

    def _tell(self) -> None:
        print("; ".join(f"{count:,} rows deleted from {role}" for role, count in self.result.items()) + ".")
        if self.hard:
            print("No byte of them is left in the store. Run folders, other stores and backups keep theirs.")


@dataclass
class Refresh(_ByColumn):
    """See `conf/refresh.yaml`."""

    def _scope(self) -> str:
        return "answers"

    def _question(self) -> str:
        return "Have these answers asked anew? [y/N] "

    def _act(self, root: Path, role: str, wanted: Condition) -> int:
        return mark(root, role, wanted)

    def _tell(self) -> None:
        told = "; ".join(f"{count:,} answers of {role}" for role, count in self.result.items())
        print(f"{told} will be asked anew by the next run that needs them; the old ones are kept beside.")


def preview(role: str, matches: Sequence[Match], scope: str) -> str:
    """What would go from a role, in words, by model and benchmark."""
    if not matches:
        return f"{role}: nothing matches."
    lines = [f"{role}:"]
    for match in matches:
        rows = ", ".join(f"{count:,} of {name}" for name, count in sorted(match.rows.items())) or "none"
        money = f"${match.cost_usd:.4f}" + (
            f" and {match.unpriced:,} of unknown price" if match.unpriced else ""
        )
        kept = f", {match.kept:,} stay (others use them)" if match.kept else ""
        who = f"{match.descriptor.provider}/{match.descriptor.model} ({match.descriptor.hash[:8]})"
        lines.append(
            f"  {who}: rows {rows}; answers {match.answers:,} go{kept}; "
            f"they cost {money}, {match.tokens:,} tokens"
            + (f"; {match.attempts:,} failed tries" if match.attempts else "")
        )
    losing: Counter[tuple[str, str]] = Counter()
    for match in matches:
        losing.update(match.losing)
    if losing:
        lines.append("  Others use these answers too:")
        lines += [f"    {model} on {name}: {count:,}" for (name, model), count in sorted(losing.items())]
    elif scope == "answers":
        lines.append("  Nobody else uses these answers.")
    return "\n".join(lines)
