"""Verdicts and battles: what readers made of judgements, and what that says about two models.

A verdict speaks of the slots of a rendered prompt: `preference` = P(the answer in slot `model_b` is
better). A battle speaks of models: P(the candidate is better). `battles` is the one place where
orientation is undone and where samples and orders are collapsed. Frames in, frames out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

VERDICT_SCHEMA: Final = {
    "verdict_key": "text",
    "benchmark": "text",
    "protocol": "text",
    "judge": "text",
    "instruction_id": "text",
    "turn": "int",
    "cluster_id": "text",
    "category": "text",
    "language": "text",
    "candidate": "text",
    "baseline": "text",
    "model_a": "text",
    "model_b": "text",
    "orientation": "text",
    "candidate_sample": "int",
    "sample": "int",
    "preference": "float",
    "score": "float",
    "label": "text",
    "winner": "text",  # the preferred model, or tie; null where there is no preference
    "confidence": "float",
    "reason": "text",
    "source": "text",  # judge, rule; null where there is no verdict
    "origin": "text",  # of the judgement: paid, shipped, replayed, imported; null for rules
    "finish_reason": "text",
    "served_model": "text",
    "reader": "text",
    "template_hash": "text",
    "judge_descriptor": "text",
    "input_hash": "text",  # with judge_descriptor and sample the key in the store; null for rules
    "answer_a": "text",
    "answer_b": "text",
    "candidate_chars": "int",
    "baseline_chars": "int",
    "candidate_truncated": "bool",
}
"""Columns and kinds of the verdict frame, one row a judgement asked for."""

TIE = "tie"
_KINDS = {"text": "str", "int": "int64", "float": "float64", "bool": "bool"}


def verdict_frame(columns: Mapping[str, Sequence[Any]]) -> pd.DataFrame:
    """Columns of Python values as a typed verdict frame; `winner` follows from the others."""
    slots = zip(columns["preference"], columns["model_a"], columns["model_b"], strict=True)
    whole = {**columns, "winner": [_winner(*slot) for slot in slots]}
    return pd.DataFrame(
        {name: pd.Series(whole[name], dtype=_KINDS[kind]) for name, kind in VERDICT_SCHEMA.items()}
    )


def _winner(preference: float | None, model_a: str, model_b: str) -> str | None:
    if preference is None or preference != preference:
        return None
    return model_b if preference > 0.5 else model_a if preference < 0.5 else TIE


_BATTLE = ["benchmark", "protocol", "judge", "candidate", "baseline", "instruction_id", "turn"]


def verdict_key(descriptor_hash: str, subject_key: str) -> str:
    """32 hex digits over the judge's descriptor and the subject (which holds the sample); never null."""
    return hashlib.sha256(f"{descriptor_hash}\n{subject_key}".encode()).hexdigest()[:32]


def battles(verdicts: pd.DataFrame) -> pd.DataFrame:
    """One row an (instruction, candidate, baseline) under one judge and protocol.

    Source order is (baseline, candidate); `direct` keeps it, so slot B is the candidate's; a
    `reversed` preference is turned round. Samples are averaged within an order, then the orders.
    An order without any verdict leaves the battle without one: the other order alone would carry
    the judge's position bias into the table.

    Args:
        verdicts: as `VERDICT_SCHEMA`; row order does not matter.

    Returns:
        Columns of the grouping, cluster_id, category, language, preference and score (float64),
        reason, consistent (boolean, null unless two orders were read), n_asked, n_read (int32),
        candidate_chars (int64), candidate_truncated, reader, source, first_slot (share of the read
        verdicts that preferred the answer shown first); sorted by the grouping.
    """
    frame = verdicts.assign(
        first_slot=(1.0 - np.sign(verdicts["preference"] - 0.5)) / 2.0,
        baseline=verdicts["baseline"].fillna(""),
        orientation=verdicts["orientation"].fillna(""),
        preference=np.where(
            verdicts["orientation"].eq("reversed"), 1.0 - verdicts["preference"], verdicts["preference"]
        ),
    )
    frame["read"] = frame["preference"].notna() | frame["score"].notna()
    frame["by_rule"] = frame["source"].eq("rule")
    # Chunks come in as answers do; the sort makes sums independent of arrival.
    frame = frame.sort_values([*_BATTLE, "orientation", "candidate_sample", "sample"], kind="stable")
    orders = frame.groupby([*_BATTLE, "orientation"], sort=True, as_index=False).agg(
        preference=("preference", "mean"),
        score=("score", "mean"),
        first_slot=("first_slot", "mean"),
        asked=("read", "size"),
        read=("read", "sum"),
        reason=("reason", "first"),
        by_rule=("by_rule", "all"),
        cluster_id=("cluster_id", "first"),
        category=("category", "first"),
        language=("language", "first"),
        candidate_chars=("candidate_chars", "first"),
        candidate_truncated=("candidate_truncated", "any"),
        reader=("reader", "first"),
    )
    orders["unread"] = orders["read"].eq(0)
    orders["side"] = np.sign(orders["preference"] - 0.5)
    out = orders.groupby(_BATTLE, sort=True, as_index=False).agg(
        cluster_id=("cluster_id", "first"),
        category=("category", "first"),
        language=("language", "first"),
        preference=("preference", "mean"),
        score=("score", "mean"),
        first_slot=("first_slot", "mean"),
        reason=("reason", "first"),
        orders=("side", "size"),
        sides=("side", "count"),
        low_side=("side", "min"),
        high_side=("side", "max"),
        unread=("unread", "any"),
        n_asked=("asked", "sum"),
        n_read=("read", "sum"),
        candidate_chars=("candidate_chars", "first"),
        candidate_truncated=("candidate_truncated", "any"),
        reader=("reader", "first"),
        by_rule=("by_rule", "all"),
    )
    out.loc[out["unread"], ["preference", "score"]] = np.nan
    out["reason"] = out["reason"].where(out["unread"], None)
    same = out["low_side"].eq(out["high_side"]).astype("boolean")
    out["consistent"] = same.where(out["sides"].ge(2) & ~out["unread"])
    out["source"] = np.where(out["by_rule"], "rule", "judge")
    out["baseline"] = out["baseline"].where(out["baseline"].ne(""), None)
    out = out.astype({"n_asked": "int32", "n_read": "int32", "turn": "int32", "candidate_chars": "int64"})
    return out.drop(columns=["orders", "sides", "low_side", "high_side", "unread", "by_rule"])


def paired_scores(battles: pd.DataFrame, pairs: pd.DataFrame) -> pd.DataFrame:
    """Pointwise battles made pairwise: the higher score wins, equal ones are a tie.

    Args:
        battles: pointwise ones, as `battles` gives them.
        pairs: columns `candidate`, `baseline`: who is compared with whom.

    Returns:
        Battles of those pairs, on the items that both were rated on or failed on.
    """
    same = ["benchmark", "protocol", "judge", "instruction_id", "turn"]
    theirs = battles[[*same, "candidate", "score", "reason"]].rename(
        columns={"candidate": "baseline", "score": "other", "reason": "other_reason"}
    )
    out = battles.drop(columns="baseline").merge(pairs, on="candidate").merge(theirs, on=[*same, "baseline"])
    out["preference"] = (np.sign(out["score"] - out["other"]) + 1.0) / 2.0
    out["reason"] = out["reason"].fillna(out["other_reason"])
    out["score"] = np.nan
    return out[battles.columns]
