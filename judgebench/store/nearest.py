"""Why a request is not stored: what comes nearest to it, and where the two part.

The nearest is, in this order: the same request, deleted, marked, refused or failed; the same use of
the same model with another prompt; another descriptor of a model of this name. One reason a
request, in a line for people.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from judgebench.errors import StoreError
from judgebench.request import Descriptor, Request
from judgebench.store import layout, schema
from judgebench.store.reuse import NO_LOGPROBS, TRUNCATED

AROUND = 24  # characters shown on either side of where two prompts part
LINEAGE = {"answer_a": "model_a", "answer_b": "model_b"}


class Reason(NamedTuple):
    """Why a request is a miss: a kind, to count by, and an example in words.

    `expected`: a user might have thought that it is stored.
    """

    kind: str
    text: str
    expected: bool = True


NOTHING_LIKE_IT = Reason("new", "nothing like it is stored", expected=False)


def why_missed(roots: Sequence[Path], role: str, request: Request) -> Reason:
    """What comes nearest to a request that is not stored, in the first root that has anything near."""
    for root in roots:
        for path in layout.files(root, role, request.descriptor):
            reason = _in_file(path, request)
            if reason is not None:
                return reason
    for root in roots:
        reason = _other_descriptor(root, role, request)
        if reason is not None:
            return reason
    return NOTHING_LIKE_IT


def _in_file(path: Path, request: Request) -> Reason | None:
    try:
        db = schema.open_reader(path)
    except StoreError as error:
        return Reason("unreadable", str(error))
    if db is None:
        return None
    with closing(db):
        return _same_key(db, request) or _same_use(db, request)


def _same_key(db: sqlite3.Connection, request: Request) -> Reason | None:
    key = (request.input_hash, request.sample)
    there = db.execute(
        "SELECT created_at, finish_reason, top_logprobs, refresh_at FROM responses "
        "WHERE input_hash = ? AND sample = ?",
        key,
    ).fetchone()
    if there is not None:
        created_at, finish_reason, top_logprobs, refresh_at = there
        if refresh_at is not None:
            return Reason(
                "marked", f"stored on {created_at[:10]} and marked for refresh on {refresh_at[:10]}"
            )
        if NO_LOGPROBS in request.refuse and top_logprobs is None:
            return Reason("refused", "stored without the logprobs that the reader needs (protocol.reuse)")
        if TRUNCATED in request.refuse and finish_reason == "length":
            return Reason("refused", "stored, but cut off at its length limit (protocol.reuse=complete)")
        return Reason("old", f"stored on {created_at[:10]}: older than asked for", expected=False)
    dead = db.execute(
        "SELECT deleted_at FROM tombstones WHERE scope = 'answer' AND key = ?", (f"{key[0]}:{key[1]}",)
    ).fetchone()
    if dead is not None:
        return Reason("deleted", f"deleted on {dead[0][:10]}")
    failed = db.execute(
        "SELECT reason, count(*) FROM attempts WHERE input_hash = ? AND sample = ? "
        "GROUP BY 1 ORDER BY 2 DESC",
        key,
    ).fetchall()
    if failed:
        told = ", ".join(f"{reason} ({count}×)" for reason, count in failed)
        return Reason("failed", f"asked before and failed: {told}")
    other = db.execute("SELECT count(*) FROM responses WHERE input_hash = ? AND sample != ?", key).fetchone()
    if other[0]:
        return Reason("sample", f"{other[0]} other samples of it are stored", expected=False)
    return None


_USE = ("benchmark", "instruction_id", "turn", "model_a", "model_b", "orientation", "protocol")


def _same_use(db: sqlite3.Connection, request: Request) -> Reason | None:
    """An answer to another prompt that was used for the very same thing."""
    given = request.subject._asdict()
    row = db.execute(
        "SELECT r.input_text, r.created_at, s.template_hash, s.answer_a, s.answer_b FROM subjects s "
        "JOIN responses r ON r.input_hash = s.input_hash AND r.sample = s.sample "
        f"WHERE {' AND '.join(f's.{name} IS ?' for name in _USE)} AND s.sample = ? "
        "ORDER BY r.created_at DESC LIMIT 1",
        (*(given[name] for name in _USE), request.sample),
    ).fetchone()
    if row is None:
        return None
    text, created_at, template_hash, *answers = row
    known = f"stored on {created_at[:10]} with another prompt: "
    if template_hash != given["template_hash"]:
        return Reason("template", f"{known}the template changed; {parting(text, request.input_text)}")
    for name, old in zip(LINEAGE, answers, strict=True):
        if old != given[name]:
            who = given[LINEAGE[name]]
            told = f"{known}the answer of {who} is another; {parting(text, request.input_text)}"
            return Reason(f"answer of {who}", told)
    return Reason("prompt", f"{known}{parting(text, request.input_text)}")


def parting(old: str, new: str) -> str:
    """Where two rendered inputs part, with a little of both."""
    if old == new:
        return "the prompts are the same"
    if _plain(old) != _plain(new):
        old, new = _plain(old), _plain(new)
    at = next((n for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    start = max(at - AROUND, 0)
    shown = [json.dumps(text[start : at + AROUND], ensure_ascii=False)[1:-1] for text in (old, new)]
    return f"at character {at:,}: …{shown[0]}… -> …{shown[1]}…"


def _plain(input_text: str) -> str:
    """What a person wrote of a rendered input, without its JSON."""
    value = json.loads(input_text)
    if "messages" in value:
        return "\n".join(str(message.get("content")) for message in value["messages"])
    return str(value.get("prompt", input_text))


def _other_descriptor(root: Path, role: str, request: Request) -> Reason | None:
    wanted = request.descriptor
    near = [
        (list(differences(other, wanted)), other)
        for place in (root / role).glob(f"*/{layout.part(wanted.model)}")
        for other in layout.descriptors_in(place)
        if other.hash != wanted.hash
    ]
    for differ, other in sorted(near, key=lambda n: (len(n[0]), n[1].hash)):
        if _holds(root, role, other, request):
            told = ", ".join(differ)
            return Reason(told, f"stored with other settings: {told}")
    return None


def _holds(root: Path, role: str, descriptor: Descriptor, request: Request) -> bool:
    """Whether a descriptor has an answer to this input, or of this use."""
    given = request.subject._asdict()
    for path in layout.files(root, role, descriptor):
        db = schema.open_reader(path)
        if db is None:
            continue
        with closing(db):
            for sql, values in (
                ("SELECT 1 FROM responses WHERE input_hash = ? LIMIT 1", [request.input_hash]),
                (
                    f"SELECT 1 FROM subjects WHERE {' AND '.join(f'{name} IS ?' for name in _USE)} LIMIT 1",
                    [given[name] for name in _USE],
                ),
            ):
                if db.execute(sql, values).fetchone():
                    return True
    return False


def differences(old: Descriptor, new: Descriptor) -> Iterator[str]:
    """The settings in which two descriptors differ: `top_p: 1.0 -> 0.9`.

    >>> list(differences(Descriptor("p", "m", {"top_p": 1.0}), Descriptor("p", "m", {"top_p": 0.9})))
    ['top_p: 1.0 -> 0.9']
    """
    before, after = (_flat(json.loads(d.text)) for d in (old, new))
    for name in sorted({*before, *after}):
        if before.get(name) != after.get(name):
            yield f"{name}: {_short(before.get(name))} -> {_short(after.get(name))}"


def _flat(value: Any, before: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {before.removeprefix("settings."): value}
    flat: dict[str, Any] = {}
    for name, inner in value.items():
        flat |= _flat(inner, f"{before}.{name}" if before else str(name))
    return flat


def _short(value: Any) -> str:
    text = "unset" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}…"
