"""From a verb and its overrides to jobs: compose, instantiate, folder, call.

A verb is a root config whose `_target_` names a class. Its instance is called with a `Job` and returns
the exit status; an attribute `result` of it is handed on to Python. A verb whose config has `output_dir`
gets a folder, by default a new one in runs/. Sweeps are in `sweep`, what Hydra is asked in `compose`,
its complaints in `hydra_errors`: only these know Hydra.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra._internal.callbacks import Callbacks
from hydra._internal.hydra import Hydra
from hydra.core.utils import run_job
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig

from judgebench import folder as folders
from judgebench import overrides as grammar
from judgebench.compose import build, compose, output_dir, output_mode, params, reraise, session, task_words
from judgebench.folder import Invocation, Job
from judgebench.sweep import sweep

log = logging.getLogger("judgebench")

_FEW = 5  # values of a sweep that a message shows


def invoke(
    verb: str,
    words: Sequence[str] = (),
    *,
    multirun: bool = False,
    fail_fast: bool = False,
    conf: Path,
    config_dir: Path | None = None,
    positionals: str | None = None,
) -> Invocation:
    """Call a verb, as one job or as a sweep. Raises `JudgebenchError` for what a person can mend."""
    ready = grammar.prepare(words, multirun=multirun, positionals=positionals)
    with session(conf, config_dir) as hydra:
        cfg = compose(hydra, verb, ready, RunMode.MULTIRUN if multirun else RunMode.RUN)
        if multirun or cfg.hydra.mode == RunMode.MULTIRUN:
            return sweep(hydra, cfg, verb, words, fail_fast)
        if swept := params(cfg):
            told = "; ".join(f"{key}={_some(value)}" for key, value in swept.items())
            log.warning(
                "The configuration defines a sweep (%s), and this is one job. Add -m to run it.", told
            )
        return _single(hydra, cfg, verb)


def show(
    verb: str,
    words: Sequence[str],
    *,
    conf: Path,
    config_dir: Path | None = None,
    positionals: str | None = None,
    cfg: str = "job",
    info: str | None = None,
    package: str | None = None,
    resolve: bool = False,
) -> None:
    """Hydra's own ways of looking, to stdout: the composed `cfg` (job, hydra, all), or `info`."""
    ready = grammar.prepare(words, positionals=positionals)
    with session(conf, config_dir) as hydra:
        ready = task_words(
            compose(hydra, verb, ready, RunMode.RUN).hydra
        )  # errors in them are explained here
        if info is not None:
            hydra.show_info(info, config_name=verb, overrides=ready)
            return
        try:
            hydra.show_cfg(verb, ready, cfg, package, resolve)
        except Exception as error:
            reraise(error, hydra, verb, ready)


def complete(words: Sequence[str], *, verb: str | None, conf: Path) -> None:
    """Shell completion by Hydra (`install=bash`, `query=bash` …): prints a script or candidates."""
    with session(conf, None) as hydra:
        hydra.shell_completion(config_name=verb, overrides=list(words))


def _single(hydra: Hydra, cfg: DictConfig, verb: str) -> Invocation:
    made: list[Path] = []
    caught: list[Exception] = []
    words = task_words(cfg.hydra)

    def task(task_cfg: DictConfig) -> tuple[int, Any]:
        try:
            # The folder comes last: a typo leaves none behind.
            verb_object, config = build(task_cfg, verb)
            folder = _folder(task_cfg, verb)
            made.extend([folder] if folder else [])
            job = Job(verb, folder, None, tuple(map(grammar.scrub_word, words)), config)
            told = {"verb": verb, "overrides": job.overrides}
            return folders.recorded(lambda: job.call(verb_object), folder, told)
        except Exception as error:
            caught.append(error)
            return folders.ERROR, None

    callbacks = Callbacks(cfg)
    callbacks.on_run_start(config=cfg, config_name=verb)
    context = HydraContext(config_loader=hydra.config_loader, callbacks=callbacks)
    done = run_job(task, cfg, "hydra.run.dir", None, context, configure_logging=False)
    callbacks.on_run_end(config=cfg, config_name=verb, job_return=done)
    if caught:
        reraise(caught[0], hydra, verb, words, made[0] if made else None)
    status, result = done.return_value
    return Invocation(status, made[0] if made else None, result)


def _some(value: str) -> str:
    """The first few values of a sweep, and how many there are."""
    values = grammar.split(value)
    more = f", … ({len(values)} values)" if len(values) > _FEW else ""
    return ",".join(values[:_FEW]) + more


def _folder(cfg: DictConfig, verb: str) -> Path | None:
    given, mode = output_dir(cfg), output_mode(cfg, verb)
    if mode == "never" or (mode == "asked" and given is None):
        return None
    return folders.fresh(folders.RUNS) if given is None else folders.claim(given)
