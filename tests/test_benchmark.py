from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from judgebench.benchmark import Benchmark, Loaded, Table, files, source
from judgebench.errors import ConfigError, DataError

CONF = Path(__file__).resolve().parents[1] / "conf" / "benchmark"
ODD_IDS = ["a/b:c=d,e", "..", "CON", "x" * 250, "01", "1", "Ü\u2028", "ok \ud83d", "a\\b", " lead"]


def conf(name: str) -> Benchmark:
    built = instantiate(OmegaConf.load(CONF / f"{name}.yaml"), _convert_="all")
    assert isinstance(built, Benchmark)
    return built


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Rows in the format that the file's ending names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".jsonl":
        # Half an emoji can only stand in a file as an escape.
        lines = [json.dumps(row, ensure_ascii="\ud83d" in "".join(map(str, row.values()))) for row in rows]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def loaded(path: Path, **settings: Any) -> Loaded:
    return files(str(path), **settings).load(None)


def ids(benchmark: Loaded) -> list[str]:
    return [item.instruction_id for item in benchmark.instructions]


def texts(benchmark: Loaded) -> list[str]:
    return [item.turns[0] for item in benchmark.instructions]


# --- the shipped confs -------------------------------------------------------------------------------


def test_alpaca_eval(data_dir: Path) -> None:
    benchmark = conf("alpaca_eval").load(data_dir)
    assert ids(benchmark) == [str(n) for n in range(805)]
    assert Counter(item.category for item in benchmark.instructions) == {
        "selfinstruct": 252, "oasst": 188, "koala": 156, "helpful_base": 129, "vicuna": 80,
    }  # fmt: skip
    # Nothing is stripped: the order shown and joins hang on the exact text.
    assert sum(text != text.strip() for text in texts(benchmark)) == 5
    assert benchmark.whole
    both = [benchmark.shipped(name) for name in ("gpt4_1106_preview", "text_davinci_003")]
    assert [len(one or {}) for one in both] == [805, 805]
    assert both[0] != both[1]
    assert benchmark.shipped_models() == ["gpt4_1106_preview", "text_davinci_003"]
    assert benchmark.shipped("nobody") is None
    assert all(source.revision for source in benchmark.sources)


def test_alpaca_eval_outputs_join_on_the_exact_text_in_any_order(data_dir: Path, tmp_path: Path) -> None:
    hub = data_dir / "hub" / "tatsu-lab" / "alpaca_eval"
    rows = json.loads((hub / "alpaca_eval_gpt4_baseline.json").read_text(encoding="utf-8"))
    public = [{**row, "output": f"answer to {n}"} for n, row in enumerate(rows)]
    written(tmp_path / "results" / "org" / "model_outputs.json", public[::-1][:-2])  # two are missing
    own = files(
        str(hub / "alpaca_eval.json"), answers=str(tmp_path / "results" / "{model}" / "model_outputs.json")
    ).load(None)
    assert own.shipped_models() == ["org"]
    answers = own.shipped("org")
    assert answers is not None
    assert len(answers) == 803
    assert all(text == (f"answer to {key}",) for key, text in answers.items())

    stripped = [{"instruction": row["instruction"].strip(), "output": "x"} for row in rows]
    written(tmp_path / "results" / "stripped" / "model_outputs.json", stripped)
    with pytest.raises(DataError, match=r"5 belong to no instruction.*white space"):
        own.shipped("stripped")


