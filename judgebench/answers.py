"""The completion stage of a job: from a model and instructions to requests, turn by turn, and back.

Requests of turn n hold the stored outputs of the turns before, so they are made when those are
there. Shipped answers go through the same stage and store as live ones, with an engine that only
hands them over.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from judgebench.benchmark import Instruction, Loaded
from judgebench.engine import Event, Failure, Response
from judgebench.errors import ConfigError, DataError
from judgebench.model import Model
from judgebench.prompt import Text, folded
from judgebench.reasoning import split_reasoning
from judgebench.request import (
    Connection,
    Descriptor,
    Request,
    Subject,
    canonical,
    clean,
    digest,
    messages_input,
    prompt_input,
)
from judgebench.stage import Outcome
from judgebench.store import Answer

log = logging.getLogger("judgebench")

DEFAULT_TEMPLATE = (
    "{% for turn in turns %}Question: {{ turn.user }}\nAnswer:{% if turn.assistant is not none %}"
    " {{ turn.assistant }}\n\n{% endif %}{% endfor %}"
)


@dataclass(slots=True)
class Conversation:
    """One sample of a model's answers to one instruction."""

    instruction: Instruction
    sample: int
    outputs: list[str] = field(default_factory=list)  # as received
    # With a leading think block split off, as judges and later turns see them.
    answers: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)  # descriptor_hash:input_hash:sample
    finish: list[str | None] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)
    # Why an output holds no answer: it ended within its reasoning. That is no empty answer.
    lost: list[str | None] = field(default_factory=list)
    reason: str | None = None  # why it ended early

    def add(self, output: str, key: str, finish: str | None, origin: str) -> None:
        """The next turn's answer."""
        self.outputs.append(output)
        split = split_reasoning(output)
        self.answers.append(split.answer)
        self.lost.append(split.reason)
        self.keys.append(key)
        self.finish.append(finish)
        self.origins.append(origin)

    @property
    def complete(self) -> bool:
        """Whether every turn has an answer."""
        return len(self.outputs) == len(self.instruction.turns)

    @property
    def chars(self) -> int:
        """Characters of all outputs, think blocks apart; 0 for what is missing."""
        return sum(map(len, self.answers))

    @property
    def truncated(self) -> bool:
        """Whether an answer stopped at its length limit."""
        return "length" in self.finish


@dataclass(frozen=True, eq=False)
class Shipped:
    """An engine that hands over the answers that a benchmark ships. Never reached from outside."""

    answers: Mapping[str, tuple[str | None, ...]]

    async def run(self, requests: AsyncIterable[Request]) -> AsyncGenerator[Event, None]:
        """See `judgebench.engine.Engine`."""
        async for request in requests:
            outputs = self.answers.get(request.subject.instruction_id, ())
            turn = request.subject.turn
            output = outputs[turn - 1] if len(outputs) >= turn else None
            if output is None:
                yield Failure(request, "not_shipped", "The benchmark ships no such answer.")
            else:
                yield Response(request, output, origin="shipped")


