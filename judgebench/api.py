"""The Python surface: `judge` a data frame, `rank` verdicts, `run` an experiment.

The same code as the command line, on the same store; works inside a notebook's running loop.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import OmegaConf

from judgebench import loop, ranking
from judgebench.answers import Conversation
from judgebench.benchmark import Instruction
from judgebench.cli import invoke
from judgebench.engine import Engine
from judgebench.errors import ConfigError, DataError, choices
from judgebench.judgements import Judgements, Match
from judgebench.looking import frame as frame_of
from judgebench.looking import tell
from judgebench.model import Model
from judgebench.progress import watch
from judgebench.protocol import Protocol
from judgebench.request import Request, canonical, clean, digest
from judgebench.stage import fill
from judgebench.store import RoleRoot, default_root, querying
from judgebench.store.root import root_of
from judgebench.tally import Tally
from judgebench.usage import conf_dir
from judgebench.verbs import Result
from judgebench.verdict import battles


@dataclass(frozen=True)
class _Given:
    """One model's answers, as a frame holds them."""

    label: str
    benchmark: str
    by_item: Mapping[str, list[Conversation]]


def judge(
    frame: pd.DataFrame,
    *,
    judge: str | Model = "local",
    protocol: str | Protocol = "pairwise_logprob",
    benchmark: str = "frame",
    store: str | Path | None = None,
    data_dir: str | Path | None = None,
    order_seed: int = 0,
    engine: Engine | None = None,
) -> pd.DataFrame:
    """Judge the answers in a data frame.

    Args:
        frame: one row an item: `instruction`, `output_a` and, for pairwise protocols, `output_b`
            (text); optionally `instruction_id` (default: a hash of the content), `model_a`, `model_b`
            (default `a`, `b`), `reference`, `system`, `category`, `language`, `cluster_id`.
        judge: a conf's name (`conf/model/`) or a `Model`.
        protocol: a conf's name (`conf/protocol/`) or a `Protocol`.
        benchmark: the name under which the store keeps what the answers were used for.
        store: the store root; default `$JUDGEBENCH_STORE` or the user's data folder.
        data_dir: for official prompts.
        order_seed: places answers where the protocol draws the order.
        engine: instead of the judge's own.

    Returns:
        The verdicts (`judgebench.verdict.VERDICT_SCHEMA`), one row a judgement, in input order, with
        the input row's position in a first column `row` (int64). `preference` is P(the answer in slot
        `model_b` of that prompt is better); `battles` or `rank` undo the order.

    Raises:
        ConfigError, DataError: an unknown name, a missing column, null text, a duplicate item.
        EngineError: a judge that cannot be used.
    """
    chosen = protocol if isinstance(protocol, Protocol) else _conf("protocol", protocol, Protocol)
    model = judge if isinstance(judge, Model) else _conf("model", judge, Model)
    matches, rows = _matches(frame, chosen.mode == "pairwise", benchmark)
    judgements = Judgements(
        chosen, {"judge": model}, matches, order_seed, Path(data_dir) if data_dir else None
    )
    tally = Tally()
    root = Path(store).expanduser().absolute() if store else default_root()

    def engine_of(request: Request) -> Engine:
        return model.require_engine(engine)

    async def work(stop: asyncio.Event) -> None:
        with (
            closing(RoleRoot(root, "judgements", secrets.token_hex(8))) as kept,
            watch("judgements", tally),
        ):
            await fill(
                judgements.requests(),
                store=kept,
                engine_of=engine_of,
                deliver=judgements.take,
                tally=tally,
                stop=stop,
            )

    loop.wait(work)
    verdicts = judgements.verdicts()
    keys = zip(
        verdicts["candidate"], verdicts["baseline"].fillna(""), verdicts["instruction_id"], strict=True
    )
    verdicts.insert(0, "row", [rows[key] for key in keys])
    return verdicts.sort_values("row", kind="stable", ignore_index=True)


def rank(
    verdicts: pd.DataFrame,
    *,
    confidence: float = 0.95,
    interval: str = "analytic",
    resamples: int = 1000,
    seed: int = 0,
) -> pd.DataFrame:
    """The leaderboard of a verdict frame; see `judgebench.ranking.leaderboard`."""
    return ranking.leaderboard(
        battles(verdicts), confidence=confidence, interval=interval, resamples=resamples, seed=seed
    )


def run(overrides: Sequence[str] = ()) -> Result:
    """`judgebench run` with these overrides; returns its frames and folder.

    Raises:
        JudgebenchError: what the command line would say.
    """
    result = invoke("run", list(overrides)).result
    assert isinstance(result, Result)
    return result


