"""Client CPU a call of the `openai` engine beside raw aiohttp: `python tests/bench_engine.py`.

The server is a process of its own (`tests/servers.py`), so the numbers are the client's. Rounds of the
two alternate, since machines drift; the medians are compared. `--engine litellm` takes that one.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from judgebench.engine import Response
from judgebench.engine.litellm import LiteLLM
from judgebench.engine.openai import OpenAI
from judgebench.request import Connection, Descriptor, Request, Subject, coerce_settings, messages_input

SETTINGS = coerce_settings({"temperature": 0, "max_tokens": 16, "seed": 1})


def prompts(calls: int, size: int) -> list[str]:
    return [f"{number} " + "word " * (size // 5) for number in range(calls)]


async def raw(url: str, texts: list[str], concurrency: int) -> None:
    left = iter(texts)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=600)
    ) as session:

        async def work() -> None:
            for text in left:
                body = {"model": "m", "messages": [{"role": "user", "content": text}], **SETTINGS}
                async with session.post(f"{url}/chat/completions", json=body) as reply:
                    value = await reply.json()
                    assert value["choices"][0]["message"]["content"]

        await asyncio.gather(*(work() for _ in range(concurrency)))


async def engine(engine: Any, requests: list[Request]) -> None:
    async def feed() -> AsyncIterator[Request]:
        for request in requests:
            yield request

    done = 0
    async for event in engine.run(feed()):
        done += isinstance(event, Response)
    assert done == len(requests), done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--concurrency", type=int, default=128)
    parser.add_argument("--latency", type=float, default=0.05)
    parser.add_argument("--size", type=int, default=2048, help="bytes of a prompt")
    parser.add_argument("--engine", choices=["openai", "litellm"], default="openai")
    args = parser.parse_args()
    script = Path(__file__).with_name("servers.py")
    server = subprocess.Popen(
        [sys.executable, str(script), "--latency", str(args.latency)], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    url = f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
    texts = prompts(args.calls, args.size)
    descriptor = Descriptor("vllm", "m", SETTINGS)
    requests = [
        Request(
            descriptor,
            Connection(url),
            messages_input([{"role": "user", "content": t}]),
            Subject("b", "i", 1, "m"),
        )
        for t in texts
    ]
    chosen = {"openai": OpenAI, "litellm": LiteLLM}[args.engine](concurrency=args.concurrency)
    cpu: dict[str, list[float]] = {"raw": [], args.engine: []}
    wall: dict[str, list[float]] = {"raw": [], args.engine: []}

    async def rounds() -> None:
        for turn in range(args.rounds + 1):  # the first one warms up
            for name in cpu:
                gc.collect()
                cpu0, wall0 = time.process_time(), time.perf_counter()
                if name == "raw":
                    await raw(url, texts, args.concurrency)
                else:
                    await engine(chosen, requests)
                if turn:
                    cpu[name].append((time.process_time() - cpu0) / args.calls * 1e6)
                    wall[name].append(time.perf_counter() - wall0)

    try:
        asyncio.run(rounds())
    finally:
        server.kill()
        server.wait()
    for name in cpu:
        used, took = statistics.median(cpu[name]), statistics.median(wall[name])
        print(f"{name:8} {used:7.0f} us CPU a call, {took:6.2f} s")
    ratio = statistics.median(b / a for a, b in zip(cpu["raw"], cpu[args.engine], strict=True))
    print(f"ratio    {ratio:7.2f}")


if __name__ == "__main__":
    main()
