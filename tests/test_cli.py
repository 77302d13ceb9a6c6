"""The command line against a small conf folder and a verb package of its own."""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent

import pytest

from judgebench import usage
from judgebench.cli import conf_dir, invoke, main
from judgebench.errors import ConfigError, DataError
from judgebench.overrides import quote

MODEL = "label: null\ntemperature: 0\nbase_url: null\n_target_: fake_verbs.Model\n"
CONF = {
    "run.yaml": """\
        # judgebench run: complete and judge. More here.
        defaults:
          - _self_
          - model@candidate: local
          - model@judge: local
          - protocol: pair
          - engine: null
          - optional experiment: null

        _target_: fake_verbs.Run
        limit: null # the first n
        judges: null
        seed: { order: 0 }
        store:
          root: ${oc.env:FAKE_STORE,null} # where answers are
        prompt: null
        output_dir: null # default: a new folder
        """,
    "plan.yaml": """\
        # judgebench plan: what a run would cost.
        defaults:
          - run
          - _self_

        _target_: fake_verbs.Plan
        """,
    "rank.yaml": "# judgebench rank: again.\n_target_: fake_verbs.Rank\nruns: []\noutput_dir: null\n",
    "forget.yaml": '# judgebench forget: delete.\n_target_: fake_verbs.Forget\nwhere: {}\n"yes": false\n',
    "bare.yaml": "just: a file\n",
    "model/local.yaml": "# The embedded model.\nname: gemma\n" + MODEL,
    "model/big.yaml": "# A big one.\nname: ???\n" + MODEL,
    "model/vendor/large.yaml": "# Of a vendor.\n_target_: fake_verbs.Model\nname: vendor/large\n",
    "model/lacking.yaml": "_target_: no_such_package.Model\nname: x\n",
    "protocol/pair.yaml": "# Two answers side by side.\nkind: pair\n",
    "protocol/point.yaml": "kind: point\n",
    "engine/fast.yaml": "speed: 1\n",
    "experiment/two.yaml": """\
        # @package _global_
        # Two judges.
        defaults:
          - override /protocol: point
        hydra:
          sweeper:
            params:
              judge: local,vendor/large
              candidate.name: 1e3,b
        """,
    "experiment/panel.yaml": """\
        # @package _global_
        defaults:
          - /model@judges.a: local
          - /model@judges.b: local
        """,
    "experiment/text.yaml": "# @package _global_\njudge: gpt-5\n",
}

VERBS = """
import logging
import os
import time
from judgebench.errors import ConfigError, DataError, Interrupted

calls = []

class Model:
    def __init__(self, name, label=None, temperature=0, base_url=None):
        if name == "refused":
            raise ConfigError("this name is refused")
        self.name, self.label, self.temperature, self.base_url = name, label, temperature, base_url

class Run:
    def __init__(self, **settings):
        self.settings = settings

    def __call__(self, job):
        calls.append(job)
        self.result = self.settings
        name = self.settings["candidate"].name
        logging.getLogger("judgebench").info("working on %s", name)
        if job.folder is not None:
            (job.folder / "run.json").write_text("{}")
        if name == "boom":
            raise RuntimeError("it broke\\nsecond line")
        if name == "data":
            raise DataError("a column is missing")
        if name == "waits":
            print("waiting", flush=True)
            time.sleep(60)
        if name == "ctrl-c":
            raise KeyboardInterrupt
        if name == "stopped":
            raise Interrupted("stopped by you")
        return {"missing": 3, "pending": 75}.get(name)

class Plan(Run):
    pass

class Rank:
    def __init__(self, runs, output_dir):
        self.result = runs
    def __call__(self, job):
        calls.append(job)
        return 0

class Forget:
    def __init__(self, where, yes):
        self.result = where
    def __call__(self, job):
        calls.append(job)
        return 0

def combine_sweep(out):
    if os.environ.get("FAKE_COMBINE"):
        raise DataError("nothing to combine")
    (out / "combined.txt").write_text(" ".join(sorted(p.name for p in out.iterdir() if p.name.isdigit())))
"""


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("fake")
    for name, text in CONF.items():
        (home / "conf" / name).parent.mkdir(parents=True, exist_ok=True)
        (home / "conf" / name).write_text(dedent(text), encoding="utf-8")
    (home / "fake_verbs.py").write_text(VERBS, encoding="utf-8")
    return home


