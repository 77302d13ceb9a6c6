"""Any provider that litellm knows. The library is imported by the first request, and only here.

litellm is the transport and the translator; the flow is ours (`flow.py`), so its retries are off, and
what it raises becomes a `Fault` at once. A setting that a provider does not take is an error:
`drop_params` is never on. It costs about twenty times the client CPU of `openai`, which is the better
engine for servers of that shape.

litellm splits a leading `<think>` block off the text. Replies of OpenAI-shaped servers are therefore
read from the wire, as `openai` reads them, and give the same rows, the block in place. Of the other
providers (Anthropic, Gemini, …) the translated reply is all there is: there, a block that litellm
split stands in `reasoning`.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import re
import sys
import threading
import time
import warnings
from collections.abc import AsyncGenerator, AsyncIterable, Iterator, Mapping
from contextlib import aclosing
from typing import Any

from judgebench.engine import Event, Response
from judgebench.engine.faults import Fault, fault_of
from judgebench.engine.flow import Headers, stream
from judgebench.engine.hiding import Secrets, shown
from judgebench.engine.openai import BASES, Remote, api_key, base_url, unreachable
from judgebench.engine.wire import decoded, is_chat, response_of, settings_body
from judgebench.errors import ConfigError, choices
from judgebench.request import Connection, Request

# Our provider names where litellm's differ.
PREFIXES: Mapping[str, str] = {
    "fireworks": "fireworks_ai",
    "google": "gemini",
    "nvidia": "nvidia_nim",
    "together": "together_ai",
    "vllm": "hosted_vllm",
}
OPENAI_SHAPED = frozenset({"openai", "hosted_vllm", "text-completion-openai"})
# The settings that litellm translates for each provider, and refuses where one does not take them. Others
# go to OpenAI-shaped servers in extra_body, to the rest as they are.
NAMED = frozenset(
    """
    temperature top_p n stop max_tokens max_completion_tokens presence_penalty frequency_penalty seed
    logit_bias logprobs top_logprobs response_format reasoning_effort thinking verbosity tools tool_choice
    parallel_tool_calls user service_tier safety_identifier prompt_cache_key store
    """.split()
)
NO_KEY = "none"  # else litellm would send OPENAI_API_KEY to whatever base_url names

# Set before the import: no table of prices and no tokenizer from the network, no `.env` of the working
# directory read into the environment.
ENVIRONMENT: Mapping[str, str] = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_OFFLINE_MODE": "true",
    "LITELLM_MODE": "PRODUCTION",
}
_NO_JSON = re.compile(r"Expecting value|Unable to get json|JSONDecodeError")
# What code raises that meets a value of another type than it reckons with.
_ODD = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
_UNREACHABLE = frozenset({"ConnectError", "ClientConnectorError", "ClientConnectorDNSError"})
_UNREACHABLE_TEXT = re.compile(r"Cannot connect to host|Connect call failed|Name or service not known")

_importing = threading.Lock()
_runs = 0  # runs under way; the library's clients are shared, so the last one closes them


class LiteLLM(Remote):
    """An engine for the providers of litellm."""

    async def run(self, requests: AsyncIterable[Request]) -> AsyncGenerator[Event, None]:
        """Answer each request pulled with exactly one `Response` or `Failure`."""
        global _runs
        client = _Client(self)
        _runs += 1
        try:
            async with aclosing(stream(requests, client.call, self.policy())) as events:
                async for event in events:
                    yield event
        finally:
            _runs -= 1
            await client.close()


def load() -> Any:
    """Import litellm quietly: no network, no advertisement, and no garbage collection meanwhile."""
    with _importing:
        if "litellm" not in sys.modules:
            for name, value in ENVIRONMENT.items():
                os.environ.setdefault(name, value)
            collecting = gc.isenabled()
            gc.disable()  # 2.9 s become 2.2 s
            try:
                import litellm
            finally:
                if collecting:
                    gc.enable()
            gc.freeze()  # 3000 modules of it would cost a second when the interpreter exits
            litellm.suppress_debug_info = True
            if "LITELLM_LOG" not in os.environ:
                # It prints a traceback or a warning for each odd field of a reply, which we read ourselves.
                logging.getLogger("LiteLLM").setLevel(logging.CRITICAL)
                warnings.filterwarnings("ignore", "Pydantic serializer warnings", module="pydantic")
        return sys.modules["litellm"]


class _Client:
    """The calls of one run."""

    def __init__(self, engine: LiteLLM) -> None:
        self.engine = engine
        self.litellm: Any = None
        self.routes: dict[tuple[Any, ...], tuple[dict[str, Any], Secrets]] = {}
        self.text_clients: dict[tuple[str, str | None], Any] = {}

    async def call(self, request: Request, connection: Connection, heard: Headers) -> Response:
        """Ask once."""
        if self.litellm is None:
            self.litellm = await asyncio.to_thread(load)
        chat = is_chat(request)
        of = (request.descriptor.hash, connection, request.sample, chat)
        known = self.routes.get(of)
        if known is None:
            route = self.route(request, connection, chat)
            key = None if route["api_key"] == NO_KEY else route["api_key"]
            known = self.routes[of] = route, Secrets(key, route["api_base"])
        route, secrets = known
        try:
            return secrets.hide_in_answer(await self.ask(request, chat, route, heard))
        except Fault as fault:
            raise secrets.hide_in_fault(fault) from None
        except ConfigError as error:
            raise ConfigError(secrets.hide(str(error))) from None

    async def ask(self, request: Request, chat: bool, route: Mapping[str, Any], heard: Headers) -> Response:
        received: list[Any] = []
        ask = self.litellm.acompletion if chat else self.litellm.atext_completion
        start = time.perf_counter()
        try:
            reply = await ask(
                **request.input,
                **route,
                logger_fn=lambda details: received.append(details.get("original_response")),
            )
        except Exception as error:
            sent = _as_sent(received)
            if sent is None:
                raise self.mended(
                    error, request, str(route["api_base"] or request.descriptor.provider)
                ) from None
            # It came, only the translation broke: on a field that need not be of use.
            return response_of(request, sent, time.perf_counter() - start)
        latency_s = time.perf_counter() - start
        heard(_headers(reply))
        cost = None if request.connection.price else reply._hidden_params.get("response_cost") or None
        return response_of(request, _as_sent(received) or reply.model_dump(), latency_s, cost)

    def route(self, request: Request, connection: Connection, chat: bool) -> dict[str, Any]:
        """The arguments that the requests of one descriptor, connection and sample share."""
        prefix = self.prefix(request)
        url = None
        if connection.base_url is not None or prefix == "openai":
            # Always named for openai: else OPENAI_BASE_URL would redirect it behind the descriptor's back.
            url = (
                base_url(request.descriptor.provider, connection)
                if connection.base_url is not None
                else BASES["openai"]
            )
        key = api_key(connection)
        if key is None and connection.base_url is not None:
            key = NO_KEY
        if prefix == "openai" and not chat:
            prefix = "text-completion-openai"
        fields = {**settings_body(request), **self.engine.body}
        named = {name: value for name, value in fields.items() if name in NAMED}
        extra = {name: value for name, value in fields.items() if name not in NAMED}
        if prefix in OPENAI_SHAPED:
            named["extra_body"] = extra
        elif clash := sorted(extra.keys() & set(self.litellm.types.utils.all_litellm_params)):
            raise ConfigError(f"{clash[0]!r} steers litellm itself and cannot be sent to {prefix!r}.")
        else:
            named.update(extra)
        if prefix in OPENAI_SHAPED and not chat and url is not None:
            named["client"] = self.text_client(url, key)
        return {
            "model": f"{prefix}/{request.descriptor.model}",
            "api_base": url,
            "api_key": key,
            "timeout": self.engine.timeout_s,
            "max_retries": 0,
            "drop_params": False,
            **named,
        }

    def text_client(self, url: str, key: str | None) -> Any:
        """For text completions litellm makes a client a call and closes none of them: it gets one of ours."""
        import openai

        client = self.text_clients.get((url, key))
        if client is None:
            client = self.text_clients[url, key] = openai.AsyncOpenAI(
                base_url=url, api_key=key, max_retries=0, timeout=self.engine.timeout_s
            )
        return client

    async def close(self) -> None:
        for client in self.text_clients.values():
            await client.close()
        if self.litellm is not None and _runs == 0:
            await self.litellm.close_litellm_async_clients()
            self.litellm.in_memory_llm_clients_cache.flush_cache()  # it would hand out the closed ones

    def prefix(self, request: Request) -> str:
        """What litellm calls the provider. One that it does not know is taken by its base_url's shape."""
        provider = request.descriptor.provider
        prefix = PREFIXES.get(provider, provider)
        known = {str(getattr(name, "value", name)) for name in self.litellm.provider_list}
        if prefix in known:
            return prefix
        if request.connection.base_url is not None:
            return "openai"
        raise ConfigError(f"The model has no base_url, and its provider {choices(provider, known)}")

    def mended(self, error: Exception, request: Request, where: str) -> Exception:
        """What to raise in place of an exception of litellm."""
        known = self.litellm.exceptions
        message = str(getattr(error, "message", error))
        if isinstance(error, known.UnsupportedParamsError):
            what = message.removeprefix("litellm.UnsupportedParamsError: ").split(" To drop", 1)[0]
            return ConfigError(f"{request.descriptor.model!r}: {what} Take the setting out of its sampling.")
        status = getattr(error, "status_code", None)
        *_, cause = _chain(error)
        if not isinstance(status, int):
            return _untranslated(error) if isinstance(error, _ODD) else error
        if status >= 500 and ("Invalid response object" in message or isinstance(cause, RecursionError)):
            return _untranslated(cause)
        body = _body(message)
        if isinstance(error, known.ContextWindowExceededError):
            return Fault("context_overflow", message)
        if (
            isinstance(error, known.ContentPolicyViolationError)
            or getattr(error, "code", "") == "content_filter"
        ):
            return Fault("content_filter", message)
        if isinstance(error, known.Timeout):
            return Fault("timeout", "no answer within timeout_s", retry=True)
        if status < 300 or _NO_JSON.search(message):
            return Fault("malformed", message, retry=True)
        if status >= 500 and _is_down(error, message):
            return Fault("server", unreachable(shown(where), cause), retry=True, down=True)
        response = getattr(error, "response", None)
        headers = getattr(error, "litellm_response_headers", None) or getattr(response, "headers", None) or {}
        return fault_of(status, body, headers, time.time())


