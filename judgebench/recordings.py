"""Recordings: replies that people already have, to be replayed through the whole pipeline.

A recording names what it is a reply to by subject: who was compared with whom, on which instruction,
in which order. Before the run the same protocol code that makes the requests renders them, so that
replies are joined by input key: what another prompt was asked is never taken for an answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from judgebench.benchmark import Loaded, Table
from judgebench.benchmark.formats import Row
from judgebench.benchmark.source import Absent, Located
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


@dataclass(frozen=True)
class Recordings:
    """A table of recorded replies, made an engine by `bound`.

    Args:
        table: rows with `candidate` (or one file a candidate, `{model}` in the URL), `instruction_id` (or
            `instruction`: the exact text), `reply`, for pairwise ones `orientation`, optionally
            `finish_reason`, `top_logprobs` (a list of {token, logprob} of the one sampled token, or OpenAI's
            `content` list), `token_logprob` (of the sampled token). A null reply is no recording.
        orientations: the file's words for the orders -> `direct` and `reversed`.
        on_conflict: two recordings of one rendered prompt that differ: `refuse`, or take the `first`.
    """

    table: Table
    orientations: Mapping[str, str] = field(default_factory=lambda: {DIRECT: DIRECT, REVERSED: REVERSED})
    on_conflict: Literal["refuse", "first"] = "refuse"

    def bound(
        self, requests: Callable[[], Iterable[Request]], loaded: Loaded, names: Mapping[str, str]
    ) -> Replay:
        """An engine over these recordings.

        Args:
            requests: renders what may be asked; called once, at need.
            loaded: the benchmark: its data folder, and its instructions' texts.
            names: label -> name of the candidates; recordings know names.
        """
        return Replay(lambda: self._by_key(requests(), loaded, names))

    def _by_key(
        self, requests: Iterable[Request], loaded: Loaded, names: Mapping[str, str]
    ) -> dict[Key, Recorded]:
        known = self._read(loaded, sorted(set(names.values())))
        texts = {item.instruction_id: item.turns[0] for item in loaded.instructions}
        found: dict[Key, tuple[Recorded, _Subject]] = {}
        conflicts: list[str] = []
        for request in requests:
            asked = request.subject
            # The candidate is the second of the source order, which `direct` keeps.
            label = str(asked.model_b if asked.orientation == DIRECT else asked.model_a)
            orientation = asked.orientation or ""
            by_id = _Subject(names.get(label, label), asked.instruction_id, orientation)
            by_text = by_id._replace(item=texts.get(asked.instruction_id, ""))
            row = known.ids.get(by_id) or known.texts.get(by_text)
            if row is None:
                if orientation and {by_id._replace(orientation=""), by_text._replace(orientation="")} & (
                    known.ids.keys() | known.texts.keys()
                ):
                    raise DataError(
                        f"The recording of {by_id} does not say in which order the answers were shown, and "
                        "that is not guessed: map a column with engine.table.columns.orientation=COLUMN."
                    )
                continue
            reply = Recorded(str(row["reply"]), finish_reason(row.get("finish_reason")), _logprobs(row))
            earlier, of = found.setdefault(request.key, (reply, by_id))
            if earlier != reply:
                conflicts.append(f"{by_id} and {of}")
        self._refuse(conflicts, "rendered prompt")
        return {key: reply for key, (reply, _) in found.items()}

    def _read(self, loaded: Loaded, candidates: Sequence[str]) -> _Known:
        if "{model}" not in self.table.url:
            return self._of(loaded, None)
        read = _Known({}, {})
        for candidate in candidates:
            try:
                one = self._of(loaded, candidate)
            except Absent:
                continue  # its requests fail as not_recorded
            read.ids.update(one.ids)
            read.texts.update(one.texts)
        return read

    def _of(self, loaded: Loaded, candidate: str | None) -> _Known:
        marks = {} if candidate is None else {"model": candidate}
        memory = (repr(self), self.table.locate(loaded.data_dir, **marks), candidate)
        if memory not in _READ:
            _READ.clear()  # one table at a time: the jobs of a sweep read the same one
            _READ[memory] = self._index(*self.table.read(loaded.data_dir, **marks), candidate)
        return _READ[memory]

    def _index(self, rows: Sequence[Row], located: Located, candidate: str | None) -> _Known:
        known = _Known({}, {})
        if not rows:
            return known
        named = "instruction_id" in rows[0] or "instruction" not in rows[0]
        item = "instruction_id" if named else "instruction"
        needed = [item, "reply"] if candidate else ["candidate", item, "reply"]
        missing = [name for name in needed if name not in rows[0]]
        if missing:
            raise DataError(
                f"{located.path} has no column for {', '.join(missing)}. Columns: "
                f"{', '.join(map(str, rows[0]))}. Map them with engine.table.columns.NAME=COLUMN."
            )
        index = known.ids if named else known.texts
        conflicts: list[str] = []
        for number, row in enumerate(rows):
            if row["reply"] is None:
                continue
            shown = row.get("orientation")
            if shown is not None and str(shown) not in self.orientations:
                raise DataError(
                    f"{located.path}, row {number}: the order {shown!r} is not declared; it must be one of "
                    f"{', '.join(self.orientations)} (engine.orientations)."
                )
            orientation = "" if shown is None else self.orientations[str(shown)]
            subject = _Subject(candidate or str(row["candidate"]), clean(str(row[item])), orientation)
            earlier = index.setdefault(subject, row)
            if earlier is not row and any(earlier.get(name) != row.get(name) for name in _REPLY):
                conflicts.append(f"{subject} in row {number}")
        self._refuse(conflicts, f"subject in {located.path}")
        return known

    def _refuse(self, conflicts: Sequence[str], of: str) -> None:
        if conflicts and self.on_conflict == "refuse":
            rest = f" and {len(conflicts) - 5} more" if len(conflicts) > 5 else ""
            raise DataError(
                f"{len(conflicts)} recordings differ from an earlier one of the same {of} (candidate, "
                f"instruction, order): {'; '.join(conflicts[:5])}{rest}. Mend the file, or set "
                "engine.on_conflict=first."
            )


class _Known(NamedTuple):
    """Rows by subject; a file names its items by id or by text."""

    ids: dict[_Subject, Row]
    texts: dict[_Subject, Row]


_REPLY = ("reply", "finish_reason", "top_logprobs", "token_logprob")
_READ: dict[tuple[str, Located, str | None], _Known] = {}


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
