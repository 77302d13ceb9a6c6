"""What went wrong with one call: a typed reason, whether to ask again, and how long to wait first.

Providers agree on neither: a used-up account arrives as 429, a forbidden parameter as 403, a full
context as 400 in a dozen wordings, a wait as seconds, a date, `6m0s` or a sentence. This file turns
status, headers and body into one `Fault`. It does not know sockets, engines or the flow.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from judgebench.engine import NO_USAGE, Reason, Usage

# Sentences of OpenAI, vLLM, llama.cpp, TGI, SGLang, Anthropic and Gemini for a prompt that does not fit.
_CONTEXT = re.compile(
    r"context_length_exceeded|exceed_context_size|maximum context length|max_model_len|input token count"
    r"|context (?:size|window)|longer than the (?:maximum )?model|(?:prompt|input) is too long"
    r"|exceeds? the max(?:imum)? (?:number of )?(?:input )?tokens?|maximum allowed length"
    r"|max_new_tokens`? must",
    re.IGNORECASE,
)
_FILTER = re.compile(
    r"content_filter|content.?policy|content management policy|responsible ?ai|data_inspection_failed"
    r"|flagged by|moderation",
    re.IGNORECASE,
)
_NO_CREDIT = re.compile(
    r"insufficient_quota|billing_(?:hard_limit|not_active)|credit balance is too low"
    r"|insufficient[ _](?:balance|credit|funds)|(?:requires|out of) (?:more )?credits",
    re.IGNORECASE,
)
_QUOTA_TEXT = re.compile(r"exceeded your current quota", re.IGNORECASE)
_NO_MODEL = re.compile(r"model_not_found|model_not_available|unknown_model", re.IGNORECASE)

_DURATION = r"(?:\d+(?:\.\d+)?(?:ms|h|m|s))+"
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|h|m|s)")
_UNIT_S = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_IN_BODY = re.compile(
    rf"(?:retryDelay\W+|(?:try again|retry) (?:in|after) )({_DURATION}|\d+(?:\.\d+)? ?(?:seconds?)?)",
    re.IGNORECASE,
)
_EPOCH_S = 1e9  # a number as large as this is an instant, not a duration


_UNWANTED = re.compile(
    r"unsupported|not (?:be )?(?:supported|permitted|allowed|recogni[sz]ed|valid|compatible)"
    r"|unrecogni[sz]ed|unexpected|unknown|deprecated|does(?:n't| not) support|only the default"
    r"|must be (?:null|omitted|removed)",
    re.IGNORECASE,
)
_NO_SYSTEM = re.compile(
    r"system (?:role|message|prompt|instruction)s?[^.]{0,40}(?:not|un)[ -]?(?:supported|allowed|enabled)"
    r"|(?:not support|unsupported|only support)[^.]{0,40}\bsystem\b|roles must alternate",
    re.IGNORECASE,
)


def refused_setting(detail: str, settings: Iterable[str]) -> str | None:
    """The setting that an error says the model does not take; null where it names none.

    >>> refused_setting("400 Unsupported value: 'temperature' does not support 0.", ["temperature"])
    'temperature'
    """
    if not _UNWANTED.search(detail):
        return None
    named = [name for name in settings if re.search(rf"(?<![\w]){re.escape(name)}(?![\w])", detail)]
    return named[0] if len(named) == 1 else None


def refuses_system(detail: str) -> bool:
    """Whether an error says that the model's chat template has no place for a system message."""
    return bool(_NO_SYSTEM.search(detail))


class Fault(Exception):
    """One call that gave no usable answer.

    `retry`: asking again may help. `pause`: every caller of this endpoint had better wait. `down`:
    nothing listens there, which is never about this one request. `moved`: the address leads elsewhere,
    which is the model's fault only until it has answered. `wait_s`: what the server asked for.
    """

    def __init__(
        self,
        reason: Reason,
        detail: str,
        *,
        retry: bool = False,
        pause: bool = False,
        down: bool = False,
        moved: bool = False,
        wait_s: float | None = None,
        output: str | None = None,
        finish_reason: str | None = None,
        usage: Usage = NO_USAGE,
        cost_usd: float | None = None,
    ) -> None:
        super().__init__(detail)
        self.reason: Reason = reason
        self.detail = detail
        self.retry = retry
        self.pause = pause
        self.down = down
        self.moved = moved
        self.wait_s = wait_s
        self.output = output
        self.finish_reason = finish_reason
        self.usage = usage
        self.cost_usd = cost_usd


