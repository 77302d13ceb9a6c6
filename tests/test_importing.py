"""`judgebench import` and `export`: a reply is a hit under the key that a run renders, or it says why not."""

import csv
import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from judging import answer, is_judging, says
from servers import serving

from judgebench.benchmark import Table
from judgebench.cli import invoke, main
from judgebench.errors import ConfigError, DataError

ITEMS = [
    {"instruction_id": f"q{n}", "instruction": f"Name {n} things.", "old": f"old {n}", "new": f"new {n}"}
    for n in range(6)
]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("JUDGEBENCH_STORE", "JUDGEBENCH_DATA", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    write("items.csv", ITEMS)


def write(name, rows):
    """A file of rows in the layout of its ending."""
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="") as file:
        if path.suffix == ".csv":
            table = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)))
            table.writeheader()
            table.writerows(rows)
        elif path.suffix == ".jsonl":
            file.writelines(json.dumps(row) + "\n" for row in rows)
        else:
            json.dump(rows, file)
    return name


FILES = ["benchmark=files", "benchmark.path=items.csv", "benchmark.name=things"]
SHIPPED = [
    *FILES,
    "benchmark.outputs=[old,new]",
    "candidate=native",
    "candidate.name=new",
    "baseline.name=old",
]


def judged(url="http://127.0.0.1:9/v1"):
    """A job whose answers are shipped and whose judge a server would be."""
    judge = ["judge=server", "judge.name=jud", f"judge.base_url={url}", "judge.endpoint_id=here"]
    return [*SHIPPED, *judge, "protocol=pairwise"]


def stored(store, table="responses", role="*"):
    rows = []
    for path in sorted(Path(store).glob(f"{role}/*/*/*/*.db")):
        with closing(sqlite3.connect(path)) as db:
            db.row_factory = sqlite3.Row
            rows += [{**row, "where": path.parent.name} for row in db.execute(f"SELECT * FROM {table}")]
    return rows


def keys(store, role="*"):
    """Everything by which answers are found, and what they say."""
    facts = ("where", "input_hash", "sample", "input_text", "output", "finish_reason")
    return {tuple(row[name] for name in facts) for row in stored(store, role=role)}


def counts(done):
    return {reason: len(rows) for reason, rows in done.result.rows.items()}


def imported(words, path, *more, store="theirs"):
    return invoke("import", [*words, f"source.path={path}", f"store.root={store}", *more])


@pytest.fixture
def native():
    """A run with a real (loopback) judge, and what the judge said."""
    with serving(plan=says(answer)) as server:
        done = invoke("run", [*judged(server.url), "store.root=native", "output_dir=native-out"])
    assert done.status == 0
    rows = stored("native", "judgements", "judgements")
    return sorted(rows, key=lambda row: (row["instruction_id"], row["orientation"]))


def run_on(store="theirs", words=None):
    """The same job on another store that asks nobody."""
    done = invoke(
        "run", [*(words or judged()), f"store.root={store}", "store.mode=only", f"output_dir={store}-out"]
    )
    return done.status, done.result.verdicts


def compared(verdicts):
    facts = ["instruction_id", "orientation", "preference", "label", "winner", "input_hash", "verdict_key"]
    return verdicts.sort_values(["instruction_id", "orientation"])[facts].reset_index(drop=True)


def recorded(rows, **names):
    """Judgements as people keep them."""
    return [
        {
            "id": row["instruction_id"],
            "model": "new",
            "orientation": row["orientation"],
            "raw_reply": row["output"],
        }
        for row in rows
    ]


OWN = [
    "source.columns.instruction_id=id",
    "source.columns.candidate=model",
    "source.columns.reply=raw_reply",
]


