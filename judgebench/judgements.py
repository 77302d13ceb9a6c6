"""The judgement stage of a job: from answers to rendered requests, and from stored replies to verdicts.

Everything about a judgement that is known before it is asked is a column here, in a fixed order;
replies come in any order and are read in chunks, so that only what was read of them stays in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from typing import Protocol as Protocol_

import pandas as pd

from judgebench.answers import Conversation, missing_reason
from judgebench.errors import ConfigError
from judgebench.model import Model
from judgebench.prompt import Template
from judgebench.protocol import REVERSED, Protocol, values
from judgebench.request import Connection, Descriptor, Request, Subject
from judgebench.stage import Outcome
from judgebench.store import Answer
from judgebench.verdict import VERDICT_SCHEMA, verdict_frame, verdict_key

READ_CHUNK = 2048

# What is known of a judgement before it is asked, in the order of `_append`; a reply fills the others.
_KNOWN = (
    *Subject._fields,
    *("verdict_key", "judge", "cluster_id", "category", "language", "candidate", "baseline"),
    *("candidate_sample", "sample", "reader", "judge_descriptor", "input_hash"),
    *("candidate_chars", "baseline_chars", "candidate_truncated"),
)
_LATER = tuple(name for name in VERDICT_SCHEMA if name not in _KNOWN)


class Side(Protocol_):
    """One model's answers: `judgebench.answers.Answers`, or what a data frame holds."""

    @property
    def label(self) -> str:
        """The model's name in tables."""
        ...

    @property
    def benchmark(self) -> str:
        """The benchmark's name."""
        ...

    @property
    def by_item(self) -> Mapping[str, list[Conversation]]:
        """The samples of each instruction, by its id."""
        ...


@dataclass(frozen=True)
class Match:
    """Two sets of answers to be compared, or one to be rated (`baseline` null)."""

    candidate: Side
    baseline: Side | None


@dataclass(frozen=True)
class _Seat:
    """A judge, ready to be asked."""

    name: str
    model: Model
    descriptor: Descriptor
    connection: Connection
    template: Template