def test_alpaca_eval_public_formats(tmp_path: Path) -> None:
    place = {"token": "M", "logprob": -0.5, "bytes": [77], "top_logprobs": [{"token": "M", "logprob": -0.5}]}
    raw = {"text": "M", "finish_reason": "length", "total_tokens": 9.0, "logprobs": {"content": [place]}}
    common = {"instruction": "Say hi", "output_1": "a", "output_2": "b", "generator_1": "base"}
    rows = [
        common | {"generator_2": "m", "preference": 1.2, "raw_completion": raw, "price_per_example": 0.1},
        common | {"generator_2": "m", "preference": 1.2, "preference_raw_completion": json.dumps(raw)},
        common | {"generator_2": "m", "preference": 0, "raw_completion": None},
        common | {"generator_2": "m", "preference": 2, "raw_completion": "[{'model': 'm', 'rank': 1}]"},
        common | {"generator_2": "m", "preference": 2, "raw_completion": {"ordered_models": []}},
    ]
    path = written(tmp_path / "annotations.json", rows)
    read, _ = Table(str(path), format="alpaca_eval_annotations").read(None)
    assert [row["reply"] for row in read] == [
        "M", "M", None, "[{'model': 'm', 'rank': 1}]", '{"ordered_models": []}',
    ]  # fmt: skip
    assert [row["preference"] for row in read] == [1.2, 1.2, 1.5, 2, 2]
    for row in read[:2]:
        assert row["top_logprobs"] == [{"token": "M", "logprob": -0.5}]
        assert (row["token_logprob"], row["finish_reason"], row["total_tokens"]) == (-0.5, "length", 9.0)
    outputs = written(tmp_path / "o.json", [{"instruction": "q", "output": "", "id": 3, "generator": "g"}])
    assert Table(str(outputs), format="alpaca_eval_outputs").read(None)[0] == [
        {"instruction": "q", "output": ""}
    ]


def test_arena_hard(data_dir: Path) -> None:
    benchmark = conf("arena_hard_v0_1").load(data_dir)
    assert len(set(ids(benchmark))) == 500
    assert all(len(identity) == 32 for identity in ids(benchmark))
    assert benchmark.shipped_models() == ["gpt-3.5-turbo-0125", "gpt-4-0314", "gpt-4-0613"]
    for name in benchmark.shipped_models():
        answers = benchmark.shipped(name)
        assert answers is not None
        assert len(answers) == 500
        assert all(len(outputs) == 1 and isinstance(outputs[0], str) for outputs in answers.values())
    assert benchmark.shipped("o1") is None  # the mirror's folder is taken at its word
    table = pq.read_table(data_dir / "arena_hard" / "model_answers.parquet").to_pylist()
    wanted = {r["uid"]: (r["answer"],) for r in table if r["model"] == "gpt-4-0613"}
    assert benchmark.shipped("gpt-4-0613") == wanted


@pytest.mark.parametrize("shape", ["object", "string", "2024"])
def test_arena_hard_shapes(tmp_path: Path, shape: str) -> None:
    def answer(uid: str, text: str) -> dict[str, Any]:
        if shape == "2024":
            return {"question_id": uid, "model_id": "m", "choices": [{"turns": [{"content": text}]}]}
        content = {"answer": text} if shape == "object" else text
        return {
            "uid": uid,
            "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": content}],
        }

    question = (
        {"question_id": "u", "turns": [{"content": "q\u2028?"}]}
        if shape == "2024"
        else {"uid": "u", "prompt": "q\u2028?"}
    )
    questions = written(tmp_path / "question.jsonl", [question])
    written(tmp_path / "m.jsonl", [answer("u", "first"), answer("u", "last")])
    benchmark = Benchmark(
        "a", Table(str(questions), "arena_hard_questions"),
        outputs=[Table(str(tmp_path / "{model}.jsonl"), "arena_hard_answers")],
    ).load(None)  # fmt: skip
    assert texts(benchmark) == ["q\u2028?"]
    assert benchmark.shipped("m") == {"u": ("last",)}  # re-runs append


