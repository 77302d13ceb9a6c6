"""The wheel is whole: installed into an empty environment, it runs a verb from another folder."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """An environment that holds the wheel, and the running one's libraries without its judgebench."""
    place = tmp_path_factory.mktemp("environment")
    venv.create(place, with_pip=False)
    python = place / "bin" / "python"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = place / "lib" / version / "site-packages"
    target = ["--no-deps", "--no-index", "--quiet", "--target", str(packages), str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", "install", *target], check=True, capture_output=True)
    # A path file adds a folder without running the path files in it, so no editable install is seen.
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def run(python, cwd, *words):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "JUDGEBENCH"))}
    done = subprocess.run([python, *words], cwd=cwd, capture_output=True, text=True, env=clean, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_travels(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    confs = {path.relative_to(ROOT).as_posix() for path in (ROOT / "conf").rglob("*.yaml")}
    assert {f"judgebench/{name}" for name in confs} <= set(names)
    assert {"judgebench/py.typed", "judgebench/data/starter.jsonl", "judgebench/cli.py"} <= set(names)
    assert {name.split("/")[0] for name in names} == {
        "judgebench",
        next(name.split("/")[0] for name in names if ".dist-info/" in name),
    }


def test_it_is_the_wheel_that_runs(installed, tmp_path):
    shown = run(installed, tmp_path, "-c", "import judgebench; print(judgebench.__file__)")
    assert str(installed.parent.parent) in shown


def test_a_verb_runs_from_another_folder(installed, tmp_path):
    start = "import sys; from judgebench.cli import main; sys.exit(main(sys.argv[1:]))"
    assert "usage: judgebench" in run(installed, tmp_path, "-c", start, "--help")
    words = ["plan", "candidate=native", "candidate.name=starter-sound", f"store.root={tmp_path}/store"]
    shown = run(installed, tmp_path, "-c", start, *words)
    assert "starter-sound" in shown
    assert not (tmp_path / "store").exists()
