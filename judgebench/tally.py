"""What a stage counts: for the progress line, the summary and `run.json`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from judgebench.engine import Attempt, Failure
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

    @property
    def done(self) -> int:
        """Requests with an outcome."""
        return self.hits + self.calls + self.shared + sum(self.failures.values())

    def hit(self, answer: Answer, first: bool) -> None:
        """Count a stored answer; its value only the `first` time, since it would be bought once."""
        self.hits += 1
        if first:
            self.served_usd += answer.cost_usd or 0.0

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
