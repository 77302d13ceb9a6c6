"""What tokens cost where a model's conf does not say: litellm's price table, read as a file."""

from __future__ import annotations

import importlib.util
import json
from functools import lru_cache
from pathlib import Path

from judgebench.request import Connection, Descriptor, Price

CHARS_PER_TOKEN = 4.0  # of English text; an estimate, said to be one


@lru_cache(maxsize=1)
def _prices() -> dict[str, dict[str, float]]:
    """litellm's price table, read as a file: importing litellm costs seconds."""
    found = importlib.util.find_spec("litellm")
    if found is None or found.origin is None:
        return {}
    path = Path(found.origin).parent / "model_prices_and_context_window_backup.json"
    if not path.is_file():
        return {}
    table: dict[str, dict[str, float]] = json.loads(path.read_text(encoding="utf-8"))
    return table


def price_of(descriptor: Descriptor, connection: Connection) -> Price | None:
    """The price that the conf names, else that of litellm's table; null where neither knows one.

    A server under an address of its own has no price but that of its conf, whatever it calls its models.
    """
    if connection.price is not None or connection.base_url is not None:
        return connection.price
    return _listed(descriptor.provider, descriptor.model)


@lru_cache(maxsize=256)
def _listed(provider: str, model: str) -> Price | None:
    for name in (f"{provider}/{model}", model):
        entry = _prices().get(name, {})
        read, written = entry.get("input_cost_per_token"), entry.get("output_cost_per_token")
        if read is not None and written is not None:
            cached = entry.get("cache_read_input_token_cost")
            return Price(read * 1e6, written * 1e6, None if cached is None else cached * 1e6)
    return None
