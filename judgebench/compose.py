"""Composing a verb's configuration with Hydra, and building the object that it names.

Hydra's classes are used below `hydra.main`, which can neither return a value nor raise. Hydra's global
state is left as it was: a notebook may have a session of its own. Not known here: folders, jobs.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from hydra import version
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import ConfigCompositionException
from hydra.types import RunMode
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, OmegaConf, open_dict

from judgebench import kinds
from judgebench import overrides as grammar
from judgebench.errors import ConfigError
from judgebench.hydra_errors import explain

# Ours instead of Hydra's: no .hydra folder, no logging of its own, no change of the working directory.
SETTINGS = {
    "hydra.job.name": "judgebench",
    "hydra.job.chdir": "false",
    "hydra.output_subdir": "null",
    "hydra.run.dir": ".",
    "hydra.sweep.subdir": "${hydra.job.num}",
    "hydra/job_logging": "none",
    "hydra/hydra_logging": "none",
}
# Verbs that take `output_dir` and yet make no folder (a run's command line can be planned as it is).
_READ_ONLY = {"plan": "never", "rank": "asked"}


@contextmanager
def session(conf: Path, config_dir: Path | None) -> Iterator[Hydra]:
    """A Hydra of our own; the caller's (a notebook's) global one, and its logging, come back afterwards."""
    search = create_config_search_path(str(conf))
    if config_dir is not None:
        if not config_dir.is_dir():
            raise ConfigError(f"--config-dir {config_dir} is no folder.")
        anchor = SearchPathQuery(provider="schema")
        search.prepend(provider="command-line", path=f"file://{config_dir.resolve()}", anchor=anchor)
    base = version.VersionBase.instance()
    kept = GlobalHydra.instance().hydra, HydraConfig.instance().cfg, base.version_base
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    GlobalHydra.instance().clear()
    try:
        version.setbase("1.3")
        yield Hydra.create_main_hydra2("judgebench", search)
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        GlobalHydra.instance().hydra, HydraConfig.instance().cfg, base.version_base = kept


def compose(hydra: Hydra, verb: str, ready: list[str], mode: RunMode) -> DictConfig:
    """The root config, composed. `judges.NAME=X` also replaces a judge that a conf mounts already."""
    ours = [
        f"{key}={value}" for key, value in SETTINGS.items() if not any(w.startswith(key + "=") for w in ready)
    ]
    for word in ready:
        if word.lstrip("+").startswith(("hydra.run.dir=", "hydra.sweep.dir=", "hydra.sweep.subdir=")):
            raise ConfigError(
                f"{word}: folders are set with output_dir=DIR (jobs of a sweep: DIR/0, DIR/1 …)."
            )
    words = list(ready)
    while True:
        try:
            cfg = hydra.compose_config(
                config_name=verb, overrides=[*ours, *words], run_mode=mode, with_log_configuration=False
            )
            break
        except ConfigCompositionException as error:
            twice = next((w for w in words if w.startswith("+model@judges.") and _is_twice(w, error)), None)
            if twice is not None:
                words[words.index(twice)] = twice[1:]
            elif mode is RunMode.RUN and _is_sweep(error) and hydra.get_mode(verb, words) is RunMode.MULTIRUN:
                mode = RunMode.MULTIRUN
            else:
                reraise(error, hydra, verb, words)
        except Exception as error:
            reraise(error, hydra, verb, words)
    if mode is RunMode.RUN:
        _check_roles(cfg, verb)
    return cfg


def reraise(
    error: BaseException, hydra: Hydra, verb: str, words: Sequence[str], folder: Path | None = None
) -> NoReturn:
    """Raise the same trouble as an error meant for people, where we know how to put it.

    `folder` is remembered on it for whoever prints it: the log is there.
    """

    def settings() -> Any:
        groups = [word for word in words if "@" in word.partition("=")[0] or word.startswith("experiment=")]
        for some in (groups, []):
            try:
                cfg = hydra.compose_config(verb, some, RunMode.MULTIRUN, with_log_configuration=False)
            except Exception:  # what is wrong with these words is what is being explained
                continue
            with open_dict(cfg):
                del cfg["hydra"]
            return OmegaConf.to_container(cfg)
        return {}

    known = explain(error, verb=verb, words=words, settings=settings)
    if folder is not None:
        (known or error).folder = folder  # type: ignore[attr-defined]
    if known is None or known is error:
        raise error
    raise known from error


def _is_twice(word: str, error: Exception) -> bool:
    key = word[1:].partition("=")[0]
    return any(
        text in str(error) for text in (f"{key} appears more than once", f"Multiple values for {key}.")
    )


def _is_sweep(error: Exception) -> bool:
    return str(error).startswith(("Ambiguous value for argument", "Sweep parameters"))


def task_words(hydra_cfg: Any) -> list[str]:
    """The overrides of a job, as text: iterating over the node would resolve the `${…}` in them."""
    words = OmegaConf.to_container(hydra_cfg.overrides.task, resolve=False)
    assert isinstance(words, list)
    return [str(word) for word in words]


def _check_roles(cfg: DictConfig, verb: str) -> None:
    """A role that is plain text was set past its group: no model, no engine, and nothing would say so."""
    judges = cfg.get("judges")
    roles = {role: cfg.get(role) for role in grammar.ROLES}
    if OmegaConf.is_dict(judges):
        roles.update({f"judges.{name}": judges.get(name) for name in judges})
    for role, value in roles.items():
        if isinstance(value, str):
            raise ConfigError(
                f"{role} is the plain text {value!r}, not a model. On the command line: judgebench {verb} "
                f"{role}={value} (without + before it); in a conf file's defaults: "
                f"'- override /model@{role}: {value}'."
            )


def output_mode(cfg: DictConfig, verb: str) -> str:
    """When a verb has a folder: always, asked (only with `output_dir`), never."""
    return _READ_ONLY.get(verb, "always" if "output_dir" in cfg else "never")


def output_dir(cfg: DictConfig) -> Path | None:
    """The folder that was asked for."""
    given = cfg.get("output_dir")
    if given is None:
        return None
    if not str(given).strip():
        raise ConfigError(
            "output_dir is empty (an unset variable?). Give a folder: output_dir=DIR, or leave it out."
        )
    return Path(str(given)).expanduser()


def build(cfg: DictConfig, verb: str) -> tuple[Any, dict[str, Any]]:
    """The verb's object, and its settings resolved and scrubbed."""
    _check_roles(cfg, verb)
    config = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    assert isinstance(config, dict)
    kinds.check(config, get_object)
    return instantiate(_literal(_literal(config)), _convert_="all"), grammar.scrub(config)


def _literal(value: Any) -> Any:
    r"""Settings in which each `${` is escaped once. `instantiate` resolves twice (measured): without this,
    a text that holds `${x}` after its own resolution would be looked up as a setting after all.
    """
    if isinstance(value, dict):
        return {key: _literal(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_literal(item) for item in value]
    return (
        re.sub(r"(\\*)\$\{", lambda found: found[1] * 2 + r"\${", value) if isinstance(value, str) else value
    )


def params(cfg: DictConfig) -> dict[str, str]:
    """The sweep that a configuration itself defines (`hydra.sweeper.params`)."""
    found = cfg.hydra.sweeper.get("params")
    container = OmegaConf.to_container(found, resolve=True) if found else {}
    assert isinstance(container, dict)
    return {str(key): str(value) for key, value in container.items()}
