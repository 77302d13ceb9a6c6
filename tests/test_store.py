"""The store: every paid answer durable at once, found by key, with every subject, and nothing else."""

import json
import multiprocessing
import os
import sqlite3
import stat
import threading

import numpy as np
import pytest
from storing import M, ask, database, put, rows

from judgebench.engine import Attempt, Failure, Response, Usage
from judgebench.errors import StoreError
from judgebench.request import Descriptor
from judgebench.store import RoleRoot, layout, schema


@pytest.fixture
def root(tmp_path):
    root = RoleRoot(tmp_path, "judgements", "run-1")
    yield root
    root.close()


def test_an_answer_comes_back_whole(root):
    put(
        root,
        ask(model_b="y", orientation="direct", protocol="p"),
        output="[[A]]",
        finish_reason="stop",
        reasoning="because",
        top_logprobs="[]",
        served_model="m-1",
        usage=Usage(10, 2, 5, 1),
        cost_usd=0.01,
    )
    (answer,) = root.lookup([ask(model_b="y", orientation="direct", protocol="p")])
    assert answer.hit
    assert (answer.output, answer.reasoning, answer.finish_reason) == ("[[A]]", "because", "stop")
    assert (answer.top_logprobs, answer.served_model, answer.cost_usd) == ("[]", "m-1", 0.01)
    assert (answer.input_tokens, answer.output_tokens, answer.origin) == (10, 5, "paid")


def test_the_view_is_flat_and_typed(root):
    put(root, ask(model_b="y", orientation="reversed", protocol="p"), cost_usd=0.5)
    columns = [row[1] for row in rows(root, "PRAGMA table_info(judgements)")]
    for (
        name
    ) in "benchmark instruction_id model_a model_b orientation top_logprobs judge origin cost_usd".split():
        assert name in columns
    sql = "SELECT judge, model_a, model_b, orientation, turn, cost_usd FROM judgements"
    assert rows(root, sql) == [("m", "x", "y", "reversed", 0, 0.5)]


def test_one_answer_many_subjects_one_row_of_money(root):
    put(root, ask(model_a="x"), ask(model_a="twin"), cost_usd=0.25)
    assert rows(root, "SELECT count(*), sum(cost_usd) FROM responses") == [(1, 0.25)]
    assert sorted(rows(root, "SELECT model_a FROM judgements")) == [("twin",), ("x",)]


def test_new_subjects_of_a_stored_answer_are_added_without_a_call_and_once(root):
    put(root, ask(model_a="x"))
    for _ in range(2):
        assert root.lookup([ask(model_a="late")])[0] is not None
        root.flush()
    assert sorted(rows(root, "SELECT model_a FROM subjects")) == [("late",), ("x",)]


def test_a_full_hit_writes_nothing(root):
    put(root, ask())
    root.close()
    path = database(root)
    before = path.read_bytes()
    again = RoleRoot(root.root, "judgements", "run-2")
    assert again.lookup([ask()])[0] is not None
    again.close()
    assert path.read_bytes() == before


def test_samples_are_apart(root):
    for sample in range(3):
        put(root, ask(sample=sample), output=str(sample))
    found = root.lookup([ask(sample=n) for n in (2, 0, 1, 3)])
    assert [answer and answer.output for answer in found] == ["2", "0", "1", None]


def test_lookup_keeps_the_order_over_chunks_and_descriptors(root):
    other = Descriptor("openai", "m", {"temperature": 1.0})
    for n in range(1200):
        root.put(Response(ask(f"q{n}"), f"a{n}"), [ask(f"q{n}", str(n))], lambda _: None)
    root.put(Response(ask("q5", descriptor=other), "warm"), [ask("q5", descriptor=other)], lambda _: None)
    root.flush()
    asked = [ask(f"q{n}", str(n)) for n in range(1199, -1, -1)] + [ask("q5", descriptor=other), ask("none")]
    found = [answer and answer.output for answer in root.lookup(asked)]
    assert found == [f"a{n}" for n in range(1199, -1, -1)] + ["warm", None]


@pytest.mark.parametrize("text", ["", "a\0b", "x" * 1_000_000, "\u2028\u0085", "🙂"])
def test_awkward_payloads_survive(root, text):
    put(root, ask(text), output=text + ".")
    assert root.lookup([ask(text)])[0].output == text + "."


def test_a_lone_surrogate_costs_its_row_a_mark_and_the_others_nothing(root):
    for n in range(100):
        output = "ok \ud83d" if n == 50 else "ok"
        root.put(Response(ask(f"q{n}"), output), [ask(f"q{n}")], lambda _: None)
    root.flush()
    outputs = [answer.output for answer in root.lookup([ask(f"q{n}") for n in range(100)])]
    assert outputs == ["ok"] * 50 + ["ok \ufffd"] + ["ok"] * 49


