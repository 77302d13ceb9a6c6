"""Recordings: replies that people already have, to be replayed or imported through the whole pipeline.

A recording names what it is a reply to by subject: who was compared with whom, on which instruction,
in which order. Before the run the same protocol code that makes the requests renders them, so that
replies are joined by input key: what another prompt was asked is never taken for an answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from judgebench.benchmark import Loaded, Table
from judgebench.benchmark.formats import Row
from judgebench.benchmark.source import Absent, Located
from judgebench.benchmark.table import columns_of
from judgebench.engine import finish_reason
from judgebench.engine.replay import Recorded, Replay
from judgebench.errors import DataError
from judgebench.protocol import DIRECT, REVERSED
from judgebench.request import Key, Request, canonical, clean


class _Subject(NamedTuple):
    candidate: str
    item: str  # instruction_id, or the instruction's text where the file holds no ids
    orientation: str  # "" for pointwise

    def __str__(self) -> str:
        return f"{self.candidate}, {self.item[:60]!r}, {self.orientation or 'no order'}"


@dataclass(frozen=True, eq=False, slots=True)
class Recording:
    """A row of a file of replies."""

    number: int
    row: Row
    item: str
    # As whose judgement it may be read, with the baseline: two where only the slots are known.
    subjects: tuple[tuple[_Subject, str | None], ...]

    def __str__(self) -> str:
        return f"row {self.number} ({self.subjects[0][0]})"

    @property
    def output(self) -> str | None:
        """The reply's text; null is no recording."""
        said = self.row["reply"] if "reply" in self.row else self.row.get("output")
        return None if said is None else str(said)

    @property
    def reply(self) -> Recorded:
        """What the judge said."""
        ended = finish_reason(self.row.get("finish_reason") or None)
        return Recorded(str(self.output), ended, _logprobs(self.row))

    @property
    def models(self) -> set[str]:
        """Whose answers were judged."""
        return {name for subject, baseline in self.subjects for name in (subject.candidate, baseline) if name}

    def misfit(self, request: Request, baselines: set[str], baseline: str | None, turns: int) -> str | None:
        """Why this is no reply to a request of the same subject; null where it is one."""
        row, subject = self.row, request.subject
        if row.get("judge") not in (None, "", request.descriptor.model):
            return "other_judge"
        if baseline and baseline not in baselines and row.get("baseline_output") is None:
            return "other_model"
        if int(row.get("sample") or 0) != request.sample:
            return "other_sample"
        if int(row.get("turn") or 0) not in (0, subject.turn or turns):
            return "other_turn"
        return "other_prompt" if asked_otherwise(row, request) else None


def check_counts(row: Row, where: str) -> None:
    """Refuse a turn or sample that is no whole number."""
    for name in ("turn", "sample"):
        value = row.get(name)
        if value not in (None, "") and not str(value).isdecimal():
            raise DataError(f"{where}: {name} is {value!r}; a whole number is expected.")


def asked_otherwise(row: Row, request: Request) -> bool:
    """Whether a row shows that another prompt was asked than a request's.

    `input_text` and a mapping in `prompt` are the whole input; a text in `prompt` is that of the prompt or
    of its last message. Answers that were shown must stand in the prompt. A row without them shows nothing.
    """
    asked = row.get("prompt")
    if whole := row.get("input_text"):
        return bool(clean(str(whole)) != request.input_text)
    if isinstance(asked, Mapping):
        return bool(canonical(asked) != request.input_text)
    if isinstance(asked, str) and asked:
        content = request.input
        return bool(
            clean(asked) != content.get("prompt", (content.get("messages") or [{}])[-1].get("content"))
        )
    shown = (row.get("baseline_output"), row.get("candidate_output"))
    return any(canonical(text)[1:-1] not in request.input_text for text in shown if isinstance(text, str))


