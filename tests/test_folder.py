import json
import logging
import os
from datetime import datetime
from multiprocessing import get_context
from pathlib import Path

import pytest

from judgebench import folder as folders
from judgebench.errors import ConfigError, Interrupted
from judgebench.folder import (
    Job,
    check_sweep,
    claim,
    clear_job,
    clear_stale,
    fresh,
    outcomes,
    recorded,
    worst,
)


def _start(parent: Path, now: datetime) -> str:
    return fresh(parent, now).name


def test_starts_in_one_second_never_share_a_folder(tmp_path: Path) -> None:
    now = datetime(2026, 11, 30, 12, 0, 0)
    with get_context("spawn").Pool(4) as pool:
        names = pool.starmap(_start, [(tmp_path / "runs", now)] * 8)
    stem = "2026-11-30_12-00-00"
    assert sorted(names) == sorted([stem, *(f"{stem}-{n}" for n in range(2, 9))])


def test_claim(tmp_path: Path) -> None:
    new = tmp_path / "a" / "b"
    assert claim(new) == new
    assert new.is_dir()
    assert claim(new) == new  # empty
    (new / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"not empty and not ours \(notes.txt; no run.json\).*output_dir="):
        claim(new)
    (new / "run.json").write_text("{}")
    assert claim(new) == new
    with pytest.raises(ConfigError, match="the folder of a single run"):
        claim(new, sweep=True)


def test_claim_for_a_sweep(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text("{}")
    assert claim(tmp_path, sweep=True) == tmp_path
    with pytest.raises(ConfigError, match="the folder of a sweep"):
        claim(tmp_path)


def test_an_interrupted_start_may_be_called_again(tmp_path: Path) -> None:
    folders.write_status(tmp_path, {"verb": "run"}, None)
    assert claim(tmp_path) == tmp_path


def test_a_file_or_a_foreign_parent_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is a file"):
        claim(tmp_path / "file")
    with pytest.raises(ConfigError, match=r"cannot be made .*belongs to .*output_dir="):
        claim(tmp_path / "file" / "deeper")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(
        ConfigError, match=rf"{tmp_path} cannot be made or written \(not writable\).*belongs to"
    ):
        claim(tmp_path)


def test_only_our_numbered_jobs_are_cleared(tmp_path: Path) -> None:
    for name in ("0", "1", "7", "notes", "01"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("x")
    for name, key in (("0", "old"), ("1", "new")):
        folders.write_status(tmp_path / name, {"sweep": key}, 0)
    with pytest.raises(ConfigError, match="7 is no job of ours"):
        folders.check_sweep(tmp_path)
    clear_stale(tmp_path, "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["01", "1", "7", "notes"]
    assert list(clear_job(tmp_path / "1").iterdir()) == []
    with pytest.raises(ConfigError, match="holds something else"):
        clear_job(tmp_path / "7")
    (tmp_path / "9").symlink_to(tmp_path / "notes")
    with pytest.raises(ConfigError, match="holds something else"):
        clear_job(tmp_path / "9")


@pytest.mark.parametrize(
    ("statuses", "status"),
    [([], 0), ([0, 0], 0), ([0, 3], 3), ([3, 75], 75), ([75, 1, 3], 1), ([1, 130, 0], 130), ([0, 42], 1)],
)
def test_worst(statuses: list[int], status: int) -> None:
    assert worst(statuses) == status


def test_a_job_has_log_and_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "hush-hush")
    told = {"verb": "run", "sweep": "s", "overrides": ["a=1"]}
    home = tmp_path / "0"
    home.mkdir()

    def act() -> tuple[int, object]:
        assert json.loads((home / "status.json").read_text())["status"] is None
        logging.getLogger("judgebench").info("模型 hush-hush")
        return 3, "result"

    assert recorded(act, home, told) == (3, "result")
    assert "模型 ***" in (home / "log.txt").read_text(encoding="utf-8")
    status = json.loads((home / "status.json").read_text())
    assert status["status"] == 3
    assert status["error"] is None
    assert status["started_at"] <= status["ended_at"]
    assert outcomes(tmp_path, "s") == [folders.Outcome(0, 3, None, ("a=1",))]
    assert outcomes(tmp_path, "other") == []
    assert not logging.getLogger("judgebench").handlers


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (ValueError("bad\nmore"), 1, "ValueError: bad"),
        (ConfigError("bad"), 1, "bad"),
        (Interrupted("stopped"), 130, "stopped"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_what_is_raised_is_in_the_log_first(
    tmp_path: Path, error: BaseException, status: int, text: str
) -> None:
    def act() -> tuple[int, object]:
        raise error

    with pytest.raises(type(error)):
        recorded(act, tmp_path, {"verb": "run"})
    told = json.loads((tmp_path / "status.json").read_text())
    assert (told["status"], told["error"]) == (status, text)
    assert "Traceback" in (tmp_path / "log.txt").read_text()


def test_a_killed_job_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "3").mkdir()
    folders.write_status(tmp_path / "3", {"sweep": "s"}, None)
    [job] = outcomes(tmp_path, "s")
    assert job.status == 1
    assert "killed" in str(job.error)


def test_call_takes_none_for_complete() -> None:
    class Verb:
        result = 5

        def __call__(self, job: Job) -> None:
            assert job.verb == "x"

    assert Job("x", None, None, (), {}).call(Verb()) == (0, 5)


def test_a_store_within_a_sweeps_folder_is_never_cleared(tmp_path):
    job = tmp_path / "0"
    place = job / "judgements" / "openai" / "m" / "hash"
    place.mkdir(parents=True)
    (job / "status.json").write_text("{}")
    (place / "metadata.json").write_text("{}")
    for refuse in (lambda: check_sweep(tmp_path), lambda: clear_job(job), lambda: clear_stale(tmp_path, "s")):
        with pytest.raises(ConfigError, match="holds a store"):
            refuse()
    assert (place / "metadata.json").exists()