def mirrored_mt_bench(data_dir: Path, mirror: Path) -> None:
    """The official layout, from the extracts."""
    space = mirror / "hub" / "lmsys" / "mt-bench" / "data" / "mt_bench"
    git = mirror / "git" / "lm-sys" / "FastChat" / "fastchat" / "llm_judge" / "data" / "mt_bench"
    questions = [
        {k: v for k, v in row.items() if k != "bench" and v is not None}
        for row in pq.read_table(data_dir / "mt_bench" / "questions.parquet").to_pylist()
        if row["bench"] == "mt_bench"
    ]
    written(space / "question.jsonl", questions)
    references = [
        {
            "question_id": row["question_id"], "answer_id": row["answer_id"], "model_id": row["model_id"],
            "choices": [{"index": 0, "turns": row["turns"]}], "tstamp": row["tstamp"],
        }
        for row in pq.read_table(data_dir / "mt_bench" / "reference_answers.parquet").to_pylist()
        if row["bench"] == "mt_bench"
    ]  # fmt: skip
    written(git / "reference_answer" / "gpt-4.jsonl", references)
    answers = [
        {"question_id": row["question_id"], "choices": [{"index": 0, "turns": ["one", "two"]}]}
        for row in questions
    ]
    answers[3]["choices"] = [{"index": 0, "turns": ["one", "$ERROR$"]}]
    written(space / "model_answer" / "gpt-3.5-turbo.jsonl", answers)


def test_mt_bench(data_dir: Path, tmp_path: Path) -> None:
    mirrored_mt_bench(data_dir, tmp_path)
    benchmark = conf("mt_bench").load(tmp_path)
    assert ids(benchmark) == [str(n) for n in range(81, 161)]
    assert all(len(item.turns) == 2 for item in benchmark.instructions)
    with_reference = [item for item in benchmark.instructions if item.reference]
    assert len(with_reference) == 30
    assert {item.category for item in with_reference} == {"reasoning", "math", "coding"}
    assert all(len(item.reference or ()) == 2 and all(item.reference or ()) for item in with_reference)
    answers = benchmark.shipped("gpt-3.5-turbo")
    assert answers is not None
    assert answers["81"] == ("one", "two")
    assert answers["84"] == ("one", None)  # an API error is no answer


def test_starter() -> None:
    benchmark = conf("starter").load(None)
    categories = [item.category for item in benchmark.instructions]
    assert len(set(ids(benchmark))) == len(categories) >= 120
    assert len(set(categories)) == 8
    assert {len(categories[n : n + 8]) - len(set(categories[n : n + 8])) for n in range(0, 24, 8)} == {0}
    assert any(len(item.turns) == 2 for item in benchmark.instructions)
    assert any(item.reference for item in benchmark.instructions)
    assert len({item.language for item in benchmark.instructions}) > 1
    sound, flawed = benchmark.shipped("starter-sound"), benchmark.shipped("starter-flawed")
    assert sound is not None
    assert flawed is not None
    for item in benchmark.instructions:
        both = sound[item.instruction_id], flawed[item.instruction_id]
        assert all(len(outputs) == len(item.turns) and all(outputs) for outputs in both), item.instruction_id
        assert both[0] != both[1]
    assert {truth[1:] for truth in benchmark.truths()} == {("starter-sound", "starter-flawed", 1.0)}


# --- your own files ----------------------------------------------------------------------------------

ROWS = [
    {"instruction_id": "p", "instruction": "Hi", "first": "Hello", "second": ""},
    {"instruction_id": "q", "instruction": "Name\r\ntwo, please", "first": "NA", "second": "null"},
    {"instruction_id": "r", "instruction": 'Say "x"', "first": "007", "second": "[1, 2]"},
]


