"""Merging stores: idempotent, order-free, nothing deleted comes back, conflicts listed and kept."""

import shutil
import sqlite3

import pytest
from storing import M, ask, put

from judgebench.errors import ConfigError, StoreError
from judgebench.request import digest
from judgebench.store import RoleRoot, layout, schema
from judgebench.store.deletion import condition, delete
from judgebench.store.merging import Merged, Rules, add, merge

ROLE = "judgements"


def filled(place, *answers, run="r"):
    root = RoleRoot(place, ROLE, run)
    for prompt, output in answers:
        put(root, ask(prompt, instruction=prompt), output=output, cost_usd=0.01)
    root.close()
    return place


def total(source, root, **rules):
    merged = Merged()
    for _, part in merge(source, root, ROLE, Rules(**rules)):
        merged += part
    return merged


def held(place):
    db = sqlite3.connect(layout.database(place, ROLE, M))
    try:
        return dict(db.execute("SELECT input_text, output FROM judgements"))
    finally:
        db.close()


def dump(place):
    db = sqlite3.connect(layout.database(place, ROLE, M))
    try:
        tables = ("responses", "subjects", "superseded", "tombstones", "attempts")
        kept = {t: sorted(map(repr, db.execute(f"SELECT * FROM {t}"))) for t in tables}
        kept["superseded"] = [row.rsplit(",", 1)[0] for row in kept["superseded"]]  # but for its instant
        return kept
    finally:
        db.close()


def text(prompt):
    return ask(prompt).input_text


def test_a_conflict_is_listed_and_the_older_answer_stays(tmp_path):
    a = filled(tmp_path / "a", ("1", "one"), ("2", "two"))
    b = filled(tmp_path / "b", ("2", "TWO"), ("3", "three"))
    merged = total(b, a)
    assert held(a) == {text("1"): "one", text("2"): "two", text("3"): "three"}
    assert (merged.answers, merged.known, merged.subjects) == (1, 1, 1)
    (conflict,) = merged.conflicts
    assert (conflict.here, conflict.there, conflict.kept) == ("two", "TWO", "here")
    assert conflict.input_hash == digest(text("2"))
    db = sqlite3.connect(layout.database(a, ROLE, M))
    assert db.execute("SELECT output FROM superseded").fetchall() == [("TWO",)]
    db.close()


def test_merging_is_idempotent_and_does_not_depend_on_the_order(tmp_path):
    a = filled(tmp_path / "a", ("1", "one"), ("2", "two"))
    b = filled(tmp_path / "b", ("2", "TWO"), ("3", "three"))
    a2, b2 = shutil.copytree(a, tmp_path / "a2"), shutil.copytree(b, tmp_path / "b2")
    total(b, a)
    total(a2, b2)
    assert dump(a) == dump(b2)
    before = dump(a)
    again = total(b, a)
    assert (again.answers, again.subjects) == (0, 0)
    assert dump(a) == before


@pytest.mark.parametrize(("rule", "stays"), [("older", "two"), ("newer", "TWO"), ("keep", "two")])
def test_the_rule_says_which_answer_stays(tmp_path, rule, stays):
    a, b = filled(tmp_path / "a", ("2", "two")), filled(tmp_path / "b", ("2", "TWO"))
    total(b, a, on_conflict=rule)
    assert held(a) == {text("2"): stays}


def test_refusing_conflicts_changes_nothing(tmp_path):
    a, b = filled(tmp_path / "a", ("2", "two")), filled(tmp_path / "b", ("1", "one"), ("2", "TWO"))
    before = dump(a)
    with pytest.raises(StoreError, match=r"Two different answers .* on_conflict"):
        total(b, a, on_conflict="refuse")
    assert dump(a) == before


def test_an_unknown_rule_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="older"):
        add(tmp_path, ROLE, M, [], [], on_conflict="oldest")


