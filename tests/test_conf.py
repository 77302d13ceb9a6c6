"""Every conf file: begins with a line about itself, composes, and builds what it names."""

import re
from pathlib import Path

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from judgebench.cli import main

CONF = Path(__file__).resolve().parent.parent / "conf"
GROUPED = sorted(CONF.glob("*/*.yaml"))
ROOTS = sorted(CONF.glob("*.yaml"))
# What a user must say, so that the file can be built.
SAID = {"name": "m", "provider": "p", "path": "README.md", "url": "data.csv"}


def named(path):
    return str(path.relative_to(CONF))


def say(node):
    """Fill every `???` below a node."""
    if OmegaConf.is_dict(node):
        for key in list(node):
            if OmegaConf.is_missing(node, key):
                node[key] = SAID[str(key)]
            else:
                say(node[key])


@pytest.mark.parametrize("path", [*ROOTS, *GROUPED], ids=named)
def test_begins_with_a_line_about_itself(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    told = lines[1] if lines[0].startswith("# @package") else lines[0]
    assert re.match(r"# \S.{10,}", told)


@pytest.mark.parametrize(
    "path", [p for p in GROUPED if p.parent.name not in ("experiment", "ranking")], ids=named
)
def test_builds_what_it_names(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "README.md").write_text("instruction\nHi\n")
    node = OmegaConf.load(path)
    if path.stem == "files":
        SAID["path"] = "mine.csv"
        (tmp_path / "mine.csv").write_text("instruction,a\nHi,Ho\n")
    say(node)
    built = instantiate(node, _convert_="all")
    assert type(built).__module__.startswith("judgebench.")


@pytest.mark.parametrize("path", GROUPED, ids=named)
def test_composes_as_a_choice(path, capsys):
    group, choice = path.parent.name, path.stem
    words = {
        "model": [f"judge={choice}", f"candidate={choice}"],
        "experiment": [f"experiment={choice}"],
    }.get(group, [f"{group}={choice}"])
    assert main(["run", *words, "--cfg", "job"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("path", ROOTS, ids=named)
def test_a_root_composes(path, capsys):
    assert main([path.stem, "--cfg", "job"]) == 0, capsys.readouterr().err
