"""Judge requests that are not stored: what the stage costs beside raw clients, in the same run."""

from __future__ import annotations

import asyncio
import gc
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp

from judgebench.engine.litellm import load
from judgebench.engine.openai import OpenAI
from tests.bench.loopback import (
    IN_FLIGHT,
    LATENCY_S,
    SETTINGS,
    Line,
    judge_requests,
    median,
    on_loop,
    run_stage,
    server,
    texts,
)

CALLS = 5000
LITELLM_CALLS = 600
ROUNDS = 5


class Peer:
    """CPU seconds, wall seconds and steady seconds of each round of one client."""

    def __init__(self, calls: int) -> None:
        self.calls = calls
        self.cpu_s: list[float] = []
        self.wall_s: list[float] = []
        self.span_s: list[float] = []

    def add(self, cpu_s: float, wall_s: float, span_s: float) -> None:
        self.cpu_s.append(cpu_s / self.calls)
        self.wall_s.append(wall_s)
        self.span_s.append(span_s)

    @property
    def cpu_us(self) -> float:
        return median(self.cpu_s) * 1e6

    @property
    def wall_ratio(self) -> float:
        """Of the ideal: every slot always busy with a call of the server's latency."""
        return median(self.span_s) / (self.calls / IN_FLIGHT * LATENCY_S)


def raw_aiohttp(url: str, prompts: list[str], peer: Peer) -> None:
    async def work() -> float:
        left: Iterator[str] = iter(prompts)
        connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=600)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

            async def ask() -> None:
                for text in left:
                    body = {"model": "m", "messages": [{"role": "user", "content": text}], **SETTINGS}
                    async with session.post(f"{url}/chat/completions", json=body) as reply:
                        value = await reply.json()
                        assert value["choices"][0]["message"]["content"]

            began = time.perf_counter()
            await asyncio.gather(*(ask() for _ in range(IN_FLIGHT)))
            return time.perf_counter() - began

    _measured(work, peer)


def raw_litellm(url: str, prompts: list[str], peer: Peer) -> None:
    litellm = load()

    async def work() -> float:
        left: Iterator[str] = iter(prompts)

        async def ask() -> None:
            for text in left:
                reply = await litellm.acompletion(
                    model="openai/m",
                    messages=[{"role": "user", "content": text}],
                    api_base=url,
                    api_key="none",
                    max_retries=0,
                    **SETTINGS,
                )
                assert reply.choices[0].message.content

        began = time.perf_counter()
        await asyncio.gather(*(ask() for _ in range(IN_FLIGHT)))
        took = time.perf_counter() - began
        await litellm.close_litellm_async_clients()
        litellm.in_memory_llm_clients_cache.flush_cache()
        return took

    _measured(work, peer)


def _measured(work: Callable[[], Any], peer: Peer) -> None:
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    span = on_loop(work())
    peer.add(time.process_time() - cpu, time.perf_counter() - wall, span)


def ours(url: str, prompts: list[str], peer: Peer) -> None:
    with tempfile.TemporaryDirectory() as store:
        stage = run_stage(Path(store), judge_requests(url, prompts), OpenAI(concurrency=IN_FLIGHT))
    assert stage.tally.calls == len(prompts), stage.tally
    peer.add(stage.cpu_s, stage.wall_s, stage.span_s)


def lines() -> Iterator[Line]:
    """Rounds of the clients alternate, since machines drift; medians are compared."""
    prompts = texts(CALLS)
    raw, stage, litellm = Peer(CALLS), Peer(CALLS), Peer(LITELLM_CALLS)
    with server() as url:
        for round_ in range(ROUNDS + 1):
            if round_ == 1:  # the first one warmed up
                raw, stage, litellm = Peer(CALLS), Peer(CALLS), Peer(LITELLM_CALLS)
            raw_aiohttp(url, prompts, raw)
            ours(url, prompts, stage)
            raw_litellm(url, prompts[:LITELLM_CALLS], litellm)
    cpu = median([a / b for a, b in zip(stage.cpu_s, raw.cpu_s, strict=True)])
    name = f"misses: {CALLS:,} of 2 KB, {LATENCY_S * 1000:.0f} ms, {IN_FLIGHT} in flight"
    yield Line(name, "client CPU a call, stage / raw aiohttp", f"{cpu:.2f}", "<= 2.3")
    yield Line("", "client CPU a call, raw litellm / stage", f"{litellm.cpu_us / stage.cpu_us:.1f}")
    yield Line("", "wall / (N / in flight * latency), stage *", f"{stage.wall_ratio:.2f}", "<= 1.3")
    wall = median([a / b for a, b in zip(stage.span_s, raw.span_s, strict=True)])
    yield Line("", "wall, stage * / raw aiohttp", f"{wall:.2f}")
    yield Line("", "wall / (N / in flight * latency), raw aiohttp", f"{raw.wall_ratio:.2f}")
    each = f"{stage.cpu_us:.0f}, {raw.cpu_us:.0f}, {litellm.cpu_us:.0f} us"
    yield Line("", "client CPU a call: stage, raw aiohttp, raw litellm", each)
    yield Line("", "whole stage, preflight and last commit included", f"{median(stage.wall_s):.2f} s")
