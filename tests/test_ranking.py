from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from judgebench import estimate
from judgebench.errors import ConfigError, DataError
from judgebench.ranking import agreement, leaderboard, metrics


def battles(preference: Any, model: Any = "m", baseline: str | None = "b", **columns: Any) -> pd.DataFrame:
    """Battles on items 000, 001, …; NaN has the reason `no_verdict` unless one is given."""
    preference = np.asarray(preference, dtype=float)
    ids = [f"{i:03}" for i in range(len(preference))]
    frame = pd.DataFrame({"preference": preference, "instruction_id": ids, "cluster_id": ids})
    frame = frame.assign(
        benchmark="bench", protocol="pairwise", judge="j", candidate=model, baseline=baseline, turn=1,
        category=None, language=None, score=np.nan, n_asked=2, n_read=2, candidate_chars=10,
        candidate_truncated=False, reader="labels/1", source="judge",
        consistent=pd.array([None] * len(frame), dtype="boolean"),
        reason=[None if x == x else "no_verdict" for x in preference],
    )  # fmt: skip
    return frame.assign(**columns)


def scored(score: Any, model: str = "m", **columns: Any) -> pd.DataFrame:
    score = np.asarray(score, dtype=float)
    reason = [None if x == x else "no_verdict" for x in score]
    frame = battles(np.full(len(score), np.nan), model, None, score=score, reason=reason)
    return frame.assign(**columns)


def stacked(*frames: pd.DataFrame) -> pd.DataFrame:
    return pd.concat(frames, ignore_index=True)


def wilson(wins: float, n: int) -> tuple[float, float]:
    found = stats.binomtest(int(wins), n).proportion_ci(0.95, method="wilson")
    return 100 * found.low, 100 * found.high


# --- official numbers ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def alpaca(data_dir: Path) -> pd.DataFrame:
    rows = pd.read_parquet(data_dir / "alpaca_eval" / "preferences.parquet")
    outputs = pd.read_parquet(data_dir / "alpaca_eval" / "outputs.parquet")
    outputs["chars"] = outputs["output"].str.len()
    rows = rows.merge(outputs, on=["model", "instruction_id"], how="left")
    ids = rows["instruction_id"].astype(str)
    return battles(
        rows["preference"] - 1,
        rows["model"].astype(str),
        instruction_id=ids,
        cluster_id=ids,
        candidate_chars=rows["chars"].fillna(0).astype("int64"),
    )


def test_alpaca_eval_official_leaderboard(alpaca: pd.DataFrame, data_dir: Path) -> None:
    official = pd.read_csv(data_dir / "alpaca_eval" / "official_leaderboard.csv", index_col=0)
    both = leaderboard(alpaca).set_index("model").join(official.add_prefix("official_"), how="inner")
    assert len(both) == 57
    for name in ("win_rate", "standard_error", "discrete_win_rate"):
        assert np.abs(both[name] - both[f"official_{name}"]).max() < 1e-8, name
    for name, theirs in (("n_wins", "n_wins"), ("n_losses", "n_wins_base"), ("n_draws", "n_draws")):
        assert (both[name] == both[f"official_{theirs}"]).all(), name
    assert (both["n_total"] == both["official_n_total"]).all()
    # Rows missing from the annotations are missing here too: the verdict stage fills them in.
    whole = both[both["n_total"] == 805]
    assert (whole["avg_length"] == whole["official_avg_length"]).mean() == 1


def test_baseline_against_itself_is_one_half(alpaca: pd.DataFrame) -> None:
    row = leaderboard(alpaca).set_index("model").loc["gpt4_1106_preview"]
    assert (row["win_rate"], row["n_draws"], row["standard_error"]) == (50, 805, 0)


def test_bootstrap_is_near_the_analytic_interval(alpaca: pd.DataFrame) -> None:
    some = alpaca[alpaca["candidate"].isin(sorted(alpaca["candidate"].unique())[:10])]
    one, other = leaderboard(some), leaderboard(some, interval="bootstrap", resamples=4000)
    assert np.abs(one[["low", "high"]] - other[["low", "high"]]).to_numpy().max() < 0.25