def as_csv(rows: list[dict[str, Any]], delimiter: str = ",") -> str:
    def cell(value: Any) -> str:
        return '"' + str(value).replace('"', '""') + '"'

    lines = [rows[0].keys(), *(row.values() for row in rows)]
    return "".join(delimiter.join(map(cell, line)) + "\n" for line in lines)


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "json", "parquet"])
def test_every_format_gives_the_same(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"own.{ending}"
    if ending in ("csv", "tsv"):
        text = as_csv(ROWS, "\t" if ending == "tsv" else ",")
        path.write_text("\ufeff" + text, encoding="utf-8", newline="")  # as a spreadsheet writes it
    else:
        written(path, ROWS)
    benchmark = loaded(path, outputs=["first", "second"])
    assert benchmark.benchmark.name == "own"
    assert ids(benchmark) == ["p", "q", "r"]
    assert texts(benchmark) == ["Hi", "Name\r\ntwo, please", 'Say "x"']
    assert benchmark.shipped("first") == {"p": ("Hello",), "q": ("NA",), "r": ("007",)}
    # An empty text is an answer, and an answer that looks like a list is a text.
    assert benchmark.shipped("second") == {"p": ("",), "q": ("null",), "r": ("[1, 2]",)}
    assert benchmark.shipped_models() == ["first", "second"]


@pytest.mark.parametrize("ending", ["jsonl", "json", "parquet"])
def test_nan_is_null_in_every_format(tmp_path: Path, ending: str) -> None:
    nan = float("nan")
    rows = [
        {"instruction": "a", "category": "c", "m": "x", "better": "m", "worse": "n", "instruction_id": "p"},
        {"instruction": "b", "category": nan, "m": nan, "better": nan, "worse": nan, "instruction_id": "q"},
        {
            "instruction": "c",
            "category": None,
            "m": None,
            "better": None,
            "worse": None,
            "instruction_id": "r",
        },
    ]
    path = tmp_path / f"own.{ending}"
    if ending == "parquet":
        # A text column holds no NaN; one of numbers does.
        for row in rows:
            row.update(category=row["category"] and None, m=2.5 if row["m"] == "x" else row["m"])
            row.update({name: None for name in ("better", "worse") if row[name] != row[name]})
    written(path, rows)
    benchmark = loaded(path, outputs=["m"], labels=str(path))
    assert benchmark.shipped("m") == {
        "p": ("2.5" if ending == "parquet" else "x",),
        "q": (None,),
        "r": (None,),
    }
    assert [item.category for item in benchmark.instructions][1:] == [None, None]
    assert [truth.instruction_id for truth in benchmark.truths()] == ["p"]


def test_any_benchmark_takes_answers_from_a_column_of_its_file(tmp_path: Path) -> None:
    path = written(tmp_path / "own.jsonl", [{"qid": 7, "instruction": "q", "gpt": "a"}])
    table = Table(str(path), columns={"instruction_id": "qid"})
    benchmark = Benchmark("mine", table, outputs={"org/model": "gpt", "other": None}).load(None)
    assert benchmark.shipped_models() == ["org/model"]
    assert benchmark.shipped("org/model") == {"7": ("a",)}
    with pytest.raises(DataError, match=r"'gtp' is not known\. Did you mean 'gpt'"):
        Benchmark("mine", table, outputs={"org/model": "gtp"}).load(None)


def test_columns_under_other_names(tmp_path: Path) -> None:
    rows = [{"qid": 7, "question": "q", "topic": "t", "gpt": "a", "outputs": "not this", "ref": "[1]"}]
    path = written(tmp_path / "own.jsonl", rows)
    columns = {"instruction_id": "qid", "instruction": "question", "category": "topic", "reference": "ref"}
    benchmark = loaded(path, columns=columns, outputs={"org/model": "gpt"}, name="mine", baseline="org/model")
    item = benchmark.instructions[0]
    assert (item.instruction_id, item.turns, item.category, item.reference) == ("7", ("q",), "t", ("[1]",))
    assert benchmark.shipped("org/model") == {"7": ("a",)}
    assert benchmark.benchmark.name == "mine"


def test_without_ids_rows_are_numbered_and_equal_ones_stay(tmp_path: Path) -> None:
    path = written(
        tmp_path / "own.jsonl",
        [{"instruction": t, "m": f"{t} {n}"} for n, t in enumerate(["Hi", "Hi", "Bye"])],
    )
    benchmark = loaded(path, outputs=["m"])
    assert ids(benchmark) == ["0", "1", "2"]
    assert benchmark.shipped("m") == {"0": ("Hi 0",), "1": ("Hi 1",), "2": ("Bye 2",)}


def test_answers_to_equal_instructions(tmp_path: Path) -> None:
    path = written(tmp_path / "own.jsonl", [{"instruction": text} for text in ("Hi", "Bye", "Hi")])
    rows = [{"model": "two", "instruction": "Hi", "output": text} for text in ("1st", "2nd")]
    rows += [{"model": "one", "instruction": "Hi", "output": "both"}]
    rows += [{"model": "three", "instruction": "Hi", "output": text} for text in "abc"]
    benchmark = loaded(path, answers=str(written(tmp_path / "answers.json", rows)))
    assert benchmark.shipped("two") == {"0": ("1st",), "2": ("2nd",)}
    assert benchmark.shipped("one") == {"0": ("both",), "2": ("both",)}
    with pytest.raises(DataError, match="3 for 2 instructions 'Hi'"):
        benchmark.shipped("three")


def test_long_answers_and_labels(tmp_path: Path) -> None:
    path = written(tmp_path / "own.jsonl", [{"instruction_id": i, "instruction": f"q{i}"} for i in (1, 2, 3)])
    answers = [
        {"model": "m", "instruction_id": 1, "output": "a"},
        {"model": "n", "instruction_id": "2", "output": "b"},
        {"model": "m", "instruction_id": 3, "output": None},
        {"model": "m", "instruction_id": 99, "output": "of another set"},
    ]
    labels = [
        {"instruction_id": 1, "better": "m", "worse": "n"},
        {"instruction_id": 2, "better": "m", "worse": "n", "preference": 0.5},
        {"instruction_id": 3, "better": None, "worse": None},
    ]
    benchmark = loaded(
        path,
        answers=str(written(tmp_path / "answers.jsonl", answers)),
        labels=str(written(tmp_path / "labels.jsonl", labels)),
    )
    assert benchmark.shipped_models() == ["m", "n"]
    assert benchmark.shipped("m") == {"1": ("a",), "3": (None,)}
    assert [(t.instruction_id, t.preference) for t in benchmark.truths()] == [("1", 1.0), ("2", 0.5)]
    chosen = files(str(path), labels=str(tmp_path / "labels.jsonl")).load(None, limit=1)
    assert [t.instruction_id for t in chosen.truths()] == ["1"]


def test_one_file_a_model(tmp_path: Path) -> None:
    path = written(tmp_path / "own.jsonl", [{"instruction": "a"}, {"instruction": "b"}])
    written(tmp_path / "answers" / "org" / "name.jsonl", [{"output": "1"}, {"output": "2"}])
    written(tmp_path / "answers" / "other.jsonl", [{"output": "only one"}])
    benchmark = loaded(path, answers=str(tmp_path / "answers" / "{model}.jsonl"))
    assert benchmark.shipped_models() == ["org/name", "other"]
    assert benchmark.shipped("org/name") == {"0": ("1",), "1": ("2",)}
    with pytest.raises(DataError, match="no column instruction_id or instruction"):
        benchmark.shipped("other")
    assert benchmark.shipped("x" * 300) is None
    (tmp_path / "answers" / "broken.jsonl").write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match=r"broken\.jsonl, line 1: not JSON"):
        benchmark.shipped("broken")  # and never: it ships none


