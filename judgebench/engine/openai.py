"""Any OpenAI-compatible server, over plain aiohttp: the lean engine.

What is sent is the canonical input text, byte for byte as it was hashed, with the model and its
settings spliced in. Client CPU a call is 0.9 to 1.1 times plain aiohttp's, litellm's is 20 times
(`tests/bench/misses.py`). This file does not know stores or protocols.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
import time
import urllib.request
from collections.abc import AsyncGenerator, AsyncIterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from judgebench.engine import Event, Response
from judgebench.engine.faults import Fault, fault_of
from judgebench.engine.flow import Headers, Policy, stream
from judgebench.engine.hiding import Secrets, shown
from judgebench.engine.wire import (
    OTHER_NAME,
    check_body,
    decoded,
    is_chat,
    response_of,
    settings_body,
    wants_other_name,
)
from judgebench.errors import ConfigError, EngineError, choices
from judgebench.request import Connection, Request, canonical

if TYPE_CHECKING:
    import aiohttp
    import yarl

log = logging.getLogger(__name__)

# Where a provider listens unless the model says otherwise.
BASES: Mapping[str, str] = {
    "openai": "https://api.openai.com/v1",
    "cerebras": "https://api.cerebras.ai/v1",
    "deepseek": "https://api.deepseek.com/v1",
    "fireworks": "https://api.fireworks.ai/inference/v1",
    "groq": "https://api.groq.com/openai/v1",
    "huggingface": "https://router.huggingface.co/v1",
    "mistral": "https://api.mistral.ai/v1",
    "moonshot": "https://api.moonshot.ai/v1",
    "nvidia": "https://integrate.api.nvidia.com/v1",
    "openrouter": "https://openrouter.ai/api/v1",
    "together": "https://api.together.xyz/v1",
    "xai": "https://api.x.ai/v1",
}
_TOO_MANY_FILES = (errno.ENFILE, errno.EMFILE)


@dataclass(frozen=True)
class Remote:
    """The settings of the engines over HTTP.

    Args:
        concurrency: calls in flight at most, of all models together.
        timeout_s: for one try, from connecting to the last byte.
        max_attempts: tries a request; 1 means no retry.
        max_wait_s: the longest wait between two tries; a server that asks for more fails the row.
        adaptive: follow what each endpoint bears; false for a server of yours that queues by itself.
        body: extra fields of every body that change no output (`user`, `service_tier`, …).
    """

    concurrency: int = 64
    timeout_s: float = 600.0
    max_attempts: int = 5
    max_wait_s: float = 60.0
    adaptive: bool = True
    body: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        check_body(self.body)
        Policy(self.concurrency, self.max_attempts, self.max_wait_s)  # refuses what is impossible

    def policy(self) -> Policy:
        """How calls are executed on this machine."""
        return Policy(window(self.concurrency), self.max_attempts, self.max_wait_s, self.adaptive)


class OpenAI(Remote):
    """An engine for OpenAI-compatible servers."""

    async def run(self, requests: AsyncIterable[Request]) -> AsyncGenerator[Event, None]:
        """Answer each request pulled with exactly one `Response` or `Failure`."""
        client = _Client(self)
        try:
            async with aclosing(stream(requests, client.call, self.policy())) as events:
                async for event in events:
                    yield event
        finally:
            await client.close()


def window(concurrency: int) -> int:
    """The calls in flight that the limit of open files allows: a socket each, and room for the rest."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return concurrency
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    room = max(soft // 2, soft - 256)
    if soft == resource.RLIM_INFINITY or concurrency <= room:
        return concurrency
    log.warning(
        "concurrency=%d needs more sockets than the limit of %d open files allows: %d calls in flight. "
        "`ulimit -n` raises it.",
        concurrency,
        soft,
        room,
    )
    return room


def api_key(connection: Connection) -> str | None:
    """The key from the variable that the model names, read now; null where it names none."""
    name = connection.api_key_env
    if name is None:
        return None
    key = os.environ.get(name, "").strip()
    if not key:
        raise EngineError(
            f"The environment variable {name} is not set, which this model's api_key_env names. Set it: "
            f"export {name}=…, or take a model that needs no key: judge=local or candidate=local (embedded), "
            "or judge=server with the base_url of a server of yours."
        )
    return key


def base_url(provider: str, connection: Connection) -> str:
    """The URL that routes hang on, without a slash at the end; a pasted full route is cut to it."""
    url = connection.base_url
    if url is None:
        if provider not in BASES:
            raise ConfigError(f"The model has no base_url, and its provider {choices(provider, BASES)}")
        return BASES[provider]
    url = re.sub(r"(?:/chat)?/completions$", "", url.strip().rstrip("/")).rstrip("/")
    if not re.match(r"https?://[^/]", url, re.IGNORECASE):
        raise ConfigError(f"base_url={connection.base_url!r} is no URL like http://HOST:PORT/v1.")
    return url


@dataclass(frozen=True, slots=True, repr=False)  # no repr: it holds the key
class _Route:
    """What the requests of one descriptor, connection and sample share."""

    url: yarl.URL
    headers: Mapping[str, str]
    tail: str  # of the body, after the input
    proxy: str | None
    secrets: Secrets


class _Client:
    """The sockets of one run. The session is opened by the first call."""

    def __init__(self, engine: OpenAI) -> None:
        self.engine = engine
        self.session: aiohttp.ClientSession | None = None
        self.routes: dict[tuple[str, Connection, int, bool, bool], _Route] = {}
        self.renamed: set[str] = set()  # models that know `max_tokens` under its other name

    async def call(self, request: Request, connection: Connection, heard: Headers) -> Response:
        """Ask once."""
        chat = is_chat(request)
        renamed = request.descriptor.hash in self.renamed
        of = (request.descriptor.hash, connection, request.sample, chat, renamed)
        route = self.routes.get(of)
        if route is None:
            route = self.routes[of] = self.route(request, connection, chat)
        try:
            return route.secrets.hide_in_answer(await self.ask(request, route, heard))
        except Fault as fault:
            if not renamed and fault.reason == "bad_request" and wants_other_name(fault.detail):
                # Refused before anything was answered: it costs nothing, and only once a model.
                self.renamed.add(request.descriptor.hash)
                return await self.call(request, connection, heard)
            raise route.secrets.hide_in_fault(fault) from None

    async def ask(self, request: Request, route: _Route, heard: Headers) -> Response:
        session = self.session or self.open()
        body = (request.input_text[:-1] + route.tail).encode()
        start = time.perf_counter()
        try:
            async with session.post(
                route.url, data=body, headers=route.headers, proxy=route.proxy, allow_redirects=False
            ) as reply:
                raw = await reply.read()
        except Exception as error:
            raise _breakdown(error, route) from None
        latency_s = time.perf_counter() - start
        heard(reply.headers)
        value = decoded(raw)
        if reply.status != 200 or type(value) is not dict or value.get("error"):
            raise _refusal(reply, raw, value, route)
        return response_of(request, value, latency_s)

    def route(self, request: Request, connection: Connection, chat: bool) -> _Route:
        import yarl
        from multidict import CIMultiDict, CIMultiDictProxy

        base = base_url(request.descriptor.provider, connection)
        url = yarl.URL(f"{base}/chat/completions" if chat else f"{base}/completions")
        key = api_key(connection)
        if key is not None and (url.user or url.password):
            raise ConfigError("base_url holds a user name beside api_key_env: give one of the two.")
        headers = CIMultiDict({"Content-Type": "application/json", "Accept": "application/json"})
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        settings = settings_body(request)
        if request.descriptor.hash in self.renamed:
            settings = {OTHER_NAME.get(name, name): value for name, value in settings.items()}
        fields = {**self.engine.body, **settings, "model": request.descriptor.model}
        proxy = _proxy(url)
        secrets = Secrets(key, base, proxy)
        return _Route(url, CIMultiDictProxy(headers), "," + canonical(fields)[1:], proxy, secrets)

    def open(self) -> aiohttp.ClientSession:
        import aiohttp

        self.session = aiohttp.ClientSession(
            # The workers bound the connections already; a second bound would eat into the time-out.
            connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=300),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=self.engine.timeout_s),
        )
        return self.session

    async def close(self) -> None:
        if self.session is not None:
            await self.session.close()