def test_judgebench_official_accuracies(data_dir: Path) -> None:
    pairs = pd.read_parquet(data_dir / "judgebench_pairs" / "pairs.parquet").set_index("pair_id")
    replies = pd.read_parquet(data_dir / "judgebench_pairs" / "judge_replies.parquet")
    replies["judge"] = (
        replies[["response_model", "judge_name", "judge_model"]].astype(str).agg("|".join, axis=1)
    )
    shown = replies["decision"].map({"A>B": 0.0, "B>A": 1.0, "A=B": 0.5}).astype(float)
    replies["preference"] = np.where(replies["order"] == 0, shown, 1 - shown)
    replies["first_slot"] = 1 - shown
    items = replies.groupby(["judge", "pair_id"])[["preference", "first_slot"]].mean().reset_index()
    ids = items["pair_id"].astype(str)
    frame = battles(
        items["preference"],
        judge=items["judge"],
        instruction_id=ids,
        cluster_id=ids,
        category=items["pair_id"].map(pairs["category"]).astype(str),
        first_slot=items["first_slot"],
    )
    labels = pd.DataFrame(
        {
            "instruction_id": pairs.index.astype(str),
            "truth": (pairs["label"] == "B>A").astype(float).to_numpy(),
        }
    )
    found = agreement(frame, labels).fillna({"category": "overall"}).set_index(["judge", "category"])
    checks = json.loads((data_dir / "checks.json").read_text("utf-8"))["judgebench"]["judges"]
    assert len(checks) == 7
    for judge, categories in checks.items():
        for category, official in categories.items():
            row = found.loc[judge, category]
            assert row["n_asked"] == official["n"]
            assert row["n_correct"] == official["n_correct"]
            assert row["n_wrong"] == official["n_incorrect"]
            assert row["n_ties"] + row["n_asked"] - row["n"] == official["n_tie"]
    assert found.loc["claude-3-5-sonnet-20240620|arena_hard|claude-3-haiku-20240307", "overall"][
        "first_slot_share"
    ] != pytest.approx(0.5, abs=0.01)


# --- faults of the field, by value -------------------------------------------------------------------


def test_b01_unread_rows_are_in_no_mean() -> None:
    row = leaderboard(scored([8, 6, np.nan, np.nan])).iloc[0]
    assert (row["mean_score"], row["n_total"], row["n_asked"], row["coverage"]) == (7.0, 2, 4, 0.5)
    assert row["judge_failure_share"] == 0.5
    assert pd.isna(row["win_rate"])
    assert pd.isna(row["n_wins"])


@pytest.mark.parametrize(
    ("wins", "ties", "losses", "rate"), [(1, 98, 1, 50), (40, 0, 60, 40), (33, 34, 33, 50), (40, 60, 0, 70)]
)
def test_b04_a_tie_is_half_a_win(wins: int, ties: int, losses: int, rate: float) -> None:
    row = leaderboard(battles([1] * wins + [0.5] * ties + [0] * losses)).iloc[0]
    assert row["win_rate"] == pytest.approx(rate, abs=1e-12)
    assert row["discrete_win_rate"] == pytest.approx(rate, abs=1e-12)
    assert (row["n_wins"], row["n_draws"], row["n_losses"]) == (wins, ties, losses)


def test_b04_no_verdict_is_null_with_n_zero() -> None:
    row = leaderboard(battles([np.nan, np.nan])).iloc[0]
    assert row[["win_rate", "low", "high", "standard_error", "discrete_win_rate"]].isna().all()
    assert (row["n_total"], row["n_wins"], row["n_asked"], row["coverage"]) == (0, 0, 2, 0)


def test_b18_failures_do_not_change_the_order() -> None:
    table = leaderboard(
        stacked(scored([4, 4, 4, np.nan], "P"), scored([3, 3, 3, 3], "Q"), scored([np.nan], "R"))
    )
    assert [*table["model"]] == ["P", "Q", "R"]
    assert [*table["mean_score"][:2]] == [4.0, 3.0]
    assert [*table["n_total"]] == [3, 4, 0]
    assert pd.isna(table["mean_score"][2])


