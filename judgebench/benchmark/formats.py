"""Layouts of files: functions from a path to rows, one for each that the field uses.

Rows are dicts with text as it stands in the file: nothing is stripped, an empty cell is an empty text
and "NA" is an answer. NaN, which data frames write where nothing is, is null. Nothing here knows what a
row is for.
"""

from __future__ import annotations

import csv
import json
import random
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from judgebench.errors import DataError

Row: TypeAlias = dict[str, Any]

_FIELD_LIMIT = threading.Lock()  # the csv module has one for the process, of 131,072 characters


def _csv(path: Path, delimiter: str = ",") -> list[Row]:
    """Every value is text: "007" stays. Quoted cells may hold line breaks of any kind."""
    with _FIELD_LIMIT, open(path, encoding="utf-8-sig", newline="") as file:
        before = csv.field_size_limit(2**31 - 1)
        try:
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            names = next(reader, [])
            rows = [(reader.line_num, row) for row in reader if row]
        except csv.Error as error:
            raise DataError(f"{path}, line {reader.line_num}: {error}.") from None
        finally:
            csv.field_size_limit(before)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"{path}: the column {twice[0]!r} is there twice.")
    for line, row in rows:
        if len(row) != len(names):
            raise DataError(
                f"{path}: the row that ends in line {line} has {len(row)} cells, and the header has "
                f"{len(names)} ({', '.join(names)}). Put cells that hold {delimiter!r} in double quotes."
            )
    return [dict(zip(names, row, strict=True)) for _, row in rows]


def _jsonl(path: Path) -> list[Row]:
    rows = []
    with open(path, encoding="utf-8-sig", newline="\n") as file:
        # Lines end at \n only: U+2028 and U+0085 occur within records.
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    rows.append(json.loads(line, parse_constant=_constant))
                except json.JSONDecodeError as error:
                    raise DataError(f"{path}, line {number}: not JSON ({error.msg}).") from None
                if not isinstance(rows[-1], dict):
                    kind = type(rows[-1]).__name__
                    raise DataError(f"{path}, line {number}: an object is expected, not {kind}.")
    return rows


def _json(path: Path) -> list[Row]:
    with open(path, encoding="utf-8-sig") as file:
        content = json.load(file, parse_constant=_constant)
    if not isinstance(content, list) or not all(isinstance(row, dict) for row in content):
        raise DataError(f"{path}: a list of objects is expected.")
    return content


def _parquet(path: Path) -> list[Row]:
    import pyarrow.parquet as pq

    rows: list[Row] = _no_nan(pq.read_table(path).to_pylist())
    return rows


def _constant(name: str) -> float | None:
    return None if name == "NaN" else float(name)


def _no_nan(value: Any) -> Any:
    """A value in which null stands for each NaN, also in its lists and mappings."""
    if isinstance(value, list):
        return [_no_nan(item) for item in value]
    if isinstance(value, dict):
        return {key: _no_nan(item) for key, item in value.items()}
    return None if value is not None and value != value else value


def _plain(path: Path) -> list[Row]:
    """A text file as one row."""
    return [{"text": path.read_text(encoding="utf-8")}]


# --- Arena-Hard ------------------------------------------------------------------------------------


def _arena_hard_questions(path: Path) -> list[Row]:
    """`uid, category, subcategory, prompt`; the shape of 2024 has `question_id` and `turns`."""
    return [
        {
            "instruction_id": row.get("uid") or row["question_id"],
            "turns": [row["prompt"] if "prompt" in row else row["turns"][0]["content"]],
            "category": row.get("subcategory") or row.get("category"),
        }
        for row in _jsonl(path)
    ]


def _arena_hard_answers(path: Path) -> list[Row]:
    """The last message's text, plain or as `{answer}`; of several rows of a uid the last one counts."""
    rows: dict[str, Row] = {}
    for row in _jsonl(path):
        if "messages" in row:
            content = row["messages"][-1]["content"]
        else:
            content = row["choices"][0]["turns"][0]["content"]
        output = content["answer"] if isinstance(content, dict) else content
        uid = row.get("uid") or row["question_id"]
        rows[uid] = {"instruction_id": uid, "outputs": [output]}
    return list(rows.values())


