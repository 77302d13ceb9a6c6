"""Looking: what is stored, one answer with its lineage, SQL over many databases; and nothing is changed."""

import json
import multiprocessing
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import urllib.error
import urllib.request

import pandas as pd
import pytest
from storing import ask, put

import judgebench
from judgebench.cli import main
from judgebench.engine import Failure, Response, Usage
from judgebench.errors import ConfigError
from judgebench.request import Descriptor
from judgebench.store import RoleRoot, flat, layout
from judgebench.store.querying import TABLES, columns, query

COLD = Descriptor("openai", "gpt", {"temperature": 0.0, "max_tokens": 64})
WARM = Descriptor("openai", "gpt", {"temperature": 1.0, "max_tokens": 64})
SHIPPED = Descriptor("shipped", "org/old", {"source": "old.json"})
JUDGES = [Descriptor("openai", f"judge-{n}", {"seed": n}) for n in range(13)]  # more than SQLite attaches
EVIL = "[red]First[/red] \x1b[2Jline\nsecond\tline \u202e"
LOGPROBS = json.dumps(
    [
        {"token": "B", "logprob": -0.1, "top_logprobs": [{"token": t, "logprob": p} for t, p in pairs]}
        for pairs in [[("B", -0.1), ("\x1b[A", -2.3)]] * 7
    ]
)


def fill(root):
    """3 models of 2 answers each, 13 judges of 2 judgements each, of which one is used twice."""
    keys = {}
    with_names = [(COLD, "cold"), (WARM, "warm"), (SHIPPED, "old")]
    store = RoleRoot(root, "completions", "run-c")
    for descriptor, name in with_names:
        for item in ("1", "2"):
            asked = ask(f"Question {item}", item, descriptor, model_a=name, turn=1)
            facts = {"origin": "shipped"} if descriptor is SHIPPED else {"usage": Usage(10, None, 5, None)}
            facts["cost_usd"] = 0.25 if descriptor is COLD else None
            put(store, asked, output=f"{EVIL} {name} {item}", **facts)
            keys[name, item] = str(asked.key)
    store.note(Failure(ask("Question 3", "3", COLD, model_a="cold", turn=1), "empty", detail="nothing"))
    store.close()
    store = RoleRoot(root, "judgements", "run-j")
    for number, judge in enumerate(JUDGES):
        for item in ("1", "2"):
            names = {
                "model_a": "old",
                "orientation": "direct",
                "protocol": "p",
                "answer_a": keys["old", item],
            }
            first = ask(f"Judge {item}", item, judge, model_b="cold", answer_b=keys["cold", item], **names)
            uses = [first]
            if number == 0 and item == "1":
                uses.append(ask(f"Judge {item}", item, judge, model_b="twin", answer_b="frame:ab:0", **names))
            put(
                store,
                *uses,
                output=f"[[B]] {number}",
                reasoning="because",
                top_logprobs=LOGPROBS,
                cost_usd=0.5,
                usage=Usage(100, 40, 1, None),
                served_model=f"judge-{number}-2026",
            )
    store.close()
    return keys


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    root = tmp_path_factory.mktemp("store")
    return root, fill(root)


@pytest.fixture
def root(filled):
    before = contents(filled[0])
    yield filled[0]
    assert contents(filled[0]) == before


def contents(root):
    """Every byte of a store. SQLite's reader may make an empty log and the lock file of WAL mode."""
    files = [path for path in root.rglob("*") if path.is_file() and not path.name.endswith("-shm")]
    return {path: raw for path in files if (raw := path.read_bytes())}


def told(capsys, root, *words, status=0):
    assert main([*words, f"store.root={root}"]) == status, capsys.readouterr().err
    return capsys.readouterr().out


def damage(root, role, descriptor):
    path = layout.database(root, role, descriptor)
    path.write_bytes(b"not a database" * 1000)
    return path


# --- ls ----------------------------------------------------------------------------------------------


def listed(root, *words):
    done = judgebench.cli.invoke("ls", [*words, f"store.root={root}"])
    return done.result.set_index(["role", "model", "descriptor_hash"]).sort_index()