def _headers(reply: Any) -> dict[str, str]:
    """A reply's own headers, without the prefix that litellm puts before those it does not know."""
    headers = reply._hidden_params.get("additional_headers") or {}
    return {str(name).lower().removeprefix("llm_provider-"): str(value) for name, value in headers.items()}


def _as_sent(received: list[Any]) -> dict[str, Any] | None:
    """The reply on the wire, if it is an OpenAI-shaped chat reply, however odd."""
    raw = received[-1] if received else None
    if not isinstance(raw, str) or '"choices"' not in raw:
        return None
    reply = decoded(raw)
    return reply if isinstance(reply, dict) and "choices" in reply else None


def _untranslated(error: BaseException) -> Fault:
    why = " ".join(f"{type(error).__name__}: {error}".split())
    return Fault("malformed", f"litellm makes no answer of the reply: {why}", retry=True)


def _body(message: str) -> Any:
    """The error body that litellm quotes in its message, or the message without litellm's names."""
    start = message.find("{")
    if start >= 0 and (body := decoded(message[start:])) is not None:
        return body
    return re.sub(r"^(?:litellm\.)?\w+(?:: |Exception - )(?:\w+: )?(?:\w+Exception - )?", "", message)


def _is_down(error: BaseException, message: str) -> bool:
    """True when nothing listened: litellm flattens that and a broken connection into one 500."""
    return bool(_UNREACHABLE_TEXT.search(message)) or any(
        isinstance(link, ConnectionRefusedError) or type(link).__name__ in _UNREACHABLE
        for link in _chain(error)
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
