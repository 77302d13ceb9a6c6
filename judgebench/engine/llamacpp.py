"""In-process llama.cpp: the embedded default, which needs no key, no server and no network.

Requests are answered by `slots` calls at a time on one loaded model (llama.cpp decodes them as one
batch). Weights are named by `connection.weights`: `package:NAME` (a package with `assemble()`), a
path to a GGUF file, or `hf://owner/repo@commit/file.gguf`. Text input goes to the model as it is;
chat input through the descriptor's chat template, else the one in the file. A model without either
is a base model and takes text only.

Repeatability, measured on 2 cores at temperature 0: with `slots=1` and `prefix_cache=false` answers
and logprobs are bit-identical between runs. Prefix reuse and concurrent decoding sum in another order
and move a logprob by up to about 0.06; they are worth about a factor of two in speed.

This file does not know prompts, labels or readers; `weights.py` knows what weights are the same.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import secrets
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from judgebench import hub
from judgebench.engine import NO_USAGE, Event, Reason, Response, Usage, finish_reason
from judgebench.engine.faults import Fault
from judgebench.engine.flow import Headers, Policy, stream
from judgebench.errors import ConfigError, DataError, EngineError, choices
from judgebench.request import Connection, Request
from judgebench.weights import HUB, PACKAGE, gguf_text, hub_file, shards

T = TypeVar("T")

# What is sent when a descriptor does not say otherwise: the model's own distribution, untouched.
# llama.cpp's defaults (top_k 40, top_p .95, min_p .05, temperature .8), and those that a GGUF file may
# carry, would otherwise shape answers without standing in any descriptor.
NEUTRAL: Mapping[str, Any] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "top_n_sigma": -1.0,
    "xtc_probability": 0.0,
    "dynatemp_range": 0.0,
    "mirostat": 0,
    "repeat_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "dry_multiplier": 0.0,
    "samplers": "penalties dry top_n_sigma top_k typ_p top_p min_p xtc temperature".split(),
    "max_tokens": -1,  # until the context is full
    "stop": [],
    "seed": -1,  # drawn anew for each call
}
PASSED = frozenset(
    """
    grammar json_schema logit_bias ignore_eos min_keep xtc_threshold dynatemp_exponent mirostat_tau
    mirostat_eta dry_base dry_allowed_length dry_penalty_last_n dry_sequence_breakers adaptive_target
    adaptive_decay
    """.split()
)
CHAT_ONLY = frozenset(["response_format", "chat_template_kwargs"])
RENAMED = {"repetition_penalty": "repeat_penalty"}

ERRORS: Mapping[str, Reason] = {
    "exceed_context_size_error": "context_overflow",
    "invalid_request_error": "bad_request",
}


@dataclass(frozen=True)
class LlamaCpp:
    """Local GGUF models.

    Args:
        slots: answers generated at the same time.
        context: tokens of prompt and answer together, for each slot.
        threads: CPU threads; null for half the logical cores. They wait for each other at every step, so one
            that has to share its core slows all: with 2 on 2 busy cores a third of the speed of 1.
        prefix_cache: keep a slot's tokens and skip those that the next prompt begins with.
        loaded: models kept in memory; before one more is loaded, calls in flight are awaited and the one
            not used for longest is freed; a stream that interleaves more models reloads at each change.
    """

    slots: int = 4
    context: int = 8192
    threads: int | None = None
    prefix_cache: bool = True
    loaded: int = 2

    def __post_init__(self) -> None:
        for name in ("slots", "context", "threads", "loaded"):
            value = getattr(self, name)
            if not (value is None and name == "threads") and (not isinstance(value, int) or value < 1):
                raise ConfigError(f"{name}={value!r} of the llamacpp engine must be a whole number from 1.")

    async def run(self, requests: AsyncIterable[Request]) -> AsyncGenerator[Event, None]:
        """Answer each request pulled; see `judgebench.engine` for the laws."""
        session = _Session(self)
        # One attempt: nothing that fails in this process would go better a second later.
        events = stream(
            requests, session.call, Policy(concurrency=self.slots, max_attempts=1, adaptive=False)
        )
        try:
            async for event in events:
                yield event
        finally:
            session.cancelled.set()
            await events.aclose()
            await session.close()


class _Session:
    """What one run holds: threads and loaded models, made at the first request, freed by `close`."""

    def __init__(self, engine: LlamaCpp) -> None:
        self.engine = engine
        self.cancelled = threading.Event()
        self.models: dict[tuple[str, str | None], _Model] = {}  # the least recently used first
        self.loading = asyncio.Lock()
        self.threads = ThreadPoolExecutor(engine.slots, thread_name_prefix="llamacpp")
        self.calls: set[Future[Any]] = set()

    async def call(self, request: Request, connection: Connection, heard: Headers) -> Response:
        body = request_body(request, self.engine)
        model = await self.model(request)
        return await self.in_thread(model.answer, request, body, self.cancelled)

    async def model(self, request: Request) -> _Model:
        weights, template = request.connection.weights, request.descriptor.chat_template
        if weights is None:
            raise ConfigError(
                f"model {request.descriptor.model!r} names no weights for the llamacpp engine: set weights "
                "to a GGUF file, package:NAME or hf://OWNER/REPO@COMMIT/FILE.gguf."
            )
        async with self.loading:
            model = self.models.pop((weights, template), None)
            if model is None:
                if len(self.models) >= self.engine.loaded:
                    await self.calls_ended()  # and none begins: all of them pass this lock
                    self.models.pop(next(iter(self.models))).free()
                model = await self.in_thread(_Model, self.engine, weights, template)
            self.models[weights, template] = model
        if "messages" in request.input and not model.takes_chat:
            raise ConfigError(
                f"{model.path.name!r} is a base model: it has no chat template. Set form=text for "
                f"{request.descriptor.model!r}, or give a chat_template."
            )
        return model

    async def in_thread(self, work: Callable[..., T], *args: Any) -> T:
        call = self.threads.submit(work, *args)
        self.calls.add(call)
        call.add_done_callback(self.calls.discard)
        return await asyncio.wrap_future(call)

    async def calls_ended(self) -> None:
        waits = [asyncio.wrap_future(call) for call in self.calls]
        await asyncio.gather(*waits, return_exceptions=True)

    async def close(self) -> None:
        """Wait for calls in flight (each ends at its next token or prompt chunk), then free all."""
        try:
            await self.calls_ended()
            for model in self.models.values():
                model.free()
        finally:
            self.threads.shutdown(wait=not self.calls)


class _Model:
    """One model in memory. Building and calling block: both belong on a thread."""

    def __init__(self, engine: LlamaCpp, weights: str, template: str | None) -> None:
        # Threads meet at hundreds of barriers a token, where GNU OpenMP spins for milliseconds. On shared
        # cores that takes the time the other thread needs: 0.26 against 1.17 verdicts a second measured.
        if "OMP_WAIT_POLICY" not in os.environ:
            os.environ.setdefault("GOMP_SPINCOUNT", "10000")
        try:
            import xllamacpp
        except ImportError as error:
            raise EngineError(
                f"The llamacpp engine needs xllamacpp ({error}): pip install 'judgebench[local]'"
            ) from None
        self.path = locate(weights)
        try:
            self.takes_chat = (
                template is not None or gguf_text(self.path, "tokenizer.chat_template") is not None
            )
        except DataError as error:
            raise EngineError(f"weights={weights!r}: {error}") from None
        self.version = f"xllamacpp {metadata.version('xllamacpp')}"
        params = xllamacpp.CommonParams()
        params.model.path = str(self.path)
        params.n_parallel = engine.slots
        params.n_ctx = engine.context * engine.slots  # llama.cpp divides it again
        threads = engine.threads or max(1, (os.cpu_count() or 2) // 2)
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        params.n_batch = 512  # a call can be cancelled between two chunks of its prompt, not within one
        # Sliding-window models (Gemma 3) forget the prefix unless the whole window is kept.
        params.swa_full = engine.prefix_cache
        params.cache_ram_mib = 0  # no second copy of old prompts in memory
        params.fit_params = False  # a trial load to measure memory: doubles the time to load
        params.warmup = False
        params.verbosity = -1
        params.force_pure_content_parser = True  # output as generated: no tool calls or thoughts cut out
        params.chat_template = template or ""
        # The library also listens on a port of this machine, which nothing here uses: lock it.
        params.api_keys = [secrets.token_hex(16)]
        params.n_threads_http, params.ui, params.endpoint_slots = 1, False, False
        try:
            self.server: Any = xllamacpp.Server(params)
        except RuntimeError as error:
            raise EngineError(f"llama.cpp cannot load {str(self.path)!r}: {error}") from None

    def free(self) -> None:
        """End its threads and give its memory back now: tracebacks of cancelled tasks still hold `self`."""
        self.server = None

    def answer(self, request: Request, body: dict[str, Any], cancelled: threading.Event) -> Response:
        chunks: list[dict[str, Any]] = []

        def take(chunk: dict[str, Any]) -> bool:
            chunks.append(chunk)
            return cancelled.is_set()

        started = time.perf_counter()
        try:
            if "messages" in body:
                self.server.handle_chat_completions(body, take)
            else:
                self.server.handle_completions(body, take)
        except (ValueError, RuntimeError) as error:
            raise Fault("bad_request", str(error)) from None
        if cancelled.is_set():
            raise Fault("cancelled", "the run was closed")
        return self.read(request, chunks, time.perf_counter() - started)

    def read(self, request: Request, chunks: list[dict[str, Any]], latency_s: float) -> Response:
        text, finish, usage = "", None, NO_USAGE
        positions: list[dict[str, Any]] = []
        for chunk in chunks:
            if error := chunk.get("error"):
                reason = ERRORS.get(error.get("type", ""), "server")
                raise Fault(reason, str(error.get("message", error)), output=text or None, usage=usage)
            for choice in chunk.get("choices") or ():
                text += choice.get("text") or (choice.get("delta") or {}).get("content") or ""
                finish = choice.get("finish_reason") or finish
                positions += (choice.get("logprobs") or {}).get("content") or []
            usage = _usage(chunk["usage"]) if chunk.get("usage") else usage
        return Response(
            request,
            text,
            finish_reason(finish),
            top_logprobs=top_logprobs(positions, request.descriptor.settings.get("logprobs")),
            served_model=self.path.name,
            backend_version=self.version,
            usage=usage,
            latency_s=latency_s,
        )


def request_body(request: Request, engine: LlamaCpp) -> dict[str, Any]:
    """The call, each sampling field spelled out.

    Raises:
        ConfigError: an input or a setting that llama.cpp does not know; it would ignore it in silence.
    """
    given, settings = request.input, request.settings()
    chat = "messages" in given
    if not chat and "prompt" not in given:
        raise ConfigError(f"llama.cpp answers messages and prompts, not {'/'.join(given)}.")
    # Penalties count over the whole context, as other engines do it; llama.cpp's window is 64 tokens.
    body: dict[str, Any] = {**NEUTRAL, "repeat_last_n": engine.context}
    known = {*body, *PASSED, *RENAMED, *CHAT_ONLY, "logprobs"}
    for name, value in settings.items():
        if name not in known:
            raise ConfigError(f"A setting for the llamacpp engine: {choices(name, known, limit=60)}")
        if name in CHAT_ONLY and not chat:
            raise ConfigError(f"{name!r} works with form=chat only; for text use grammar or json_schema.")
        if name == "logprobs":
            count = max(1, value["count"])
            body |= {"logprobs": True, "top_logprobs": count} if chat else {"logprobs": count}
        else:
            body[RENAMED.get(name, name)] = value
    if chat:
        body |= {"messages": given["messages"], "reasoning_format": "none"}
    else:
        body["prompt"] = given["prompt"]
    # Streamed for the sake of cancelling; progress reports make a long prompt cancellable too.
    body |= {"stream": True, "stream_options": {"include_usage": True}, "return_progress": True}
    return body | {"cache_prompt": engine.prefix_cache}


def top_logprobs(positions: list[dict[str, Any]], asked: Mapping[str, Any] | None) -> str | None:
    """The positions asked for, as JSON; tokens of a stop string, which is cut from the text, go too."""
    while positions and positions[-1]["token"] == "":
        positions = positions[:-1]
    if asked is None or not positions:
        return None
    if asked["positions"] == "first":
        positions = positions[:1]
    kept = [
        {
            "token": position["token"],
            "logprob": position["logprob"],
            "top_logprobs": [
                {"token": top["token"], "logprob": top["logprob"]}
                for top in position["top_logprobs"][: asked["count"]]
            ],
        }
        for position in positions
    ]
    return json.dumps(kept, ensure_ascii=False, separators=(",", ":"))


def _usage(raw: Mapping[str, Any]) -> Usage:
    cached = (raw.get("prompt_tokens_details") or {}).get("cached_tokens")
    return Usage(raw.get("prompt_tokens"), cached, raw.get("completion_tokens"))


def locate(weights: str) -> Path:
    """The file behind `package:NAME`, `hf://…` or a path; fetched or put together where needed.

    Raises:
        EngineError: it cannot be had here.
    """
    if weights.startswith(PACKAGE):
        name = weights.removeprefix(PACKAGE)
        try:
            return Path(importlib.import_module(name.replace("-", "_")).assemble())
        except ImportError:
            hint = (
                "pip install 'judgebench[local]'" if name.startswith("gemma3-270m") else f"pip install {name}"
            )
            raise EngineError(f"weights={weights!r}: the package is not installed: {hint}") from None
        except (AttributeError, OSError) as error:
            raise EngineError(f"weights={weights!r} gave no file: {error}") from None
    path = _fetch(weights) if weights.startswith(HUB) else Path(weights).expanduser()
    if not path.is_file():
        raise EngineError(f"weights={weights!r}: no such file. The llamacpp engine reads GGUF files.")
    return path


def _fetch(weights: str) -> Path:
    repo, revision, file = hub_file(weights)
    if file is None:
        raise EngineError(
            f"weights={weights!r} names a repository; name a file: hf://{repo}@COMMIT/FILE.gguf"
        )
    try:
        parts = [hub.model_file(repo, part, revision) for part in shards(file)]
    except Exception as error:  # the hub's own, its HTTP client's and the system's: no common root
        raise EngineError(
            f"weights={weights!r} cannot be fetched from the hub ({type(error).__name__}: {error}). Without "
            "a network, give the path of a local copy, or the package:… of judgebench[local]."
        ) from None
    return parts[0]  # llama.cpp finds the others beside it
