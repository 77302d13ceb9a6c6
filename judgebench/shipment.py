"""What one push adds to a repository: chosen rows that are not there yet, looked through, and a new card."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from judgebench import __version__
from judgebench.card import MARK, Entry, Licence, card
from judgebench.hub import Repository, State
from judgebench.leaks import Scan
from judgebench.request import Descriptor
from judgebench.store import layout, packing, parcel, schema
from judgebench.store.packing import Choice, Named, Packed, Shelf
from judgebench.store.parcel import Known, Piece
from judgebench.usage import conf_dir, fact

CARD = "README.md"
_USES = ("subject_key", "input_hash", "sample", "benchmark", "model_a", "model_b")
_OURS = frozenset(  # columns that no prompt and no answer reaches
    "served_model fingerprint backend_version created_by run_id benchmark model_a model_b protocol".split()
)


class Shipment:
    """What one push would add to a state of a repository."""

    def __init__(self, repository: Repository, state: State, place: Path, scan: Scan) -> None:
        self.repository, self.state, self.scan = repository, state, scan
        self.licences = licences()
        self.chosen = 0  # answers, there already or not
        self.lacking: dict[str, int] = {}
        self._place = place
        self._packed: list[tuple[Shelf, Packed]] = []
        self._held: dict[str, Held] = {}

    def pack(self, root: Path, wanted: Mapping[str, Choice]) -> None:
        """Write the new rows of all roles below the folder, looking through them."""
        with ExitStack() as stack:
            shelves = {
                role: stack.enter_context(packing.shelves(root, role, choice))
                for role, choice in wanted.items()
            }
            touched = {shelf.folder for found in shelves.values() for shelf in found}
            self._held = survey(self.repository, self.state, touched)
            for role, choice in wanted.items():
                counts = {shelf.descriptor.hash: shelf.pick(choice) for shelf in shelves[role]}
                self.chosen += sum(counts.values())
                if isinstance(choice, Named):
                    self.lacking |= choice.lacking(counts)
                for shelf in shelves[role]:
                    if counts[shelf.descriptor.hash] or choice.whole:
                        self._pack(shelf, choice)

    def _pack(self, shelf: Shelf, choice: Choice) -> None:
        who = shelf.descriptor

        def look(kind: str, row: tuple[Any, ...]) -> None:
            if kind == "answers":
                columns = dict(zip(schema.ANSWER_COLUMNS, row, strict=True))
                self.scan.row(f"{who.hash}:{row[0]}:{row[1]}", columns, ours=_OURS)
            elif kind == "subjects":
                columns = dict(zip(parcel.SUBJECT_ROW, row, strict=True))
                self.scan.row(f"{who.hash}:{row[1]}:{row[2]}", columns, ours=_OURS)

        held = self._held.get(shelf.folder) or Held(Entry(shelf.role, who))
        packed = packing.pack(shelf, held.known, self._place, deletions=choice.whole, look=look)
        self._packed.append((shelf, packed))
        if packed.files:
            self.scan.settings(who.hash, {"model": who.model, "weights": who.weights, **_facts(who)})
            held.entry.answers += packed.rows["answers"]
            for (benchmark, *models), count in packed.uses.items():
                held.entry.note(benchmark, models, count)
            self._held[shelf.folder] = held

    def benchmarks(self) -> set[str]:
        """Of the rows that would be sent."""
        return {use[0] for _, packed in self._packed for use in packed.uses}

    def files(self) -> dict[str, Path | bytes]:
        """What to add: new rows, descriptors that are not there, the card. Empty where nothing is new."""
        files: dict[str, Path | bytes] = {}
        for shelf, packed in self._packed:
            files |= packed.files
            metadata = f"{shelf.folder}/{parcel.METADATA}"
            if packed.files and metadata not in self.state.files:
                files[metadata] = layout.metadata_text(shelf.descriptor).encode()
        if files and self._card_is_ours():
            entries = [held.entry for held in self._held.values()]
            files[CARD] = card(self.repository.name, entries, self.licences).encode()
        return files

    def _card_is_ours(self) -> bool:
        if CARD not in self.state.files:
            return True
        there = self.repository.download(self.state, [CARD])[CARD]
        return MARK in there.read_text(encoding="utf-8", errors="replace")

    def told(self) -> str:
        """A line a descriptor."""
        lines = []
        for shelf, packed in self._packed:
            rows = packed.rows
            notes = [f"{packed.known:,} there already"] if packed.known else []
            notes += [f"{packed.buried:,} rows were deleted there and stay away"] if packed.buried else []
            notes += [f"{rows['tombstones']:,} deletions"] if rows["tombstones"] else []
            lines.append(
                f"{shelf.role} {shelf.descriptor.provider}/{shelf.descriptor.model} "
                f"({shelf.descriptor.hash[:8]}): {rows['answers']:,} answers, {rows['subjects']:,} rows"
                + (f"; {', '.join(notes)}" if notes else "")
            )
        for name in sorted(self.benchmarks()):
            licence = self.licences.get(name)
            if licence is not None and licence.redistribute is not True:
                stated = licence.text or "no licence"
                lines.append(f"Licence of {name}: {stated}; look whether you may pass its texts on.")
        return "\n".join(lines)

    def message(self) -> str:
        """The commit's."""
        answers = sum(packed.rows["answers"] for _, packed in self._packed)
        return f"Add {answers:,} answers (judgebench {__version__})"


