"""One address with one key: how many calls it bears at once, when it wants a pause, what its quota leaves.

A window of calls says how many the user allows; how many an endpoint bears only it can tell, and it tells
late. So the limit starts small and follows what comes back:

- it doubles with each round of answers until something presses, then grows by one a round;
- a rate limit or an overload (429, 503, 529) halves it, once a burst, and everybody pauses together;
- where answers take longer than the long-term pace allows it shrinks, at most to half in a round. The
  long-term pace follows the short-term one, so that a phase of longer prompts is no lasting brake
  (the gradient of Netflix's concurrency-limits, with the time an answer's token takes for the latency);
- requests and tokens a minute, where the user names them, are kept over every 60 seconds by waiting;
- what `x-ratelimit-remaining-*` leaves is not asked for twice: new calls wait for the reset.

This file does not know requests, and of HTTP only these headers' names.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections import deque
from collections.abc import Mapping

from judgebench.engine import Usage
from judgebench.engine.faults import seconds

START = 64  # calls in flight before the first answers tell more
ROUND = 16  # answers at least between two changes of the limit
TOLERANCE = 2.0  # how much slower than the long-term pace is no sign of overload
DRIFT = 0.1  # of the long-term pace towards the short-term one, a round
JITTER = 0.1  # of each wait, so that the callers of one endpoint do not return in the same instant
MINUTE_S = 60.0
OVERHEAD_TOKENS = 20  # what an answer takes before its first token, in tokens


class Endpoint:
    """What the callers of one endpoint share.

    Args:
        window: calls in flight at most.
        adapts: false where the server queues better than we do: the limit is then the window until
            something is refused.
        probes: one call at a time until the first answer, because another endpoint can serve meanwhile.
    """

    __slots__ = (
        "_adapts",
        "_grows",
        "_long",
        "_paces",
        "_probes",
        "_size",
        "_waiting",
        "busy",
        "downs",
        "limit",
        "loop",
        "rates",
        "until",
        "window",
    )

    def __init__(self, window: int, *, adapts: bool = True, probes: bool = False) -> None:
        self.loop = asyncio.get_running_loop()
        self.window = window
        self.limit = float(min(window, START) if adapts else window)
        self.busy = 0
        self.until = 0.0
        self.downs = 0  # times that nothing listened, since it last answered
        self.rates: dict[str, Rate] = {}
        self._adapts = adapts
        self._probes = probes
        self._grows = True  # nothing has pressed yet
        self._paces: list[float] = []  # seconds a token, of the answers of this round
        self._long = 0.0
        self._size = 0.0  # tokens of a call
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def load(self) -> tuple[bool, float]:
        """How much is asked of it: whether it pauses, and the share of its limit; smaller is better.

        An endpoint that nobody has asked yet comes first: one call tells whether it is of use.
        """
        if self._probes:
            return (self.until > self.loop.time(), 2.0 if self.busy or self._waiting else -1.0)
        return (self.until > self.loop.time(), (self.busy + len(self._waiting)) / max(1.0, self.limit))

    def keep(self, requests: float | None, tokens: float | None) -> None:
        """Limit requests and tokens a minute; of several limits the lowest holds."""
        for name, limit in (("requests", requests), ("tokens", tokens)):
            if limit is not None and (name not in self.rates or self.rates[name].limit > limit):
                self.rates[name] = Rate(limit)

    async def enter(self, tokens: int) -> None:
        """Return when a call of so many tokens may start."""
        while True:
            left = self.until - self.loop.time()
            if left > 0:
                await asyncio.sleep(jittered(left))
                continue
            if self.busy >= (1 if self._probes else self.limit):
                turn = self.loop.create_future()
                self._waiting.append(turn)
                await turn
                continue
            now = self.loop.time()
            amounts = {"requests": 1, "tokens": tokens}
            left = max((rate.wait(amounts[name], now) for name, rate in self.rates.items()), default=0.0)
            if left > 0:
                await asyncio.sleep(left)
                continue
            for name, rate in self.rates.items():
                rate.take(amounts[name], now)
            self.busy += 1
            return

    def leave(self) -> None:
        """A call has ended, well or not."""
        self.busy -= 1
        self._wake()

    def _wake(self) -> None:
        free = int(1 if self._probes else self.limit) - self.busy
        while free > 0 and self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                free -= 1

    def pause(self, wait_s: float, *, halve: bool = True) -> None:
        """Nobody calls for so long."""
        now = self.loop.time()
        if halve and self.until <= now:  # the other refusals of the same burst say nothing new
            self.limit = max(1.0, min(self.limit, self.busy + 1) / 2)
            self._grows = False
        self.until = max(self.until, now + wait_s)

    def unreachable(self) -> None:
        """Nothing listened: leave it alone for 5, 10, 20, … 60 s."""
        self.until = max(self.until, self.loop.time() + min(MINUTE_S, 5.0 * 2.0**self.downs))
        self.downs += 1

    def answered(self, latency_s: float, usage: Usage, reserved: int) -> None:
        """A usable answer came after so long; what it took stands against the `reserved` tokens."""
        self.downs = 0
        tokens = None if usage.output is None else usage.output + (usage.input or 0)
        if self._probes:
            self._probes = False
            self._wake()
        if tokens is not None:
            self._size = tokens if not self._size else self._size + DRIFT * (tokens - self._size)
            if "tokens" in self.rates:
                self.rates["tokens"].correct(tokens - reserved)
        if not self._adapts:
            if self.limit < self.window:
                self.limit = min(self.window, self.limit + 1 / self.limit)
            return
        if self.limit < self.window:
            self.limit = min(self.window, self.limit + (1 if self._grows else 1 / self.limit))
        self._paces.append(latency_s / (OVERHEAD_TOKENS + (usage.output or 0)))
        if len(self._paces) >= max(ROUND, self.limit):
            self._end_round()

    def _end_round(self) -> None:
        short = statistics.median(self._paces)
        self._paces = []
        if not self._long:
            self._long = short
            return
        gradient = min(1.0, max(0.5, TOLERANCE * self._long / short)) if short > 0 else 1.0
        # Quicker counts at once: what was slow must not pass for normal.
        self._long = short if short < self._long else self._long + DRIFT * (short - self._long)
        if gradient < 1.0:
            self._grows = False
            # As many as were in flight, not as many as were allowed: only those were slow.
            self.limit = max(1.0, min(self.limit, self.busy + 1) * gradient)

    def heard(self, headers: Mapping[str, str]) -> None:
        """Wait for the reset where a reply says that the calls in flight use up what the quota leaves."""
        for kind, share in (("requests", 1.0), ("tokens", self._size)):
            remaining = _number(headers.get(f"x-ratelimit-remaining-{kind}"))
            reset = headers.get(f"x-ratelimit-reset-{kind}")
            if remaining is None or reset is None:
                continue
            wait = seconds(reset, time.time())
            if wait is not None and 0 < wait <= MINUTE_S and remaining < share * self.busy:
                self.pause(wait, halve=False)


class Rate:
    """At most `limit` in every 60 seconds."""

    __slots__ = ("limit", "sum", "taken")

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.taken: deque[tuple[float, float]] = deque()  # instant, amount
        self.sum = 0.0

    def wait(self, amount: float, now: float) -> float:
        """Seconds until so much more fits. More than the limit at once fits into an empty minute."""
        while self.taken and self.taken[0][0] <= now - MINUTE_S:
            self.sum -= self.taken.popleft()[1]
        if not self.taken:
            self.sum = 0.0
            return 0.0
        excess = self.sum + amount - self.limit
        left = 0.0
        for instant, taken in self.taken:
            if excess <= 0:
                break
            excess -= taken
            left = instant + MINUTE_S - now
        return left

    def take(self, amount: float, now: float) -> None:
        """So much is used now."""
        self.taken.append((now, amount))
        self.sum += amount

    def correct(self, amount: float) -> None:
        """A call took more than was reckoned, or less."""
        if self.taken:
            instant, taken = self.taken[-1]
            amount = max(-taken, amount)
            self.taken[-1] = (instant, taken + amount)
            self.sum += amount


def jittered(wait_s: float) -> float:
    """A wait, and up to a tenth more."""
    return wait_s * random.uniform(1.0, 1.0 + JITTER)


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
