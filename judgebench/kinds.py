"""Whether settings are of the kind that their class declares, told by name before anything is built.

A conf's `_target_` names a class or a function, and its annotations say what each setting takes. So every
class that a conf can name is covered by writing it down as usual; none needs checks of kinds of its own.
This file does not import Hydra and does not know which classes there are.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from judgebench.errors import ConfigError, choices

Resolve = Callable[[str], Any]
"""From the dotted name in `_target_` to what it names."""

_SHOWN = 60  # characters of a value in a message
_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    type(None): "null",
}


def check(settings: Any, resolve: Resolve, path: str = "") -> None:
    """Walk settings; `ConfigError` names the first that is not of its declared kind.

    Args:
        settings: plain values, lists and dicts, resolved.
        resolve: finds a target; one that cannot be found is left to whoever builds it.
        path: where these settings stand, for messages.
    """
    if isinstance(settings, list):
        for number, item in enumerate(settings):
            check(item, resolve, f"{path}.{number}")
    if not isinstance(settings, dict):
        return
    declared = _declared(settings["_target_"], resolve) if "_target_" in settings else {}
    for name, value in settings.items():
        here = f"{path}.{name}" if path else str(name)
        if name in declared:
            _check(value, declared[name], here)
        check(value, resolve, here)


def _declared(target: Any, resolve: Resolve) -> dict[str, Any]:
    try:
        found = resolve(str(target))
        bare = not isinstance(found, type) or is_dataclass(found)
        return get_type_hints(found if bare else found.__init__)
    except Exception:  # a target that cannot be had, or annotations for a type checker alone
        return {}


def _check(value: Any, kind: Any, path: str) -> None:
    """Raise unless a value is of a kind, naming the innermost setting that is not."""
    kinds = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    fitting = [one for one in kinds if _has_shape(value, one)]
    if not fitting:
        raise ConfigError(_refusal(value, kinds, path))
    if len(fitting) == 1:
        inner = get_args(fitting[0])
        if is_typeddict(fitting[0]) and isinstance(value, dict):
            _check_keys(value, get_type_hints(fitting[0]), path)
        if isinstance(value, list) and inner:
            for number, item in enumerate(value):
                _check(item, inner[0], f"{path}.{number}")
        elif isinstance(value, dict) and "_target_" not in value and len(inner) == 2:
            for name, item in value.items():
                _check(item, inner[1], f"{path}.{name}")


def _check_keys(value: dict[Any, Any], declared: dict[str, Any], path: str) -> None:
    """A plain mapping whose keys are declared: each is known, and its value of its kind."""
    for name, item in value.items():
        if name not in declared:
            raise ConfigError(f"{path}.{name}: {choices(name, declared)}")
        _check(item, declared[name], f"{path}.{name}")


def _has_shape(value: Any, kind: Any) -> bool:
    origin = get_origin(kind) or kind
    if origin is Literal:
        return value in get_args(kind)
    if origin is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if origin is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if origin in _WORDS:
        return isinstance(value, origin)
    if origin in (Mapping, dict) or is_typeddict(origin):
        return isinstance(value, dict)
    if origin in (Sequence, list, tuple):
        return isinstance(value, list)
    if _is_made(origin):
        return isinstance(value, dict)
    return True


def _is_made(kind: Any) -> bool:
    """A class that only a conf of its own can make an object of."""
    return isinstance(kind, type) and kind.__module__.partition(".")[0] not in sys.stdlib_module_names


def _is_word(value: Any) -> bool:
    return value is None or isinstance(value, bool)


def _refusal(value: Any, kinds: Sequence[Any], path: str) -> str:
    told = {None: "null", True: "true", False: "false"}[value] if _is_word(value) else repr(value)
    told = told if len(told) <= _SHOWN else f"{told[:_SHOWN]}…"
    literals = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
    if literals and isinstance(value, str):
        return f"{path}: {choices(value, map(str, literals))}"
    if value is False and "off" in literals:
        key = path.rpartition(".")[2]
        return f"{path}=false: a bare off is false to YAML, so write it in quotes ({key}: 'off')."
    words = [_word(kind) for kind in kinds]
    wanted = " or ".join(dict.fromkeys(words))
    quoted = ""
    if str in kinds and isinstance(value, (int, float)):
        quoted = f" If it is a text, quote it: \"{path}='{str(value).lower()}'\"."
    return f"{path}={told}: {wanted} is expected.{quoted}"


def _word(kind: Any) -> str:
    origin = get_origin(kind) or kind
    if origin in _WORDS:
        return _WORDS[origin]
    if origin is Literal:
        return " or ".join(map(str, get_args(kind)))
    if origin in (Mapping, dict) or is_typeddict(origin):
        return "a mapping {NAME: VALUE}"
    if origin in (Sequence, list, tuple):
        return "a list [A, B]"
    return f"a conf of its own (a mapping whose _target_ makes one of the kind {origin.__name__})"
