"""Which stored answer serves which request: richer rows, other roots, refreshed and unfit ones."""

import json
import shutil

import pytest
from storing import ask, put, rows

from judgebench.request import Descriptor
from judgebench.store import RoleRoot, layout
from judgebench.store.reuse import NO_LOGPROBS, TRUNCATED, cut, serves


def model(count=None, positions="first", **settings):
    logprobs = {} if count is None else {"logprobs": {"count": count, "positions": positions}}
    return Descriptor("openai", "m", {"temperature": 0.0, **settings, **logprobs})


def tops(*positions):
    return json.dumps(
        [
            {"token": p[0], "logprob": -0.1, "top_logprobs": [{"token": t, "logprob": -1.0} for t in p]}
            for p in positions
        ],
        separators=(",", ":"),
    )


@pytest.fixture
def open_root(tmp_path):
    opened = []

    def make(place="store", **options):
        root = RoleRoot(tmp_path / place, "judgements", f"run-{len(opened)}", **options)
        opened.append(root)
        return root

    yield make
    for root in opened:
        root.close()


@pytest.mark.parametrize(
    ("rich", "poor", "able"),
    [
        (model(20), model(5), True),
        (model(5), model(20), False),
        (model(5), model(5), False),  # the same: no sibling
        (model(5), model(), True),
        (model(), model(5), False),
        (model(20, "all"), model(5), True),
        (model(20), model(5, "all"), False),
        (model(20, top_p=0.5), model(5), False),
    ],
)
def test_only_more_logprobs_serve_fewer(rich, poor, able):
    assert serves(rich, poor) is able


def test_logprobs_are_cut_to_what_was_asked():
    stored = tops("AB", "CD")
    assert cut(stored, model(1)) == tops("A")
    assert cut(stored, model(1, "all")) == tops("A", "C")
    assert cut(stored, model()) is None
    assert cut(None, model(1)) is None


def test_five_twenty_five(open_root):
    """FAULTS B83: never fewer than asked, and the third is a hit."""
    first = open_root()
    put(first, ask(descriptor=model(5)), output="five", top_logprobs=tops("ABCDE"))
    assert open_root().lookup([ask(descriptor=model(20))]) == [None]
    put(first, ask(descriptor=model(20)), output="twenty", top_logprobs=tops("ABCDEFGHIJ"))
    (third,) = open_root().lookup([ask(descriptor=model(5))])
    assert third.output == "five"


def test_a_richer_row_serves_and_is_kept_as_what_the_poorer_would_have_got(open_root):
    put(open_root(), ask(descriptor=model(20)), top_logprobs=tops("ABCDEFG"), cost_usd=0.5)
    poor = ask(descriptor=model(5), model_a="other")
    root = open_root()
    (answer,) = root.lookup([poor])
    assert (answer.top_logprobs, answer.cost_usd, answer.hit) == (tops("ABCDE"), 0.5, True)
    root.flush()
    kept = rows(root, "SELECT top_logprobs, origin, cost_usd, model_a FROM judgements", model(5))
    assert kept == [(tops("ABCDE"), "reused", None, "other")]  # money is counted once
    (again,) = open_root(read_only=True).lookup([poor])
    assert again.top_logprobs == tops("ABCDE")


def test_a_second_root_serves_and_is_not_written(open_root, tmp_path):
    theirs = open_root("theirs")
    put(theirs, ask("known"), output="theirs")
    theirs.close()
    before = {p: p.read_bytes() for p in (tmp_path / "theirs").rglob("*.[dj]*[bn]")}  # databases, metadata
    assert len(before) == 2
    root = open_root("mine", also=[tmp_path / "theirs"])
    found = root.lookup([ask("known", model_a="mine"), ask("unknown")])
    assert [answer and answer.output for answer in found] == ["theirs", None]
    assert root.unwritten_subjects == 1
    assert [(place, served.rows) for (place, _), served in root.served.items()] == [(tmp_path / "theirs", 1)]
    put(root, ask("known"), output="mine")  # our own answer comes first
    assert open_root("mine", also=[tmp_path / "theirs"]).lookup([ask("known")])[0].output == "mine"
    root.flush()
    assert {p: p.read_bytes() for p in before} == before


def test_the_oldest_answer_that_was_served_is_known(open_root):
    root = open_root()
    put(root, ask("1"))
    put(root, ask("2"))
    looking = open_root()
    answers = looking.lookup([ask("1"), ask("2"), ask("3")])
    (served,) = looking.served.values()
    assert (served.rows, served.oldest, served.newest) == (2, answers[0].created_at, answers[1].created_at)


def test_what_is_older_than_the_instant_is_asked_anew_and_kept_beside(open_root):
    put(open_root(), ask(), output="old", cost_usd=0.25)
    root = open_root(fresh_since="2999-01-01T00:00:00.000Z")
    assert root.lookup([ask()]) == [None]
    assert root.claim([ask()]) == {}
    put(root, ask(), output="new")
    assert rows(root, "SELECT output FROM responses") == [("new",)]
    assert rows(root, "SELECT output, cost_usd FROM superseded") == [("old", 0.25)]
    assert rows(root, "SELECT count(*) FROM subjects") == [(1,)]


def test_a_run_that_refreshes_and_was_killed_goes_on(open_root):
    put(open_root(), ask("1"), output="old")
    since = open_root()
    (old,) = since.lookup([ask("1")])
    put(since, ask("2"), output="anew")
    (anew,) = since.lookup([ask("2")])
    again = open_root(fresh_since=anew.created_at)
    assert [a and a.output for a in again.lookup([ask("1"), ask("2")])] == [None, "anew"]
    assert old.created_at <= anew.created_at


def test_shipped_answers_never_grow_old(open_root):
    shipped = Descriptor("shipped", "m")
    put(open_root(), ask(descriptor=shipped), origin="shipped")
    assert open_root(fresh_since="2999").lookup([ask(descriptor=shipped)])[0] is not None


@pytest.mark.parametrize(
    ("facts", "reason"), [({"finish_reason": "length"}, TRUNCATED), ({"top_logprobs": None}, NO_LOGPROBS)]
)
def test_a_row_that_the_asker_refuses_is_asked_anew(open_root, facts, reason):
    root = open_root()
    put(root, ask(), output="poor", **facts)
    picky = ask()
    picky = type(picky)(
        picky.descriptor, picky.connection, picky.input_text, picky.subject, 0, 0, frozenset([reason])
    )
    assert root.lookup([picky]) == [None]
    assert root.lookup([ask()])[0].output == "poor"
    put(root, picky, output="rich", finish_reason="stop", top_logprobs="[]")
    assert root.lookup([picky])[0].output == "rich"
    assert rows(root, "SELECT output FROM superseded") == [("poor",)]


def test_a_damaged_sibling_description_is_no_obstacle(open_root, tmp_path):
    root = open_root()
    put(root, ask(descriptor=model(20)), top_logprobs="[]")
    (place,) = [p.parent for p in layout.databases(tmp_path / "store", "judgements")]
    shutil.copytree(place, place.parent / "broken")
    (place.parent / "broken" / "metadata.json").write_text("{")
    assert open_root().lookup([ask(descriptor=model(5))])[0] is not None
