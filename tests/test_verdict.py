from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from judgebench.verdict import VERDICT_SCHEMA, battles, paired_scores, verdict_frame, verdict_key

DEFAULTS = {
    "benchmark": "b", "protocol": "p", "judge": "j", "instruction_id": "1", "turn": 0, "cluster_id": "1",
    "candidate": "cand", "baseline": "base", "model_a": "base", "model_b": "cand", "orientation": "direct",
    "candidate_sample": 0, "sample": 0, "source": "judge", "reader": "r/1", "template_hash": "t",
    "judge_descriptor": "d", "candidate_chars": 3, "baseline_chars": 4, "candidate_truncated": False,
}  # fmt: skip


def row(**facts: Any) -> dict[str, Any]:
    if facts.get("orientation", "direct") == "reversed":
        facts = {"model_a": "cand", "model_b": "base", **facts}
    return {**dict.fromkeys(VERDICT_SCHEMA), **DEFAULTS, "verdict_key": str(sorted(facts.items())), **facts}


def frame(*rows: Mapping[str, Any]) -> pd.DataFrame:
    return verdict_frame({name: [one[name] for one in rows] for name in VERDICT_SCHEMA})


def one(*rows: Mapping[str, Any]) -> dict[str, Any]:
    fought = battles(frame(*rows))
    assert len(fought) == 1
    return dict(fought.iloc[0])


def test_orientation_is_undone() -> None:
    """FAULTS B17: 'B>A' as shown (base, cand), then 'A>B' as shown (cand, base): the candidate wins both."""
    both = one(row(preference=1.0), row(preference=0.0, orientation="reversed"))
    assert (both["preference"], both["consistent"], both["n_asked"], both["n_read"]) == (1.0, True, 2, 2)
    assert both["first_slot"] == 0.5
    assert one(row(preference=1.0), row(preference=1.0, orientation="reversed"))["preference"] == 0.5
    alpaca = one(row(preference=1 - 4.8889e-6, orientation="reversed"))
    assert alpaca["preference"] == pytest.approx(4.8889e-6)
    assert pd.isna(alpaca["consistent"])


def test_the_winner_is_named() -> None:
    named = frame(
        row(preference=0.9),
        row(preference=0.9, orientation="reversed"),
        row(preference=0.1),
        row(preference=0.5),
        row(),
        row(model_b=None, orientation=None, baseline=None, score=3.0),
    )
    assert named["winner"].astype(object).where(named["winner"].notna(), None).tolist() == [
        "cand", "base", "base", "tie", None, None,
    ]  # fmt: skip


def test_an_order_without_a_verdict_leaves_the_battle_without_one() -> None:
    half = one(row(preference=1.0), row(orientation="reversed", reason="refusal", source=None))
    assert pd.isna(half["preference"])
    assert (half["reason"], half["n_asked"], half["n_read"]) == ("refusal", 2, 1)
    assert pd.isna(half["consistent"])


def test_a_sample_that_failed_is_left_out_and_says_nothing_of_the_battle() -> None:
    rows = [
        row(sample=0, reason="timeout", source=None),
        row(sample=1, preference=1.0),
        row(orientation="reversed", preference=0.0),
    ]
    mended = one(*rows)
    assert (mended["preference"], mended["n_read"]) == (1.0, 2)
    assert pd.isna(mended["reason"])
    failed = one(*rows[:2], row(orientation="reversed", reason="refusal", source=None))
    assert failed["reason"] == "refusal"  # of the order that has none, not of a sample that was made up for


def test_samples_are_averaged_within_an_order_first() -> None:
    rows = [row(sample=n, preference=1.0) for n in range(3)] + [row(orientation="reversed", preference=1.0)]
    assert one(*rows)["preference"] == 0.5


def test_a_rule_is_a_rule_only_if_all_rows_are() -> None:
    assert one(row(preference=0.5, source="rule"))["source"] == "rule"
    assert one(row(preference=0.5, source="rule"), row(preference=0.5, sample=1))["source"] == "judge"


def test_what_is_one_battle() -> None:
    """FAULTS B105: other baselines are other battles, and never pooled here."""
    apart = ["benchmark", "protocol", "judge", "candidate", "baseline", "instruction_id"]
    rows = [row(preference=0.0), *(row(preference=1.0, **{name: "other"}) for name in apart)]
    fought = battles(frame(*rows, row(preference=1.0, turn=1)))
    assert len(fought) == len(rows) + 1
    assert fought["preference"].sum() == len(rows)
    assert fought[apart].apply(tuple, axis=1).is_monotonic_increasing