def test_b45_both_orders_of_an_item_are_one_cluster() -> None:
    outcome = [1.0] * 60 + [0.0] * 40
    once = battles(outcome)
    twice = stacked(once, battles(outcome, turn=2))
    for frame in (once, twice):
        row = leaderboard(frame).iloc[0]
        assert row["standard_error"] == pytest.approx(100 * np.sqrt(0.24 / 99), abs=1e-10)
        assert row["standard_error"] == pytest.approx(4.92, abs=0.005)
        assert row["n_clusters"] == 100
    one, two = (leaderboard(frame, interval="bootstrap").iloc[0] for frame in (once, twice))
    assert (one["low"], one["high"]) == (two["low"], two["high"])


def test_b40_b19_shares() -> None:
    reasons = ["refusal", "not_shipped", "timeout", "answer_empty", None]
    row = leaderboard(
        battles([np.nan] * 4 + [1], reason=reasons, candidate_truncated=[True] + [False] * 4)
    ).iloc[0]
    assert row["refusal_share"] == pytest.approx(0.2)
    assert row["judge_failure_share"] == pytest.approx(0.4)
    assert row["truncation_share"] == pytest.approx(0.2)
    assert row["coverage"] == pytest.approx(0.2)


def test_b89_a_renamed_copy_has_the_identical_interval() -> None:
    rng = np.random.default_rng(1)
    outcome = rng.random(77)
    others = [battles(rng.random(77), f"x{i}") for i in range(5)]
    table = leaderboard(
        stacked(battles(outcome, "M"), *others, battles(outcome, "a copy")), interval="bootstrap", seed=3
    ).set_index("model")
    assert (table.loc["M", ["low", "high"]] == table.loc["a copy", ["low", "high"]]).all()
    alone = leaderboard(battles(outcome, "M"), interval="bootstrap", seed=3).iloc[0]
    assert (table.loc["M", ["low", "high"]] == alone[["low", "high"]]).all()
    other = leaderboard(battles(outcome, "M"), interval="bootstrap", seed=4).iloc[0]
    assert other["low"] != alone["low"]


def test_b106_one_orientation_gives_null_consistency() -> None:
    assert pd.isna(leaderboard(battles([1, 0])).iloc[0]["consistency"])
    both = battles([1, 0, 0.5], consistent=pd.array([True, None, False], dtype="boolean"))
    assert leaderboard(both).iloc[0]["consistency"] == 0.5


def test_b121_one_model_one_battle() -> None:
    for kind in estimate.INTERVALS:
        row = leaderboard(battles([1]), interval=kind).iloc[0]
        assert (row["low"], row["high"]) == pytest.approx(wilson(1, 1))
        assert pd.isna(row["standard_error"])
        row = leaderboard(scored([7]), interval=kind).iloc[0]
        assert row["mean_score"] == 7
        assert pd.isna(row["score_standard_error"])


def test_b44_two_readers_in_one_row_show() -> None:
    table = leaderboard(battles([1, 0, 1], reader=["v1", "v2", None]))
    assert table["reader"][0] == "v1 + v2"


# --- intervals ----------------------------------------------------------------------------------------


def test_standard_error_and_t_interval_are_the_textbooks() -> None:
    outcome = np.random.default_rng(0).random(805)
    row = leaderboard(battles(outcome), confidence=0.9).iloc[0]
    error = 100 * np.std(outcome, ddof=1) / np.sqrt(805)
    assert row["standard_error"] == pytest.approx(error, abs=1e-10)
    low, high = stats.t.interval(0.9, 804, 100 * outcome.mean(), error)
    assert (row["low"], row["high"]) == pytest.approx((low, high), abs=1e-9)


def test_clustered_standard_error_is_the_formula() -> None:
    rng = np.random.default_rng(5)
    outcome, cluster = rng.random(90), rng.integers(0, 23, 90)
    row = leaderboard(battles(outcome, cluster_id=[f"c{c}" for c in cluster])).iloc[0]
    sums = [np.sum(outcome[cluster == c] - outcome.mean()) for c in np.unique(cluster)]
    error = 100 * np.sqrt(len(sums) / (len(sums) - 1) * np.sum(np.square(sums))) / 90
    assert row["standard_error"] == pytest.approx(error, abs=1e-10)
    assert row["n_clusters"] == len(sums)


