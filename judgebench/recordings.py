"""Recordings: replies that people already have, to be replayed through the whole pipeline.

A recording names what it is a reply to by subject: who was compared with whom, on which instruction,
in which order. Before the run the same protocol code that makes the requests renders them, so that
replies are joined by input key: what another prompt was asked is never taken for an answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from judgebench.benchmark import Table
from judgebench.benchmark.source import Located, locate
from judgebench.engine import finish_reason
from judgebench.engine.replay import Recorded, Replay
from judgebench.errors import DataError
from judgebench.protocol import DIRECT, REVERSED
from judgebench.request import Key, Request, canonical

Subject: TypeAlias = tuple[str, str, str]  # candidate, instruction_id, orientation
NEEDED = ("candidate", "instruction_id", "reply")


@dataclass(frozen=True)
class Recordings:
    """A table of recorded replies, made an engine by `bound`.

    Args:
        table: rows with `candidate`, `instruction_id`, `reply`, optionally `orientation` (for
            pairwise ones), `finish_reason`, `top_logprobs` (a list of {token, logprob} of the one
            sampled token, or OpenAI's `content` list), `token_logprob` (of the sampled token).
        orientations: the file's words for the orders -> `direct` and `reversed`.
        on_conflict: two recordings of one rendered prompt that differ: `refuse`, or take the `first`.
    """

    table: Table
    orientations: Mapping[str, str] = field(default_factory=lambda: {DIRECT: DIRECT, REVERSED: REVERSED})
    on_conflict: Literal["refuse", "first"] = "refuse"

    def bound(self, requests: Callable[[], Iterable[Request]], data_dir: Path | None) -> Replay:
        """An engine over these recordings; `requests` renders what may be asked, once, at need."""
        return Replay(lambda: self._by_key(requests(), data_dir))

    def _by_key(self, requests: Iterable[Request], data_dir: Path | None) -> dict[Key, Recorded]:
        by_subject = self._read(data_dir)
        found: dict[Key, Recorded] = {}
        conflicts: list[Request] = []
        for request in requests:
            reply = by_subject.get(_subject(request))
            if reply is None:
                continue
            earlier = found.setdefault(request.key, reply)
            if earlier != reply:
                conflicts.append(request)
        if conflicts and self.on_conflict == "refuse":
            named = "; ".join(", ".join(_subject(request)) for request in conflicts[:5])
            raise DataError(
                f"{len(conflicts)} recordings differ from another recording of the same rendered prompt "
                f"(candidate, instruction, order): {named}. Mend the file, or set engine.on_conflict=first."
            )
        return found

    def _read(self, data_dir: Path | None) -> dict[Subject, Recorded]:
        located = locate(self.table.url, data_dir)
        memory = (repr(self.table), repr(self.orientations), self.on_conflict, located.sha256)
        if memory not in _READ:
            _READ.clear()  # one table at a time: the jobs of a sweep read the same one
            _READ[memory] = self._parsed(*self.table.read(data_dir))
        return _READ[memory]

    def _parsed(self, rows: Sequence[Mapping[str, Any]], located: Located) -> dict[Subject, Recorded]:
        if rows:
            missing = [name for name in NEEDED if name not in rows[0]]
            if missing:
                known = ", ".join(map(str, rows[0]))
                raise DataError(
                    f"{located.path} has no column for {', '.join(missing)}. Columns: {known}. "
                    "Map them with engine.table.columns.NAME=COLUMN."
                )
        read: dict[Subject, Recorded] = {}
        for number, row in enumerate(rows):
            if row["reply"] is None:
                continue
            shown = row.get("orientation")
            if shown is not None and str(shown) not in self.orientations:
                raise DataError(f"{located.path}, row {number}: orientation {shown!r} is not declared.")
            orientation = "" if shown is None else self.orientations[str(shown)]
            subject = (str(row["candidate"]), str(row["instruction_id"]), orientation)
            reply = Recorded(str(row["reply"]), finish_reason(row.get("finish_reason")), _logprobs(row))
            if read.setdefault(subject, reply) != reply and self.on_conflict == "refuse":
                raise DataError(f"{located.path}, row {number}: a second, other recording of {subject}.")
        return read


_READ: dict[tuple[str, str, str, str], dict[Subject, Recorded]] = {}


def _subject(request: Request) -> Subject:
    asked = request.subject
    # The candidate is the second of the source order, which `direct` keeps.
    candidate = asked.model_b if asked.orientation == DIRECT else asked.model_a
    return str(candidate), asked.instruction_id, asked.orientation or ""


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