@dataclass
class Matched:
    """What recordings are replies to.

    `recordings`: all of the table, in its order; `replies`: by key, the first of each; `used`: the recordings
    of each key, of one text; `conflicts`: those that differ from the first one of their key; `misfits`: why
    others are no reply to what has their subject.
    """

    recordings: Sequence[Recording] = ()
    replies: dict[Key, Recorded] = field(default_factory=dict)
    used: dict[Key, list[Recording]] = field(default_factory=dict)
    conflicts: dict[Recording, tuple[Key, str]] = field(default_factory=dict)
    misfits: dict[Recording, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Recordings:
    """A table of recorded replies, made an engine by `bound`.

    Args:
        table: rows with `candidate` (or one file a candidate, `{model}` in the URL; or `model_a` and
            `model_b`, the slots of the prompt), `instruction_id` (or `instruction`: the exact text),
            `reply`, for pairwise ones `orientation`. Optionally `finish_reason`, `top_logprobs` (a list of
            {token, logprob} of the one sampled token, or OpenAI's `content` list), `token_logprob` (of the
            sampled token); `baseline`, `judge`, `sample`, `turn`, `prompt`, which must fit where they are
            given. A null reply is no recording.
        orientations: the file's words for the orders -> `direct` and `reversed`.
        on_conflict: two recordings of one rendered prompt that differ: `refuse`, or take the `first`.
        setting: the key under which all this is set, for messages.
    """

    table: Table
    orientations: Mapping[str, str] = field(default_factory=lambda: {DIRECT: DIRECT, REVERSED: REVERSED})
    on_conflict: Literal["refuse", "first"] = "refuse"
    setting: str = "engine"

    def bound(
        self, requests: Callable[[], Iterable[Request]], loaded: Loaded, names: Mapping[str, str]
    ) -> Replay:
        """An engine over these recordings.

        Args:
            requests: renders what may be asked; called once, at need.
            loaded: the benchmark: its data folder, and its instructions' texts.
            names: label -> name of the candidates; recordings know names.
        """

        def replies() -> Mapping[Key, Recorded]:
            matched = self.matched(requests(), loaded, names, strict=True)
            self._refuse([told for _, told in matched.conflicts.values()])
            return matched.replies

        return Replay(replies)

    def matched(
        self, requests: Iterable[Request], loaded: Loaded, names: Mapping[str, str], *, strict: bool = False
    ) -> Matched:
        """Join recordings with requests: by subject, then by everything else that a row says.

        Raises:
            DataError: columns that cannot be read; if `strict`, a recording without order that is asked for.
        """
        known = self.read(loaded, sorted(set(names.values())))
        items = {item.instruction_id: item for item in loaded.instructions}
        found = Matched(known.recordings)
        first: dict[Key, _Subject] = {}
        for request in requests:
            asked, item = request.subject, items[request.subject.instruction_id]
            # The candidate is the second of the source order, which `direct` keeps.
            sides = [asked.model_a, asked.model_b]
            label, other = sides[::-1] if asked.orientation == DIRECT else sides
            baselines = {str(other), names.get(str(other), str(other))}
            orientation = asked.orientation or ""
            by_id = _Subject(names.get(str(label), str(label)), asked.instruction_id, orientation)
            by_text = by_id._replace(item=item.turns[0])
            if strict and orientation and known.unordered(by_id, by_text):
                raise DataError(
                    f"The recording of {by_id} does not say in which order the answers were shown, and "
                    f"that is not guessed: map a column with {self._columns}.orientation=COLUMN."
                )
            for recording, baseline in known.of(by_id, by_text):
                misfit = recording.misfit(request, baselines, baseline, len(item.turns))
                if misfit is not None:
                    # A misfit that says more than that there are several samples.
                    if misfit != "other_sample" or recording not in found.misfits:
                        found.misfits[recording] = misfit
                    continue
                reply = recording.reply
                earlier = found.replies.setdefault(request.key, reply)
                of = first.setdefault(request.key, by_id)
                if earlier == reply:
                    found.used.setdefault(request.key, []).append(recording)
                else:
                    there = f"{by_id} in row {recording.number}" if of == by_id else f"{by_id} and {of}"
                    found.conflicts.setdefault(recording, (request.key, there))
        return found

    def read(self, loaded: Loaded, candidates: Sequence[str]) -> Known:
        """All recordings of the table, or of the tables of these candidates."""
        if "{model}" not in self.table.url:
            return self._of(loaded, None)
        read = Known()
        for candidate in candidates:
            try:
                one = self._of(loaded, candidate)
            except Absent:
                continue  # its requests fail as not_recorded
            read.recordings += one.recordings
            read.ids.update(one.ids)
            read.texts.update(one.texts)
        return read

    @property
    def _columns(self) -> str:
        return "engine.table.columns" if self.setting == "engine" else f"{self.setting}.columns"

    def _of(self, loaded: Loaded, candidate: str | None) -> Known:
        marks = {} if candidate is None else {"model": candidate}
        memory = (repr(self), self.table.locate(loaded.data_dir, **marks), candidate)
        if memory not in _READ:
            _READ.clear()  # one table at a time: the jobs of a sweep read the same one
            _READ[memory] = self._index(*self.table.read(loaded.data_dir, **marks), candidate)
        return _READ[memory]

    def _index(self, rows: Sequence[Row], located: Located, candidate: str | None) -> Known:
        known = Known()
        if not rows:
            return known
        columns = columns_of(rows)
        named = "instruction_id" in columns or "instruction" not in columns
        item = "instruction_id" if named else "instruction"
        reply = "output" if "reply" not in columns and {"judge", "output"} <= {*columns} else "reply"
        who = "model_a" if "candidate" not in columns and "model_a" in columns else "candidate"
        needed = [item, reply] if candidate else [who, item, reply]
        if missing := [name for name in needed if name not in columns]:
            raise DataError(
                f"{located.path} has no column for {', '.join(missing)}. Columns: "
                f"{', '.join(map(str, columns))}. Map them with {self._columns}.NAME=COLUMN."
            )
        index = known.ids if named else known.texts
        for number, row in enumerate(rows):
            check_counts(row, f"{located.path}, row {number}")
            orientation = self._orientation(row, number, located)
            identity = clean(str(row.get(item)))
            subjects = tuple(
                (_Subject(candidate or second, identity, order), first)
                for first, second, order in _sides(row, orientation)
            )
            recording = Recording(number, row, identity, subjects)
            known.recordings.append(recording)
            if recording.output is not None:
                for subject, baseline in subjects:
                    index.setdefault(subject, []).append((recording, baseline))
        return known

    def _orientation(self, row: Row, number: int, located: Located) -> str:
        shown = row.get("orientation")
        if shown is None or shown == "":
            return ""
        if str(shown) not in self.orientations:
            raise DataError(
                f"{located.path}, row {number}: the order {shown!r} is not declared; it must be one of "
                f"{', '.join(self.orientations)} ({self.setting}.orientations)."
            )
        return self.orientations[str(shown)]

    def _refuse(self, conflicts: Sequence[str]) -> None:
        if conflicts and self.on_conflict == "refuse":
            rest = f" and {len(conflicts) - 5} more" if len(conflicts) > 5 else ""
            raise DataError(
                f"{len(conflicts)} recordings differ from an earlier one of the same rendered prompt "
                f"(candidate, instruction, order): {'; '.join(conflicts[:5])}{rest}. Mend the file, or set "
                f"{self.setting}.on_conflict=first."
            )


@dataclass
class Known:
    """The recordings of a table, in its order, and by subject; a file names items by id or by text."""

    recordings: list[Recording] = field(default_factory=list)
    ids: dict[_Subject, list[tuple[Recording, str | None]]] = field(default_factory=dict)
    texts: dict[_Subject, list[tuple[Recording, str | None]]] = field(default_factory=dict)

    def of(self, by_id: _Subject, by_text: _Subject) -> Sequence[tuple[Recording, str | None]]:
        """The recordings of a subject, each with its baseline."""
        return self.ids.get(by_id) or self.texts.get(by_text) or ()

    def unordered(self, by_id: _Subject, by_text: _Subject) -> bool:
        """Whether there are recordings, and only such as do not say in which order."""
        return not self.of(by_id, by_text) and bool(
            self.of(by_id._replace(orientation=""), by_text._replace(orientation=""))
        )


_READ: dict[tuple[str, Located, str | None], Known] = {}


def _sides(row: Row, orientation: str) -> Iterator[tuple[str | None, str, str]]:
    """(baseline, candidate, orientation) as which a row may be read."""
    if row.get("candidate") is not None or row.get("model_a") is None:
        baseline = row.get("baseline")
        yield (None if baseline is None else str(baseline)), str(row.get("candidate")), orientation
        return
    first, second = str(row["model_a"]), row.get("model_b")
    if row.get("positional"):
        yield first, str(second), DIRECT
        yield str(second), first, REVERSED
    elif orientation == DIRECT:
        yield first, str(second), orientation
    else:
        yield (None if second in (None, "") else str(second)), first, orientation


def _logprobs(row: Mapping[str, Any]) -> str | None:
    top = row.get("top_logprobs")
    if isinstance(top, str):
        top = json.loads(top)
    if not top:
        return None
    if "top_logprobs" in top[0]:
        return canonical(top)
    entry = {"token": str(row["reply"]), "logprob": row.get("token_logprob"), "top_logprobs": top}
    return canonical([entry])
