"""The declared schemas of a run's files, beside those of the leaderboards in `report`."""

from __future__ import annotations

import pyarrow as pa

from judgebench.report import declare
from judgebench.verdict import VERDICT_SCHEMA

_TYPES: dict[str, pa.DataType] = {
    "text": pa.string(),
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
}


def _fields(text: str) -> list[tuple[str, pa.DataType, bool]]:
    words = text.split()
    pairs = zip(words[::2], words[1::2], strict=True)
    return [(name, _TYPES[kind.rstrip("?")], kind.endswith("?")) for name, kind in pairs]


COMPLETIONS = declare(
    "completions",
    1,
    _fields("""
        benchmark text  role text  model text  instruction_id text  turn int  sample int
        output text?  finish_reason text?  origin text?  reason text?  chars int
        descriptor text  input_hash text?
    """),
)

_ALWAYS = frozenset(
    """
    verdict_key benchmark protocol judge instruction_id turn cluster_id candidate model_a
    candidate_sample sample reader template_hash judge_descriptor candidate_chars baseline_chars
    candidate_truncated
    """.split()
)
VERDICTS = declare(
    "verdicts", 1, [(name, _TYPES[kind], name not in _ALWAYS) for name, kind in VERDICT_SCHEMA.items()]
)

JUDGE_CHECK = declare(
    "judge_check",
    1,
    _fields("""
        benchmark text  protocol text  judge text  category text?  accuracy float?  low float?  high float?
        standard_error float?  n int  n_asked int  coverage float  n_correct int  n_ties int  n_wrong int
        n_clusters int  first_slot_share float?
    """),
)