@pytest.fixture
def conf(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(home))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("JUDGEBENCH_DEBUG", raising=False)
    return home / "conf"


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """Stderr, which holds one paragraph and no traceback."""
    text = capsys.readouterr().err
    assert "Traceback" not in text
    assert "\n\n" not in text
    return text


def test_a_run_has_a_folder_of_its_own(conf: Path, tmp_path: Path) -> None:
    first, second = (invoke("run", ["limit=3"], conf=conf) for _ in range(2))
    assert first.status == 0
    assert first.folder != second.folder
    assert first.folder is not None
    assert first.folder.parent == Path("runs")
    assert sorted(path.name for path in first.folder.iterdir()) == ["log.txt", "run.json", "status.json"]
    assert "working on gemma" in (first.folder / "log.txt").read_text()
    assert first.result["limit"] == 3
    assert type(first.result["seed"]) is dict
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]  # no .hydra, no outputs, no multirun


def test_the_job(conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_TOKEN", "t0ken-value")
    monkeypatch.setenv("FAKE_STORE", "s/t0ken-value")
    import fake_verbs

    invoke("run", ["judge=vendor/large", "+judge.label=x"], conf=conf)
    job = fake_verbs.calls[-1]
    assert job.verb == "run"
    assert job.number is None
    assert job.overrides == ("model@judge=vendor/large", "+judge.label=x")
    assert job.config["judge"]["name"] == "vendor/large"
    assert job.config["store"]["root"] == "s/***"
    assert "hydra" not in job.config


@pytest.mark.parametrize(("name", "status"), [("missing", 3), ("pending", 75), ("x", 0)])
def test_exit_status_is_the_verbs(conf: Path, name: str, status: int) -> None:
    assert main(["run", f"candidate.name={name}"], conf) == status


def test_text_stays_text(conf: Path) -> None:
    done = invoke(
        "run",
        ["candidate.name=1e3", "candidate.label=off", "judge.name=org/a=v2", "output_dir=C:\\tmp\\"],
        conf=conf,
    )
    assert done.result["candidate"].name == "1e3"
    assert done.result["candidate"].label == "off"
    assert done.result["judge"].name == "org/a=v2"
    assert done.folder == Path("C:\\tmp\\")
    assert done.folder.is_dir()


def test_read_only_verbs_leave_nothing(conf: Path, tmp_path: Path) -> None:
    assert invoke("plan", ["output_dir=x"], conf=conf).folder is None
    assert invoke("rank", ["runs/a", "runs/**"], conf=conf).result == ["runs/a", "runs/**"]
    assert invoke("forget", ["where.instruction_id=1_000", "where.model_b=null"], conf=conf).result == {
        "instruction_id": "1_000",
        "model_b": None,
    }
    assert invoke("plan", ["judge=local,vendor/large"], multirun=True, conf=conf).status == 0
    assert list(tmp_path.iterdir()) == []
    assert invoke("rank", ["runs/a", "output_dir=out"], conf=conf).folder == Path("out")


def test_explicit_folders(conf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "output_dir=out"], conf) == 0
    assert main(["run", "output_dir=out"], conf) == 0  # ours
    Path("mine").mkdir()
    Path("mine/thesis.tex").write_text("")
    assert main(["run", "output_dir=mine"], conf) == 1
    assert "output_dir=mine is not empty and not ours (thesis.tex; no run.json)" in said(capsys)
    assert main(["run", "output_dir="], conf) == 1
    assert "output_dir is empty" in said(capsys)
    assert main(["run", "hydra.run.dir=x"], conf) == 1
    assert "output_dir=DIR" in said(capsys)


