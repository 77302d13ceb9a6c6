"""The wire shape of OpenAI-compatible servers: settings into a body, a reply into a `Response`.

The shape has dialects: a grammar under two names; text in `message.content`, in parts of it or in
`text`; reasoning under two names; logprobs as chat `content` or as the parallel lists of old
completions; token counts with or without the cached and the reasoning ones. And it has servers that
get it wrong: a field of the wrong type is taken for absent, and only the text itself must be there
(`test_any_json_is_an_answer_or_a_fault`). This file does not know how a body is sent.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from judgebench.engine import NO_USAGE, Response, Usage, finish_reason
from judgebench.engine.faults import Fault
from judgebench.errors import ConfigError
from judgebench.prices import price_of
from judgebench.request import EXECUTION_ONLY, SECRETS, Request, clean

VLLM = frozenset({"vllm", "hosted_vllm"})
NO_PROBABILITY = -9999.0  # what vLLM writes for minus infinity, for which JSON has no word

# The input is spliced in as it was hashed, and one answer is read from a whole reply.
_OURS = frozenset({"messages", "prompt", "model"})
_ONE_WHOLE_ANSWER = frozenset({"n", "best_of", "stream", "stream_options"})
_REASONING_MODEL = re.compile(r"(?:o[1-9]|gpt-5)(?![0-9])")  # of openai itself

_COUNTS = ("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens")
_MOST = 2**53  # JSON holds no larger whole number exactly; a few of them together stay below 64 bits

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


def decoded(raw: bytes | str) -> Any:
    """The JSON value of a body, null where it is none or is nested more deeply than any answer."""
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


def is_chat(request: Request) -> bool:
    """True for messages, False for a prompt, `ConfigError` for anything else."""
    if request.input_text.startswith('{"messages":'):
        return True
    if request.input_text.startswith('{"prompt":'):
        return False
    raise ConfigError(
        f"{request.descriptor.model!r}: this engine takes chat and text input only, "
        f"not {request.input_text[:20]!r}…"
    )


def settings_body(request: Request) -> dict[str, Any]:
    """The descriptor's settings under the names that the server expects, for this request's sample.

    Raises:
        ConfigError: a setting that cannot be sent, or whose effect could not be read from one reply.
    """
    descriptor = request.descriptor
    settings = request.settings()
    body: dict[str, Any] = {}
    for name, value in {**settings, **settings.get("extra_body", {})}.items():
        if name == "extra_body":
            continue
        if name.lower() in SECRETS:
            raise ConfigError(f"{name!r} may not stand among settings: name its variable in api_key_env.")
        if name in _OURS or (name in _ONE_WHOLE_ANSWER and value not in (1, False)):
            raise ConfigError(
                f"{descriptor.model!r}: {name}={value!r} cannot be honoured: a request is one input and one "
                "answer (several answers: samples)."
            )
        if name == "logprobs" and isinstance(value, Mapping):
            body.update(
                {"logprobs": True, "top_logprobs": value["count"]}
                if is_chat(request)
                else {"logprobs": value["count"]}
            )
        elif name == "grammar" and descriptor.provider in VLLM:
            body["structured_outputs"] = {**body.get("structured_outputs", {}), "grammar": value}
        elif (
            name == "max_tokens"
            and descriptor.provider == "openai"
            and _REASONING_MODEL.match(descriptor.model.rpartition("/")[2])
        ):
            body["max_completion_tokens"] = value
        else:
            body[name] = value
    if descriptor.chat_template is not None and is_chat(request):
        if descriptor.provider not in VLLM:
            raise ConfigError(
                f"{descriptor.model!r}: provider {descriptor.provider!r} takes no chat_template in a "
                "request: set it where the server starts, and leave it out here."
            )
        body["chat_template"] = descriptor.chat_template
    return body


OTHER_NAME: Mapping[str, str] = {
    "max_tokens": "max_completion_tokens",
    "max_completion_tokens": "max_tokens",
}


def wants_other_name(detail: str) -> bool:
    """Whether an error says that the limit of an answer's length goes by the other of its two names.

    >>> wants_other_name("Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.")
    True
    """
    return "max_completion_tokens" in detail and bool(
        re.search(
            r"unsupported|not supported|unrecogni[sz]ed|unknown|unexpected|not permitted",
            detail,
            re.IGNORECASE,
        )
    )


def check_body(body: Mapping[str, Any]) -> None:
    """An engine's own body fields may only be such as change no output; `ConfigError` otherwise."""
    for name in body:
        if name not in EXECUTION_ONLY or name in _ONE_WHOLE_ANSWER:
            raise ConfigError(
                f"body.{name} is not for an engine: what can change an answer belongs to the model's "
                f"sampling and so to its key. Here: {', '.join(sorted(EXECUTION_ONLY - _ONE_WHOLE_ANSWER))}."
            )