def fault_of(status: int, body: Any, headers: Mapping[str, str], now: float) -> Fault:
    """The fault behind an error reply. Its detail is whole: a secret can only be hidden in an uncut text.

    Args:
        status: the HTTP status; an error inside a 200 passes the code that stands in its body.
        body: the decoded JSON, or the text where it is none.
        headers: of the reply, names in any case.
        now: seconds since the epoch, against which dates are read.
    """
    code, message = _error_of(body)
    text = f"{code} {message}"
    detail = f"{status} {message or code or 'without a message'}"
    if status < 500 and status not in (408, 409, 425):
        wait = retry_after(headers, body, now)
        reason = _reason(status, text, wait)
        if status == 403 and reason == "auth" and isinstance(body, str) and "<" in body:
            reason = "bad_request"  # a firewall's page about this text, not the provider's word on the key
        if reason == "rate_limited":
            return Fault(reason, detail, retry=True, pause=True, wait_s=wait)
        return Fault(reason, detail)
    if _CONTEXT.search(text):  # some llama.cpp versions say so with a 500
        return Fault("context_overflow", detail)
    return Fault(
        "timeout" if status in (408, 504) else "server",
        detail,
        retry=True,
        pause=status in (503, 529),
        wait_s=retry_after(headers, body, now),
    )


def _reason(status: int, text: str, wait_s: float | None) -> Reason:
    """The reason behind a status below 500 that is no time-out and no conflict."""
    if status == 402 or _NO_CREDIT.search(text):
        return "quota"
    if status == 429:
        # Gemini says "exceeded your current quota" of a limit per minute too, then with a retryDelay.
        return "quota" if wait_s is None and _QUOTA_TEXT.search(text) else "rate_limited"
    if _CONTEXT.search(text):
        return "context_overflow"
    if _FILTER.search(text):
        return "content_filter"
    if "logprobs" in text.lower():
        return "no_logprobs"
    if status == 404 or status == 410 or _NO_MODEL.search(text):
        return "not_found"
    return "auth" if status in (401, 403) else "bad_request"


def _error_of(body: Any) -> tuple[str, str]:
    """Code (with type) and message of an error body in any of the shapes met."""
    if isinstance(body, list) and body:
        body = body[0]  # Gemini
    if not isinstance(body, Mapping):
        return "", re.sub(r"<[^>]*>|\s+", " ", _text(body or "")).strip()
    error = body.get("error", body)
    if not isinstance(error, Mapping):
        return _text(body.get("error_type") or ""), _text(error)  # TGI
    message = error.get("message") or error.get("detail") or ""
    code = " ".join(_text(error[name]) for name in ("code", "type", "status") if error.get(name) is not None)
    return code, _text(message)


def _text(value: object) -> str:
    """A part of a body as text; "" where it is nested so deeply that it has none."""
    try:
        return str(value)
    except RecursionError:
        return ""


def retry_after(headers: Mapping[str, str], body: Any, now: float) -> float | None:
    """Seconds that the server asks to wait, null where it says nothing that can be read.

    >>> retry_after({"Retry-After": "30"}, None, 0.0), retry_after({"Retry-After": "soon"}, None, 0.0)
    (30.0, None)
    """
    named = {name.lower(): value for name, value in headers.items()}
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        if name in named:
            wait = seconds(named[name], now, scale)
            if wait is not None:
                return wait
    found = _IN_BODY.search(_text(body or ""))
    if found:
        return seconds(found[1].lower().removesuffix("seconds").removesuffix("second").strip(), now)
    resets = [
        wait
        for kind in ("requests", "tokens")
        if f"x-ratelimit-reset-{kind}" in named
        and named.get(f"x-ratelimit-remaining-{kind}", "0").strip() == "0"
        and (wait := seconds(named[f"x-ratelimit-reset-{kind}"], now)) is not None
    ]
    return max(resets, default=None)


def seconds(text: str, now: float, scale: float = 1.0) -> float | None:
    """Seconds in a plain number, a duration like `6m0s` or a date; negative ones are 0."""
    text = text.strip()
    try:
        number = float(text)
    except ValueError:
        pass
    else:
        if number != number or number == float("inf"):
            return None
        return max(0.0, number - now if number > _EPOCH_S else number * scale)
    if re.fullmatch(_DURATION, text):
        return sum(float(amount) * _UNIT_S[unit] for amount, unit in _DURATION_PART.findall(text))
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now)
    except (ValueError, TypeError, OverflowError):
        return None