def test_a_typo_leaves_no_folder(conf: Path, tmp_path: Path) -> None:
    for words in (["candidat.name=x"], ["judge=gpt5"], ["candidate.name=refused"], ["prompt=${nothing}"]):
        with pytest.raises(ConfigError):
            invoke("run", words, conf=conf)
        with pytest.raises(ConfigError):
            invoke(
                "run",
                [*words, "judge=local,local" if words != ["judge=gpt5"] else "limit=1,2"][:1],
                conf=conf,
            )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (
            "run candidat.name=x",
            ["candidat.name=x: 'candidat' is not known. Did you mean 'candidate'?", "Choices:"],
        ),
        ("run candidate.nam=x", ["in candidate, 'nam' is not known. Did you mean 'name'?"]),
        ("run temperature=1", ["Did you mean candidate.temperature or judge.temperature?"]),
        ("run candidate.top_k=1", ["'top_k' is not known", "+candidate.top_k=1"]),
        ("run limit.x=1", ["limit is None and holds no 'x'"]),
        (
            "run judge=locl",
            ["judge=locl: 'locl' is not known. Did you mean 'local'? Choices: big,", "--config-dir"],
        ),
        ("run judge=gpt=5", ["'gpt=5' is not known. Choices: big"]),
        ("run judges.a=locl", ["judges.a=locl: 'locl' is not known. Did you mean 'local'?"]),
        (
            "run protocol=pear",
            ["protocol=pear: 'pear' is not known. Did you mean 'pair'? Choices: pair, point."],
        ),
        ("run protocol=pair,point", ["protocol=pair,point holds several values", "add -m"]),
        ("run judge=local,big", ["judge=local,big holds several values. To run one job for each, add -m."]),
        ("run limit=1,2", ["add -m", "limit=[1,2]", "limit='1,2'"]),
        ("run prompt=a=b", ["'prompt=a=b' cannot be read", "\"prompt='a=b'\""]),
        ("run candidate=big", ["candidate.name has no value. Give one: candidate.name=…"]),
        ("run ++judge=gpt-5", ["judge is the plain text 'gpt-5', not a model", "judge=gpt-5 (without +"]),
        ("run experiment=text", ["judge is the plain text 'gpt-5'", "override /model@judge: gpt-5"]),
        ("run ++judges.a=gpt-5", ["judges.a is the plain text 'gpt-5'"]),
        (
            "run +judge.temprature=1",
            ["judge.temprature: 'temprature' is not known. Did you mean 'temperature'?"],
        ),
        ("run judge=lacking", ["judge: ", "no_such_package"]),
        ("run candidate.name=refused", ["candidate: this name is refused"]),
        (
            "run candidate.name=a,b",
            ["candidate.name=a,b holds a comma", "add -m", "\"candidate.name='a,b'\""],
        ),
        ("run +seed.order=3", ["seed.order is set already. To change it, leave out the +: seed.order=…"]),
        ("run runs/a", ["'runs/a' is no override: write KEY=VALUE"]),
        ("run --frobnicate", ["unrecognized arguments: --frobnicate. See judgebench run --help"]),
        ("run --config-dir nowhere", ["--config-dir nowhere is no folder"]),
        ("rum", ["'rum' is not known. Did you mean 'run'? Choices: forget, plan, rank, run."]),
        ("judge=x", ["The verb comes first: judgebench run judge=x"]),
        ("-m run", ["-m: the verb comes first"]),
        ("rank judge=local", ["judge=local: judgebench rank has no 'judge'"]),
        ("run ~nothing", ["~nothing: there is no 'nothing' to remove"]),
        ("run judge.api_key=sk-123456789", ["judge.api_key: a secret", "judge.api_key_env=OPENAI_API_KEY"]),
        ("run sk-123456789", ["One word: a secret"]),
    ],
)
def test_errors_are_one_paragraph(
    conf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str, parts: list[str]
) -> None:
    assert main(words.split(), conf) == 1
    text = said(capsys)
    assert text.count("\n") == 1
    for part in parts:
        assert part in text
    assert "sk-123" not in text
    assert list(tmp_path.iterdir()) == []


def test_an_interpolation_in_text_names_the_escape(conf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "prompt='cost is ${x} dollars'"], conf) == 1
    assert "prompt: there is no setting 'x' to fill in. If ${x} is meant as text" in (text := said(capsys))
    assert "\\${x}" in text
    assert (
        invoke("run", ["prompt='cost is \\${x} dollars'"], conf=conf).result["prompt"]
        == "cost is ${x} dollars"
    )
    for text in ("${x}", "$#${", "a \\${b} c\\"):  # as a file's text would arrive
        escaped = text.replace("\\${", "\\\\${").replace("${", "\\${")
        assert invoke("run", [f"prompt={quote(escaped)}"], conf=conf).result["prompt"] == text
    assert main(["run", "prompt=${oc.env:NOT_SET_AT_ALL}"], conf) == 1
    assert "the environment variable NOT_SET_AT_ALL is not set" in said(capsys)


