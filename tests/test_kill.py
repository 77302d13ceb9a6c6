"""SIGKILL at any instant of a cold run: nothing stored is asked again, nothing else is lost, same result.

The server runs in a process of its own and notes every call before it answers. Each run is a process of its
own too (from a fork server that has imported us, since ten starts of an interpreter take as long as all
the rest); it notes what it asks and what comes in. Notes are unbuffered writes, which survive a SIGKILL.
"""

import asyncio
import json
import multiprocessing
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.request
from contextlib import closing, contextmanager
from pathlib import Path

from judging import answer, says
from servers import Server, forever

from judgebench.cli import main
from judgebench.engine import Response
from judgebench.engine.openai import OpenAI
from judgebench.request import digest, messages_input

IN_FLIGHT = 16
LATENCY_S = 0.004
HEAVY = bool(os.environ.get("JUDGEBENCH_HEAVY"))
KILLS, LIMIT = (50, 112) if HEAVY else (10, 56)
ROLES = ("completions", "judgements")
TABLES = ("completions", "verdicts", "check_verdicts", "leaderboard", "metrics", "judge_check")

spawner = multiprocessing.get_context("forkserver")


def note(file, *words):
    """One line, in one write: it is there even if the next thing that happens is a SIGKILL."""
    os.write(file, (" ".join(map(str, words)) + "\n").encode())


def notes(path):
    return [line.split() for line in path.read_text().splitlines()]


