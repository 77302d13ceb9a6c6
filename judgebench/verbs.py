"""The verbs that make tables: `run` (one job, one folder) and `rank` (the verdicts of many runs)."""

from __future__ import annotations

import json
import logging
import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import pandas as pd

from judgebench import loop, ranking, report
from judgebench.errors import ConfigError, DataError, Interrupted
from judgebench.experiment import Experiment, Filled, Prepared, fill_all
from judgebench.folder import COMPLETE, MISSING, Job, write_json
from judgebench.hints import strong_judge
from judgebench.progress import told, watch
from judgebench.tables import (
    COMPLETIONS,
    JUDGE_CHECK,
    LEADERBOARD,
    METRICS,
    VERDICTS,
    read_parquet,
    write_parquet,
)
from judgebench.tally import Tally
from judgebench.usage import choices as known_choices
from judgebench.usage import conf_dir
from judgebench.verdict import battles, paired_scores

log = logging.getLogger("judgebench")

PACKAGES = ("judgebench", "litellm", "aiohttp", "hydra-core", "pandas", "pyarrow", "numpy", "xllamacpp")


class Tables:
    """The frames of a job, from its verdicts."""

    def __init__(self, verdicts: pd.DataFrame, options: Mapping[str, Any], seed: int) -> None:
        self.verdicts = verdicts
        self.battles = battles(verdicts)
        how = {**options, "seed": seed}
        self.leaderboard = ranking.leaderboard(self.battles, **how)
        self.metrics = ranking.metrics(self.battles, **how)

    def write(self, folder: Path, provenance: Mapping[str, str]) -> None:
        """`leaderboard.parquet` and `metrics.parquet`, whole or not at all."""
        write_parquet(self.leaderboard, folder / "leaderboard.parquet", LEADERBOARD, provenance)
        write_parquet(self.metrics, folder / "metrics.parquet", METRICS, provenance)


@dataclass
class Run(Experiment):
    """`judgebench run`: complete, judge, read, rank; one folder of files.

    `result` after the call: the `Result` with the frames, for Python and notebooks.
    """

    def __call__(self, job: Job) -> int:
        """Run the job; 0, or 3 where rows are missing."""
        assert job.folder is not None
        began = time.monotonic()
        prepared = self.prepare()
        record = _record(job, prepared)
        say(f"store   {self.store_root}")
        say(f"folder  {job.folder}")
        filled: Filled | None = None
        try:
            filled = loop.wait(lambda stop: fill_all(prepared, stop, watch))
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
        return status


@dataclass
class Result:
    """What a run came to: its folder and frames."""

    folder: Path
    verdicts: pd.DataFrame
    leaderboard: pd.DataFrame
    metrics: pd.DataFrame
    judge_check: pd.DataFrame | None


@dataclass
class Rank:
    """`judgebench rank RUN …`: one table from the verdict files of many runs, de-duplicated by key."""

    runs: Sequence[str]
    ranking: Mapping[str, Any]
    seed: Mapping[str, Any]
    output_dir: str | None = None

    def __call__(self, job: Job) -> int:
        """Read, rank, show; writes tables only into an `output_dir`."""
        verdicts = read_verdicts(self.runs)
        tables = Tables(verdicts, self.ranking, int(self.seed.get("bootstrap") or 0))
        self.result = tables
        if job.folder is not None:
            tables.write(job.folder, {})
            report.write_text(job.folder / "leaderboard.md", report.markdown(tables.leaderboard))
            report.write_text(job.folder / "leaderboard.csv", report.csv(tables.leaderboard))
        report.terminal(tables.leaderboard)
        return COMPLETE


def read_verdicts(runs: Sequence[str | Path]) -> pd.DataFrame:
    """The verdicts of runs and sweeps, each once.

    Raises:
        DataError: no verdict file, one label with two models behind it, or two reader versions.
    """
    if not runs:
        raise ConfigError("Nothing to rank: name folders of runs or sweeps, as in `judgebench rank runs/*`.")
    files: dict[Path, None] = {}
    for run in map(Path, runs):
        found = [run] if run.is_file() else sorted(run.rglob("verdicts.parquet"))
        if not found:
            raise DataError(f"{str(run)!r} holds no verdicts.parquet: give the folders of runs or sweeps.")
        files.update(dict.fromkeys(found))
    frames = [read_parquet(file, VERDICTS) for file in files]
    verdicts: pd.DataFrame = pd.concat(frames, ignore_index=True)
    verdicts = verdicts.drop_duplicates("verdict_key", ignore_index=True)
    for keys, what in ((["benchmark", "protocol", "judge"], "reader"), (["judge"], "judge_descriptor")):
        many = verdicts.groupby(keys)[what].nunique()
        if (many > 1).any():
            where = many[many > 1].index[0]
            kinds = sorted(verdicts.set_index(keys).loc[[where], what].unique())
            raise DataError(
                f"{where if isinstance(where, str) else ', '.join(where)}: verdicts of several "
                f"{what.replace('_', ' ')}s ({', '.join(kinds)}) do not belong into one table. "
                "Rank them apart, or give one of the models another label."
            )
    _refuse_two_models(verdicts)
    return verdicts


