"""Help, written from the conf files themselves: verbs, groups, choices and settings by their comments.

It must be there in a moment, so it reads the few lines it needs as text and imports neither Hydra nor
YAML. A verb's line is the first comment of `conf/VERB.yaml`, a choice's that of
`conf/GROUP/CHOICE.yaml`; a setting's is the comment behind it in the root config.
"""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from judgebench.errors import ConfigError

WIDTH = 100

EXIT_CODES = """\
  0    complete
  1    error
  3    finished, but rows are missing
  75   submitted and pending: call it again later
  130  interrupted; what was paid for is stored"""

_ENTRY = re.compile(r"\s*- (?:override |optional )*(/?[\w/]+)(?:@([\w.]+))?\s*(?::\s*([^#\s]+))?\s*(?:#.*)?")
_SETTING = re.compile(r"(\s*)[\"']?(\w+)[\"']?:(?: ([^#]*?))?(?:\s+# (.*))?")


def conf_dir() -> Path:
    """The folder of the root configs: in the wheel, or beside the package in a checkout."""
    here = Path(__file__).resolve().parent
    for path in (here / "conf", here.parent / "conf"):
        if (path / "run.yaml").is_file():
            return path
    raise ConfigError(f"The folder conf/ is missing beside {here}: judgebench is not installed as a whole.")


def installed() -> str:
    """The installed version."""
    try:
        return metadata.version("judgebench")
    except metadata.PackageNotFoundError:
        return "unknown (not installed)"


def verbs(conf: Path) -> dict[str, str]:
    """Verbs and what they do in a line, in the order people meet them."""
    first = (
        *("run", "plan", "rank"),
        *("ls", "show", "query", "browse"),
        *("forget", "refresh", "import", "export", "merge", "push", "fetch"),
        *("verify", "repair", "compact"),
    )
    names = sorted(
        (path.stem for path in conf.glob("*.yaml") if "_target_:" in path.read_text(encoding="utf-8")),
        key=lambda name: (first.index(name) if name in first else len(first), name),
    )
    return {
        name: re.sub(rf"^judgebench {name}\b[^:]*:\s*", "", summary(conf / f"{name}.yaml")) for name in names
    }


def summary(path: Path) -> str:
    """The first sentence of a conf file's first comment, from its first line."""
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.lstrip("#").strip()
        if line.startswith("#") and text and not text.startswith(("@", "yaml-language-server")):
            sentence = re.match(r"(.+?[.!?])(?=\s+[A-Z`'\"]|$)", text)
            return (sentence[1] if sentence else text).rstrip(".")
        if line.strip() and not line.startswith("#"):
            break
    return ""


