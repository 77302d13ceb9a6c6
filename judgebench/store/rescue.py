"""Where answers go that are paid for and cannot be stored: a file that `judgebench merge` takes in."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from judgebench.errors import StoreError
from judgebench.request import Descriptor
from judgebench.store import schema

SUFFIX = ".rescue.jsonl"
_SUBJECT = tuple(schema.subjects.columns.keys())


class Rescued(NamedTuple):
    """One answer out of a rescue file, with its subjects, as rows of the tables."""

    role: str
    descriptor: Descriptor
    answer: tuple[Any, ...]
    subjects: list[tuple[Any, ...]]


class Rescue:
    """A rescue file, made at the first row: beside the store if it can be written, else wherever it can."""

    def __init__(self, root: Path, role: str) -> None:
        self._root, self._role = root, role
        self.path: Path | None = None
        self.rows = 0

    def keep(self, descriptor: Descriptor, answer: Sequence[Any], subjects: Sequence[Sequence[Any]]) -> bool:
        """Write an answer, durably; false where no place can be written at all."""
        line = json.dumps(
            {
                "role": self._role,
                "descriptor": json.loads(descriptor.text),
                "answer": dict(zip(schema.ANSWER_COLUMNS, answer, strict=True)),
                "subjects": [dict(zip(_SUBJECT, subject, strict=True)) for subject in subjects],
            },
            ensure_ascii=False,
        )
        for place in [self.path] if self.path else self._places():
            try:
                with place.open("a", encoding="utf-8", newline="\n") as file:
                    file.write(line + "\n")
                    file.flush()
                    os.fsync(file.fileno())
            except (OSError, UnicodeError):
                continue
            self.path = place
            self.rows += 1
            return True
        return False

    def _places(self) -> list[Path]:
        name = f"judgebench-{self._role}-{os.getpid()}{SUFFIX}"
        return [
            folder / name for folder in (self._root, Path.cwd(), Path(tempfile.gettempdir()), Path.home())
        ]


def read(path: Path) -> Iterator[Rescued]:
    """The answers in a rescue file. A last line that was cut off is passed over.

    Raises:
        StoreError: the file is no rescue file.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeError) as error:
        raise StoreError(f"{path} cannot be read: {error}.") from error
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            row = json.loads(line)
            yield Rescued(
                row["role"],
                Descriptor(**row["descriptor"]),
                tuple(row["answer"].get(name) for name in schema.ANSWER_COLUMNS),
                [tuple(subject.get(name) for name in _SUBJECT) for subject in row["subjects"]],
            )
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines):
                return
            raise StoreError(f"{path}, line {number}: not a line of a rescue file ({error}).") from error
