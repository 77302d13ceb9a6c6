"""What a verb is handed (`Job`), what a call hands back (`Invocation`), and the folders in between.

A default folder is made exclusively, so that two starts in one second never share it. An explicit one is
used again only if it is ours: it holds `run.json` or `status.json` (a job) or `sweep.json` (a sweep). Of
a sweep's folder only our numbered jobs are ever cleared. This file does not know Hydra, nor what a verb
writes.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from judgebench.errors import ConfigError, Interrupted, JudgebenchError
from judgebench.overrides import scrub_text

log = logging.getLogger("judgebench")

RUNS = Path("runs")
JOB_MARKS = ("run.json", "status.json")
SWEEP_MARK = "sweep.json"
STATUS = "status.json"
LOG = "log.txt"

COMPLETE, ERROR, MISSING, PENDING, INTERRUPTED = 0, 1, 3, 75, 130
_WORST_FIRST = (INTERRUPTED, ERROR, PENDING, MISSING, COMPLETE)


@dataclass(frozen=True)
class Job:
    """One call of a verb. `folder` is None for verbs that write nothing, `number` outside of a sweep."""

    verb: str
    folder: Path | None
    number: int | None
    overrides: tuple[str, ...]
    config: dict[str, Any]  # resolved; secrets are '***'

    def call(self, verb: Callable[[Job], int | None]) -> tuple[int, Any]:
        """Call a verb's object: its exit status (None is complete) and its `result`, if it has one."""
        status = verb(self)
        return int(status or 0), getattr(verb, "result", None)


@dataclass(frozen=True)
class Outcome:
    """How one job of a sweep ended, as its `status.json` tells: `status` is None while it runs."""

    number: int
    status: int | None
    error: str | None
    overrides: tuple[str, ...]


@dataclass(frozen=True)
class Invocation:
    """What a call of a verb came to. `result` is the verb's own; of a sweep, the `Outcome` of each job."""

    status: int
    folder: Path | None
    result: Any = None
    notes: tuple[str, ...] = field(default=())  # paragraphs for people: which jobs failed, and why


def worst(statuses: list[int]) -> int:
    """One exit status for many jobs: interrupted, error, pending, rows missing, complete."""
    known = [status if status in _WORST_FIRST else ERROR for status in statuses]
    return min(known, key=_WORST_FIRST.index, default=COMPLETE)