ODD = {
    "served_model": [{"x": 1}, ["m"], "m\ud800", b"m"],
    "fingerprint": [["x"]],
    "finish_reason": ["x\ud800"],
    "reasoning": [{"a": 1}],
    "usage": [Usage(10**30, -(10**30), 2**63 - 1, float("inf"))],
    "cost_usd": [float("nan"), float("inf"), "0.5", np.float32(0.5), np.int64(1)],
    "latency_s": [object()],
    "output": [5, True],
}


def test_no_value_of_one_answer_takes_the_others_with_it(root):
    stored = {}

    def keep(text):
        return lambda answer: stored.update({text: answer})

    for name, values in ODD.items():
        for value in values:
            text = f"{name} {value!r}"
            response = Response(ask(text), **{"output": "yes", name: value})
            root.put(response, [ask(text, benchmark="b\ud800")], keep(text))
            of_failure = {name: value} if name in Failure.__dataclass_fields__ else {}
            root.note(Failure(ask(text), "server", value, **of_failure))
    root.flush()
    assert all(stored.values())
    assert len(stored) == sum(map(len, ODD.values()))
    assert stored["served_model {'x': 1}"].served_model is None
    costs = [answer.cost_usd for text, answer in stored.items() if text.startswith("cost_usd")]
    assert costs == [None, None, "0.5", 0.5, 1]
    assert rows(root, "SELECT max(cost_usd) FROM responses") == [(1.0,)]
    assert [stored[text].input_tokens for text in stored if text.startswith("usage")] == [None]
    assert rows(root, "SELECT count(*) FROM attempts") == [(len(stored),)]


def test_a_row_that_cannot_be_held_is_lost_alone_and_named(tmp_path):
    root = RoleRoot(tmp_path, "judgements", "run-1")
    stored = {}
    asks = [ask(f"q{n}") for n in range(20)]
    for n, one in enumerate(asks):
        output = None if n == 7 else "yes"  # no engine gives that
        root.put(Response(one, output), [one], lambda answer, n=n: stored.update({n: answer}))
    with pytest.raises(StoreError, match=f"{asks[7].input_hash}:0: a value that must be there is null"):
        root.flush()
    assert [n for n, answer in stored.items() if answer is None] == [7]
    assert rows(root, "SELECT count(*) FROM responses") == [(19,)]
    with pytest.raises(StoreError, match=asks[7].input_hash):
        root.close()


def test_failures_are_kept_apart_and_are_no_answers(root):
    request = ask()
    root.note(Attempt(request, 1, "malformed", "not JSON", output="{", cost_usd=0.01))
    root.note(Failure(request, "empty", "nothing came", output="", cost_usd=0.02))
    root.flush()
    assert root.lookup([request]) == [None]
    assert rows(root, "SELECT reason, output, cost_usd, benchmark, model_a FROM attempts ORDER BY 1") == [
        ("empty", "", 0.02, "b", "x"),
        ("malformed", "{", 0.01, "b", "x"),
    ]


def test_who_was_first_wins(tmp_path):
    one, other = (RoleRoot(tmp_path, "judgements", f"run-{n}") for n in (1, 2))
    mine = put(one, ask(), output="first")
    theirs = put(other, ask(), output="second")
    assert (mine.output, mine.hit) == ("first", False)
    assert (theirs.output, theirs.hit) == ("first", True)  # what counts is what the store holds
    one.close()
    other.close()


NAMES = [
    "org/name",
    "org_name",
    "org--name",
    "a:b",
    "..",
    "CON",
    "con",
    "x" * 250,
    "Org/Name",
    "模型",
    "a=b,c",
]


def test_model_ids_never_collide_and_stay_below_the_root(tmp_path):
    root = RoleRoot(tmp_path / "store", "completions", "run")
    descriptors = [Descriptor("p", name) for name in NAMES]
    for descriptor in descriptors:
        put(root, ask(descriptor=descriptor), output=descriptor.model)
    root.close()
    paths = [layout.folder(root.root, "completions", d) for d in descriptors]
    assert len({str(path).casefold() for path in paths}) == len(NAMES)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    assert {layout.read_metadata(path).model for path in paths} == set(NAMES)
    assert len(layout.databases(root.root, "completions")) == len(NAMES)
    assert all(len(part) < 100 for path in paths for part in path.parts)


def test_metadata_tells_who_answers(root):
    put(root, ask())
    content = json.loads((database(root).parent / "metadata.json").read_text())
    assert content["descriptor_hash"] == M.hash
    assert content["descriptor"] == {"model": "m", "provider": "openai", "settings": {"temperature": 0.0}}


