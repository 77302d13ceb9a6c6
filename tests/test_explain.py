"""What a run says about its store: why rows were asked, where hits came from, what changed behind a name."""

import json
from pathlib import Path

import pandas as pd
import pytest
from judging import answer, is_judging, says
from servers import serving

from judgebench import canary
from judgebench.cli import main
from judgebench.request import messages_input, prompt_input
from judgebench.store.nearest import parting


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(canary, "_ASKED", set())


def words(url, *more):
    common = [
        "benchmark=starter", "limit=4", "check_judge=false", "protocol=pairwise", "store.root=store",
        "candidate=server", "candidate.name=cand", f"candidate.base_url={url}", "candidate.endpoint_id=e",
        "judge=server", "judge.name=jud", f"judge.base_url={url}", "judge.endpoint_id=e",
    ]  # fmt: skip
    keys = {word.partition("=")[0] for word in more}
    return [*(word for word in common if word.partition("=")[0] not in keys), *more]


class Runs:
    """Runs against one server; `reply` may be exchanged between them."""

    def __init__(self, capsys):
        self.capsys = capsys
        self.reply = says(answer)

    def __call__(self, *more, verb="run", status=0):
        asked = []

        def plan(number, body):
            asked.append(body)
            return self.reply(number, body)

        with serving(plan=plan) as server:
            assert main([verb, *words(server.url, *more)]) == status
        self.asked = [body for body in asked if canary.QUESTION not in json.dumps(body)]
        self.canaries = [body["model"] for body in asked if canary.QUESTION in json.dumps(body)]
        said = self.capsys.readouterr()
        return said.out + said.err


@pytest.fixture
def runs(capsys):
    return Runs(capsys)


def test_a_changed_setting_is_named(runs):
    """FAULTS B64."""
    assert "not stored" not in runs("+judge.sampling.top_p=1.0")
    asked = len(runs.asked)
    told = runs("+judge.sampling.top_p=0.9", verb="plan")
    assert "8 judgements of jud not stored: stored with other settings: top_p: 1.0 -> 0.9" in told
    assert runs.asked == []
    told = runs("+judge.sampling.top_p=0.9")
    assert "8 judgements of jud not stored: stored with other settings: top_p: 1.0 -> 0.9" in told
    assert len(runs.asked) == asked - 4


def test_a_run_of_hits_says_from_where_and_how_old(runs):
    runs()
    told = runs()
    assert runs.asked == runs.canaries == []
    assert f"8 judgements of jud from {Path('store').absolute()}" in told
    assert f"{pd.Timestamp.now(tz='UTC'):%Y-%m-%d}" in told


def test_another_answer_to_be_judged_is_named(runs):
    runs()
    runs.reply = says(lambda body: answer(body) if is_judging(body) else "Quite another answer.")
    told = runs("store.completions.mode=off")
    assert "8 judgements of jud not stored: stored on " in told
    assert "with another prompt: at character" in told
    assert r"Assistant B\n\nQuite another answer." in told


def test_failures_of_the_time_before_are_named(runs):
    runs.reply = says(lambda body: answer(body) if is_judging(body) else "")
    assert "4 empty" in runs(status=3)
    runs.reply = says(answer)
    assert "4 completions of cand not stored: asked before and failed: empty" in runs()


def test_what_was_deleted_is_named(runs, capsys):
    runs()
    words_ = ["forget", "store.root=store", "role=judgements", "where.model_b=cand", "yes=true"]
    assert main(words_) == 0
    capsys.readouterr()
    assert "not stored: deleted on" in runs()


def test_what_is_new_is_told_of_only_when_asked(runs):
    runs("limit=2")
    assert "not stored" not in runs("limit=4")
    assert "nothing like it is stored" in runs("limit=6", "explain=true")


def test_refresh_asks_again_and_keeps_the_old(runs):
    runs()
    runs.reply = says(lambda body: answer(body) if is_judging(body) else "Anew.")
    runs("store.completions.mode=refresh")
    assert len(runs.asked) == 4 + 8  # other answers, other judgements
    outputs = pd.read_parquet(max(Path("runs").iterdir()) / "completions.parquet")
    assert set(outputs.query("model == 'cand'").output) == {"Anew."}
    runs()
    assert runs.asked == []
    assert list(Path("store/completions/.refresh").iterdir()) == []


def test_a_refresh_with_failures_goes_on_where_it_was(runs):
    runs("limit=4")
    first = Path("store/judgements/.refresh")
    runs.reply = says(lambda body: "" if is_judging(body) and "B" in answer(body)[-4:] else answer(body))
    runs("store.judgements.mode=refresh", status=3)
    some = len(runs.asked)
    assert len(list(first.iterdir())) == 1
    runs.reply = says(answer)
    runs("store.judgements.mode=refresh")
    assert 0 < len(runs.asked) < some
    assert list(first.iterdir()) == []


def test_a_model_that_changed_behind_its_name_is_noticed(runs):
    runs("limit=2")
    assert sorted(runs.canaries) == ["cand", "jud"]
    canary._ASKED.clear()
    assert "may not be" not in runs("limit=4")
    canary._ASKED.clear()

    def moved(number, body):
        return {**says(answer)(number, body), "model": f"{body['model']}-1106"}

    runs.reply = moved
    told = runs("limit=6")
    assert "jud may not be the model it was on" in told
    assert "served as 'jud-0613' -> 'jud-1106'" in told
    assert "jud was served by more than one model: jud-0613 (8), jud-1106 (4)" in told
    assert "served by more" not in runs("limit=6", "store.mixed=ignore")
    told = runs("limit=6", "store.mixed=refuse", status=1)
    assert "was served by more than one model" in told
    assert "No table was written" in told
    assert not (max(Path("runs").iterdir()) / "leaderboard.parquet").exists()


def test_the_canary_can_be_turned_off_and_an_unwilling_model_is_let_pass(runs):
    runs("limit=2", "store.canary=false")
    assert runs.canaries == []

    def unwilling(number, body):
        return says(lambda body: "" if canary.QUESTION in json.dumps(body) else answer(body))(number, body)

    runs.reply = unwilling
    runs("limit=4")
    assert len(runs.canaries) >= 2


def test_a_second_root_serves(runs):
    runs("store.root=theirs")
    told = runs("store.root=mine", "store.also=theirs")
    assert runs.asked == []
    assert "was not noted" in told
    assert f"8 judgements of jud from {Path('theirs').absolute()}" in told
    assert "there is no store" in runs("store.also=nowhere", status=1)


def test_prompts_part_where_they_differ():
    old, new = (prompt_input("x" * 100 + f"{word} end") for word in ("old", "new"))
    assert parting(old, new) == f"at character 100: …{'x' * 24}old end… -> …{'x' * 24}new end…"
    assert parting(prompt_input("a"), prompt_input("ab")).startswith("at character 1: ")
    system, user = ([{"role": role, "content": "a"}] for role in ("system", "user"))
    assert "role" in parting(messages_input(system), messages_input(user))  # the texts are the same
