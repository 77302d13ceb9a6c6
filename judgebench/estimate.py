"""Means with clustered standard errors and intervals: the one estimator of all numbers.

Every number is a mean of a column over rows, and rows of one `cluster_id` are one for statistics. With
n rows, G clusters and deviations d_i = x_i - mean, the standard error is

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

This file does not know what the rows are battles of.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit  # scipy.stats costs half a second of import

from judgebench.errors import ConfigError, choices

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

INTERVALS = ("analytic", "bootstrap")
TINY = 1e-12  # of a standard error on the scale 0 to 1: what is left of rounding


@dataclass(frozen=True, slots=True)
class Method:
    """How intervals are made."""

    confidence: float
    interval: str
    resamples: int
    seed: int

    def __post_init__(self) -> None:
        if not _is(Real, self.confidence) or not 0 < self.confidence < 1:
            raise ConfigError(f"confidence={self.confidence!r} is no share between 0 and 1, such as 0.95.")
        if self.interval not in INTERVALS:
            raise ConfigError(f"interval: {choices(self.interval, INTERVALS)}")
        if not _is(Integral, self.resamples) or self.resamples < 1:
            raise ConfigError(
                f"resamples={self.resamples!r} is no positive whole number; 1000 is a good start."
            )
        if not _is(Integral, self.seed) or self.seed < 0:
            raise ConfigError(f"seed={self.seed!r} is no whole number from 0 on; any of them will do.")


def _is(kind: type, value: object) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class Rows:
    """Battles in one canonical order, with integer codes: no sum depends on the order they came in."""

    frame: pd.DataFrame
    groups: pd.DataFrame  # (groups, keys), sorted
    group: Ints  # (rows,) row of `groups`
    cluster: Ints  # (rows,) cluster, numbered by (benchmark, cluster_id)
    spans: tuple[tuple[int, int], ...]  # the range of cluster numbers of each benchmark


@dataclass(frozen=True, slots=True)
class Level:
    """What is averaged apart (cells), and which cells make one output (equal weights if several)."""

    cell: Ints  # (rows,) -1: in none
    output: Ints  # (cells,)
    group: Ints  # (outputs,) row of `Rows.groups`
    category: Ints  # (outputs,) code, -1: all


@dataclass(frozen=True, slots=True)
class Measure:
    """A column to average: `values` (rows,), NaN where it says nothing; `scale` is 0 where unbounded."""

    values: Floats
    scale: float
    applies: NDArray[np.bool_]  # (groups,)


@dataclass(frozen=True, slots=True)
class Estimates:
    """One mean per output, all arrays (outputs,); NaN where there is none."""

    value: Floats
    standard_error: Floats
    low: Floats
    high: Floats
    n: Ints
    clusters: Ints


def means(measure: Measure, level: Level) -> Floats:
    """Plain means of one-cell levels, (outputs,), in units of the scale."""
    known = ~np.isnan(measure.values) & (level.cell >= 0)
    cell, size = level.cell[known], len(level.group)
    with np.errstate(invalid="ignore"):
        mean = np.bincount(cell, measure.values[known], size) / np.bincount(cell, minlength=size)
    return np.asarray(mean * (measure.scale or 1))


def estimate(rows: Rows, measure: Measure, level: Level, how: Method) -> Estimates:
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
        wilson_low, wilson_high = wilson(value, effective, how.confidence)
        low = np.clip(np.where(edge, wilson_low, low), 0, 1)
        high = np.clip(np.where(edge, wilson_high, high), 0, 1)
    scale = measure.scale or 1.0
    n = np.bincount(owner, n, outputs).astype(np.int64)
    unknown = np.where(np.isnan(value), np.nan, scale)
    return Estimates(scale * value, scale * error, unknown * low, unknown * high, n, clusters)


def wilson(p: Floats, n: Any, confidence: float) -> tuple[Floats, Floats]:
    """Wilson's score interval of a proportion, on the scale 0 to 1; NaN where n = 0."""
    z2 = ndtri((1 + confidence) / 2) ** 2
    with np.errstate(divide="ignore", invalid="ignore"):
        centre = (p + z2 / (2 * n)) / (1 + z2 / n)
        reach = np.sqrt(z2 * (p * (1 - p) / n + z2 / (4 * n * n))) / (1 + z2 / n)
    # The estimate is inside by definition; at p = 0 or 1 rounding would leave it 1e-17 outside.
    return np.minimum(p, centre - reach), np.maximum(p, centre + reach)


def _bootstrap(
    rows: Rows, x: Floats, cell: Ints, cluster: Ints, level: Level, how: Method
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


def _resamples(clusters: int, how: Method) -> Iterator[Floats]:
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
    quantum = np.maximum(np.exp2(np.frexp(peak)[1] - 30.0), np.finfo(np.float64).tiny)[column]
    return np.asarray(np.rint(x / quantum) * quantum)
