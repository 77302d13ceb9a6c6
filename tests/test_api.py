"""The Python surface: frames in, verdicts out, in input order, with the store behind."""

import asyncio

import pandas as pd
import pytest
from fakes import FakeEngine

import judgebench
from judgebench import api
from judgebench.errors import ConfigError, DataError
from judgebench.model import Model


def longer_wins(request):
    """A judge that prefers the longer answer, whatever its place."""
    text = request.input["messages"][1]["content"]
    first, second = text.split("# Assistant A")[1].split("# Your judgement")[0].split("# Assistant B")
    return "[[A]]" if len(first.strip()) > len(second.strip()) else "[[B]]"


JUDGE = Model("fake", "j", engine=FakeEngine(longer_wins))
FRAME = pd.DataFrame(
    {
        "instruction": ["Say it.", "Say more.", "Say it again."],
        "output_a": ["a long answer", "no", "a long answer"],
        "output_b": ["short", "a long answer", "short"],
        "model_a": ["old", "old", "old"],
        "model_b": ["new", "new", "newer"],
        "category": ["x", "y", "x"],
    }
)


@pytest.fixture
def judge(tmp_path):
    def call(frame=FRAME, **options):
        return judgebench.judge(
            frame, **{"judge": JUDGE, "protocol": "pairwise", "store": tmp_path / "store", **options}
        )

    return call


def test_verdicts_come_in_input_order_in_both_orders(judge):
    verdicts = judge()
    assert verdicts["row"].tolist() == [0, 0, 1, 1, 2, 2]
    assert verdicts["orientation"].tolist() == ["direct", "reversed"] * 3
    assert verdicts["preference"].tolist() == [0.0, 1.0, 1.0, 0.0, 0.0, 1.0]
    assert verdicts["label"].tolist() == ["A", "B", "B", "A", "A", "B"]
    assert set(verdicts["protocol"]) == {"pairwise"}


def test_rank_undoes_the_order(judge):
    table = judgebench.rank(judge()).set_index("model")
    assert table.loc["new", "win_rate"] == 50.0
    assert table.loc["newer", "win_rate"] == 0.0
    assert table["consistency"].tolist() == [1.0, 1.0]


def test_a_second_call_asks_nobody(judge):
    def forbidden(request):
        raise AssertionError("asked again")

    first = judge()
    again = judge(judge=Model("fake", "j", engine=FakeEngine(forbidden)))
    assert again.equals(first)


def test_it_works_inside_a_running_loop(judge):
    async def notebook():
        return judge()

    assert len(asyncio.run(notebook())) == 6


def test_pointwise_needs_one_answer(judge):
    rater = Model("fake", "r", engine=FakeEngine(lambda request: "Fine. Rating: [[7]]"))
    verdicts = judge(FRAME[["instruction", "output_a"]], judge=rater, protocol="pointwise")
    assert verdicts["score"].tolist() == [7.0, 7.0, 7.0]
    table = judgebench.rank(verdicts)
    assert table["mean_score"].tolist() == [7.0]


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (FRAME.drop(columns="output_b"), "output_b"),
        (FRAME.assign(output_a=[None, "b", "c"]), "null in row 0"),
        (FRAME.assign(instruction_id=["1", "1", "2"]), "ids must tell items apart"),
    ],
)
def test_a_wrong_frame_is_refused(judge, frame, message):
    with pytest.raises(DataError, match=message):
        judge(frame)


def test_unknown_names_tell_the_choices(judge):
    with pytest.raises(ConfigError, match="Did you mean 'pairwise'"):
        judge(protocol="pairwize")
    with pytest.raises(ConfigError, match=r"gpt-4\.1"):
        judge(judge="gpt-4.11")


def test_importing_the_package_is_light_and_names_are_there():
    assert set(judgebench.__all__) == {"__version__", "judge", "query", "rank", "run"}
    with pytest.raises(AttributeError, match="nothing"):
        judgebench.nothing  # noqa: B018


def test_run_returns_the_frames(tmp_path):
    words = ["limit=2", "candidate=native", "candidate.name=starter-flawed", "check_judge=false"]
    result = judgebench.run([*words, f"output_dir={tmp_path}/out", f"store.root={tmp_path}/store"])
    # The baseline against itself: a draw by rule, which asks nobody.
    assert result.leaderboard["win_rate"].tolist() == [50.0]
    assert set(result.verdicts["source"]) == {"rule"}
    assert (result.folder / "leaderboard.parquet").is_file()


def test_items_without_ids_are_told_apart_by_content(monkeypatch, tmp_path):
    monkeypatch.setenv("JUDGEBENCH_STORE", str(tmp_path))
    one = api._instruction({"instruction": "q", "output_a": "x"})
    same = api._instruction({"instruction": "q", "instruction_id": None})
    other = api._instruction({"instruction": "q", "reference": "r"})
    assert one.instruction_id == same.instruction_id != other.instruction_id
    frame = pd.DataFrame({"instruction": ["q", "q", "p"], "output_a": ["x", "y", "z"]})
    (match,), rows = api._matches(frame, False, "frame")
    ids = [key[2] for key in rows]
    assert ids[1] == f"{ids[0]}-2"
    talks = [match.candidate.by_item[identity][0] for identity in ids]
    assert [talk.outputs for talk in talks] == [["x"], ["y"], ["z"]]
    assert talks[0].instruction.cluster_id == talks[1].instruction.cluster_id == ids[0]


def test_a_frame_that_cannot_be_meant_is_refused():
    frame = pd.DataFrame({"instruction": ["q"], "output_a": ["x"], "model_a": [None]})
    with pytest.raises(DataError, match="model_a is null in row 0"):
        api._matches(frame, False, "frame")
    with pytest.raises(DataError, match="not a dict"):
        api._matches({"instruction": ["q"]}, False, "frame")
    doubled = pd.concat([frame, frame[["output_a"]]], axis=1)
    with pytest.raises(DataError, match="'output_a' is in the frame twice"):
        api._matches(doubled, False, "frame")
    odd = pd.DataFrame({"instruction": ["q"], "output_a": ["x"], "model_a": ["m\ud800"]}, dtype=object)
    (match,), _ = api._matches(odd, False, "b\ud800")
    assert (match.candidate.label, match.candidate.benchmark) == ("m\ufffd", "b\ufffd")
