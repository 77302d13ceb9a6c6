"""What Hydra and OmegaConf complain about, in one paragraph: the value, the near choices, the way out.

`explain` turns an exception into a `JudgebenchError`, or returns None for one that nobody foresaw (a
bug: it keeps its traceback). Texts are matched loosely: where a wording is unknown, its own words are
kept.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from hydra.errors import (
    HydraException,
    InstantiationException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf.errors import (
    GrammarParseError,
    InterpolationKeyError,
    MissingMandatoryValue,
    OmegaConfBaseException,
    UnsupportedInterpolationType,
)
from yaml import YAMLError  # type: ignore[import-untyped]

from judgebench.errors import ConfigError, JudgebenchError, choices
from judgebench.overrides import parse, quote, shell, shown

Settings = Callable[[], Any]


def explain(
    error: BaseException, *, verb: str, words: Sequence[str], settings: Settings = dict
) -> JudgebenchError | None:
    """A message for people, or None. `settings` composes the verb's known settings, for close choices."""
    if isinstance(error, JudgebenchError):
        return error
    if isinstance(error, InstantiationException):
        return _instantiation(error)
    cause = error.__cause__
    if isinstance(error, OverrideParseException):
        text = _parse(error, verb)
    elif isinstance(error, MissingConfigException):
        text = _choice(error, verb, words)
    elif isinstance(error, OmegaConfBaseException):
        text = _omegaconf(error)
    elif isinstance(error, YAMLError):
        text = f"A conf file is not valid YAML: {_paragraph(str(error))}"
    elif isinstance(error, HydraException):
        text = _composition(error, cause, verb, words, settings)
    elif isinstance(error, ValueError) and _from_hydra(error):
        text = _no_choice(error, verb, words, settings)
    else:
        return None
    return ConfigError(text)


def _from_hydra(error: BaseException) -> bool:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = trace.tb_frame.f_globals.get("__name__", "") if trace is not None else ""
    return module.startswith(("hydra.", "omegaconf."))


def _parse(error: OverrideParseException, verb: str) -> str:
    prefix, key, value = parse(error.override)
    if not value:
        return f"{error.override!r} is no override: write KEY=VALUE (judgebench {verb} --help lists them)."
    quoted = shell(f"{prefix}{key}={quote(value)}")
    return (
        f"{error.override!r} cannot be read: its value holds characters that have a meaning for Hydra "
        f"(such as = , ( ) [ ] {{ }} # or a quote without its partner). As text, quote it: {quoted}."
    )


def _choice(error: MissingConfigException, verb: str, words: Sequence[str]) -> str:
    group, _, name = (error.missing_cfg_file or "").rpartition("/")
    if not group:
        return _paragraph(str(error))
    typed = next((shown(word) for word in words if name in re.split("[=,'\"]", word)[1:]), None)
    where = f"{typed}: " if typed else ""
    known = list(error.options or ())
    if not known:
        return f"{where}there is no conf group {group!r}. `judgebench {verb} --help` lists the groups."
    extra = (
        ""
        if typed
        else f" It is asked for in a conf file: {_paragraph(str(error)).split(' Available', 1)[0]}."
    )
    return (
        f"{where}{choices(name, known)}{extra} `judgebench {verb} --help` describes them; a conf of your own "
        f"is a file DIR/{group}/{name}.yaml, found with --config-dir DIR."
    )


def _no_choice(error: ValueError, verb: str, words: Sequence[str], settings: Settings) -> str:
    """A number or a mapping where a group wants the name of a conf."""
    known = settings()
    odd = [word for word in words if re.search(r"^\w+=(?:[\d.{]|true|false)", word)]
    mounted = [word for word in odd if isinstance(known.get(parse(word).key), Mapping)]
    unset = [word for word in odd if known.get(parse(word).key, ...) is None]  # a group, perhaps: engine
    if not str(error).startswith("Config group override must be") or not (mounted or unset):
        return _paragraph(str(error))
    typed = " or ".join(mounted or unset)
    return f"{typed}: a choice of this group is expected. `judgebench {verb} --help` lists them."


def _omegaconf(error: OmegaConfBaseException) -> str:
    key = str(error.full_key or error.key or "")
    where = f"{key}: " if key else ""
    first = str(error.msg or error).strip().splitlines()[0]
    if isinstance(error, MissingMandatoryValue):
        name = key or first.rpartition(": ")[2]
        return f"{name} has no value. Give one: {name}=…"
    env = re.search(r"Environment variable '(\w+)' not found", first)
    if env:
        return f"{where}the environment variable {env[1]} is not set. Set it, or give {key or 'KEY'}=VALUE."
    if (
        isinstance(error, (InterpolationKeyError, UnsupportedInterpolationType, GrammarParseError))
        or "${" in first
    ):
        missing = re.search(r"Interpolation key '([^']*)' not found", first)
        what = f"there is no setting {missing[1]!r} to fill in" if missing else first.rstrip(".")
        shape = f"${{{missing[1]}}}" if missing else "${…}"
        return (
            f"{where}{what}. If {shape} is meant as text, put a backslash before it: \\{shape}. Texts that "
            "are read from a file of their own need no escape."
        )
    return f"{where}{first}"


