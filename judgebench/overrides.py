"""The grammar of overrides: from what people type to what Hydra is given. Pure functions over text.

Hydra's own grammar is fine for numbers and choices and a trap for text: `1e3` becomes a float,
`org/name=v2` and a Chinese name are lexer errors, `a,b` is a sweep or an error, and `judge=x` on a
mounted group silently replaces the model by the text 'x'. So the words of the command line pass through
`prepare` first: roles become choices of a group, text stays text, positionals become lists, secrets are
refused. What is quoted already is left alone. This file does not import Hydra and does not know which
verbs or groups exist.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from judgebench.errors import ConfigError
from judgebench.request import names_secret

ROLES = ("candidate", "baseline", "judge")

# Settings whose value is text, whatever it looks like. Nearly every override that is misread is one of these.
_TEXT = re.compile(
    r"(?:.+\.)?(?:name|label|weights|revision|version|pin|tag|base_url|endpoint_id|api_key_env)"
    r"|output|output_dir|data_dir|store\.root|(?:benchmark|source)\.path|path|repo|run|benchmark\.(?:answers|labels|baseline)|(?:.+\.)?url|where\..+"
    r"|(?:.+\.)?(?:columns|orientations)\..+|source\.where\..+"
)
# Mappings with keys of the user's own, which Hydra takes only behind a +.
_OWN_KEYS = re.compile(r"where\..+|(?:.+\.)?(?:columns|orientations)\..+|source\.where\..+")
# Text that must be there: `null` typed for it is a name like any other. For the rest it means "not set".
_REQUIRED = re.compile(r"(?:.+\.)?name")
# Where a forgotten -m is likelier than a comma in the text, and a wrong guess is paid for (or deletes).
_NO_COMMA = re.compile(r"(?:.+\.)?name|where\..+")

_PLAIN = re.compile(r"(?:[A-Za-z_]|\.{0,2}/)[A-Za-z0-9_./:@%-]*")
_RESERVED = frozenset("null true false inf nan".split())
_QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)
_SWEEP_FUNCTION = re.compile(r"(?:choice|range|interval|glob|shuffle|sort|tag)\(.*\)", re.DOTALL)
_CHOICE = re.compile(r"[A-Za-z0-9_.+-]+(?:/[A-Za-z0-9_.+-]+)*")
_OPEN, _CLOSE = "([{", ")]}"

_SECRET_KEY = re.compile(
    r"(?:.*[._])?(?:api|access|auth|bearer|private|secret|session|hf)_?(?:key|token)s?"
    r"|(?:.*[._])?(?:secret|password|passwd|authorization|credentials|bearer|subscription_key)|(?:.*\.)?token"
    r"|.*\.(?:auth|headers(?:\..+)?)"
)
# Below these everything is sent; elsewhere a `key` is a column.
_SENT = re.compile(r"(?:^|\.)(?:sampling|(?:\w+_)?settings|body|extra_\w+)\.(.+)")
_TOKEN = re.compile(r"\s*(?:['\"]?([\w-]+)['\"]?\s*:\s*)?(?:([{\[])|([}\]])|([^,{}\[\]]+))")
# What a URL holds before its host, up to the last @ of it, and values in its query that are keys.
_IN_URL = re.compile(
    r"(?<=://)[^\s/]*@|(?<=://)\S*:\S*@(?=[^\s/@]+)"
    r"|(?<=[?&])(?:[\w-]*(?:key|token|secret|sig|signature|password|auth)[\w-]*)=[^&\s'\"]+",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(
    r"(?<![\w/.-])(?:sk-[\w-]{3,}|hf_[A-Za-z0-9]{20,}|gsk_\w{20,}|xai-\w{20,}|AIza[\w-]{30,}|gh[pousr]_\w{20,})"
)
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD", re.IGNORECASE)
_SHORTEST_SECRET = 6  # shorter values of such variables (`SOME_KEY=1`) are words that settings hold too
_NO_SECRET = ("/", "~", ".", "http://", "https://")  # `SSL_KEY_FILE=/etc/…` tells where one is
HIDDEN = "***"


class Override(NamedTuple):
    """`PREFIX KEY = VALUE`: prefix is one of '', '+', '++', '~'; value is None where there is no '='."""

    prefix: str
    key: str
    value: str | None

    def __str__(self) -> str:
        return self.prefix + self.key + ("" if self.value is None else f"={self.value}")


def parse(word: str) -> Override:
    """Split one word at its first '='.

    >>> parse("+judges.a=x=y")
    Override(prefix='+', key='judges.a', value='x=y')
    """
    key, equals, value = word.partition("=")
    prefix = key[: len(key) - len(key.lstrip("+~"))]
    return Override(prefix, key[len(prefix) :].strip(), value if equals else None)


def prepare(
    words: Sequence[str],
    *,
    multirun: bool = False,
    positionals: str | None = None,
    exists: Callable[[str], bool] = os.path.lexists,
) -> list[str]:
    """Words as typed to overrides as Hydra reads them, order kept.

    `positionals` is the key that words without '=' become a list of (`rank runs/a runs/b`); without it such
    words are refused. A word that names a file or folder is a positional even if it holds '='.
    """
    refuse_secrets(words)
    ready: list[str] = []
    paths: list[str] = []
    for word in words:
        parsed = parse(word)
        # A key has no spaces: what has some before its first '=' is text, as a query is.
        bare = not parsed.prefix and (parsed.value is None or bool(positionals and " " in parsed.key))
        if positionals and (bare or (not parsed.prefix and exists(word))):
            paths.append(word)
        elif bare:
            raise ConfigError(
                f"{word!r} is no override: write KEY=VALUE (or ~KEY to remove a default). "
                "judgebench VERB --help lists the settings."
            )
        else:
            ready.append(str(_rewrite(parsed, multirun, positionals)))
    if paths:
        ready.append(f"{positionals}=[{','.join(map(quote, paths))}]")
    return ready


def _rewrite(override: Override, multirun: bool, positionals: str | None) -> Override:
    prefix, key, value = override
    if value is None or prefix == "~" or key.startswith(("hydra.", "hydra/")):
        return override
    if key in ROLES and not prefix and not value.startswith(("{", "[")):
        return Override("", f"model@{key}", _choices(value))
    if re.fullmatch(r"judges\.[\w-]+", key) and prefix in ("", "+") and _is_choice(value):
        return Override("+", f"model@{key}", value)
    if positionals and key == positionals and not prefix and not value.startswith("["):
        return Override("", key, ",".join(f"[{_one(key, part)}]" for part in split(value, multirun)))
    if not _TEXT.fullmatch(key):
        return override
    if _OWN_KEYS.fullmatch(key) and not prefix:
        prefix = "+" if key.startswith("where.") else "++"
    return Override(prefix, key, _typed(key, value, multirun))


def _choices(value: str) -> str:
    """A choice or several; what cannot be a conf's name is quoted, so that the error lists the choices."""
    parts = split(value)
    return ",".join(
        part if _CHOICE.fullmatch(part) or not part else _one("name", part, True) for part in parts
    )