def test_recorded_judgements_give_the_numbers_of_a_native_run(native, capsys):
    """FAULTS B116: rows without orientation are refused by number, the rest is as if it had been asked."""
    rows = recorded(native)
    for number in (3, 7):
        rows[number].pop("orientation")
    done = imported(judged(), write("replies.jsonl", rows), *OWN)
    assert done.status == 3
    assert counts(done) == {"imported": 10, "no_orientation": 2}
    told = capsys.readouterr().out
    assert re.search(r"2 no_orientation, .*not guessed: row 3 \(new, 'q\d', no order\), row 7 \(", told)
    assert done.result.descriptor.hash in told

    assert {row["origin"] for row in stored("theirs", role="judgements")} == {"imported"}
    assert {row["cost_usd"] for row in stored("theirs", role="judgements")} == {None}
    assert stored("theirs", "attempts") == []
    facts = ("subject_key", "model_a", "model_b", "orientation", "protocol", "template_hash", "answer_a")
    mine = {tuple(row[name] for name in facts) for row in stored("theirs", "judgements", "judgements")}
    assert mine < {tuple(row[name] for name in facts) for row in native}

    status, verdicts = run_on()
    assert status == 3
    missing = verdicts["reason"].eq("not_cached")
    assert {(rows[n]["id"]) for n in (3, 7)} == set(verdicts[missing]["instruction_id"])
    ours = compared(pd.read_parquet("native-out/verdicts.parquet"))
    theirs = compared(verdicts)
    pd.testing.assert_frame_equal(
        theirs[theirs["preference"].notna()], ours[theirs["preference"].notna()], check_dtype=False
    )

    mended = imported(judged(), write("replies.jsonl", recorded(native)), *OWN)
    assert (mended.status, counts(mended)) == (0, {"known": 10, "imported": 2})
    status, verdicts = run_on()
    assert status == 0
    pd.testing.assert_frame_equal(compared(verdicts), ours, check_dtype=False)


def test_twice_changes_nothing(native):
    path = write("replies.jsonl", recorded(native))
    imported(judged(), path, *OWN)
    before = (
        [(row["created_at"], row["run_id"], row["output"]) for row in stored("theirs")],
        stored("theirs", "subjects"),
    )
    again = imported(judged(), path, *OWN)
    assert counts(again) == {"known": 12}
    assert before == (
        [(r["created_at"], r["run_id"], r["output"]) for r in stored("theirs")],
        stored("theirs", "subjects"),
    )


def test_every_row_has_its_reason(native):
    rows = recorded(native)
    first, second = rows[0], rows[1]
    extra = [
        {**first, "model": "another"},
        {**first, "id": "nowhere"},
        {**first, "raw_reply": None},
        {**first, "id": "q5", "raw_reply": ""} | {"orientation": "direct"},
        {**second, "judge": "somebody"},
        {**first, "sample": 4},
        {**first, "turn": 2},
        {**first, "prompt": "Something else?"},
        {**first, "baseline": "someone"},
        {**first},
    ]
    kept = [row for row in rows if (row["id"], row["orientation"]) != ("q5", "direct")]
    done = imported(judged(), write("replies.jsonl", [*kept, *extra]), *OWN)
    assert counts(done) == {
        "imported": 12, "no_reply": 1, "unknown_instruction": 1, "empty": 1, "other_judge": 1,
        "other_sample": 1, "other_turn": 1, "other_prompt": 1, "other_model": 2,
    }  # fmt: skip
    assert done.status == 3
    assert stored("theirs", "attempts") == []
    some = imported(judged(), "replies.jsonl", *OWN, "limit=2", "protocol.orders=direct", store="some")
    assert counts(some)["not_selected"] > 0
    assert counts(some)["other_order"] == 3


def test_conflicts_are_refused_unless_the_first_is_taken(native, capsys):
    rows = recorded(native)
    path = write("replies.jsonl", [*rows, {**rows[0], "raw_reply": "No, [[A]]."}])
    done = imported(judged(), path, *OWN)
    assert (done.status, counts(done)) == (3, {"imported": 11, "conflict": 2})
    assert "row 0 (new," in capsys.readouterr().out
    done = imported(judged(), path, *OWN, "on_conflict=first")
    assert (done.status, counts(done)) == (0, {"imported": 1, "known": 11, "superseded": 1})
    # What the store holds stays.
    done = imported(judged(), write("other.jsonl", [{**rows[0], "raw_reply": "No, [[A]]."}]), *OWN)
    assert (done.status, counts(done)) == (3, {"differs": 1})
    assert {row["output"] for row in native} == {row["output"] for row in stored("theirs", role="judgements")}


