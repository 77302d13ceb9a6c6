"""What tokens cost where a model's conf does not say: litellm's price table, read as a file."""

from __future__ import annotations

import importlib.util
import json
from functools import lru_cache
from pathlib import Path

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


def known_price(provider: str, model: str) -> tuple[float, float] | None:
    """USD per million input and output tokens, from litellm's table; null where it has none."""
    for name in (model, f"{provider}/{model}"):
        entry = _prices().get(name, {})
        if entry.get("input_cost_per_token") is not None and entry.get("output_cost_per_token") is not None:
            return (entry["input_cost_per_token"] * 1e6, entry["output_cost_per_token"] * 1e6)
    return None
