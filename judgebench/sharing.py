"""`judgebench push` and `judgebench fetch`: a store's answers to and from a dataset repository.

Explicit verbs only: no run ever sends or fetches. A push adds files and never changes one; it is made on
top of the state that it looked at, so that two pushes at once both arrive.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from judgebench.bundle import bundle
from judgebench.errors import ConfigError, StoreError, choices
from judgebench.folder import COMPLETE, Job
from judgebench.hub import Moved, Repository, State
from judgebench.leaks import Scan
from judgebench.request import Descriptor
from judgebench.shipment import Shipment, pieces_of
from judgebench.store import layout, parcel
from judgebench.store.deletion import conditions
from judgebench.store.merging import Merged, add
from judgebench.store.packing import Choice, Everything, Matching
from judgebench.store.parcel import Known, Piece
from judgebench.store.root import root_of

TRIES = 8  # of a push that others overtake
SHOWN = 20  # findings, conflicts and refused rows that are listed one by one


@dataclass
class Push:
    """See `conf/push.yaml`. `result`: the paths that were sent, or would be."""

    repo: str | None
    role: str | None = None
    where: Mapping[str, Any] = field(default_factory=dict)
    run: str | None = None
    private: bool = True
    dry_run: bool = False
    allow_secrets: Sequence[str] = ()
    accept_license: bool = False
    store: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, job: Job) -> int:
        """Choose, look through, send.

        Raises:
            ConfigError: no such column or role, something that looks like a secret, a licence.
            StoreError: the store or the hub cannot be read or written.
        """
        repository, root = _repository(self.repo), root_of(self.store)
        wanted = self._choices()
        print(f"store {root}\nrepository {repository.name}")
        self.result: list[str] = []
        for _ in range(TRIES):
            state = repository.state()
            with TemporaryDirectory(prefix="judgebench-") as place:
                shipment = Shipment(repository, state or State("", {}), Path(place), Scan(self.allow_secrets))
                shipment.pack(root, wanted)
                self._refuse(shipment)
                files = shipment.files()
                self.result = sorted(files)
                if not files:
                    there = "Everything chosen is there already" if shipment.chosen else "Nothing matches"
                    print(f"{there}: nothing is sent.")
                    return COMPLETE
                print(shipment.told())
                if self.dry_run:
                    print("\n".join(["A dry run: nothing is sent. It would be", *self.result]))
                    return COMPLETE
                if state is None:  # only now that nothing was refused
                    repository.create(private=self.private)
                    state = repository.state()
                    if state is None or pieces_of(state):
                        continue
                    shipment.state = state
                try:
                    address = repository.commit(shipment.state, files, shipment.message())
                except Moved:
                    print("Somebody else pushed meanwhile: looking again.")
                    continue
                print(f"Sent {len(files)} files: {address}")
                return COMPLETE
        raise StoreError(
            f"{repository.name} changed during each of {TRIES} attempts; nothing was sent. Push again later."
        )

    def _choices(self) -> dict[str, Choice]:
        if self.role not in (None, *layout.ROLES):
            raise ConfigError(f"role: {choices(self.role, layout.ROLES)}")
        if self.run is not None and self.where:
            raise ConfigError(
                "run=… chooses by what a run's files name, where.… by column: give one of them."
            )
        wanted = conditions(self.role, self.where)
        if self.run is not None:
            folder = Path(str(self.run)).expanduser()
            return {role: bundle(folder, role) for role in wanted}
        if self.where:
            return {role: Matching(condition) for role, condition in wanted.items()}
        return {role: Everything() for role in wanted}

    def _refuse(self, shipment: Shipment) -> None:
        if lacking := shipment.lacking:
            raise StoreError(
                f"run={self.run}: its files name answers that are not in this store: "
                f"{', '.join(f'{count:,} of {name}' for name, count in lacking.items())}. "
                "Name the store that the run used (store.root=…)."
            )
        if found := shipment.scan.found:
            print("\n".join(["What looks like a secret:", *(f"  {leak}" for leak in found[:SHOWN])]))
            keys = list(dict.fromkeys(leak.key for leak in found))
            more = f" and {len(keys) - SHOWN} more rows" if len(keys) > SHOWN else ""
            raise ConfigError(
                f"Nothing is sent: {found[0]}{f' (and {len(found) - 1} more)' if len(found) > 1 else ''}. "
                "Look at those rows, and forget them (judgebench forget), choose others (where.…), or, if "
                f'they are no secrets: "allow_secrets=[{",".join(keys[:SHOWN])}]"{more}.'
            )
        barred = sorted(
            n for n in shipment.benchmarks() if (k := shipment.licences.get(n)) and k.redistribute is False
        )
        if barred and not self.accept_license:
            terms = ", ".join(f"{name} ({shipment.licences[name].text or 'no licence'})" for name in barred)
            raise ConfigError(
                f"Nothing is sent: the terms of {terms} do not allow passing its texts on, and answers quote "
                "them. Choose others (where.benchmark=…), or, if you have the right to, accept_license=true."
            )


@dataclass
class Fetch:
    """See `conf/fetch.yaml`. `result`: a `Merged` of all roles."""

    repo: str | None
    revision: str | None = None
    role: str | None = None
    on_conflict: str = "keep"
    deletions: str = "keep"
    store: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, job: Job) -> int:
        """Download, check, merge.

        Raises:
            StoreError: nothing to fetch, or files or rows that are not what they claim. Files are looked at
                before anything is taken; a refused row leaves the others.
        """
        if self.role not in (None, *layout.ROLES):
            raise ConfigError(f"role: {choices(self.role, layout.ROLES)}")
        repository, root = _repository(self.repo), root_of(self.store)
        state = repository.state(self.revision)
        pieces = [] if state is None else [p for p in pieces_of(state) if self.role in (None, p.role)]
        if state is None or not pieces:
            raise StoreError(
                f"{repository.name} holds no answers{f' at {self.revision}' if self.revision else ''} that "
                "one may read: check OWNER/NAME and, for a private repository, the login (HF_TOKEN)."
            )
        print(f"store {root}\nrepository {repository.name} at {state.commit}")
        files = repository.download(state, [part.path for part in pieces])
        descriptors = _descriptors(pieces, files)
        self.result = Merged()
        for folder, descriptor in descriptors.items():
            mine = [part for part in pieces if part.folder == folder]
            merged = _take(root, mine, descriptor, files, self.on_conflict, self.deletions)
            print(
                f"{mine[0].role} {descriptor.provider}/{descriptor.model} ({descriptor.hash[:8]}): "
                f"{merged.answers:,} answers and {merged.subjects:,} rows added"
            )
            self.result += merged
        print(_told(self.result))
        if forged := self.result.forged:
            raise StoreError(
                f"{len(forged):,} rows of {repository.name} do not have the hash that they claim and were "
                f"refused: {', '.join(forged[:SHOWN])}"
                f"{', …' if len(forged) > SHOWN else ''}. Everything else was taken."
            )
        return COMPLETE


def _descriptors(pieces: Sequence[Piece], files: Mapping[str, Path]) -> dict[str, Descriptor]:
    """The descriptor of each folder, once every file is what its name says."""
    found = {p.folder: parcel.read_descriptor(p.path, files[p.path]) for p in pieces if p.kind is None}
    for part in pieces:
        if part.kind is not None:
            parcel.check(part.path, files[part.path])
        if part.folder not in found:
            raise StoreError(f"{part.folder} holds no {parcel.METADATA}: who answered is not known.")
    return found


def _take(
    root: Path,
    pieces: Sequence[Piece],
    descriptor: Descriptor,
    files: Mapping[str, Path],
    on_conflict: str,
    deletions: str,
) -> Merged:
    """Merge the rows of one descriptor."""

    def rows(kind: str, columns: Sequence[str] | None = None) -> Iterator[tuple[Any, ...]]:
        named = sorted(part.path for part in pieces if part.kind == kind)
        return chain.from_iterable(parcel.read(path, files[path], columns) for path in named)

    known = Known()
    known.add_tombstones(rows("tombstones"))
    uses: dict[str, tuple[str, int]] = {}
    if known.tombstones:
        known.add_answers(rows("answers", parcel.KEY_COLUMNS))
        uses = {row[0]: row[1:3] for row in rows("subjects")}
    forged: list[str] = []
    merged = add(
        root,
        pieces[0].role,
        descriptor,
        rows("answers"),
        parcel.honest_subjects(descriptor, rows("subjects"), forged),
        parcel.in_force(known, uses),
        on_conflict=on_conflict,
        deletions=deletions,
    )
    merged.forged += forged
    return merged


def _told(merged: Merged) -> str:
    lines = [
        f"{merged.answers:,} answers and {merged.subjects:,} rows added; {merged.known:,} answers were here "
        f"already; {merged.buried:,} rows deleted here stay away."
    ]
    if merged.spared or merged.deleted:
        lines.append(f"Deleted there: {merged.spared:,} rows stay here, {merged.deleted:,} went here too.")
    if conflicts := merged.conflicts:
        lines.append(f"{len(conflicts):,} answers differ from those here; the others are in `superseded`:")
        stays = {"here": "ours stays", "there": "theirs stays"}
        lines += [
            f"  {c.descriptor_hash}:{c.input_hash}:{c.sample}: {stays[c.kept]}" for c in conflicts[:SHOWN]
        ]
    return "\n".join(lines)


def _repository(name: str | None) -> Repository:
    if not name or not re.fullmatch(r"[\w.-]+/[\w.-]+", str(name)):
        raise ConfigError(f"repo={name}: name a dataset repository of the hub, repo=OWNER/NAME.")
    return Repository(str(name))
