"""A server that misbehaves on a schedule: every row answered or typed, nothing asked in vain."""

import os
import random
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from email.utils import formatdate

from servers import Fault, serving
from test_stage import Asked

from judgebench.engine import Failure
from judgebench.engine.openai import OpenAI
from judgebench.request import Connection, Descriptor, Request, Subject, messages_input

ROWS = int(os.environ.get("JUDGEBENCH_ROWS", "500"))
ENGINE = OpenAI(concurrency=64, timeout_s=0.5, max_attempts=5, max_wait_s=5)
BUSY = {"error": {"message": "Rate limit reached.", "type": "requests", "code": "rate_limit_exceeded"}}
SOON = {"error": {"message": "Rate limit reached. Please try again in 20ms."}}


@dataclass
class Schedule:
    """What befalls the n-th call, by seed: the shares of a bad day at a large provider."""

    seed: int
    faults: Counter = field(default_factory=Counter)
    refused: list[tuple[float, float]] = field(default_factory=list)  # when, and the wait asked for

    def __call__(self, number, body):
        draw = random.Random(f"{self.seed}:{number}")
        dice = draw.random()
        for kind, share in (
            ("rate_limited", 0.20),
            ("server", 0.05),
            ("drop", 0.02),
            ("half", 0.02),
            ("invalid", 0.01),
            ("empty", 0.01),
            ("stall", 0.01),
        ):
            dice -= share
            if dice < 0:
                self.faults[kind] += 1
                return self.fault(kind, draw)
        return None

    def fault(self, kind, draw):
        if kind == "rate_limited":
            headers, body, wait = draw.choice(
                [
                    ({"Retry-After": "0.02"}, BUSY, 0.02),
                    ({"retry-after-ms": "20"}, BUSY, 0.02),
                    ({"x-ratelimit-reset-requests": "20ms"}, BUSY, 0.02),
                    ({"Retry-After": formatdate(time.time(), usegmt=True)}, BUSY, 0.0),
                    ({}, SOON, 0.02),
                ]
            )
            self.refused.append((time.monotonic(), wait))
            return Fault(429, body, headers)
        if kind == "server":
            return Fault(
                draw.choice([500, 503, 529]), {"error": {"message": "down"}}, {"Retry-After": "0.01"}
            )
        if kind == "half":
            return Fault(200, '{"choices": [{"mess', kind="half")
        if kind == "invalid":
            return Fault(200, "<html>bad gateway</html>")
        if kind == "empty":
            return {"choices": [{"message": {"content": ""}, "finish_reason": "stop"}]}
        return Fault(kind=kind)  # drop, stall of 30 s


def rows(url, count=ROWS):
    model = Descriptor("vllm", "m", {"max_tokens": 64})
    return [
        Request(
            model,
            Connection(url),
            messages_input([{"role": "user", "content": f"Question {n}"}]),
            Subject("b", str(n), 1, "m"),
            0,
            n,
        )
        for n in range(count)
    ]


def test_every_row_is_answered_or_typed_and_a_rerun_asks_only_the_failed(tmp_path):
    schedule, stage = Schedule(seed=3), Asked(tmp_path)
    with serving(plan=schedule) as server:
        asks = rows(server.url)
        found = stage.fill(asks, engine=ENGINE)
        failed = [result for result in found if isinstance(result, Failure)]
        faults = sum(schedule.faults.values())
        assert len(schedule.faults) == 7, "each kind was met"
        assert len(found) == ROWS
        assert len(failed) < 0.05 * ROWS
        assert {failure.reason for failure in failed} <= {
            "rate_limited",
            "server",
            "timeout",
            "malformed",
            "empty",
        }
        assert server.count <= 1.1 * (ROWS + faults)
        assert server.count <= 1.01 * (ROWS - len(failed) + faults), "asked in vain"

        before, server.plan = server.count, None
        again = stage.fill(asks, engine=ENGINE)
        assert not any(isinstance(result, Failure) for result in again)
        assert server.count - before == len(failed)
        assert stage.tally.hits == ROWS - len(failed)


def test_requests_a_second_fall_at_once_after_a_rate_limit(tmp_path):
    refused_at = []

    def plan(number, body):
        if number == 300:
            refused_at.append(time.monotonic())
            return Fault(429, BUSY, {"Retry-After": "1"})
        return None

    with serving(plan=plan, latency_s=0.01) as server:
        Asked(tmp_path).fill(rows(server.url, 600), engine=replace(ENGINE, concurrency=32))
        (at,) = refused_at
        while_paused = [t for t in server.times if at + 0.05 < t < at + 0.95]
        before = [t for t in server.times if at - 0.2 < t < at]
        assert len(before) > 20
        assert while_paused == []
        assert server.count == 601
