"""The arrows: who may import whom, and where vendors may be named."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "judgebench"
FILES = sorted(PACKAGE.rglob("*.py"))

# A layer may import its own modules and those of layers before it.
LAYERS = [
    {"errors", "reasoning"},
    {"verdict", "reply"},
    {"label_rules", "score_rules", "estimate", "tables"},
    {"reader", "ranking", "report"},
    {"hub", "prices", "request", "weights"},
    {"benchmark", "prompt", "engine", "store", "model"},
    {"explain", "protocol"},
    {"budget", "tally"},
    {"stage"},
    {"settings"},
    {"answers", "recordings"},
    {"judgements", "convert", "canary", "recorded_answers"},
    {"experiment", "progress"},
    {"overrides", "usage"},
    {"bundle", "card", "folder", "hints", "leaks"},
    {"shipment"},
    {"caring", "combine", "exporting", "forgetting", "imported", "looking", "planning", "sharing"},
    {"browsing", "importing", "showing"},
    {"verbs"},
    {"compose", "hydra_errors", "kinds"},
    {"sweep"},
    {"dispatch"},
    {"cli"},
    {"loop"},
    {"api"},
]
# Leaves that anybody may use.
SHARED = {"loop", "__init__"}
PURE = {
    "reasoning",
    "verdict",
    "reply",
    "label_rules",
    "score_rules",
    "estimate",
    "tables",
    "reader",
    "ranking",
}
LIBRARIES_OF_PURE = {"numpy", "pandas", "scipy", "pyarrow", "rich", "judgebench"}

VENDORS = {
    "litellm": {"engine/litellm.py"},
    "datasette": {"browsing.py"},
    "uvicorn": {"browsing.py"},
    "xllamacpp": {"engine/llamacpp.py"},
    "aiohttp": {"engine/openai.py", "engine/litellm.py"},
    "openai": {"engine/litellm.py"},
    "httpx": {"engine/litellm.py"},
    "huggingface_hub": {"hub.py"},
    "fsspec": {"benchmark/source.py"},
    "jinja2": {"prompt.py"},
    "sqlalchemy": {"store/schema.py"},
    "sqlite3": {f"store/{path.name}" for path in (PACKAGE / "store").glob("*.py")},
    "hydra": {"compose.py", "dispatch.py", "sweep.py", "hydra_errors.py", "api.py"},
    "omegaconf": {"compose.py", "dispatch.py", "sweep.py", "hydra_errors.py", "api.py"},
}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative import"
            if node.module == "judgebench":
                yield from (f"judgebench.{alias.name}" for alias in node.names)
            elif node.module:
                yield node.module


def concept(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def rank(name):
    return next(n for n, layer in enumerate(LAYERS) if name in layer)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path):
    mine = concept(path)
    if mine == "__init__":
        return
    for name in imports(path):
        parts = name.split(".")
        if parts[0] != "judgebench" or len(parts) < 2 or not _is_module(parts[1]):
            continue
        theirs = parts[1]
        if theirs in SHARED or theirs == mine:
            continue
        assert rank(theirs) <= rank(mine), f"{mine} imports {theirs}, which is above it"


def _is_module(name):
    return (PACKAGE / f"{name}.py").exists() or (PACKAGE / name).is_dir()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_vendors_stand_in_their_files_only(path):
    place = path.relative_to(PACKAGE).as_posix()
    for name in imports(path):
        allowed = VENDORS.get(name.split(".")[0])
        assert allowed is None or place in allowed, f"{place} imports {name}"


@pytest.mark.parametrize("name", sorted(PURE))
def test_readers_and_ranking_know_frames_only(name):
    for imported in imports(PACKAGE / f"{name}.py"):
        top = imported.split(".")[0]
        assert top in LIBRARIES_OF_PURE or top in sys.stdlib_module_names, f"{name} imports {imported}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_is_short_enough_to_read(path):
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= 400, f"{path.name} has {lines} lines: split it by concept"


HEAVY = {"litellm", "pandas", "pyarrow", "aiohttp", "hydra", "xllamacpp", "sqlalchemy", "scipy", "numpy"}


@pytest.mark.parametrize(
    "code",
    [
        "import judgebench",
        "from judgebench.cli import main; main(['--help'])",
        "from judgebench.cli import main; main(['run', '--help'])",
    ],
)
def test_help_and_import_are_light(code):
    script = f"import sys; {code}; print('LOADED', *sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.splitlines()[-1].split() == ["LOADED"]
