from __future__ import annotations

import html
import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from judgebench import ranking, report
from judgebench.errors import DataError

HOSTILE = (
    "[bold red]x[/] :smile: \x1b[31mred\x1b[0m\n\r\t\u202e\u2028 <b>m|1</b> ```` [c](javascript:alert(1))"
)
ANSWER = "| x |\n```\n<img src=x onerror=alert(1)> [c](javascript:alert(1)) https://e.org www.e.org a@b.org"


def board(models: dict[str, list[float]], **columns: Any) -> pd.DataFrame:
    parts = []
    for model, preference in models.items():
        ids = [f"{i:03}" for i in range(len(preference))]
        part = pd.DataFrame({"preference": preference, "instruction_id": ids, "cluster_id": ids})
        parts.append(part.assign(candidate=model))
    frame = pd.concat(parts, ignore_index=True).assign(
        benchmark="bench", protocol="pairwise", judge="judge", baseline="base", turn=1, category=None,
        score=np.nan, candidate_chars=1234, candidate_truncated=False, reader="labels/1",
    )  # fmt: skip
    frame["reason"] = [None if x == x else "no_verdict" for x in frame["preference"]]
    frame["consistent"] = pd.array([True] * len(frame), dtype="boolean")
    return ranking.leaderboard(frame.assign(**columns))


