"""`judgebench plan`: what a run would ask, without asking: hits, misses, tokens, price where known.

Reads the store, never writes it, and imports no engine's vendor. Judgements of answers that are not
there yet cannot be rendered: they are counted, not priced, as "at most".
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from judgebench.engine import Failure
from judgebench.experiment import Experiment, Prepared
from judgebench.explain import Misses
from judgebench.folder import COMPLETE, Job
from judgebench.prices import CHARS_PER_TOKEN, price_of
from judgebench.report import literal
from judgebench.request import Connection, Descriptor, Price, Request
from judgebench.stage import CHUNK, Outcome
from judgebench.store import Answer
from judgebench.store.layout import ROLES

OUTPUT_GUESS = 512  # tokens of an answer where neither the settings nor the store tell


@dataclass
class Line:
    """What is asked of one model in one stage."""

    stage: str
    model: str
    descriptor: Descriptor
    price: Price | None
    hits: int = 0  # stored, shipped, or sharing the call of an equal request
    misses: int = 0
    at_most: int = 0  # misses that hang on answers which are not there yet
    input_chars: int = 0
    keys: set[str] = field(default_factory=set)

    @property
    def input_tokens(self) -> int:
        """Estimated, of the misses that can be rendered."""
        return round(self.input_chars / CHARS_PER_TOKEN)

    @property
    def output_tokens(self) -> int:
        """The most that the settings allow, of the same misses."""
        return self.misses * int(self.descriptor.settings.get("max_tokens", OUTPUT_GUESS))

    @property
    def usd(self) -> float | None:
        """At most this much for the misses that can be rendered; null where no price is known."""
        if self.price is None:
            return None
        return (self.input_tokens * self.price.input + self.output_tokens * self.price.output) / 1e6


@dataclass
class Plan(Experiment):
    """The same settings as `run`, counted instead of asked. `result`: the lines."""

    def __call__(self, job: Job) -> int:
        """Print the plan; always 0 where the run is possible."""
        prepared = self.prepare()
        missed = {role: Misses() for role in ROLES}
        self.result = list(plan(prepared, missed))
        show(self.result, self.store_root)
        for role, misses in missed.items():
            for told in misses.told(role, prepared.names, everything=self.explain):
                print(told)
        return COMPLETE


def plan(prepared: Prepared, missed: Mapping[str, Misses]) -> Iterator[Line]:
    """The lines of a plan: per model of the completions, then per judge. `missed` is noted by role."""
    lines: dict[tuple[str, str], Line] = {}
    labels = prepared.names

    def line(stage: str, descriptor: Descriptor, connection: Connection) -> Line:
        key = (stage, descriptor.hash)
        if key not in lines:
            lines[key] = Line(stage, labels[descriptor.hash], descriptor, price_of(descriptor, connection))
        return lines[key]

    root = prepared.open("completions", "plan", read_only=True)
    for turn in prepared.turns:
        for chunk in _chunks(prepared.completion_requests(turn)):
            outcomes = []
            answers = root.lookup(chunk)
            missed["completions"].note(root, _unanswered(chunk, answers))
            for request, answer in zip(chunk, answers, strict=True):
                counted = line("completions", request.descriptor, request.connection)
                if answer is not None:
                    counted.hits += 1
                    outcomes.append(Outcome(request, answer))
                elif request.descriptor.provider == "shipped":
                    counted.hits += 1
                    outcomes.append(Outcome(request, _shipped(prepared, request)))
                else:
                    _miss(counted, request)
                    outcomes.append(Outcome(request, Failure(request, "not_cached")))
            prepared.take_completions(outcomes)
    for side in prepared.sides:
        # Later turns wait for earlier ones; they were not rendered above.
        later = sum(
            len(talk.instruction.turns) - len(talk.outputs) - 1
            for talk in side.conversations
            if talk.reason in ("not_cached", "previous_turn_failed") and not talk.complete
        )
        if later:
            line("completions", side.descriptor, side.connection).at_most += later
    root.close()
    root = prepared.open("judgements", "plan", read_only=True)
    for chunk in _chunks(prepared.judgements.requests()):
        answers = root.lookup(chunk)
        missed["judgements"].note(root, _unanswered(chunk, answers))
        for request, answer in zip(chunk, answers, strict=True):
            counted = line("judgements", request.descriptor, request.connection)
            if answer is not None:
                counted.hits += 1
            else:
                _miss(counted, request)
    root.close()
    columns = prepared.judgements.columns
    for seat in prepared.judgements.seats:
        waiting = sum(
            reason in ("answer_not_cached", "answer_previous_turn_failed") and judge == seat.descriptor.hash
            for reason, judge in zip(columns["reason"], columns["judge_descriptor"], strict=True)
        )
        if waiting:
            line("judgements", seat.descriptor, seat.connection).at_most += waiting
    yield from lines.values()


def _shipped(prepared: Prepared, request: Request) -> Answer:
    """A shipped answer that the store does not hold yet, as it will."""
    side = next(side for side in prepared.sides if side.descriptor == request.descriptor)
    assert side.shipped is not None
    output = side.shipped.answers[request.subject.instruction_id][request.subject.turn - 1]
    return Answer(str(output), origin="shipped")


def _miss(line: Line, request: Request) -> None:
    key = f"{request.input_hash}:{request.sample}"
    if key in line.keys:
        line.hits += 1
        return
    line.keys.add(key)
    line.misses += 1
    line.input_chars += len(request.input_text)


def _unanswered(chunk: Sequence[Request], answers: Sequence[Answer | None]) -> list[Request]:
    return [request for request, answer in zip(chunk, answers, strict=True) if answer is None]


def _chunks(requests: Iterable[Request]) -> Iterator[list[Request]]:
    iterator = iter(requests)
    while chunk := list(islice(iterator, CHUNK)):
        yield chunk


def show(lines: Sequence[Line], root: Path) -> None:
    """The plan as a table for people, on stdout."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("stage", "model"):
        table.add_column(name, overflow="fold")
    for name in ("no call", "calls", "input tokens", "output tokens ≤", "USD ≤"):
        table.add_column(name, justify="right")
    for line in lines:
        calls = f"{line.misses:,}" + (f" (+ ≤ {line.at_most:,})" if line.at_most else "")
        usd = "unknown" if line.usd is None else f"{line.usd:.4f}"
        if line.at_most and line.usd is not None:  # their prompts are not there yet, and so no price
            usd = f"{usd} + unknown" if line.misses else "unknown"
        counts = (f"{line.hits:,}", calls, f"{line.input_tokens:,}", f"{line.output_tokens:,}")
        table.add_row(
            line.stage, Text(literal(line.model)), *counts, usd if line.misses or line.at_most else "0"
        )
    console = Console(width=None if sys.stdout.isatty() else 110, highlight=False)
    console.print(table)
    misses, at_most = sum(line.misses for line in lines), sum(line.at_most for line in lines)
    more = f", and at most {at_most:,} more once their answers are there" if at_most else ""
    console.print(
        f"{misses:,} calls{more}. Input tokens are estimated at {CHARS_PER_TOKEN:.0f} characters each, "
        f"output tokens are the limit of the settings.\nStore: {root}",
        soft_wrap=True,
    )
