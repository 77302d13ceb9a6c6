"""A sweep (-m): Hydra's sweeper makes the jobs and its launcher runs them; what becomes of them is ours.

Hydra shows the traceback of one failed job, at the end, and skips its end-of-sweep hook. Here each job
ends with a status file and its traceback in its own log, in whichever process it ran; the others go on;
then what there is is combined.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import shutil
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra._internal.callbacks import Callbacks
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.hydra import Hydra
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from judgebench import folder as folders
from judgebench import overrides as grammar
from judgebench.compose import build, output_dir, output_mode, params, reraise, task_words
from judgebench.errors import ConfigError, Interrupted
from judgebench.folder import ERROR, INTERRUPTED, Invocation, Job, Outcome
from judgebench.hydra_errors import explain

log = logging.getLogger("judgebench")


class _Stop(BaseException):
    """Ends a sweep early: Hydra's launchers catch every `Exception` and go on."""


@dataclass(frozen=True)
class _Sweep:
    """What a job needs to know of its sweep; plain values, since launchers pickle it."""

    verb: str
    out: str
    key: str  # in each job's status file: which jobs are of this sweep, and which an earlier one left
    writes: bool
    fail_fast: bool


def sweep(hydra: Hydra, cfg: DictConfig, verb: str, typed: Sequence[str], fail_fast: bool) -> Invocation:
    """Run a verb once for each combination. Failed jobs do not raise: they are in the `Invocation`."""
    for word in task_words(cfg.hydra):  # a swept value is null in the sweep's own configuration
        if (
            grammar.parse(word).key == "output_dir"
            and OverridesParser.create().parse_override(word).is_sweep_override()
        ):
            raise ConfigError(
                f"{word} cannot be swept: the jobs of a sweep go to DIR/0, DIR/1 … of output_dir=DIR."
            )
    given, mode = output_dir(cfg), output_mode(cfg, verb)
    key = uuid.uuid4().hex
    if mode == "never" or (mode == "asked" and given is None):
        with tempfile.TemporaryDirectory(
            prefix="judgebench-"
        ) as away:  # Hydra's sweeper and the statuses need one
            return _run(hydra, cfg, _Sweep(verb, away, key, False, fail_fast), typed)
    if given is None:
        out, ours = folders.fresh(folders.RUNS), True
    else:
        ours = not given.exists()
        out = folders.claim(given, sweep=True)
        folders.check_sweep(out)
    marked = (out / folders.SWEEP_MARK).exists()
    if not marked:
        folders.write_json(out / folders.SWEEP_MARK, {"verb": verb, "sweep": key, "status": None, "jobs": []})
    try:
        return _run(hydra, cfg, _Sweep(verb, str(out.absolute()), key, True, fail_fast), typed)
    except BaseException:  # no job started: leave things as they were
        if ours:
            shutil.rmtree(out)
        elif not marked:
            (out / folders.SWEEP_MARK).unlink(missing_ok=True)
        raise
    finally:
        (out / "multirun.yaml").unlink(missing_ok=True)  # Hydra's; sweep.json says it, without secrets


def _run(hydra: Hydra, cfg: DictConfig, sweep: _Sweep, typed: Sequence[str]) -> Invocation:
    failure: BaseException | None = None
    try:
        _launch(hydra, cfg, sweep)
    except (Exception, KeyboardInterrupt, _Stop) as error:
        failure = error
    jobs = folders.outcomes(Path(sweep.out), sweep.key)
    if failure is not None and not jobs:
        reraise(failure, hydra, sweep.verb, task_words(cfg.hydra))
    return _finish(cfg, sweep, typed, jobs, failure)


