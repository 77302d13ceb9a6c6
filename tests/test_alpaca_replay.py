"""AlpacaEval 2.0 reproduced: the recorded replies of its judge through stage, store, reader and ranking."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pytest

from judgebench.cli import main

FEWER = {  # models that ship fewer than 805 answers
    "alpaca-7b_concise": 804, "alpaca-7b_verbose": 802, "gpt35_turbo_instruct": 804,
    "minotaur-13b": 804, "phi-2": 803, "text_davinci_001": 803,
}  # fmt: skip


class Replayed(NamedTuple):
    out: Path
    store: Path
    words: list[str]


@pytest.fixture(scope="module")
def replayed(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Replayed:
    folder = tmp_path_factory.mktemp("alpaca")
    out, store = folder / "out", folder / "store"
    words = ["run", "-m", "experiment=alpaca_eval_replay", f"data_dir={data_dir}"]
    words += [f"output_dir={out}", f"store.root={store}"]
    assert main(words) == 0
    return Replayed(out, store, words)


@contextmanager
def database(replayed: Replayed, role: str, model: str) -> Iterator[sqlite3.Connection]:
    """The one database of a model; a replayed judge and shipped models have one each."""
    found = [
        path.parent
        for path in (replayed.store / role).rglob("metadata.json")
        if json.loads(path.read_text(encoding="utf-8"))["descriptor"]["model"] == model
    ]
    assert len(found) == 1
    with closing(sqlite3.connect(found[0] / f"{role}.db")) as db:
        yield db


def verdicts(replayed: Replayed) -> pd.DataFrame:
    files = sorted(replayed.out.glob("*/verdicts.parquet"))
    assert len(files) == 52
    return pd.concat([pd.read_parquet(file) for file in files], ignore_index=True)


def digests(replayed: Replayed) -> dict[str, str]:
    return {
        path.relative_to(replayed.out).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in replayed.out.rglob("*.parquet")
    }


def rows(replayed: Replayed) -> dict[str, tuple[int, int]]:
    counts = {}
    for path in replayed.store.rglob("*.db"):
        with closing(sqlite3.connect(path)) as db:
            query = "SELECT (SELECT count(*) FROM responses), (SELECT count(*) FROM subjects)"
            counts[path.relative_to(replayed.store).as_posix()] = db.execute(query).fetchone()
    return counts


def test_the_leaderboard_is_the_official_one(replayed: Replayed, data_dir: Path) -> None:
    ours = pd.read_parquet(replayed.out / "leaderboard.parquet").set_index("model")
    official = pd.read_csv(data_dir / "alpaca_eval" / "official_leaderboard.csv", index_col=0)
    assert len(ours) == 52
    both = official.loc[official.index.intersection(ours.index)]
    assert len(both) == 51
    ours = ours.loc[both.index]
    for column in ("win_rate", "standard_error"):
        assert (ours[column] - both[column]).abs().max() < 1e-8, column
    for column in ("n_wins", "n_draws", "n_total", "avg_length"):
        assert ours[column].astype(int).tolist() == both[column].astype(int).tolist(), column
    assert (ours["discrete_win_rate"] - both["discrete_win_rate"]).abs().max() < 1e-8
    assert ours["n_asked"].eq(805).all()
    assert set(ours["benchmark"]) == {"alpaca_eval"}
    assert set(ours["baseline"]) == {"gpt4_1106_preview"}


def test_what_was_judged_by_rule_and_what_was_not_shipped(replayed: Replayed) -> None:
    frame = verdicts(replayed)
    assert len(frame) == 52 * 805
    assert frame["verdict_key"].is_unique
    rule = frame[frame["source"].eq("rule")]
    assert len(rule) == 118
    assert rule["preference"].eq(0.5).all()
    assert rule["input_hash"].isna().all()
    assert rule["winner"].eq("tie").all()
    missing = frame[frame["preference"].isna()]
    assert set(missing["reason"]) == {"not_shipped"}
    assert missing["winner"].isna().all()
    assert {name: 805 - len(group) for name, group in missing.groupby("candidate")} == FEWER
    judged = frame[frame["source"].eq("judge")]
    assert set(judged["origin"]) == {"replayed"}
    assert set(judged["finish_reason"]) == {"length"}


def test_each_preference_is_the_stored_one(replayed: Replayed, data_dir: Path) -> None:
    recorded = pd.read_parquet(data_dir / "alpaca_eval" / "judge_replays.parquet")
    frame = verdicts(replayed).dropna(subset="preference")
    ours = frame["preference"].where(frame["orientation"].eq("direct"), 1 - frame["preference"])
    ours.index = pd.MultiIndex.from_arrays([frame["candidate"], frame["instruction_id"].astype(int)])
    theirs = recorded.set_index([recorded["model"].astype(str), "instruction_id"])["preference"]
    assert len(ours) == len(theirs)
    assert (theirs.reindex(ours.index) - 1 - ours).abs().max() < 1e-10
    shown = frame.set_index("instruction_id")["orientation"].groupby(level=0).first()
    assert shown.eq("reversed").sum() == 406


def test_both_stages_are_in_the_store(replayed: Replayed) -> None:
    with database(replayed, "judgements", "gpt-4-1106-preview") as db:
        judged, paid_for = db.execute("SELECT count(*), count(cost_usd) FROM responses").fetchone()
        assert paid_for == 0
        assert db.execute("SELECT DISTINCT origin FROM responses").fetchall() == [("replayed",)]
        subjects = db.execute(
            "SELECT count(*), count(DISTINCT model_a || '/' || model_b) FROM subjects"
        ).fetchone()
        assert subjects == (52 * 805 - 118 - sum(805 - n for n in FEWER.values()), 104)
        # Models that gave the same answer share one judgement, and each keeps its own row.
        assert judged < subjects[0]
        shared = db.execute(
            "SELECT input_hash, count(*) FROM subjects GROUP BY input_hash HAVING count(*) > 1"
        ).fetchall()
        assert judged == subjects[0] - sum(count - 1 for _, count in shared)
        models = db.execute(
            "SELECT DISTINCT orientation, model_a, model_b FROM subjects WHERE input_hash = ?", shared[0][:1]
        ).fetchall()
        assert len(models) == shared[0][1]
        row = db.execute(
            "SELECT judge, benchmark, turn, model_a, model_b, orientation, protocol, output, finish_reason, "
            "top_logprobs, served_model, input_tokens, latency_s, length(created_at), typeof(sample), "
            "answer_a, answer_b FROM judgements WHERE instruction_id = '0' AND "
            "'claude-2' IN (model_a, model_b)"
        ).fetchall()
        assert len(row) == 1
        assert row[0][:3] == ("gpt-4-1106-preview", "alpaca_eval", 0)
        assert row[0][3:8] == ("claude-2", "gpt4_1106_preview", "reversed", "alpaca_eval_2", "M")
        assert row[0][8] == "length"
        first = json.loads(row[0][9])[0]
        assert (first["token"], first["logprob"], len(first["top_logprobs"])) == ("M", -0.0001202317, 5)
        assert row[0][13:15] == (24, "integer")
        answers = row[0][15:]
    for name, lineage in zip(("claude-2", "gpt4_1106_preview"), answers, strict=True):
        with database(replayed, "completions", name) as db:
            columns = "model, instruction_id, turn, origin, typeof(output)"
            stored = db.execute(
                f"SELECT {columns} FROM completions WHERE input_hash = ?", (lineage.split(":")[1],)
            ).fetchall()
            assert stored == [(name, "0", 1, "shipped", "text")]
            assert db.execute("SELECT count(*) FROM responses").fetchone() == (805,)
    with database(replayed, "completions", "phi-2") as db:
        assert db.execute("SELECT count(*) FROM responses").fetchone() == (803,)
        assert db.execute("SELECT count(*) FROM attempts").fetchone() == (0,)


def test_a_second_run_asks_nothing_and_changes_no_byte(replayed: Replayed) -> None:
    tables, stored = digests(replayed), rows(replayed)
    assert main(replayed.words) == 0
    assert digests(replayed) == tables
    assert rows(replayed) == stored
    for path in replayed.out.glob("*/run.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        assert record["status"] == 0
        for stage in ("completions", "judgements"):
            assert record[stage]["calls"] == 0
            assert record[stage]["hits"] == record[stage]["asked"] > 0


# --- deletion by column, on real data ----------------------------------------------------------------


@pytest.fixture
def copied(replayed: Replayed, tmp_path: Path) -> Replayed:
    """The same store, to delete from."""
    store = tmp_path / "store"
    shutil.copytree(replayed.store, store)
    return replayed._replace(store=store, out=tmp_path / "out")


def sharing(replayed: Replayed) -> tuple[str, set[str], int]:
    """The model that shares most judgements with others, those others, and how many it shares."""
    query = (
        "SELECT a.who, b.who, count(*) FROM used a JOIN used b ON a.input_hash = b.input_hash "
        "AND a.who != b.who GROUP BY 1, 2"
    )
    with database(replayed, "judgements", "gpt-4-1106-preview") as db:
        db.execute(
            "CREATE TEMP TABLE used AS SELECT input_hash, CASE model_a WHEN 'gpt4_1106_preview' THEN model_b "
            "ELSE model_a END AS who FROM subjects"
        )
        db.execute("CREATE INDEX temp.by_hash ON used (input_hash)")
        pairs = pd.DataFrame(db.execute(query).fetchall(), columns=["who", "other", "rows"])
    most = pairs.groupby("who")["rows"].sum().idxmax()
    mine = pairs[pairs["who"].eq(most)]
    return str(most), set(mine["other"]), int(mine["rows"].max())


def test_forgetting_a_model_leaves_every_other_row_to_the_last_digit(
    replayed: Replayed, copied: Replayed
) -> None:
    gone, others, shared = sharing(copied)
    assert shared > 0
    chosen = sorted({*others, "claude-2", "phi-2"} - {gone})
    words = ["forget", f"store.root={copied.store}", "role=judgements", f"where.any_model={gone}"]
    assert main([*words, "yes=true"]) == 0
    with database(copied, "judgements", "gpt-4-1106-preview") as db:
        left = "SELECT count(*) FROM subjects WHERE ? IN (model_a, model_b)"
        assert db.execute(left, (gone,)).fetchone() == (0,)
        loose = (
            "SELECT count(*) FROM responses WHERE (input_hash, sample) NOT IN "
            "(SELECT input_hash, sample FROM subjects)"
        )
        assert db.execute(loose).fetchone() == (0,)
    words = [word for word in replayed.words if not word.startswith(("output_dir", "store.root"))]
    words += [f"store.root={copied.store}", "store.mode=only", f"output_dir={copied.out}"]
    assert main([*words, f"candidate.name={','.join(chosen)}"]) == 0
    before = pd.read_parquet(replayed.out / "leaderboard.parquet").set_index("model").loc[chosen]
    after = pd.read_parquet(copied.out / "leaderboard.parquet").set_index("model").loc[chosen]
    pd.testing.assert_frame_equal(before, after, check_exact=True)


def test_forgetting_answers_names_those_who_lose_theirs(
    copied: Replayed, capsys: pytest.CaptureFixture[str]
) -> None:
    gone, others, _ = sharing(copied)
    words = ["forget", f"store.root={copied.store}", "role=judgements", f"where.any_model={gone}"]
    assert main([*words, "scope=answers", "yes=true"]) == 0
    said = capsys.readouterr().out
    assert "Others use these answers too" in said
    for other in others:
        assert f"    {other} on alpaca_eval: " in said
