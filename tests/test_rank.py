"""`rank` takes the verdicts of many runs, and refuses what does not belong into one table."""

import pytest

from judgebench.combine import read_verdicts
from judgebench.errors import DataError
from judgebench.tables import VERDICTS, write_parquet
from judgebench.verdict import VERDICT_SCHEMA, verdict_frame


def run(folder, candidate, *items, preference=1.0):
    """A run's verdict file: `candidate` is the descriptor of the model that tables call `cand`."""
    folder.mkdir()
    columns = {name: [] for name in VERDICT_SCHEMA}
    for item in items:
        row = {
            "verdict_key": f"{candidate}-{item}",
            "benchmark": "data",
            "protocol": "p",
            "template_hash": "t",
            "input_hash": item,
            "judge": "j",
            "judge_descriptor": "jd",
            "reader": "r/1",
            "instruction_id": item,
            "cluster_id": item,
            "turn": 0,
            "model_a": "base",
            "model_b": "cand",
            "candidate": "cand",
            "baseline": "base",
            "orientation": "direct",
            "answer_a": f"base:{item}:0",
            "answer_b": f"{candidate}:{item}:0",
            "sample": 0,
            "candidate_sample": 0,
            "preference": preference,
            "source": "judge",
            "candidate_chars": 1,
            "baseline_chars": 1,
            "candidate_truncated": False,
        }
        for name, column in columns.items():
            column.append(row.get(name))
    write_parquet(verdict_frame(columns), folder / "verdicts.parquet", VERDICTS, {})
    return folder


def test_runs_are_put_together_each_verdict_once(tmp_path):
    one, two = run(tmp_path / "1", "m1", "a", "b"), run(tmp_path / "2", "m1", "b", "c")
    assert sorted(read_verdicts([one, two, one])["instruction_id"]) == ["a", "b", "c"]


def test_one_label_for_two_models_is_refused(tmp_path):
    one, two = run(tmp_path / "1", "m1", "a"), run(tmp_path / "2", "m2", "a")
    with pytest.raises(DataError, match=r"'cand' on 'data' stands for 2 different models.*m1, m2.*label"):
        read_verdicts([one, two])


def test_a_run_that_failed_is_passed_over(tmp_path, caplog):
    good, failed = run(tmp_path / "1", "m1", "a"), tmp_path / "2"
    failed.mkdir()
    (failed / "status.json").write_text("{}")
    assert len(read_verdicts([good, failed])) == 1
    assert "2 has no verdicts" in caplog.text
    with pytest.raises(DataError, match="None of these runs"):
        read_verdicts([failed])
    (tmp_path / "other").mkdir()
    with pytest.raises(DataError, match="holds no verdicts"):
        read_verdicts([good, tmp_path / "other"])
