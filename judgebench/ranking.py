"""Battles to numbers: leaderboards, metrics by category, and how far a judge agrees with known truth.

Pure functions, frames in and frames out. A battle is one row per (benchmark, protocol, judge,
candidate, baseline, instruction, turn), orientation undone, samples and orders collapsed. What has no
verdict is counted and left out of every mean: it is never a tie, a zero or a loss.

**One estimator.** Every number is a mean of a column over rows, and rows of one `cluster_id` are one
for statistics. With n rows, G clusters and deviations d_i = x_i - mean, the standard error is

    SE² = G / (G - 1) · Σ_clusters (Σ_{i in cluster} d_i)² / n²

(Liang & Zeger 1986, with the usual small-sample factor). With one row a cluster it is exactly
sd(ddof=1) / sqrt(n), which is AlpacaEval's. A macro average is an equal-weight mean of category means;
its categories are strata, and clusters that cross them keep their covariance.

**Intervals.** `analytic`: mean ± t(G - 1) · SE, clipped to the scale. `bootstrap`: percentiles of means
over resampled clusters. The resamples of a benchmark depend on the seed and on the sorted list of its
cluster ids only, and their sums are exact, so that a renamed copy of a model, another order of rows or
another machine gives the identical interval. Neither kind holds at the edges of a bounded scale: where
G · min(p, 1 - p) < 5 (the textbook bound of the normal approximation; Brown, Cai & DasGupta 2001,
"Interval estimation for a binomial proportion") and where all outcomes are the same, both give way to
Wilson's score interval (1927) with n = G. Fewer than ten clusters thus always mean Wilson. It is
conservative for graded preferences, whose variance is below p(1 - p). A macro average takes for G the
effective number K² / Σ 1/G_k of its K categories, and t(G - K). A mean score has no known bounds: one
cluster gives no interval, equal scores one of no width.

This file does not know judges, readers, orientations or files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.arrays import IntegerArray
from scipy.special import ndtri, stdtrit  # scipy.stats costs half a second of import

from judgebench.errors import ConfigError, DataError, choices

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

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
INTERVALS = ("analytic", "bootstrap")
TINY = 1e-12  # of a standard error on the scale 0 to 1: what is left of rounding


@dataclass(frozen=True, slots=True)
class _Method:
    confidence: float
    interval: str
    resamples: int
    seed: int

    def __post_init__(self) -> None:
        if not 0 < self.confidence < 1:
            raise ConfigError(f"confidence={self.confidence!r} is no share between 0 and 1, such as 0.95.")
        if self.interval not in INTERVALS:
            raise ConfigError(f"interval: {choices(self.interval, INTERVALS)}")
        if self.resamples < 1:
            raise ConfigError(f"resamples={self.resamples!r} is not positive; 1000 is a good start.")
        if self.seed < 0:
            raise ConfigError(f"seed={self.seed!r} is negative; any whole number from 0 on will do.")


@dataclass(frozen=True, slots=True)
class _Rows:
    """Battles in one canonical order, with integer codes: no sum depends on the order they came in."""

    frame: pd.DataFrame
    groups: pd.DataFrame  # (groups, keys), sorted
    group: Ints  # (rows,) row of `groups`
    cluster: Ints  # (rows,) cluster, numbered by (benchmark, cluster_id)
    spans: tuple[tuple[int, int], ...]  # the range of cluster numbers of each benchmark


@dataclass(frozen=True, slots=True)
class _Level:
    """What is averaged apart (cells), and which cells make one output (equal weights if several)."""

    cell: Ints  # (rows,) -1: in none
    output: Ints  # (cells,)
    group: Ints  # (outputs,) row of `_Rows.groups`
    category: Ints  # (outputs,) code, -1: all


@dataclass(frozen=True, slots=True)
class _Measure:
    """A column to average: `values` (rows,), NaN where it says nothing; `scale` is 0 where unbounded."""

    values: Floats
    scale: float
    applies: NDArray[np.bool_]  # (groups,)


@dataclass(frozen=True, slots=True)
class _Estimates:
    """One mean per output, all arrays (outputs,); NaN where there is none."""

    value: Floats
    standard_error: Floats
    low: Floats
    high: Floats
    n: Ints
    clusters: Ints


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
    how = _Method(confidence, interval, resamples, seed)
    rows = _arrange(battles, SIDES)
    level, measures = _whole(rows), _measures(rows)
    against = measures["win_rate"].applies
    win = _estimate(rows, measures["win_rate"], level, how)
    score = _estimate(rows, measures["mean_score"], level, how)
    share = {name: _means(measure, level) for name, measure in measures.items()}
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
    how = _Method(confidence, interval, resamples, seed)
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
            found = _estimate(rows, measures[name], level, how)
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
    how = _Method(confidence, "analytic", 1, 0)
    rows = _arrange(_labelled(battles, labels), JUDGES)
    preference, truth = _floats(rows.frame["preference"]), _floats(rows.frame["truth"])
    right = _sign(preference) * truth + (1 - _sign(preference)) * (1 - truth)
    slot = _floats(rows.frame["first_slot"]) if "first_slot" in rows.frame else np.full(len(right), np.nan)
    by_category, names = _categories(rows)
    blocks = []
    for level in (_whole(rows), by_category):
        everywhere = np.ones(len(rows.groups), dtype=bool)
        found = _estimate(rows, _Measure(right, 100, everywhere), level, how)
        outcome = {
            f"n_{name}": np.bincount(level.cell[(level.cell >= 0) & (right == x)], minlength=len(level.group))
            for name, x in (("correct", 1.0), ("ties", 0.5), ("wrong", 0.0))
        }
        single = (found.n == found.clusters) & (outcome["n_ties"] == 0)
        low, high = _wilson(found.value / 100, found.clusters, confidence)
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
                first_slot_share=_means(_Measure(slot, 1, everywhere), level),
            )
        )
        blocks.append(block)
    return pd.concat(blocks, ignore_index=True)


def _arrange(battles: pd.DataFrame, by: Sequence[str]) -> _Rows:
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
    return _Rows(frame, groups, np.cumsum(first) - 1, cluster, spans)


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


def _measures(rows: _Rows) -> dict[str, _Measure]:
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
        "win_rate": _Measure(preference, 100, pairwise),
        "discrete_win_rate": _Measure(_sign(preference), 100, pairwise),
        "mean_score": _Measure(score, 0, ~pairwise),
        "consistency": _Measure(_floats(frame["consistent"]), 1, pairwise),
        "coverage": _Measure(verdict.astype(float), 1, always),
        "judge_failure_share": _Measure((~verdict & ~answer).astype(float), 1, always),
        "refusal_share": _Measure((~verdict & refusal).astype(float), 1, always),
        "truncation_share": _Measure(_floats(frame["candidate_truncated"]), 1, always),
        "avg_length": _Measure(_floats(frame["candidate_chars"]), 0, always),
    }


def _readers(rows: _Rows) -> pd.Series:
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


def _whole(rows: _Rows) -> _Level:
    groups = np.arange(len(rows.groups))
    return _Level(rows.group, groups, groups, np.full(len(groups), -1))


def _categories(rows: _Rows) -> tuple[_Level, list[Any]]:
    code, names = _codes(rows.frame["category"])
    width = max(len(names), 1)
    known = code >= 0
    ids, found = np.unique((rows.group * width + code)[known], return_inverse=True)
    cell = np.full(len(code), -1)
    cell[known] = found
    return _Level(cell, np.arange(len(ids)), ids // width, ids % width), names


def _macro(categories: _Level) -> _Level:
    group, output = np.unique(categories.group, return_inverse=True)
    return _Level(categories.cell, output, group, np.full(len(group), -1))


def _means(measure: _Measure, level: _Level) -> Floats:
    """Plain means of one-cell levels, (outputs,), in units of the scale."""
    known = ~np.isnan(measure.values) & (level.cell >= 0)
    cell, size = level.cell[known], len(level.group)
    with np.errstate(invalid="ignore"):
        mean = np.bincount(cell, measure.values[known], size) / np.bincount(cell, minlength=size)
    return np.asarray(mean * (measure.scale or 1))


def _estimate(rows: _Rows, measure: _Measure, level: _Level, how: _Method) -> _Estimates:
    """Means with clustered standard errors and intervals; the formulas are in the module's docstring."""
    known = ~np.isnan(measure.values) & (level.cell >= 0)
    x, cell, cluster = measure.values[known], level.cell[known], rows.cluster[known]
    owner, cells, outputs = level.output, len(level.output), len(level.group)
    width = rows.spans[-1][1] if rows.spans else 1
    parts = np.bincount(owner, minlength=outputs)
    n = np.bincount(cell, minlength=cells)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.bincount(cell, x, cells) / n
        value = np.bincount(owner, mean, outputs) / parts
        size = np.bincount(np.unique(cell * width + cluster) // width, minlength=cells)
        # The factor goes into the deviations, so that strata keep their own.
        factor = np.sqrt(np.where(size > 1, size / (size - 1), np.nan))
        share = (x - mean[cell]) * (factor / n)[cell] / parts[owner[cell]]
        pair, at = np.unique(owner[cell] * width + cluster, return_inverse=True)
        square = np.bincount(at, share, len(pair)) ** 2
        error = np.sqrt(np.bincount(pair // width, square, outputs))
        clusters = np.bincount(pair // width, minlength=outputs)
        effective = parts**2 / np.bincount(owner, 1 / size, outputs)  # G itself where there is one cell
        error[np.isnan(value)] = np.nan
        reach = stdtrit(np.maximum(clusters - parts, 1), (1 + how.confidence) / 2) * error
    low, high = value - reach, value + reach
    if how.interval == "bootstrap":
        low, high = _bootstrap(rows, x, cell, cluster, level, how)
    if measure.scale:
        rare = effective * np.minimum(value, 1 - value) < 5 - 1e-9
        edge = rare | ~(error > TINY)
        wilson_low, wilson_high = _wilson(value, effective, how.confidence)
        low = np.clip(np.where(edge, wilson_low, low), 0, 1)
        high = np.clip(np.where(edge, wilson_high, high), 0, 1)
    scale = measure.scale or 1.0
    n = np.bincount(owner, n, outputs).astype(np.int64)
    unknown = np.where(np.isnan(value), np.nan, scale)
    return _Estimates(scale * value, scale * error, unknown * low, unknown * high, n, clusters)


def _wilson(p: Floats, n: Any, confidence: float) -> tuple[Floats, Floats]:
    """Wilson's score interval of a proportion, on the scale 0 to 1; NaN where n = 0."""
    z2 = ndtri((1 + confidence) / 2) ** 2
    with np.errstate(divide="ignore", invalid="ignore"):
        centre = (p + z2 / (2 * n)) / (1 + z2 / n)
        reach = np.sqrt(z2 * (p * (1 - p) / n + z2 / (4 * n * n))) / (1 + z2 / n)
    # The estimate is inside by definition; at p = 0 or 1 rounding would leave it 1e-17 outside.
    return np.minimum(p, centre - reach), np.maximum(p, centre + reach)


def _bootstrap(
    rows: _Rows, x: Floats, cell: Ints, cluster: Ints, level: _Level, how: _Method
) -> tuple[Floats, Floats]:
    """Percentile intervals of each output over resampled clusters; NaN where it has no row."""
    low, high = np.full((2, len(level.group)), np.nan)
    tail = (1 - how.confidence) / 2
    for start, stop in rows.spans:
        here = (cluster >= start) & (cluster < stop)
        cells, column = np.unique(cell[here], return_inverse=True)
        shape = stop - start, len(cells)
        at = (cluster[here] - start) * len(cells) + column
        total = np.bincount(at, _exact(x[here], column), shape[0] * shape[1]).reshape(shape)
        count = np.bincount(at, minlength=shape[0] * shape[1]).reshape(shape).astype(np.float64)
        with np.errstate(invalid="ignore"):  # a resample may miss a small cell altogether: NaN, left out
            drawn = np.concatenate([(w @ total) / (w @ count) for w in _resamples(shape[0], how)])
        for output in np.unique(level.output[cells]):
            means = drawn[:, level.output[cells] == output].mean(axis=1)
            low[output], high[output] = np.quantile(means[~np.isnan(means)], [tail, 1 - tail])
    return low, high


def _resamples(clusters: int, how: _Method) -> Iterator[Floats]:
    """How often each resample draws each cluster, in chunks (resamples, clusters) of 32 MB at most."""
    generator = np.random.default_rng(how.seed)
    step = max(1, 4_000_000 // clusters)
    for done in range(0, how.resamples, step):
        size = min(step, how.resamples - done)
        drawn = generator.integers(clusters, size=(size, clusters)) + np.arange(size)[:, None] * clusters
        yield np.bincount(drawn.ravel(), minlength=size * clusters).reshape(size, clusters).astype(np.float64)


def _exact(x: Floats, column: Ints) -> Floats:
    """Values rounded to 30 bits below the largest of their column: sums of up to 2^22 are exact then, in
    whatever order a BLAS adds them, so that equal columns give equal sums, bit for bit."""
    peak = np.zeros(int(column.max(initial=-1)) + 1)
    np.maximum.at(peak, column, np.abs(x))
    quantum = np.exp2(np.frexp(peak)[1] - 30.0)[column]
    return np.asarray(np.rint(x / quantum) * quantum)
