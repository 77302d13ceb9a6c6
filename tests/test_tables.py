from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from judgebench import ranking, report, tables
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


@pytest.fixture
def table() -> pd.DataFrame:
    return board({"good": [1, 1, 1, 0.5] * 20, "bad": [0, 0, 1, np.nan] * 20, "none": [np.nan] * 3})


# --- parquet -----------------------------------------------------------------------------------------


def test_what_ranking_makes_fits_the_schemas(table: pd.DataFrame) -> None:
    assert [*table] == tables.LEADERBOARD.names


def test_round_trip_with_types_and_provenance(table: pd.DataFrame, tmp_path: Path) -> None:
    path = tmp_path / "leaderboard.parquet"
    tables.write_parquet(table, path, tables.LEADERBOARD, {"reader": "labels/1", "data": "北京 ❌"})
    back = tables.read_parquet(path)
    pd.testing.assert_frame_equal(back, table, check_dtype=False, check_exact=True)
    assert back["n_wins"].dtype == "Int64"
    assert tables.provenance(path) == {"reader": "labels/1", "data": "北京 ❌"}
    stored = pq.read_schema(path)
    assert stored.metadata[b"judgebench_schema"] == b"leaderboard/1"
    assert b"pandas" not in stored.metadata
    assert stored.equals(tables.LEADERBOARD)
    assert pq.ParquetFile(path).metadata.row_group(0).column(0).compression == "ZSTD"
    assert [*tmp_path.iterdir()] == [path]
    pd.testing.assert_frame_equal(pd.read_parquet(path), table, check_dtype=False)


def test_identical_content_gives_identical_bytes(table: pd.DataFrame, tmp_path: Path) -> None:
    one, other = tmp_path / "one.parquet", tmp_path / "other.parquet"
    shuffled = table.sort_values("model")[[*reversed(table.columns)]].sort_index()
    tables.write_parquet(table, one, tables.LEADERBOARD, {"a": "1", "b": "2"})
    tables.write_parquet(shuffled, other, tables.LEADERBOARD, {"b": "2", "a": "1"})
    assert one.read_bytes() == other.read_bytes()
    as_objects = table.astype({"model": object, "baseline": object}).set_index(np.arange(3) + 7)
    tables.write_parquet(as_objects, other, tables.LEADERBOARD, {"a": "1", "b": "2"})
    assert one.read_bytes() == other.read_bytes()


def test_b94_all_null_columns_keep_their_type(tmp_path: Path) -> None:
    path = tmp_path / "leaderboard.parquet"
    table = board({"m": [np.nan]}, baseline=None)
    table = table.astype({"baseline": object, "mean_score": object})
    tables.write_parquet(table, path, tables.LEADERBOARD)
    assert pq.read_schema(path).equals(tables.LEADERBOARD)
    assert tables.read_parquet(path)["n_wins"].dtype == "Int64"


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
        tables.write_parquet(frame, tmp_path / "x.parquet", schema)
    assert [*tmp_path.iterdir()] == []


def test_columns_must_be_the_declared_ones(table: pd.DataFrame, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    with pytest.raises(DataError, match="'low' is missing"):
        tables.write_parquet(table.drop(columns="low"), path, tables.LEADERBOARD)
    with pytest.raises(DataError, match=r"'winrate' is not known. Did you mean 'win_rate'"):
        tables.write_parquet(table.assign(winrate=1), path, tables.LEADERBOARD)
    with pytest.raises(DataError, match="'low' is there twice"):
        tables.write_parquet(pd.concat([table, table[["low"]]], axis=1), path, tables.LEADERBOARD)
    with pytest.raises(DataError, match="'model' is null in row 0"):
        tables.write_parquet(table.assign(model=None), path, tables.LEADERBOARD)
    with pytest.raises(DataError, match="judgebench_schema"):
        tables.write_parquet(table, path, tables.LEADERBOARD.remove_metadata())
    assert not path.exists()


def test_lone_surrogates_and_nullable_columns_of_any_schema(tmp_path: Path) -> None:
    fields = [("text", pa.string()), ("flag", pa.bool_()), ("n", pa.int32())]
    schema = pa.schema(fields, metadata={"judgebench_schema": "verdicts/3"})
    text = pd.Series(["ok \ud83d", None], dtype=object)
    frame = pd.DataFrame({"text": text, "flag": [True, None], "n": [np.nan, 3]})
    path = tmp_path / "verdicts.parquet"
    tables.write_parquet(frame, path, schema)
    back = tables.read_parquet(path, schema)
    assert back["text"][0] == "ok \ufffd"
    assert (back["flag"][0], back["n"][1]) == (True, 3)
    assert back.isna().to_numpy().tolist() == [[False, False, True], [True, True, False]]
    assert [str(x) for x in back.dtypes[1:]] == ["boolean", "Int32"]


def test_other_schemas_and_versions_are_refused(table: pd.DataFrame, tmp_path: Path) -> None:
    path = tmp_path / "leaderboard.parquet"
    newer = tables.LEADERBOARD.with_metadata({"judgebench_schema": "leaderboard/2"})
    tables.write_parquet(table, path, newer)
    with pytest.raises(DataError, match=r"leaderboard/2, not leaderboard/1.*newer"):
        tables.read_parquet(path)
    tables.write_parquet(table, path, tables.LEADERBOARD)
    with pytest.raises(DataError, match="holds leaderboard/1, not metrics/1"):
        tables.read_parquet(path, tables.METRICS)
    table.to_parquet(path)
    with pytest.raises(DataError, match="not a file of judgebench"):
        tables.read_parquet(path)
    path.write_text("no parquet")
    with pytest.raises(DataError, match="cannot be read"):
        tables.read_parquet(path)
    with pytest.raises(DataError, match="cannot be read"):
        tables.read_parquet(tmp_path / "absent.parquet")


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
        tables.write_parquet(table, path, tables.METRICS)
        pd.testing.assert_frame_equal(tables.read_parquet(path), table, check_dtype=False)