def _refuse_two_models(verdicts: pd.DataFrame) -> None:
    """One label is one model: its answers to a benchmark have one descriptor, whatever run they are of."""
    slots = [
        pd.DataFrame(
            {
                "benchmark": verdicts["benchmark"],
                "model": verdicts[model],
                "descriptor": verdicts[answer].str.partition(":")[0],
            }
        )
        for model, answer in (("model_a", "answer_a"), ("model_b", "answer_b"))
    ]
    seen = pd.concat(slots).dropna().drop_duplicates()
    several = seen[seen.duplicated(["benchmark", "model"], keep=False)]
    if len(several):
        benchmark, model = several.iloc[0][["benchmark", "model"]]
        kinds = sorted(several[several["benchmark"].eq(benchmark) & several["model"].eq(model)]["descriptor"])
        raise DataError(
            f"{model!r} on {benchmark!r} stands for {len(kinds)} different models or files of answers "
            f"(descriptors {', '.join(kinds)}): they do not belong into one row. Rank these runs apart, or "
            "run one of them with a label of its own (candidate.label=…, benchmark.name=…)."
        )


def combine_sweep(out: Path) -> None:
    """The tables of a whole sweep, from the jobs that have verdicts."""
    jobs = [
        job for job in sorted(out.iterdir()) if job.name.isdigit() and (job / "verdicts.parquet").is_file()
    ]
    if not jobs:
        return
    first = json.loads((jobs[0] / "run.json").read_text(encoding="utf-8"))["config"]
    verdicts = read_verdicts(jobs)
    tables = Tables(
        verdicts, first.get("ranking") or {}, int((first.get("seed") or {}).get("bootstrap") or 0)
    )
    tables.write(out, {})
    report.terminal(tables.leaderboard)
    say(f"tables  {out}/leaderboard.parquet, metrics.parquet ({len(jobs)} jobs)")


def say(text: str) -> None:
    """Tell the user on stdout; the log file keeps it too."""
    print(text, flush=True)
    log.debug("%s", text)


def judge_check_line(check: pd.DataFrame) -> str:
    """How often the judge was right where the better answer is known, a line a judge."""
    whole = check[check["category"].isna()]
    return "\n".join(
        f"Judge check: {row['judge']} is right on {row['accuracy']:.1f} % of {row['n']} pairs with a known "
        f"better answer [{row['low']:.1f}, {row['high']:.1f}] (chance: 50 %); it preferred the answer shown "
        f"first in {row['first_slot_share']:.0%} of its readings."
        if row["n"]
        else f"Judge check: {row['judge']} gave no verdict on the pairs with a known better answer."
        for row in whole.to_dict("records")
    )


# --- the files of a run ------------------------------------------------------------------------------


def _write(folder: Path, prepared: Prepared, filled: Filled) -> tuple[Any, ...]:
    experiment = prepared.experiment
    provenance = _provenance(prepared)
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
    tables = Tables(verdicts, experiment.ranking, int(experiment.seed.get("bootstrap") or 0))
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


def _provenance(prepared: Prepared) -> dict[str, str]:
    """What the tables were made from, by content: equal for equal runs, wherever and whenever."""
    return {
        "benchmark": prepared.loaded.benchmark.name,
        "instructions": prepared.loaded.content_hash(),
        "whole": str(prepared.loaded.whole).lower(),
        "protocol": prepared.experiment.protocol.name,
        "reader": prepared.experiment.protocol.reader.version,
        "templates": ",".join(sorted({seat.template.hash for seat in prepared.judgements.seats})),
        "judges": ",".join(f"{seat.name}={seat.descriptor.hash}" for seat in prepared.judgements.seats),
        "models": ",".join(f"{side.label}={side.descriptor.hash}" for side in prepared.sides),
    }


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
        "provenance": _provenance(prepared),
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
            facts = {key: value for key, value in vars(tally).items() if key != "waiting"}
            spent[name] = facts
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
    if filled.unwritten_subjects:
        print(
            f"The store is read-only: what {filled.unwritten_subjects} stored answers were used for "
            "could not be noted.",
            file=sys.stderr,
        )
    for paragraph in _silent(prepared):
        log.warning("%s", paragraph)
    say(f"{record['wall_s']:.1f} s; files in {result.folder}")
