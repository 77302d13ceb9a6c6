"""The engine contract: requests in, events out, one method.

An engine pulls requests when it wants them and yields answers when it has them; batching, retries,
keys, threads and resume are its own business. The laws, checked for every engine by
`tests/test_engine_contract.py`:

1. Exactly one terminal event (`Response` or `Failure`) for each request pulled, in any order.
2. Deltas carry the attempt's number; those of the last attempt, joined, are the response's text.
3. Lazy pull: at most `window` requests are in flight; a slot is free as soon as the answer is read.
4. No request, no resource: no import of the backend, no model load, no connection.
5. Closing the generator cancels what is in flight and frees everything.
6. One bad request is a `Failure`; a broken engine raises `EngineError`; a setting that the engine
   cannot honour raises `ConfigError` before the first call.
7. Retries and waits happen inside, and are told as `Attempt` events.

This file does not know any backend.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, get_args, runtime_checkable

from judgebench.request import Request, clean

Reason = Literal[
    "rate_limited",
    "quota",
    "auth",
    "not_found",
    "bad_request",
    "context_overflow",
    "content_filter",
    "timeout",
    "server",
    "malformed",
    "empty",
    "truncated_in_reasoning",
    "no_logprobs",
    "previous_turn_failed",
    "not_cached",
    "not_shipped",
    "not_recorded",
    "over_budget",
    "cancelled",
]
REASONS: tuple[str, ...] = get_args(Reason)

# Every further request would fail in the same way: the engine raises instead of failing row by row.
FATAL: frozenset[str] = frozenset({"auth", "quota", "not_found"})

FINISH = {
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "stop": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "eos": "stop",
    "content_filter": "content_filter",
    "safety": "content_filter",
    "tool_calls": "tool_calls",
}


def finish_reason(raw: object) -> str | None:
    """A provider's stop reason in our words: stop, length, content_filter, …; null when unknown or no text.

    >>> finish_reason("MAX_TOKENS"), finish_reason("end_turn"), finish_reason(None)
    ('length', 'stop', None)
    """
    if not isinstance(raw, str):
        return None
    word = clean(raw).lower()
    return FINISH.get(word, word)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as charged: `input` includes `cached`, `output` includes `reasoning`; null = unknown."""

    input: int | None = None
    cached: int | None = None
    output: int | None = None
    reasoning: int | None = None


NO_USAGE = Usage()


@dataclass(frozen=True, slots=True, eq=False)
class Response:
    """A usable answer: non-empty text as received (length-stopped included).

    `top_logprobs` is JSON text, one entry a position: `{"token", "logprob", "top_logprobs":
    [{"token", "logprob"}, …]}`. `cost_usd` is null when unknown, never 0.
    """

    request: Request
    output: str
    finish_reason: str | None = None
    reasoning: str | None = None
    top_logprobs: str | None = None
    origin: Literal["paid", "shipped", "replayed", "imported"] = "paid"
    served_model: str | None = None
    fingerprint: str | None = None
    backend_version: str | None = None
    usage: Usage = NO_USAGE
    cost_usd: float | None = None
    latency_s: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Failure:
    """No usable answer: a typed reason, a sentence for people, and what it cost."""

    request: Request
    reason: Reason
    detail: str = ""
    output: str | None = None
    finish_reason: str | None = None
    usage: Usage = NO_USAGE
    cost_usd: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Attempt:
    """One try that did not end the request: it is asked again after `wait_s` seconds."""

    request: Request
    number: int
    reason: Reason
    detail: str = ""
    wait_s: float = 0.0
    output: str | None = None
    cost_usd: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Delta:
    """A piece of text of attempt `number` as it streams in."""

    request: Request
    number: int
    text: str


Event: TypeAlias = Attempt | Delta | Response | Failure


@runtime_checkable
class Engine(Protocol):
    """How a model is reached. Built from YAML by a constructor that does no I/O; equal ones are one."""

    def run(self, requests: AsyncIterable[Request]) -> AsyncGenerator[Event, None]:
        """Answer each request pulled with exactly one `Response` or `Failure`."""
        ...