class Judgements:
    """The judgements of one set of matches.

    Args:
        protocol: how judging is done.
        judges: name -> model; the name is for people.
        matches: whose answers are judged.
        order_seed: places answers where the protocol draws the order.
        data_dir: for official prompts.
    """

    def __init__(
        self,
        protocol: Protocol,
        judges: Mapping[str, Model],
        matches: Sequence[Match],
        order_seed: int,
        data_dir: Path | None,
    ) -> None:
        self.protocol, self.matches, self.order_seed = protocol, matches, order_seed
        self._refuse, self._version = protocol.refuse, protocol.reader.version
        self._same = (protocol, judges, matches, order_seed, data_dir)
        self.seats = [
            _Seat(
                judge.shown,
                judge,
                judge.descriptor(protocol.settings_for(judge.form)),
                judge.connection,
                replace(protocol.template(judge.form, data_dir), fold_system=judge.fold_system),
            )
            for judge in judges.values()
        ]
        names = [seat.name for seat in self.seats]
        if len(set(names)) != len(names):
            raise ConfigError(f"Two judges are called {names[0]!r}: give one of them a label.")
        self.columns: dict[str, list[Any]] = {name: [] for name in VERDICT_SCHEMA}
        self._replies: list[tuple[int, Answer]] = []

    def again(self) -> Iterator[Request]:
        """The same requests, rendered anew and apart from these, which they leave untouched."""
        return _Rendered(*self._same).requests()

    @property
    def size(self) -> int:
        """How many judgements were planned so far."""
        return len(self.columns["verdict_key"])

    def requests(self) -> Iterator[Request]:
        """Render every judgement. Rows that need no call (rules, missing answers) are settled here."""
        self.columns |= {name: [] for name in self.columns}
        self._appends = [self.columns[name].append for name in _KNOWN]
        # Instruction by instruction over all matches: prompts that begin alike follow each other, and
        # a provider or a local engine computes their common part once.
        items = dict.fromkeys(item for match in self.matches for item in match.candidate.by_item)
        for item in items:
            for match in self.matches:
                for talk in match.candidate.by_item.get(item, ()):
                    other = match.baseline.by_item[item][0] if match.baseline else None
                    for seat in self.seats:
                        yield from self._of(match, talk, other, seat)
        self._level()

    def _of(
        self, match: Match, talk: Conversation, other: Conversation | None, seat: _Seat
    ) -> Iterator[Request]:
        missing = missing_reason((other, talk))
        rule = missing is None and other is not None and self._draw(match, talk, other)
        for orientation in self.protocol.orientations(talk.instruction, self.order_seed):
            first, second = (talk, other) if other is None or orientation == REVERSED else (other, talk)
            subject = self._subject(match, first, second, orientation, seat)
            text = None if missing or rule else self._render(seat, talk, first, second)
            for sample in range(int(seat.model.samples)):
                tag = self.size
                request = None
                if text is not None:
                    request = Request(
                        seat.descriptor, seat.connection, text, subject, sample, tag, self._refuse
                    )
                self._append(match, talk, other, seat, subject, sample, request)
                if request is not None:
                    yield request
                elif rule:
                    label = "self" if match.candidate is match.baseline else "identical"
                    self._settle(tag, preference=0.5, label=label, source="rule")
                else:
                    self._settle(tag, reason=missing)

    def _draw(self, match: Match, talk: Conversation, other: Conversation) -> bool:
        if match.candidate is match.baseline or talk.keys == other.keys:
            return True  # a model, or an answer, against itself is never sent
        return self.protocol.identical == "draw" and talk.answers == other.answers

    def _render(
        self, seat: _Seat, talk: Conversation, first: Conversation, second: Conversation | None
    ) -> str:
        item = talk.instruction
        if len(item.turns) > 1 and not seat.template.uses & {"conversation_a", "turns"}:
            raise ConfigError(
                f"{item.instruction_id!r} has {len(item.turns)} turns, and the template of "
                f"{self.protocol.name!r} shows only one: take a protocol that shows conversations."
            )
        return seat.template.render(values(item, first.answers, second.answers if second else None))

    def _subject(
        self,
        match: Match,
        first: Conversation,
        second: Conversation | None,
        orientation: str | None,
        seat: _Seat,
    ) -> Subject:
        labels = (match.candidate.label, match.baseline.label if match.baseline else None)
        model_a, model_b = labels if labels[1] is None or orientation == REVERSED else labels[::-1]
        return Subject(
            benchmark=match.candidate.benchmark,
            instruction_id=first.instruction.instruction_id,
            turn=0,
            model_a=str(model_a),
            model_b=model_b,
            orientation=orientation,
            protocol=self.protocol.name,
            template_hash=seat.template.hash,
            answer_a=first.keys[-1] if first.complete else None,
            answer_b=second.keys[-1] if second and second.complete else None,
        )

    def _append(
        self,
        match: Match,
        talk: Conversation,
        other: Conversation | None,
        seat: _Seat,
        subject: Subject,
        sample: int,
        request: Request | None,
    ) -> None:
        item = talk.instruction
        key = request.subject_key if request else subject.key("", sample)
        known = (
            *subject,
            verdict_key(seat.descriptor.hash, key),
            seat.name,
            item.cluster_id,
            item.category,
            item.language,
            match.candidate.label,
            match.baseline.label if match.baseline else None,
            talk.sample,
            sample,
            self._version,
            seat.descriptor.hash,
            request.input_hash if request else None,
            talk.chars,
            other.chars if other else 0,
            talk.truncated,
        )
        for append, value in zip(self._appends, known, strict=True):
            append(value)

    def _settle(self, tag: int, **facts: Any) -> None:
        self._level()
        for name, value in facts.items():
            self.columns[name][tag] = value

    # --- replies ---------------------------------------------------------------------------------

    def take(self, outcomes: Sequence[Outcome]) -> None:
        """Note replies and failures; replies are read in chunks."""
        for request, result in outcomes:
            if isinstance(result, Answer):
                self._replies.append((request.tag, result))
            else:
                self._settle(request.tag, reason=result.reason, finish_reason=result.finish_reason)
        if len(self._replies) >= READ_CHUNK:
            self._read()

    def _level(self) -> None:
        """Make the columns that only a reply fills as long as the others."""
        for name in _LATER:
            column = self.columns[name]
            column.extend([None] * (self.size - len(column)))

    def _read(self) -> None:
        self._level()
        if not self._replies:
            return
        tags = [tag for tag, _ in self._replies]
        answers = [answer for _, answer in self._replies]
        self._replies = []
        replies = pd.DataFrame(
            {
                "output": [a.output for a in answers],
                "finish_reason": [a.finish_reason for a in answers],
                "top_logprobs": [a.top_logprobs for a in answers],
            },
            dtype=object,
        )
        read = self.protocol.reader.read(replies)
        columns = self.columns
        for name in ("preference", "score", "label", "confidence", "reason"):
            column = columns[name]
            for tag, value in zip(
                tags, read[name].astype(object).where(read[name].notna(), None), strict=True
            ):
                column[tag] = value
        for tag, answer in zip(tags, answers, strict=True):
            columns["origin"][tag] = answer.origin
            columns["finish_reason"][tag] = answer.finish_reason
            columns["served_model"][tag] = answer.served_model
            if columns["reason"][tag] is None:
                columns["source"][tag] = "judge"

    def verdicts(self) -> pd.DataFrame:
        """The verdict frame (`VERDICT_SCHEMA`), one row a judgement, in the order of planning."""
        self._read()
        return verdict_frame(self.columns)


class _Rendered(Judgements):
    """Requests only: nothing is kept of them for verdicts to come."""

    def _append(self, *facts: Any) -> None:
        pass

    def _settle(self, tag: int, **facts: Any) -> None:
        pass
