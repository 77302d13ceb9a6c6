"""Deletion by column is exact: what was named goes, what others use stays, and the money is told once."""

import sqlite3

import pytest

from judgebench.cli import main
from judgebench.engine import Failure, Response, Usage
from judgebench.errors import ConfigError
from judgebench.request import Connection, Descriptor, Request, Subject, prompt_input
from judgebench.store import RoleRoot, layout
from judgebench.store.deletion import condition, delete, find

COLD = Descriptor("openai", "j", {"temperature": 0.0})
WARM = Descriptor("openai", "j", {"temperature": 1.0})


def ask(text, model_b, descriptor=COLD, instruction="1", **names):
    given = {
        "benchmark": "b",
        "instruction_id": instruction,
        "turn": 0,
        "model_a": "base",
        "model_b": model_b,
    }
    subject = Subject(**{**given, "orientation": "direct", "protocol": "p", **names})
    return Request(descriptor, Connection(), prompt_input(text), subject)


@pytest.fixture
def root(tmp_path):
    """x and y share an answer; y has one of its own; z is judged by a warm judge; one pointwise row."""
    root = RoleRoot(tmp_path, "judgements", "run")
    for requests, cost in (
        ([ask("shared", "x"), ask("shared", "y")], 0.25),
        ([ask("own", "y", instruction="2")], 0.5),
        ([ask("warm", "z", WARM, instruction="007", benchmark="other")], None),
        ([ask("point", None, instruction="3", orientation=None)], 1.0),
    ):
        response = Response(requests[0], "A", cost_usd=cost, usage=Usage(input=10, output=1))
        root.put(response, requests, lambda _: None)
    root.note(Failure(ask("failed", "x", instruction="9"), "empty"))
    root.close()
    return tmp_path


def left(root):
    rows = []
    for path in layout.databases(root, "judgements"):
        db = sqlite3.connect(path)
        rows += db.execute("SELECT model_b, instruction_id, output FROM judgements").fetchall()
        db.close()
    return sorted(rows, key=lambda row: (row[0] is None, row))


def count(root, table, descriptor=COLD):
    db = sqlite3.connect(layout.database(root, "judgements", descriptor))
    try:
        return db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    finally:
        db.close()


def forget(root, scope="subjects", **where):
    wanted = condition("judgements", where)
    found = list(find(root, "judgements", wanted, scope))
    before = left(root)
    gone = delete(root, "judgements", wanted, scope)
    assert gone == sum(sum(match.rows.values()) + match.lost_rows for match in found)
    assert len(before) - len(left(root)) == gone
    return found


def test_an_answer_that_others_use_stays(root):
    (match,) = forget(root, any_model="x")
    assert (match.answers, match.kept, match.cost_usd) == (0, 1, 0.0)
    assert [row[0] for row in left(root)] == ["y", "y", "z", None]
    assert count(root, "responses") == 3


def test_orphaned_answers_go_and_their_money_is_told_once(root):
    (match,) = forget(root, model_b="y")
    assert (match.answers, match.kept, match.cost_usd, match.tokens) == (1, 1, 0.5, 11)
    assert count(root, "responses") == 2
    assert ("x", "1", "A") in left(root)


def test_scope_answers_names_who_else_loses(root):
    (match,) = forget(root, "answers", model_b="x")
    assert dict(match.losing) == {("b", "y"): 1, ("b", "base"): 1}
    assert match.cost_usd == 0.25
    assert {row[0] for row in left(root)} == {"y", "z", None}
    assert ("y", "1", "A") not in left(root)


@pytest.mark.parametrize(
    ("where", "gone"),
    [
        ({"model_b": None}, 1),
        ({"model_b": ["x", "z"]}, 2),
        ({"model_b": "?"}, 4),
        ({"benchmark": "oth*"}, 1),
        ({"instruction_id": "007"}, 1),
        ({"instruction_id": "7"}, 0),
        ({"turn": "0", "protocol": "p"}, 5),
        ({"judge": "j", "descriptor": {"temperature": "1.0"}}, 1),
        ({"descriptor": {"temperature": "1"}}, 1),
        ({"descriptor": {"top_p": None}, "model_b": "z"}, 1),
        ({"created_at": "<2001-01-01"}, 0),
        ({"created_at": ">=2001-01-01"}, 5),
        ({"any_model": "base", "model_b": "x"}, 1),
        ({"run_id": "other"}, 0),
    ],
)
def test_conditions_select_exactly(root, where, gone):
    before = len(left(root))
    forget(root, **where)
    assert before - len(left(root)) == gone


