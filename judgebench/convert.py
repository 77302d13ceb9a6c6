"""The files of the data folder that our own experiment reads, made from a public repository's checkout.

    python -m judgebench.convert alpaca_eval CHECKOUT DATA_DIR [--models NAME,NAME]

CHECKOUT is a clone of https://github.com/tatsu-lab/alpaca_eval; docs/data.md names the commit. Written
are, below DATA_DIR/alpaca_eval: `outputs.parquet`, `judge_replays.parquet`, `evaluator_prompts.parquet`.
Instructions get their position in the hub's `alpaca_eval.json`, read from DATA_DIR/hub or fetched.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from judgebench.benchmark import Table
from judgebench.benchmark.formats import Row, alpaca_eval_swapped
from judgebench.errors import DataError, JudgebenchError

INSTRUCTIONS = "hf://datasets/tatsu-lab/alpaca_eval@17853a40d13d6685f232795138d844a92b4089c6/alpaca_eval.json"
JUDGE = "weighted_alpaca_eval_gpt4_turbo"

_NAME = pa.dictionary(pa.int32(), pa.string())
OUTPUTS = pa.schema([("model", _NAME), ("instruction_id", pa.int32()), ("output", pa.string())])
REPLAYS = pa.schema(
    [
        ("model", _NAME),
        ("instruction_id", pa.int32()),
        ("is_swapped", pa.bool_()),
        ("shown_first", _NAME),
        ("raw_text", pa.string()),
        ("finish_reason", _NAME),
        ("sampled_logprob", pa.float64()),
        ("top_logprobs", pa.list_(pa.struct([("token", pa.string()), ("logprob", pa.float64())]))),
        ("total_tokens", pa.int32()),
        ("preference", pa.float64()),
        ("price_per_example", pa.float64()),
        ("time_per_example", pa.float64()),
    ]
)
_PROMPTS: dict[str, pa.DataType] = dict.fromkeys(
    ("evaluator", "entry", "parser", "completions_fn", "model"), pa.string()
)
PROMPTS = pa.schema(
    _PROMPTS
    | {"batch_size": pa.int32()}
    | dict.fromkeys(("prompt_path", "prompt_template", "config_json"), pa.string())
)


def alpaca_eval(checkout: Path, data_dir: Path, models: Sequence[str] | None = None) -> list[str]:
    """Write the three files; returns what there is to say about each.

    Args:
        checkout: of the repository.
        data_dir: the data folder.
        models: folders below `results/`; default: all.

    Raises:
        DataError: no such checkout or model, a file in another layout, an unknown instruction.
    """
    results = checkout / "results"
    if not results.is_dir():
        raise DataError(f"{checkout} is no checkout of tatsu-lab/alpaca_eval: it has no folder results.")
    there = sorted(path.parent.name for path in results.glob("*/model_outputs.json"))
    for name in models or ():
        if name not in there:
            raise DataError(f"{results} holds no {name}/model_outputs.json; it has {len(there)} others.")
    rows, _ = Table(INSTRUCTIONS).read(data_dir)
    ids = {row["instruction"]: number for number, row in enumerate(rows)}
    said = []
    outputs: list[Row] = []
    replays: list[Row] = []
    unread: list[str] = []
    for name in models or there:
        outputs += _outputs(results / name / "model_outputs.json", name, ids)
        path = results / name / JUDGE / "annotations.json"
        if path.is_file():
            found = _replays(path, name, ids)
            # Some files keep the preferences only: there is nothing to replay.
            if any(row["raw_text"] is not None for row in found):
                replays += found
            else:
                unread.append(name)
    folder = data_dir / "alpaca_eval"
    said.append(_write(outputs, OUTPUTS, folder / "outputs.parquet"))
    said.append(_write(replays, REPLAYS, folder / "judge_replays.parquet"))
    if unread:
        said.append(f"without replies of {JUDGE}: {', '.join(unread)}")
    said.append(_write(list(_prompts(checkout)), PROMPTS, folder / "evaluator_prompts.parquet"))
    return said


def _outputs(path: Path, model: str, ids: dict[str, int]) -> list[Row]:
    rows, _ = Table(str(path), "alpaca_eval_outputs").read(None)
    positions = _positions(rows, ids, path)
    return sorted(
        (
            {"model": model, "instruction_id": position, "output": row["output"]}
            for position, row in zip(positions, rows, strict=True)
        ),
        key=_position,
    )


def _replays(path: Path, model: str, ids: dict[str, int]) -> list[Row]:
    rows, _ = Table(str(path), "alpaca_eval_annotations").read(None)
    return sorted(map(_replay, rows, _positions(rows, ids, path), [model] * len(rows)), key=_position)


def _replay(row: Row, position: int, model: str) -> Row:
    swapped = alpaca_eval_swapped(row["instruction"])
    tokens = row["total_tokens"]
    return {
        "model": model,
        "instruction_id": position,
        "is_swapped": swapped,
        "shown_first": "model" if swapped else "baseline",
        "raw_text": row["reply"],
        "sampled_logprob": row["token_logprob"],
        "total_tokens": None if tokens is None else int(tokens),
        # What is told of a row that was never judged tells nothing.
        **{
            name: row[name] if row["reply"] is not None or name == "preference" else None
            for name in (
                "finish_reason",
                "top_logprobs",
                "preference",
                "price_per_example",
                "time_per_example",
            )
        },
    }


def _position(row: Row) -> int:
    return int(row["instruction_id"])


def _positions(rows: Sequence[Row], ids: dict[str, int], path: Path) -> list[int]:
    unknown = [row["instruction"] for row in rows if row["instruction"] not in ids]
    if unknown:
        raise DataError(f"{path}: {len(unknown)} instructions are unknown; the first: {unknown[0][:100]!r}.")
    return [ids[row["instruction"]] for row in rows]


def _prompts(checkout: Path) -> Iterator[Row]:
    import yaml  # type: ignore[import-untyped]

    configs = checkout / "src" / "alpaca_eval" / "evaluators_configs"
    for path in sorted(configs.glob("*/configs.yaml")):
        for entry, config in yaml.safe_load(path.read_text(encoding="utf-8")).items():
            prompt = configs / config["prompt_template"]
            facts = {
                "evaluator": path.parent.name,
                "entry": entry,
                "parser": config.get("fn_completion_parser"),
                "completions_fn": config.get("fn_completions"),
                "model": (config.get("completions_kwargs") or {}).get("model_name"),
            }
            yield {
                **facts,
                "batch_size": config.get("batch_size"),
                "prompt_path": config["prompt_template"],
                "prompt_template": _text(prompt) if prompt.is_file() else None,
                "config_json": json.dumps(config),
            }


def _text(path: Path) -> str:
    with open(path, encoding="utf-8", newline="") as file:
        return file.read()


def _write(rows: list[Row], schema: pa.Schema, path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".part")
    try:
        table = pa.Table.from_pylist(rows, schema=schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise DataError(
            f"{path.name}: the public files are in another layout than known here: {error}"
        ) from None
    pq.write_table(table, unfinished, compression="zstd")
    os.replace(unfinished, path)
    models = f" of {len({row['model'] for row in rows})} models" if "instruction_id" in schema.names else ""
    return f"{path}: {len(rows)} rows{models}"


SOURCES: dict[str, Callable[[Path, Path, Sequence[str] | None], list[str]]] = {"alpaca_eval": alpaca_eval}


def main(argv: Sequence[str] | None = None) -> int:
    """The command; 0, or 1 with one paragraph on stderr."""
    parser = argparse.ArgumentParser(prog="python -m judgebench.convert", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("source", choices=sorted(SOURCES))
    parser.add_argument("checkout", type=Path)
    parser.add_argument("data_dir", type=Path)
    parser.add_argument(
        "--models", type=lambda text: text.split(","), help="folders below results/; default: all"
    )
    given: Any = parser.parse_args(argv)
    try:
        for line in SOURCES[given.source](given.checkout, given.data_dir, given.models):
            print(line)
    except JudgebenchError as error:
        print(f"judgebench.convert: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
