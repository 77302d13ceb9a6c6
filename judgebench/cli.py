"""The command line: `judgebench VERB [overrides]`. A verb is a root config in `conf/`; Hydra composes it.

`main` reads flags, prints help, notes and errors, and gives the exit status. `invoke` is the same from
Python: it raises instead of printing. Hydra is imported only once there is something to compose.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from judgebench import usage
from judgebench.errors import ConfigError, Interrupted, JudgebenchError, choices
from judgebench.folder import ERROR, INTERRUPTED, LOG, Invocation, Job
from judgebench.overrides import scrub_text
from judgebench.usage import conf_dir

__all__ = ["Invocation", "Job", "conf_dir", "invoke", "main"]

_COMPLETION = ("-sc", "--shell-completion", "--shell_completion")


def invoke(
    verb: str,
    overrides: Sequence[str] = (),
    *,
    multirun: bool = False,
    fail_fast: bool = False,
    conf: Path | None = None,
    config_dir: Path | None = None,
) -> Invocation:
    """Call a verb from Python, as often as you like: `invoke("run", ["judge=local", "limit=20"])`.

    Raises `JudgebenchError` for what a person can mend. Jobs of a sweep that fail do not raise: they are in
    `result`, which is then a tuple of `judgebench.folder.Outcome`.
    """
    conf = conf or conf_dir()
    _known(verb, conf)
    from judgebench import dispatch

    return dispatch.invoke(
        verb,
        [overrides] if isinstance(overrides, str) else overrides,
        multirun=multirun,
        fail_fast=fail_fast,
        conf=conf,
        config_dir=config_dir,
        positionals=usage.positionals(conf, verb),
    )


def main(argv: Sequence[str] | None = None, conf: Path | None = None) -> int:
    """The console script. Returns the exit status; `judgebench --help` says what they mean."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        with _console():
            return _main(words, conf or conf_dir())
    except (KeyboardInterrupt, Interrupted) as error:
        _say(f"judgebench: {str(error) or 'interrupted'}")
        return INTERRUPTED
    except BrokenPipeError:  # `judgebench --help | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ERROR
    except Exception as error:
        _complain(error, words)
        return ERROR


def _main(words: list[str], conf: Path) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(
            usage.overview(conf) if len(words) < 2 or words[1].startswith("-") else _details(words[1], conf)
        )
        return 0
    if words[0] in ("--version", "-V"):
        print(f"judgebench {usage.installed()}")
        return 0
    if words[0] in _COMPLETION:
        _complete(words, conf)
        return 0
    if words[0].startswith("-"):
        raise ConfigError(f"{words[0]}: the verb comes first, for example: judgebench run {' '.join(words)}")
    verb, *rest = words
    _known(verb, conf)
    flags = _flags(verb, rest)
    if flags.help:
        print(_details(verb, conf))
        return 0
    if flags.cfg or flags.info:
        from judgebench import dispatch

        dispatch.show(
            verb,
            flags.overrides,
            conf=conf,
            config_dir=flags.config_dir,
            positionals=usage.positionals(conf, verb),
            cfg=flags.cfg or "job",
            info=flags.info,
            package=flags.package,
            resolve=flags.resolve,
        )
        return 0
    done = invoke(
        verb,
        flags.overrides,
        multirun=flags.multirun,
        fail_fast=flags.fail_fast,
        conf=conf,
        config_dir=flags.config_dir,
    )
    for note in done.notes:
        _say(note)
    return done.status


def _details(verb: str, conf: Path) -> str:
    _known(verb, conf)
    return usage.details(conf, verb)


def _known(verb: str, conf: Path) -> None:
    known = usage.verbs(conf)
    if verb not in known:
        hint = f" The verb comes first: judgebench run {verb} …" if "=" in verb else ""
        raise ConfigError(
            f"There is no verb of this name: {choices(verb, known)}{hint} See judgebench --help."
        )


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}. See {self.prog} --help.")


def _flags(verb: str, words: Sequence[str]) -> argparse.Namespace:
    """Hydra's flags that make sense here, anywhere among the overrides, and `--fail-fast`."""
    parser = _Parser(prog=f"judgebench {verb}", add_help=False, allow_abbrev=False)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("-h", "--help", "--hydra-help", action="store_true")
    parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("-r", "--run", action="store_true")
    parser.add_argument("--fail-fast", action="store_true")
    parser.add_argument("-c", "--cfg", choices=["job", "hydra", "all"])
    parser.add_argument("--resolve", action="store_true")
    parser.add_argument("-p", "--package")
    infos = ["all", "config", "defaults", "defaults-tree", "plugins", "searchpath"]
    parser.add_argument("-i", "--info", nargs="?", const="all", choices=infos)
    parser.add_argument("-cd", "--config-dir", type=Path)
    return parser.parse_intermixed_args(words)


def _complete(words: list[str], conf: Path) -> None:
    """Shell completion: verbs and roles by us, other overrides by Hydra, which knows no `GROUP@ROLE`."""
    from judgebench import dispatch

    line = os.environ.get("COMP_LINE", "")
    typed = line.split()
    if not any(word.startswith("query=") for word in words):
        dispatch.complete(words[1:], verb=None, conf=conf)
    elif len(typed) < 2 or (len(typed) == 2 and not line.endswith(" ")):
        print(" ".join(usage.verbs(conf)))
    elif re.match(r"(candidate|baseline|judge|judges\.[\w-]+)=", typed[-1]) and not line.endswith(" "):
        print(" ".join(typed[-1].partition("=")[0] + f"={name}" for name in usage.choices(conf, "model")))
    elif typed[1] in usage.verbs(conf):
        after = line.split(None, 2)[2] if len(typed) > 2 else ""
        roles = re.compile(r"(?<!\S)(?=(?:candidate|baseline|judge)=)")
        os.environ["COMP_LINE"] = f"judgebench {roles.sub('model@', after)}"
        try:
            dispatch.complete(words[1:], verb=typed[1], conf=conf)
        finally:
            os.environ["COMP_LINE"] = line


@contextlib.contextmanager
def _console() -> Iterator[None]:
    """Warnings and errors of `judgebench` go to stderr in one line; tracebacks stay in the log."""

    class Console(logging.StreamHandler):  # type: ignore[type-arg]
        def filter(self, record: logging.LogRecord) -> bool:
            return not getattr(record, "quiet", False)

        def format(self, record: logging.LogRecord) -> str:
            return scrub_text(f"judgebench: {record.getMessage()}")

    handler = Console(sys.stderr)
    handler.setLevel(logging.WARNING)
    logger = logging.getLogger("judgebench")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _complain(error: Exception, words: Sequence[str]) -> None:
    """One paragraph for what is foreseen; for anything else, what it was and where its traceback is."""
    verb = f" {words[0]}" if words and words[0].isalpha() else ""
    folder = getattr(error, "folder", None)
    if os.environ.get("JUDGEBENCH_DEBUG") == "1":
        _say("".join(traceback.format_exception(error)).rstrip())
    if isinstance(error, JudgebenchError):
        log = f" (log: {folder / LOG})" if folder is not None else ""
        _say(f"judgebench{verb}: {' '.join(str(error).split())}{log}")
        return
    where = (
        f"the traceback is in {folder / LOG}"
        if folder is not None
        else "JUDGEBENCH_DEBUG=1 shows the traceback"
    )
    said = " ".join(str(error).split())
    _say(f"judgebench{verb}: unexpected {type(error).__name__}{f': {said}' if said else ''}; {where}.")


def _say(text: str) -> None:
    print(scrub_text(text), file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