class _Once(ConfigLoaderImpl):
    """Composes each job once: Hydra's sweeper composes all of them to check them, its launcher again.

    A composition takes 0.15 s, a third of a job whose every answer is stored.
    """

    KEPT = 500  # configurations; a larger sweep composes the rest twice

    def __init__(self, search_path: ConfigSearchPath) -> None:
        super().__init__(search_path)
        self._checked: dict[tuple[str, ...], DictConfig] = {}

    def load_sweep_config(self, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
        """The configuration of one job."""
        words = tuple(sweep_overrides)
        if words in self._checked:
            return self._checked.pop(words)
        config = super().load_sweep_config(master_config, sweep_overrides)
        if len(self._checked) < self.KEPT:
            self._checked[words] = config
        return config


def _launch(hydra: Hydra, cfg: DictConfig, sweep: _Sweep) -> None:
    """`Hydra.multirun`, with our folder, and the sugar of the command line in `hydra.sweeper.params` too."""
    with open_dict(cfg.hydra):
        cfg.hydra.mode = RunMode.MULTIRUN
        cfg.hydra.sweep.dir = sweep.out
        cfg.hydra.overrides.hydra.append(f"hydra.sweep.dir={grammar.quote(sweep.out)}")
        if swept := params(cfg):
            words = grammar.prepare([f"{key}={value}" for key, value in swept.items()], multirun=True)
            cfg.hydra.sweeper.params = dict(word.split("=", 1) for word in words)
    callbacks = Callbacks(cfg)
    callbacks.on_multirun_start(config=cfg, config_name=sweep.verb)
    loader = hydra.config_loader
    if str(cfg.hydra.launcher.get("_target_", "")).endswith(".BasicLauncher"):  # all in this process
        loader = _Once(loader.get_search_path())
    sweeper = Plugins.instance().instantiate_sweeper(
        config=cfg,
        hydra_context=HydraContext(config_loader=loader, callbacks=callbacks),
        task_function=functools.partial(_job, sweep=sweep),
    )
    sweeper.sweep(arguments=task_words(cfg.hydra))
    callbacks.on_multirun_end(config=cfg, config_name=sweep.verb)


def _job(cfg: DictConfig, sweep: _Sweep) -> int:
    """One job of a sweep, perhaps in a process of its own: whatever happens ends up in its folder."""
    words = tuple(map(grammar.scrub_word, task_words(HydraConfig.get())))
    number = int(HydraConfig.get().job.num)
    home = folders.clear_job(Path(sweep.out) / str(number))
    visible = _short(home) if sweep.writes else None

    def act() -> tuple[int, Any]:
        try:
            verb_object, config = build(cfg, sweep.verb)
            return Job(sweep.verb, visible, number, words, config).call(verb_object)
        except Exception as error:
            known = explain(error, verb=sweep.verb, words=words, settings=lambda: OmegaConf.to_container(cfg))
            if known is None or known is error:
                raise
            raise known from error

    told = {"verb": sweep.verb, "number": number, "overrides": words, "sweep": sweep.key}
    try:
        status, _ = folders.recorded(act, home, told)
    except (KeyboardInterrupt, Interrupted):
        status = INTERRUPTED
    except Exception as error:
        status = ERROR
        log.error("job %d failed: %s", number, folders.first_line(error))
    if status == INTERRUPTED or (sweep.fail_fast and status == ERROR):
        raise _Stop
    return status


def _finish(
    cfg: DictConfig, sweep: _Sweep, typed: Sequence[str], jobs: list[Outcome], failure: BaseException | None
) -> Invocation:
    out = Path(sweep.out)
    statuses = [ERROR if job.status is None else job.status for job in jobs]
    notes = [_note(job, sweep) for job in jobs if job.status in (ERROR, INTERRUPTED)]
    if isinstance(failure, KeyboardInterrupt):
        statuses.append(INTERRUPTED)
    elif isinstance(failure, Exception):
        statuses.append(ERROR)
        notes.append(f"The sweep itself stopped: {folders.first_line(failure)}")
    if sweep.writes:
        folders.clear_stale(out, sweep.key)
        try:
            _combine(cfg, _short(out))
        except Exception as error:
            statuses.append(ERROR)
            notes.append(f"The jobs are there, but could not be combined: {folders.first_line(error)}")
            log.error("%s could not be combined", _short(out), exc_info=True)
    status = folders.worst(statuses)
    if sweep.writes:
        told = {"verb": sweep.verb, "overrides": list(map(grammar.scrub_word, typed)), "sweep": sweep.key}
        folders.write_json(
            out / folders.SWEEP_MARK, {**told, "status": status, "jobs": [vars(job) for job in jobs]}
        )
    if notes:
        ended = sum(job.status not in (ERROR, INTERRUPTED) for job in jobs)
        early = (
            " The sweep ended early: jobs that had not started yet are missing."
            if isinstance(failure, BaseException)
            else ""
        )
        notes.insert(0, f"{ended} of {len(jobs)} started jobs ended without an error.{early}")
    return Invocation(status, _short(out) if sweep.writes else None, tuple(jobs), tuple(notes))


def _note(job: Outcome, sweep: _Sweep) -> str:
    what = "was interrupted" if job.status == INTERRUPTED else "failed"
    where = f" ({_short(Path(sweep.out)) / str(job.number) / folders.LOG})" if sweep.writes else ""
    return f"Job {job.number} {what}: {' '.join(map(grammar.shown, job.overrides))}: {job.error}{where}"


def _combine(cfg: DictConfig, out: Path) -> None:
    """`combine_sweep(out)` of the verb's own module, or of `judgebench.combine`."""
    for name in (str(cfg["_target_"]).rpartition(".")[0], "judgebench.combine"):
        if combine := getattr(importlib.import_module(name), "combine_sweep", None):
            combine(out)
            return


def _short(path: Path) -> Path:
    """Relative to where the user is, if it is below."""
    here = Path.cwd()
    return Path(os.path.relpath(path, here)) if path.is_relative_to(here) else path