def response_of(
    request: Request, reply: Mapping[str, Any], latency_s: float | None = None, cost_usd: float | None = None
) -> Response:
    """The answer in a decoded reply.

    Args:
        request: what was asked.
        reply: the reply's JSON object.
        latency_s: seconds from sending to the last byte.
        cost_usd: what the call cost where the caller knows; else it follows from the model's price.

    Raises:
        Fault: `malformed` where there is no answer in it, `content_filter` where it is a refusal.
    """
    usage = usage_of(reply.get("usage"))
    cost = _cost(request, usage) if cost_usd is None else cost_usd
    choices = reply.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    choice = first if isinstance(first, dict) else {}
    finish = finish_reason(choice.get("finish_reason"))
    try:
        said = _said(choice)
    except _Odd as odd:
        raise Fault(
            "malformed",
            f"no answer in the reply: {odd}; it holds {', '.join(sorted(reply)) or 'nothing'}",
            retry=True,
            finish_reason=finish,
            usage=usage,
            cost_usd=cost,
        ) from None
    if said.refusal:
        raise Fault(
            "content_filter",
            "the model refused",
            output=said.refusal,
            finish_reason=finish,
            usage=usage,
            cost_usd=cost,
        )
    return Response(
        request=request,
        output=said.output,
        finish_reason=finish,
        reasoning=said.reasoning,
        top_logprobs=_logprobs(request, choice.get("logprobs")),
        served_model=_name(reply.get("model")),
        fingerprint=_name(reply.get("system_fingerprint")),
        usage=usage,
        cost_usd=cost,
        latency_s=latency_s,
    )


class _Odd(Exception):
    """What is wrong with a reply, in words that are the same for all replies of that kind."""


class _Said(NamedTuple):
    """What stands in a choice. `refusal` only where there is no other text."""

    output: str
    reasoning: str | None = None
    refusal: str | None = None


def _said(choice: Mapping[str, Any]) -> _Said:
    message = choice.get("message")
    if message is None:
        if "text" not in choice:
            raise _Odd("it has no message and no text")
        return _Said(_string(choice["text"], "text"))
    if not isinstance(message, dict):
        raise _Odd("its message is no object")
    output = message.get("content")
    if isinstance(output, list):
        if not all(isinstance(part, dict) for part in output):
            raise _Odd("a part of its content is no object")
        texts = [_string(part.get("text"), "text") for part in output if part.get("type") == "text"]
        output = "".join(texts)
    output = _string(output, "content")
    reasoning = _filled(message.get("reasoning_content")) or _filled(message.get("reasoning"))
    refusal = message.get("refusal") if not output else None
    return _Said(output, reasoning, _string(refusal, "refusal") or None)


