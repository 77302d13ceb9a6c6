"""What a run may spend: money, calls and tokens, asked for before each request goes to its engine.

A request is let through when

    spent + the most that is in flight + the most it can take itself ≤ the limit

so that a limit is kept, not noticed afterwards. The most that a request can take is reckoned from its
length, its `max_tokens` and the price; without `max_tokens`, from the largest answer that its model has
given. Where the limit leaves no room beside what is in flight, the request waits for that to come in.
Once something has run out the budget stays closed: what is stored is served, nothing more is asked.

Not in a limit's hands: the tries that an engine makes again by itself. They are counted as they happen,
and the next request waits for them. All methods belong to one event loop.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypedDict

from judgebench.engine import Attempt, Failure, Response
from judgebench.errors import ConfigError
from judgebench.prices import price_of
from judgebench.request import Descriptor, Key, Price, Request

OUTPUT_GUESS = 4096  # tokens of an answer where neither the settings nor an earlier answer tell
BYTES_PER_TOKEN = 2.5  # fewer than any common tokenizer takes, of English (4) as of Chinese (3)
FREE = frozenset({"llamacpp"})  # providers whose weights run in this process


class Limits(TypedDict, total=False):
    """The limits of a run, or of all jobs of a sweep; null or missing: none."""

    max_cost_usd: float | None
    max_calls: int | None
    max_tokens_total: int | None


class Amount(NamedTuple):
    """What calls take; `usd` as far as it is known."""

    calls: int = 0
    tokens: int = 0
    usd: float = 0.0

    def plus(self, other: Amount) -> Amount:
        """The sum."""
        return Amount(self.calls + other.calls, self.tokens + other.tokens, self.usd + other.usd)

    def minus(self, other: Amount) -> Amount:
        """The difference."""
        return Amount(self.calls - other.calls, self.tokens - other.tokens, self.usd - other.usd)


@dataclass
class _Seen:
    """The largest answer of a model so far, in tokens."""

    output: int | None = None


class Budget:
    """The limits of a run and what is left of them."""

    def __init__(self, limits: Limits) -> None:
        for name, value in limits.items():
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0
            ):
                raise ConfigError(f"budget.{name}={value!r}: a number from 0 on, or null for no limit.")
        self.limits = limits
        self.spent = Amount()
        self.unpriced = 0  # answers whose cost nobody told: they count as the most they can have cost
        self.over = ""  # what ran out, in words
        self._flying: dict[Key, Amount] = {}
        self._reserved = Amount()
        self._seen: dict[Descriptor, _Seen] = {}
        self._settled = asyncio.Event()

    def __bool__(self) -> bool:
        return any(value is not None for value in self.limits.values())

    async def admit(self, request: Request, *, waits: bool = True) -> bool:
        """Reserve what a request can take; false once that is more than the limits leave.

        Args:
            request: about to be handed to its engine.
            waits: false for an engine that collects requests before it asks: nothing would come in.

        Raises:
            ConfigError: there is a limit on money, and nobody knows what this model costs.
        """
        seen = self._seen.setdefault(request.descriptor, _Seen())
        while not self.over:
            self._settled.clear()
            most = self._most(request, seen)
            lacking = self._lacking(most)
            unknown = seen.output is None and "max_tokens" not in request.descriptor.settings
            first_is_out = unknown and any(
                key.descriptor_hash == request.descriptor.hash for key in self._flying
            )
            if not lacking and not (waits and first_is_out):
                self._flying[request.key] = most
                self._reserved = self._reserved.plus(most)
                return True
            if not waits or not self._flying:
                self.over = lacking
                break
            await self._settled.wait()
        return False

    def settle(self, event: Response | Failure) -> None:
        """A request has ended: what it took instead of the most that it could have taken."""
        most = self._release(event.request.key)
        if most is None:
            return
        usage, usd = event.usage, event.cost_usd
        tokens = (usage.input or 0) + (usage.output or 0)
        if isinstance(event, Response):
            if usd is None and most.usd:
                self.unpriced += 1
                usd = most.usd
            tokens = tokens or most.tokens
            seen = self._seen[event.request.descriptor]
            # Characters are tokens at the very most, where nobody counted.
            output = len(event.output) if usage.output is None else usage.output
            seen.output = max(seen.output or 0, output)
        self.spent = self.spent.plus(Amount(1, tokens, usd or 0.0))
        self._settled.set()

    def again(self, attempt: Attempt) -> None:
        """A try has ended, and its request goes on."""
        if attempt.request.key in self._flying:
            self.spent = self.spent.plus(Amount(1, 0, attempt.cost_usd or 0.0))

    def lose(self, keys: Iterable[Key]) -> None:
        """Requests whose engine has ended without a word on them: what they can have cost is spent."""
        for key in keys:
            most = self._release(key)
            if most is not None:
                self.spent = self.spent.plus(most)
        self._settled.set()

    def told(self) -> str:
        """What was spent of what, in words."""
        parts = [
            _part("$", self.spent.usd, self.limits.get("max_cost_usd"), ".4f"),
            _part("", self.spent.calls, self.limits.get("max_calls"), ",", " calls"),
            _part("", self.spent.tokens, self.limits.get("max_tokens_total"), ",", " tokens"),
        ]
        guessed = f" ({self.unpriced} answers at the most they can have cost)" if self.unpriced else ""
        return f"Budget: {', '.join(part for part in parts if part)}{guessed}."

    def _release(self, key: Key) -> Amount | None:
        most = self._flying.pop(key, None)
        if most is not None:
            self._reserved = self._reserved.minus(most)
        return most

    def _most(self, request: Request, seen: _Seen) -> Amount:
        """The most that one call of a request can take."""
        settings = request.descriptor.settings
        read = int(len(request.input_text.encode()) / BYTES_PER_TOKEN) + 16
        limit = settings.get("max_tokens") or settings.get("max_completion_tokens")
        written = int(limit or seen.output or OUTPUT_GUESS)
        usd = 0.0
        if self.limits.get("max_cost_usd") is not None:
            price = self._price(request)
            usd = (read * price.input + written * price.output) / 1e6
        return Amount(1, read + written, usd)

    def _price(self, request: Request) -> Price:
        descriptor = request.descriptor
        if descriptor.provider in FREE:
            return Price(0.0, 0.0)
        price = price_of(descriptor, request.connection)
        if price is None:
            raise ConfigError(
                "budget.max_cost_usd cannot be kept: nobody says what "
                f"{descriptor.provider}/{descriptor.model} costs. Give its price in USD per million "
                "tokens, for example judge.price='{input: 2.5, output: 10}' (0 and 0 for a server of yours), "
                "or limit the run with budget.max_calls or budget.max_tokens_total."
            )
        return price

    def _lacking(self, most: Amount) -> str:
        """What a further call would run out of, in words; "" where there is room."""
        after = self.spent.plus(self._reserved).plus(most)
        for name, value in (
            ("max_cost_usd", after.usd),
            ("max_calls", after.calls),
            ("max_tokens_total", after.tokens),
        ):
            limit = self.limits.get(name)
            if limit is not None and value > float(limit) * (1 + 1e-12):  # type: ignore[arg-type]
                return f"budget.{name}={limit}"
        return ""


def _part(before: str, value: float, limit: float | None, form: str, after: str = "") -> str:
    if limit is None:
        return ""
    return f"{before}{value:{form}} of {before}{limit:{'g' if before else ','}}{after}"


def budget_of(limits: Limits, sweep: str | None) -> Budget:
    """The budget of a run; the jobs of one sweep in this process share theirs."""
    if sweep is None:
        return Budget(limits)
    return _shared(tuple(sorted((k, v) for k, v in limits.items() if v is not None)), sweep)


@functools.lru_cache(maxsize=8)
def _shared(limits: tuple[tuple[str, float], ...], sweep: str) -> Budget:
    return Budget(dict(limits))  # type: ignore[arg-type]