def test_identical_answers_were_never_asked_and_missing_ones_are_told(native):
    same = [{**item, "new": item["old"]} if item["instruction_id"] == "q0" else item for item in ITEMS]
    write("items.csv", same)
    done = imported(judged(), write("replies.jsonl", recorded(native)), *OWN)
    assert counts(done) == {"imported": 10, "by_rule": 2}
    live = [*FILES, "candidate=server", "candidate.name=new", "candidate.base_url=http://127.0.0.1:9/v1"]
    words = [
        *live,
        *(w for w in judged() if w.startswith(("judge", "protocol", "baseline"))),
        "benchmark.outputs=[old]",
    ]
    done = imported(words, "replies.jsonl", *OWN, store="empty")
    assert (done.status, counts(done)) == (3, {"no_answer": 12})


def test_without_the_official_text_they_remain_recordings(capsys):
    rows = [{"id": "q0", "model": "new", "orientation": "direct", "raw_reply": "m"}]
    words = [w for w in judged() if not w.startswith("protocol")]
    words += ["protocol=alpaca_eval_2", "protocol.official.table.url=data:no-prompt.txt"]
    done = imported(words, write("replies.jsonl", rows), *OWN)
    assert (done.status, counts(done)) == (3, {"no_template": 1})
    told = capsys.readouterr().out
    assert "no-prompt.txt is missing" in told
    assert "engine=replay reads it" in told
    assert not Path("theirs").exists()


@pytest.mark.parametrize(
    ("words", "error", "said"),
    [
        ([], ConfigError, "source.path"),
        (["source.path=items.csv"], ConfigError, "benchmark=… is missing"),
        ([*SHIPPED, "source.path=replies.json"], ConfigError, "protocol=… is missing"),
        ([*SHIPPED, "source.path=replies.json", "protocol=pairwise"], ConfigError, "judge=… is missing"),
        ([*SHIPPED, "source.path=replies.json", "on_conflict=last"], ConfigError, "refuse, first"),
        (
            [*SHIPPED, "source.path=items.csv"],
            DataError,
            "neither completions .* instruction_id, instruction, old",
        ),
        ([*SHIPPED, "source.path=outputs.json"], ConfigError, "candidate.shipped=false"),
        ([*judged(), "source.path=odd.json"], DataError, "row 0: turn is 'two'"),
    ],
)
def test_what_cannot_be_meant(words, error, said):
    write("replies.json", [{"instruction_id": "q0", "candidate": "new", "reply": "x"}])
    write("outputs.json", [{"instruction_id": "q0", "output": "x"}])
    write("odd.json", [{"instruction_id": "q0", "candidate": "new", "reply": "x", "turn": "two"}])
    with pytest.raises(error, match=said):
        invoke("import", words)


# --- completions -------------------------------------------------------------------------------------


def live(*more, name="cand"):
    where = ["candidate=server", f"candidate.name={name}", "candidate.endpoint_id=lab"]
    return [
        *FILES,
        *where,
        "candidate.base_url=http://127.0.0.1:9/v1",
        "candidate.sampling.temperature=0.5",
        *more,
    ]


def test_completions_are_hits_of_a_live_run(capsys):
    rows = [
        {"model": "cand", "instruction": item["instruction"], "output": f"I say {n}"}
        for n, item in enumerate(ITEMS)
    ]
    rows += [{"model": "else", "instruction": ITEMS[0]["instruction"], "output": "x"}]
    done = imported(live(), write("outputs.csv", rows))
    assert (done.status, counts(done)) == (0, {"imported": 6, "other_model": 1})
    assert '"temperature":0.5' in capsys.readouterr().out
    with serving(plan=says(answer)) as server:
        words = [
            *live("benchmark.outputs=[old]", "baseline.name=old"), f"candidate.base_url={server.url}",
            "judge=server", "judge.name=jud", f"judge.base_url={server.url}", "protocol=pairwise",
            "store.canary=false",
        ]  # fmt: skip
        ran = invoke("run", [*words, "store.root=theirs", "output_dir=out"])
        assert all(map(is_judging, server.bodies))
        assert len(server.bodies) == 12
    assert ran.status == 0
    frame = pd.read_parquet("out/completions.parquet")
    mine = frame[frame["model"].eq("cand")]
    assert set(mine["origin"]) == {"imported"}
    assert mine["output"].tolist() == [f"I say {n}" for n in range(6)]
    assert mine["descriptor"].eq(done.result.descriptor.hash).all()