def plain(leaderboard: pd.DataFrame, width: int = 80, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    with io.TextIOWrapper(raw, encoding=encoding, newline="") as file:
        report.terminal(leaderboard, console=Console(file=file, width=width))
        file.flush()
        return raw.getvalue().decode(encoding)


@pytest.fixture
def table() -> pd.DataFrame:
    return board({"good": [1, 1, 1, 0.5] * 20, "bad": [0, 0, 1, np.nan] * 20, "none": [np.nan] * 3})


# --- parquet -----------------------------------------------------------------------------------------


def test_what_ranking_makes_fits_the_schemas(table: pd.DataFrame) -> None:
    assert [*table] == report.LEADERBOARD.names
    assert report.COMBINED.names == ["run", *report.LEADERBOARD.names]


def test_round_trip_with_types_and_provenance(table: pd.DataFrame, tmp_path: Path) -> None:
    path = tmp_path / "leaderboard.parquet"
    report.write_parquet(table, path, report.LEADERBOARD, {"reader": "labels/1", "data": "北京 ❌"})
    back = report.read_parquet(path)
    pd.testing.assert_frame_equal(back, table, check_dtype=False, check_exact=True)
    assert back["n_wins"].dtype == "Int64"
    assert report.provenance(path) == {"reader": "labels/1", "data": "北京 ❌"}
    stored = pq.read_schema(path)
    assert stored.metadata[b"judgebench_schema"] == b"leaderboard/1"
    assert b"pandas" not in stored.metadata
    assert stored.equals(report.LEADERBOARD)
    assert pq.ParquetFile(path).metadata.row_group(0).column(0).compression == "ZSTD"
    assert [*tmp_path.iterdir()] == [path]
    pd.testing.assert_frame_equal(pd.read_parquet(path), table, check_dtype=False)


def test_identical_content_gives_identical_bytes(table: pd.DataFrame, tmp_path: Path) -> None:
    one, other = tmp_path / "one.parquet", tmp_path / "other.parquet"
    shuffled = table.sort_values("model")[[*reversed(table.columns)]].sort_index()
    report.write_parquet(table, one, report.LEADERBOARD, {"a": "1", "b": "2"})
    report.write_parquet(shuffled, other, report.LEADERBOARD, {"b": "2", "a": "1"})
    assert one.read_bytes() == other.read_bytes()
    as_objects = table.astype({"model": object, "baseline": object}).set_index(np.arange(3) + 7)
    report.write_parquet(as_objects, other, report.LEADERBOARD, {"a": "1", "b": "2"})
    assert one.read_bytes() == other.read_bytes()


def test_b94_all_null_columns_keep_their_type(tmp_path: Path) -> None:
    path = tmp_path / "leaderboard.parquet"
    table = board({"m": [np.nan]}, baseline=None)
    table = table.astype({"baseline": object, "mean_score": object})
    report.write_parquet(table, path, report.LEADERBOARD)
    assert pq.read_schema(path).equals(report.LEADERBOARD)
    assert report.read_parquet(path)["n_wins"].dtype == "Int64"


@pytest.mark.parametrize(
    ("values", "kind", "message"),
    [
        ([7, "8", None, [1, 2]], pa.float64(), r"'x', row 1: '8' is not of type double"),
        ([7, None, [1, 2]], pa.float64(), r"'x', row 2: \[1, 2\]"),
        (pd.Series([None, "8"], dtype="str"), pa.float64(), r"'x', row 1: '8'"),
        ([1.0, True], pa.float64(), r"'x', row 1: True"),
        (pd.Series([True]), pa.float64(), r"'x', row 0: (np\.)?True"),
        ([1, 0], pa.bool_(), r"'x', row 0: (np\.int64\()?1"),
        ([1.0, 2.5], pa.int64(), r"'x', row 1: .*2\.5"),
        (pd.Series([1, 2.5, None], dtype=object), pa.int64(), r"'x', row 1: 2\.5"),
        ([1, 2**40], pa.int32(), r"'x', row 1: .*1099511627776"),
        ([1, 2**70], pa.int64(), r"'x', row 1: 1180591620717411303424"),
        (["a", 3], pa.string(), r"'x', row 1: 3 is not of type string"),
        ([b"a"], pa.string(), r"'x', row 0: b'a'"),
        ([{"a": None}], pa.string(), r"'x', row 0: \{'a': None\}"),
    ],
)
def test_b94_another_type_is_refused_by_column_and_row(
    values: Any, kind: pa.DataType, message: str, tmp_path: Path
) -> None:
    schema = pa.schema([pa.field("x", kind)], metadata={"judgebench_schema": "verdicts/1"})
    frame = pd.DataFrame({"x": values})
    with pytest.raises(DataError, match=message):
        report.write_parquet(frame, tmp_path / "x.parquet", schema)
    assert [*tmp_path.iterdir()] == []


def test_columns_must_be_the_declared_ones(table: pd.DataFrame, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    with pytest.raises(DataError, match="'low' is missing"):
        report.write_parquet(table.drop(columns="low"), path, report.LEADERBOARD)
    with pytest.raises(DataError, match=r"'winrate' is not known. Did you mean 'win_rate'"):
        report.write_parquet(table.assign(winrate=1), path, report.LEADERBOARD)
    with pytest.raises(DataError, match="'low' is there twice"):
        report.write_parquet(pd.concat([table, table[["low"]]], axis=1), path, report.LEADERBOARD)
    with pytest.raises(DataError, match="'model' is null in row 0"):
        report.write_parquet(table.assign(model=None), path, report.LEADERBOARD)
    with pytest.raises(DataError, match="judgebench_schema"):
        report.write_parquet(table, path, report.LEADERBOARD.remove_metadata())
    assert not path.exists()


def test_lone_surrogates_and_nullable_columns_of_any_schema(tmp_path: Path) -> None:
    fields = [("text", pa.string()), ("flag", pa.bool_()), ("n", pa.int32())]
    schema = pa.schema(fields, metadata={"judgebench_schema": "verdicts/3"})
    text = pd.Series(["ok \ud83d", None], dtype=object)
    frame = pd.DataFrame({"text": text, "flag": [True, None], "n": [np.nan, 3]})
    path = tmp_path / "verdicts.parquet"
    report.write_parquet(frame, path, schema)
    back = report.read_parquet(path, schema)
    assert back["text"][0] == "ok \ufffd"
    assert (back["flag"][0], back["n"][1]) == (True, 3)
    assert back.isna().to_numpy().tolist() == [[False, False, True], [True, True, False]]
    assert [str(x) for x in back.dtypes[1:]] == ["boolean", "Int32"]


def test_other_schemas_and_versions_are_refused(table: pd.DataFrame, tmp_path: Path) -> None:
    path = tmp_path / "leaderboard.parquet"
    newer = report.LEADERBOARD.with_metadata({"judgebench_schema": "leaderboard/2"})
    report.write_parquet(table, path, newer)
    with pytest.raises(DataError, match=r"leaderboard/2, not leaderboard/1.*newer"):
        report.read_parquet(path)
    report.write_parquet(table, path, report.LEADERBOARD)
    with pytest.raises(DataError, match="holds leaderboard/1, not metrics/1"):
        report.read_parquet(path, report.METRICS)
    table.to_parquet(path)
    with pytest.raises(DataError, match="not a file of judgebench"):
        report.read_parquet(path)
    path.write_text("no parquet")
    with pytest.raises(DataError, match="cannot be read"):
        report.read_parquet(path)
    with pytest.raises(DataError, match="cannot be read"):
        report.read_parquet(tmp_path / "absent.parquet")


@pytest.mark.skipif(os.name == "nt", reason="POSIX permissions")
def test_files_have_the_users_permissions_and_survive_a_failed_write(tmp_path: Path) -> None:
    path = tmp_path / "x.md"
    report.write_text(path, "old")
    probe = tmp_path / "probe"
    probe.write_text("")
    assert path.stat().st_mode == probe.stat().st_mode


def test_metrics_are_written_as_declared(tmp_path: Path) -> None:
    ids = ["0", "1"]
    frame = pd.DataFrame({"instruction_id": ids, "cluster_id": ids, "preference": [1.0, np.nan]}).assign(
        benchmark="b", protocol="p", judge="j", candidate="m", baseline="o", turn=1, category=["x", None],
        score=np.nan, candidate_chars=1, candidate_truncated=False, reader=None, reason=None,
        consistent=pd.array([None, None], dtype="boolean"),
    )  # fmt: skip
    for battles in (frame, frame.assign(category=None), frame.iloc[:0]):
        table = ranking.metrics(battles)
        path = tmp_path / "metrics.parquet"
        report.write_parquet(table, path, report.METRICS)
        pd.testing.assert_frame_equal(report.read_parquet(path), table, check_dtype=False)


def test_combine_is_the_union_with_the_run(table: pd.DataFrame, tmp_path: Path) -> None:
    for job in ("0", "1"):
        (tmp_path / "sweep" / job).mkdir(parents=True)
        report.write_parquet(table, tmp_path / "sweep" / job / "leaderboard.parquet", report.LEADERBOARD)
    sweep = tmp_path / "sweep"
    both = report.combine([sweep, sweep / "1", sweep / "1" / "leaderboard.parquet"])
    assert [*both.columns] == report.COMBINED.names
    assert len(both) == 2 * len(table)
    assert [Path(run).name for run in both["run"][:2]] == ["0", "1"]
    assert [*both["model"]] == ["good", "good", "bad", "bad", "none", "none"]
    report.write_parquet(both, sweep / "leaderboard.parquet", report.COMBINED)
    pd.testing.assert_frame_equal(report.combine([sweep]), both)
    with pytest.raises(DataError, match=r"no leaderboard\.parquet"):
        report.combine([tmp_path / "absent"])
    empty = report.combine([])
    assert (len(empty), [*empty]) == (0, report.COMBINED.names)
    assert "0" in plain(both, 120)


# --- tables for people --------------------------------------------------------------------------------


def test_a_table_of_80_columns_without_a_terminal(table: pd.DataFrame) -> None:
    text = plain(table)
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert "bench · pairwise · judge judge · against base" in text
    cells = [line.split() for line in text.splitlines()]
    lines = {line[1]: " ".join(line) for line in cells if line and line[0] in "1 2 –".split()}
    assert lines["good"] == "1 good 87.5 [82.7, 92.3] 80 100 % 1,234"
    assert lines["none"] == "– none n/a 0 0.0 % 100 % 1,234"
    assert "75.0 %" in lines["bad"]
    assert "No verdict through the judge: none 100.0 %, bad 25.0 %." in text


def test_scores_and_several_baselines(table: pd.DataFrame) -> None:
    against = pd.concat([table, table.assign(baseline="other")])
    assert "against" in plain(against, 100)
    assert "· against" not in plain(against, 100)
    scores = board({"m": [np.nan] * 3}, baseline=None, score=[3.0, 4, 5])
    assert "4.00" in plain(scores)
    assert "No battles" in plain(scores.iloc[:0])


def test_b106_one_order_is_said() -> None:
    text = plain(board({"m": [1, 0]}, consistent=pd.array([None, None], dtype="boolean")))
    assert "one order only" in text
    assert "agree" not in text


def test_b40_many_cut_answers_are_said() -> None:
    assert "Answers cut off: m 50.0 %." in plain(board({"m": [1, 0]}, candidate_truncated=[True, False]))


def test_coverage_is_never_rounded_up_to_all() -> None:
    assert "99.9 %" in plain(board({"m": [*[1, 0] * 1500, np.nan]}))


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "cp1252"])
def test_b110_hostile_names_in_a_terminal(encoding: str) -> None:
    table = board({HOSTILE: [1, 0] * 9, "北京 ❌": [1, 0] * 9}, judge=HOSTILE)
    text = plain(table, 120, encoding)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\u2028]", text)
    for piece in ("[bold red]x[/]", ":smile:", r"\x1b[31mred", r"\n\r\t\u202e", "<b>m|1</b>"):
        assert piece in text
    coloured = Console(file=io.StringIO(), width=300, force_terminal=True, color_system="truecolor")
    report.terminal(table, console=coloured)
    assert "\x1b[31m" not in coloured.file.getvalue()  # type: ignore[attr-defined]


