"""Settings of the wrong kind are refused by name, before a folder is made or anybody is asked."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

import pytest

from judgebench.cli import main
from judgebench.errors import ConfigError
from judgebench.kinds import check


@dataclass
class Part:
    size: int = 1


class Inner(TypedDict, total=False):
    mode: Literal["on", "off"] | None


class Keys(TypedDict, total=False):
    size: int | None
    inner: Inner | None


@dataclass
class Whole:
    n: int = 1
    x: float = 1.0
    maybe: int | None = None
    text: str = ""
    flag: bool = False
    word: Literal["one", "two"] = "one"
    part: Part | None = None
    parts: Sequence[Part] | Mapping[str, Part | None] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    keys: Keys | None = None
    anything: Any = None
    call: Callable[[], int] | None = None


def function(n: int, free=None) -> int:
    return n


def resolve(name: str) -> Any:
    return {"Whole": Whole, "Part": Part, "function": function}[name]


PART = {"_target_": "Part", "size": 2}


@pytest.mark.parametrize(
    "settings",
    [
        {"n": 1, "x": 1, "maybe": None, "text": "t", "flag": True, "word": "two", "part": None},
        {"x": 0.5, "maybe": 5, "part": PART, "parts": [PART], "names": {"a": "b"}, "anything": object()},
        {"parts": {"a": PART, "b": None}, "names": {"_target_": "function", "n": 1}, "call": "f"},
        {"keys": {}, "maybe": 1},
        {"keys": {"size": None, "inner": {"mode": "off"}}},
        {"unknown": 1},
    ],
)
def test_what_fits(settings):
    check({"a": {"_target_": "Whole", **settings}}, resolve)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n": "abc"}, r"a\.n='abc': a whole number is expected"),
        ({"n": 1.0}, r"a\.n=1\.0: a whole number"),
        ({"n": True}, r"a\.n=true: a whole number"),
        ({"n": None}, r"a\.n=null: a whole number"),
        ({"x": "1"}, r"a\.x='1': a number"),
        ({"maybe": "x"}, "a whole number or null"),
        ({"text": 5}, r"a text is expected. If it is a text, quote it: \"a\.text='5'\""),
        ({"flag": 0}, "true or false"),
        ({"word": "too"}, "'too' is not known. Did you mean 'two'"),
        ({"part": 5}, "Part"),
        ({"part": [PART]}, "Part"),
        ({"part": {"_target_": "Part", "size": "x"}}, r"a\.part\.size='x'"),
        ({"parts": [PART, 5]}, r"a\.parts\.1=5"),
        ({"parts": {"k": 5}}, r"a\.parts\.k=5"),
        ({"parts": "ab"}, r"a list \[A, B\] or a mapping \{NAME: VALUE\}"),
        ({"keys": 5}, r"a\.keys=5: a mapping"),
        ({"keys": {"size": "x"}}, r"a\.keys\.size='x': a whole number"),
        ({"keys": {"sise": 1}}, r"a\.keys\.sise: 'sise' is not known. Did you mean 'size'"),
        ({"keys": {"inner": {"mode": "of"}}}, r"a\.keys\.inner\.mode: 'of' is not known. Did you mean 'off'"),
        ({"keys": {"inner": {"mode": False}}}, r"a\.keys\.inner\.mode=false: a bare off"),
        ({"names": {"k": 5}}, r"a\.names\.k=5"),
        ({"text": {"a": "b" * 500}}, r"b…: a text"),
    ],
)
def test_what_does_not_fit_is_named(settings, message):
    with pytest.raises(ConfigError, match=message) as caught:
        check({"a": {"_target_": "Whole", **settings}}, resolve)
    assert len(str(caught.value)) < 200


def test_functions_and_lists_of_targets():
    check({"_target_": "function", "n": 1, "free": object()}, resolve)
    with pytest.raises(ConfigError, match=r"^list\.1\.n='x'"):
        check({"list": [1, {"_target_": "function", "n": "x"}]}, resolve)
    check({"_target_": "no.such.thing", "n": "x"}, resolve)  # told by whoever builds it


JOB = [
    "limit=1",
    "candidate=native",
    "candidate.name=starter-sound",
    "judge=server",
    "judge.name=m",
    "protocol=pairwise",
]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("judge.sampling=5", "judge.sampling=5: a mapping"),
        ("+judge.sampling.logprobs={positions:first}", "count is missing"),
        ("store=5", "store=5: a mapping"),
        ("protocol.reader=5", "protocol.reader=5"),
        ("protocol.chat=5", "protocol.chat=5: a list"),
        ("judge.engine.concurrency=abc", "judge.engine.concurrency='abc': a whole number"),
        ("judge.engine=5", "judge.engine=5"),
        ("benchmark.instructions=5", "benchmark.instructions=5"),
        ("judge.base_url=http://127.0.0.1:99999/v1", "Port out of range"),
        ("judge.base_url='http://[::1/v1'", "leads to no address"),
        ("judge.base_url=127.0.0.1/v1", "write http://HOST:PORT/v1"),
        ("ranking.confidence=abc", "ranking.confidence='abc': a number"),
        ("ranking.resamples=abc", "ranking.resamples='abc': a whole number"),
        ("ranking.resamples=0", "resamples=0 is no positive whole number"),
        ("ranking.interval=x", "Choices: analytic, bootstrap"),
        ("ranking=5", "ranking=5: a choice of this group is expected"),
        ("judge.samples=1.5", "judge.samples=1.5: a whole number"),
        ("judge.samples=abc", "judge.samples='abc': a whole number"),
        ("seed.order=abc", "seed.order='abc': a whole number or null"),
        ("seed.bootstrap=abc", "seed.bootstrap='abc': a whole number"),
        ("seed.sampling=1.5", "seed.sampling=1.5: a whole number"),
        ("+seed.ordre=1", "seed.ordre: 'ordre' is not known. Did you mean 'order'"),
        ("store.also=5", "store.also=5: a text or a list"),
        ("store.also=[a,5]", "store.also.1=5: a text"),
        ("store.mode=onyl", "store.mode: 'onyl' is not known. Did you mean 'only'"),
        ("store.completions=5", "store.completions=5: a mapping"),
        ("store.completions.mode=x", "store.completions.mode: 'x' is not known"),
        ("store.mixed=x", "store.mixed: 'x' is not known. Choices: ignore, refuse, report"),
        ("store.canary=abc", "store.canary='abc': true or false"),
        ("ranking.confidence=2", "confidence=2 is no share"),
        ("seed=5", "seed=5: a mapping"),
        ("judges=5", "judges=5: a mapping"),
        ("check_judge=abc", "true or false"),
    ],
)
def test_a_wrong_setting_of_a_run_is_one_paragraph(word, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["run", *JOB, word]) == 1
    said = capsys.readouterr().err
    assert message in said
    assert "unexpected" not in said
    assert len(said.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_columns_of_a_benchmark_are_a_mapping(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["run", *JOB, "benchmark=files", "benchmark.path=x.csv", "benchmark.columns=5"]) == 1
    assert "benchmark.columns=5: a mapping" in capsys.readouterr().err


def test_a_negative_seed_of_the_ranking_is_refused_before_anybody_is_asked(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    # Nothing listens: a run that asked first would say so.
    assert main(["run", *JOB, "judge.base_url=http://127.0.0.1:9/v1", "seed.bootstrap=-1"]) == 1
    assert "seed.bootstrap=-1: a whole number from 0 on is expected" in capsys.readouterr().err