def serve(trace):
    file = os.open(trace, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    reply = says(answer)

    def plan(number, body):  # called when the answer is about to be sent
        note(file, digest(messages_input(body["messages"])))
        return reply(number, body)

    server = Server(latency_s=LATENCY_S, plan=plan)
    server.keep = False
    asyncio.run(forever(server))


@contextmanager
def serving(trace):
    """The base URL of a server process."""
    command = [sys.executable, __file__, str(trace)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def work(url, store, out, trace):
    """A run in a process of its own; its exit code is the run's."""
    file = os.open(trace, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    run = OpenAI.run

    async def traced(self, requests):
        async def pulled():
            async for request in requests:
                note(file, time.monotonic(), "asked", request.input_hash)
                yield request

        async for event in run(self, pulled()):
            assert isinstance(event, Response)
            note(file, time.monotonic(), "came", event.request.input_hash)
            yield event

    OpenAI.run = traced
    words = [
        "run", f"store.root={store}", f"output_dir={out}",
        "benchmark=starter", f"limit={LIMIT}", "protocol=pairwise",
        "candidate=server", "candidate.name=cand", f"candidate.base_url={url}", "candidate.endpoint_id=e",
        "judge=server", "judge.name=jud", f"judge.base_url={url}", "judge.endpoint_id=e",
        "engine=openai", f"engine.concurrency={IN_FLIGHT}", "store.canary=false",
    ]  # fmt: skip
    os._exit(main(words))


def start(*facts):
    process = spawner.Process(target=work, args=facts)
    process.start()
    return process


def finish(process):
    process.join(60)
    assert process.exitcode == 0
    process.close()


def stored(store):
    """The input hashes of the paid answers, each once."""
    found = []
    for role in ROLES:
        for path in Path(store, role).glob(f"vllm/*/*/{role}.db"):
            with closing(sqlite3.connect(path)) as db:
                if db.execute("PRAGMA user_version").fetchone() == (0,):
                    continue  # killed before its first transaction
                found += [row[0] for row in db.execute("SELECT input_hash FROM responses")]
                assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
                loose = (
                    "SELECT count(*) FROM responses WHERE input_hash NOT IN (SELECT input_hash FROM subjects)"
                )
                assert db.execute(loose).fetchone() == (0,), "an answer and its subject are one transaction"
    assert len(found) == len(set(found))
    return set(found)


def calls(url):
    with urllib.request.urlopen(f"{url.removesuffix('/v1')}/stats", timeout=10) as reply:
        return json.load(reply)["count"]


def bytes_of(out):
    return {name: Path(out, f"{name}.parquet").read_bytes() for name in TABLES}


def test_a_kill_loses_what_was_in_flight_and_nothing_else(tmp_path):
    spawner.set_forkserver_preload(["judgebench.verbs", "judgebench.dispatch", "aiohttp", "servers"])
    server_trace = tmp_path / "server.txt"
    with serving(server_trace) as url:
        finish(start(url, tmp_path / "store", tmp_path / "whole", tmp_path / "whole.txt"))
        expected = bytes_of(tmp_path / "whole")
        everything = stored(tmp_path / "store")
        total = calls(url)
        assert total == len(everything) > (500 if HEAVY else 250)
        killed_between, lost_by_any = set(), set()
        for number in range(KILLS):
            draw = random.Random(number)
            store, out = tmp_path / f"store-{number}", tmp_path / f"out-{number}"
            before, instant = calls(url), draw.randrange(1, total)
            process = start(url, store, out, tmp_path / f"cold-{number}.txt")
            while calls(url) - before < instant and process.is_alive():
                time.sleep(0.001)
            time.sleep(draw.random() * 0.06)  # anywhere within a commit group
            os.kill(process.pid, signal.SIGKILL)
            process.join(20)
            assert process.exitcode in (-signal.SIGKILL, 0)
            process.close()
            while len(notes(server_trace)) < calls(url):  # what it still has to answer; nobody reads it
                time.sleep(0.01)
            answered = {line[0] for line in notes(server_trace)[before:]}
            kept = stored(store)
            killed_between.add(len(kept) * 4 // total)
            lost_by_any |= answered - kept
            lost_at_most_what_was_open(answered - kept, kept, notes(tmp_path / f"cold-{number}.txt"))

            before = calls(url)
            finish(start(url, store, out, tmp_path / f"warm-{number}.txt"))
            asked = [line[0] for line in notes(server_trace)[before:]]
            assert sorted(asked) == sorted(everything - kept), "asks what is missing, once, and nothing else"
            assert bytes_of(out) == expected
            shutil.rmtree(store)
    assert len(killed_between) > 1, "the instants were spread over the run"
    assert lost_by_any, "and within it, not after it"


def test_two_runs_started_together_buy_each_answer_once(tmp_path):
    """And where one is killed, the other takes over what it had claimed, at once."""
    spawner.set_forkserver_preload(["judgebench.verbs", "judgebench.dispatch", "aiohttp", "servers"])
    server_trace = tmp_path / "server.txt"
    with serving(server_trace) as url:
        finish(start(url, tmp_path / "store", tmp_path / "whole", tmp_path / "whole.txt"))
        expected, total = bytes_of(tmp_path / "whole"), calls(url)
        for killed in (False, True):
            store, before = tmp_path / f"store-{killed}", calls(url)
            outs = [tmp_path / f"out-{killed}-{number}" for number in range(2)]
            processes = [start(url, store, out, tmp_path / f"{out.name}.txt") for out in outs]
            if killed:
                while calls(url) - before < total // 3:
                    time.sleep(0.001)
                os.kill(processes[0].pid, signal.SIGKILL)
                processes.pop(0).join(20)
                outs.pop(0)
            for process in processes:
                finish(process)
            asked = [line[0] for line in notes(server_trace)[before:]]
            assert len(set(asked)) == total
            # What the killed one had in flight is asked again, and nothing else.
            assert len(asked) - total <= (3 * IN_FLIGHT if killed else 0)
            assert all(bytes_of(out) == expected for out in outs)
            shutil.rmtree(store)


def lost_at_most_what_was_open(lost, kept, trace):
    """By the client's own trace: in flight, or come in since the last commit."""
    asked = {key for _, what, key in trace if what == "asked"}
    came = {key: float(at) for at, what, key in trace if what == "came"}
    in_flight = asked - came.keys()
    uncommitted = came.keys() - kept
    assert kept <= came.keys()
    assert lost <= in_flight | uncommitted
    assert len(in_flight) <= 2 * IN_FLIGHT  # at the provider, or read and being handed over
    if uncommitted:
        # The group was open 50 ms; a slow disk commits for a while. An order of magnitude for both.
        assert float(trace[-1][0]) - min(came[key] for key in uncommitted) < 1.0
    assert len(lost) <= len(in_flight) + len(uncommitted)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