def _composition(
    error: HydraException, cause: BaseException | None, verb: str, words: Sequence[str], settings: Settings
) -> str:
    text = str(error).strip()
    if found := re.match(r"Could not override '([^']+)'", text):
        return _unknown(found[1], verb, words, settings)
    if found := re.match(
        r"(?:Ambiguous value for argument|Sweep parameters) '(.*?)'(?:\n| requires|$)", text, re.S
    ):
        prefix, key, value = parse(found[1])
        typed = shown(found[1])
        listed = "" if "@" in key else f", a list: {shell(f'{prefix}{key}=[{value}]')}"
        return (
            f"{typed} holds several values. To run one job for each, add -m{listed}"
            f"{'' if '@' in key else ', one text: ' + shell(f'{prefix}{key}={quote(value or str())}')}."
        )
    if found := re.match(r"Could not append to config. An item is already at '([^']+)'", text):
        return f"{found[1]} is set already. To change it, leave out the +: {found[1]}=…"
    if found := re.search(r"config group '([^']+)' does not\s+exist", text):
        known = sorted(_tops(settings()))
        return (
            f"{found[1]!r} is no conf group: {choices(found[1], known)} `judgebench {verb} --help` has them."
        )
    if found := re.match(r"(?:In '[^']+': )?You must specify '([^']+)'", text):
        options = re.split(r"Available options:\s*", text)[-1].split()
        return f"{found[1]} has no default: choose one with {found[1]}=CHOICE. Choices: {', '.join(options)}."
    if found := re.match(r"Error merging override (.*)", text, re.S):
        reason = f": {_omegaconf(cause)}" if isinstance(cause, OmegaConfBaseException) else "."
        return f"{shown(found[1])} does not fit{reason}"
    if found := re.match(r"Could not delete (?:from config\. )?'([^']+)'", text):
        return f"~{found[1]}: there is no {found[1]!r} to remove."
    if text in ("", "None") and isinstance(cause, OmegaConfBaseException):
        return _omegaconf(cause)
    if isinstance(cause, YAMLError):
        return f"A conf file is not valid YAML: {_paragraph(str(cause))}"
    if isinstance(cause, JudgebenchError):
        return str(cause)
    return _paragraph(text)


def _unknown(key: str, verb: str, words: Sequence[str], settings: Settings) -> str:
    """An override of a setting that does not exist: a slip of the pen, or one that the conf does not list."""
    path = key.removeprefix("model@")
    typed = next((w for w in words if parse(w).key == key), f"{path}=…")
    if key.startswith("model@"):
        return f"{shown(typed)}: judgebench {verb} has no {path!r}. `judgebench {verb} --help` lists all."
    node, parts = settings(), path.split(".")
    for depth, part in enumerate(parts):
        if isinstance(node, Mapping) and part in node:
            node = node[part]
            continue
        parent = ".".join(parts[:depth])
        if not isinstance(node, Mapping):
            return f"{typed}: {parent} is {node!r} and holds no {part!r}. Set {parent} first."
        known = [str(name) for name in node if not str(name).startswith("_")]
        if depth == 0:
            known += ["where"] if part.startswith("wh") else []
        near = get_close_matches(part, known, n=1)
        deeper = [] if near else [p for p in _paths(settings()) if p.rpartition(".")[2] == parts[-1]]
        hint = f" Did you mean {' or '.join(deeper[:3])}?" if deeper else ""
        add = f" To add a setting that the conf does not list: +{typed}." if depth and not near else ""
        tail = f" `judgebench {verb} --help` lists the settings."
        return f"{typed}: {f'in {parent}, ' if parent else ''}{choices(part, known)}{hint}{add or tail}"
    return f"{typed} cannot be set."


def _tops(node: Any) -> list[str]:
    return [str(key) for key in node if not str(key).startswith("_")] if isinstance(node, Mapping) else []


def _paths(node: Any, prefix: str = "") -> Iterator[str]:
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield f"{prefix}{key}"
            yield from _paths(value, f"{prefix}{key}.")


def _instantiation(error: InstantiationException) -> JudgebenchError | None:
    cause, text = error.__cause__, str(error)
    found = re.search(r"full_key: (\S+)", text)
    key = found[1] if found else ""
    where = f"{key}: " if key else ""
    target = re.search(r"target '([^']+)'", text)
    name = target[1] if target else "its class"
    if isinstance(cause, JudgebenchError):
        if not key or str(cause).startswith(key):
            return cause
        told = type(cause)(f"{where}{cause}")
        return told
    if isinstance(cause, ImportError):
        lacks = f" (it lacks the package {cause.name!r})" if cause.name else ""
        return ConfigError(f"{where}{name} cannot be imported{lacks}: {_paragraph(str(cause))}")
    if isinstance(cause, OmegaConfBaseException):
        return ConfigError(_omegaconf(cause))
    if isinstance(cause, TypeError):
        if found := re.search(r"unexpected keyword argument '([^']+)'", str(cause)):
            known = _parameters(name)
            tail = choices(found[1], known) if known else f"{found[1]!r} is not known to {name}."
            return ConfigError(f"{f'{key}.' if key else ''}{found[1]}: {tail}")
        if "missing" in str(cause) and (lacking := re.findall(r"'(\w+)'", str(cause))):
            gives = " ".join(f"{f'{key}.' if key else ''}{each}=…" for each in lacking)
            return ConfigError(f"{where}{' and '.join(lacking)} must be given: {gives}")
    if isinstance(cause, ValueError):
        return ConfigError(f"{where}{_paragraph(str(cause))}")
    if cause is None:
        return ConfigError(_paragraph(text))
    # Constructors read settings and nothing else, so whatever one stumbles over is a setting.
    return ConfigError(
        f"{where}{name} cannot be made of these settings ({type(cause).__name__}: {_paragraph(str(cause))}). "
        "Look for one that is not of the kind that its conf file shows."
    )


def _parameters(target: str) -> list[str]:
    """Names that a target's constructor takes; none where that cannot be told."""
    from hydra.utils import get_object

    try:
        signature = inspect.signature(get_object(target))
    except Exception:  # it is only for the hint
        return []
    return [name for name in signature.parameters if name not in ("self", "args", "kwargs")]


def _paragraph(text: str) -> str:
    return " ".join(text.split())