@pytest.mark.parametrize("kind", estimate.INTERVALS)
@pytest.mark.parametrize(("wins", "n"), [(0, 20), (20, 20), (4, 100), (3, 9), (1, 2)])
def test_edges_are_wilson(wins: int, n: int, kind: str) -> None:
    row = leaderboard(battles([1] * wins + [0] * (n - wins)), interval=kind).iloc[0]
    assert (row["low"], row["high"]) == pytest.approx(wilson(wins, n), abs=1e-9)


def test_equal_outcomes_are_wilson_even_in_the_middle() -> None:
    row = leaderboard(battles([0.1] * 64 + [0.1 + 1e-17] * 36)).iloc[0]
    assert (row["low"], row["high"]) == pytest.approx(wilson(10, 100))


def simulated(models: int, items: int, seed: int) -> tuple[pd.DataFrame, float]:
    """Each model is one experiment: uneven items, two orders, a position bias; and the truth."""
    rng = np.random.default_rng(seed)

    def judged(difficulty: Any) -> Any:
        direct = rng.random(difficulty.shape) < 1 / (1 + np.exp(-(0.4 + difficulty + 0.7)))
        swapped = rng.random(difficulty.shape) < 1 / (1 + np.exp(-(0.4 + difficulty - 0.7)))
        return (direct.astype(float) + swapped) / 2

    truth = 100 * judged(rng.normal(0, 1.5, 4_000_000)).mean()
    outcome = judged(rng.normal(0, 1.5, (models, items)))
    ids = np.tile([f"{i:03}" for i in range(items)], models)
    names = np.repeat([f"m{i:04}" for i in range(models)], items)
    return battles(outcome.ravel(), names, instruction_id=ids, cluster_id=ids), truth


@pytest.mark.parametrize("kind", estimate.INTERVALS)
def test_coverage_of_the_95_percent_interval(kind: str) -> None:
    frame, truth = simulated(1500, 60, seed=8)
    table = leaderboard(frame, interval=kind)
    covered = ((table["low"] <= truth) & (truth <= table["high"])).mean()
    assert 0.93 <= covered <= 0.97


# --- laws ---------------------------------------------------------------------------------------------

outcomes = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, np.nan]) | st.floats(0, 1), min_size=1, max_size=30)


@given(
    st.lists(outcomes, min_size=1, max_size=4),
    st.randoms(use_true_random=False),
    st.sampled_from(estimate.INTERVALS),
)
@settings(max_examples=25, deadline=None)
def test_order_of_rows_changes_nothing(models: list[list[float]], random: Any, kind: str) -> None:
    frame = stacked(*[battles(x, f"m{i}") for i, x in enumerate(models)])
    frame["category"] = frame["instruction_id"].map(lambda text: "ab"[int(text) % 2])
    frame["cluster_id"] = frame["instruction_id"].map(lambda text: f"c{int(text) // 3}")
    order = [*range(len(frame))]
    random.shuffle(order)
    for table in (leaderboard, metrics):
        one = table(frame, interval=kind, resamples=50)
        other = table(frame.iloc[order], interval=kind, resamples=50)
        pd.testing.assert_frame_equal(one, other, check_exact=True)


@given(outcomes, st.sampled_from(estimate.INTERVALS))
@settings(max_examples=25, deadline=None)
def test_names_change_nothing_but_names(outcome: list[float], kind: str) -> None:
    first = leaderboard(stacked(battles(outcome, "a"), battles([1, 0], "k")), interval=kind, resamples=50)
    second = leaderboard(stacked(battles(outcome, "z"), battles([1, 0], "k")), interval=kind, resamples=50)
    one, other = (t[t["model"] != "k"].drop(columns="model").reset_index(drop=True) for t in (first, second))
    pd.testing.assert_frame_equal(one, other, check_exact=True)


