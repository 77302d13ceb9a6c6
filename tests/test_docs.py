"""The documentation is true: its commands compose, its links lead somewhere."""

import re
import shlex
from pathlib import Path

import pytest

from judgebench.cli import main

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]


def commands():
    for page in PAGES:
        for block in re.findall(r"```console\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if words and words[0].endswith("judgebench") and len(words) > 1:
                    yield pytest.param(words[1:], id=f"{page.name}: {' '.join(words)}"[:120])


@pytest.mark.parametrize("words", list(commands()))
def test_a_command_of_the_docs_composes(words, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    words = [word.replace("$JUDGEBENCH_DATA", "data") for word in words if word != "--help"]
    if "-m" in words:  # a sweep composes job by job: the first one stands for all
        words = [word.split(",")[0] for word in words if word != "-m"]
    if "--config-dir" in words:
        pytest.skip("needs the reader's own folder")
    assert main([*words, "--cfg", "job"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