def test_unexpected_errors_name_the_log(
    conf: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["run", "candidate.name=boom", "output_dir=out"], conf) == 1
    assert (
        f"unexpected RuntimeError: it broke second line; the traceback is in {Path('out/log.txt')}."
        in said(capsys)
    )
    assert "Traceback" in Path("out/log.txt").read_text()
    assert json.loads(Path("out/status.json").read_text())["error"] == "RuntimeError: it broke"
    assert main(["run", "candidate.name=data", "output_dir=out"], conf) == 1
    assert "judgebench run: a column is missing (log: out" in said(capsys)
    monkeypatch.setenv("JUDGEBENCH_DEBUG", "1")
    assert main(["plan", "candidate.name=boom"], conf) == 1
    assert "Traceback" in capsys.readouterr().err


def test_python_gets_the_exception(conf: Path) -> None:
    with pytest.raises(DataError, match="a column is missing"):
        invoke("run", ["candidate.name=data"], conf=conf)
    with pytest.raises(RuntimeError, match="it broke"):
        invoke("run", ["candidate.name=boom"], conf=conf)
    with pytest.raises(ConfigError, match="Did you mean 'run'"):
        invoke("rum", conf=conf)


@pytest.mark.parametrize("name", ["ctrl-c", "stopped"])
def test_interrupted(conf: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert main(["run", f"candidate.name={name}", "output_dir=out"], conf) == 130
    assert "judgebench: " in said(capsys)
    assert json.loads(Path("out/status.json").read_text())["status"] == 130


def test_judges(conf: Path) -> None:
    done = invoke(
        "run", ["judges.strict=local", "judges.strict.name=007", "judges.big=vendor/large"], conf=conf
    )
    assert {name: judge.name for name, judge in done.result["judges"].items()} == {
        "strict": "007",
        "big": "vendor/large",
    }
    done = invoke("run", ["experiment=panel", "judges.a=vendor/large", "judges.c=local"], conf=conf)
    assert {name: judge.name for name, judge in done.result["judges"].items()} == {
        "a": "vendor/large",
        "b": "gemma",
        "c": "gemma",
    }


def test_sweep(conf: Path, tmp_path: Path) -> None:
    done = invoke(
        "run",
        ["candidate.name=1e3,b", "judge=local,vendor/large", "output_dir=out"],
        multirun=True,
        conf=conf,
    )
    assert done.status == 0
    assert done.folder == Path("out")
    assert done.notes == ()
    assert [job.number for job in done.result] == [0, 1, 2, 3]
    assert sorted(path.name for path in Path("out").iterdir()) == [
        "0",
        "1",
        "2",
        "3",
        "combined.txt",
        "sweep.json",
    ]
    assert sorted(path.name for path in Path("out/0").iterdir()) == ["log.txt", "run.json", "status.json"]
    assert "working on 1e3" in Path("out/0/log.txt").read_text()
    marker = json.loads(Path("out/sweep.json").read_text())
    assert marker["verb"] == "run"
    assert marker["status"] == 0
    assert marker["overrides"][0] == "candidate.name=1e3,b"
    assert marker["jobs"][3]["overrides"][:2] == ["candidate.name=b", "model@judge=vendor/large"]
    import fake_verbs

    assert fake_verbs.calls[-1].folder == Path("out/3")
    assert fake_verbs.calls[-1].number == 3

    done = invoke("run", ["candidate.name=c,d", "output_dir=out"], multirun=True, conf=conf)
    assert [job.number for job in done.result] == [0, 1]
    assert Path("out/combined.txt").read_text() == "0 1"  # the earlier sweep's are gone


def test_a_default_sweep_folder(conf: Path) -> None:
    done = invoke("run", ["limit=1,2"], multirun=True, conf=conf)
    assert done.folder is not None
    assert done.folder.parent == Path("runs")
    assert (done.folder / "1" / "status.json").is_file()


def test_failed_jobs_do_not_stop_a_sweep(conf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "-m", "candidate.name=a,boom,missing,data", "judge=vendor/large", "output_dir=out"]
    assert main(words, conf) == 1
    text = said(capsys)
    assert "2 of 4 started jobs ended without an error." in text
    assert "Job 1 failed: candidate.name=boom judge=vendor/large" in text
    assert f"RuntimeError: it broke ({Path('out/1/log.txt')})" in text
    assert "Job 3 failed: candidate.name=data" in text
    assert "a column is missing" in text
    assert text.index("job 1 failed") < text.index("job 3 failed")  # said when it happened
    assert "RuntimeError: it broke\nsecond line" in Path("out/1/log.txt").read_text()
    statuses = [json.loads(Path(f"out/{n}/status.json").read_text())["status"] for n in range(4)]
    assert statuses == [0, 1, 3, 1]
    assert Path("out/combined.txt").read_text() == "0 1 2 3"
    assert json.loads(Path("out/sweep.json").read_text())["status"] == 1


def test_what_only_a_job_can_find_wrong_fails_only_that_job(conf: Path) -> None:
    done = invoke("run", ["prompt='\\${a}','${nothing}',c", "output_dir=out"], multirun=True, conf=conf)
    assert [job.status for job in done.result] == [0, 1, 0]
    assert done.result[1].error.startswith("prompt: there is no setting 'nothing'")


def test_fail_fast_and_interrupts_end_a_sweep(conf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = invoke(
        "run", ["candidate.name=a,boom,c", "output_dir=x"], multirun=True, fail_fast=True, conf=conf
    )
    assert [job.status for job in done.result] == [0, 1]
    assert done.status == 1
    assert "had not started yet" in done.notes[0]
    for name in ("ctrl-c", "stopped"):
        assert main(["run", "-m", f"candidate.name=a,{name},c", f"output_dir={name}"], conf) == 130
        assert Path(name, "combined.txt").read_text() == "0 1"
        assert "Job 1 was interrupted" in said(capsys)


def test_a_sweep_that_cannot_be_composed_changes_nothing(conf: Path, tmp_path: Path) -> None:
    for words in (["judge=local,locl"], ["judge=local,locl", "output_dir=new"], ["output_dir=a,b"]):
        with pytest.raises(ConfigError):
            invoke("run", words, multirun=True, conf=conf)
    assert [path.name for path in tmp_path.rglob("*")] in ([], ["runs"])
    invoke("run", ["limit=1,2", "output_dir=out"], multirun=True, conf=conf)
    before = Path("out/sweep.json").read_text()
    with pytest.raises(ConfigError, match="judge=local,locl: 'locl' is not known"):
        invoke("run", ["judge=local,locl", "output_dir=out"], multirun=True, conf=conf)
    assert Path("out/sweep.json").read_text() == before
    assert Path("out/1/run.json").is_file()
    with pytest.raises(ConfigError, match="the folder of a sweep"):
        invoke("run", ["output_dir=out"], conf=conf)


def test_combining_may_fail(
    conf: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAKE_COMBINE", "1")
    assert main(["run", "-m", "limit=1,2"], conf) == 1
    assert "could not be combined: nothing to combine" in said(capsys)


def test_a_sweep_in_an_experiment(conf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = invoke("run", ["experiment=two", "output_dir=out"], multirun=True, conf=conf)
    assert [job.overrides[:2] for job in done.result] == [
        ("model@judge=local", "candidate.name='1e3'"),
        ("model@judge=local", "candidate.name=b"),
        ("model@judge=vendor/large", "candidate.name='1e3'"),
        ("model@judge=vendor/large", "candidate.name=b"),
    ]
    done = invoke("run", ["experiment=two", "judge=local", "output_dir=less"], multirun=True, conf=conf)
    assert len(done.result) == 2
    assert main(["run", "experiment=two"], conf) == 0
    assert "Add -m to run it." in said(capsys)
    assert main(["run", "limit=1,2", "+hydra.mode=MULTIRUN", "output_dir=mode"], conf) in (0, 1)


def test_hydra_mode_in_the_configuration(conf: Path) -> None:
    done = invoke("run", ["limit=1,2", "hydra.mode=MULTIRUN", "output_dir=mode"], conf=conf)
    assert len(done.result) == 2


def test_hydras_own_state_is_left_alone(conf: Path) -> None:
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.hydra_config import HydraConfig

    argv, level = list(sys.argv), logging.getLogger().level
    with initialize_config_dir(str(conf), version_base="1.3"):
        mine = GlobalHydra.instance().hydra
        invoke("run", ["limit=1"], conf=conf)
        invoke("run", ["limit=1,2"], multirun=True, conf=conf)
        assert GlobalHydra.instance().hydra is mine
        assert compose("run").protocol.kind == "pair"
    assert not HydraConfig.initialized()
    assert sys.argv == argv
    assert logging.getLogger().level == level
    assert not logging.getLogger("judgebench").handlers


def test_config_dir(conf: Path, tmp_path: Path) -> None:
    (tmp_path / "own/model").mkdir(parents=True)
    (tmp_path / "own/model/mine.yaml").write_text("_target_: fake_verbs.Model\nname: mine\n")
    assert main(["run", "--config-dir", "own", "judge=mine", "-r"], conf) == 0
    assert invoke("run", ["judge=mine"], config_dir=Path("own"), conf=conf).result["judge"].name == "mine"


def test_hydras_flags(conf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "judge=vendor/large", "--cfg", "job", "limit=3"], conf) == 0
    printed = capsys.readouterr().out
    assert "name: vendor/large" in printed
    assert "limit: 3" in printed
    assert main(["run", "--cfg", "job", "-p", "judge"], conf) == 0
    assert capsys.readouterr().out.startswith("# @package judge")
    assert main(["run", "--cfg", "job", "candidat.name=x"], conf) == 1
    assert "Did you mean 'candidate'" in said(capsys)
    handlers, level = list(logging.getLogger().handlers), logging.getLogger().level
    assert main(["run", "--info", "defaults-tree", "judge=vendor/large"], conf) == 0
    assert (logging.getLogger().handlers, logging.getLogger().level) == (handlers, level)
    assert "model@judge" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_help(conf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["--help"], ["help"]):
        assert main(words, conf) == 0
        text = capsys.readouterr().out
        assert "run     complete and judge\n" in text
        assert "plan    what a run would cost\n" in text
        assert "model       big, lacking, local, vendor/large" in text
        assert "130  interrupted" in text
        assert "bare" not in text
    assert main(["--version"], conf) == 0
    assert capsys.readouterr().out.startswith("judgebench ")
    for verb in ("run", "plan"):
        assert main([verb, "--help"], conf) == 0
        text = capsys.readouterr().out
        assert "local         The embedded model" in text
        assert "judge=local" in text
        assert "limit=null" in text
        assert "where answers are" in text
    assert main(["rank", "-h"], conf) == 0
    assert "usage: judgebench rank [RUNS …]" in capsys.readouterr().out
    assert main(["help", "forget"], conf) == 0
    assert "where={}" in capsys.readouterr().out


def test_completion(conf: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def query(line: str) -> list[str]:
        monkeypatch.setenv("COMP_LINE", line)
        assert main(["-sc", "query=bash"], conf) == 0
        return capsys.readouterr().out.split()

    assert query("judgebench r") == ["run", "plan", "rank", "forget"]
    assert query("judgebench run judge=") == [
        "judge=big",
        "judge=lacking",
        "judge=local",
        "judge=vendor/large",
    ]
    assert query("judgebench run limit=1 protocol=p") == ["protocol=pair", "protocol=point"]
    assert "candidate." in query("judgebench run cand")
    assert main(["-sc", "install=bash"], conf) == 0
    assert "-sc query=bash" in capsys.readouterr().out


def test_help_is_there_in_a_moment(tmp_path: Path) -> None:
    took = []
    for _ in range(3):
        start = time.perf_counter()
        heavy = set("hydra omegaconf yaml pandas pyarrow litellm".split())
        code = f"import sys, judgebench.cli as c; c.main(['--help']); print({heavy} & set(sys.modules))"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
        )
        took.append(time.perf_counter() - start)
        assert done.stdout.splitlines()[-1] == "set()"
    assert min(took) < 0.7


@pytest.mark.parametrize("sweep", [[], ["-m"]])
def test_ctrl_c_ends_a_process(home: Path, tmp_path: Path, sweep: list[str]) -> None:
    place = f"pathlib.Path({str(home / 'conf')!r})"
    code = f"import sys, pathlib, judgebench.cli as c; sys.exit(c.main(None, {place}))"
    command = [sys.executable, "-c", code, "run", *sweep, "candidate.name=waits", "output_dir=out"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(home), *sys.path])}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path, env=env
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"waiting\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"interrupted" in errors
    assert b"Traceback" not in errors
    job = tmp_path / "out" / "0" if sweep else tmp_path / "out"
    assert json.loads((job / "status.json").read_text())["status"] == 130


def test_a_process(home: Path, tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from judgebench.cli import main; "
        f"sys.exit(main(None, pathlib.Path({str(home / 'conf')!r})))"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(home), *sys.path]), "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, "run", "candidate.name=模型", "judge=locl"],
        capture_output=True,
        encoding="utf-8",
        cwd=tmp_path,
        env=env,
    )
    assert done.returncode == 1
    assert "Did you mean 'local'" in done.stderr
    assert done.stdout == ""


def test_our_own_conf() -> None:
    conf = conf_dir()
    for verb, line in usage.verbs(conf).items():
        assert line, f"conf/{verb}.yaml begins with no comment"
        assert usage.details(conf, verb)
    assert "judge" in usage.defaults(conf, "run")