def test_ls_counts_rows_answers_money_and_failures(root, capsys):
    frame = listed(root)
    cold = frame.loc["completions", "gpt", COLD.hash]
    assert (cold.rows, cold.answers, cold.cost_usd, cold.unpriced, cold.failed) == (2, 2, 0.5, 0, 1)
    assert (cold.input_tokens, cold.output_tokens, cold.failures) == (20, 10, '{"empty": 1}')
    warm = frame.loc["completions", "gpt", WARM.hash]
    assert (warm.cost_usd, warm.unpriced) == (0, 2)
    old = frame.loc["completions", "org/old", SHIPPED.hash]
    assert (old.answers, old.paid, old.cost_usd, old.unpriced) == (2, 0, 0, 0)
    judge = frame.loc["judgements", "judge-0", JUDGES[0].hash]
    assert (judge.rows, judge.answers, judge.cost_usd) == (3, 2, 1.0)  # money once, whoever uses it
    assert judge.size_bytes == layout.database(root, "judgements", JUDGES[0]).stat().st_size
    assert (frame.first_at <= frame.last_at).all()


def test_ls_shows_a_tree_with_what_differs(root, capsys):
    out = told(capsys, root, "ls", "role=completions")
    assert "temperature=0.0" in out
    assert "max_tokens" not in out  # the same for both
    assert "source=old.json" in out
    assert "$0.0000 + 2 of unknown price" in out
    assert "1 failed try: empty 1" in out
    assert max(map(len, out.splitlines()[1:])) <= 110


@pytest.mark.parametrize(
    ("words", "rows"),
    [
        (["where.model_b=twin"], 1),
        (["where.model_a=cold"], 2),
        (["where.any_model=cold"], 28),
        (["where.descriptor.temperature=1"], 2),
        (["where.judge=judge-1*", "role=judgements"], 8),
        (["where.instruction_id=3"], 0),  # a failed try alone
    ],
)
def test_ls_takes_the_conditions_of_forget(root, words, rows):
    assert listed(root, *words).rows.sum() == rows


def test_ls_writes_files(root, tmp_path, capsys):
    told(capsys, root, "ls", f"output={tmp_path / 'a b.parquet'}")
    assert len(pd.read_parquet(tmp_path / "a b.parquet")) == 16
    told(capsys, root, "ls", f"output={tmp_path / 'x.csv'}")
    assert len(pd.read_csv(tmp_path / "x.csv")) == 16
    assert main(["ls", f"store.root={root}", "output=x.xlsx"]) == 1
    assert "parquet, csv" in capsys.readouterr().err


def test_ls_of_nothing(tmp_path, capsys):
    assert "Nothing is stored here" in told(capsys, tmp_path, "ls")


def test_segments_of_a_descriptor_are_one_entry(tmp_path, monkeypatch):
    monkeypatch.setenv("JUDGEBENCH_STORE_FILESYSTEM", "network")
    for number in range(2):
        store = RoleRoot(tmp_path, "completions", f"run-{number}")
        put(store, ask(f"{number}", descriptor=COLD))
        store.close()
        for path in layout.databases(tmp_path, "completions"):
            path.rename(path.with_name(f"completions.{path.stat().st_ino}.db"))
    assert len(layout.databases(tmp_path, "completions")) == 2
    assert listed(tmp_path).rows.tolist() == [2]
    assert query(tmp_path, "SELECT count(*) FROM completions").rows == [(2,)]


# --- show --------------------------------------------------------------------------------------------


def test_show_a_judgement(root, capsys, filled):
    out = told(capsys, root, "show", "role=judgements", "where.judge=judge-0", "where.instruction_id=1")
    for text in ("openai/judge-0", "seed=0", "judge-0-2026", "$0.500000", "100 input, 40 cached", "because"):
        assert text in out
    assert "Judge 1" in out
    assert "'B' 90.48 %   '\\x1b[A' 10.03 %" in out
    assert "2 positions more" in out
    assert "twin" in out
    assert filled[1]["cold", "1"] in out
    assert "line \\u202e cold 1" in out
    assert "not in this store" in out  # what came in a data frame


def test_show_a_completion_and_the_judgements_of_it(root, capsys, filled):
    out = told(capsys, root, "show", filled[1]["cold", "2"])
    assert "judged in (13)" in out
    assert "judge-12" in out


