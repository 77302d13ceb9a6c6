"""`judgebench show`: one answer and everything around it, for people. Reads only.

Model text keeps its line breaks and nothing else of what a terminal would obey.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich import box
from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from judgebench.errors import ConfigError
from judgebench.folder import Job
from judgebench.looking import checked_limit, console, role_of, settings, tell
from judgebench.report import literal
from judgebench.store.deletion import conditions
from judgebench.store.layout import ROLES
from judgebench.store.looking import Found, detail, locate, select
from judgebench.store.root import root_of

POSITIONS = 5  # of logprobs
ALTERNATIVES = 5  # at a position
LISTED = 20  # rows of a table of uses
GLANCE = 200  # characters of an answer that is not the one asked for


@dataclass
class Show:
    """See `conf/show.yaml`. `result`: `judgebench.store.looking.Found`, one an answer."""

    keys: Sequence[str] = ()
    role: str | None = None
    where: Mapping[str, Any] = field(default_factory=dict)
    limit: int | None = None
    store: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, job: Job) -> int:
        """Print the answers; 3 where a file could not be read.

        Raises:
            ConfigError: no key and no column, a key or columns that fit none or several, no such role.
        """
        if bool(self.keys) == bool(self.where):
            raise ConfigError(
                "Which answer? Give its key (judgebench show 3f2a:9c01:0), or columns "
                "(where.instruction_id=…), not both. Keys are listed by judgebench query 'SELECT key, output "
                "FROM judgements'."
            )
        root, role = root_of(self.store), role_of(self.role)
        problems: list[str] = []
        if self.where:
            places = select(root, conditions(role, self.where), checked_limit(self.limit), problems)
        else:
            places = [locate(root, [role] if role else ROLES, str(key), problems) for key in self.keys]
        self.result = [detail(root, place, problems) for place in places]
        shown = console()
        if not self.result:
            shown.print("Nothing matches.")
        for found in self.result:
            render(found, shown)
        return tell(problems)


def render(found: Found, shown: Console) -> None:
    """Print one answer."""
    shown.print(Rule(_line(f"{found.role} · {found.key}", "bold"), align="left", style="dim"))
    shown.print(_facts(found))
    answer = found.answer
    text = answer["input_text"] if answer else next((s["input_text"] for s in found.superseded), None)
    for title, body in _prompt(text):
        _block(shown, title, body)
    if answer is None:
        shown.print(_line("No usable answer is stored.", "yellow"))
    else:
        if answer["reasoning"]:
            _block(shown, "reasoning", answer["reasoning"])
        _block(shown, "output", answer["output"], "bold")
        if answer["top_logprobs"]:
            _heading(shown, "logprobs")
            shown.print(_logprobs(answer["top_logprobs"]))
    _tables(found, shown)


_USE = ("benchmark", "instruction_id", "turn", "model_a", "model_b", "orientation", "protocol", "run_id")
_JUDGED = ("key", "judge", "benchmark", "protocol", "orientation", "model_a", "model_b", "output")
_TRY = ("created_at", "number", "reason", "detail", "output", "cost_usd")


def _tables(found: Found, shown: Console) -> None:
    _table(shown, "used for", found.subjects, _USE)
    for lineage in found.showed:
        _heading(shown, f"{lineage.slot} · {lineage.model}")
        shown.print(_line(lineage.key, "dim"), soft_wrap=True)
        held = lineage.output
        shown.print(_text(held, GLANCE) if held is not None else _line("not in this store", "dim"))
    judged = [
        row | {"key": f"{row['descriptor_hash'][:8]}:{row['input_hash'][:12]}:{row['sample']}"}
        for row in found.used_by
    ]
    _table(shown, "judged in", judged, _JUDGED)
    _table(shown, "failed tries", found.attempts, _TRY)
    for old in found.superseded:
        served = f" · served as {old['served_model']}" if old["served_model"] else ""
        _heading(shown, f"superseded on {old['superseded_at']} · came {old['created_at']}{served}")
        shown.print(_text(old["output"], GLANCE))


def _facts(found: Found) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    who = f"{found.descriptor.provider}/{found.descriptor.model}"
    facts = {"model" if found.role == "completions" else "judge": who}
    facts["settings"] = settings([found.descriptor])[found.descriptor]
    if answer := found.answer:
        served = [answer[name] for name in ("served_model", "fingerprint", "backend_version")]
        facts["served as"] = " · ".join(filter(None, served))
        came = f"{answer['created_at']} by {answer['created_by']}, run {answer['run_id']}"
        facts["came"] = f"{answer['origin']}, {came}"
        facts["ended"] = answer["finish_reason"] or ""
        facts["tokens"] = ", ".join(
            f"{answer[name]:,} {name.removesuffix('_tokens')}"
            for name in ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")
            if answer[name] is not None
        )
        cost = answer["cost_usd"]
        facts["cost"] = ("unknown" if answer["origin"] == "paid" else "") if cost is None else f"${cost:.6f}"
        facts["took"] = f"{answer['latency_s']:.2f} s" if answer["latency_s"] is not None else ""
        facts["refresh"] = f"to be asked anew since {answer['refresh_at']}" if answer["refresh_at"] else ""
    for name, value in facts.items():
        if value:
            table.add_row(name, _line(value))
    return table


def _prompt(input_text: str | None) -> Iterator[tuple[str, str]]:
    """A canonical input as titled texts; what is not of a known shape, as JSON."""
    if input_text is None:
        return
    try:
        asked = json.loads(input_text)
    except ValueError:
        yield "prompt", input_text
        return
    if isinstance(asked, dict) and isinstance(asked.get("messages"), list):
        for message in asked["messages"]:
            content = message.get("content")
            yield f"prompt · {message.get('role')}", content if isinstance(content, str) else _json(content)
    elif isinstance(asked, dict) and isinstance(asked.get("prompt"), str):
        yield "prompt", asked["prompt"]
    else:
        yield "prompt", _json(asked)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)


def _logprobs(text: str) -> Table | Text:
    try:
        positions = json.loads(text)
        rows = [(position, position.get("top_logprobs") or [position]) for position in positions]
        shown = [
            (at["token"], [(top["token"], math.exp(top["logprob"])) for top in tops]) for at, tops in rows
        ]
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return _text(text, GLANCE)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("position", justify="right")
    table.add_column("token")
    table.add_column("probabilities", overflow="fold")
    for number, (token, tops) in enumerate(shown[:POSITIONS]):
        likely = sorted(tops, key=lambda pair: -pair[1])[:ALTERNATIVES]
        told = "   ".join(f"{_token(name)} {100 * share:.2f} %" for name, share in likely)
        table.add_row(str(number), Text(_token(token), "bold"), Text(told))
    if len(shown) > POSITIONS:
        table.caption = f"{len(shown) - POSITIONS:,} positions more"
        table.caption_justify = "left"
    return table


def _token(token: str) -> str:
    return f"'{literal(token)}'"


def _table(shown: Console, title: str, rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    """Rows under a title; columns in which nothing stands are left out."""
    if not rows:
        return
    _heading(shown, f"{title} ({len(rows):,})" if len(rows) > 1 else title)
    names = [name for name in names if any(row[name] is not None for row in rows)]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in names:
        table.add_column(name, overflow="fold")
    for row in rows[:LISTED]:
        table.add_row(*[_line("" if row[name] is None else str(row[name])[:GLANCE]) for name in names])
    shown.print(table)
    if len(rows) > LISTED:
        shown.print(_line(f"{len(rows) - LISTED:,} more", "dim"))


def _heading(shown: Console, title: str) -> None:
    shown.print()
    shown.print(Rule(_line(title), align="left", style="dim"))


def _block(shown: Console, title: str, body: str, style: str = "") -> None:
    _heading(shown, title)
    shown.print(_text(body, style=style), soft_wrap=True)


def _line(text: str, style: str = "") -> Text:
    return Text(literal(text), style)


def _text(text: str, room: int | None = None, style: str = "") -> Text:
    """Model text: its line breaks and tabs are kept, all else that is no character is escaped."""
    cut = text if room is None or len(text) <= room else f"{text[:room]}…"
    lines = ["\t".join(map(literal, line.split("\t"))) for line in cut.split("\n")]
    return Text("\n".join(lines), style)
