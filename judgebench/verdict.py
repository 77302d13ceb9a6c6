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
from numpy.typing import NDArray

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
    codes = [_codes(verdicts[name]) for name in _BATTLE]
    orientation = _codes(verdicts["orientation"])
    inner = (verdicts["sample"].to_numpy(), verdicts["candidate_sample"].to_numpy(), orientation)
    # Rows come in as answers do; the sort makes sums independent of arrival.
    at = np.lexsort((*inner, *reversed(codes)))
    frame, orientation, codes = verdicts.iloc[at], orientation[at], [code[at] for code in codes]
    begins = np.zeros(len(frame), dtype=bool)
    begins[:1] = True
    for code in codes:
        begins[1:] |= code[1:] != code[:-1]
    changes = begins.copy()
    changes[1:] |= orientation[1:] != orientation[:-1]
    first = np.flatnonzero(begins)  # the first row of each battle
    order = np.flatnonzero(changes)  # the first row of each order of a battle
    of = np.searchsorted(order, first)  # the first order of each battle

    given = frame["preference"].to_numpy(np.float64)
    mine = np.where(frame["orientation"].eq("reversed"), 1.0 - given, given)
    score = frame["score"].to_numpy(np.float64)
    read = ~(np.isnan(mine) & np.isnan(score))
    preferences = _means(mine, order)
    unread = _sums(read, order) == 0
    lost = _sums(unread, of) > 0
    sides = np.sign(preferences - 0.5)
    sided = ~np.isnan(sides)
    same = np.fmin.reduceat(sides, of) == np.fmax.reduceat(sides, of) if len(of) else np.zeros(0, dtype=bool)

    out = frame.iloc[first][[*_BATTLE, "cluster_id", "category", "language"]].reset_index(drop=True)
    out["preference"] = np.where(lost, np.nan, _means(preferences, of))
    out["score"] = np.where(lost, np.nan, _means(_means(score, order), of))
    out["first_slot"] = _means(_means((1.0 - np.sign(given - 0.5)) / 2.0, order), of)
    out["reason"] = _first_reason(frame, np.repeat(unread, np.diff([*order, len(frame)])), first)
    out["n_asked"] = np.diff([*first, len(frame)])
    out["n_read"] = _sums(read, first)
    out["candidate_chars"] = frame["candidate_chars"].to_numpy()[first]
    out["candidate_truncated"] = _sums(frame["candidate_truncated"].to_numpy(bool), first) > 0
    out["reader"] = frame["reader"].iloc[first].reset_index(drop=True)
    consistent = pd.Series(same, dtype="boolean")
    out["consistent"] = consistent.where((_sums(sided, of) >= 2) & ~lost)
    by_rule = _sums(frame["source"].eq("rule").to_numpy(), first) == out["n_asked"].to_numpy()
    out["source"] = np.where(by_rule, "rule", "judge")
    return out.astype({"n_asked": "int32", "n_read": "int32", "turn": "int32", "candidate_chars": "int64"})


def _codes(column: pd.Series[Any]) -> NDArray[np.int64]:
    """Numbers that sort as the values do, null first."""
    return pd.factorize(column, sort=True)[0]


def _sums(values: NDArray[Any], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many are true in each run of rows."""
    return np.add.reduceat(values.astype(np.int64), starts) if len(starts) else np.zeros(0, np.int64)


def _means(values: NDArray[np.float64], starts: NDArray[np.int64]) -> NDArray[np.float64]:
    """The mean of each run of rows without its NaNs; NaN where that leaves none."""
    known = ~np.isnan(values)
    count = _sums(known, starts)
    total = np.add.reduceat(np.where(known, values, 0.0), starts) if len(starts) else np.zeros(0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _first_reason(frame: pd.DataFrame, unread: NDArray[np.bool_], first: NDArray[np.int64]) -> pd.Series[Any]:
    """Why each battle has no verdict: the first reason in an order that has none."""
    reasons = frame["reason"].reset_index(drop=True)[unread].dropna()
    battle = np.searchsorted(first, reasons.index.to_numpy(), side="right") - 1
    reasons.index = pd.Index(battle)
    return reasons[~reasons.index.duplicated()].reindex(range(len(first)))


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
