"""`judgebench run` as people use it: real verbs, real engines, a loopback server, real files."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest
from fakes import on_loop
from judging import THINK, answer, is_judging, says, thinking
from servers import Fault, reply_to, serving

from judgebench.cli import invoke, main
from judgebench.engine.openai import OpenAI
from judgebench.reasoning import split_reasoning
from judgebench.request import Connection, Descriptor, Request, Subject, messages_input
from judgebench.stage import fill
from judgebench.store import RoleRoot

ENGINES = ("openai", "litellm")
VENDORS = ("aiohttp", "litellm", "openai", "httpx", "xllamacpp")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """No store, key or data of the machine's user."""
    monkeypatch.chdir(tmp_path)
    for name in ("JUDGEBENCH_STORE", "JUDGEBENCH_DATA", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def words(url, *more):
    """Overrides of a small run whose candidate and judge the server answers; later ones win."""
    common = [
        "benchmark=starter", "limit=8", "protocol=pairwise", "store.root=store",
        "candidate=server", "candidate.name=cand", f"candidate.base_url={url}",
        "judge=server", "judge.name=jud", f"judge.base_url={url}",
        "store.canary=false",
    ]  # fmt: skip
    keys = {word.partition("=")[0] for word in more}
    return [*(word for word in common if word.partition("=")[0] not in keys), *more]


def run(url, *more):
    return main(["run", *words(url, *more)])


def table(folder, name):
    return pd.read_parquet(Path(folder) / f"{name}.parquet")


def recorded(folder):
    return json.loads((Path(folder) / "run.json").read_text())


def stored(role, columns, store="store"):
    """Rows of all live databases of a role."""
    rows = []
    for path in sorted(Path(store, role).glob(f"*/*/*/{role}.db")):
        with closing(sqlite3.connect(path)) as db:
            rows += db.execute(f"SELECT {columns} FROM responses WHERE origin = 'paid'").fetchall()
    return sorted(rows)


# --- two engines, one store --------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["pairwise", "pairwise_logprob"])
def test_two_engines_give_the_same_rows_and_hit_each_others(protocol):
    plan = says(answer) if protocol == "pairwise" else None
    with serving(plan=plan, labels=("A", "B") if plan is None else ()) as server:
        for engine in ENGINES:
            more = (f"protocol={protocol}", f"engine={engine}", f"store.root=of-{engine}")
            assert run(server.url, *more, f"output_dir={engine}") == 0
            calls = server.count
            other = ENGINES[1 - ENGINES.index(engine)]
            more = (f"protocol={protocol}", f"engine={other}", f"store.root=of-{engine}")
            assert run(server.url, *more, f"output_dir={engine}-again") == 0
            assert server.count == calls, "rows written by one engine are hits for the other"
    for name in ("completions", "verdicts", "check_verdicts", "leaderboard", "metrics", "judge_check"):
        one, *others = (table(folder, name) for folder in (*ENGINES, *(f"{e}-again" for e in ENGINES)))
        for other in others:
            pd.testing.assert_frame_equal(one, other)
    columns = (
        "input_hash, sample, input_text, output, reasoning, finish_reason, top_logprobs, served_model, "
        "fingerprint, input_tokens, output_tokens"
    )
    for role in ("completions", "judgements"):
        rows = stored(role, columns, "of-openai")
        assert rows
        assert rows == stored(role, columns, "of-litellm")
    if protocol == "pairwise_logprob":
        assert all(json.loads(row[6]) for row in rows)


def test_think_blocks_are_split_off_before_judging_and_reading():
    with serving(plan=says(thinking)) as server:
        for engine in ENGINES:
            assert run(server.url, f"engine={engine}", f"store.root=of-{engine}", f"output_dir={engine}") == 0
        prompts = [json.dumps(body) for body in server.bodies if is_judging(body)]
    assert prompts
    assert not any("let me look again" in prompt for prompt in prompts)
    answers = []
    for engine in ENGINES:
        outputs = table(engine, "completions").query("model == 'cand'").output
        answers.append([split_reasoning(output).answer for output in outputs])
    assert answers[0] == answers[1]
    assert all(text.startswith("An answer") for text in answers[0])
    raw = stored("completions", "output, input_hash", "of-openai")
    assert all(output.startswith(THINK) for output, _ in raw), "what is kept is what was received"
    one, other = (table(engine, "verdicts") for engine in ENGINES)
    pd.testing.assert_frame_equal(one, other)
    assert one.preference.notna().all()


# --- bad input ---------------------------------------------------------------------------------------


def files(*outputs, path="q.csv"):
    return ("benchmark=files", f"benchmark.path={path}", f"benchmark.outputs=[{','.join(outputs)}]")


MISTAKES = {
    "override": (["limmit=3"], "limmit", "'limit'", "--help"),
    "override in a role": (["judge.nmae=x"], "nmae", "'name'", "--help"),
    "model": (["candidate=gtp-4.1"], "gtp-4.1", "'gpt-4.1'", "--config-dir"),
    "protocol": (["protocol=pairwize"], "pairwize", "'pairwise'", "--config-dir"),
    "store mode": (["store.mode=often"], "often", "use", "only"),
    "limit": (["limit=0"], "limit=0", "at least 1", "null for all"),
    "shipped model": (["baseline.name=starter-sond"], "starter-sond", "starter-sound", "baseline.name="),
    "file": (files("left", path="p.csv"), "p.csv", "q.csv", "path"),
    "column of instructions": (files("left", path="w.csv"), "w.csv", "prompt, left", "columns.instruction="),
    "column of outputs": ([*files("left", "wrong"), "baseline.name=wrong"], "wrong", "q.csv", "left, right"),
    "baseline": ([*files("left"), "benchmark.baseline=lfet"], "lfet", "left", "baseline.name="),
    "empty benchmark": (files("left", path="e.csv"), "e.csv", "no instructions", "column instruction"),
    "no key": (["judge.api_key_env=NO_SUCH_KEY"], "NO_SUCH_KEY", "not set", "export"),
    "nobody there": (["judge.base_url=http://127.0.0.1:9/v1"], "127.0.0.1:9", "jud", "Start the server"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_bad_input_is_one_paragraph_with_value_choices_and_way_out(mistake, tmp_path, capsys):
    Path("q.csv").write_text("instruction,left,right\nHi,a,b\nHow,c,d\n")
    Path("w.csv").write_text("prompt,left\nHi,a\n")
    Path("e.csv").write_text("instruction,left\n")
    typed, *told = MISTAKES[mistake]
    with serving(plan=says(answer)) as server:
        status = run(server.url, *typed)
        calls = server.count
        said = capsys.readouterr().err
        assert status == 1
        assert len(said.strip().splitlines()) == 1, said
        assert "Traceback" not in said
        for part in told:
            assert part in said, said
        # Nothing is lost: what was answered before is not asked again.
        assert calls == len(stored("completions", "input_hash, sample")) + len(
            stored("judgements", "input_hash, sample")
        )
        assert run(server.url) == 0
        asked = {json.dumps(body["messages"]) for body in server.bodies}
        assert len(asked) == server.count


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("status", "error", "told"),
    [
        (401, "Incorrect API key provided", ["auth", "api_key_env"]),
        (404, "The model `cand` does not exist", ["does not exist", "name and base_url"]),
        (402, "You exceeded your current quota", ["quota", "run again"]),
    ],
)
def test_what_every_request_would_meet_is_one_paragraph(engine, status, error, told, capsys):
    code = "insufficient_quota" if status == 402 else None
    fault = Fault(429 if code else status, {"error": {"message": error, "code": code}})
    with serving(plan=lambda number, body: fault) as server:
        assert run(server.url, f"engine={engine}") == 1
        assert server.count == 1, "the preflight alone is sent"
    said = capsys.readouterr().err
    assert len(said.strip().splitlines()) == 1
    for part in ("cand", *told):
        assert part in said


def test_a_judge_that_never_gives_a_verdict(capsys):
    def mute(body):
        return "I would rather not say." if is_judging(body) else answer(body)

    with serving(plan=says(mute)) as server:
        assert run(server.url, "output_dir=mute") == 3
        told = capsys.readouterr()
        calls = server.count
        (line,) = [line for line in told.err.splitlines() if "verdict" in line]
        for part in ("'jud'", "none of 32 replies", "'pairwise'", "pairwise_logprob", "judge=NAME", "stored"):
            assert part in line
        assert "nan" not in told.out
        (row,) = table("mute", "leaderboard").to_dict("records")
        assert (row["n_total"], row["coverage"]) == (0, 0.0)
        assert pd.isna(row["win_rate"])
        assert table("mute", "verdicts").preference.isna().all()
        assert run(server.url, "output_dir=mute") == 3
        assert server.count == calls, "unreadable replies are stored all the same"


# --- secrets -----------------------------------------------------------------------------------------

KEY = "correct-horse/battery+staple=9911"


def test_b114_a_flood_of_empty_answers_stops_before_judging(capsys):
    """Two good ones first, so that nothing looks broken from the start."""

    def plan(number, body):
        if is_judging(body):
            return says(answer)(number, body)
        return None if number < 2 else {"choices": [{"message": {"content": ""}, "finish_reason": "stop"}]}

    with serving(plan=plan) as server:
        common = ("engine=openai", "engine.concurrency=1", "limit=30", "check_judge=false")
        assert run(server.url, *common, "output_dir=flood") == 1
        told = capsys.readouterr().err
        assert "cand: 28 of 30 answers failed (28 empty)" in told
        assert "max_failed=1" in told
        assert not any(is_judging(body) for body in server.bodies)
        assert recorded("flood")["status"] == "failed: EngineError"
        assert len(stored("completions", "output")) == 2
        server.count = 0
        assert run(server.url, *common, "max_failed=1", "output_dir=forced", "store.root=new") == 3
        assert sum(is_judging(body) for body in server.bodies) == 4


def holding(folder, secret):
    return [path for path in folder.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("debug", ["0", "1"])
@pytest.mark.parametrize("status", [200, 400, 401, 500])
def test_a_key_is_in_no_file_and_no_message(engine, debug, status, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("SOME_API_KEY", KEY)
    monkeypatch.setenv("JUDGEBENCH_DEBUG", debug)
    seen = []

    def echo(number, body):
        seen.append(server.headers[-1]["Authorization"])
        if number % 3 == 0 and status in (200, 400):
            return reply_to(body)
        headers = dict(server.headers[-1])
        text = f"<html>{headers}</html>"
        return Fault(status, text if status == 200 else {"error": {"message": f"you sent {headers}"}})

    with serving(plan=echo) as server:
        more = ("candidate.api_key_env=SOME_API_KEY", f"engine={engine}", "engine.max_attempts=1")
        assert run(server.url, *more, "judge.api_key_env=SOME_API_KEY", "output_dir=out") != 0
    assert set(seen) == {f"Bearer {KEY}"}, "the key is sent"
    told = capfd.readouterr()
    assert KEY not in told.out + told.err
    assert list(Path("store").rglob("*.db"))
    assert Path("out/run.json").is_file()
    assert holding(tmp_path, KEY) == []


def test_a_key_among_the_overrides_is_refused(tmp_path, capsys):
    assert run("http://127.0.0.1:9/v1", f"+judge.api_key={KEY}") == 1
    told = capsys.readouterr()
    assert "api_key_env" in told.err
    assert KEY not in told.out + told.err
    assert holding(tmp_path, KEY) == []


# --- sweeps ------------------------------------------------------------------------------------------


def test_a_sweep_survives_a_failing_job(capsys):
    def plan(number, body):
        if body["model"] == "bad":
            return Fault(404, {"error": {"message": "The model `bad` does not exist"}})
        return says(answer)(number, body)

    with serving(plan=plan) as server:
        more = ("candidate.name=bad,good,better", "output_dir=out")
        assert main(["run", "-m", *words(server.url, *more)]) == 1
    told = capsys.readouterr()
    assert "2 of 3 started jobs" in told.err
    assert re.search(r"Job 0 failed: .*candidate\.name=bad.*does not exist", told.err)
    assert "Traceback" in Path("out/0/log.txt").read_text()
    assert "Traceback" not in told.err
    assert sorted(table("out", "leaderboard").model) == ["better", "good"]
    assert set(table("out", "metrics").model) == {"better", "good"}
    for number in (1, 2):
        assert len(table(f"out/{number}", "verdicts")) == 16
    statuses = [job["status"] for job in json.loads(Path("out/sweep.json").read_text())["jobs"]]
    assert statuses == [1, 0, 0]


# --- interrupts --------------------------------------------------------------------------------------


def started(url, *more):
    return subprocess.Popen(
        [sys.executable, "-m", "judgebench.cli", "run", *words(url, *more)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(true, timeout_s=60):
    end = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.01)


def test_the_first_interrupt_keeps_what_is_in_flight():
    with serving(plan=says(answer), latency_s=0.3) as server:
        process = started(server.url, "engine=openai", "engine.concurrency=3", "output_dir=out")
        wait_for(lambda: server.count >= 5)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=30)
        calls = server.count
        assert process.returncode == 130, told
        assert "in flight are kept" in told
        assert "again to go on" in told
        assert 5 <= calls <= 9
        assert len(stored("completions", "input_hash, sample")) == calls, "all in flight were kept"
        assert recorded("out")["status"] == "interrupted"
        server.latency_s = 0
        assert run(server.url, "output_dir=out") == 0
        assert server.count == 8 + 32, "nothing was asked twice"
        assert recorded("out")["completions"]["hits"] >= calls


def test_the_second_interrupt_leaves_at_once():
    with serving(plan=lambda number, body: Fault(kind="stall", stall_s=60)) as server:
        process = started(server.url)
        wait_for(lambda: server.count >= 1)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        first = process.stderr.readline()
        assert "again to leave at once" in first
        assert process.poll() is None
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        told = process.communicate(timeout=30)[1]
        assert time.monotonic() - began < 15  # GRACE_S is 20, the stall 60
    assert process.returncode == 130
    assert "everything stored is safe" in told


# --- many hits, few misses ---------------------------------------------------------------------------


def asks(url, numbers):
    descriptor, connection = Descriptor("vllm", "m"), Connection(url)
    for number in numbers:
        text = messages_input([{"role": "user", "content": f"{number} " + "word " * 40}])
        yield Request(descriptor, connection, text, Subject("b", str(number), 0, "x", "y"), 0, number)


def filled(url, numbers, store):
    """Seconds and outcomes by number."""
    outcomes = {}

    async def work():
        root = RoleRoot(Path(store), "judgements", "run")
        try:
            return await fill(
                asks(url, numbers),
                store=root,
                engine_of=lambda _: OpenAI(concurrency=64),
                deliver=lambda batch: outcomes.update((r.tag, result.output) for r, result in batch),
            )
        finally:
            root.close()

    began = time.monotonic()
    tally = on_loop(work(), 120)
    return time.monotonic() - began, outcomes, tally


def test_scattered_misses_take_as_long_as_the_misses_alone():
    numbers = range(10_000)
    missing = [number for number in numbers if number % 100 == 37]
    with serving() as server:
        server.keep = False
        known = [number for number in numbers if number % 100 != 37]
        filled(server.url, known, "store")
        server.latency_s = 0.5
        alone, expected, _ = filled(server.url, missing, "apart")
        lookup, *_ = filled(server.url, known, "store")
        server.most_in_flight = 0
        calls = server.count
        mixed, outcomes, tally = filled(server.url, numbers, "store")
        assert server.count - calls == tally.calls == 100
        assert tally.hits == 9_900
        # A stage that waited for the misses of each chunk would have two or three in flight.
        assert server.most_in_flight >= 16
    assert len(outcomes) == 10_000
    assert {number: outcomes[number] for number in missing} == expected
    assert mixed < 10 * (alone + lookup), "an order of magnitude; the figure is in the bench"


# --- plan --------------------------------------------------------------------------------------------


def planned(url, *more):
    lines = invoke("plan", words(url, *more)).result
    return {line.stage: line for line in lines if line.misses or line.at_most or line.hits}


def test_a_plan_says_what_the_run_then_asks():
    with serving(plan=says(answer)) as server:
        before = planned(server.url)
        assert server.count == 0
        asked = sum(line.misses for line in invoke("plan", words(server.url)).result)
        at_most = sum(line.at_most for line in invoke("plan", words(server.url)).result)
        assert before["judgements"].misses == 16, "pairs with a known better answer can be rendered"
        assert at_most == 16
        assert run(server.url, "output_dir=out") == 0
        assert asked <= server.count <= asked + at_most
        spent = recorded("out")
        assert spent["completions"]["calls"] + spent["judgements"]["calls"] == server.count + 16  # shipped
        # With every answer there, the number is exact.
        more = ("protocol=pointwise",)
        asked = sum(line.misses for line in invoke("plan", words(server.url, *more)).result)
        calls = server.count
        run(server.url, *more, "output_dir=points")
        assert server.count - calls == asked > 0
        after = invoke("plan", words(server.url)).result
        assert [line.misses for line in after] == [0] * len(after)
        assert not any(line.at_most for line in after)


def test_a_plan_imports_no_vendor():
    script = (
        "import sys; from judgebench.cli import main; status = main(sys.argv[1:]); "
        f"print('IMPORTED', [name for name in {VENDORS!r} if name in sys.modules]); sys.exit(status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "plan", *words("http://127.0.0.1:9/v1")],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "COLUMNS": "120"},
    )
    assert done.returncode == 0, done.stderr
    assert "IMPORTED []" in done.stdout
    assert "24 calls, and at most 16 more" in done.stdout