def test_model_text_is_literal(root, capsys, filled):
    out = told(capsys, root, "show", filled[1]["cold", "1"])
    assert "[red]First[/red] \\x1b[2Jline\nsecond" in out
    assert "\x1b" not in out
    assert "\u202e" not in out


def test_a_key_by_its_beginnings(root, filled):
    whole = filled[1]["warm", "1"]
    descriptor, text, sample = whole.split(":")
    for short in (f"{descriptor[:6]}:{text[:6]}:{sample}", f"{descriptor[:6]}:{text[:6]}", whole.upper()):
        (found,) = judgebench.cli.invoke("show", [short, f"store.root={root}"]).result
        assert str(found.key) == whole


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["show", "0:::"], "is no key"),
        (["show", "hello"], "is no key"),
        (["show", f"{COLD.hash}:"], "fits 3 answers"),
        (["show", f"{COLD.hash}:{'0' * 64}:0"], "no answer of this key"),
        (["show"], "Which answer"),
        (["show", "aa:bb:0", "where.model_a=x"], "not both"),
        (["show", "where.model_a=cold"], "2 answers"),
        (["show", "where.modl_a=cold"], "Did you mean 'model_a'"),
        (["show", "where.model_a=cold", "limit=0"], "from 1"),
    ],
)
def test_what_is_not_one_answer_is_explained(root, capsys, words, message):
    assert main([*words, f"store.root={root}"]) == 1
    assert message in capsys.readouterr().err


def test_show_the_first_few(root, capsys):
    done = judgebench.cli.invoke("show", ["where.any_model=old", "limit=4", f"store.root={root}"])
    assert len(done.result) == 4


def test_what_failed_was_superseded_or_deleted(tmp_path, capsys):
    store = RoleRoot(tmp_path, "judgements", "run-1")
    asked, lost = ask("again", model_b="y"), ask("lost", "2", model_b="y")
    put(store, asked, output="old words")
    store.note(Failure(lost, "empty", detail="nothing came"))
    store.close()
    assert "nothing came" in told(capsys, tmp_path, "show", str(lost.key))
    told(capsys, tmp_path, "refresh", "where.model_b=y", "yes=true")
    assert "to be asked anew since" in told(capsys, tmp_path, "show", str(asked.key))
    store = RoleRoot(tmp_path, "judgements", "run-2")
    store.put(Response(asked, "new words"), [asked], lambda _: None)
    store.close()
    out = told(capsys, tmp_path, "show", str(asked.key))
    assert out.index("new words") < out.index("superseded on") < out.index("old words")
    told(capsys, tmp_path, "forget", "where.model_b=y", "yes=true")
    assert main(["show", str(asked.key), f"store.root={tmp_path}"]) == 1
    assert "was deleted on 20" in capsys.readouterr().err


# --- query -------------------------------------------------------------------------------------------

SAME = [
    "SELECT * FROM judgements ORDER BY key, model_b",
    "SELECT judge, count(*) AS n, sum(cost_usd) FROM judgements GROUP BY judge ORDER BY judge",
    "SELECT output FROM judgements WHERE instruction_id = '2' AND output LIKE '%1%' ORDER BY output",
    "SELECT max(length(top_logprobs)), min(input_text) FROM judgements",
    "WITH a AS (SELECT * FROM judgements) SELECT count(*) FROM a NATURAL JOIN judgements",
    "SELECT DISTINCT model_a, model_b FROM judgements ORDER BY 2 LIMIT 1",
    "SELECT json_extract(descriptor, '$.settings.seed') AS s FROM judgements ORDER BY s DESC",
    "-- a comment\nSELECT 1",
]


@pytest.mark.parametrize("sql", SAME)
def test_many_databases_answer_as_one(root, sql):
    names = columns("judgements", "judgements")
    with sqlite3.connect(":memory:") as one:
        one.execute(f"CREATE TABLE judgements ({', '.join(names)})")
        for row in flat.rows(root, "judgements", {}):
            row["key"] = f"{row['descriptor_hash']}:{row['input_hash']}:{row['sample']}"
            one.execute(
                f"INSERT INTO judgements VALUES ({', '.join('?' * len(names))})", [row[n] for n in names]
            )
        expected = one.execute(sql).fetchall()
    one.close()
    assert query(root, sql).rows == expected