def _is_choice(value: str) -> bool:
    return value != "null" and all(_CHOICE.fullmatch(part) for part in split(value))


def _typed(key: str, value: str, multirun: bool) -> str:
    """A text setting, quoted where Hydra would read it as something else."""
    parts = split(value)
    if len(parts) == 1:
        return _one(key, value, multirun)
    if multirun:
        return ",".join(_one(key, part, True) for part in parts)
    if _NO_COMMA.fullmatch(key) or all(_QUOTED.fullmatch(part) for part in parts):
        lists = f"; for either of them: {key}=[{value}]" if key.startswith("where.") else ""
        raise ConfigError(
            f"{key}={value} holds a comma. To run one job for each part, add -m; if the comma is part of the "
            f"text, quote it: {shell(f'{key}={quote(value)}')}{lists}."
        )
    return quote(value)


def _one(key: str, value: str, multirun: bool = False) -> str:
    if not value or _QUOTED.fullmatch(value):
        return value
    if value == "null" and not _REQUIRED.fullmatch(key):
        return value
    if key.startswith("where.") and value.startswith("[") and value.endswith("]"):
        return f"[{','.join(_one(key, part) for part in split(value[1:-1]))}]"
    if multirun and _SWEEP_FUNCTION.fullmatch(value):
        return value
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" and value[0] not in value[1:-1]:
        return quote(value[1:-1])  # 'C:\tmp\': quoted for people, but Hydra takes \' for an escaped quote
    if _PLAIN.fullmatch(value) and value.lower() not in _RESERVED:
        return value
    return quote(value)


def split(value: str, sweep: bool = True) -> list[str]:
    """Split at the commas outside of quotes and brackets; a bracket without a partner is plain text.

    >>> split("a,b(c,d),'e,f'")
    ['a', 'b(c,d)', "'e,f'"]
    """
    if not sweep:
        return [value]
    parts: list[str] = []
    start = at = depth = 0
    while at < len(value):
        char = value[at]
        if char in "'\"" and not value[start:at].strip() and (match := _QUOTED.match(value, at)):
            at = match.end()
            continue
        if char in _OPEN and _partner(value, at):
            depth += 1
        elif char in _CLOSE and depth:
            depth -= 1
        elif char == "," and not depth:
            parts.append(value[start:at])
            start = at + 1
        at += 1
    parts.append(value[start:])
    return [part.strip() for part in parts] if len(parts) > 1 else [value]


def _partner(value: str, at: int) -> bool:
    depth = 0
    for char in value[at:]:
        depth += (char in _OPEN) - (char in _CLOSE)
        if not depth:
            return True
    return False