def test_what_was_deleted_here_does_not_come_back(tmp_path):
    a = filled(tmp_path / "a", ("1", "one"), ("2", "two"))
    b = shutil.copytree(a, tmp_path / "b")
    delete(a, ROLE, condition(ROLE, {"instruction_id": "1"}), "subjects")
    merged = total(b, a)
    assert merged.buried == 2  # the answer and its subject
    assert held(a) == {text("2"): "two"}


def test_what_was_bought_anew_after_a_deletion_travels(tmp_path):
    a = filled(tmp_path / "a", ("1", "one"))
    b = shutil.copytree(a, tmp_path / "b")
    delete(a, ROLE, condition(ROLE, {"instruction_id": "1"}), "subjects")
    filled(a, ("1", "anew"))
    c = tmp_path / "c"
    total(a, c)
    assert held(c) == {text("1"): "anew"}
    total(b, a)  # the deleted text stays away
    assert held(a) == {text("1"): "anew"}


def test_a_deletion_elsewhere_takes_nothing_here_unless_asked(tmp_path):
    a = filled(tmp_path / "a", ("1", "one"), ("2", "two"))
    b = shutil.copytree(a, tmp_path / "b")
    delete(a, ROLE, condition(ROLE, {"instruction_id": "1"}), "subjects")
    kept = total(a, b)
    assert (kept.spared, kept.deleted) == (2, 0)
    assert len(held(b)) == 2
    gone = total(a, b, deletions="apply")
    assert gone.deleted == 2
    assert held(b) == {text("2"): "two"}


def test_a_forged_row_is_refused_and_named(tmp_path):
    a = filled(tmp_path / "a", ("1", "one"))
    db = sqlite3.connect(layout.database(a, ROLE, M))
    db.execute("UPDATE responses SET input_text = 'other'")
    db.commit()
    db.close()
    merged = total(a, tmp_path / "b")
    assert merged.forged == [f"{M.hash}:{digest(text('1'))}:0"]
    assert held(tmp_path / "b") == {}
    assert merged.orphans == 1


def test_a_store_of_the_first_release_can_be_read_merged_and_written(tmp_path, request):
    path = layout.database(tmp_path, ROLE, M)
    path.parent.mkdir(parents=True)
    db = sqlite3.connect(path)
    db.executescript((request.path.parent / "schemas" / "1.sql").read_text(encoding="utf-8"))
    asked = ask("1", instruction="1")
    row = dict.fromkeys(schema.ANSWER_COLUMNS) | {
        "input_hash": asked.input_hash,
        "sample": 0,
        "input_text": asked.input_text,
        "output": "old",
        "origin": "paid",
        "created_at": "2026-01-01T00:00:00.000Z",
        "created_by": "judgebench 0.1.0",
        "run_id": "r",
    }
    db.execute(schema.insert("responses", row), list(row.values()))
    subject = (asked.subject_key, asked.input_hash, 0, *asked.subject, "r")
    db.execute(schema.insert("subjects", schema.subjects.columns.keys()), subject)
    db.execute("INSERT INTO meta VALUES ('model', 'm')")
    db.commit()
    db.close()
    layout.write_metadata(path.parent, M)

    looking = RoleRoot(tmp_path, ROLE, "r2", read_only=True)
    assert [a.output for a in looking.lookup([asked])] == ["old"]
    looking.close()
    assert total(tmp_path, tmp_path / "new").answers == 1  # and the old file is left as it is
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA user_version").fetchone() == (1,)

    filled(tmp_path, ("2", "new"))
    assert held(tmp_path) == {text("1"): "old", text("2"): "new"}
    assert db.execute("PRAGMA user_version").fetchone() == (schema.SCHEMA_VERSION,)
    fresh = sqlite3.connect(layout.database(tmp_path / "new", ROLE, M))
    tables = "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1"
    for (table,) in fresh.execute(tables).fetchall():
        assert [c[1:] for c in fresh.execute(f"PRAGMA table_info({table})")] == [
            c[1:] for c in db.execute(f"PRAGMA table_info({table})")
        ]
    assert db.execute(tables).fetchall() == fresh.execute(tables).fetchall()
    fresh.close()
    db.close()