@pytest.mark.parametrize("table", TABLES)
def test_every_table_says_who_answered(root, table):
    frame = judgebench.query(f"SELECT * FROM {table}", role="completions", root=root)
    assert {"provider", "model", "descriptor_hash"} <= set(frame)
    expected = {"responses": 6, "subjects": 6, "attempts": 1}.get(table, 0)
    assert len(frame) == expected
    assert list(frame) == list(columns(table, "completions"))


def test_money_is_summed_over_answers(root):
    sql = "SELECT judge, sum(cost_usd) AS usd FROM responses GROUP BY judge"
    assert judgebench.query(sql, role="judgements", root=root).usd.tolist() == [1.0] * 13


def test_judgements_join_their_completions(root):
    frame = judgebench.query(
        "SELECT j.judge, c.output FROM judgements j JOIN completions c ON c.key = j.answer_b "
        "WHERE j.instruction_id = '1'",
        root=root,
    )
    assert len(frame) == 13
    assert set(frame.output) == {f"{EVIL} cold 1"}


def test_whole_numbers_stay_whole_beside_nulls(root):
    frame = judgebench.query("SELECT input_tokens, model, cost_usd FROM completions", root=root)
    assert str(frame.input_tokens.dtype) == "Int64"
    assert frame.input_tokens.isna().sum() == 2


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM judgements",
        "UPDATE responses SET output = ''",
        "INSERT INTO subjects (turn) VALUES (1)",
        "DROP VIEW judgements",
        "CREATE TEMP TABLE x (y)",
        "PRAGMA query_only=OFF",
        "ATTACH 'x.db' AS x",
        "VACUUM INTO 'copy.db'",
        "SELECT 1; DELETE FROM judgements",
        "BEGIN",
    ],
)
def test_writes_are_refused(root, sql, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"only reads.*forget"):
        query(root, sql, "judgements")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT modelb FROM judgements", r"no such column: modelb \(did you mean 'model_b'\?\).*Columns of"),
        ("SELECT rowid FROM judgements", "no such column"),
        ("SELECT * FROM judgement", "no such table: judgement.*Views: completions, judgements"),
        ("SELEC 1", "syntax error"),
        ("SELECT count(*) FROM responses", "say which is meant with role="),
        ("", "syntax|incomplete|only reads"),
    ],
)
def test_wrong_sql_is_explained_with_the_columns(root, sql, message):
    with pytest.raises(ConfigError, match=message):
        query(root, sql)


def test_query_from_the_command_line(root, capsys, tmp_path):
    sql = "SELECT judge, count(*) AS n FROM judgements WHERE model_b='cold' AND turn=0 GROUP BY judge"
    out = told(capsys, root, "query", sql, "limit=3")
    assert "judge-0" in out
    assert "13 rows; 3 are shown" in out
    for kind, read in (
        ("parquet", pd.read_parquet),
        ("csv", pd.read_csv),
        ("jsonl", lambda p: pd.read_json(p, lines=True)),
    ):
        path = tmp_path / f"rows.{kind}"
        assert "13 rows in" in told(capsys, root, "query", sql, f"output={path}")
        assert read(path).n.tolist() == [2] * 13
    assert "── 1 ──" in told(capsys, root, "query", "SELECT * FROM completions", "limit=1")
    assert main(["query", f"store.root={root}"]) == 1
    assert "Give one SELECT" in capsys.readouterr().err
    assert main(["query", sql, "limit=few", f"store.root={root}"]) == 1
    assert "limit='few'" in capsys.readouterr().err
    assert main(["query", "SELECT turn, turn FROM judgements", f"output={path}", f"store.root={root}"]) == 1
    assert "twice" in capsys.readouterr().err


# --- stores that are not as one wishes ---------------------------------------------------------------


