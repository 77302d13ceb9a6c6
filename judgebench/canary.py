"""Notice that a name serves another model than before: a fixed question, asked once a run.

Before the first paid request of a model, its canary is asked alone, at temperature 0. What it says,
and what the server says of itself, is kept beside the model's answers and compared with the time
before. In-process models need none: their weights are part of their identity.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from judgebench.budget import Budget
from judgebench.engine import Engine, Failure, Response
from judgebench.engine.replay import Replay
from judgebench.request import Connection, Descriptor, Request, Subject, messages_input, prompt_input
from judgebench.store import RoleRoot, canaries
from judgebench.store.canaries import Canary
from judgebench.tally import Tally

QUESTION = "Count down from twelve to one in words, separated by commas, and then name three rivers."
SETTINGS = {"temperature": 0.0, "max_tokens": 48}

# A sweep asks each model once: jobs follow each other in one process.
_ASKED: set[tuple[str, str]] = set()


async def check(engine: Engine, request: Request, store: RoleRoot, tally: Tally, budget: Budget) -> None:
    """Ask the canary of a request's model, and note in the tally what changed since it was asked last.

    A model that cannot answer it (no such setting, say) is let pass: its real requests will tell.

    Raises:
        EngineError: the model cannot be used at all.
    """
    wanted = request.descriptor
    if wanted.weights is not None or wanted.provider == "shipped" or isinstance(engine, Replay):
        return
    canary = _canary(request)
    asked = (str(store.root), canary.descriptor.hash)
    if asked in _ASKED:
        return
    if budget and not await budget.admit(canary):
        return  # nothing else of this model is asked either
    _ASKED.add(asked)
    response: Response | None = None
    events = engine.run(_one(canary))
    try:
        async for event in events:
            if isinstance(event, Response | Failure):
                budget.settle(event)
            if isinstance(event, Response):
                response = event
    finally:
        await events.aclose()
        budget.lose([canary.key])
    if response is None:
        return
    tally.canaries += 1
    tally.cost_usd += response.cost_usd or 0.0
    now = Canary(response.output, response.served_model, response.fingerprint, response.backend_version)
    place = (store.root, store.role, wanted, canary.input_hash)
    before = canaries.last(*place)
    if before is None or before[1] != now:
        canaries.keep(*place, now, response.cost_usd, store.run_id)
    if before is not None and (told := changed(before[1], now)):
        tally.changed.append(f"{wanted.model} may not be the model it was on {before[0][:10]}: {told}.")


def changed(before: Canary, now: Canary) -> str | None:
    """What differs, the most telling first; null where nothing does."""
    for name, words in (("served_model", "served as"), ("backend_version", "backend"), ("output", "canary")):
        old, new = getattr(before, name), getattr(now, name)
        if old != new and None not in (old, new):
            return f"{words} {old[:80]!r} -> {new[:80]!r}"
    return None


def _canary(request: Request) -> Request:
    wanted = request.descriptor
    descriptor = Descriptor(
        wanted.provider, wanted.model, SETTINGS, wanted.endpoint, wanted.weights, wanted.chat_template
    )
    chat = "messages" in request.input
    text = messages_input([{"role": "user", "content": QUESTION}]) if chat else prompt_input(QUESTION)
    connection: Connection = request.connection
    return Request(descriptor, connection, text, Subject("canary", "canary", 0, wanted.model))


async def _one(request: Request) -> AsyncIterator[Request]:
    yield request