class Answers:
    """The answers of one model to the instructions of a job, filled turn by turn."""

    def __init__(self, model: Model, loaded: Loaded, role: str) -> None:
        self.model, self.loaded, self.role = model, loaded, role
        if model.form == "decision":
            raise ConfigError(f"{model.shown!r} is a decision endpoint: it can judge, not answer.")
        self.label = model.shown
        self.benchmark = loaded.benchmark.name
        shipped = loaded.shipped(model.name) if model.shipped and model.name is not None else None
        if shipped is None and (unknown := loaded.unreachable.get(str(model.name))):
            if model.provider == "shipped":
                raise DataError(unknown)
            log.warning(
                "%s is asked live: whether its answers are shipped is not known. %s", self.label, unknown
            )
        if model.provider == "shipped" and shipped is None:
            known = loaded.shipped_models()
            raise ConfigError(
                f"{loaded.benchmark.name} ships no answers of {model.name!r}. It ships: "
                f"{', '.join(known[:20]) or 'none'}{' …' if len(known) > 20 else ''}. "
                f"Name one of them ({role}.name=…), or a model to ask ({role}=CONF)."
            )
        if shipped is None and model.provider == "llamacpp" and model.shipped:
            self._refuse_misspelt(str(model.name), loaded.shipped_models())
        self.shipped = None if shipped is None else Shipped(shipped)
        samples = 1 if self.shipped else int(model.samples)
        self.conversations = [
            Conversation(item, sample) for item in loaded.instructions for sample in range(samples)
        ]
        self.by_item: dict[str, list[Conversation]] = {}
        for talk in self.conversations:
            self.by_item.setdefault(talk.instruction.instruction_id, []).append(talk)
        self.turns = max(len(item.turns) for item in loaded.instructions)
        self.descriptor = self._describe_shipped() if self.shipped else model.descriptor()
        self.connection = Connection() if self.shipped else model.connection

    def _refuse_misspelt(self, name: str, known: Sequence[str]) -> None:
        """An embedded model answers under any name: one much like a shipped one is a slip of the pen."""
        near = get_close_matches(name, known, n=1)
        if near:
            raise ConfigError(
                f"{self.benchmark} ships no answers of {name!r}; did you mean {near[0]!r}? It ships: "
                f"{', '.join(known[:20])}. To let the embedded model answer under this name, say "
                f"{self.role}.shipped=false."
            )

    def requests(self, turn: int) -> Iterator[Request]:
        """The requests of one turn (from 1), of all conversations that got that far."""
        for tag, talk in enumerate(self.conversations):
            if talk.reason is None and len(talk.instruction.turns) >= turn:
                if len(talk.outputs) < turn - 1:
                    talk.reason = "previous_turn_failed"
                    continue
                request = self._request(talk, turn, tag)
                if request is not None:
                    yield request

    def take(self, outcomes: Sequence[Outcome]) -> None:
        """Put outcomes where they belong."""
        for request, result in outcomes:
            talk = self.conversations[request.tag]
            if isinstance(result, Answer):
                talk.add(result.output, str(request.key), result.finish_reason, result.origin)
            else:
                talk.reason = result.reason

    def rows(self) -> Iterator[dict[str, Any]]:
        """Rows of the completions file."""
        for talk in self.conversations:
            for number in range(len(talk.instruction.turns)):
                there = number < len(talk.outputs)
                key = talk.keys[number].split(":") if there else [self.descriptor.hash, None]
                first_missing = number == len(talk.outputs)
                yield {
                    "benchmark": self.benchmark,
                    "role": self.role,
                    "model": self.label,
                    "instruction_id": talk.instruction.instruction_id,
                    "turn": number + 1,
                    "sample": talk.sample,
                    "output": talk.outputs[number] if there else None,
                    "finish_reason": talk.finish[number] if there else None,
                    "origin": talk.origins[number] if there else None,
                    "reason": talk.lost[number]
                    if there
                    else talk.reason
                    if first_missing
                    else "previous_turn_failed",
                    "chars": len(talk.outputs[number]) if there else 0,
                    "descriptor": key[0],
                    "input_hash": key[1],
                }

    def _request(self, talk: Conversation, turn: int, tag: int) -> Request | None:
        item = talk.instruction
        subject = Subject(self.benchmark, item.instruction_id, turn, self.label)
        if self.shipped is not None:
            outputs = self.shipped.answers.get(item.instruction_id, ())
            if len(outputs) < turn or outputs[turn - 1] is None:
                # Known without asking, so that the store is not told of it again in every run.
                talk.reason = "not_shipped"
                return None
            place = {
                "source": self.benchmark,
                "instruction_id": item.instruction_id,
                "turn": turn,
                "model": self.model.name,
                # Where in the file it was read depends on columns and order; what it says does not.
                "sha256": digest(clean(str(outputs[turn - 1]))),
            }
            text = canonical({"shipped": place})
            return Request(self.descriptor, self.connection, text, subject, 0, tag)
        earlier = talk.answers
        if any(not answer for answer in earlier):
            talk.reason = "previous_turn_failed"  # a think block that never ended leaves no answer
            return None
        text = self._input(item, earlier, turn)
        return Request(self.descriptor, self.connection, text, subject, talk.sample, tag)

    def _input(self, item: Instruction, earlier: Sequence[str], turn: int) -> str:
        pairs: list[dict[str, str | None]] = [
            {"user": user, "assistant": assistant}
            for user, assistant in zip(item.turns, [*earlier[: turn - 1], None], strict=False)
        ]
        if self.model.form == "text":
            template = Text(self.model.template or DEFAULT_TEMPLATE)
            return prompt_input(template.render({"turns": pairs, "system": item.system}))
        messages = [{"role": "system", "content": item.system}] if item.system else []
        for pair in pairs:
            messages.append({"role": "user", "content": str(pair["user"])})
            if pair["assistant"] is not None:
                messages.append({"role": "assistant", "content": pair["assistant"]})
        return messages_input(folded(messages) if self.model.fold_system else messages)

    def _describe_shipped(self) -> Descriptor:
        located = self.loaded.source_of(str(self.model.name))
        # A path of this machine is no part of what an answer is; the file's content is.
        source = located.url if ":" in located.url else located.path.name
        facts = {"source": source, "revision": located.revision, "sha256": located.sha256}
        return Descriptor("shipped", str(self.model.name), {k: v for k, v in facts.items() if v is not None})


def missing_reason(talks: Sequence[Conversation | None]) -> str | None:
    """Why one of these conversations cannot be judged; null where all can.

    `not_shipped` is nobody's failure; any other reason gets `answer_` before it, which tells a
    candidate that failed from a judge that did.
    """
    for talk in talks:
        if talk is not None and not talk.complete:
            reason = talk.reason or "previous_turn_failed"
            return reason if reason == "not_shipped" else f"answer_{reason}"
    for talk in talks:
        if talk is not None and any(talk.lost):
            return f"answer_{next(filter(None, talk.lost))}"
    return None
