"""The litellm engine: the same rows as `openai` where both reach, and its traps held off."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from fakes import collect, ends, feed, on_loop, request, tries
from servers import Fault, serving

from judgebench.engine import Failure, Response
from judgebench.engine.litellm import LiteLLM
from judgebench.engine.openai import OpenAI
from judgebench.errors import ConfigError, EngineError
from judgebench.request import Request

QUICK = LiteLLM(max_attempts=3, max_wait_s=0.01, timeout_s=10)
BOTH = (OpenAI(max_attempts=3, max_wait_s=0.01, timeout_s=10), QUICK)


def row(event: Any) -> dict[str, Any]:
    """What would be stored of an event, less the time it took."""
    names = "output finish_reason reasoning top_logprobs served_model fingerprint usage cost_usd reason"
    return {name: getattr(event, name, None) for name in names.split()}


MESSAGES: dict[str, dict[str, Any]] = {
    "plain": {"content": "A"},
    "think": {"content": "<think>x</think>A"},
    "nested think": {"content": "<think>x <think>[[A]]</think> y</think>[[B]]"},
    "other tag": {"content": "<thinking>x</thinking>A"},
    "unclosed": {"content": "<think>x"},
    "own field": {"content": "A", "reasoning_content": "x"},
    "own field, other name": {"content": "A", "reasoning": "x"},
    "field and block": {"content": "<think>y</think>A", "reasoning_content": "x"},
    "refusal": {"content": None, "refusal": "No."},
    "empty": {"content": ""},
}


@pytest.mark.parametrize("provider", ["openai", "vllm", "some-cloud"])
@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
def test_the_same_server_gives_the_same_rows(message: dict[str, Any], provider: str) -> None:
    """The text stays as it was sent, leading think blocks in place, whatever litellm split off."""
    reply = {
        "id": "1",
        "object": "chat.completion",
        "created": 1,
        "model": "m-0613",
        "system_fingerprint": "fp",
        "choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": None}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12},
    }
    with serving(plan=lambda number, body: reply) as server:
        one = request(url=server.url, provider=provider, price=(1.0, 2.0))
        ours, theirs = (row(collect(engine, [one])[-1]) for engine in BOTH)
    assert ours == theirs


@pytest.mark.parametrize("provider", ["openai", "vllm", "some-cloud"])
@pytest.mark.parametrize("chat", [True, False], ids=["chat", "text"])
def test_the_same_body_and_logprobs(provider: str, chat: bool) -> None:
    with serving() as server:
        one = request(
            url=server.url, provider=provider, chat=chat, sample=2, seed=5, temperature=0, max_tokens=4,
            stop=["x"], logprobs={"count": 3, "positions": "all"}, grammar="g", extra_body={"top_k": 5},
        )  # fmt: skip
        ours, theirs = (row(collect(engine, [one])[-1]) for engine in BOTH)
        assert server.bodies[0] == server.bodies[1]
        assert server.paths[0] == server.paths[1]
    assert ours == theirs
    assert ours["top_logprobs"]


def test_llama_cpp_gives_chat_logprobs_in_text_replies() -> None:
    top = {"token": "A", "logprob": -0.1, "bytes": [65]}
    content = [{**top, "top_logprobs": [top]}]
    reply = {
        "id": "1", "object": "text_completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "text": "A", "finish_reason": "stop", "logprobs": {"content": content}}],
    }  # fmt: skip
    with serving(plan=lambda number, body: reply) as server:
        one = request(url=server.url, chat=False, logprobs=1)
        ours, theirs = (row(collect(engine, [one])[-1]) for engine in BOTH)
    assert ours == theirs
    assert ours["top_logprobs"]


FAULTS: list[tuple[Fault, str, int]] = [
    (
        Fault(429, {"error": {"code": "rate_limit_exceeded", "message": "slow"}}, {"Retry-After": "0"}),
        "rate_limited",
        3,
    ),
    (Fault(429, {"error": {"message": "slow"}}, {"Retry-After": "3600"}), "rate_limited", 1),
    (Fault(500, {"error": {"message": "x"}}), "server", 3),
    (Fault(503, {"error": {"message": "x"}}), "server", 3),
    (Fault(kind="drop"), "server", 3),
    (Fault(200, "<html>"), "malformed", 3),
    (Fault(200, '{"a":' * 100_000), "malformed", 3),
    (Fault(kind="stall"), "timeout", 2),
    (
        Fault(400, {"error": {"code": "context_length_exceeded", "message": "maximum context length is 9"}}),
        "context_overflow",
        1,
    ),
    (Fault(400, {"error": {"code": "content_filter", "message": "was filtered"}}), "content_filter", 1),
    (Fault(400, {"error": {"code": "x", "message": "strange role"}}), "bad_request", 1),
]


@pytest.mark.parametrize("provider", ["openai", "vllm"])
@pytest.mark.parametrize(("fault", "reason", "count"), FAULTS)
def test_its_errors_become_ours_and_its_retries_are_off(
    fault: Fault, reason: str, count: int, provider: str
) -> None:
    engine = LiteLLM(max_attempts=count, max_wait_s=0.01, timeout_s=0.5 if fault.kind == "stall" else 10)
    with serving(plan=lambda number, body: fault) as server:
        events = collect(engine, [request(url=server.url, provider=provider)])
        assert server.count == count
    assert isinstance(events[-1], Failure)
    assert events[-1].reason == reason
    assert len(tries(events)) == count - 1
    assert "litellm" not in events[-1].detail or reason in ("context_overflow", "content_filter", "malformed")


@pytest.mark.parametrize("provider", ["openai", "vllm"])
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault(401, {"error": {"message": "Incorrect API key provided: sk-secret-1"}}), "Incorrect API key"),
        (
            Fault(429, {"error": {"code": "insufficient_quota", "message": "see insufficient_quota"}}),
            "Top up",
        ),
        (
            Fault(404, {"error": {"code": "model_not_found", "message": "model x not found"}}),
            "model x not found",
        ),
    ],
)
def test_what_stops_the_run_at_once(
    fault: Fault, words: str, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", "sk-secret-1")
    with serving(plan=lambda number, body: fault) as server:
        with pytest.raises(EngineError, match=words) as raised:
            collect(
                QUICK, [request(str(k), url=server.url, provider=provider, key="SOME_KEY") for k in range(9)]
            )
        assert server.count == 1
    assert "sk-secret-1" not in f"{raised.value!r} {raised.value.__context__!r} {raised.value.__cause__!r}"


@pytest.mark.parametrize("provider", ["openai", "vllm"])
def test_a_server_that_is_down_is_named(provider: str) -> None:
    with serving() as server:
        url = server.url
    with pytest.raises(EngineError, match=url) as raised:
        collect(QUICK, [request(url=url, provider=provider)])
    assert "cannot be reached: connection refused. Start the server" in str(raised.value)


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # as `load` has it
@pytest.mark.parametrize("provider", ["openai", "vllm"])
@pytest.mark.parametrize(
    "odd",
    [
        {"model": {"x": 1}},
        {"model": "m\ud800"},
        {"usage": {"prompt_tokens": 10**30, "completion_tokens": 1}},
        {"usage": {"prompt_tokens": "12", "completion_tokens": "3"}},
        {"usage": {"prompt_tokens": 5, "prompt_tokens_details": [1]}},
        {"system_fingerprint": ["x"]},
        {"choices": [{"message": {"content": 5}}]},
        {"choices": [{"message": {"content": [{"type": "text", "text": "A"}]}}]},
        {"choices": [{"message": {"content": "A", "reasoning_content": {"a": 1}}}]},
        {"choices": [{"message": {"content": "A"}, "logprobs": [1], "finish_reason": {"a": 1}}]},
        {"choices": [{"message": "A"}]},
        {"choices": [{"text": 5}]},
        {"choices": [{"text": "A"}]},
        {"choices": {"0": 1}},
    ],
)
def test_an_odd_field_costs_no_more_than_with_openai(odd: dict[str, Any], provider: str) -> None:
    """A field that litellm cannot translate may be one that is not needed."""
    reply = {"choices": [{"message": {"content": "A"}, "finish_reason": "stop"}], **odd}
    with serving(plan=lambda number, body: reply) as server:
        one = request(url=server.url, provider=provider, price=(1.0, 2.0))
        ours, theirs = (row(collect(engine, [one])[-1]) for engine in BOTH)
    assert ours == theirs


def test_a_key_is_hidden_before_the_text_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "sk-secret-1")
    for fault in (
        Fault(400, {"error": {"message": "x" * 493 + "sk-secret-1"}}),
        Fault(200, {"choices": [{"message": {"content": None, "refusal": "no, sk-secret-1"}}]}),
    ):
        with serving(plan=lambda number, body, fault=fault: fault) as server:
            (event,) = collect(QUICK, [request(url=server.url, key="SOME_KEY")])
        assert isinstance(event, Failure)
        assert "sk-sec" not in f"{event.detail} {event.output}"
        assert "***" in f"{event.detail} {event.output}"


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"provider": "openai", "model": "gpt-5", "temperature": 0}, "temperature"),
        ({"provider": "openai", "model": "o3", "logprobs": 5}, "logprobs"),
        ({"provider": "anthropic", "model": "claude-sonnet-4-5", "seed": 1}, "seed"),
        (
            {"provider": "anthropic", "model": "claude-sonnet-4-5", "mock_response": "A"},
            "mock_response",
        ),
    ],
)
def test_what_a_provider_does_not_take_raises_before_the_call(options: dict[str, Any], name: str) -> None:
    with serving() as server:
        with pytest.raises(ConfigError, match=name):
            collect(QUICK, [request(url=server.url, **options)])
        assert server.count == 0


def test_an_unknown_provider_without_base_url_is_refused() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'anthropic'"):
        collect(QUICK, [request(provider="antropic")])


def test_a_native_provider() -> None:
    reply = {
        "id": "1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5",
        "content": [{"type": "text", "text": "<think>x</think>A"}], "stop_reason": "max_tokens",
        "usage": {"input_tokens": 200, "cache_read_input_tokens": 800, "output_tokens": 4},
    }  # fmt: skip
    with serving(plan=lambda number, body: reply) as server:
        one = request(url=server.url, provider="anthropic", model="claude-sonnet-4-5", max_tokens=4)
        (event,) = collect(QUICK, [one])
    assert isinstance(event, Response)
    assert (event.finish_reason, event.usage.input, event.usage.cached) == ("length", 1000, 800)
    assert event.cost_usd is not None
    assert event.cost_usd > 0
    assert event.output.endswith("A")


def test_nothing_of_the_environment_redirects_or_leaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """B67: a key or an address that the environment holds for another server is not used for this one."""
    with serving() as server, serving() as other:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-of-openai")
        monkeypatch.setenv("OPENAI_BASE_URL", other.url)
        monkeypatch.setenv("OPENAI_API_BASE", other.url)
        monkeypatch.setenv("HOSTED_VLLM_API_KEY", "sk-of-vllm")
        asks = [request(url=server.url, provider=provider) for provider in ("openai", "vllm", "some-cloud")]
        assert len(ends(collect(QUICK, asks))) == 3
        assert other.count == 0
        assert "sk-of" not in str(server.headers)


def test_b67_two_servers_in_one_run_see_only_their_model() -> None:
    with serving() as one, serving() as other:
        asks = [request(str(k), url=one.url, model="m1") for k in range(10)]
        asks += [request(str(k), url=other.url, model="m2", provider="openai") for k in range(10)]
        assert len(ends(collect(QUICK, asks))) == 20
        assert {body["model"] for body in one.bodies} == {"m1"}
        assert {body["model"] for body in other.bodies} == {"m2"}


def test_two_runs_at_once_and_one_after_the_other() -> None:
    """The library's clients are shared: the run that ends first may not close them for the other."""

    async def work(asks: Callable[[int], list[Request]]) -> int:
        slow = QUICK.run(feed(asks(20)))
        count = int(isinstance(await anext(slow), Response))
        count += len([event async for event in QUICK.run(feed(asks(2))) if isinstance(event, Response)])
        return count + len([event async for event in slow if isinstance(event, Response)])

    with serving(latency_s=0.02) as server:

        def asks(count: int) -> list[Request]:
            return [request(str(k), url=server.url) for k in range(count)]

        for _ in range(2):
            assert on_loop(work(asks)) == 22


def test_the_import_is_quiet_and_is_the_vendors(tmp_path: Any) -> None:
    """No warning, no word on stderr, no `.env` read, no exit that takes a second."""
    (tmp_path / ".env").write_text("LEAKED_BY_DOTENV=1\n")
    code = """
import warnings; warnings.simplefilter("error")
import os
from fakes import collect, request
from judgebench.engine.litellm import LiteLLM
events = collect(LiteLLM(), [request(url=os.environ["URL"])])
import litellm
print(events[0].output != "", "site-packages" in litellm.__file__, litellm.drop_params)
print("LEAKED_BY_DOTENV" in os.environ)
"""
    with serving() as server:
        env = {**os.environ, "PYTHONPATH": os.path.dirname(__file__), "URL": server.url}
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True
        )
    assert done.stdout == "True True False\nFalse\n"
    assert done.stderr == ""
