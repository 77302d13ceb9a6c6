"""What a newcomer would want next: a strong judge, and which one is at hand.

Looks at the environment for the keys that the shipped judge confs name, and at the usual local ports
for an OpenAI-compatible server. Nothing is sent but one `GET /v1/models` to this machine.
"""

from __future__ import annotations

import json
import os
import re
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

# vLLM, SGLang, llama.cpp server, Ollama, LM Studio
PORTS = (8000, 30000, 8080, 11434, 1234)
CONNECT_S, ANSWER_S = 0.05, 0.5
SUGGESTED = "gpt-4.1"


def strong_judge(conf: Path) -> str:
    """One paragraph: the line that takes a strong judge, and what is at hand for it."""
    keys = dict(keyed_judges(conf))
    ready = [name for name, key in keys.items() if os.environ.get(key)]
    for port in PORTS:
        served = local_server(port)
        if served is not None:
            return (
                f"A local server answers on port {port} with {served!r}. To judge with it: judge=server "
                f"judge.name='{served}' judge.base_url=http://127.0.0.1:{port}/v1 protocol=pairwise"
            )
    if ready:
        best = SUGGESTED if SUGGESTED in ready else ready[0]
        return f"{keys[best]} is set. To judge with {best}: judge={best} protocol=pairwise"
    return (
        f"For a strong judge: export {keys.get(SUGGESTED, 'OPENAI_API_KEY')}=… and add "
        f"judge={SUGGESTED} protocol=pairwise (others: {', '.join(n for n in keys if n != SUGGESTED)}; "
        "or judge=server for your own)."
    )


def keyed_judges(conf: Path) -> Iterator[tuple[str, str]]:
    """The shipped confs of models that need a key, with its variable."""
    for path in sorted((conf / "model").glob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        key = re.search(r"^api_key_env: (\w+)$", text, re.MULTILINE)
        if key and key[1] != "null" and "retired" not in text.partition("\n")[0]:
            yield path.stem, key[1]


def local_server(port: int) -> str | None:
    """The first model that a server on this port of this machine names; null where none answers."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=CONNECT_S):
            pass
        url = f"http://127.0.0.1:{port}/v1/models"
        with urllib.request.urlopen(url, timeout=ANSWER_S) as reply:
            served = json.load(reply)["data"][0]["id"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return str(served)