@given(outcomes)
@settings(max_examples=50, deadline=None)
def test_swapping_the_sides_mirrors_the_numbers(outcome: list[float]) -> None:
    one = leaderboard(battles(outcome)).iloc[0]
    other = leaderboard(battles(1 - np.asarray(outcome))).iloc[0]
    if one["n_total"]:
        assert one["win_rate"] + other["win_rate"] == pytest.approx(100)
        assert (one["low"], one["high"]) == pytest.approx((100 - other["high"], 100 - other["low"]))
        assert 0 <= one["low"] <= one["win_rate"] <= one["high"] <= 100
    assert (one["n_wins"], one["n_draws"]) == (np.sum(np.asarray(outcome) > 0.5), other["n_draws"])


# --- metrics ------------------------------------------------------------------------------------------


def test_metrics_by_category_and_macro() -> None:
    rng = np.random.default_rng(2)
    easy, hard = rng.random(40) * 0.5 + 0.5, rng.random(20) * 0.6
    frame = battles([*easy, *hard, np.nan], category=["easy"] * 40 + ["hard"] * 20 + [None])
    table = metrics(frame)
    row = {
        (m, None if pd.isna(c) else c): r
        for m, c, r in zip(table["metric"], table["category"], table.itertuples(), strict=True)
    }
    assert row["win_rate", "easy"].value == pytest.approx(100 * easy.mean())
    assert row["win_rate", "hard"].value == pytest.approx(100 * hard.mean())
    assert row["win_rate", None].n == 60
    assert row["win_rate", None].coverage == pytest.approx(60 / 61)
    macro = row["macro_win_rate", None]
    assert macro.value == pytest.approx(50 * (easy.mean() + hard.mean()))
    parts = [row["win_rate", c].standard_error for c in ("easy", "hard")]
    assert macro.standard_error == pytest.approx(np.hypot(*parts) / 2)
    reach = stats.t.ppf(0.975, 58) * macro.standard_error
    assert (macro.low, macro.high) == pytest.approx((macro.value - reach, macro.value + reach))
    assert row["coverage", None].value == pytest.approx(60 / 61)
    assert ("mean_score", None) not in row
    boot = metrics(frame, interval="bootstrap", resamples=4000)
    found = boot[boot["metric"] == "macro_win_rate"].iloc[0]
    assert (found["low"], found["high"]) == pytest.approx((macro.low, macro.high), abs=1)


def test_macro_is_null_while_a_category_has_no_verdict() -> None:
    table = metrics(battles([1, 0, np.nan], category=["a", "a", "b"])).set_index(["metric", "category"])
    assert pd.isna(table.loc[("macro_win_rate", np.nan), "value"])
    assert pd.isna(table.loc[("win_rate", "b"), "value"])
    assert table.loc[("win_rate", "b"), "coverage"] == 0


def test_metrics_agree_with_the_leaderboard() -> None:
    frame = stacked(battles([1, 0, np.nan, 0.5], "x"), scored([3, 4, np.nan], "y"))
    wide = leaderboard(frame).set_index("model")
    long = metrics(frame)
    for row in long[long["category"].isna()].itertuples():
        np.testing.assert_array_equal(row.value, wide.loc[row.model, row.metric])


# --- agreement ----------------------------------------------------------------------------------------


def test_agreement_by_hand() -> None:
    frame = battles([0.9, 0.2, 0.5, np.nan, 0.0], first_slot=[1, 0, 0.5, np.nan, 0.5])
    labels = pd.DataFrame(
        {"instruction_id": [f"{i:03}" for i in range(9)], "truth": [1.0, 1, 1, 1, 0, 1, 1, 1, 1]}
    )
    row = agreement(frame, labels).iloc[0]
    assert row["accuracy"] == pytest.approx(100 * 2.5 / 4)
    assert [row[x] for x in ("n", "n_asked", "n_correct", "n_ties", "n_wrong")] == [4, 5, 2, 1, 1]
    assert (row["coverage"], row["first_slot_share"]) == (0.8, 0.5)


def test_agreement_is_wilson_where_all_is_right_or_wrong() -> None:
    labels = pd.DataFrame({"instruction_id": [f"{i:03}" for i in range(100)], "truth": 1.0})
    row = agreement(battles([1] * 80 + [0] * 20), labels).iloc[0]
    assert (row["low"], row["high"]) == pytest.approx(wilson(80, 100))
    tied = agreement(battles([1] * 80 + [0.5] + [0] * 19), labels).iloc[0]
    error = tied["standard_error"] * stats.t.ppf(0.975, 99)
    assert (tied["low"], tied["high"]) == pytest.approx((tied["accuracy"] - error, tied["accuracy"] + error))