def test_later_turns_are_keyed_by_the_turns_before():
    items = [{"instruction_id": n, "turns": [f"first {n}", f"second {n}"]} for n in (81, 82)]
    write("turns.jsonl", items)
    words = [word.replace("items.csv", "turns.jsonl") for word in live()]

    def answers(*texts):
        return write(
            "model_answer/cand.jsonl",
            [
                {
                    "question_id": n,
                    "model_id": "cand",
                    "choices": [{"index": 0, "turns": [*turns]}],
                    "tstamp": 1.0,
                }
                for n, turns in zip((81, 82), texts, strict=True)
            ],
        )

    told = ["source.format=fastchat_answers"]
    path = answers(("a", "b"), ("c", "$ERROR$"))
    done = imported(words, path.replace("cand", "{model}").join("''"), *told)
    assert (done.status, counts(done)) == (0, {"imported": 3, "no_reply": 1})
    second = next(row for row in stored("theirs") if row["output"] == "b")
    assert [m["content"] for m in json.loads(second["input_text"])["messages"]] == [
        "first 81",
        "a",
        "second 81",
    ]
    # The first turn's answer in the store is another one: what followed it there is no answer here.
    done = imported(words, answers(("a", "b"), ("other", "d")), *told)
    assert (done.status, counts(done)) == (3, {"known": 2, "differs": 1, "other_conversation": 1})


def test_conflicting_completions():
    rows = [{"instruction_id": "q0", "output": text} for text in ("a", "b", "a")]
    path = write("outputs.jsonl", [*rows, {"instruction_id": "q1", "output": ""}])
    done = imported(live(), path)
    assert (done.status, counts(done)) == (3, {"conflict": 2, "repeated": 1, "empty": 1})
    done = imported(live(), path, "on_conflict=first")
    assert counts(done) == {"imported": 1, "superseded": 1, "repeated": 1, "empty": 1}


def sample(item, asked, replies):
    return {
        "doc_id": item, "doc": {}, "target": "", "resps": [replies], "filtered_resps": replies[:1],
        "filter": "none", "arguments": {"gen_args_0": {"arg_0": asked, "arg_1": {"until": ["\n"]}}},
    }  # fmt: skip


def test_samples_of_lm_evaluation_harness():
    write("items.jsonl", [{"instruction": f"Name {n} things."} for n in range(3)])
    words = [word.replace("items.csv", "items.jsonl") for word in live()]

    def chat(text):
        return [json.dumps([{"role": "user", "content": text}])]

    rows = [sample(n, chat(f"Name {n} things."), [f"a{n}", f"b{n}"]) for n in range(2)]
    rows += [rows[0], sample(2, chat("Few-shot. Name 2 things."), ["c"])]
    path = write("samples_x_2025-01-01T00-00-00.jsonl", rows)
    done = imported(words, path, "source.format=lm_eval_samples", "candidate.samples=2")
    assert counts(done) == {"imported": 4, "other_prompt": 1}
    assert {(row["output"], row["sample"]) for row in stored("theirs")} == {
        ("a0", 0), ("b0", 1), ("a1", 0), ("b1", 1),
    }  # fmt: skip
    text = [sample(n, f"Question: Name {n} things.\nAnswer:", [f"t{n}"]) for n in range(3)]
    done = imported(
        words,
        write("samples_text.jsonl", text),
        "source.format=lm_eval_samples",
        "candidate.form=text",
        store="base",
    )
    assert counts(done) == {"imported": 3}
    choice = sample(0, "Question", [["-1.0", "False"]])
    choice["arguments"]["gen_args_0"]["arg_1"] = " yes"
    with pytest.raises(DataError, match="doc_id 0 was scored by likelihood"):
        imported(words, write("samples_mc.jsonl", [choice]), "source.format=lm_eval_samples")


# --- layouts of judgements -----------------------------------------------------------------------------


def by_place(native):
    return {(row["instruction_id"], row["orientation"]): row for row in native}


