"""The dataset card of a shared store: what is in it, under which terms, how to fetch it. Text only."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from judgebench import __version__
from judgebench.request import Descriptor

# A card without this line is somebody's own and is left alone.
MARK = "<!-- `judgebench push` writes this card anew; remove this line to keep one of your own. -->"
# The hub's viewer shows a table for each; a name that begins with the role sorts them together.
_KINDS = ("answers", "subjects")


@dataclass
class Entry:
    """One descriptor's rows in a repository."""

    role: str
    descriptor: Descriptor
    answers: int = 0
    uses: Counter[str] = field(default_factory=Counter)  # benchmark -> rows
    models: set[str] = field(default_factory=set)  # whose answers were judged; of completions, whose they are

    def note(self, benchmark: str, models: Sequence[str | None], count: int) -> None:
        """Count rows of a benchmark about these models."""
        self.uses[benchmark] += count
        self.models.update(name for name in models if name is not None)


@dataclass(frozen=True)
class Licence:
    """What a benchmark's conf says. `redistribute`: null where its publisher does not say."""

    text: str | None
    redistribute: bool | None


def card(repo: str, entries: Sequence[Entry], licences: Mapping[str, Licence]) -> str:
    """README.md with the viewer's front matter; the same entries give the same text."""
    entries = sorted(
        entries, key=lambda e: (e.role, e.descriptor.provider, e.descriptor.model, e.descriptor.hash)
    )
    benchmarks = sorted({name for entry in entries for name in entry.uses})
    lines = [
        *_front_matter(entries),
        "",
        MARK,
        "",
        f"# {repo.partition('/')[2]}",
        "",
        f"Answers of language models and of judges, stored once and shared by judgebench {__version__}.",
        "",
        "```",
        f"judgebench fetch repo={repo}",
        "judgebench run … store.mode=only    # the same tables from these answers, without a call",
        "```",
        "",
        "## What is in it",
        "",
        "| role | who answered | settings | answers | rows | benchmarks |",
        "|---|---|---|---|---|---|",
        *(_row(entry) for entry in entries),
        "",
    ]
    judged = sorted({name for entry in entries if entry.role == "judgements" for name in entry.models})
    if judged:
        lines += [f"Models judged: {', '.join(map(_cell, judged))}.", ""]
    lines += [
        "`answers` are raw replies, one a row, by the hash of the input; `subjects` tell what each was used "
        "for, one or more a reply; `tombstones` what was deleted and does not come back. Files are named by "
        "their content and only ever added.",
        "",
        "## Licences",
        "",
        "Answers quote the instructions that they answer, and judgements quote answers. Each part keeps the "
        "terms of where it came from: the benchmark's, and those of the provider of each model.",
        "",
        *(f"- {_cell(name)}: {_terms(licences.get(name))}" for name in benchmarks),
    ]
    return "\n".join(lines) + "\n"


def _front_matter(entries: Sequence[Entry]) -> list[str]:
    lines = ["---", "license: other", "license_name: see-card", "tags:", "- judgebench", "- llm-as-a-judge"]
    roles = sorted({entry.role for entry in entries})
    lines += ["configs:"] if roles else []
    for role in roles:
        for kind in _KINDS:
            lines += [
                f"- config_name: {role}-{kind}",
                "  data_files:",
                "  - split: train",
                f"    path: {role}/*/*/*/{kind}-*.parquet",
            ]
    return [*lines, "---"]


def _row(entry: Entry) -> str:
    who = f"{entry.descriptor.provider}/{entry.descriptor.model}"
    settings = json.dumps(dict(entry.descriptor.settings), ensure_ascii=False, sort_keys=True)
    if len(settings) > 120:
        settings = f"{settings[:117]}…"
    benchmarks = ", ".join(sorted(entry.uses))
    cells = [
        entry.role,
        f"{_cell(who)} ({entry.descriptor.hash[:8]})",
        f"`{_cell(settings).replace('`', ' ')}`" if entry.descriptor.settings else "",
        f"{entry.answers:,}",
        f"{entry.uses.total():,}",
        _cell(benchmarks),
    ]
    return f"| {' | '.join(cells)} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _terms(licence: Licence | None) -> str:
    if licence is None:
        return "not one of judgebench's own; ask whoever shared it."
    stated = licence.text or "its publisher states none"
    if licence.redistribute is False:
        return f"{stated}. **Its terms do not allow passing it on.**"
    return f"{stated}." if licence.redistribute else f"{stated}; whether it may be passed on is not stated."
