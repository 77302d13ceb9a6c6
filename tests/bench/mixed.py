"""10,000 requests of which 9,900 scattered ones are stored, beside the 100 misses and the lookup alone."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from judgebench.engine.openai import OpenAI
from tests.bench.loopback import IN_FLIGHT, LATENCY_S, Line, judge_requests, median, run_stage, server, texts

COUNT = 10_000
ROUNDS = 5


def lines() -> Iterator[Line]:
    prompts = texts(COUNT)
    missing = prompts[37::100]
    known = [text for text in prompts if text not in set(missing)]
    alone, lookup, mixed = [], [], []
    engine = OpenAI(concurrency=IN_FLIGHT)
    with tempfile.TemporaryDirectory() as folder, server() as url, server(0.0) as quick:
        for number in range(ROUNDS):
            store = Path(folder, str(number))
            apart = Path(folder, f"apart-{number}")
            run_stage(store, judge_requests(quick, known), engine)  # a connection is no part of a key
            alone.append(run_stage(apart, judge_requests(url, missing), engine).wall_s)
            lookup.append(run_stage(store, judge_requests(url, known), engine).wall_s)
            stage = run_stage(store, judge_requests(url, prompts), engine)
            assert (stage.tally.calls, stage.tally.hits) == (len(missing), len(known))
            mixed.append(stage.wall_s)
    ratio = median([m / (a + look) for m, a, look in zip(mixed, alone, lookup, strict=True)])
    name = f"mixed: {len(known):,} of {COUNT:,} stored, {LATENCY_S * 1000:.0f} ms"
    yield Line(name, "wall / (misses alone + lookup)", f"{ratio:.2f}", "1")
    each = f"{median(mixed):.2f}, {median(alone):.2f}, {median(lookup):.2f} s"
    yield Line("", "wall: mixed, misses alone, lookup", each)