def test_long_names_are_folded_and_whole() -> None:
    name = "organisation/" + "a-very-long-name-" * 12
    text = plain(board({name: [1, 0] * 9}))
    assert max(map(len, text.splitlines())) <= 80
    first = [line[4:].split("  ")[0].strip() for line in text.splitlines()]
    assert name in "".join(first)


def test_wide_terminals_draw_the_intervals(table: pd.DataFrame) -> None:
    assert "●" in plain(table, 110)
    assert "●" not in plain(table, 80)


# --- Markdown and CSV ---------------------------------------------------------------------------------


def test_b110_markdown_keeps_rows_and_columns() -> None:
    frame = pd.DataFrame(
        {"model": ["<b>m|1</b>", "gpt_4_x"], "answer": [ANSWER, "_a_ *b* ~~c~~"], "n": [1, 2]}
    )
    text = report.markdown(frame)
    lines = text.splitlines()
    assert [line.count("|") for line in lines] == [4] * 4
    assert not re.search(r"[<`*~@\\\[\]]|https?://|www\.", text)
    assert "gpt_4_x" in text
    assert (
        html.unescape(lines[2]).count("| x |\\n```\\n<img src=x onerror=alert(1)> [c](javascript:alert(1))")
        == 1
    )


def test_b110_markdown_of_a_leaderboard(table: pd.DataFrame) -> None:
    lines = report.markdown(board({HOSTILE: [1, 0] * 9}, benchmark=HOSTILE)).splitlines()
    assert lines[0].startswith("### &#91;bold red&#93;x")
    assert len({line.count("|") for line in lines if line.startswith("|")}) == 1
    assert "| 1 | good | 87.5 |" in report.markdown(table)