@pytest.mark.parametrize("year", [2024, 2025])
def test_judgements_of_arena_hard(native, year):
    place = by_place(native)

    def game(item, order):
        row = place[item, order]
        messages = json.loads(row["input_text"])["messages"]
        if year == 2024:
            return {"user_prompt": messages[-1]["content"], "judgment": row["output"], "score": "A>B"}
        return {"prompt": messages, "judgment": {"answer": row["output"]}, "score": "A>B"}

    ids = [item["instruction_id"] for item in ITEMS]
    rows = [
        {
            "uid" if year == 2025 else "question_id": item, "judge": "jud", "model": "new",
            "games": [game(item, "direct"), game(item, "reversed") if item != "q1" else None],
        }
        for item in ids
    ]  # fmt: skip
    stale = {**rows[0], "games": [{**game("q0", "direct"), "judgment": "old"}, None]}
    if year == 2025:
        rows = [{**row, "baseline": "old"} for row in rows]
    path = write("model_judgment/jud/new.jsonl", [stale, *rows])
    done = imported(judged(), path, "source.format=arena_hard_judgements")
    assert counts(done) == {"imported": 11, "no_reply": 1}
    said = {(row["input_hash"], row["output"]) for row in stored("theirs", role="judgements")}
    assert said < {(row["input_hash"], row["output"]) for row in stored("native", role="judgements")}
    swapped = [{**row, "games": row["games"][::-1]} for row in rows]
    done = imported(
        judged(), write("swapped.jsonl", swapped), "source.format=arena_hard_judgements", store="none"
    )
    assert counts(done) == {"other_prompt": 11, "no_reply": 1}


def fastchat(model_1, model_2, place, item):
    """A row of `gpt-4_pair.jsonl`."""
    order = "direct" if model_1 == "old" else "reversed"
    games = [place[item, order], place[item, "reversed" if order == "direct" else "direct"]]
    row = {
        "question_id": item,
        "model_1": model_1,
        "model_2": model_2,
        "judge": ["jud", "pair-v2"],
        "turn": 1,
    }
    for number, game in enumerate(games, 1):
        row[f"g{number}_judgment"] = game["output"]
        row[f"g{number}_user_prompt"] = json.loads(game["input_text"])["messages"][-1]["content"]
        row[f"g{number}_winner"] = "tie"
    return row


@pytest.mark.parametrize("models", [("old", "new"), ("new", "old")])
def test_pairs_of_fastchat_tell_who_was_shown_first(native, models):
    place = by_place(native)
    rows = [fastchat(*models, place, item["instruction_id"]) for item in ITEMS]
    graded = {
        "question_id": "q0",
        "model_1": "new",
        "model_2": "old",
        "m1_score": 1,
        "m2_score": 2,
        "judge": ["jud", "x"],
    }
    done = imported(
        judged(), write("jud_pair.jsonl", [*rows, rows[0], graded]), "source.format=fastchat_pair"
    )
    assert (done.status, counts(done)) == (0, {"imported": 14})
    _, verdicts = run_on()
    ours = compared(pd.read_parquet("native-out/verdicts.parquet"))
    pd.testing.assert_frame_equal(compared(verdicts), ours, check_dtype=False)
    late = [{**row, "turn": 2} for row in rows]
    done = imported(judged(), write("late.jsonl", late), "source.format=fastchat_pair", store="none")
    assert counts(done) == {"other_turn": 12}


def test_single_ratings_of_fastchat():
    words = [
        *SHIPPED,
        "judge=server",
        "judge.name=jud",
        "judge.endpoint_id=here",
        "protocol=pointwise",
        "judge.base_url=http://127.0.0.1:9/v1",
    ]
    rows = [
        {
            "question_id": item["instruction_id"], "model": "new", "judge": ["jud", "single-v1"],
            "judgment": "[[7]]" if n else "$ERROR$", "score": 7, "turn": 1, "tstamp": 1.0,
        }
        for n, item in enumerate(ITEMS)
    ]  # fmt: skip
    path = write("jud_single.jsonl", rows)
    done = imported(words, path, "source.format=fastchat_single")
    assert counts(done) == {"imported": 5, "no_reply": 1}
    assert run_on(words=words)[1]["score"].dropna().tolist() == [7.0] * 5
    asked = [{**row, "user_prompt": "[Question]\nAnother prompt"} for row in rows]
    done = imported(words, write("asked.jsonl", asked), "source.format=fastchat_single", store="none")
    assert (done.status, counts(done)) == (3, {"other_prompt": 5, "no_reply": 1})