def _string(value: Any, name: str) -> str:
    """A text that must be one, "" for null."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _Odd(f"its {name} is of type {type(value).__name__}")
    return value


def _filled(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _name(value: Any) -> str | None:
    """What a server calls something, null where that is no text."""
    return clean(value) if isinstance(value, str) else None


def usage_of(raw: Any) -> Usage:
    """Token counts in one convention: input holds the cached ones, output the reasoning ones.

    >>> usage_of({"input_tokens": 200, "cache_read_input_tokens": 800, "output_tokens": 100})
    Usage(input=1000, cached=800, output=100, reasoning=None)
    """
    if not isinstance(raw, Mapping):
        return NO_USAGE
    if not any(_count(raw, name) for name in _COUNTS):
        return NO_USAGE  # no call takes nothing and gives nothing: that is litellm's word for unknown
    details = _part(raw, "prompt_tokens_details") or _part(raw, "input_tokens_details")
    cached = _count(details, "cached_tokens")
    if cached is None:
        cached = _count(raw, "cache_read_input_tokens", "prompt_cache_hit_tokens")
    total_in = _count(raw, "prompt_tokens")
    if total_in is None:
        total_in = _count(raw, "input_tokens")
        if total_in is not None and not details:
            # Anthropic counts what it read from and wrote to the cache apart.
            total_in += (cached or 0) + (_count(raw, "cache_creation_input_tokens") or 0)
    elif cached is not None and cached > total_in:
        total_in += cached
    total_out = _count(raw, "completion_tokens", "output_tokens")
    details = _part(raw, "completion_tokens_details") or _part(raw, "output_tokens_details")
    reasoning = _count(details, "reasoning_tokens")
    if reasoning is None:
        reasoning = _count(raw, "reasoning_tokens")
    if reasoning and total_out is not None:
        apart = (total_in or 0) + total_out + reasoning
        if reasoning > total_out or raw.get("total_tokens") == apart:
            total_out += reasoning
    return Usage(total_in, cached, total_out, reasoning)


def _part(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = raw.get(name)
    return part if isinstance(part, Mapping) else {}


def _count(raw: Mapping[str, Any], *names: str) -> int | None:
    """The first number of tokens under these names; what is no whole number from 0 to `_MOST` is none."""
    for name in names:
        value = raw.get(name)
        if type(value) is float and value.is_integer():
            value = int(value)
        if type(value) is int and 0 <= value <= _MOST:
            return value
    return None


def _cost(request: Request, usage: Usage) -> float | None:
    price = price_of(request.descriptor, request.connection)
    if price is None or usage.input is None or usage.output is None:
        return None
    cached = min(usage.cached or 0, usage.input) if price.cached is not None else 0
    paid = (usage.input - cached) * price.input + usage.output * price.output
    return (paid + cached * (price.cached or 0.0)) / 1e6


def _logprobs(request: Request, raw: Any) -> str | None:
    """The JSON text of `Response.top_logprobs`, null where none were asked for, or none in a known shape."""
    asked = request.descriptor.settings.get("logprobs")
    if not asked or not isinstance(raw, dict):
        return None
    first = asked["positions"] == "first"
    try:
        entries = _positions(raw, first)
    except (LookupError, TypeError, AttributeError):
        return None
    return _encode(entries) if entries else None


def _positions(raw: dict[str, Any], first: bool) -> list[dict[str, Any]]:
    """The positions in the store's shape; LookupError, TypeError or AttributeError where they are odd."""
    if content := raw.get("content"):
        return [
            {
                **_token(at["token"], at.get("logprob")),
                "top_logprobs": [
                    _token(option["token"], option.get("logprob")) for option in at.get("top_logprobs") or ()
                ],
            }
            for at in (content[:1] if first else content)
        ]
    tokens = raw.get("tokens") or []
    if not isinstance(tokens, list):
        raise TypeError("tokens are a list")
    tops = raw.get("top_logprobs") or [None] * len(tokens)
    return [
        {
            **_token(token, logprob),
            "top_logprobs": [_token(option, value) for option, value in (top or {}).items()],
        }
        for token, logprob, top in zip(
            tokens[:1] if first else tokens, raw.get("token_logprobs") or (), tops, strict=False
        )
    ]


def _token(token: Any, logprob: Any) -> dict[str, Any]:
    if not isinstance(token, str):
        raise TypeError("a token is a text")
    return {"token": token, "logprob": _number(logprob)}


def _number(value: Any) -> float | None:
    """A log probability in words that JSON has: null where it is none."""
    if type(value) is float and -math.inf < value < math.inf:
        return value
    if value == -math.inf:
        return NO_PROBABILITY
    return value if type(value) is int and abs(value) <= _MOST else None
