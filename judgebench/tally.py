"""What a stage counts: for the progress line, the summary and `run.json`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from judgebench.engine import Attempt, Failure
from judgebench.explain import Identity, Misses
from judgebench.request import Descriptor, Request
from judgebench.store import Answer


@dataclass
class Tally:
    """Counts of one fill. `calls` were answered by an engine, `shared` rode on another's call."""

    asked: int = 0
    hits: int = 0
    calls: int = 0
    origins: Counter[str] = field(default_factory=Counter)  # of the calls: paid, shipped, replayed
    shared: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    retries: Counter[str] = field(default_factory=Counter)
    waiting: str = ""  # why nothing seems to move
    cost_usd: float = 0.0
    unpriced: int = 0
    served_usd: float = 0.0  # what the hits had cost when they were bought
    input_tokens: int = 0
    output_tokens: int = 0
    # By descriptor: who the server said it was (name, fingerprint, version), and how often.
    served: dict[Descriptor, Counter[Identity]] = field(default_factory=dict)
    canaries: int = 0  # asked
    changed: list[str] = field(default_factory=list)  # models that may not be what they were
    missed: Misses = field(default_factory=Misses)

    @property
    def done(self) -> int:
        """Requests with an outcome."""
        return self.hits + self.calls + self.shared + sum(self.failures.values())

    def hit(self, answer: Answer, first: bool) -> None:
        """Count a stored answer; its value only the `first` time, since it would be bought once."""
        self.hits += 1
        if first:
            self.served_usd += answer.cost_usd or 0.0

    def note(self, request: Request, answer: Answer) -> None:
        """Count who gave an answer, stored or new."""
        counter = self.served.get(request.descriptor)
        if counter is None:
            counter = self.served[request.descriptor] = Counter()
        counter[answer.served_model, answer.fingerprint, answer.backend_version] += 1

    def paid(self, answer: Answer) -> None:
        """Count an answer that this fill asked for."""
        self.calls += 1
        self.origins[answer.origin] += 1
        if answer.origin == "paid":
            self.input_tokens += answer.input_tokens or 0
            self.output_tokens += answer.output_tokens or 0
            self._spend(answer.cost_usd)

    def failed(self, failure: Failure) -> None:
        """Count a request without a usable answer; what it cost is spent all the same."""
        self.failures[failure.reason] += 1
        self.cost_usd += failure.cost_usd or 0.0

    def retried(self, attempt: Attempt) -> None:
        """Count a try that is made again."""
        self.retries[attempt.reason] += 1
        self.cost_usd += attempt.cost_usd or 0.0
        self.waiting = f"{attempt.reason}, next try in {attempt.wait_s:.0f} s" if attempt.wait_s >= 1 else ""

    def _spend(self, cost_usd: float | None) -> None:
        if cost_usd is None:
            self.unpriced += 1
        else:
            self.cost_usd += cost_usd

    def facts(self) -> dict[str, Any]:
        """The counts as plain data, for `run.json`."""
        facts = {k: v for k, v in vars(self).items() if k not in ("waiting", "served", "missed")}
        facts["not_stored"] = [
            {"descriptor": m.descriptor.hash, "keys": m.keys, "reason": m.reason.text}
            for m in self.missed.groups.values()
        ]
        names = ("served_model", "fingerprint", "backend_version")
        facts["served"] = [
            {"descriptor": descriptor.hash, "rows": rows, **dict(zip(names, identity, strict=True))}
            for descriptor, counter in self.served.items()
            for identity, rows in counter.items()
            if any(identity)
        ]
        return facts