def test_two_turns_in_a_csv(tmp_path: Path) -> None:
    rows = [
        {"turns": '["a", "b"]', "m": '["1", "2"]', "reference": '["r", null]'},
        {"turns": "plain", "m": '["1", "2"]', "reference": '["r"]'},
        {"turns": '["a", "b"]', "m": "only the first", "reference": ""},
    ]
    path = tmp_path / "own.csv"
    path.write_text(as_csv(rows), encoding="utf-8")
    benchmark = loaded(path, outputs=["m"])
    assert [item.turns for item in benchmark.instructions] == [("a", "b"), ("plain",), ("a", "b")]
    assert [item.reference for item in benchmark.instructions] == [("r", None), ('["r"]',), None]
    assert benchmark.shipped("m") == {"0": ("1", "2"), "1": ('["1", "2"]',), "2": ("only the first",)}


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_odd_ids_are_text(tmp_path: Path, ending: str) -> None:
    odd = [i for i in ODD_IDS if ending == "jsonl" or "\ud83d" not in i]
    path = written(
        tmp_path / f"own.{ending}", [{"instruction_id": i, "instruction": "q", "m": f"to {i}"} for i in odd]
    )
    benchmark = loaded(path, outputs=["m"])
    clean = [i.replace("\ud83d", "\ufffd") for i in odd]
    assert ids(benchmark) == clean
    answers = benchmark.shipped("m")
    assert answers is not None
    assert answers == {i: (f"to {i}",) for i in clean}
    shards = [files(str(path)).load(None, shard=f"{n}/2") for n in (1, 2)]
    assert sorted(ids(shards[0]) + ids(shards[1])) == sorted(clean)
    assert benchmark.content_hash()