def query(sql: str, *, role: str | None = None, root: str | Path | None = None) -> pd.DataFrame:
    """One SELECT over everything stored; see docs/store.md. Reads only.

    Args:
        sql: over the views `completions` and `judgements`, and the tables `responses`, `subjects`,
            `attempts`, `superseded`, `tombstones` of a role.
        role: whose tables; default: that of the view in the query.
        root: the store root; default `$JUDGEBENCH_STORE` or the user's data folder.

    Returns:
        The rows, columns as the query names them. A file that cannot be read is left out, and a
        warning of the logger `judgebench` names it.

    Raises:
        ConfigError: wrong SQL, or SQL that would write.
    """
    found = querying.query(root_of({"root": root}), sql, role)
    tell(found.problems)
    return frame_of(found)


def _conf(group: str, name: str, kind: type) -> Any:
    """A conf of a group, built."""
    from hydra.utils import instantiate

    place = conf_dir() / group
    path = place / f"{name}.yaml"
    if not path.is_file():
        raise ConfigError(f"{group}: {choices(name, (p.stem for p in place.glob('*.yaml')))}")
    built = instantiate(OmegaConf.load(path), _convert_="all")
    assert isinstance(built, kind)
    return built


def _matches(
    frame: pd.DataFrame, pairwise: bool, benchmark: str
) -> tuple[list[Match], dict[tuple[str, str, str], int]]:
    if not isinstance(frame, pd.DataFrame):
        raise DataError(f"A pandas data frame is expected, not a {type(frame).__name__}.")
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice):
        raise DataError(f"The column {twice[0]!r} is in the frame twice.")
    benchmark = clean(benchmark)
    needed = ["instruction", "output_a", *(["output_b"] if pairwise else [])]
    for name in needed:
        if name not in frame.columns:
            raise DataError(f"The frame has no such column: {choices(name, map(str, frame.columns))}")
        empty = frame[name].isna().to_numpy().nonzero()[0]
        if len(empty):
            more = f" and {len(empty) - 1} more" if len(empty) > 1 else ""
            raise DataError(f"{name} is null in row {empty[0]}{more}; drop or fill them.")
    sides: dict[tuple[str, str], tuple[dict[str, list[Conversation]], dict[str, list[Conversation]]]] = {}
    rows: dict[tuple[str, str, str], int] = {}
    for position, row in enumerate(frame.to_dict("records")):
        item = _instruction(row)
        first, second = _name(row, "model_a", "a", position), _name(row, "model_b", "b", position)
        # Source order is (baseline, candidate): with two answers the second one is the candidate.
        candidate, baseline = (second, first) if pairwise else (first, "")
        key = (candidate, baseline, item.instruction_id)
        if _nothing(row.get("instruction_id")):
            times = 1
            while key in rows:  # the frame repeats the item: one cluster, several ids
                times += 1
                key = (candidate, baseline, f"{item.instruction_id}-{times}")
            item = replace(item, instruction_id=key[2])
        if key in rows:
            raise DataError(f"Rows {rows[key]} and {position} both hold {key}: ids must tell items apart.")
        rows[key] = position
        mine, theirs = sides.setdefault((candidate, baseline), ({}, {}))
        mine[item.instruction_id] = [_talk(item, row["output_b" if pairwise else "output_a"])]
        if pairwise:
            theirs[item.instruction_id] = [_talk(item, row["output_a"])]
    matches = [
        Match(_Given(candidate, benchmark, mine), _Given(baseline, benchmark, theirs) if pairwise else None)
        for (candidate, baseline), (mine, theirs) in sides.items()
    ]
    return matches, rows


def _nothing(value: Any) -> bool:
    return value is None or value is pd.NA or (isinstance(value, float) and value != value)


def _name(row: Mapping[Any, Any], column: str, default: str, position: int) -> str:
    """A model's name; a null one is nobody's."""
    value = row.get(column, default)
    if _nothing(value):
        raise DataError(f"{column} is null in row {position}; name the model, or leave the column out.")
    return clean(str(value))


def _instruction(row: Mapping[Any, Any]) -> Instruction:
    def text(name: str) -> str | None:
        value = row.get(name)
        return None if _nothing(value) else clean(str(value))

    # Without ids the content is one: positions would mix up the items of two frames in one table.
    content = canonical([text("instruction"), text("system"), text("reference")])
    identity = text("instruction_id") or digest(content)[:12]
    reference = text("reference")
    return Instruction(
        instruction_id=identity,
        turns=(clean(str(row["instruction"])),),
        system=text("system"),
        reference=None if reference is None else (reference,),
        category=text("category"),
        language=text("language"),
        cluster_id=text("cluster_id") or identity,
    )


def _talk(item: Instruction, output: Any) -> Conversation:
    talk = Conversation(item, 0)
    # Lineage of an answer that came in a frame: its content.
    talk.add(clean(str(output)), f"frame:{digest(clean(str(output)))}:0", None, "imported")
    return talk
