"""Tables from verdicts: of one job, of many runs (`rank`), of a sweep."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from judgebench import ranking, report
from judgebench.errors import ConfigError, DataError
from judgebench.folder import COMPLETE, Job, is_job
from judgebench.progress import say
from judgebench.settings import Seeds
from judgebench.tables import LEADERBOARD, METRICS, VERDICTS, read_parquet, write_parquet
from judgebench.verdict import battles

log = logging.getLogger("judgebench")


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
class Rank:
    """`judgebench rank RUN …`: one table from the verdict files of many runs, de-duplicated by key."""

    runs: Sequence[str]
    ranking: Mapping[str, Any]
    seed: Seeds
    output_dir: str | None = None

    def __call__(self, job: Job) -> int:
        """Read, rank, show; writes tables only into an `output_dir`."""
        verdicts = read_verdicts(self.runs)
        tables = Tables(verdicts, self.ranking, self.seed.get("bootstrap") or 0)
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
        if not found and is_job(run):
            log.warning("%s has no verdicts (a run that failed or was stopped): passed over.", run)
        elif not found:
            raise DataError(f"{str(run)!r} holds no verdicts.parquet: give the folders of runs or sweeps.")
        files.update(dict.fromkeys(found))
    if not files:
        raise DataError("None of these runs has verdicts: all failed or were stopped before they had any.")
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
    how = {name: value for name, value in (first.get("ranking") or {}).items() if name != "_target_"}
    tables = Tables(verdicts, how, int((first.get("seed") or {}).get("bootstrap") or 0))
    tables.write(out, {})
    report.terminal(tables.leaderboard)
    say(f"tables  {out}/leaderboard.parquet, metrics.parquet ({len(jobs)} job{'s' * (len(jobs) != 1)})")