def _arena_hard_judgements(path: Path) -> list[Row]:
    """`games`: in the first one A is the baseline, in the second one the candidate. A row a game.

    Of several rows of one question the last one counts. `reply` is null where a game was not played.
    """
    last: dict[tuple[Any, Any, Any], Row] = {}
    for row in _jsonl(path):
        last[row.get("uid") or row["question_id"], row["judge"], row["model"]] = row
    rows = []
    for (uid, judge, model), row in last.items():
        for orientation, game in zip(("direct", "reversed"), row["games"], strict=False):
            said = (game or {}).get("judgment")
            asked = (game or {}).get("prompt", (game or {}).get("user_prompt"))
            rows.append(
                {
                    "instruction_id": uid,
                    "candidate": model,
                    "baseline": row.get("baseline"),
                    "judge": judge,
                    "orientation": orientation,
                    "reply": said.get("answer") if isinstance(said, dict) else said,
                    "prompt": {"messages": asked} if isinstance(asked, list) else asked,
                }
            )
    return rows


# --- FastChat --------------------------------------------------------------------------------------


def _fastchat_questions(path: Path) -> list[Row]:
    return [
        {"instruction_id": row["question_id"], "turns": row["turns"], "category": row.get("category")}
        for row in _jsonl(path)
    ]


def _fastchat_answers(path: Path) -> list[Row]:
    """Answers and references: `choices[0].turns`. `$ERROR$` is no answer; the last row of an id counts."""
    rows: dict[Any, Row] = {}
    for row in _jsonl(path):
        outputs = [None if text in ("$ERROR$", "ERROR") else text for text in row["choices"][0]["turns"]]
        rows[row["question_id"]] = {"instruction_id": row["question_id"], "outputs": outputs}
    return list(rows.values())


def _fastchat_single(path: Path) -> list[Row]:
    """`model_judgment/JUDGE_single.jsonl`; the judge is a pair of a model and the name of a prompt."""
    return [_fastchat_row(row, candidate=row["model"], game="") for row in _jsonl(path)]


def _fastchat_pair(path: Path) -> list[Row]:
    """`model_judgment/JUDGE_pair.jsonl`: two games a row, in the first one A is `model_1`.

    Which of the two is the candidate is not in the file, but who was shown first is (`positional`). Rows
    that were made from single ratings were never judged as pairs and are left out.
    """
    return [
        _fastchat_row(row, model_a=first, model_b=second, positional=True, game=game)
        for row in _jsonl(path)
        if "g1_judgment" in row
        for game, first, second in (
            ("g1_", row["model_1"], row["model_2"]),
            ("g2_", row["model_2"], row["model_1"]),
        )
    ]


def _fastchat_row(row: Row, *, game: str, **who: Any) -> Row:
    judge = row["judge"]
    said = row[f"{game}judgment"]
    return {
        "instruction_id": row["question_id"],
        **who,
        "judge": judge[0] if isinstance(judge, list) else judge,
        "turn": row.get("turn"),
        "reply": None if said in ("$ERROR$", "ERROR") else said,
        "prompt": row.get(f"{game}user_prompt"),
    }


# --- lm-evaluation-harness -------------------------------------------------------------------------


def _lm_eval_samples(path: Path) -> list[Row]:
    """`samples_TASK_TIME.jsonl` of a task that generates text: a row a document and repeat.

    `prompt` is what was asked: chat messages, or the text of a base model. A document comes once for each
    filter of the task, with the same replies.
    """
    rows: dict[tuple[Any, int], Row] = {}
    for row in _jsonl(path):
        asked, replies = row["arguments"], row["resps"]
        first, how = asked["gen_args_0"].values() if isinstance(asked, dict) else asked[0]
        if len(asked) != 1 or not isinstance(how, dict):
            raise ValueError(f"doc_id {row['doc_id']} was scored by likelihood: there is no text to import")
        chat = json.loads(first[0]) if isinstance(first, list) else None
        for sample, output in enumerate(replies[0]):
            rows[row["doc_id"], sample] = {
                "instruction_id": row["doc_id"],
                "instruction": first if chat is None else chat[-1]["content"],
                "sample": sample,
                "output": output,
                "prompt": {"prompt": first} if chat is None else {"messages": chat},
            }
    return list(rows.values())


