"""Completions that people already have: a file's rows as the answers of one model, by place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from judgebench.answers import Answers
from judgebench.benchmark.formats import Row
from judgebench.engine import finish_reason
from judgebench.engine.replay import Recorded
from judgebench.recordings import check_counts
from judgebench.request import clean


class Place(NamedTuple):
    """What an answer answers."""

    instruction_id: str
    turn: int
    sample: int


@dataclass(frozen=True)
class Given:
    """An answer of the file. `earlier`: its answers to the turns before."""

    number: int
    place: Place
    row: Row
    output: str
    earlier: tuple[str, ...] = ()

    def __str__(self) -> str:
        turn = f", turn {self.place.turn}" if self.place.turn > 1 else ""
        return f"row {self.number} ({self.place.instruction_id!r}{turn})"

    @property
    def reply(self) -> Recorded:
        """The answer as an engine hands it over."""
        return Recorded(self.output, finish_reason(self.row.get("finish_reason") or None))


def read_answers(
    rows: Sequence[Row], path: Path, side: Answers, tell: Callable[[str, object], None], on_conflict: str
) -> dict[Place, Given]:
    """The answers of `side` in a file: rows with `output`, or `outputs`, a list with one a turn.

    Rows are joined by `instruction_id`, else by the exact `instruction`. A row with `model` (or `model_a`)
    is taken if it names this model, by name or label. `turn` counts from 1, `sample` from 0.

    Args:
        rows: of the file.
        path: for messages.
        side: the model and the instructions.
        tell: told the reason and the row of what cannot be an answer; see `judgebench.importing`.
        on_conflict: two different answers to one place: `refuse` both, or take the `first`.
    """
    everything = side.loaded.everything
    known = {item.instruction_id for item in everything}
    texts = {item.turns[0]: item.instruction_id for item in reversed(everything)}
    names = {side.model.name, side.label}
    given: dict[Place, Given] = {}
    twice: dict[Place, list[Given]] = {}
    for number, row in enumerate(rows):
        check_counts(row, f"{path}, row {number}")
        identity = clean(str(row.get("instruction_id")))
        if identity not in known:
            identity = texts.get(clean(str(row.get("instruction"))), identity)
        whose = {row.get("model"), row.get("model_a")} - {None, ""}
        if whose and not whose & names:
            tell("other_model", f"row {number} ({', '.join(sorted(map(str, whose)))})")
            continue
        if identity not in side.by_item:
            told = str(row.get("instruction", identity))[:60]
            tell("not_selected" if identity in known else "unknown_instruction", f"row {number} ({told!r})")
            continue
        outputs = row["outputs"] if isinstance(row.get("outputs"), list) else [row.get("output")]
        for turn, output in enumerate(outputs, int(row.get("turn") or 1)):
            place = Place(identity, turn, int(row.get("sample") or 0))
            one = Given(number, place, row, clean("" if output is None else str(output)))
            earlier = given.setdefault(place, one) if one.output else one
            if not one.output:
                tell("no_reply" if output is None else "empty", one)
            elif earlier.output == one.output:
                # Said twice with the same words, it is one answer.
                if earlier is not one:
                    tell("repeated", one)
            elif on_conflict == "first":
                tell("superseded", one)
            else:
                twice.setdefault(place, []).append(one)
    for place, others in twice.items():
        for one in (given.pop(place), *others):
            tell("conflict", one)
    return {place: _after(one, given) for place, one in given.items()}


def _after(one: Given, given: dict[Place, Given]) -> Given:
    before = [one.place._replace(turn=turn) for turn in range(1, one.place.turn)]
    earlier = tuple(given[place].output for place in before if place in given)
    return Given(one.number, one.place, one.row, one.output, earlier)