def test_b110_csv_runs_no_formulas() -> None:
    frame = pd.DataFrame(
        {"model": ["=1+1", "+1", "-1", "@x", " =x", "\t=x", "＝x", 'a,"b"\nc', None], "value": [-1.5] * 9}
    )
    lines = report.csv(frame).splitlines()
    assert len(lines) == 10
    assert all(line.startswith("'") for line in lines[1:6])
    assert lines[7] == "'＝x,-1.5"
    assert lines[8] == '"a,""b""\\nc",-1.5'
    assert lines[9] == ",-1.5"


@given(st.text(), st.text())
@settings(max_examples=200, deadline=None)
def test_b110_any_text_keeps_the_shape(one: str, other: str) -> None:
    frame = pd.DataFrame({"a": pd.Series([one, other], dtype=object), "b": [1, 2]})
    lines = report.markdown(frame).split("\n")[:-1]
    assert [line.count("|") for line in lines] == [3] * 4
    rows = report.csv(frame).split("\n")[:-1]
    assert len(rows) == 3
    assert all(not row.lstrip('"').startswith(("=", "+", "-", "@")) for row in rows[1:])


def test_b50_files_are_utf8_under_any_locale(tmp_path: Path) -> None:
    path, text = tmp_path / "report.md", "❌ 北京 \ud83d\n"
    code = f"from judgebench import report; report.write_text({str(path)!r}, {text!a})"
    environment = {**os.environ, "PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    assert path.read_bytes().decode("utf-8") == "❌ 北京 \ufffd\n"
