"""`judgebench run`: one job, one folder of files."""

from __future__ import annotations

import json
import logging
import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import pandas as pd

from judgebench import loop, ranking, report
from judgebench.budget import Budget, budget_of
from judgebench.combine import Tables
from judgebench.errors import ConfigError, DataError, Interrupted, choices
from judgebench.experiment import Experiment, Filled, Prepared, fill_all
from judgebench.explain import hits_told, mixed
from judgebench.folder import COMPLETE, MISSING, Job, write_json
from judgebench.hints import strong_judge
from judgebench.progress import say, told, watch
from judgebench.store.layout import ROLES
from judgebench.tables import (
    COMPLETIONS,
    JUDGE_CHECK,
    VERDICTS,
    write_parquet,
)
from judgebench.tally import Tally
from judgebench.usage import choices as known_choices
from judgebench.usage import conf_dir
from judgebench.verdict import battles, paired_scores

log = logging.getLogger("judgebench")

MIXED = ("report", "refuse", "ignore")
PACKAGES = ("judgebench", "litellm", "aiohttp", "hydra-core", "pandas", "pyarrow", "numpy", "xllamacpp")


@dataclass
class Run(Experiment):
    """`judgebench run`: complete, judge, read, rank; one folder of files.

    `result` after the call: the `Result` with the frames, for Python and notebooks.
    """

    def __call__(self, job: Job) -> int:
        """Run the job; 0, or 3 where rows are missing."""
        assert job.folder is not None
        began = time.monotonic()
        sweep = None if job.number is None else str(job.folder.absolute().parent)
        budget = budget_of(self.budget or {}, sweep)
        prepared = self.prepare()
        record = _record(job, prepared)
        say(f"store   {self.store_root}")
        say(f"folder  {job.folder}")
        filled: Filled | None = None
        try:
            filled = loop.wait(lambda stop: fill_all(prepared, stop, watch, budget))
            _refuse_mixed(prepared, filled)
            self.result = Result(job.folder, *_write(job.folder, prepared, filled))
            status = _status(prepared)
            record["status"] = status
        except Interrupted as interrupted:
            record["status"] = "interrupted"
            raise Interrupted(f"{interrupted} Run the same command again to go on.") from None
        except BaseException as error:
            record["status"] = f"failed: {type(error).__name__}"
            raise
        finally:
            record |= _spent(prepared, filled, time.monotonic() - began)
            write_json(job.folder / "run.json", record)
        _tell(prepared, filled, self.result, record)
        _tell_budget(budget, filled)
        return status


@dataclass
class Result:
    """What a run came to: its folder and frames."""

    folder: Path
    verdicts: pd.DataFrame
    leaderboard: pd.DataFrame
    metrics: pd.DataFrame
    judge_check: pd.DataFrame | None


def judge_check_line(check: pd.DataFrame) -> str:
    """How often the judge was right where the better answer is known, a line a judge."""
    whole = check[check["category"].isna()]
    return "\n".join(
        f"Judge check: {row['judge']} is right on {row['accuracy']:.1f} % of {row['n']} pairs with a known "
        f"better answer [{row['low']:.1f}, {row['high']:.1f}] (chance: 50 %); it preferred the answer shown "
        f"first in {100 * row['first_slot_share']:.0f} % of its readings."
        if row["n"]
        else f"Judge check: {row['judge']} gave no verdict on the pairs with a known better answer."
        for row in whole.to_dict("records")
    )


# --- the files of a run ------------------------------------------------------------------------------


