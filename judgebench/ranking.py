"""Battles to numbers: leaderboards, metrics by category, and how far a judge agrees with known truth.

Pure functions, frames in and frames out. A battle is one row per (benchmark, protocol, judge,
candidate, baseline, instruction, turn), orientation undone, samples and orders collapsed. What has no
verdict is counted and left out of every mean: it is never a tie, a zero or a loss. The estimator and
its intervals are in `judgebench.estimate`. This file does not know judges, readers, orientations or files.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.arrays import IntegerArray

from judgebench.errors import DataError
from judgebench.estimate import Floats, Ints, Level, Measure, Method, Rows, estimate, means, wilson

# Reasons that lie with the answer that was to be judged; all others are failures of the judge.
ANSWER_SIDE = frozenset({"not_shipped"})
ANSWER_PREFIX = "answer_"

SIDES = ("benchmark", "protocol", "judge", "candidate", "baseline")
JUDGES = ("benchmark", "protocol", "judge")
ITEM = ("cluster_id", *SIDES, "instruction_id", "turn")
FACTS = tuple(
    "category preference score reason consistent candidate_chars candidate_truncated reader".split()
)
BATTLE = (*ITEM, *FACTS)


def options(
    confidence: float = 0.95, interval: str = "analytic", resamples: int = 1000, *, seed: int = 0
) -> dict[str, Any]:
    """The arguments of `leaderboard` and `metrics`, checked: before anything is paid for, not after.

    Raises:
        ConfigError: an argument that cannot be meant.
    """
    Method(confidence, interval, resamples, seed)
    return {"confidence": confidence, "interval": interval, "resamples": resamples}


def leaderboard(
    battles: pd.DataFrame,
    *,
    confidence: float = 0.95,
    interval: str = "analytic",
    resamples: int = 1000,
    seed: int = 0,
) -> pd.DataFrame:
    """One row per (benchmark, protocol, judge, model, baseline), best first within each benchmark,
    protocol and judge.

    `win_rate`, `discrete_win_rate` (preferences rounded to win, tie, loss), `low`, `high` in percent, a
    tie being half a win; `standard_error` in percent points; `mean_score` and its like in units of the
    score, null for pairwise, as the others are for pointwise. `n_asked` counts battles, `n_total` those
    with a verdict, `coverage` is their ratio. `consistency` is the share of battles whose two orders
    name the same winner, among those where both were read. `judge_failure_share`, `refusal_share` and
    `truncation_share` (the candidate's answer was cut) are shares of `n_asked`, 0 to 1. `avg_length` is
    the whole part of characters / n_asked, a missing answer counting 0, as AlpacaEval has it.
    `confidence` and `interval` say what low and high are.

    Args:
        battles: one row a battle (columns `BATTLE`, dtypes as `judgebench.verdict` writes them).
        confidence: of the intervals, between 0 and 1.
        interval: `analytic` or `bootstrap`; the rules are in the docstring of this module.
        resamples: of the bootstrap.
        seed: of the bootstrap.

    Raises:
        DataError: a column is missing, a key is null, a battle occurs twice, a preference is not in [0, 1].
        ConfigError: an argument that cannot be meant.
    """
    how = Method(confidence, interval, resamples, seed)
    rows = _arrange(battles, SIDES)
    level, measures = _whole(rows), _measures(rows)
    against = measures["win_rate"].applies
    win = estimate(rows, measures["win_rate"], level, how)
    score = estimate(rows, measures["mean_score"], level, how)
    share = {name: means(measure, level) for name, measure in measures.items()}
    preference = _floats(rows.frame["preference"])

    def count(outcome: NDArray[np.bool_]) -> IntegerArray:
        return IntegerArray(np.bincount(rows.group[outcome], minlength=len(against)), ~against)

    table = rows.groups.rename(columns={"candidate": "model"})
    table = table[["model", "benchmark", "protocol", "judge", "baseline"]].assign(
        reader=_readers(rows),
        win_rate=win.value,
        low=win.low,
        high=win.high,
        standard_error=win.standard_error,
        n_wins=count(preference > 0.5),
        n_losses=count(preference < 0.5),
        n_draws=count(preference == 0.5),
        n_total=np.where(against, win.n, score.n),
        n_asked=np.bincount(rows.group, minlength=len(against)),
        coverage=share["coverage"],
        discrete_win_rate=share["discrete_win_rate"],
        mean_score=score.value,
        score_low=score.low,
        score_high=score.high,
        score_standard_error=score.standard_error,
        consistency=share["consistency"],
        judge_failure_share=share["judge_failure_share"],
        refusal_share=share["refusal_share"],
        truncation_share=share["truncation_share"],
        avg_length=np.floor(share["avg_length"]).astype(np.int64),
        n_clusters=np.where(against, win.clusters, score.clusters),
        confidence=how.confidence,
        interval=how.interval,
    )
    worst_last = -np.nan_to_num(np.where(against, win.value, score.value), nan=-np.inf)
    place = table.groupby(list(JUDGES)).ngroup().to_numpy()
    # The groups are sorted by name already and the sort is stable, so equal values stay in that order.
    return table.iloc[np.lexsort((worst_last, place))].reset_index(drop=True)


def metrics(
    battles: pd.DataFrame,
    *,
    confidence: float = 0.95,
    interval: str = "analytic",
    resamples: int = 1000,
    seed: int = 0,
) -> pd.DataFrame:
    """One row a number: benchmark, protocol, judge, model, baseline, metric, category, value, low, high,
    standard_error, n, coverage.

    `category` is null for the number over all battles. The metrics are those of `leaderboard`, in the same
    units (percent for win rates, shares 0 to 1 otherwise); `n` counts the rows that went into the mean,
    `coverage` is the share of battles with a verdict. `macro_*` is the mean of the category means with
    equal weights, over the battles that have a category; it is null while a category has no verdict at all,
    since leaving one out would be another question. Arguments and errors as for `leaderboard`.
    """
    how = Method(confidence, interval, resamples, seed)
    rows = _arrange(battles, SIDES)
    measures = _measures(rows)
    categories, names = _categories(rows)
    levels = [("", _whole(rows), tuple(measures)), ("", categories, tuple(measures))]
    levels.append(("macro_", _macro(categories), ("win_rate", "discrete_win_rate", "mean_score")))
    blocks = []
    for prefix, level, wanted in levels:
        outputs = level.output[level.cell[level.cell >= 0]]
        verdicts = np.bincount(outputs, measures["coverage"].values[level.cell >= 0], len(level.group))
        covered = verdicts / np.bincount(outputs, minlength=len(level.group))
        for rank, name in enumerate(wanted):
            found = estimate(rows, measures[name], level, how)
            block = pd.DataFrame(
                {
                    "group": level.group,
                    "rank": rank + len(measures) * bool(prefix),
                    "code": level.category,
                    "metric": prefix + name,
                    "value": np.floor(found.value) if name == "avg_length" else found.value,
                    "low": found.low,
                    "high": found.high,
                    "standard_error": found.standard_error,
                    "n": found.n,
                    "coverage": covered,
                }
            )
            blocks.append(block[measures[name].applies[level.group]])
    table = pd.concat(blocks, ignore_index=True).sort_values(["group", "rank", "code"], ignore_index=True)
    table.insert(4, "category", _labels(names, table["code"]))
    keys = rows.groups.rename(columns={"candidate": "model"}).take(table["group"].to_numpy())
    return pd.concat([keys.reset_index(drop=True), table.drop(columns=["group", "rank", "code"])], axis=1)


def agreement(battles: pd.DataFrame, labels: pd.DataFrame, *, confidence: float = 0.95) -> pd.DataFrame:
    """How often a judge is right on pairs whose better answer is known, per benchmark, protocol, judge
    and category (null = all).

    A preference above one half names the candidate, below it the baseline; exactly one half is half right.
    Battles without a label are left out; those without a verdict lower `coverage` and are in no other
    number (benchmarks that count them, and ties, as wrong take n_correct / n_asked). The interval is
    Wilson's where every outcome is right or wrong and every cluster has one row, else the clustered one of
    this module.

    Args:
        battles: as for `leaderboard`; an optional column `first_slot` (float64, 0 to 1, NaN unknown) tells
            which share of a battle's readings preferred the answer shown first.
        labels: `truth` float64 (1.0 candidate better, 0.0 baseline better) by `instruction_id`, and by
            benchmark, candidate, baseline or turn where it has such columns.
        confidence: of the intervals.

    Returns:
        benchmark, protocol, judge, category, accuracy, low, high, standard_error (percent), n, n_asked,
        coverage, n_correct, n_ties, n_wrong, n_clusters, first_slot_share (null if not given).

    Raises:
        DataError: no label fits a battle, two labels for one, or a truth that is neither 0 nor 1.
    """
    how = Method(confidence, "analytic", 1, 0)
    rows = _arrange(_labelled(battles, labels), JUDGES)
    preference, truth = _floats(rows.frame["preference"]), _floats(rows.frame["truth"])
    right = _sign(preference) * truth + (1 - _sign(preference)) * (1 - truth)
    slot = _floats(rows.frame["first_slot"]) if "first_slot" in rows.frame else np.full(len(right), np.nan)
    by_category, names = _categories(rows)
    blocks = []
    for level in (_whole(rows), by_category):
        everywhere = np.ones(len(rows.groups), dtype=bool)
        found = estimate(rows, Measure(right, 100, everywhere), level, how)
        outcome = {
            f"n_{name}": np.bincount(level.cell[(level.cell >= 0) & (right == x)], minlength=len(level.group))
            for name, x in (("correct", 1.0), ("ties", 0.5), ("wrong", 0.0))
        }
        single = (found.n == found.clusters) & (outcome["n_ties"] == 0)
        low, high = wilson(found.value / 100, found.clusters, confidence)
        asked = np.bincount(level.cell[level.cell >= 0], minlength=len(level.group))
        block = (
            rows.groups.take(level.group)
            .reset_index(drop=True)
            .assign(
                category=_labels(names, level.category),
                accuracy=found.value,
                low=np.where(single, 100 * low, found.low),
                high=np.where(single, 100 * high, found.high),
                standard_error=found.standard_error,
                n=found.n,
                n_asked=asked,
                coverage=found.n / asked,
                **outcome,
                n_clusters=found.clusters,
                first_slot_share=means(Measure(slot, 1, everywhere), level),
            )
        )
        blocks.append(block)
    return pd.concat(blocks, ignore_index=True)


def _arrange(battles: pd.DataFrame, by: Sequence[str]) -> Rows:
    """Battles sorted by their whole identity, `by` first, and checked."""
    if absent := [name for name in BATTLE if name not in battles]:
        raise DataError(f"battles lack the column {absent[0]!r} (needed: {', '.join(BATTLE)}).")
    codes = {name: _codes(battles[name])[0] for name in ITEM}
    for name in ITEM:
        if name != "baseline" and (codes[name] < 0).any():
            raise DataError(f"battles: {name!r} is null in row {int(np.argmax(codes[name] < 0))}.")
    preference = _floats(battles["preference"])
    if (wild := (preference < 0) | (preference > 1)).any():
        at = int(np.argmax(wild))
        raise DataError(f"battles: preference {preference[at]} in row {at} is not between 0 and 1.")
    identity = np.column_stack([codes[name] for name in (*by, *(name for name in ITEM if name not in by))])
    order = np.lexsort(identity.T[::-1])
    identity = identity[order]
    changed = np.ones(identity.shape, dtype=bool)
    changed[1:] = identity[1:] != identity[:-1]
    if not (new := changed.any(axis=1)).all():
        twice = battles.iloc[order[int(np.argmin(new))]]
        raise DataError(
            f"battles: {twice['candidate']!r} against {twice['baseline']!r} on instruction "
            f"{twice['instruction_id']!r}, turn {twice['turn']}, judge {twice['judge']!r} occurs twice."
        )
    first = changed[:, : len(by)].any(axis=1)
    frame = battles.take(order).reset_index(drop=True)
    width = int(codes["cluster_id"].max(initial=0)) + 1
    ids, cluster = np.unique((codes["benchmark"] * width + codes["cluster_id"])[order], return_inverse=True)
    starts = [*np.flatnonzero(np.diff(ids // width, prepend=-1)).tolist(), len(ids)]
    spans = tuple(pairwise(starts))
    groups = frame[list(by)].take(np.flatnonzero(first)).reset_index(drop=True)
    return Rows(frame, groups, np.cumsum(first) - 1, cluster, spans)


def _codes(column: pd.Series) -> tuple[Ints, list[Any]]:
    """A number per row in the order of the sorted values (null: -1), and the values."""
    if isinstance(column.dtype, pd.CategoricalDtype):  # would be sorted by category, not by value
        column = column.astype(column.cat.categories.dtype)
    codes, names = pd.factorize(column, sort=True)
    return codes.astype(np.int64), list(names)


def _floats(column: pd.Series) -> Floats:
    return column.to_numpy(dtype=np.float64, na_value=np.nan)


def _sign(preference: Floats) -> Floats:
    """1 for a win, 0.5 for a tie, 0 for a loss, NaN for no verdict."""
    return (np.sign(preference - 0.5) + 1) / 2


def _labels(names: list[Any], codes: Any) -> pd.Series:
    return pd.Series([None if code < 0 else names[code] for code in codes])


def _measures(rows: Rows) -> dict[str, Measure]:
    frame = rows.frame
    always = np.ones(len(rows.groups), dtype=bool)
    pairwise = rows.groups["baseline"].notna().to_numpy()
    row_pairwise = frame["baseline"].notna().to_numpy()
    preference = np.where(row_pairwise, _floats(frame["preference"]), np.nan)
    score = np.where(row_pairwise, np.nan, _floats(frame["score"]))
    reason = frame["reason"]
    verdict = ~np.isnan(preference) | ~np.isnan(score)
    reasons = [text for text in reason.dropna().unique() if text.startswith(ANSWER_PREFIX)]
    answer = reason.isin([*ANSWER_SIDE, *reasons]).to_numpy(dtype=bool)
    refusal = reason.isin(["refusal"]).to_numpy(dtype=bool)
    return {
        "win_rate": Measure(preference, 100, pairwise),
        "discrete_win_rate": Measure(_sign(preference), 100, pairwise),
        "mean_score": Measure(score, 0, ~pairwise),
        "consistency": Measure(_floats(frame["consistent"]), 1, pairwise),
        "coverage": Measure(verdict.astype(float), 1, always),
        "judge_failure_share": Measure((~verdict & ~answer).astype(float), 1, always),
        "refusal_share": Measure((~verdict & refusal).astype(float), 1, always),
        "truncation_share": Measure(_floats(frame["candidate_truncated"]), 1, always),
        "avg_length": Measure(_floats(frame["candidate_chars"]), 0, always),
    }


def _readers(rows: Rows) -> pd.Series:
    """The reader of each group; several are joined, so that a mixture shows."""
    seen = pd.DataFrame({"group": rows.group, "reader": rows.frame["reader"]}).dropna().drop_duplicates()
    joined = seen.sort_values(["group", "reader"]).groupby("group")["reader"].agg(" + ".join)
    return pd.Series([joined.get(group) for group in range(len(rows.groups))])


def _labelled(battles: pd.DataFrame, labels: pd.DataFrame) -> pd.DataFrame:
    if absent := {"instruction_id", "truth"} - set(labels):
        raise DataError(f"labels lack the column {min(absent)!r}.")
    keys = [key for key in ("instruction_id", "benchmark", *SIDES[3:], "turn") if key in labels]
    if (twice := labels.duplicated(keys)).any():
        raise DataError(f"labels: {labels[twice][keys].iloc[0].to_dict()} occurs twice.")
    if (wild := ~labels["truth"].isin([0.0, 1.0])).any():
        raise DataError(f"labels: truth {labels['truth'][wild].iloc[0]!r} is neither 0 nor 1.")
    try:
        found = battles.merge(labels[[*keys, "truth"]], on=keys)
    except ValueError:  # pandas refuses to compare text with numbers
        found = battles.iloc[:0]
    if found.empty and len(battles):
        some = battles["instruction_id"].iloc[0], labels["instruction_id"].iloc[:1].tolist()
        raise DataError(f"No label fits a battle: battles have {some[0]!r}, labels have {some[1]!r}.")
    return found


def _whole(rows: Rows) -> Level:
    groups = np.arange(len(rows.groups))
    return Level(rows.group, groups, groups, np.full(len(groups), -1))


def _categories(rows: Rows) -> tuple[Level, list[Any]]:
    code, names = _codes(rows.frame["category"])
    width = max(len(names), 1)
    known = code >= 0
    ids, found = np.unique((rows.group * width + code)[known], return_inverse=True)
    cell = np.full(len(code), -1)
    cell[known] = found
    return Level(cell, np.arange(len(ids)), ids // width, ids % width), names


def _macro(categories: Level) -> Level:
    group, output = np.unique(categories.group, return_inverse=True)
    return Level(categories.cell, output, group, np.full(len(group), -1))
