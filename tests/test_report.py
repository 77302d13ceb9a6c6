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
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from judgebench import ranking, report

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