# --- export ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_what_is_exported_is_imported_under_the_same_keys(kind, capsys):
    with serving(plan=says(answer)) as server:
        words = [
            *live("benchmark.outputs=[old]", "baseline.name=old"), f"candidate.base_url={server.url}",
            "judge=server", "judge.name=jud", "judge.endpoint_id=here", f"judge.base_url={server.url}",
            "protocol=pairwise", "judge.samples=2",
        ]  # fmt: skip
        assert invoke("run", [*words, "store.root=native", "output_dir=out"]).status == 0
    assert main(["export", "path=out files", "store.root=native", f"format={kind}"]) == 0
    told = capsys.readouterr().out
    assert f"24 rows  out files/judgements.{kind}" in told
    first = Table(f"out files/judgements.{kind}").read(None)[0][0]
    view = stored("native", "judgements", "judgements")[0]
    assert set(view) - {"where"} < set(first)
    assert json.loads(first["descriptor"])["model"] == "jud"
    for role, count in (("completions", 6), ("judgements", 24)):
        done = imported(words, f"out files/{role}.{kind}".join("''"))
        assert counts(done).pop("imported") == count
        assert done.status == 0
    assert keys("theirs") == keys("native")
    assert {r["subject_key"] for r in stored("theirs", "subjects")} == {
        r["subject_key"] for r in stored("native", "subjects")
    }
    assert not [*Path("out files").glob(".*")]


def test_export_takes_the_conditions_of_forget(native, capsys):
    words = ["export", "path=x", "store.root=native", "format=jsonl"]
    assert main([*words, "where.orientation=direct", "where.judge=j*"]) == 0
    assert [path.name for path in Path("x").iterdir()] == ["judgements.jsonl"]
    assert len(Path("x/judgements.jsonl").read_text().splitlines()) == 6
    assert main([*words, "where.benchmark=none"]) == 0
    assert "Nothing matches" in capsys.readouterr().out
    assert main([*words, "where.colour=red"]) == 1
    assert main(["export", "store.root=native"]) == 1
    assert main([*words, "format=alpaca_eval"]) == 1
    errors = capsys.readouterr().err
    assert "path=…" in errors
    assert "benchmark=…" in errors


def test_names_stay_below_the_folder():
    write("outputs.jsonl", [{"instruction_id": "q0", "output": "a"}])
    for name in ("../../escaped", "org/fine", ".hidden", "a:b"):
        imported(live(name=f"'{name}'"), "outputs.jsonl")
    words = ["export", "path=deep/down/x", "store.root=theirs", *FILES, "format=arena_hard"]
    assert main(words) == 0
    found = {
        path.relative_to("deep/down/x/model_answer").as_posix()
        for path in Path().rglob("*.jsonl")
        if "model_answer" in str(path)
    }
    assert len(found) == 4
    assert "org/fine.jsonl" in found


def test_two_models_of_one_name_are_not_mixed():
    write("outputs.jsonl", [{"instruction_id": "q0", "output": "a"}])
    imported(live(), "outputs.jsonl")
    imported(live("candidate.sampling.temperature=0.9"), "outputs.jsonl")
    words = ["path=x", "store.root=theirs", *FILES, "format=arena_hard"]
    with pytest.raises(DataError, match=r"'cand' stands for two models.*where\.descriptor"):
        invoke("export", words)
    assert invoke("export", [*words, "where.descriptor.temperature=0.9"]).status == 0


# --- real data -------------------------------------------------------------------------------------------


def test_alpaca_eval_there_and_back(data_dir):
    """Replies of the official judge: imported, ranked as the official table, exported, imported again."""
    words = ["experiment=alpaca_eval_replay", f"data_dir={data_dir}", "candidate.name=NullModel"]
    columns = {
        "candidate": "model",
        "orientation": "is_swapped",
        "reply": "raw_text",
        "token_logprob": "sampled_logprob",
    }
    told = [f"source.columns.{ours}={theirs}" for ours, theirs in columns.items()]
    told += [
        "source.orientations.False=direct",
        "source.orientations.True=reversed",
        "source.where.model=NullModel",
    ]
    done = imported(words, "data:alpaca_eval/judge_replays.parquet", *told)
    assert (done.status, counts(done)) == (0, {"imported": 805})
    ran = invoke("run", [*words, "store.root=theirs", "store.mode=only", "output_dir=out"])
    official = pd.read_csv(data_dir / "alpaca_eval" / "official_leaderboard.csv", index_col=0).loc[
        "NullModel"
    ]
    assert ran.result.leaderboard["win_rate"].tolist() == [pytest.approx(official["win_rate"], abs=1e-9)]
    layout = ["benchmark=alpaca_eval", f"data_dir={data_dir}", "protocol=alpaca_eval_2", "format=alpaca_eval"]
    invoke("export", ["path=results", "store.root=theirs", *layout])
    rows = json.loads(
        Path("results/NullModel/gpt-4-1106-preview/annotations.json").read_text(encoding="utf-8")
    )
    assert 100 * (sum(row["preference"] for row in rows) / 805 - 1) == pytest.approx(
        official["win_rate"], abs=1e-9
    )
    own = ["source.format=alpaca_eval_annotations"]
    back = imported(words, "'results/{model}/gpt-4-1106-preview/annotations.json'", *own, store="back")
    assert (back.status, counts(back)) == (0, {"imported": 805})
    assert keys("back", "judgements") == keys("theirs", "judgements")
    # Judged answers that are not the job's were judged in another prompt.
    rows[0]["output_2"] = "Another answer"
    write("changed.json", [{**row, "generator_2": "NullModel"} for row in rows])
    changed = imported(words, "changed.json", *own, store="back")
    assert counts(changed) == {"known": 804, "other_prompt": 1}


