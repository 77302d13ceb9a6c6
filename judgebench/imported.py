"""What an import came to, row by row: each row of the source has one reason, told in `REASONS`.

Nothing is dropped in silence, and nothing here asks, joins or stores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from judgebench.experiment import Prepared
from judgebench.folder import COMPLETE, MISSING
from judgebench.recordings import Recording
from judgebench.report import literal
from judgebench.request import Descriptor

# What becomes of a row, in the order in which it is told.
DONE = {"imported": "now in the store", "known": "in the store already, with the same text"}
REFUSED = {
    "no_orientation": "the order in which the answers were shown is not said, and it is not guessed",
    "conflict": "another reply to the same prompt is in the file too; on_conflict=first takes the first one",
    "differs": "the store holds another answer under this key, and keeps it",
    "other_prompt": "something else was asked than what the job renders",
    "other_conversation": "the stored answer to an earlier turn is another one than the file's",
    "no_template": "the official prompt cannot be had",
    "no_answer": "an answer that was judged is neither in the store nor shipped",
    "other_order": "the protocol does not show the answers in this order",
    "other_sample": "the job has fewer samples (judge.samples, candidate.samples)",
    "other_turn": "the protocol does not judge this turn",
    "unknown_instruction": "the benchmark has no such instruction",
    "empty": "an empty reply is no answer",
}
PASSED_OVER = {
    "no_reply": "the file holds no reply",
    "by_rule": "the protocol decides without a judge",
    "not_selected": "outside of limit or shard",
    "other_model": "of another model; import it with candidate.name=… (baseline.name=…)",
    "other_judge": "of another judge; import it with judge=…",
    "repeated": "said twice with the same words",
    "superseded": "differs from the first one of its prompt, which was taken",
}
REASONS = DONE | REFUSED | PASSED_OVER
NAMED = 10  # rows of a reason that are named


@dataclass
class Imported:
    """What an import came to: `rows` by reason, and the descriptor under which answers are stored."""

    descriptor: Descriptor
    rows: dict[str, list[str]] = field(default_factory=dict)
    note: str = ""

    def add(self, reason: str, row: object) -> None:
        """Note what became of a row."""
        self.rows.setdefault(reason, []).append(str(row))

    def count(self, *reasons: str) -> int:
        """How many rows have one of these reasons."""
        return sum(len(self.rows.get(reason, ())) for reason in reasons)

    @property
    def status(self) -> int:
        """3 where a row was refused, or nothing at all is in the store."""
        return MISSING if self.count(*REFUSED) or not self.count(*DONE) else COMPLETE


def summary(found: Imported, root: Path, role: str) -> str:
    """What an import came to, for people: where answers are, and a line for each reason."""
    descriptor = found.descriptor
    lines = [
        f"store   {root}",
        f"under   {role} of {descriptor.provider}/{descriptor.model}, descriptor {descriptor.hash}",
        f"        {literal(descriptor.text)}",
        f"rows    {sum(map(len, found.rows.values())):,}",
    ]
    for reason, meaning in REASONS.items():
        rows = found.rows.get(reason, ())
        if not rows:
            continue
        shown = rows[:NAMED] if reason in REFUSED else rows[:1]
        more = f" and {len(rows) - len(shown):,} more" if len(rows) > len(shown) else ""
        which = "" if reason in DONE else f": {', '.join(map(literal, shown))}{more}"
        lines.append(f"  {len(rows):>7,} {reason}, {meaning}{which}")
    if found.note:
        lines.append(found.note)
    if role == "judgements" and found.count(*REFUSED):
        lines.append("What was not imported remains a recording: engine=replay reads it.")
    return "\n".join(lines)


class Why:
    """Why a recording is a reply to nothing that the job asks."""

    def __init__(self, prepared: Prepared, names: Mapping[str, str]) -> None:
        self.names = {*names, *names.values()}
        self.pairwise = prepared.experiment.protocol.mode == "pairwise"
        self.ids = {item.instruction_id: item.turns[0] for item in prepared.loaded.everything}
        self.texts = {text: identity for identity, text in reversed(self.ids.items())}
        columns = prepared.judgements.columns
        self.planned: dict[tuple[str, str, str], tuple[str | None, str | None]] = {}
        facts = ("candidate", "instruction_id", "orientation", "reason", "source")
        for label, item, order, reason, source in zip(*(columns[name] for name in facts), strict=True):
            for name in (label, names.get(label, label)):
                self.planned.setdefault((name, item, order or ""), (reason, source))
        self.selected = {item.instruction_id for item in prepared.loaded.instructions}

    def of(self, recording: Recording, misfit: str | None) -> str:
        """The reason. `misfit`: what matching found wrong with it, where its subject was asked for."""
        if recording.output is None:
            return "no_reply"
        if not any(subject.candidate in self.names for subject, _ in recording.subjects):
            return "other_model"
        if misfit is not None:
            return misfit
        item = recording.item if recording.item in self.ids else self.texts.get(recording.item)
        if item is None:
            return "unknown_instruction"
        if item not in self.selected:
            return "not_selected"
        if self.pairwise and not recording.row.get("orientation") and not recording.row.get("positional"):
            return "no_orientation"
        for subject, _ in recording.subjects:
            settled = self.planned.get((subject.candidate, item, subject.orientation))
            if settled is not None:
                reason, source = settled
                return "by_rule" if source == "rule" else "no_answer" if reason else "other_model"
        asked = {name for name, of, _ in self.planned if of == item}
        return "other_order" if any(s.candidate in asked for s, _ in recording.subjects) else "other_model"