def test_no_rows() -> None:
    assert len(battles(frame())) == 0
    assert battles(frame()).dtypes.equals(battles(frame(row(preference=1.0))).dtypes)


def test_pointwise_scores() -> None:
    fought = battles(
        frame(
            *(
                row(baseline=None, model_b=None, orientation=None, sample=n, score=s)
                for n, s in enumerate([7, 8, None])
            )
        )
    )
    assert fought["score"].tolist() == [7.5]
    assert fought["baseline"].isna().all()
    assert fought["preference"].isna().all()


def test_pointwise_made_pairwise() -> None:
    def rated(model: str, item: str, score: float | None) -> dict[str, Any]:
        reason = None if score else "refusal"
        return row(
            candidate=model,
            baseline=None,
            model_b=None,
            orientation=None,
            instruction_id=item,
            score=score,
            reason=reason,
        )

    rows = [rated("x", i, s) for i, s in zip("abcd", (7, 5, 3, 6), strict=True)]
    rows += [rated("y", i, s) for i, s in zip("abc", (6, 5, None), strict=True)]
    pairs = pd.DataFrame({"candidate": ["x"], "baseline": ["y"]})
    fought = paired_scores(battles(frame(*rows)), pairs).set_index("instruction_id")
    assert fought["preference"].tolist()[:2] == [1.0, 0.5]
    assert pd.isna(fought.loc["c", "preference"])
    assert fought.loc["c", "reason"] == "refusal"
    assert "d" not in fought.index


def test_keys() -> None:
    assert len({verdict_key(a, b) for a in "xy" for b in "xy"}) == 4
    assert len(verdict_key("x", "y")) == 32


# The slow obvious version is the specification of the fast one.


def obvious(verdicts: pd.DataFrame) -> list[tuple[Any, ...]]:
    out = []
    for key, group in verdicts.groupby(["candidate", "instruction_id"]):
        means, sides, unread, reasons, firsts = [], [], False, [], []
        for orientation, order in group.groupby("orientation"):
            read = order.dropna(subset="preference").sort_values("sample")
            if read.empty:
                unread = True
                reasons += order.sort_values("sample")["reason"].dropna().tolist()
                continue
            turned = [1 - p if orientation == "reversed" else p for p in read["preference"]]
            means.append(sum(turned) / len(turned))
            sides.append(np.sign(means[-1] - 0.5))
            firsts.append(np.mean([(1 - np.sign(p - 0.5)) / 2 for p in read["preference"]]))
        preference = None if unread or not means else sum(means) / len(means)
        consistent = None if unread or len(means) < 2 else len(set(sides)) == 1
        first_slot = round(float(np.mean(firsts)), 9) if firsts else None
        reason = reasons[0] if reasons else None
        rounded = None if preference is None else round(preference, 9)
        out.append(
            (
                *key,
                rounded,
                consistent,
                reason,
                first_slot,
                len(group),
                int(group["preference"].notna().sum()),
            )
        )
    return out


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_as_the_obvious_version(data: st.DataObject) -> None:
    keys = st.tuples(
        st.sampled_from("xy"),
        st.sampled_from("123"),
        st.sampled_from(["direct", "reversed"]),
        st.integers(0, 2),
    )
    asked = data.draw(st.lists(keys, min_size=1, max_size=24, unique=True))
    values = st.sampled_from([None, 0.0, 0.25, 0.5, 1.0])
    rows = []
    for candidate, item, orientation, sample in asked:
        preference = data.draw(values)
        reason = data.draw(st.sampled_from(["refusal", "timeout"])) if preference is None else None
        rows.append(
            row(candidate=candidate, instruction_id=item, orientation=orientation, sample=sample,
                preference=preference, reason=reason, source=None if preference is None else "judge")
        )  # fmt: skip
    fought = battles(frame(*rows))
    columns = [
        "candidate",
        "instruction_id",
        "preference",
        "consistent",
        "reason",
        "first_slot",
        "n_asked",
        "n_read",
    ]
    ours = [
        tuple(None if pd.isna(v) else round(v, 9) if isinstance(v, float) else v for v in record)
        for record in fought[columns].itertuples(index=False)
    ]
    assert ours == obvious(frame(*rows))
