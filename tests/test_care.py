"""A store that is damaged, full, foreign or in pieces: told, mended, nothing readable lost."""

import json
import os
import random
import sqlite3
import threading
from contextlib import closing

import pytest
from fakes import FakeEngine, on_loop
from storing import M, ask, put

from judgebench.engine import Response
from judgebench.errors import StoreError
from judgebench.stage import fill
from judgebench.store import RoleRoot, care, database, filesystem, layout, rescue, schema
from judgebench.store.writer import Write, Writer

ROLE = "judgements"


def fill_store(place, count=40, size=3000):
    root = RoleRoot(place, ROLE, "run")
    for n in range(count):
        asked = ask(f"q{n} " + "x" * size, str(n))
        root.put(Response(asked, f"answer {n}", cost_usd=0.01), [asked], lambda _: None)
    root.close()
    return layout.database(place, ROLE, M)


def outputs(place):
    root = RoleRoot(place, ROLE, "look", read_only=True)
    try:
        found = root.lookup([ask(f"q{n} " + "x" * 3000, str(n)) for n in range(40)])
        return [answer and answer.output for answer in found]
    finally:
        root.close()


def problems(place):
    return [problem.text for problem in care.verify(place, ROLE)]


def test_a_sound_store_has_no_problems(tmp_path):
    fill_store(tmp_path)
    assert problems(tmp_path) == []
    assert list(care.repair(tmp_path, ROLE)) == []


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        (
            "UPDATE responses SET input_text = input_text || ' ' WHERE output = 'answer 3'",
            "1 answers whose text",
        ),
        ("UPDATE subjects SET model_a = 'forged' WHERE instruction_id = '3'", "1 uses whose columns"),
        ("DELETE FROM responses WHERE output = 'answer 3'", "1 uses without an answer"),
        ("DELETE FROM subjects WHERE instruction_id = '3'", "1 answers that nothing uses"),
    ],
)
def test_what_was_changed_by_hand_is_noticed(tmp_path, sql, told):
    path = fill_store(tmp_path)
    with closing(sqlite3.connect(path)) as db:
        db.execute(sql)
        db.commit()
    assert any(told in text for text in problems(tmp_path))