def fact(path: Path, key: str) -> str | None:
    """A top-level setting of a conf file that is plain text on one line, as it stands there."""
    match = re.search(rf"^{key}:[ ]+([^#\n]+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    return match[1].strip().strip("'\"") if match else None


def choices(conf: Path, group: str) -> dict[str, str]:
    """The choices of a group with a line each."""
    root = conf / group
    found = {path.relative_to(root).with_suffix("").as_posix(): path for path in sorted(root.rglob("*.yaml"))}
    return {name: summary(path) for name, path in found.items()}


def defaults(conf: Path, verb: str) -> dict[str, tuple[str, str]]:
    """A verb's groups: key on the command line -> (group, default); of the configs that it builds on, too."""
    found: dict[str, tuple[str, str]] = {}
    for line in _defaults_list(conf / f"{verb}.yaml"):
        match = _ENTRY.fullmatch(line)
        if not match or match[1] == "_self_":
            continue
        group, mount, choice = match[1].strip("/"), match[2], match[3]
        if (conf / group).is_dir() and choice is not None:
            key = mount or group
            found[key] = (group, choice)
        elif choice is None and (conf / f"{group}.yaml").is_file() and group != verb:
            found.update(defaults(conf, group))
    return found


def _defaults_list(path: Path) -> Iterator[str]:
    inside = False
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.rstrip() == "defaults:":
            inside = True
        elif inside and line.strip() and not line.lstrip().startswith(("-", "#")):
            return
        elif inside and line.lstrip().startswith("-"):
            yield line if line.startswith(" ") else f"  {line}"


def settings(conf: Path, verb: str) -> list[tuple[str, str, str]]:
    """The settings of a root config: (key, default, what it is)."""
    bases = [line.strip()[2:].strip() for line in _defaults_list(conf / f"{verb}.yaml")]
    found: list[tuple[str, str, str]] = []
    for base in (name.lstrip("/") for name in bases):
        if re.fullmatch(r"\w+", base) and base not in ("_self_", verb) and (conf / f"{base}.yaml").is_file():
            found += settings(conf, base)
    parent, inside = "", False
    for line in (conf / f"{verb}.yaml").read_text(encoding="utf-8").splitlines():
        match = _SETTING.fullmatch(line)
        if not match or match[2].startswith("_"):
            inside = inside and line.startswith((" ", "-"))
            continue
        indent, key, value, note = match[1], match[2], (match[3] or "").strip(), match[4] or ""
        if not indent:
            inside = key in ("defaults", "hydra")
            parent = key if not value else ""
        if inside or (not value and not note):
            continue
        name = f"{parent}.{key}" if indent and parent else key
        if inner := re.fullmatch(r"\{\s*(\w+): (\S+)\s*\}", value):
            name, value = f"{name}.{inner[1]}", inner[2]
        found.append((name, value, note))
    return list({row[0]: row for row in found}.values())


def positionals(conf: Path, verb: str) -> str | None:
    """The setting that words without '=' are meant for, where a root config has one of these."""
    text = (conf / f"{verb}.yaml").read_text(encoding="utf-8")
    found = re.search(r"^(runs|sources|keys|sql):", text, re.MULTILINE)
    return found[1] if found else None


def examples(conf: Path, verb: str) -> list[str]:
    """The commands in the comment at the top of a root config."""
    head = itertools.takewhile(
        lambda line: line.startswith("#"), (conf / f"{verb}.yaml").read_text(encoding="utf-8").splitlines()
    )
    return [line.lstrip("# ") for line in head if line.startswith("#   judgebench ")]


def overview(conf: Path) -> str:
    """What `judgebench --help` says."""
    groups = sorted(path.name for path in conf.iterdir() if path.is_dir() and any(path.rglob("*.yaml")))
    named = {group: ", ".join(choices(conf, group)) for group in groups}
    return "\n".join(
        [
            f"judgebench {installed()}: evaluate language models with language-model judges.",
            "Every paid answer is stored once; reading and ranking again is free.",
            "",
            "usage: judgebench VERB [KEY=VALUE …] [-m]",
            "",
            "Verbs:",
            *_table(verbs(conf)),
            "",
            "Examples:",
            "  judgebench run                         the embedded model on the starter set; needs no key",
            "  judgebench run limit=20 candidate.sampling.temperature=0.7",
            "  judgebench run -m judge=JUDGE1,JUDGE2  a sweep: one job for each, and one leaderboard of all",
            "",
            "Groups (GROUP=CHOICE; the roles candidate, baseline and judge take a model):",
            *_table(named),
            "",
            "Exit codes:",
            EXIT_CODES,
            "",
            "judgebench VERB --help    its settings, and every choice in a line",
            "judgebench VERB --cfg job the configuration as composed, without running it",
            'eval "$(judgebench -sc install=bash)"    completion in this shell (bash, zsh, fish)',
        ]
    )


def details(conf: Path, verb: str) -> str:
    """What `judgebench VERB --help` says."""
    mounted = defaults(conf, verb)
    positional = positionals(conf, verb)
    words = f" [{positional.upper()} …]" if positional else ""
    lines = [
        f"judgebench {verb}: {verbs(conf).get(verb, '')}",
        "",
        f"usage: judgebench {verb}{words} [KEY=VALUE …] [-m]",
    ]
    shown = examples(conf, verb) or [f"judgebench {verb}"]
    if "judge" in mounted and len(shown) == 1:
        shown += [
            f"judgebench {verb} candidate=CHOICE judge=CHOICE limit=20",
            f"judgebench {verb} -m judge=A,B",
        ]
    lines += ["", "Examples:", *(f"  {example}" for example in shown)]
    if rows := settings(conf, verb):
        lines += ["", "Settings (KEY=VALUE):", *_table({f"{k}={v}" if v else k: note for k, v, note in rows})]
    if mounted:
        keys = {
            f"{key}={choice}": "" if key == group else f"a choice of {group}"
            for key, (group, choice) in mounted.items()
        }
        lines += ["", "Choices (GROUP=CHOICE) and their defaults:", *_table(keys)]
    for group in dict.fromkeys(group for group, _ in mounted.values()):
        if known := choices(conf, group):
            lines += ["", f"{group}:", *_table(known)]
    lines += [
        "",
        "Flags:",
        *_table(
            {
                "-m, --multirun": "a sweep: a job for each KEY=A,B, in DIR/0, DIR/1 …, and one leaderboard",
                "--fail-fast": "end a sweep at the first failed job",
                "--config-dir DIR": "a folder with confs of your own, as in DIR/model/NAME.yaml",
                "--cfg job": "print the composed configuration (job, hydra, all); --resolve, --package KEY",
                "--info defaults": "print where it comes from (defaults-tree, searchpath, plugins, all)",
            }
        ),
        "",
        "Text may hold anything: candidate.name=org/a=v2. With a comma, quote it: \"candidate.name='a,b'\".",
        "+KEY=VALUE adds a setting that the conf does not list (+candidate.top_k=40), ~KEY removes one.",
        "",
        "Exit codes:",
        EXIT_CODES,
    ]
    return "\n".join(lines)


def _table(rows: dict[str, str]) -> list[str]:
    column = min(max((len(name) for name in rows), default=0), 30)
    lines: list[str] = []
    for name, text in rows.items():
        gap = f"\n{'':{column + 4}}" if len(name) > column and text else ""
        wrapped = textwrap.wrap(text, WIDTH - column - 4) or [""]
        body = f"\n{'':{column + 4}}".join(wrapped)
        lines.append(f"  {name:{column}}{gap or '  '}{body}".rstrip())
    return lines