def test_agreement_refuses_labels_that_do_not_fit() -> None:
    frame = battles([1, 0])
    with pytest.raises(DataError, match=r"No label fits.*'000'.*'0'"):
        agreement(frame, pd.DataFrame({"instruction_id": ["0"], "truth": [1.0]}))
    with pytest.raises(DataError, match="No label fits"):
        agreement(frame, pd.DataFrame({"instruction_id": [0], "truth": [1.0]}))
    with pytest.raises(DataError, match=r"0\.5"):
        agreement(frame, pd.DataFrame({"instruction_id": ["000"], "truth": [0.5]}))
    with pytest.raises(DataError, match="twice"):
        agreement(frame, pd.DataFrame({"instruction_id": ["000"] * 2, "truth": [1.0, 0.0]}))
    with pytest.raises(DataError, match="'truth'"):
        agreement(frame, pd.DataFrame({"instruction_id": ["000"]}))


# --- order, refusals, speed ---------------------------------------------------------------------------


def test_sorted_best_first_then_by_name() -> None:
    frame = stacked(
        *[battles(x, name) for x, name in (([1, 0], "c"), ([1, 1], "b"), ([0, 1], "a"), ([np.nan], "d"))],
        battles([0], "z", benchmark="another"),
    )
    assert [*leaderboard(frame)["model"]] == ["z", "b", "a", "c", "d"]


def test_groups_are_kept_apart() -> None:
    frame = stacked(*[battles([x], judge=f"j{x}", baseline=b) for x in (0, 1) for b in ("b", "c", None)])
    assert len(leaderboard(frame)) == 6


def test_empty_battles_give_empty_tables() -> None:
    empty = battles([1]).iloc[:0]
    for kind in estimate.INTERVALS:
        assert leaderboard(empty, interval=kind).empty
        assert metrics(empty, interval=kind).empty
    assert agreement(empty, pd.DataFrame({"instruction_id": ["0"], "truth": [1.0]})).empty


def test_columns_may_come_in_any_dtype_that_holds_them() -> None:
    frame = battles([1, 0, np.nan], category=["a", "b", "a"], consistent=[True, None, False])
    wanted = leaderboard(frame)
    for dtype in (object, "category", "string"):
        texts = frame.columns[[isinstance(frame[name][2], str) for name in frame]]
        other = frame.astype(dict.fromkeys(texts, dtype))
        pd.testing.assert_frame_equal(leaderboard(other), wanted, check_dtype=False, check_categorical=False)
        assert len(metrics(other)) == len(metrics(frame))
    nothing = battles([1, 0], reason=np.nan, category=np.nan)
    assert leaderboard(nothing)["win_rate"][0] == 50


def test_battles_that_cannot_be_meant_are_refused() -> None:
    with pytest.raises(DataError, match="'category'"):
        leaderboard(battles([1]).drop(columns="category"))
    with pytest.raises(DataError, match="occurs twice"):
        leaderboard(stacked(battles([1]), battles([0])))
    with pytest.raises(DataError, match=r"2\.0 in row 1"):
        leaderboard(battles([1, 2]))
    with pytest.raises(DataError, match="'cluster_id' is null in row 1"):
        leaderboard(battles([1, 1], cluster_id=["a", None]))
    with pytest.raises(ConfigError, match="analytic"):
        leaderboard(battles([1]), interval="analytical")
    with pytest.raises(ConfigError, match="confidence=95"):
        leaderboard(battles([1]), confidence=95)
    with pytest.raises(ConfigError, match="resamples"):
        leaderboard(battles([1]), interval="bootstrap", resamples=0)


def test_a_hundred_thousand_battles_are_quick() -> None:
    frame, _ = simulated(200, 500, seed=0)
    best = []
    for _ in range(5):
        start = time.perf_counter()
        leaderboard(frame)
        best.append(time.perf_counter() - start)
    assert min(best) < 0.5