def _write(folder: Path, prepared: Prepared, filled: Filled) -> tuple[Any, ...]:
    experiment = prepared.experiment
    provenance = prepared.provenance
    rows = [row for side in prepared.sides for row in side.rows()]
    columns = [field.name for field in COMPLETIONS]
    write_parquet(
        pd.DataFrame(rows, columns=columns), folder / "completions.parquet", COMPLETIONS, provenance
    )
    everything = prepared.judgements.verdicts()
    main, *checks = prepared.matches
    mine = everything["candidate"].eq(main.candidate.label)
    if main.baseline is not None:
        mine &= everything["baseline"].eq(main.baseline.label)
    verdicts = everything[mine].reset_index(drop=True)
    # What was paid for is on disk before any table is computed: a fault there loses nothing.
    write_parquet(verdicts, folder / "verdicts.parquet", VERDICTS, provenance)
    if checks:
        rest = everything[~mine].reset_index(drop=True)
        write_parquet(rest, folder / "check_verdicts.parquet", VERDICTS, provenance)
    tables = Tables(verdicts, experiment.ranking, experiment.bootstrap_seed)
    tables.write(folder, provenance)
    check = _judge_check(prepared, everything)
    if check is not None:
        write_parquet(check, folder / "judge_check.parquet", JUDGE_CHECK, provenance)
    return verdicts, tables.leaderboard, tables.metrics, check


def _judge_check(prepared: Prepared, verdicts: pd.DataFrame) -> pd.DataFrame | None:
    """How often the judge is right where the better answer is known; null where nothing is known."""
    decided = [truth for truth in prepared.truths if truth.preference in (0.0, 1.0)]
    if not decided:
        return None
    labels = pd.DataFrame(
        {
            "instruction_id": [truth.instruction_id for truth in decided],
            "candidate": [truth.better for truth in decided],
            "baseline": [truth.worse for truth in decided],
            "truth": [truth.preference for truth in decided],
        }
    )
    fought = battles(verdicts)
    if prepared.experiment.protocol.mode == "pointwise":
        fought = paired_scores(fought, labels[["candidate", "baseline"]].drop_duplicates())
    known = set(zip(labels["candidate"], labels["baseline"], strict=True))
    pairs = pd.Series(list(zip(fought["candidate"], fought["baseline"], strict=True)), index=fought.index)
    fought = fought[pairs.isin(known)]
    return ranking.agreement(fought, labels) if len(fought) else None