# --- AlpacaEval ------------------------------------------------------------------------------------


def alpaca_eval_swapped(instruction: str) -> bool:
    """Whether AlpacaEval shows the candidate first: its seeding, on the unstripped text, annotator seed 0."""
    return random.Random(f"is_switched_outputs{instruction}0").random() >= 0.5


def _alpaca_eval_outputs(path: Path) -> list[Row]:
    """`results/MODEL/model_outputs.json`. Its `generator` is left out: it is not always the model's name."""
    return [{"instruction": row["instruction"], "output": row["output"]} for row in _json(path)]


def _alpaca_eval_annotations(path: Path) -> list[Row]:
    """`annotations.json`, with or without the key prefix `preference_` of newer releases.

    The order shown is not in the file; it follows from the instruction. `reply` is null where the judge
    was not asked (identical answers) or its reply was not kept.
    """
    return [_annotation(row) for row in _json(path)]


def _annotation(row: Mapping[str, Any]) -> Row:
    def kept(name: str) -> Any:
        return row.get(f"preference_{name}", row.get(name))

    raw = kept("raw_completion")
    if isinstance(raw, str):
        try:
            parsed = json.loads(raw)
        except ValueError:
            parsed = None
        if isinstance(parsed, dict) and {"text", "message", "logprobs"} & parsed.keys():
            raw = parsed
    place: Mapping[str, Any] = {}
    facts: Mapping[str, Any] = raw if isinstance(raw, dict) else {}
    reply = raw if isinstance(raw, str) else None
    if facts:
        place = ((facts.get("logprobs") or {}).get("content") or [{}])[0]
        reply = facts.get("text", (facts.get("message") or {}).get("content"))
        if reply is None and not place:
            reply = json.dumps(raw, ensure_ascii=False)  # the arguments of a function call
        elif reply is None:
            reply = place["token"]
    top = place.get("top_logprobs")
    preference = row.get("preference")
    return {
        "candidate": row.get("generator_2"),
        "baseline": row.get("generator_1"),
        "instruction": row["instruction"],
        "baseline_output": row.get("output_1"),
        "candidate_output": row.get("output_2"),
        "orientation": "reversed" if alpaca_eval_swapped(row["instruction"]) else "direct",
        "reply": reply,
        "finish_reason": facts.get("finish_reason"),
        "token_logprob": place.get("logprob"),
        "top_logprobs": [{k: entry[k] for k in ("token", "logprob")} for entry in top] if top else None,
        "preference": 1.5 if preference == 0 else preference,  # old files write 0 for a tie
        "total_tokens": facts.get("total_tokens"),
        "price_per_example": kept("price_per_example"),
        "time_per_example": kept("time_per_example"),
    }


FORMATS: dict[str, Callable[[Path], list[Row]]] = {
    "csv": _csv,
    "tsv": partial(_csv, delimiter="\t"),
    "jsonl": _jsonl,
    "ndjson": _jsonl,
    "json": _json,
    "parquet": _parquet,
    "text": _plain,
    "arena_hard_questions": _arena_hard_questions,
    "arena_hard_answers": _arena_hard_answers,
    "arena_hard_judgements": _arena_hard_judgements,
    "fastchat_questions": _fastchat_questions,
    "fastchat_answers": _fastchat_answers,
    "fastchat_single": _fastchat_single,
    "fastchat_pair": _fastchat_pair,
    "lm_eval_samples": _lm_eval_samples,
    "alpaca_eval_outputs": _alpaca_eval_outputs,
    "alpaca_eval_annotations": _alpaca_eval_annotations,
}