@dataclass
class Held:
    """What a repository holds of one descriptor."""

    entry: Entry
    known: Known = field(default_factory=Known)


def survey(repository: Repository, state: State, touched: set[str]) -> dict[str, Held]:
    """What a state holds, by folder.

    Of answers only the keys travel, and only of folders in question or of which rows were deleted.
    """
    pieces = pieces_of(state)
    files = repository.download(state, [part.path for part in pieces if part.kind != "answers"])
    held: dict[str, Held] = {}
    for part in pieces:
        if part.kind is None:
            entry = Entry(part.role, parcel.read_descriptor(part.path, files[part.path]))
            held[part.folder] = Held(entry)
        elif part.kind != "answers":
            parcel.check(part.path, files[part.path])
    pieces = [part for part in pieces if part.folder in held]
    for part in pieces:
        if part.kind == "tombstones":
            held[part.folder].known.add_tombstones(parcel.read(part.path, files[part.path]))
    for part in pieces:
        known = held[part.folder].known
        if part.kind == "answers" and (part.folder in touched or known.tombstones):
            with repository.open(state, part.path) as source:
                known.add_answers(parcel.read(part.path, source, parcel.KEY_COLUMNS))
    alive: dict[str, set[tuple[str, int]]] = {folder: set() for folder in held}
    for part in pieces:
        if part.kind == "subjects":
            there = held[part.folder]
            for key, input_hash, sample, benchmark, *models in parcel.read(
                part.path, files[part.path], _USES
            ):
                there.known.subjects.add(key)
                bought_at = there.known.answers.get((input_hash, sample))
                if bought_at is None or not there.known.buried(input_hash, sample, bought_at, key):
                    alive[part.folder].add((input_hash, sample))
                    there.entry.note(benchmark, models, 1)
    for folder, answers in alive.items():
        held[folder].entry.answers = len(answers)
    return held


def pieces_of(state: State) -> list[Piece]:
    """The files of a state that are parts of a collection, by path."""
    return [part for path in sorted(state.files) if (part := parcel.piece(path)) is not None]


def _facts(descriptor: Descriptor) -> dict[str, Any]:
    return {
        "endpoint": descriptor.endpoint,
        "chat_template": descriptor.chat_template,
        "settings": dict(descriptor.settings),
    }


def licences() -> dict[str, Licence]:
    """What the confs of benchmarks say, by the benchmark's name."""
    found: dict[str, Licence] = {}
    for path in sorted((conf_dir() / "benchmark").rglob("*.yaml")):
        name, allowed = fact(path, "name"), fact(path, "redistribute")
        if name is not None:
            known = {"true": True, "false": False}.get(allowed or "")
            found[name] = Licence(fact(path, "licence"), known)
    return found