def _record(job: Job, prepared: Prepared) -> dict[str, Any]:
    """The part of run.json that is known before the run."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "schema": "run/1",
        "verb": job.verb,
        "overrides": list(job.overrides),
        "config": job.config,
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "packages": versions,
        "git_commit": _git_commit(),
        "provenance": prepared.provenance,
        "sources": [
            {"url": source.url, "revision": source.revision, "sha256": source.sha256}
            for source in prepared.loaded.sources
        ],
        "descriptors": {
            **{f"{side.role}:{side.label}": json.loads(side.descriptor.text) for side in prepared.sides},
            **{f"judge:{s.name}": json.loads(s.descriptor.text) for s in prepared.judgements.seats},
        },
    }


def _spent(prepared: Prepared, filled: Filled | None, wall_s: float) -> dict[str, Any]:
    spent: dict[str, Any] = {"wall_s": round(wall_s, 3)}
    if filled is not None:
        spent["run_id"] = filled.run_id
        for name in ("completions", "judgements"):
            tally: Tally = getattr(filled, name)
            spent[name] = tally.facts()
    return spent


def _git_commit() -> str | None:
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def _status(prepared: Prepared) -> int:
    """3 where something that was asked for is missing; what a benchmark does not ship never was."""
    missing = [talk.reason for side in prepared.sides for talk in side.conversations if not talk.complete]
    failed = [reason for reason in missing if reason != "not_shipped"]
    columns = prepared.judgements.columns
    unasked = [
        reason
        for reason, source, key in zip(
            columns["reason"], columns["origin"], columns["input_hash"], strict=True
        )
        if key is not None and source is None and reason is not None
    ]
    return MISSING if failed or unasked or _silent(prepared) else COMPLETE


def _refuse_mixed(prepared: Prepared, filled: Filled) -> None:
    """Under `store.mixed=refuse`, no table of answers that several models gave under one name."""
    how = prepared.experiment.store.get("mixed") or "report"
    if how not in MIXED:
        raise ConfigError(f"store.mixed: {choices(how, MIXED)}")
    told = [*mixed({**filled.completions.served, **filled.judgements.served}, prepared.names)]
    if how == "refuse" and told:
        raise DataError(
            f"{'. '.join(told)}. No table was written; all answers are stored. Ask the odd ones anew "
            "(judgebench refresh where.served_model=…), pin the model's name, or say store.mixed=report."
        )


def _silent(prepared: Prepared) -> list[str]:
    """A paragraph for each judge that replied, and of whose replies none could be read."""
    columns = prepared.judgements.columns
    told_of = []
    for seat in prepared.judgements.seats:
        read = zip(columns["judge"], columns["origin"], columns["reason"], strict=True)
        reasons = Counter(reason for name, origin, reason in read if name == seat.name and origin is not None)
        if reasons and None not in reasons:
            why = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
            told_of.append(
                f"{seat.name!r} gave no verdict: none of {reasons.total()} replies could be read ({why}). "
                "They are stored: reading them another way costs no call. Take a judge that keeps to the "
                f"protocol {prepared.experiment.protocol.name!r} (judge=NAME), or another protocol: "
                f"{', '.join(known_choices(conf_dir(), 'protocol'))}."
            )
    return told_of


def _tell(prepared: Prepared, filled: Filled, result: Result, record: Mapping[str, Any]) -> None:
    report.terminal(result.leaderboard)
    if result.judge_check is not None:
        say(judge_check_line(result.judge_check))
    if any(seat.descriptor.provider == "llamacpp" for seat in prepared.judgements.seats):
        say("The embedded judge is a small base model: good for trying things out, not for claims.")
        say(strong_judge(conf_dir()))
    if not prepared.loaded.whole:
        say(
            f"Part of the set: {len(prepared.loaded.instructions)} of {len(prepared.loaded.everything)} "
            "instructions; not comparable with official numbers."
        )
    for stage in ("completions", "judgements"):
        tally: Tally = getattr(filled, stage)
        reasons = ", ".join(f"{count} {reason}" for reason, count in tally.failures.most_common())
        say(f"{stage:<12} {told(tally)}{': ' + reasons if reasons else ''}")
    _explain(prepared, filled)
    if filled.unwritten_subjects:
        print(
            f"What {filled.unwritten_subjects:,} stored answers were used for was not noted: they lie where "
            "this run may not write (a read-only root, or store.also).",
            file=sys.stderr,
        )
    for paragraph in _silent(prepared):
        log.warning("%s", paragraph)
    say(f"{record['wall_s']:.1f} s; files in {result.folder}")


def _tell_budget(budget: Budget, filled: Filled) -> None:
    if not budget:
        return
    say(budget.told())
    left = sum(getattr(filled, stage).failures["over_budget"] for stage in ROLES)
    if left:
        log.warning(
            "%s ran out: %s requests were not asked. All answers are stored; run the same command with a "
            "larger budget to go on.",
            budget.over,
            f"{left:,}",
        )


def _explain(prepared: Prepared, filled: Filled) -> None:
    """Why rows were asked, where stored ones came from, and what changed behind a name."""
    everything, names = bool(prepared.experiment.explain), prepared.names
    for stage in ROLES:
        tally: Tally = getattr(filled, stage)
        for line in tally.missed.told(stage, names, everything=everything):
            say(line)
        for line in tally.changed:
            log.warning("%s", line)
    for role, sources in filled.sources.items():
        if everything or not getattr(filled, role).calls:
            for line in hits_told(role, sources, names):
                say(line)
    if prepared.experiment.store.get("mixed") != "ignore":
        for line in mixed({**filled.completions.served, **filled.judgements.served}, names):
            log.warning("%s.", line)