def test_failed_tries_with_the_same_columns_go_too(root):
    forget(root, any_model="x")
    assert count(root, "attempts") == 0


def test_tombstones_are_left(root):
    forget(root, model_b="y")
    assert count(root, "tombstones") == 3  # two subjects, one answer


def test_nothing_selected_is_refused():
    with pytest.raises(ConfigError, match="at least one column"):
        condition("judgements", {})
    with pytest.raises(ConfigError, match="model_b"):
        condition("judgements", {"model_bb": "x"})


def test_the_command_shows_asks_and_deletes(root, capsys):
    words = ["forget", "role=judgements", "where.any_model=y", f"store.root={root}"]
    assert main(words) == 1  # no terminal to ask on
    told = capsys.readouterr()
    assert "2 of b" in told.out
    assert "$0.5000" in told.out
    assert "yes=true" in told.err
    assert len(left(root)) == 5
    assert main([*words, "yes=true"]) == 0
    assert "2 rows deleted" in capsys.readouterr().out
    assert len(left(root)) == 3
    assert main([*words, "yes=true"]) == 0
    assert "Nothing matches" in capsys.readouterr().out


@pytest.mark.parametrize("word", ["no", "maybe", "''", "0", "off"])
def test_only_true_is_a_yes(root, word, capsys):
    words = ["forget", f"store.root={root}", "where.model_b=x", f"yes={word}"]
    assert main(words) == 1
    assert "true or false" in capsys.readouterr().err or word == "off"
    assert len(left(root)) == 5


@pytest.mark.parametrize(("span", "kept"), [("2000-01-01..2999-01-01", 0), ("2000-01-01..2000-02-01", 5)])
def test_a_range_of_dates(root, span, kept):
    assert main(["forget", f"store.root={root}", f"where.created_at={span}", "yes=true"]) == 0
    assert len(left(root)) == kept


def contents(root):
    return b"".join(path.read_bytes() for path in root.rglob("*") if path.is_file())


@pytest.mark.parametrize("before", ["", "softly"])
def test_hard_leaves_no_byte(root, before):
    secret = "Jane Roe, born 1 April 1970, " + "x" * 9000  # over several pages
    store = RoleRoot(root, "judgements", "run")
    asked = ask(secret, "x", instruction="77")
    store.put(Response(asked, f"About {secret}"), [asked], lambda _: None)
    store.note(Failure(asked, "empty", detail=secret[:50]))
    store.close()
    assert b"Jane Roe" in contents(root)
    words = ["forget", f"store.root={root}", "where.instruction_id=77", "yes=true"]
    if before:  # deleted before; some builds of SQLite leave it in the file's free pages
        assert main(words) == 0
        words[2] = "where.instruction_id=3"
    assert main([*words, "hard=true"]) == 0
    assert b"Jane Roe" not in contents(root)
    assert len(left(root)) == (5 if not before else 4)


def test_refresh_marks_and_the_next_answer_supersedes(root, capsys):
    words = ["refresh", f"store.root={root}", "where.model_b=x", "yes=true"]
    assert main(words) == 0
    told = capsys.readouterr().out
    assert "1 answers of judgements will be asked anew" in told
    assert "y on b: 1" in told  # who else uses it
    store = RoleRoot(root, "judgements", "run-2")
    asked = ask("shared", "x")
    assert store.lookup([asked]) == [None]
    store.put(Response(asked, "B"), [asked], lambda _: None)
    store.flush()
    assert [answer.output for answer in store.lookup([asked, ask("shared", "y")])] == ["B", "B"]
    store.close()
    assert count(root, "superseded") == 1


def test_only_failed_tries_match(root, capsys):
    assert main(["forget", f"store.root={root}", "where.instruction_id=9", "yes=true"]) == 0
    assert "1 failed tries" in capsys.readouterr().out
    assert count(root, "attempts") == 0
    assert len(left(root)) == 5