def test_line_separators_within_a_record(tmp_path: Path) -> None:
    text = "x\u2028y\u0085z\u2029\x0c."
    assert texts(loaded(written(tmp_path / "own.jsonl", [{"instruction": text}]))) == [text]
    path = tmp_path / "own.csv"
    path.write_text(as_csv([{"instruction": text}, {"instruction": "a\n\nb"}]), encoding="utf-8", newline="")
    assert texts(loaded(path)) == [text, "a\n\nb"]


def test_a_cell_of_a_megabyte(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text(as_csv([{"instruction": "x" * 2**20}]), encoding="utf-8")
    assert len(texts(loaded(path))[0]) == 2**20


REFUSED: Mapping[str, tuple[str, str, str]] = {
    "duplicate ids": ("own.csv", "instruction_id,instruction\ndup,x\nb,y\ndup,z\n", "'dup' .*row 0 .*row 2"),
    "1 and '1'": (
        "own.jsonl",
        '{"instruction_id": 1, "instruction": "x"}\n{"instruction_id": "01", "instruction": "y"}\n'
        '{"instruction_id": "1", "instruction": "z"}\n',
        "'1' stands in row 0 and in row 2.*'01' is another",
    ),
    "empty file": ("own.csv", "", "no instructions"),
    "header only": ("own.csv", "instruction\n", "no instructions"),
    "empty list": ("own.json", "[]", "no instructions"),
    "wrong column": ("own.csv", "question,answer\nq,a\n", "no text in.*question, answer.*columns"),
    "empty text": ("own.csv", "instruction,x\n,a\n", "row 0.*no text"),
    "empty id": ("own.csv", "instruction_id,instruction\n ,a\n", "row 0.*instruction_id is empty"),
    "some without ids": (
        "own.jsonl",
        '{"instruction_id": 1, "instruction": "x"}\n{"instruction": "y"}\n',
        "row 1.*instruction_id.*leave all",
    ),
    "NUL in an id": ("own.jsonl", '{"instruction_id": "a\\u0000b", "instruction": "x"}\n', "NUL"),
    "not JSON": ("own.jsonl", '{"instruction": "x"}\n{"instruction": "y\n', "line 2: not JSON"),
    "an object": ("own.json", '{"data": []}', "a list of objects is expected"),
    "texts": ("own.jsonl", '"x"\n', "line 1: an object is expected, not str"),
    "ragged": ("own.csv", "instruction,x\na, b,c\n", "line 2 has 3 cells.* header has 2.*quotes"),
    "short": ("own.csv", "instruction,x\na\n", "line 2 has 1 cells"),
    "a column twice": ("own.csv", "instruction,x,x\na,b,c\n", "'x' is there twice"),
    "an open quote": ("own.csv", 'instruction,x\n"a,b\n', "line 2: unexpected end"),
    "not UTF-8": ("own.csv", "instruction\n\udcff\n", "does not read as csv: UnicodeDecodeError"),
    "unknown format": ("own.xlsx", "x", "format 'xlsx' is not known.*parquet"),
    "not parquet": ("own.parquet", "x", "does not read as parquet"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_any_call(tmp_path: Path, name: str) -> None:
    file, content, message = REFUSED[name]
    path = tmp_path / file
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(DataError, match=f"(?s){message}") as refused:
        loaded(path)
    assert "\n" not in str(refused.value)
    assert path.stem in str(refused.value)


def test_refused_with_the_choices(tmp_path: Path) -> None:
    path = written(tmp_path / "own.jsonl", [{"instruction_id": "p", "instruction": "q", "gpt": "a"}])
    with pytest.raises(DataError, match=r"no such column: 'gpt4' is not known\. Did you mean 'gpt'\?"):
        loaded(path, outputs=["gpt4"]).shipped("gpt4")
    with pytest.raises(DataError, match=r"no such column: 'text' is not known\. Choices: gpt, instruction"):
        loaded(path, columns={"instruction": "text"})
    with pytest.raises(DataError, match="There is no file"):
        loaded(tmp_path / "nowhere.csv")
    with pytest.raises(ConfigError, match="one of them"):
        files(str(path), outputs=["gpt"], answers="x.csv")
    dup = written(tmp_path / "dup.jsonl", [{"model": "m", "instruction_id": "p", "output": o} for o in "ab"])
    with pytest.raises(DataError, match="answers of 'm': the id 'p' stands in row 0 and in row 1"):
        loaded(path, answers=str(dup)).shipped("m")
    other = written(tmp_path / "other.jsonl", [{"model": "m", "instruction_id": "z", "output": "a"}])
    with pytest.raises(DataError, match="none of the 1 ids is one of own; the first: 'z', and there 'p'"):
        loaded(path, answers=str(other)).shipped("m")
    nobody = written(tmp_path / "nobody.jsonl", [{"instruction_id": "p", "output": "a"}])
    with pytest.raises(DataError, match="whose the answers are: 'model' is not known"):
        loaded(path, answers=str(nobody)).shipped("m")
    chat = written(tmp_path / "chat.jsonl", [{"model": "m", "instruction_id": "p", "output": {"role": "x"}}])
    with pytest.raises(DataError, match="a text is expected"):
        loaded(path, answers=str(chat)).shipped("m")
    label = written(
        tmp_path / "label.jsonl", [{"instruction_id": "p", "better": "m", "worse": "n", "preference": 2}]
    )
    with pytest.raises(DataError, match="row 0: the preference 2"):
        loaded(path, labels=str(label)).truths()
    label = written(tmp_path / "labels.jsonl", [{"instruction_id": "x", "better": "m", "worse": "n"}])
    with pytest.raises(DataError, match="labels: none of the 1 ids"):
        loaded(path, labels=str(label)).truths()


def test_another_number_of_rows_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "own.jsonl", [{"instruction": "x"}])
    with pytest.raises(DataError, match="holds 1 instructions; b has 2"):
        Benchmark("b", Table(str(path)), id="position", rows=2).load(None)


def test_making_one_reads_nothing() -> None:
    files("nowhere.csv", outputs=["a"], answers=None, labels="nowhere.json")


def test_a_changed_file_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, text in (("a", "one"), ("b", "two")):
        written(tmp_path / folder / "own.jsonl", [{"instruction": text}])
        monkeypatch.chdir(tmp_path / folder)
        assert texts(loaded(Path("own.jsonl"))) == [text]
    written(tmp_path / "b" / "own.jsonl", [{"instruction": "new"}])
    assert texts(loaded(Path("own.jsonl"))) == ["new"]


# --- selecting ---------------------------------------------------------------------------------------


def test_limit_and_shards(tmp_path: Path) -> None:
    path = written(tmp_path / "own.jsonl", [{"instruction": f"q{n}"} for n in range(100)])
    benchmark = files(str(path))
    assert ids(benchmark.load(None, limit=3)) == ["0", "1", "2"]
    assert ids(benchmark.load(None, limit=300)) == [str(n) for n in range(100)]
    assert not benchmark.load(None, limit=3).whole
    shards = [ids(benchmark.load(None, shard=f"{n}/3")) for n in (1, 2, 3)]
    assert sorted(map(int, (i for shard in shards for i in shard))) == list(range(100))
    assert all(len(shard) > 20 for shard in shards)
    assert all(shard == sorted(shard, key=int) for shard in shards)
    assert ids(benchmark.load(None, shard="2/3", limit=5)) == shards[1][:5]
    # By hash of the id: more rows move none to another shard.
    written(path, [{"instruction": f"q{n}"} for n in range(200)])
    assert [i for i in ids(benchmark.load(None, shard="1/3")) if int(i) < 100] == shards[0]


@pytest.mark.parametrize(
    "settings",
    [
        *({"limit": limit} for limit in (0, -1, True, 1.5)),
        *({"shard": shard} for shard in ("0/2", "3/2", "x", 0.5, "1/0")),
    ],
)
def test_limits_that_cannot_be_meant(tmp_path: Path, settings: Any) -> None:
    path = written(tmp_path / "own.jsonl", [{"instruction": "q"}])
    with pytest.raises(ConfigError):
        files(str(path)).load(None, **settings)


def test_an_empty_shard_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path / "own.jsonl", [{"instruction": "q"}])
    full, empty = ("1/2", "2/2") if holds_first(path) else ("2/2", "1/2")
    assert len(files(str(path)).load(None, shard=full).instructions) == 1
    with pytest.raises(DataError, match="Take fewer shards"):
        files(str(path)).load(None, shard=empty)


def holds_first(path: Path) -> bool:
    try:
        return bool(files(str(path)).load(None, shard="1/2").instructions)
    except DataError:
        return False


# --- where files lie ---------------------------------------------------------------------------------


def test_a_missing_mirror_file_names_both_ways_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_fetchable", lambda url: "http://127.0.0.1:1/nothing")
    for data_dir, place in ((tmp_path, str(tmp_path)), (None, "DATA_DIR")):
        with pytest.raises(source.Unreachable) as failed:
            conf("alpaca_eval").load(data_dir)
        said = str(failed.value)
        assert "\n" not in said
        assert "network" in said
        assert f"put the file at {place}/hub/tatsu-lab/alpaca_eval/alpaca_eval.json" in said
    assert "set data_dir=DATA_DIR" in said
    with pytest.raises(source.Absent, match="JUDGEBENCH_DATA"):
        Table("data:alpaca_eval/outputs.parquet").read(tmp_path)


@pytest.mark.parametrize(
    ("url", "place", "pin"),
    [
        ("hf://datasets/o/r@abc/a/b.json", "hub/o/r/a/b.json", "abc"),
        ("hf://spaces/o/r@abc/b.json", "hub/o/r/b.json", "abc"),
        ("hf://o/r/b.gguf", "hub/o/r/b.gguf", None),
        ("github://o:r@abc/a/b.txt", "git/o/r/a/b.txt", "abc"),
        ("data:a/b.parquet", "a/b.parquet", None),
        ("https://host/x.json", None, None),
        ("local.csv", None, None),
    ],
)
def test_mirrors(url: str, place: str | None, pin: str | None) -> None:
    mirrored = source.mirror_path(url)
    assert (mirrored.as_posix() if mirrored else None) == place
    assert source.revision(url) == pin


def test_without_the_network_a_live_model_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data_dir: Path
) -> None:
    hub = data_dir / "hub" / "lmarena-ai" / "arena-hard-auto" / "data" / "arena-hard-v0.1"
    mine = tmp_path / "hub" / "lmarena-ai" / "arena-hard-auto" / "data" / "arena-hard-v0.1"
    mine.mkdir(parents=True)
    (mine / "question.jsonl").write_bytes((hub / "question.jsonl").read_bytes())
    monkeypatch.setattr(source, "_fetchable", lambda url: "http://127.0.0.1:1/nothing")
    benchmark = conf("arena_hard_v0_1").load(tmp_path, limit=2)
    assert benchmark.shipped("gpt-4-0314") is None
    assert "cannot be fetched" in benchmark.unreachable["gpt-4-0314"]