def test_a_newer_schema_is_refused_and_left_alone(root):
    put(root, ask())
    root.close()
    db = sqlite3.connect(database(root))
    db.execute("PRAGMA user_version=99")
    db.close()
    before = database(root).read_bytes()
    again = RoleRoot(root.root, "judgements", "run-2")
    with pytest.raises(StoreError, match=r"schema 99.*Upgrade"):
        again.lookup([ask()])
    with pytest.raises(StoreError, match="schema 99"):
        put(again, ask("new"))
    with pytest.raises(StoreError):
        again.close()
    assert database(root).read_bytes() == before


def test_a_file_that_is_no_database_is_named_and_left_alone(root):
    path = database(root)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"not a database, but paid for" * 100)
    with pytest.raises(StoreError, match="damaged"):
        root.lookup([ask()])
    assert path.read_bytes().startswith(b"not a database")


@pytest.mark.skipif(
    os.geteuid() == 0 and not os.path.exists("/usr/bin/setpriv"), reason="root writes anywhere"
)
def test_a_read_only_root_serves_hits_and_says_what_it_could_not_note(root):
    put(root, ask())
    root.close()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=_read_only, args=(root.root, queue))
    process.start()
    found, unwritten = queue.get(timeout=20)
    process.join()
    assert found == ["yes", "yes", None]
    assert unwritten == 1


def _read_only(path, queue):
    for folder, _, files in os.walk(path):
        os.chmod(folder, stat.S_IRUSR | stat.S_IXUSR | stat.S_IROTH | stat.S_IXOTH)
        for name in files:
            os.chmod(os.path.join(folder, name), stat.S_IRUSR | stat.S_IROTH)
    for folder in list(path.parents)[:3]:
        os.chmod(folder, 0o755)
    if os.geteuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    root = RoleRoot(path, "judgements", "run-2")
    found = root.lookup([ask(), ask(model_a="new"), ask("none")])
    queue.put(([answer and answer.output for answer in found], root.unwritten_subjects))
    root.close()


def test_mode_off_leaves_nothing(tmp_path):
    root = RoleRoot(tmp_path, "judgements", "run", throw_away=True)
    put(root, ask())
    place = root.root
    assert root.lookup([ask()])[0].output == "yes"
    root.close()
    assert not place.exists()
    assert list(tmp_path.iterdir()) == []


def test_the_schema_is_the_documented_one(root):
    put(root, ask())
    tables = {name for (name,) in rows(root, "SELECT name FROM sqlite_master WHERE type='table'")}
    assert tables == {"responses", "subjects", "attempts", "superseded", "claims", "tombstones"} | {
        "canaries",
        "meta",
    }
    assert rows(root, "PRAGMA user_version") == [(schema.SCHEMA_VERSION,)]
    assert rows(root, "PRAGMA page_size") == [(8192,)]
    assert rows(root, "PRAGMA journal_mode") == [("wal",)]


EACH = 5000 if os.environ.get("JUDGEBENCH_HEAVY") else 600


def _write_many(path, start):
    root = RoleRoot(path, "judgements", f"run-{start}")
    for n in range(start, start + EACH):
        root.put(Response(ask(f"q{n}"), "a"), [ask(f"q{n}", str(n))], lambda _: None)
    root.close()


def test_eight_processes_with_overlapping_keys_write_one_database(tmp_path):
    context = multiprocessing.get_context("forkserver")
    starts = [number * EACH // 2 for number in range(8)]
    workers = [context.Process(target=_write_many, args=(tmp_path, start)) for start in starts]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0] * 8
    total = starts[-1] + EACH
    root = RoleRoot(tmp_path, "judgements", "run")
    assert rows(root, "SELECT count(*), count(DISTINCT input_hash) FROM responses") == [(total, total)]
    assert all(root.lookup([ask(f"q{n}", str(n)) for n in range(total)]))
    root.close()


def test_a_callback_that_fails_is_told_and_hangs_nobody(tmp_path):
    root = RoleRoot(tmp_path, "judgements", "run-1")

    def done(answer):
        raise RuntimeError("no loop")

    root.put(Response(ask(), "yes"), [ask()], done)
    with pytest.raises(StoreError, match="no loop"):
        root.flush()
    root.put(Response(ask("late"), "yes"), [ask("late")], lambda answer: None)
    with pytest.raises(StoreError, match="no loop"):
        root.close()
    assert rows(root, "SELECT count(*) FROM responses") == [(2,)]


def test_a_flush_waits_for_the_rows_before_it_whoever_else_writes(root):
    kept = []

    def write(start):
        for n in range(start, start + 50):
            root.put(Response(ask(f"q{n}"), "a"), [ask(f"q{n}")], kept.append)
            if n % 10 == 0:
                root.flush()
                assert root.lookup([ask(f"q{n}")])[0] is not None

    threads = [threading.Thread(target=write, args=(1000 * n,)) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    root.flush()
    assert len(kept) == 200
    assert rows(root, "SELECT count(*) FROM responses") == [(200,)]