def _proxy(url: yarl.URL) -> str | None:
    """The proxy that the environment names. Asked once a route: aiohttp would ask once a call."""
    host = url.host or ""
    if host == "localhost" or host.startswith("127.") or urllib.request.proxy_bypass(host):
        return None
    return urllib.request.getproxies().get(url.scheme)


def _refusal(reply: aiohttp.ClientResponse, raw: bytes, value: Any, route: _Route) -> Fault:
    """The fault of an error status, of an error within a 200, or of a reply that is no JSON object."""
    status = reply.status
    text = raw.decode(errors="replace")
    if 300 <= status < 400:
        to = reply.headers.get("Location")
        moved = f": moved to {route.secrets.hide(shown(to), 200)}" if to else ""
        return Fault("not_found", f"{shown(str(route.url))} answers {status}{moved}", moved=True)
    if status < 300:
        error = value.get("error") if type(value) is dict else None
        if not error:
            return Fault(
                "malformed", f"{status}, but no JSON object: {route.secrets.hide(text, 200)!r}", retry=True
            )
        code = error.get("code") if isinstance(error, dict) else None
        status = code if type(code) is int and code >= 400 else 500
    fault = fault_of(status, text if value is None else value, reply.headers, time.time())
    if status == 404:
        fault.detail = f"{route.secrets.hide(fault.detail, 300)} ({shown(str(route.url))})"
    return fault


def _breakdown(error: Exception, route: _Route) -> Exception:
    """What to raise for a call that never came to a whole reply."""
    import aiohttp

    where = shown(str(route.url.origin()))
    what = route.secrets.hide(str(error), 300) or type(error).__name__
    if isinstance(error, asyncio.TimeoutError):  # aiohttp's are of this kind too
        return Fault("timeout", f"{where} did not answer within timeout_s", retry=True)
    if isinstance(error, aiohttp.InvalidURL):
        return ConfigError(f"base_url leads to no address: {what}")
    if isinstance(error, OSError) and error.errno in _TOO_MANY_FILES:
        return Fault("server", "too many open files: lower concurrency or raise `ulimit -n`", retry=True)
    if isinstance(error, aiohttp.ClientConnectorError):
        cause = getattr(error, "os_error", error)  # one about a certificate has none
        return Fault("server", unreachable(where, cause), retry=True, down=True)
    if isinstance(error, aiohttp.ClientError | OSError):
        return Fault("server", f"{where} broke off: {what}", retry=True)
    return error


def unreachable(where: str, error: BaseException) -> str:
    """The sentence for a server that does not listen, or not under this name.

    >>> unreachable("http://127.0.0.1:1", OSError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 1)"))
    'http://127.0.0.1:1 cannot be reached: connection refused'
    """
    what = getattr(error, "strerror", None) or str(error) or "no connection"
    if isinstance(error, ConnectionRefusedError) or "Connect call failed" in what:
        number = getattr(error, "errno", None)
        what = "no connection" if number is None else os.strerror(number).lower()
    return f"{where} cannot be reached: {what}"
