"""`judgebench export`: the store's answers as files. Reads only; files appear whole.

`parquet` and `jsonl` are the flat table of a role, every column. `alpaca_eval` and `arena_hard` are the
layouts of those tools, as far as what they hold is defined: what has no place in them is counted and told.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from judgebench.benchmark import Benchmark, Instruction
from judgebench.benchmark.formats import alpaca_eval_swapped
from judgebench.errors import ConfigError, DataError, choices
from judgebench.folder import COMPLETE, Job
from judgebench.protocol import DIRECT, REVERSED, Protocol
from judgebench.store import flat, layout
from judgebench.store.deletion import conditions
from judgebench.store.layout import ROLES
from judgebench.store.root import root_of
from judgebench.tables import SURROGATE, appearing, declare

FORMATS = ("parquet", "jsonl", "alpaca_eval", "arena_hard")
VERSION = 1  # of the flat tables
CHUNK = 2000
_TYPES: dict[type, pa.DataType] = {str: pa.string(), int: pa.int64(), float: pa.float64()}
_FILE = re.compile(r'[^\x00-\x1f\\/<>:"|?*]+')

Row = dict[str, Any]


@dataclass
class Export:
    """See `conf/export.yaml`. `result` after the call: the files and their numbers of rows."""

    path: str | None = None
    format: str = "parquet"
    role: str | None = None
    where: Mapping[str, Any] = field(default_factory=dict)
    benchmark: Benchmark | None = None
    protocol: Protocol | None = None
    store: Mapping[str, Any] = field(default_factory=dict)
    data_dir: str | None = None

    def __call__(self, job: Job) -> int:
        """Write the files and say which; 0 also where nothing matches.

        Raises:
            ConfigError: no path, an unknown role, format or column, or a layout without its benchmark.
            DataError: answers of two models under one name, which a layout cannot tell apart.
        """
        if not self.path:
            raise ConfigError("Where to? Name a folder with path=….")
        if self.format not in FORMATS:
            raise ConfigError(f"format: {choices(self.format, FORMATS)}")
        if self.role not in (None, *ROLES):
            raise ConfigError(f"role: {choices(self.role, ROLES)}")
        self._root = root_of(self.store)
        self._out = Path(self.path).expanduser()
        self.result: dict[Path, int] = {}
        self._left: Counter[str] = Counter()
        print(f"store {self._root}")
        if self.format in ("parquet", "jsonl"):
            self._flat()
        else:
            self._layout()
        for path, count in self.result.items():
            print(f"  {count:>9,} rows  {path}")
        for reason, count in self._left.items():
            print(f"  {count:>9,} left out: {reason}")
        if not any(self.result.values()):
            print("Nothing matches.")
        return COMPLETE

    def _flat(self) -> None:
        write = _parquet if self.format == "parquet" else _jsonl
        self._out.mkdir(parents=True, exist_ok=True)
        for role in conditions(self.role, self.where):
            path = self._out / f"{role}.{self.format}"
            self.result[path] = write(flat.rows(self._root, role, self.where), path, role)

    # --- the layouts of other tools ------------------------------------------------------------------

    def _layout(self) -> None:
        if self.benchmark is None:
            raise ConfigError(f"format={self.format} holds the instructions' texts: name the benchmark=….")
        data = Path(self.data_dir).expanduser() if self.data_dir else None
        loaded = self.benchmark.load(data)
        items = {item.instruction_id: item for item in loaded.everything if len(item.turns) == 1}
        self._left["instructions of several turns"] = len(loaded.everything) - len(items)
        roles = conditions(self.role, self.where)
        if "completions" in roles:
            given = self._only("completions", items, turn=1)
            for model, rows in _by(given, "model_a", "its answers").items():
                if self.format == "arena_hard":
                    lines = [_answer_line(row, items[row["instruction_id"]]) for row in rows]
                    text = "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines)
                    self._write(Path("model_answer", f"{_file(model)}.jsonl"), text, len(rows))
                else:
                    listed = [_output(row, items[row["instruction_id"]]) for row in rows]
                    self._json(Path(_file(model), "model_outputs.json"), listed)
        if "judgements" in roles and self.format == "alpaca_eval" and self.protocol is not None:
            self._annotations(items, self.protocol)
        self._left = +self._left

    def _annotations(self, items: Mapping[str, Instruction], protocol: Protocol) -> None:
        texts = {
            f"{row['descriptor_hash']}:{row['input_hash']}:{row['sample']}": row["output"]
            for row in flat.rows(self._root, "completions", {"benchmark": self._benchmark})
        }
        pairs: dict[tuple[str, str], list[Row]] = {}
        for row in self._only("judgements", items, turn=0):
            item = items[row["instruction_id"]]
            swapped = alpaca_eval_swapped(item.turns[0])
            if row["protocol"] != protocol.name or row["model_b"] is None:
                self._left[f"judgements of another protocol than {protocol.name}"] += 1
            elif row["orientation"] != (REVERSED if swapped else DIRECT):
                self._left["judgements in the order that AlpacaEval does not show"] += 1
            elif row["answer_a"] not in texts or row["answer_b"] not in texts:
                self._left["judgements whose answers are not in the store"] += 1
            else:
                candidate = row["model_a"] if swapped else row["model_b"]
                pairs.setdefault((candidate, row["judge"]), []).append(row)
        for (candidate, judge), rows in pairs.items():
            _by(rows, "judge", "its judgements")
            listed = [_annotation(row, items[row["instruction_id"]], protocol, texts) for row in rows]
            self._json(Path(_file(candidate), _file(judge), "annotations.json"), listed)

    @property
    def _benchmark(self) -> str:
        assert self.benchmark is not None
        return self.benchmark.name

    def _only(self, role: str, items: Mapping[str, Instruction], turn: int) -> list[Row]:
        """The rows of this benchmark that have a place in a layout, in the order of its instructions."""
        rows = []
        for row in flat.rows(self._root, role, {**self.where, "benchmark": self._benchmark}):
            if row["instruction_id"] not in items or row["turn"] != turn:
                self._left[f"{role} of instructions that have no place"] += 1
            elif row["sample"]:
                self._left[f"{role} of further samples"] += 1
            else:
                rows.append(row)
        place = {identity: number for number, identity in enumerate(items)}
        return sorted(rows, key=lambda row: place[row["instruction_id"]])

    def _json(self, path: Path, listed: list[Row]) -> None:
        self._write(path, json.dumps(listed, ensure_ascii=False, indent=2), len(listed))

    def _write(self, path: Path, text: str, rows: int) -> None:
        target = self._out / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with appearing(target) as file:
            file.write(SURROGATE.sub("\ufffd", text).encode())
        self.result[target] = rows


def _parquet(rows: Iterable[Row], path: Path, role: str) -> int:
    kinds = flat.columns(role)
    schema = declare(f"export_{role}", VERSION, [(name, _TYPES[kind], True) for name, kind in kinds.items()])
    count = 0
    with (
        appearing(path) as file,
        pq.ParquetWriter(file, schema, compression="zstd", version="2.6") as writer,
    ):
        for chunk in _chunks(rows):
            count += len(chunk)
            writer.write_table(pa.Table.from_pylist(chunk, schema=schema))
    return count


def _jsonl(rows: Iterable[Row], path: Path, role: str) -> int:
    count = 0
    with appearing(path) as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
            count += 1
    return count


def _chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    iterator = iter(rows)
    while chunk := list(islice(iterator, CHUNK)):
        yield chunk


def _by(rows: Iterable[Row], name: str, what: str) -> dict[str, list[Row]]:
    """Rows by a name. Of one name there is one model, or the file would mix two."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        same = found.setdefault(row[name], [])
        same.append(row)
        if row["descriptor_hash"] != same[0]["descriptor_hash"]:
            raise DataError(
                f"{row[name]!r} stands for two models or settings ({same[0]['descriptor']} and "
                f"{row['descriptor']}), and {what} would be mixed. Choose with where.descriptor.NAME=VALUE."
            )
    return found


