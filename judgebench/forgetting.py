"""`judgebench forget`: delete from the store by column; shows what would go, asks, is exact."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from judgebench.errors import ConfigError, choices
from judgebench.folder import COMPLETE, Job
from judgebench.store import default_root
from judgebench.store.deletion import SCOPES, Condition, Match, condition, delete, find
from judgebench.store.layout import ROLES


@dataclass
class Forget:
    """See `conf/forget.yaml`. `result`: how many rows went, by role."""

    where: Mapping[str, Any]
    role: str | None = None
    scope: str = "subjects"
    yes: bool = False
    store: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, job: Job) -> int:
        """Show, ask, delete; 0 also where nothing matches.

        Raises:
            ConfigError: an unknown column, role or scope, or no answer to be had without a terminal.
        """
        if self.role not in (None, *ROLES):
            raise ConfigError(f"role: {choices(self.role, ROLES)}")
        if not isinstance(self.yes, bool):
            raise ConfigError(f"yes={self.yes!r}: true or false. Nothing was deleted.")
        if self.scope not in SCOPES:
            raise ConfigError(f"scope: {choices(self.scope, SCOPES)}")
        named = self.store.get("root")
        root = Path(str(named)).expanduser().absolute() if named else default_root()
        roles = [self.role] if self.role else self._roles()
        wanted = {role: condition(role, self.where) for role in roles}
        found = {role: list(find(root, role, wanted[role], self.scope)) for role in roles}
        self.result: dict[str, int] = dict.fromkeys(roles, 0)
        print(f"store {root}")
        if not any(found.values()):
            print("Nothing matches: nothing is deleted.")
            return COMPLETE
        for role in roles:
            print(preview(role, found[role], self.scope))
        if not self._sure():
            print("Nothing was deleted.")
            return COMPLETE
        for role in roles:
            self.result[role] = self._delete(root, role, wanted[role])
        print("; ".join(f"{count:,} rows deleted from {role}" for role, count in self.result.items()) + ".")
        return COMPLETE

    def _roles(self) -> list[str]:
        """The roles whose view has all the columns; a column of one role speaks of that role only."""
        fitting = []
        problem: ConfigError | None = None
        for role in ROLES:
            try:
                condition(role, self.where)
                fitting.append(role)
            except ConfigError as error:
                problem = error
        if not fitting and problem is not None:
            raise problem
        return fitting

    def _delete(self, root: Path, role: str, wanted: Condition) -> int:
        return delete(root, role, wanted, self.scope)

    def _sure(self) -> bool:
        if self.yes:
            return True
        if not sys.stdin.isatty():
            raise ConfigError(
                "Nothing was deleted: there is no terminal to ask on. Add yes=true if you mean it."
            )
        return input("Delete this? [y/N] ").strip().lower() in ("y", "yes")


def preview(role: str, matches: Sequence[Match], scope: str) -> str:
    """What would go from a role, in words, by model and benchmark."""
    if not matches:
        return f"{role}: nothing matches."
    lines = [f"{role}:"]
    for match in matches:
        rows = ", ".join(f"{count:,} of {name}" for name, count in sorted(match.rows.items()))
        money = f"${match.cost_usd:.4f}" + (
            f" and {match.unpriced:,} of unknown price" if match.unpriced else ""
        )
        kept = f", {match.kept:,} stay (others use them)" if match.kept else ""
        who = f"{match.descriptor.provider}/{match.descriptor.model} ({match.descriptor.hash[:8]})"
        lines.append(
            f"  {who}: rows {rows}; answers {match.answers:,} go{kept}; "
            f"they cost {money}, {match.tokens:,} tokens"
        )
    losing: Counter[tuple[str, str]] = Counter()
    for match in matches:
        losing.update(match.losing)
    if losing:
        lines.append("  Others lose rows with these answers:")
        lines += [f"    {model} on {name}: {count:,}" for (name, model), count in sorted(losing.items())]
    elif scope == "answers":
        lines.append("  Nobody else uses these answers.")
    return "\n".join(lines)
