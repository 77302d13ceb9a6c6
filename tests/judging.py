"""What a loopback server says to candidates' and judges' prompts: pure functions of the body."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

from servers import reply_to

THINK = "<think>\nFirst [[A]], no, [[B]]; let me look again.\n</think>\n"


def is_judging(body: dict[str, Any]) -> bool:
    """Whether a body is a judge's prompt of the protocol `pairwise`."""
    return "two assistants" in json.dumps(body["messages"][0])


def draw(body: dict[str, Any]) -> int:
    """A number that depends on the messages alone."""
    return hashlib.sha256(json.dumps(body["messages"]).encode()).digest()[0]


def says(text: Callable[[dict[str, Any]], str]) -> Callable[[int, dict[str, Any]], dict[str, Any]]:
    """A plan: the server's usual reply with this text in it."""

    def plan(_: int, body: dict[str, Any]) -> dict[str, Any]:
        reply = reply_to(body)
        reply["choices"][0]["message"]["content"] = text(body)
        reply["choices"][0]["finish_reason"] = "stop"
        return reply

    return plan


def answer(body: dict[str, Any]) -> str:
    """A verdict where one is asked for, else an answer of its own for each prompt."""
    if is_judging(body):
        return f"It is clearer. [[{'AB'[draw(body) % 2]}]]"
    return f"An answer, number {draw(body)}, to {body['messages'][-1]['content'][:40]!r}."


def thinking(body: dict[str, Any]) -> str:
    """The same behind a think block."""
    return THINK + answer(body)
