"""Which stored answers may serve a request that was not asked in just these words.

An answer with more logprobs holds the one with fewer: under two descriptors that differ in nothing
but the logprobs asked for, the richer row, cut to what was asked, is what the poorer request would
have got. Nothing else is ever taken for the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from judgebench.request import Descriptor, canonical
from judgebench.store import layout

LOGPROBS = "logprobs"
REUSED = "reused"  # the origin of a copy that serves where the paid row lies elsewhere in the root

# Why a stored answer is not served where the asker says so: its reader could make nothing of it.
TRUNCATED, NO_LOGPROBS = "truncated", "no_logprobs"


class Stored(Protocol):
    """What is asked of a stored answer."""

    @property
    def finish_reason(self) -> str | None:
        """Normalised."""
        ...

    @property
    def top_logprobs(self) -> str | None:
        """JSON, or null."""
        ...


def unfit(answer: Stored, refuse: frozenset[str]) -> bool:
    """Whether an asker that refuses such answers would rather ask anew."""
    return bool(refuse) and (
        (TRUNCATED in refuse and answer.finish_reason == "length")
        or (NO_LOGPROBS in refuse and answer.top_logprobs is None)
    )


def serves(rich: Descriptor, poor: Descriptor) -> bool:
    """Whether answers of `rich`, cut, are answers of `poor`."""
    wanted, had = poor.settings.get(LOGPROBS), rich.settings.get(LOGPROBS)
    if had is None or rich.hash == poor.hash or _without(rich) != _without(poor):
        return False
    if wanted is None:
        return True
    wide = had["positions"] == "all" or had["positions"] == wanted["positions"]
    return bool(wide and had["count"] >= wanted["count"])


def _without(descriptor: Descriptor) -> str:
    fields = json.loads(descriptor.text)
    settings = {key: value for key, value in fields.get("settings", {}).items() if key != LOGPROBS}
    return canonical({**fields, "settings": settings})


def siblings(root: Path, role: str, poor: Descriptor) -> Iterator[Descriptor]:
    """The stored descriptors whose answers serve `poor`, the one with the fewest logprobs first."""
    able = [
        other for other in layout.descriptors(root, role, poor.provider, poor.model) if serves(other, poor)
    ]
    yield from sorted(able, key=lambda d: (d.settings[LOGPROBS]["count"], d.hash))


def cut(top_logprobs: str | None, poor: Descriptor) -> str | None:
    """Stored logprobs, cut to what `poor` asks for: so many alternatives, at so many positions."""
    wanted: Mapping[str, Any] | None = poor.settings.get(LOGPROBS)
    if top_logprobs is None or wanted is None:
        return None
    positions = json.loads(top_logprobs)
    if wanted["positions"] == "first":
        positions = positions[:1]
    for position in positions:
        position["top_logprobs"] = position.get("top_logprobs", [])[: wanted["count"]]
    return json.dumps(positions, ensure_ascii=False, separators=(",", ":"))