def _file(name: str) -> str:
    """A name as a path below a folder: `org/name` as it is, whatever could lead elsewhere by its hash."""
    parts = name.split("/")
    safe = all(_FILE.fullmatch(part) and not part.startswith(".") and part.strip() == part for part in parts)
    return name if safe else layout.part(name)


def _output(row: Row, item: Instruction) -> Row:
    return {
        "instruction": item.turns[0],
        "output": row["output"],
        "generator": row["model_a"],
        "dataset": item.category,
    }


def _answer_line(row: Row, item: Instruction) -> Row:
    system = [{"role": "system", "content": item.system}] if item.system else []
    return {
        "uid": item.instruction_id,
        "ans_id": row["input_hash"][:22],
        "model": row["model_a"],
        "messages": [
            *system,
            {"role": "user", "content": item.turns[0]},
            {"role": "assistant", "content": {"answer": row["output"]}},
        ],
        "tstamp": datetime.fromisoformat(row["created_at"]).timestamp(),
    }


def _annotation(row: Row, item: Instruction, protocol: Protocol, texts: Mapping[str, str]) -> Row:
    """AlpacaEval's row: output_1 is the baseline's; its preference is 1 + P(the candidate is better)."""
    sides = [(row["model_a"], texts[row["answer_a"]]), (row["model_b"], texts[row["answer_b"]])]
    reading = protocol.reader.read_one(row["output"], row["finish_reason"], row["top_logprobs"])
    preference = reading.preference
    if row["orientation"] == REVERSED:
        sides.reverse()
        preference = None if preference is None else 1 - preference
    logprobs = json.loads(row["top_logprobs"]) if row["top_logprobs"] else None
    return {
        "instruction": item.turns[0],
        "output_1": sides[0][1],
        "generator_1": sides[0][0],
        "output_2": sides[1][1],
        "generator_2": sides[1][0],
        "dataset": item.category,
        "annotator": row["judge"],
        "preference": None if preference is None else 1 + preference,
        "raw_completion": {
            "text": row["output"],
            "finish_reason": row["finish_reason"],
            "message": {"role": "assistant", "content": row["output"]},
            "logprobs": None if logprobs is None else {"content": logprobs},
        },
        "price_per_example": row["cost_usd"],
        "time_per_example": row["latency_s"],
    }
