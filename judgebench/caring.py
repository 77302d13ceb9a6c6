"""The verbs that look after a store: `verify`, `repair`, `compact`, `merge`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from judgebench.errors import ConfigError, choices
from judgebench.folder import COMPLETE, ERROR, Job
from judgebench.report import size
from judgebench.store import care, database, merging, rescue
from judgebench.store.layout import ROLES
from judgebench.store.merging import Merged, Rules
from judgebench.store.root import root_of


def _roles(role: str | None) -> Sequence[str]:
    if role not in (None, *ROLES):
        raise ConfigError(f"role: {choices(role, ROLES)}")
    return [role] if role else ROLES


@dataclass
class Verify:
    """See `conf/verify.yaml`. `result`: the problems."""

    role: str | None = None
    store: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, job: Job) -> int:
        """Say what is wrong; 0 if nothing is, else 1."""
        root = root_of(self.store)
        print(f"store {root}")
        self.result = [problem for role in _roles(self.role) for problem in care.verify(root, role)]
        for problem in self.result:
            way_out = f" (judgebench {problem.mended_by})" if problem.mended_by else ""
            print(f"  {_below(problem.path, root)}: {problem.text}{way_out}")
        print("All is well." if not self.result else f"{len(self.result)} problems.")
        return ERROR if self.result else COMPLETE


@dataclass
class Repair:
    """See `conf/repair.yaml`. `result`: what was done, file by file."""

    role: str | None = None
    store: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, job: Job) -> int:
        """Mend, and say what was saved."""
        root = root_of(self.store)
        print(f"store {root}")
        self.result = []
        for role in _roles(self.role):
            for done in care.repair(root, role):
                self.result.append(done)
                lost = "an unknown number" if done.lost is None else f"{done.lost:,}"
                print(
                    f"  {_below(done.path, root)}: {done.saved:,} answers and {done.subjects:,} uses saved, "
                    f"{lost} lost; the damaged file is now {done.aside.name}"
                )
        if not self.result:
            print("Nothing to mend.")
        return COMPLETE


@dataclass
class Compact:
    """See `conf/compact.yaml`. `result`: what was done, descriptor by descriptor."""

    role: str | None = None
    force: bool = False
    store: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, job: Job) -> int:
        """Tidy, and say what it gave."""
        root = root_of(self.store)
        print(f"store {root}")
        self.result: list[care.Compacted] = []
        for role in _roles(self.role):
            self.result += care.compact(root, role, force=self.force)
        for done in self.result:
            if done.folded or done.still_open or done.after < done.before:
                print(f"  {_below(done.place, root)}: {size(done.before)} -> {size(done.after)}{_told(done)}")
        before, after = (sum(getattr(done, name) for done in self.result) for name in ("before", "after"))
        print(f"{len(self.result)} descriptors, {size(before)} -> {size(after)}.")
        return COMPLETE


def _told(done: care.Compacted) -> str:
    told = f"; {done.folded} segments folded" if done.folded else ""
    if done.conflicts:
        told += f", {done.conflicts} keys were bought twice (the older answer stays)"
    if done.still_open:
        told += (
            f"; left, since another process may be writing them: {', '.join(done.still_open)} (force=true)"
        )
    return told


@dataclass
class Merge:
    """See `conf/merge.yaml`. `result`: what came in, by role."""

    sources: Sequence[str]
    role: str | None = None
    on_conflict: str = "older"
    deletions: str = "keep"
    store: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, job: Job) -> int:
        """Bring rows in, and list the conflicts."""
        rules = Rules(self.on_conflict, self.deletions)
        root = root_of(self.store)
        if not self.sources:
            raise ConfigError("Nothing to merge: name store roots or rescue files, judgebench merge OTHER.")
        print(f"store {root}")
        self.result: dict[str, Merged] = {role: Merged() for role in _roles(self.role)}
        for source in map(Path, self.sources):
            if source.is_file():
                role, merged = take_in(source, root, rules)
                self.result.setdefault(role, Merged())
                self.result[role] += merged
                continue
            if not any((source / role).is_dir() for role in ROLES):
                raise ConfigError(f"{source}: no store (no {' or '.join(ROLES)} in it) and no rescue file.")
            if source.resolve() == root.resolve():
                raise ConfigError(f"{source} is the store itself: nothing to merge.")
            for role in _roles(self.role):
                for _, merged in merging.merge(source, root, role, rules):
                    self.result[role] += merged
        for role, merged in self.result.items():
            print(f"{role}: {summary(merged)}")
            for conflict in merged.conflicts[:20]:
                print(
                    f"  {conflict.descriptor_hash[:8]}:{conflict.input_hash[:12]}:{conflict.sample}: here "
                    f"{conflict.here[:60]!r}, there {conflict.there[:60]!r}; kept: {conflict.kept}"
                )
            if len(merged.conflicts) > 20:
                print(f"  … and {len(merged.conflicts) - 20:,} more")
        return COMPLETE


def take_in(path: Path, root: Path, rules: Rules) -> tuple[str, Merged]:
    """Merge a rescue file into a root: its role, and what came in."""
    merged = Merged()
    role = ROLES[1]
    for saved in rescue.read(path):
        role = saved.role
        with closing(database.writable(root, role, saved.descriptor)) as db:
            merged += merging.into(db, saved.descriptor, [saved.answer], saved.subjects, (), rules)
    return role, merged


def summary(merged: Merged) -> str:
    """A merge in words, what is zero left out."""
    parts = [f"{merged.answers:,} answers and {merged.subjects:,} uses came in"]
    for count, words in (
        (merged.known, "answers were here"),
        (len(merged.conflicts), "of them with another text"),
        (merged.buried, "rows stay deleted"),
        (merged.deleted, "rows were deleted as there"),
        (merged.spared, "rows that were deleted there stay here (deletions=apply removes them)"),
        (merged.orphans, "uses without an answer were left out"),
        (len(merged.forged), "rows were refused: their text is not what their key says"),
    ):
        if count:
            parts.append(f"{count:,} {words}")
    return "; ".join(parts) + "."


def _below(path: Path, root: Path) -> Path:
    return path.relative_to(root) if path.is_relative_to(root) else path
