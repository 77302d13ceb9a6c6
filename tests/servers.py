"""Loopback servers that speak the OpenAI shape, for tests, benches and kill tests.

`Server` answers each request with a pure function of its body: equal bodies, equal replies. A `plan`
makes it misbehave: a function of the call's number that gives a fault, or None for a good answer.
Alone: `python tests/servers.py --port 0 --latency 0.05` prints its port and serves until it is killed;
`GET /stats` tells how many calls came and how many were in flight at once.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any, Self

from aiohttp import web

WORDS = "a judge weighs both answers with care and finds one of them clearer than the other".split()


@dataclass
class Fault:
    """What a server does instead of answering."""

    status: int = 200
    body: Any = None  # JSON, or text as it is
    headers: Mapping[str, str] = field(default_factory=dict)
    kind: str = "reply"  # reply, drop (close without a byte), half (of a body), stall (`stall_s`)
    stall_s: float = 30.0


Plan = Callable[[int, dict[str, Any]], Fault | dict[str, Any] | None]


class Loop:
    """A server's thread, event loop and port; `routes` are the subclass's."""

    def __init__(self, port: int = 0) -> None:
        self.port = port

    def routes(self) -> list[web.RouteDef]:
        raise NotImplementedError

    async def listen(self) -> web.AppRunner:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_routes(self.routes())
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self.port, backlog=2048)
        await site.start()
        assert site._server is not None
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
        return runner

    async def leave(self) -> None:
        await self.runner.cleanup()
        stalled = asyncio.all_tasks() - {asyncio.current_task()}
        for task in stalled:
            task.cancel()
        await asyncio.gather(*stalled, return_exceptions=True)

    def __enter__(self) -> Self:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="server", daemon=True)
        self.thread.start()
        self.runner = asyncio.run_coroutine_threadsafe(self.listen(), self.loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self.leave(), self.loop).result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()


class Server(Loop):
    """A server on a thread of its own.

    Args:
        latency_s: of each answer.
        plan: called with the number of the call (from 0) and its body; a dict is sent as the reply.
        labels: when given, the text of each answer is one of them, drawn by the body's hash.
        port: 0 takes a free one.
        key: the only one that is let in.
    """

    def __init__(
        self,
        latency_s: float = 0.0,
        plan: Plan | None = None,
        labels: Sequence[str] = (),
        port: int = 0,
        key: str | None = None,
    ) -> None:
        super().__init__(port)
        self.key = key
        self.latency_s = latency_s
        self.plan = plan
        self.labels = labels
        self.bodies: list[dict[str, Any]] = []
        self.raw: list[bytes] = []
        self.headers: list[Mapping[str, str]] = []
        self.paths: list[str] = []
        self.times: list[float] = []
        self.count = 0
        self.in_flight = 0
        self.most_in_flight = 0
        self.keep = True  # what came in; a bench turns it off

    @property
    def url(self) -> str:
        """The base URL."""
        return f"http://127.0.0.1:{self.port}/v1"

    # requests

    async def answer(self, request: web.Request) -> web.StreamResponse:
        number, self.count = self.count, self.count + 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            raw = await request.read()
            body = json.loads(raw)
            if self.keep:
                self.times.append(time.monotonic())
                self.raw.append(raw)
                self.bodies.append(body)
                self.headers.append(dict(request.headers))
                self.paths.append(request.path)
            if self.latency_s:
                await asyncio.sleep(self.latency_s)
            planned = self.plan(number, body) if self.plan else None
            if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
                planned = Fault(401, {"error": {"message": "Incorrect API key provided."}})
            if isinstance(planned, Fault):
                return await misbehave(request, planned)
            return web.json_response(reply_to(body, self.labels) if planned is None else planned)
        finally:
            self.in_flight -= 1

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "m", "object": "model"}]})

    async def stats(self, request: web.Request) -> web.Response:
        return web.json_response(
            {"count": self.count, "in_flight": self.in_flight, "most_in_flight": self.most_in_flight}
        )

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/{route:.*}", self.answer),
            web.get("/v1/models", self.models),
            web.get("/stats", self.stats),
        ]


async def misbehave(request: web.Request, fault: Fault) -> web.StreamResponse:
    if fault.kind == "stall":
        await asyncio.sleep(fault.stall_s)
    if fault.kind in ("drop", "stall"):
        assert request.transport is not None
        request.transport.abort()
        return web.Response()
    text = fault.body if isinstance(fault.body, str) else json.dumps(fault.body)
    headers = {"Content-Type": "application/json", **fault.headers}
    if fault.kind == "half":
        half = web.StreamResponse(
            status=fault.status, headers={**headers, "Content-Length": str(len(text) * 2)}
        )
        await half.prepare(request)
        await half.write(text.encode())
        assert request.transport is not None
        request.transport.close()
        return half
    return web.Response(status=fault.status, text=text, headers=headers)


def reply_to(body: Mapping[str, Any], labels: Sequence[str] = ()) -> dict[str, Any]:
    """The reply: a pure function of the body."""
    seed = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).digest()
    draw = random.Random(seed)
    if labels:
        tokens = [labels[seed[0] % len(labels)]]
    else:
        tokens = [f"{seed.hex()[:12]}"] + [f" {draw.choice(WORDS)}" for _ in range(draw.randint(3, 20))]
    limit = body.get("max_completion_tokens") or body.get("max_tokens") or len(tokens)
    finish = "length" if limit < len(tokens) else "stop"
    tokens = tokens[:limit]
    text = "".join(tokens)
    shown = json.dumps(body.get("messages") or body.get("prompt"))
    reply: dict[str, Any] = {
        "id": f"reply-{seed.hex()[:8]}",
        "created": 1_700_000_000,
        "model": f"{body['model']}-0613",
        "system_fingerprint": "fp_test",
        "usage": {
            "prompt_tokens": len(shown) // 4,
            "completion_tokens": len(tokens),
            "total_tokens": len(shown) // 4 + len(tokens),
        },
    }
    if "messages" in body:
        choice: dict[str, Any] = {"message": {"role": "assistant", "content": text}}
        reply["object"] = "chat.completion"
        if body.get("logprobs"):
            count = body.get("top_logprobs", 0)
            choice["logprobs"] = {"content": [at(token, count, labels, draw) for token in tokens]}
    else:
        choice = {"text": text}
        reply["object"] = "text_completion"
        if body.get("logprobs") is not None:
            entries = [at(token, body["logprobs"], labels, draw) for token in tokens]
            choice["logprobs"] = {
                "tokens": tokens,
                "token_logprobs": [entry["logprob"] for entry in entries],
                "top_logprobs": [
                    {option["token"]: option["logprob"] for option in entry["top_logprobs"]}
                    for entry in entries
                ],
                "text_offset": [0] * len(tokens),
            }
    reply["choices"] = [{"index": 0, "finish_reason": finish, **choice}]
    return reply


def at(token: str, count: int, labels: Sequence[str], draw: random.Random) -> dict[str, Any]:
    """Chat logprobs of one position: the sampled token first, then the labels and words."""
    names = list(dict.fromkeys([token, *labels, *(f" {word}" for word in WORDS)]))[:count]
    options = [
        {"token": name, "logprob": round(-0.1 - place - draw.random() / 2, 6), "bytes": list(name.encode())}
        for place, name in enumerate(names)
    ]
    logprob = options[0]["logprob"] if options else -0.25
    return {"token": token, "logprob": logprob, "bytes": list(token.encode()), "top_logprobs": options}


def misbehaving(seed: int, share: float = 0.4, most: int = 6) -> Plan:
    """A plan that fails about `share` of the calls, in every way that ought to be asked again.

    What befalls a body depends on the seed, the body and how often it came, not on the order of arrival;
    after `most` faults it is answered.
    """
    came: Counter[str] = Counter()

    def plan(number: int, body: dict[str, Any]) -> Fault | None:
        text = json.dumps(body, sort_keys=True)
        came[text] += 1
        draw = random.Random(f"{seed}:{came[text]}:{text}")
        if draw.random() >= share or came[text] > most:
            return None
        busy = {
            "error": {"message": "Rate limit reached.", "type": "requests", "code": "rate_limit_exceeded"}
        }
        soon = {"error": {"message": "Please try again in 5ms."}}
        down = {"error": {"message": "overloaded"}}
        faults = (
            Fault(429, busy, {"Retry-After": "0.01"}),
            Fault(429, busy, {"Retry-After": formatdate(time.time(), usegmt=True)}),
            Fault(429, busy, {"x-ratelimit-reset-tokens": "7ms"}),
            Fault(429, busy, {"Retry-After": "soon"}),
            Fault(429, soon),
            Fault(500, down),
            Fault(503, down),
            Fault(529, down),
            Fault(kind="drop"),
            Fault(200, '{"choices": [{"mess', kind="half"),
            Fault(200, "<html>bad gateway</html>"),
            Fault(200, {"choices": []}),
        )
        return draw.choice(faults)

    return plan


@contextmanager
def serving(**options: Any) -> Iterator[Server]:
    """A server for the length of a `with`."""
    with Server(**options) as server:
        yield server


async def forever(server: Server) -> None:
    await server.listen()
    print(server.port, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--latency", type=float, default=0.0, help="seconds")
    parser.add_argument(
        "--labels", default="", help="one of these, separated by commas, is each answer's text"
    )
    parser.add_argument("--faults", type=float, default=0.0, help="share of calls that fail")
    parser.add_argument("--seed", type=int, default=0, help="of the faults")
    args = parser.parse_args()
    server = Server(
        latency_s=args.latency,
        plan=misbehaving(args.seed, args.faults) if args.faults else None,
        labels=[label for label in args.labels.split(",") if label],
        port=args.port,
    )
    server.keep = False
    asyncio.run(forever(server))