def test_a_damaged_file_is_named_and_the_others_are_read(tmp_path, capsys):
    keys = fill(tmp_path)
    path = damage(tmp_path, "judgements", JUDGES[3])
    for words in (["ls"], ["query", "SELECT count(*) AS n FROM judgements"], ["show", keys["cold", "1"]]):
        assert main([*words, f"store.root={tmp_path}"]) == 3
        captured = capsys.readouterr()
        assert str(path) in captured.err
        assert "judgebench repair" in captured.err
    assert query(tmp_path, "SELECT count(*) FROM judgements").rows == [(25,)]


def test_of_a_file_that_breaks_off_no_row_is_counted(tmp_path):
    store = RoleRoot(tmp_path, "judgements", "run")
    for number in range(300):
        asked = ask(f"{number} {'x' * 3000}", str(number), JUDGES[0], model_b="y")
        store.put(Response(asked, "A"), [asked], lambda _: None)
    put(store, ask("fine", descriptor=JUDGES[1], model_b="y"), output="B")
    store.close()
    path = layout.database(tmp_path, "judgements", JUDGES[0])
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2 :] = b"\xff" * (len(raw) - len(raw) // 2)
    path.write_bytes(raw)
    found = query(tmp_path, "SELECT output FROM judgements")
    assert found.rows == [("B",)]
    assert len(found.problems) == 1


def test_looking_while_a_writer_writes(tmp_path):
    store = RoleRoot(tmp_path, "judgements", "run")
    put(store, ask(model_b="y"))
    assert query(tmp_path, "SELECT output FROM judgements").rows == [("yes",)]
    assert listed(tmp_path).rows.tolist() == [1]
    put(store, ask("more", "2", model_b="y"))
    assert query(tmp_path, "SELECT count(*) FROM judgements").rows == [(2,)]
    store.close()


@pytest.mark.skipif(
    os.geteuid() == 0 and not os.path.exists("/usr/bin/setpriv"), reason="root writes anywhere"
)
def test_a_folder_that_may_not_be_written(tmp_path):
    keys = fill(tmp_path)
    listed(tmp_path, "role=completions")  # a look leaves SQLite's empty log beside these
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=_look_at_read_only, args=(tmp_path, keys["cold", "1"], queue))
    process.start()
    assert queue.get(timeout=20) == ([0, 0, 0], 27)
    process.join()


def _look_at_read_only(path, key, queue):
    for folder, _, files in os.walk(path):
        os.chmod(folder, stat.S_IRUSR | stat.S_IXUSR | stat.S_IROTH | stat.S_IXOTH)
        for name in files:
            os.chmod(os.path.join(folder, name), stat.S_IRUSR | stat.S_IROTH)
    for folder in list(path.parents)[:3]:
        os.chmod(folder, 0o755)
    if os.geteuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    rooted = f"store.root={path}"
    sql = "SELECT output FROM judgements"
    statuses = [main(["ls", rooted]), main(["show", key, rooted]), main(["query", sql, rooted])]
    queue.put((statuses, len(query(path, sql).rows)))


# --- browse ------------------------------------------------------------------------------------------


def test_browse_without_datasette_says_what_to_install(root, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasette", None)
    monkeypatch.setitem(sys.modules, "datasette.app", None)
    assert main(["browse", f"store.root={root}"]) == 1
    assert "pip install 'judgebench[browse]'" in capsys.readouterr().err


def test_browse_serves_the_views_with_facets(root):
    pytest.importorskip("datasette")
    code = "import sys; from judgebench.cli import main; sys.exit(main(sys.argv[1:]))"
    words = ["browse", "port=0", "role=judgements", f"store.root={root}"]
    process = subprocess.Popen([sys.executable, "-c", code, *words], stdout=subprocess.PIPE, text=True)
    try:
        process.stdout.readline()
        address = process.stdout.readline().split()[0]
        name = f"judgements-judge-0-{JUDGES[0].hash[:8]}"
        with urllib.request.urlopen(f"{address}{name}/judgements.json?_shape=objects", timeout=20) as page:
            shown = json.load(page)
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(f"{address}{name}.json?sql=delete+from+responses", timeout=20)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.stdout.close()
        process.wait()
    assert len(shown["rows"]) == 3
    assert {"model_b", "benchmark", "orientation"} <= set(shown["facet_results"])