def fresh(parent: Path, now: datetime | None = None) -> Path:
    """A new folder `parent/DATE_TIME`, made exclusively; -2, -3 … where others started in the same second."""
    stem = f"{now or datetime.now():%Y-%m-%d_%H-%M-%S}"
    _make(parent)
    for count in range(1, 10_000):
        path = parent / (stem if count == 1 else f"{stem}-{count}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        except OSError as error:
            raise _cannot(path, error) from None
        return path
    raise ConfigError(f"{parent} holds 10,000 folders of {stem}: give output_dir=DIR.")


def claim(path: Path, *, sweep: bool = False) -> Path:
    """An explicit folder: made if absent, used if empty or ours, else refused."""
    marks = (SWEEP_MARK,) if sweep else JOB_MARKS
    if path.exists() and not path.is_dir():
        raise ConfigError(f"output_dir={path} is a file. Give a folder: output_dir=DIR.")
    _make(path)
    held = sorted(item.name for item in path.iterdir())
    if not held or any(mark in held for mark in marks):
        return path
    if sweep and any(mark in held for mark in JOB_MARKS):
        what = "the folder of a single run, not of a sweep"
    elif not sweep and SWEEP_MARK in held:
        what = "the folder of a sweep, not of a single run"
    else:
        what = (
            f"not empty and not ours ({', '.join(held[:3])}{', …' if len(held) > 3 else ''}; no {marks[0]})"
        )
    raise ConfigError(
        f"output_dir={path} is {what}, and nothing in it is touched. Give a new or an empty folder "
        f"(output_dir={path}-2), or leave output_dir out for a new folder in runs/."
    )


def _make(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(13, "not writable")
    except OSError as error:
        raise _cannot(path, error) from None


def _cannot(path: Path, error: OSError) -> ConfigError:
    """Say whose folder it is that cannot be written: it is mostly a colleague's."""
    there = next((folder for folder in (path, *path.parents) if folder.exists()), path)
    try:
        owner = f", which belongs to {there.owner()}"
    except (OSError, KeyError, NotImplementedError):
        owner = ""
    return ConfigError(
        f"{path} cannot be made or written ({error.strerror or error}) in {there}{owner}. "
        "Give a folder of your own: output_dir=DIR."
    )


def is_job(path: Path) -> bool:
    """Whether a folder is a job of ours."""
    return path.is_dir() and not path.is_symlink() and any((path / mark).is_file() for mark in JOB_MARKS)


def numbered(out: Path) -> list[Path]:
    """The numbered folders in a sweep's folder, by number."""
    return sorted((path for path in out.iterdir() if _is_number(path.name)), key=lambda path: int(path.name))


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit() and (name == "0" or name[0] != "0")


def clear_job(path: Path) -> Path:
    """An empty folder for a numbered job: what an earlier job of ours left goes, anything else is refused."""
    if is_job(path):
        _remove(path)
    if path.is_symlink() or (path.exists() and (not path.is_dir() or any(path.iterdir()))):
        raise ConfigError(f"{path} is needed for a job of the sweep, but holds something else. Move it away.")
    _make(path)
    return path


def check_sweep(out: Path) -> None:
    """Refuse a sweep's folder whose numbered folders are not all jobs of ours, before any job starts."""
    for path in numbered(out):
        if not is_job(path) and not (path.is_dir() and not path.is_symlink() and not any(path.iterdir())):
            raise ConfigError(f"{path} is no job of ours, but a sweep numbers its jobs. Move it away first.")
        if (held := _store_in(path)) is not None:
            raise ConfigError(
                f"{path} would be cleared for a job of the sweep, but holds a store ({held}). Nothing was "
                "touched: move the store away, or give another output_dir."
            )


def clear_stale(out: Path, sweep: str) -> None:
    """Remove the jobs that an earlier sweep left in this folder."""
    for path in numbered(out):
        if is_job(path) and read_json(path / STATUS).get("sweep") != sweep:
            _remove(path)


def _store_in(job: Path) -> Path | None:
    """A store that somebody keeps in a job's folder: answers are paid for, tables are not."""
    return next((path.parent for path in job.rglob("metadata.json")), None)


def _remove(job: Path) -> None:
    if _store_in(job) is not None:
        raise ConfigError(f"{job} holds a store and is not cleared: give another output_dir.")
    shutil.rmtree(job)


def write_json(path: Path, value: Any) -> None:
    """Replace a file as a whole: UTF-8, readable, never half written."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_text(json.dumps(value, ensure_ascii=False, indent=2, default=str) + "\n", encoding="utf-8")
    os.replace(part, path)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object, or {} where there is none (yet)."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def write_status(folder: Path, job: dict[str, Any], status: int | None, error: str | None = None) -> None:
    """`status.json` of a job: written when it starts (status null) and when it ends."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    before = read_json(folder / STATUS) if status is not None else {}
    times = {"started_at": before.get("started_at", now), "ended_at": None if status is None else now}
    write_json(folder / STATUS, {**job, "status": status, "error": error, **times})


def outcomes(out: Path, sweep: str) -> list[Outcome]:
    """How the jobs of one sweep ended, by number. A job without an end (killed) is an error."""
    found = []
    for path in numbered(out):
        if (told := read_json(path / STATUS)).get("sweep") == sweep:
            status, error = told.get("status"), told.get("error")
            if status is None:
                status, error = ERROR, "ended without a word: its process was killed"
            found.append(Outcome(int(path.name), status, error, tuple(told.get("overrides", ()))))
    return found


class _Scrubbed(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return scrub_text(super().format(record))


@contextmanager
def logging_to(folder: Path | None) -> Iterator[None]:
    """While this lasts, the logger `judgebench` appends to the job's log.txt: UTF-8, secrets scrubbed."""
    if folder is None:
        yield
        return
    handler = logging.FileHandler(folder / LOG, encoding="utf-8", delay=True)
    handler.setFormatter(_Scrubbed("%(asctime)s %(levelname)s %(message)s"))
    level = log.level
    log.addHandler(handler)
    log.setLevel(
        logging.DEBUG if os.environ.get("JUDGEBENCH_DEBUG") == "1" else min(level or 20, logging.INFO)
    )
    try:
        yield
    finally:
        log.setLevel(level)
        log.removeHandler(handler)
        handler.close()


def recorded(
    act: Callable[[], tuple[int, Any]], folder: Path | None, told: dict[str, Any]
) -> tuple[int, Any]:
    """Call, with the job's log and status file around it: what is raised is in the log first."""
    if folder is not None:
        write_status(folder, told, None)
    try:
        with logging_to(folder):
            try:
                status, result = act()
            except BaseException as error:
                level = logging.WARNING if _stopped(error) else logging.ERROR
                log.log(level, "%s", first_line(error), exc_info=True, extra={"quiet": True})
                raise
        if folder is not None:
            write_status(folder, told, status)
    except BaseException as error:  # also one that comes while another is being logged: a second Ctrl-C
        if folder is not None:
            write_status(folder, told, INTERRUPTED if _stopped(error) else ERROR, first_line(error))
        raise
    return status, result


def _stopped(error: BaseException) -> bool:
    return isinstance(error, (KeyboardInterrupt, Interrupted))


def first_line(error: BaseException) -> str:
    """An error in a line: its kind only where it is no error meant for people."""
    text = next(iter(str(error).strip().splitlines()), "")
    if isinstance(error, KeyboardInterrupt):
        return text or "interrupted"
    if not isinstance(error, JudgebenchError):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return scrub_text(text)
