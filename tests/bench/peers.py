"""Stored replies, got one by one from what people use instead; a peer that is not installed is said.

Each peer holds the same judgements under keys made beforehand, as ours are, and is asked for them in
another order than they were put.
"""

from __future__ import annotations

import importlib
import random
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from judgebench.engine import Response
from judgebench.engine.litellm import load
from judgebench.store import RoleRoot
from tests.bench.loopback import Line, median
from tests.bench.stores import CHUNK, Plain, judged, puts

ROWS = 5_000
ROUNDS = 3

Get: TypeAlias = Callable[[Response], str]
Peer: TypeAlias = Callable[[Path, Sequence[Response]], Get]


def diskcache(folder: Path, answers: Sequence[Response]) -> Get:
    cache = importlib.import_module("diskcache").Cache(str(folder))
    for answer in answers:
        cache.set(answer.request.input_hash, answer.output)
    return lambda answer: str(cache.get(answer.request.input_hash))


def litellm(folder: Path, answers: Sequence[Response]) -> Get:
    """litellm's disk cache, with completions in the shape in which litellm puts them there."""
    cache = importlib.import_module("litellm.caching.disk_cache").DiskCache(disk_cache_dir=str(folder))
    for answer in answers:
        choice = {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": answer.output},
        }
        reply = {"id": "x", "object": "chat.completion", "model": "m", "choices": [choice]}
        cache.set_cache(answer.request.input_hash, reply)

    def get(answer: Response) -> str:
        return str(cache.get_cache(answer.request.input_hash)["choices"][0]["message"]["content"])

    return get


def langchain(folder: Path, answers: Sequence[Response]) -> Get:
    """LangChain's SQLite cache, which is keyed by the whole prompt."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cache = importlib.import_module("langchain_community.cache").SQLiteCache(str(folder / "cache.db"))
        generation: Any = importlib.import_module("langchain_core.outputs").Generation
        for answer in answers:
            cache.update(answer.request.input_text, "m", [generation(text=answer.output)])

    def get(answer: Response) -> str:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return str(cache.lookup(answer.request.input_text, "m")[0].text)

    return get


# What each needs, and what to say where that is not there.
PEERS: dict[str, tuple[Peer, str, str]] = {
    "diskcache": (diskcache, "diskcache", "not installed (diskcache)"),
    "litellm's disk cache": (litellm, "litellm.caching.disk_cache", "not in this litellm"),
    "LangChain's SQLite cache": (langchain, "langchain_community", "not installed (langchain-community)"),
}


def lines() -> Iterator[Line]:
    answers = judged(ROWS)
    random.Random(0).shuffle(answers)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "ours")
        puts(folder, answers)
        plain = Plain(folder, answers)
        plain.write(0, ROWS, ROWS)
        gets: dict[str, Get] = {"plain sqlite3": lambda answer: _one(plain, answer)}
        absent = {}
        load()  # litellm, without its telemetry
        for name, (peer, module, otherwise) in PEERS.items():
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    importlib.import_module(module)
            except ImportError:
                absent[name] = otherwise
                continue
            Path(place, name).mkdir()
            gets[name] = peer(Path(place, name), answers[::-1])
        root = RoleRoot(folder, "judgements", "bench")
        took: dict[str, list[float]] = {name: [] for name in ["one by one", "in chunks", *gets]}
        for _ in range(ROUNDS):
            for step, name in ((1, "one by one"), (CHUNK, "in chunks")):
                began = time.perf_counter()
                for start in range(0, ROWS, step):
                    found = root.lookup([answer.request for answer in answers[start : start + step]])
                    assert None not in found
                took[name].append(time.perf_counter() - began)
            for name, get in gets.items():
                began = time.perf_counter()
                right = sum(get(answer) == answer.output for answer in answers)
                took[name].append(time.perf_counter() - began)
                assert right == ROWS, name
        root.close()
        plain.db.close()
    rate = {name: ROWS / median(times) for name, times in took.items()}
    ours = rate.pop("in chunks")
    label = f"peers: {ROWS:,} stored judgements of 4 KB"
    yield Line(label, f"ours, {CHUNK} a lookup, subjects looked up too", f"{ours:,.0f} /s")
    yield Line("", "ours, one a lookup", f"{rate['one by one']:,.0f} /s")
    del rate["one by one"]
    for name, each in rate.items():
        yield Line("", f"{name}, one by one; ours / theirs", f"{each:,.0f} /s, {ours / each:.1f}")
    for name, otherwise in absent.items():
        yield Line("", name, otherwise)


def _one(plain: Plain, answer: Response) -> str:
    sql = "SELECT output FROM responses WHERE input_hash = ? AND sample = 0"
    return str(plain.db.execute(sql, (answer.request.input_hash,)).fetchone()[0])