def test_a_damaged_file_is_moved_aside_and_all_readable_rows_are_saved(tmp_path):
    path = fill_store(tmp_path)
    raw = bytearray(path.read_bytes())
    draw = random.Random(1)
    for _ in range(6):  # a burst of garbage in some pages behind the schema
        at = draw.randrange(12, len(raw) // 8192) * 8192
        raw[at : at + 200] = draw.randbytes(200)
    path.write_bytes(raw)
    assert any("damaged" in text for text in problems(tmp_path))
    (done,) = care.repair(tmp_path, ROLE)
    assert done.aside.read_bytes() == bytes(raw)
    saved = [output for output in outputs(tmp_path) if output]
    assert len(saved) == done.saved > 20
    assert set(saved) <= {f"answer {n}" for n in range(40)}
    assert [text for text in problems(tmp_path) if "moved aside" not in text] == []


@pytest.mark.parametrize("damage", [b"", b"not a database at all" * 50, None])
def test_a_file_that_is_no_database_is_replaced_and_kept(tmp_path, damage):
    path = fill_store(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if damage is None else damage)
    if damage == b"":
        assert outputs(tmp_path) == [None] * 40  # an empty file is a new one
        return
    assert problems(tmp_path)
    (done,) = care.repair(tmp_path, ROLE)
    assert done.aside.exists()
    fill_store(tmp_path)
    assert outputs(tmp_path) == [f"answer {n}" for n in range(40)]


def test_a_damaged_log_costs_at_most_what_was_in_it(tmp_path):
    path = fill_store(tmp_path)
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    keep = sqlite3.connect(path)  # keeps the log
    keep.execute("INSERT INTO meta VALUES ('x', 'y')")
    keep.commit()
    log = path.with_name(path.name + "-wal")
    raw = bytearray(log.read_bytes())
    raw[40:] = os.urandom(len(raw) - 40)
    keep.close()
    log.write_bytes(raw)
    assert outputs(tmp_path) == [f"answer {n}" for n in range(40)]


def test_metadata_is_made_anew_from_the_database(tmp_path):
    path = fill_store(tmp_path)
    before = (path.parent / "metadata.json").read_text()
    (path.parent / "metadata.json").write_text("{")
    assert any("cannot be read" in text for text in problems(tmp_path))
    list(care.repair(tmp_path, ROLE))
    assert (path.parent / "metadata.json").read_text() == before
    assert problems(tmp_path) == []


# --- answers that cannot be stored -------------------------------------------------------------------


@pytest.fixture
def full_disk(monkeypatch):
    """Databases that may not grow beyond a few pages: SQLite then says what it says of a full disk."""
    open_writer = schema.open_writer

    def opened(*facts):
        db = open_writer(*facts)
        db.execute("PRAGMA max_page_count=26")
        return db

    monkeypatch.setattr(schema, "open_writer", opened)
    return lambda: monkeypatch.setattr(schema, "open_writer", open_writer)


def test_a_full_disk_loses_nothing_that_was_paid_for(tmp_path, full_disk):
    asks = [ask(f"q{n} " + "x" * 3000, str(n)) for n in range(40)]
    asks = [type(a)(a.descriptor, a.connection, a.input_text, a.subject, 0, n) for n, a in enumerate(asks)]
    paid = []

    def reply(request):
        paid.append(request.tag)
        return f"answer {request.tag}"

    async def work():
        store = RoleRoot(tmp_path, ROLE, "run")
        try:
            await fill(asks, store=store, engine_of=lambda _: engine, deliver=lambda batch: None)
        finally:
            try:
                store.close()
            except StoreError:
                pass

    engine = FakeEngine(reply)
    with pytest.raises(
        StoreError, match=r"full.* answers in hand were written to .*judgebench merge"
    ) as told:
        on_loop(work(), 60)
    (path,) = tmp_path.glob("*.rescue.jsonl")
    assert str(path) in str(told.value)
    full_disk()
    for saved in rescue.read(path):
        assert saved.descriptor == M
    from judgebench.caring import take_in

    take_in(path, tmp_path, care.Rules())
    found = outputs(tmp_path)
    assert [n for n, output in enumerate(found) if output] == sorted(paid)


def test_an_odd_row_takes_none_of_the_others_with_it(tmp_path):
    writer = Writer(tmp_path, ROLE)
    kept = {}
    for n in range(5):
        facts = dict.fromkeys(schema.ANSWER_COLUMNS, f"{n}") | {"sample": 0}
        if n == 2:
            facts["latency_s"] = object()
        row = tuple(facts.values())
        writer.put(Write(M, row, (), (), lambda stored, n=n: kept.setdefault(n, stored), row[:2]))
    with pytest.raises(StoreError, match="cannot hold the row 2:0"):
        writer.close()
    assert [n for n, stored in sorted(kept.items()) if stored is None] == [2]


def test_a_rescue_file_that_was_cut_off_gives_what_is_whole(tmp_path):
    keeper = rescue.Rescue(tmp_path, ROLE)
    row = dict.fromkeys(schema.ANSWER_COLUMNS, "x") | {"sample": 0}
    assert keeper.keep(M, tuple(row.values()), [])
    assert keeper.keep(M, tuple(row.values()), [])
    assert keeper.path is not None
    keeper.path.write_bytes(keeper.path.read_bytes()[:-20])
    assert len(list(rescue.read(keeper.path))) == 1
    keeper.path.write_text("{}\n{}\n")
    with pytest.raises(StoreError, match="line 1"):
        list(rescue.read(keeper.path))


# --- network file systems ----------------------------------------------------------------------------


def test_network_file_systems_are_known_by_their_mount(tmp_path, monkeypatch):
    mounts = [(tmp_path.parents[-1], "ext4"), (tmp_path, "nfs4"), (tmp_path / "scratch", "xfs")]
    monkeypatch.setattr(filesystem, "mounts", lambda: mounts)
    filesystem._kind.cache_clear()
    assert filesystem.is_network(tmp_path / "store" / "completions")
    (tmp_path / "scratch").mkdir()
    assert not filesystem.is_network(tmp_path / "scratch" / "store")
    assert not filesystem.is_network(tmp_path.parent)
    monkeypatch.setenv(filesystem.OVERRIDE, "local")
    assert not filesystem.is_network(tmp_path)
    filesystem._kind.cache_clear()


@pytest.fixture
def network(monkeypatch):
    """Every folder is on a network file system, and every root its own process."""
    monkeypatch.setenv(filesystem.OVERRIDE, "network")

    def another_process():
        database._process.cache_clear()

    yield another_process
    database._process.cache_clear()


def test_segments_one_a_writer_are_read_as_one_and_folded(tmp_path, network):
    for run in ("one", "two"):
        network()
        root = RoleRoot(tmp_path, ROLE, run)
        assert root.claim([ask(run)]) == {}
        put(root, ask(run, run), output=run, cost_usd=0.5)
        put(root, ask("both", "both"), output=f"both by {run}")
        root.close()
    folder = layout.folder(tmp_path, ROLE, M)
    segments = layout.files_in(folder, ROLE)
    assert len(segments) == 2
    assert not layout.database(tmp_path, ROLE, M).exists()
    assert not list(folder.glob("*-wal"))
    with closing(sqlite3.connect(segments[0])) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    looking = RoleRoot(tmp_path, ROLE, "look", read_only=True)
    answers = looking.lookup([ask("one"), ask("two"), ask("none")])
    assert [answer and answer.output for answer in answers] == ["one", "two", None]
    looking.close()

    (done,) = care.compact(tmp_path, ROLE)
    assert (done.folded, done.conflicts, done.still_open) == (2, 1, ())
    assert [path.name for path in layout.files_in(folder, ROLE)] == ["judgements.db"]
    with closing(sqlite3.connect(layout.database(tmp_path, ROLE, M))) as db:
        assert sorted(db.execute("SELECT output, cost_usd FROM judgements")) == [
            ("both by one", None),
            ("one", 0.5),
            ("two", 0.5),
        ]
        assert db.execute("SELECT output FROM superseded").fetchall() == [("both by two",)]
    assert problems(tmp_path) == []


def test_a_new_use_of_an_answer_in_another_segment_is_a_row_of_the_view(tmp_path, network):
    root = RoleRoot(tmp_path, ROLE, "one")
    put(root, ask(), output="yes", cost_usd=0.5)
    root.close()
    network()
    root = RoleRoot(tmp_path, ROLE, "two")
    assert root.lookup([ask(model_a="new")])[0].output == "yes"
    assert root.lookup([ask(model_a="new")])[0].output == "yes"
    root.close()
    list(care.compact(tmp_path, ROLE))
    with closing(sqlite3.connect(layout.database(tmp_path, ROLE, M))) as db:
        assert sorted(db.execute("SELECT model_a, output, cost_usd FROM judgements")) == [
            ("new", "yes", 0.5),
            ("x", "yes", 0.5),
        ]


def test_a_segment_that_is_being_written_is_left_alone(tmp_path, network):
    root = RoleRoot(tmp_path, ROLE, "one")
    put(root, ask())
    (done,) = care.compact(tmp_path, ROLE)
    assert done.folded == 0
    assert len(done.still_open) == 1
    put(root, ask("later"))
    root.close()
    (done,) = care.compact(tmp_path, ROLE)
    assert (done.folded, done.still_open) == (1, ())


def test_compact_gives_back_what_deletions_left(tmp_path):
    path = fill_store(tmp_path, count=400)
    with closing(sqlite3.connect(path)) as db:
        db.execute("DELETE FROM responses WHERE output != 'answer 1'")
        db.execute("DELETE FROM subjects WHERE instruction_id != '1'")
        db.commit()
    (done,) = care.compact(tmp_path, ROLE)
    assert done.after < done.before / 4
    assert done.after == path.stat().st_size
    assert outputs(tmp_path)[1] == "answer 1"


def test_a_write_goes_on_while_another_thread_reads(tmp_path):
    root = RoleRoot(tmp_path, ROLE, "run")
    over = threading.Event()
    seen = []

    def read():
        looking = RoleRoot(tmp_path, ROLE, "look", read_only=True)
        while not over.is_set():
            seen.append(sum(a is not None for a in looking.lookup([ask(f"q{n}") for n in range(50)])))
        looking.close()

    reader = threading.Thread(target=read)
    reader.start()
    for n in range(50):
        put(root, ask(f"q{n}", str(n)))
    over.set()
    reader.join()
    root.close()
    assert seen == sorted(seen)
    assert json.dumps(seen)