def quote(text: str) -> str:
    r"""Text quoted for Hydra: backslashes are doubled only before a quote and at the end (its rule, tested).

    >>> print(quote("C:\\tmp\\"), quote("it's"))
    'C:\tmp\\' 'it\'s'
    """
    doubled = re.sub(r"(\\+)(?='|\Z)", lambda match: match[1] * 2, text)
    return "'" + doubled.replace("'", "\\'") + "'"


def shell(word: str) -> str:
    """A word for a POSIX shell, in double quotes, which leave the single quotes inside readable."""
    return '"' + re.sub(r'([\\"$`])', r"\\\1", word) + '"'


def shown(word: str) -> str:
    """An override as people type it: the inverse of the role sugar."""
    return re.sub(r"^\+?model@(?=(?:candidate|baseline|judge|judges\.[\w-]+)=)", "", word)


def refuse_secrets(words: Iterable[str]) -> None:
    """Refuse a secret among the words, without repeating it."""
    held = secrets()
    for word in words:
        prefix, key, value = parse(word)
        text = key if value is None else value
        named = prefix != "~" and value is not None and any(_is_secret(*pair) for pair in _pairs(key, value))
        in_url = _IN_URL.search(text)
        if not named and not in_url and not _SECRET_VALUE.search(text) and not _holds(text, held):
            continue
        role = re.match(r"(?:candidate|baseline|judge|judges\.[\w-]+)(?=\.|$)", key)
        owner = role[0] if role else key.rpartition(".")[0]
        where = "One word" if value is None else scrub_text(key, held)
        raise ConfigError(
            f"{where}: a secret on the command line is refused, since it would stay in the shell's history "
            f"and in the list of processes. Put it into an environment variable and give that name: "
            f"{scrub_text(owner, held) or 'candidate'}.api_key_env=OPENAI_API_KEY."
        )


def _holds(text: str, held: frozenset[str]) -> bool:
    # A short value must be the whole text: `SOME_KEY=openai` must not refuse `openai/gpt-4.1`.
    return any(secret == text.strip("'\"") or (len(secret) >= 16 and secret in text) for secret in held)


def looks_secret(key: str) -> bool:
    """Whether a setting of this name is a secret (`api_key`, `hf_token`; not `max_tokens`, `api_key_env`)."""
    sent = _SENT.search(key)
    return bool(_SECRET_KEY.fullmatch(key.lower().replace("-", "_"))) or (
        sent is not None and any(map(names_secret, sent[1].split(".")))
    )


def _is_secret(key: str, value: Any) -> bool:
    """By its name; or an address that holds more than the address (which `Model` refuses)."""
    if value in (None, "", "null"):
        return False
    return looks_secret(key) or (
        key.rpartition(".")[2] == "base_url" and bool(re.search("[@?#]", str(value)))
    )


def _pairs(key: str, value: str) -> list[tuple[str, str]]:
    """An override, and what stands within it: `a.b={c: {d: 1}}` holds a.b.c and a.b.d as well."""
    found, path = [(key, value)], [key]
    for name, opens, closes, text in _TOKEN.findall(value) if value.startswith(("{", "[")) else ():
        here = f"{path[-1]}.{name}" if name else path[-1]
        if opens:
            path.append(here)
        elif closes and len(path) > 1:
            path.pop()
        elif text and name:
            found.append((here, text.strip()))
    return found


def secrets(environ: Mapping[str, str] = os.environ) -> frozenset[str]:
    """The values of environment variables whose name says that they are secret."""
    return frozenset(
        value
        for name, value in environ.items()
        if _SECRET_NAME.search(name) and len(value) >= _SHORTEST_SECRET and not value.startswith(_NO_SECRET)
    )


def scrub_text(text: str, held: frozenset[str] | None = None) -> str:
    """Text in which everything that is or looks like a secret is `***`."""
    for secret in sorted(secrets() if held is None else held, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return _SECRET_VALUE.sub(HIDDEN, _IN_URL.sub(HIDDEN, text))


def scrub_word(word: str) -> str:
    """An override in which secrets are `***`: by their name, or by their value."""
    prefix, key, value = parse(word)
    if value is not None and any(_is_secret(*pair) for pair in _pairs(key, value)):
        return str(Override(prefix, key, HIDDEN))
    return scrub_text(word)


def scrub(value: Any, held: frozenset[str] | None = None, path: str = "") -> Any:
    """A copy of nested settings in which secrets are `***`: by the name of their key, or by their value."""
    held = secrets() if held is None else held
    if isinstance(value, dict):
        paths = {key: f"{path}.{key}" if path else str(key) for key in value}
        return {
            key: HIDDEN if _is_secret(paths[key], item) else scrub(item, held, paths[key])
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [scrub(item, held, path) for item in value]
    return scrub_text(value, held) if isinstance(value, str) else value