def test_outputs_of_alpaca_eval_become_those_of_a_live_model(data_dir):
    words = ["benchmark=alpaca_eval", f"data_dir={data_dir}", "candidate=gpt-4.1", "candidate.name=mine"]
    baseline = "data:hub/tatsu-lab/alpaca_eval/alpaca_eval_gpt4_baseline.json"
    done = imported(words, baseline, "source.format=alpaca_eval_outputs")
    assert (done.status, counts(done)) == (0, {"imported": 805})
    invoke("export", ["path=results", "store.root=theirs", *words[:2], "format=alpaca_eval"])
    back = imported(
        words, "results/mine/model_outputs.json", "source.format=alpaca_eval_outputs", store="back"
    )
    assert counts(back) == {"imported": 805}
    assert keys("back") == keys("theirs")


def test_answers_of_arena_hard_there_and_back(data_dir):
    words = [
        "benchmark=arena_hard_v0_1",
        f"data_dir={data_dir}",
        "candidate=gpt-4.1",
        "candidate.name=gpt-4-0613",
    ]
    path = "data:hub/lmarena-ai/arena-hard-auto/data/arena-hard-v0.1/model_answer/gpt-4-0613.jsonl"
    with pytest.raises(ConfigError, match="shipped=false"):
        imported(words, path, "source.format=arena_hard_answers")
    words += ["candidate.shipped=false"]
    done = imported(words, path, "source.format=arena_hard_answers")
    assert (done.status, counts(done)) == (0, {"imported": 500})
    invoke("export", ["path=out", "store.root=theirs", *words[:2], "format=arena_hard"])
    original = Table(path, "arena_hard_answers").read(data_dir)[0]
    exported = Table("out/model_answer/gpt-4-0613.jsonl", "arena_hard_answers").read(None)[0]
    assert sorted(map(str, original)) == sorted(map(str, exported))
    back = imported(
        words, "'out/model_answer/{model}.jsonl'", "source.format=arena_hard_answers", store="back"
    )
    assert counts(back) == {"imported": 500}
    assert keys("back") == keys("theirs")


def test_two_turns_of_mt_bench(data_dir):
    """GPT-4's reference answers, as the answers of a model that could be asked."""
    folder = data_dir / "mt_bench"
    mine = [("bench", "==", "mt_bench")]
    questions = pq.read_table(folder / "questions.parquet", filters=mine).to_pylist()
    answers = pq.read_table(folder / "reference_answers.parquet", filters=mine).to_pylist()
    write("question.jsonl", [{"instruction_id": q["question_id"], "turns": q["turns"]} for q in questions])
    write(
        "gpt-4.jsonl",
        [
            {
                "question_id": a["question_id"],
                "model_id": "gpt-4",
                "choices": [{"index": 0, "turns": a["turns"]}],
            }
            for a in answers
        ],
    )
    words = ["benchmark=files", "benchmark.path=question.jsonl", "candidate=gpt-4.1", "candidate.name=gpt-4"]
    done = imported(words, "gpt-4.jsonl", "source.format=fastchat_answers")
    assert (done.status, counts(done)) == (0, {"imported": 60})
    assert {row["turn"] for row in stored("theirs", "subjects")} == {1, 2}
    assert counts(imported(words, "gpt-4.jsonl", "source.format=fastchat_answers")) == {"known": 60}
