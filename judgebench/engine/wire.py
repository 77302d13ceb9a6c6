"""The wire shape of OpenAI-compatible servers: settings into a body, a reply into a `Response`.

The shape has dialects: a grammar under two names; text in `message.content`, in parts of it or in
`text`; reasoning under two names; logprobs as chat `content` or as the parallel lists of old
completions; token counts with or without the cached and the reasoning ones. This file does not know
how a body is sent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from judgebench.engine import NO_USAGE, Response, Usage, finish_reason
from judgebench.engine.faults import Fault
from judgebench.errors import ConfigError
from judgebench.request import EXECUTION_ONLY, SECRETS, Connection, Request

VLLM = frozenset({"vllm", "hosted_vllm"})
NO_PROBABILITY = -9999.0  # what vLLM writes for minus infinity, for which JSON has no word

# The input is spliced in as it was hashed, and one answer is read from a whole reply.
_OURS = frozenset({"messages", "prompt", "model"})
_ONE_WHOLE_ANSWER = frozenset({"n", "best_of", "stream", "stream_options"})
_REASONING_MODEL = re.compile(r"(?:o[1-9]|gpt-5)(?![0-9])")  # of openai itself

_COUNTS = ("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens")

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


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
    try:
        choice = reply["choices"][0]
        message = choice.get("message")
        output = choice["text"] if message is None else message.get("content")
        usage = usage_of(reply.get("usage"))
        finish = finish_reason(choice.get("finish_reason"))
        logprobs = _logprobs(request, choice.get("logprobs"))
    except (LookupError, TypeError, AttributeError, ValueError):
        raise Fault("malformed", f"no answer in the reply, which holds {sorted(reply)}", retry=True) from None
    reasoning = None
    cost = _cost(request.connection, usage) if cost_usd is None else cost_usd
    if message is not None:
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        if isinstance(output, list):
            output = "".join(part.get("text") or "" for part in output if part.get("type") == "text")
        if not output and message.get("refusal"):
            refusal = message["refusal"]
            raise Fault(
                "content_filter",
                "the model refused",
                output=refusal,
                finish_reason=finish,
                usage=usage,
                cost_usd=cost,
            )
    return Response(
        request=request,
        output=output or "",
        finish_reason=finish,
        reasoning=reasoning if isinstance(reasoning, str) and reasoning else None,
        top_logprobs=logprobs,
        served_model=reply.get("model"),
        fingerprint=reply.get("system_fingerprint"),
        usage=usage,
        cost_usd=cost,
        latency_s=latency_s,
    )


def usage_of(raw: Any) -> Usage:
    """Token counts in one convention: input holds the cached ones, output the reasoning ones.

    >>> usage_of({"input_tokens": 200, "cache_read_input_tokens": 800, "output_tokens": 100})
    Usage(input=1000, cached=800, output=100, reasoning=None)
    """
    if not isinstance(raw, Mapping):
        return NO_USAGE
    if not any(raw.get(name) for name in _COUNTS):
        return NO_USAGE  # no call takes nothing and gives nothing: that is litellm's word for unknown
    details = raw.get("prompt_tokens_details") or raw.get("input_tokens_details") or {}
    cached = details.get("cached_tokens")
    if cached is None:
        cached = raw.get("cache_read_input_tokens", raw.get("prompt_cache_hit_tokens"))
    total_in = raw.get("prompt_tokens")
    if total_in is None:
        total_in = raw.get("input_tokens")
        if total_in is not None and not details:
            # Anthropic counts what it read from and wrote to the cache apart.
            total_in += (cached or 0) + (raw.get("cache_creation_input_tokens") or 0)
    elif cached is not None and cached > total_in:
        total_in += cached
    total_out = raw.get("completion_tokens", raw.get("output_tokens"))
    details = raw.get("completion_tokens_details") or raw.get("output_tokens_details") or {}
    reasoning = details.get("reasoning_tokens", raw.get("reasoning_tokens"))
    if reasoning and total_out is not None:
        apart = (total_in or 0) + total_out + reasoning
        if reasoning > total_out or raw.get("total_tokens") == apart:
            total_out += reasoning
    return Usage(total_in, cached, total_out, reasoning)


def _cost(connection: Connection, usage: Usage) -> float | None:
    if connection.price is None or usage.input is None or usage.output is None:
        return None
    per_input, per_output = connection.price
    return (usage.input * per_input + usage.output * per_output) / 1e6


def _logprobs(request: Request, raw: Any) -> str | None:
    """The JSON text of `Response.top_logprobs`, null where none were asked for or none came."""
    asked = request.descriptor.settings.get("logprobs")
    if not asked or not raw:
        return None
    first = asked["positions"] == "first"
    content = raw.get("content")
    if content:
        entries = [
            {
                "token": at["token"],
                "logprob": at.get("logprob"),
                "top_logprobs": [
                    {"token": option["token"], "logprob": option.get("logprob")}
                    for option in at.get("top_logprobs") or ()
                ],
            }
            for at in (content[:1] if first else content)
        ]
    elif raw.get("tokens"):
        tokens = raw["tokens"][:1] if first else raw["tokens"]
        tops = raw.get("top_logprobs") or [None] * len(tokens)
        entries = [
            {
                "token": token,
                "logprob": logprob,
                "top_logprobs": [
                    {"token": option, "logprob": value} for option, value in (top or {}).items()
                ],
            }
            for token, logprob, top in zip(tokens, raw["token_logprobs"], tops, strict=False)
        ]
    else:
        return None
    try:
        return _encode(entries)
    except ValueError:  # minus infinity
        return _encode([_finite(entry) for entry in entries])


def _finite(entry: dict[str, Any]) -> dict[str, Any]:
    finite = dict(entry, logprob=_number(entry["logprob"]))
    if "top_logprobs" in entry:
        finite["top_logprobs"] = [_finite(option) for option in entry["top_logprobs"]]
    return finite


def _number(value: float | None) -> float | None:
    if value is None or value != value:
        return None
    return max(value, NO_PROBABILITY)
