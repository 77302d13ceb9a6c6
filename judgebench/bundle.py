"""The answers that a run's own files name: enough for anyone to make the same tables without a call."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from judgebench.errors import DataError
from judgebench.store.packing import Named
from judgebench.store.parcel import SUBJECT_ROW, Row
from judgebench.tables import COMPLETIONS, VERDICTS, read_parquet
from judgebench.verdict import verdict_key

# Role -> the files that name its answers, their schema, and the column that tells who answered.
_FILES = {
    "completions": (("completions.parquet",), COMPLETIONS, "descriptor"),
    "judgements": (("verdicts.parquet", "check_verdicts.parquet"), VERDICTS, "judge_descriptor"),
}
# What a completion was used for: the columns of the file, and where they stand in a row of `subjects`.
_USE = ["benchmark", "model", "instruction_id", "turn"]
_USE_AT = [SUBJECT_ROW.index("model_a" if name == "model" else name) for name in _USE]


def bundle(run: Path, role: str) -> Named:
    """What the files of a run or a sweep name of a role: answers, and the runs' own uses of them.

    Raises:
        DataError: there are none.
    """
    names, declared, answered_by = _FILES[role]
    files = [path for name in names for path in sorted(run.rglob(name))]
    if not files:
        raise DataError(f"run={str(run)!r} holds no {names[0]}: give the folder of a run or of a sweep.")
    answers: dict[str, set[tuple[str, int]]] = {}
    uses: set[object] = set()
    for file in files:
        frame = read_parquet(file, declared)
        # Without an origin it is an answer that was not had, without a key a rule's: neither is stored.
        stored: pd.DataFrame = frame[frame["input_hash"].notna() & frame["origin"].notna()]
        for row in stored.to_dict("records"):
            who, key = str(row[answered_by]), (str(row["input_hash"]), int(row["sample"]))
            answers.setdefault(who, set()).add(key)
            uses.add(
                row["verdict_key"] if role == "judgements" else (who, *key, *(row[name] for name in _USE))
            )

    def own(who: str, use: Row) -> bool:
        if role == "judgements":
            return verdict_key(who, use[0]) in uses
        return (who, use[1], use[2], *(use[at] for at in _USE_AT)) in uses

    return Named(answers, own)
