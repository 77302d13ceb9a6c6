"""The OpenAI-compatible engine against servers of its shape: what is sent, what is read, what goes wrong."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from base64 import b64decode
from typing import Any

import pytest
from fakes import collect, ends, request, tries
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from servers import Fault, Server, serving

from judgebench.engine import Failure, Response, Usage, faults
from judgebench.engine.openai import BASES, OpenAI, base_url, window
from judgebench.engine.wire import response_of, usage_of
from judgebench.errors import ConfigError, EngineError
from judgebench.prices import price_of
from judgebench.request import Connection, Descriptor, Price, Request, digest

QUICK = OpenAI(max_attempts=3, max_wait_s=0.01)
TOP = [{"token": "A", "logprob": -0.1}, {"token": "B", "logprob": -2.5}]


def answer(server: Server, one: Request, engine: OpenAI = QUICK) -> Response:
    (event,) = collect(engine, [one])
    assert isinstance(event, Response), event
    return event


def chat(message: dict[str, Any], **choice: Any) -> dict[str, Any]:
    return {"choices": [{"message": message, "finish_reason": "stop", **choice}]}


def read(reply: dict[str, Any], **options: Any) -> Response:
    """What the engine reads from a reply."""
    with serving(plan=lambda number, body: reply) as server:
        return answer(server, request(url=server.url, **options))


# what is sent


def test_what_is_hashed_is_what_is_sent() -> None:
    with serving() as server:
        one = request('Zoë said "hi"\n\u2028\0 模型 🙂', url=server.url, temperature=0, max_tokens=5)
        answer(server, one)
        raw = server.raw[0]
        assert raw.startswith(one.input_text[:-1].encode())
        assert json.loads(raw) == {**one.input, "model": "m", "temperature": 0.0, "max_tokens": 5}
        assert digest(one.input_text) == one.input_hash
        assert server.paths == ["/v1/chat/completions"]


def test_text_input_goes_to_completions() -> None:
    with serving() as server:
        one = request("Once", url=server.url, chat=False, logprobs={"count": 2, "positions": "all"})
        got = answer(server, one)
        assert server.paths == ["/v1/completions"]
        assert server.bodies == [{"prompt": "Once", "model": "m", "logprobs": 2}]
        assert got.output
        assert got.top_logprobs
        entries = json.loads(got.top_logprobs)
        assert "".join(entry["token"] for entry in entries) == got.output
        assert all(len(entry["top_logprobs"]) == 2 for entry in entries)


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        ({"logprobs": 5}, {"logprobs": True, "top_logprobs": 5}),
        ({"provider": "vllm", "grammar": "g"}, {"structured_outputs": {"grammar": "g"}}),
        ({"provider": "llamacpp", "grammar": "g"}, {"grammar": "g"}),
        ({"extra_body": {"top_k": 5, "chat_template_kwargs": {"enable_thinking": False}}},
         {"top_k": 5, "chat_template_kwargs": {"enable_thinking": False}}),
        ({"reasoning_effort": "low", "strange": [1, 2]}, {"reasoning_effort": "low", "strange": [1, 2]}),
        ({"provider": "openai", "model": "gpt-5-mini", "max_tokens": 9}, {"max_completion_tokens": 9}),
        ({"provider": "openai", "model": "o3", "max_tokens": 9}, {"max_completion_tokens": 9}),
        ({"provider": "openai", "model": "gpt-4o", "max_tokens": 9}, {"max_tokens": 9}),
        ({"provider": "vllm", "model": "o3", "max_tokens": 9}, {"max_tokens": 9}),
        ({"seed": 5, "sample": 3}, {"seed": 8}),
        ({"stop": "x"}, {"stop": ["x"]}),
    ],
)  # fmt: skip
def test_settings_on_the_wire(options: dict[str, Any], sent: dict[str, Any]) -> None:
    with serving() as server:
        one = request(url=server.url, **options)
        answer(server, one)
        assert server.bodies == [{**one.input, "model": one.descriptor.model, **sent}]


@pytest.mark.parametrize(
    "settings",
    [{"n": 2}, {"extra_body": {"model": "other"}}, {"extra_body": {"api_key": "sk"}}, {"messages": []}],
)
def test_settings_that_cannot_be_honoured(settings: dict[str, Any]) -> None:
    with serving() as server:
        with pytest.raises(ConfigError, match=next(iter(settings.get("extra_body", settings)))):
            collect(QUICK, [request(url=server.url, **settings)])
        assert server.count == 0


def test_an_engines_body_holds_what_changes_no_output() -> None:
    with serving() as server:
        answer(server, request(url=server.url), OpenAI(body={"user": "me"}))
        assert server.bodies[0]["user"] == "me"
    for name in ("temperature", "stream", "top_k"):
        with pytest.raises(ConfigError, match=name):
            OpenAI(body={name: 1})


@pytest.mark.parametrize("tail", ["", "/", "/chat/completions", "/completions", "/chat/completions/"])
def test_b115_a_pasted_route_is_accepted(tail: str) -> None:
    with serving() as server:
        answer(server, request(url=server.url + tail))
        assert server.paths == ["/v1/chat/completions"]


def test_where_providers_listen() -> None:
    assert base_url("openai", Connection()) == "https://api.openai.com/v1"
    assert all(url.startswith("https://") and not url.endswith("/") for url in BASES.values())
    with pytest.raises(ConfigError, match=r"Did you mean 'groq'"):
        base_url("grok", Connection())
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:8000/v1"):
        base_url("vllm", Connection("127.0.0.1:8000/v1"))


def test_b67_two_servers_in_one_run_see_only_their_model() -> None:
    with serving() as one, serving() as other:
        asks = [request(str(k), url=one.url, model="m1") for k in range(20)]
        asks += [request(str(k), url=other.url, model="m2") for k in range(20)]
        assert len(ends(collect(QUICK, asks))) == 40
        assert {body["model"] for body in one.bodies} == {"m1"}
        assert {body["model"] for body in other.bodies} == {"m2"}


# keys


def test_the_key_is_read_when_used_and_sent_to_its_model_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as one, serving() as other:
        monkeypatch.setenv("KEY_OF_ONE", "sk-one\n")
        asks = [request(url=one.url, model="m1", key="KEY_OF_ONE"), request(url=other.url, model="m2")]
        assert len(ends(collect(QUICK, asks))) == 2
        assert one.headers[0]["Authorization"] == "Bearer sk-one"
        assert "Authorization" not in other.headers[0]


def test_a_missing_key_names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with serving() as server:
        with pytest.raises(EngineError, match="NO_SUCH_KEY"):
            collect(QUICK, [request(url=server.url, key="NO_SUCH_KEY")])
        assert server.count == 0


@pytest.mark.parametrize(
    "fault",
    [
        Fault(401, {"error": {"message": "Incorrect API key provided: sk-secret-1"}}),
        Fault(400, {"error": {"message": "header was Bearer sk-secret-1"}}),
        Fault(500, "crash: sk-secret-1"),
        Fault(200, "<html>sk-secret-1</html>"),
        Fault(401, {"error": {"message": "x" * 493 + "sk-secret-1"}}),
        Fault(400, {"error": {"message": "x" * 493 + "sk-secret-1"}}),
        Fault(404, {"error": {"message": "x" * 293 + "sk-secret-1"}}),
        Fault(200, "y" * 193 + "sk-secret-1"),
        Fault(302, "", {"Location": "http://sk-secret-1.example/v1?k=sk-secret-1"}),
        Fault(200, {"choices": [{"message": {"content": None, "refusal": "no, sk-secret-1"}}]}),
    ],
)
def test_a_key_that_a_server_echoes_goes_nowhere(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does half of it, where the text is cut."""
    monkeypatch.setenv("SOME_KEY", "sk-secret-1")
    with serving(plan=lambda number, body: fault) as server:
        told = told_by(request(url=server.url, key="SOME_KEY"))
    assert "***" in told
    assert "sk-sec" not in told


def told_by(one: Request) -> str:
    """All that reaches people, logs or the store."""
    try:
        return repr([{name: getattr(event, name) for name in TOLD if hasattr(event, name)}
                     for event in collect(QUICK, [one])])  # fmt: skip
    except EngineError as error:
        return f"{error!r} {error.__cause__!r} {error.__context__!r}"


TOLD = "detail output reasoning top_logprobs served_model fingerprint finish_reason".split()


@pytest.mark.parametrize("sent", ["p%40ss%2Fword", "p@ssword"])
def test_the_password_of_a_base_url_is_a_key_too(sent: str) -> None:
    def plan(number: int, body: dict[str, Any]) -> Fault:
        basic = server.headers[-1]["Authorization"].removeprefix("Basic ")
        return Fault(400, {"error": {"message": f"{basic} is {b64decode(basic).decode()} or {sent}"}})

    with serving(plan=plan) as server:
        url = server.url.replace("//", f"//user:{sent}@")
        told = told_by(request(url=url))
    assert "400 *** is user:*** or ***" in told


def test_a_key_in_an_answer_is_hidden_but_what_may_be_a_word_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for key, output in (("sk-" + "1234567890" * 4, "you sent ***"), ("EMPTY", "you sent EMPTY")):
        monkeypatch.setenv("SOME_KEY", key)
        assert read(chat({"content": f"you sent {key}"}), key="SOME_KEY").output == output


@pytest.mark.parametrize(
    "tokens", [["I ", "saw ", "{key}", "."], ["I ", "saw s", "k-1234", "{rest}."], ["I saw"]]
)
def test_no_token_of_an_answer_is_a_piece_of_a_key(
    tokens: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "sk-" + "1234567890" * 4
    monkeypatch.setenv("SOME_KEY", key)
    said = [token.format(key=key, rest=key[7:]) for token in tokens]
    options = [{"token": "no", "logprob": -2.5}, {"token": f"<{key}>", "logprob": -3.0}]
    content = [{"token": token, "logprob": -0.1, "top_logprobs": options} for token in said]
    reply = chat({"content": "".join(said)}, logprobs={"content": content})
    got = read(reply, key="SOME_KEY", logprobs={"count": 2, "positions": "all"})
    assert got.top_logprobs is not None
    entries = json.loads(got.top_logprobs)
    kept = "".join(entry["token"] for entry in entries)
    assert "1234" not in got.output + got.top_logprobs
    assert kept.startswith("I ")
    assert len(entries) == len(tokens)
    assert entries[0]["top_logprobs"] == [options[0], {"token": "<***>", "logprob": -3.0}]


def test_a_redirect_amid_a_run_costs_its_row_only() -> None:
    moved = Fault(302, "", {"Location": "http://elsewhere.example/login"})
    ways: list[tuple[int, bool]] = [(0, True), (2, False)]
    for at, fatal in ways:
        with serving(plan=lambda number, body, at=at: moved if number == at else None) as server:
            asked = [request(str(k), url=server.url) for k in range(5)]
            if fatal:
                with pytest.raises(EngineError, match="answers 302: moved to http://elsewhere"):
                    collect(QUICK, asked)
                continue
            done = ends(collect(QUICK, asked))
        failed = [end for end in done.values() if isinstance(end, Failure)]
        assert [one.reason for one in failed] == ["not_found"]
        assert len(done) == 5


# what is read


@pytest.mark.parametrize(
    ("message", "output", "reasoning"),
    [
        ({"content": "A"}, "A", None),
        ({"content": " A\n"}, " A\n", None),
        ({"content": "A", "reasoning_content": "hm"}, "A", "hm"),
        ({"content": "A", "reasoning": "hm"}, "A", "hm"),
        ({"content": "A", "reasoning_content": None}, "A", None),
        ({"content": "<think>x</think>A"}, "<think>x</think>A", None),
        ({"content": [{"type": "thinking", "thinking": []}, {"type": "text", "text": "A"}]}, "A", None),
        ({"content": "half \ud83d"}, "half \ud83d", None),
    ],
)
def test_text_and_reasoning_as_received(message: dict[str, Any], output: str, reasoning: str | None) -> None:
    got = read(chat(message))
    assert (got.output, got.reasoning) == (output, reasoning)


@pytest.mark.parametrize(
    ("raw", "finish"),
    [("length", "length"), ("max_tokens", "length"), ("MAX_TOKENS", "length"), ("model_length", "length"),
     ("stop", "stop"), ("end_turn", "stop"), (None, None)],
)  # fmt: skip
def test_b40_finish_reasons(raw: str | None, finish: str | None) -> None:
    assert read(chat({"content": "A"}, finish_reason=raw)).finish_reason == finish


def test_b19_a_refusal_is_filtered_and_keeps_its_text() -> None:
    reply = chat({"content": None, "refusal": "I will not."}, finish_reason="content_filter")
    with serving(
        plan=lambda number, body: {**reply, "usage": {"prompt_tokens": 10, "completion_tokens": 2}}
    ) as server:
        (event,) = collect(QUICK, [request(url=server.url, price=(1e6, 0.0))])
    assert isinstance(event, Failure)
    assert (event.reason, event.output, event.cost_usd) == ("content_filter", "I will not.", 10.0)


@pytest.mark.parametrize("positions", ["first", "all"])
@pytest.mark.parametrize("form", ["chat", "legacy", "chat shape in a text reply"])
def test_b82_logprobs_in_every_shape(form: str, positions: str) -> None:
    content = [
        {
            "token": "A",
            "logprob": -0.1,
            "bytes": [65],
            "top_logprobs": [{**top, "bytes": None} for top in TOP],
        },
        {"token": " é", "logprob": -0.5, "top_logprobs": []},
    ]
    legacy = {
        "tokens": ["A", " é"],
        "token_logprobs": [-0.1, -0.5],
        "top_logprobs": [{"A": -0.1, "B": -2.5}, None],
        "text_offset": [0, 1],
    }
    reply = {
        "chat": chat({"content": "A é"}, logprobs={"content": content}),
        "legacy": {"choices": [{"text": "A é", "logprobs": legacy}]},
        "chat shape in a text reply": {"choices": [{"text": "A é", "logprobs": {"content": content}}]},
    }[form]
    got = read(reply, chat=form == "chat", logprobs={"count": 2, "positions": positions})
    entries: list[dict[str, Any]] = [{"token": "A", "logprob": -0.1, "top_logprobs": TOP}]
    if positions == "all":
        entries.append({"token": " é", "logprob": -0.5, "top_logprobs": []})
    assert got.top_logprobs == json.dumps(entries, separators=(",", ":"), ensure_ascii=False)


def test_b82_a_null_logprob_stays_unknown() -> None:
    legacy = {"tokens": ["A", "B"], "token_logprobs": [None, -1.0], "top_logprobs": None}
    got = read({"choices": [{"text": "AB", "logprobs": legacy}]}, chat=False, logprobs=1)
    assert got.top_logprobs == '[{"token":"A","logprob":null,"top_logprobs":[]}]'


def test_minus_infinity_and_not_a_number_are_json() -> None:
    content = [{"token": "A", "logprob": -math.inf, "top_logprobs": [{"token": "B", "logprob": math.nan}]}]
    with serving(plan=lambda number, body: chat({"content": "A"}, logprobs={"content": content})) as server:
        got = answer(server, request(url=server.url, logprobs=1))
    assert got.top_logprobs
    assert json.loads(got.top_logprobs, parse_constant=pytest.fail) == [
        {"token": "A", "logprob": -9999.0, "top_logprobs": [{"token": "B", "logprob": None}]}
    ]


@pytest.mark.parametrize(
    "logprobs", [None, {"content": None}, {"content": []}, {"tokens": None, "content": None}]
)
def test_b38_no_logprobs_is_no_silence(logprobs: Any) -> None:
    with pytest.raises(EngineError, match="judge does not return logprobs"):
        read(chat({"content": "A"}, logprobs=logprobs), logprobs=5)


def test_b82_forbidden_logprobs_stop_at_preflight() -> None:
    forbidden = Fault(403, {"error": {"message": "You are not allowed to request logprobs from this model"}})
    with serving(plan=lambda number, body: forbidden) as server:
        with pytest.raises(EngineError, match="protocol=pairwise"):
            collect(QUICK, [request(str(k), url=server.url, logprobs=5) for k in range(30)])
        assert server.count == 1


@pytest.mark.parametrize(
    ("raw", "usage"),
    [
        # P1: totals that hold the parts
        (
            {
                "prompt_tokens": 1000,
                "prompt_tokens_details": {"cached_tokens": 800},
                "completion_tokens": 400,
                "completion_tokens_details": {"reasoning_tokens": 300},
            },
            Usage(1000, 800, 400, 300),
        ),
        # P2: cached ones apart
        (
            {"input_tokens": 200, "cache_read_input_tokens": 800, "output_tokens": 400},
            Usage(1000, 800, 400, None),
        ),
        (
            {"input_tokens": 100, "cache_read_input_tokens": 800, "cache_creation_input_tokens": 100},
            Usage(1000, 800, None, None),
        ),
        ({"prompt_tokens": 200, "prompt_cache_hit_tokens": 800}, Usage(1000, 800, None, None)),
        # P3: reasoning apart
        (
            {"completion_tokens": 100, "completion_tokens_details": {"reasoning_tokens": 300}},
            Usage(None, None, 400, 300),
        ),
        (
            {
                "prompt_tokens": 1000,
                "completion_tokens": 300,
                "total_tokens": 1400,
                "completion_tokens_details": {"reasoning_tokens": 100},
            },
            Usage(1000, None, 400, 100),
        ),
        (
            {"input_tokens": 1000, "input_tokens_details": {"cached_tokens": 800}, "output_tokens": 4},
            Usage(1000, 800, 4, None),
        ),
        ({"prompt_tokens": 0, "completion_tokens": 0}, Usage()),
        (None, Usage()),
        ({}, Usage()),
    ],
)
def test_b120_usage_in_one_convention(raw: Any, usage: Usage) -> None:
    assert usage_of(raw) == usage


def test_cost_follows_the_price_and_is_unknown_without() -> None:
    usage = {"prompt_tokens": 1000, "completion_tokens": 100}
    reply = {**chat({"content": "A"}), "model": "j-0613", "system_fingerprint": "fp_1", "usage": usage}
    got = read(reply, price=(2.0, 8.0))
    assert got.cost_usd == pytest.approx(0.0028)
    assert (got.served_model, got.fingerprint, got.latency_s is not None) == ("j-0613", "fp_1", True)
    assert read(reply).cost_usd is None
    assert read(chat({"content": "A"}), price=(2.0, 8.0)).cost_usd is None


def test_cached_input_has_a_price_of_its_own() -> None:
    """1,000 tokens read, 800 of them from the provider's cache, 100 written."""
    usage = {"prompt_tokens": 1000, "completion_tokens": 100, "prompt_tokens_details": {"cached_tokens": 800}}
    reply = {**chat({"content": "A"}), "usage": usage}
    assert read(reply, price=(2.0, 8.0, 0.5)).cost_usd == pytest.approx((200 * 2 + 800 * 0.5 + 100 * 8) / 1e6)
    assert read(reply, price=(2.0, 8.0)).cost_usd == pytest.approx((1000 * 2 + 100 * 8) / 1e6)


def test_a_listed_model_has_the_price_of_the_table_unless_it_is_a_server_of_ones_own() -> None:
    listed = price_of(Descriptor("openai", "gpt-4.1"), Connection())
    assert listed is not None
    assert 0 < listed.input < listed.output
    assert price_of(Descriptor("openai", "gpt-4.1"), Connection("http://127.0.0.1:1/v1")) is None
    assert price_of(Descriptor("openai", "gpt-4.1"), Connection(price=Price(0, 0))) == Price(0, 0)
    assert price_of(Descriptor("openai", "no-such-model"), Connection()) is None


USAGE = {"prompt_tokens": 10, "completion_tokens": 2}


@pytest.mark.parametrize(
    ("odd", "usage"),
    [
        ({"model": {"x": 1}, "system_fingerprint": ["x"]}, Usage(10, None, 2)),
        ({"model": ["m"], "system_fingerprint": 5}, Usage(10, None, 2)),
        ({"usage": {**USAGE, "prompt_tokens": 10**30}}, Usage(None, None, 2)),
        ({"usage": {**USAGE, "prompt_tokens": "10"}}, Usage(None, None, 2)),
        ({"usage": {**USAGE, "prompt_tokens": -1, "completion_tokens": True}}, Usage()),
        ({"usage": {**USAGE, "prompt_tokens": 10.0, "completion_tokens": 2.5}}, Usage(10)),
        ({"usage": {"prompt_tokens": {}, "completion_tokens": {"a": 1}}}, Usage()),
        ({"usage": {**USAGE, "prompt_tokens_details": [1]}}, Usage(10, None, 2)),
        ({"usage": {**USAGE, "completion_tokens_details": {"reasoning_tokens": [1]}}}, Usage(10, None, 2)),
        ({"usage": [USAGE]}, Usage()),
        ({"usage": "12"}, Usage()),
    ],
)
def test_an_odd_side_field_is_null_and_the_answer_is_kept(odd: dict[str, Any], usage: Usage) -> None:
    reply = {**chat({"content": "A", "reasoning": {"a": 1}}, logprobs=[1]), "usage": USAGE, **odd}
    got = read(reply, price=(1e6, 1e6))
    assert (got.output, got.reasoning, got.served_model, got.fingerprint) == ("A", None, None, None)
    assert got.usage == usage
    assert got.cost_usd == (None if usage.input is None or usage.output is None else 12.0)


def test_odd_names_are_made_storable() -> None:
    got = read({**chat({"content": "A"}, finish_reason="x\ud800"), "model": "m\ud800"})
    assert (got.finish_reason, got.served_model) == ("x\ufffd", "m\ufffd")
    assert read(chat({"content": "A"}, finish_reason={"a": 1})).finish_reason is None


@pytest.mark.parametrize(
    "logprobs",
    [
        {"content": {"token": "A"}},
        {"content": "A"},
        {"content": [1]},
        {"content": [{"logprob": -1.0}]},
        {"content": [{"token": 5, "logprob": -1.0}]},
        {"content": [{"token": "A", "logprob": -1.0, "top_logprobs": {"A": -1.0}}]},
        {"content": [{"token": "A", "logprob": -1.0, "top_logprobs": [{"logprob": -1.0}]}]},
        {"tokens": ["A"]},
        {"tokens": "A", "token_logprobs": [-1.0]},
        {"tokens": [5], "token_logprobs": [-1.0]},
        {"tokens": ["A"], "token_logprobs": [-1.0], "top_logprobs": ["A"]},
        {"tokens": ["A"], "token_logprobs": 5},
        [1, 2],
        "abc",
        5,
    ],
)
@pytest.mark.parametrize("positions", ["first", "all"])
def test_odd_logprobs_are_none_and_are_not_asked_again(logprobs: Any, positions: str) -> None:
    good = {"content": [{"token": "A", "logprob": -0.1}]}

    def plan(number: int, body: dict[str, Any]) -> dict[str, Any]:
        odd = body["messages"][0]["content"] == "odd"
        return {**chat({"content": "A"}, logprobs=logprobs if odd else good), "usage": USAGE}

    with serving(plan=plan) as server:
        wanted = {"count": 2, "positions": positions}
        asks = [request(text, url=server.url, price=(1e6, 1e6), logprobs=wanted) for text in ("good", "odd")]
        _, event = collect(OpenAI(1, max_attempts=3, max_wait_s=0.01), asks)
        assert server.count == 2
    assert isinstance(event, Failure)
    assert (event.reason, event.output, event.cost_usd) == ("no_logprobs", "A", 12.0)
    assert read(chat({"content": "A"}, logprobs=logprobs)).output == "A"


def test_odd_log_probabilities_are_unknown() -> None:
    odd = [math.inf, -(10**400), True, "-0.1", [1]]
    content = [{"token": "A", "logprob": value, "top_logprobs": [{"token": "B"}]} for value in odd]
    got = read(
        chat({"content": "A"}, logprobs={"content": content}), logprobs={"count": 1, "positions": "all"}
    )
    assert got.top_logprobs
    assert json.loads(got.top_logprobs) == [
        {"token": "A", "logprob": None, "top_logprobs": [{"token": "B", "logprob": None}]}
    ] * len(odd)


NAMES = """choices message content text type refusal reasoning usage prompt_tokens completion_tokens model
    prompt_tokens_details cached_tokens logprobs top_logprobs token logprob tokens token_logprobs
    finish_reason system_fingerprint error code""".split()
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=3) | st.sampled_from(["text"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=10,
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.dictionaries(st.sampled_from(NAMES), ANY_JSON, max_size=4),
    st.dictionaries(st.sampled_from(NAMES), ANY_JSON, max_size=4),
    st.dictionaries(st.sampled_from(NAMES), ANY_JSON, max_size=4),
)
def test_any_json_is_an_answer_or_a_fault(
    reply: dict[str, Any], choice: dict[str, Any], message: dict[str, Any]
) -> None:
    """Whatever a server sends, nothing else is raised, and every field is of its type."""
    one = request(price=(1.0, 1.0), logprobs={"count": 1, "positions": "all"})
    whole = {"choices": [{"message": message, **choice}], **reply}
    try:
        got: Any = response_of(one, whole)
        texts = [got.output, got.reasoning, got.served_model, got.fingerprint, got.top_logprobs]
    except faults.Fault as fault:
        got, texts = fault, [fault.output, fault.detail]
    assert all(text is None or isinstance(text, str) for text in [*texts, got.finish_reason])
    counts = (got.usage.input, got.usage.cached, got.usage.output, got.usage.reasoning)
    assert all(count is None or (type(count) is int and 0 <= count < 2**63) for count in counts)
    assert got.cost_usd is None or math.isfinite(got.cost_usd)
    assert isinstance(faults.fault_of(400, whole, {}, 0.0).detail, str)


# what goes wrong


@pytest.mark.parametrize(
    ("fault", "reason", "count"),
    [
        (Fault(kind="drop"), "server", 3),
        (Fault(200, '{"choices": [{"mess', kind="half"), "server", 3),
        (Fault(200, "<html>"), "malformed", 3),
        (Fault(200, [1]), "malformed", 3),
        (Fault(200, {"choices": []}), "malformed", 3),
        (Fault(200, {"choices": [{"index": 0}]}), "malformed", 3),
        (Fault(200, '{"a":' * 100_000), "malformed", 3),
        (Fault(400, '{"a":' * 100_000), "bad_request", 1),
        (Fault(400, '{"error":' * 400 + "1" + "}" * 400), "bad_request", 1),
        (Fault(200, {"error": {"code": 429, "message": "Rate limit"}}), "rate_limited", 3),
        (Fault(200, {"error": {"code": 503, "message": "no provider"}}), "server", 3),
        (Fault(kind="stall"), "timeout", 2),
        (Fault(400, {"error": {"code": "context_length_exceeded", "message": "x"}}), "context_overflow", 1),
        (Fault(400, {"error": {"code": "content_filter", "message": "x"}}), "content_filter", 1),
    ],
)
def test_faults_of_one_row(fault: Fault, reason: str, count: int) -> None:
    engine = OpenAI(max_attempts=count, max_wait_s=0.01, timeout_s=0.3 if fault.kind == "stall" else 10)
    with serving(plan=lambda number, body: fault) as server:
        events = collect(engine, [request(url=server.url)])
        assert server.count == count
    assert isinstance(events[-1], Failure)
    assert events[-1].reason == reason
    assert len(tries(events)) == count - 1


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault(429, {"error": {"code": "insufficient_quota", "message": "plan and billing"}}), "Top up"),
        (Fault(404, {"error": {"message": "model m not found"}}), r"model m not found.*/v1/chat/completions"),
        (Fault(308, "", {"Location": "https://elsewhere/v1"}), "elsewhere"),
    ],
)
def test_b61_what_stops_the_run_at_once(fault: Fault, words: str) -> None:
    with serving(plan=lambda number, body: fault) as server:
        with pytest.raises(EngineError, match=words):
            collect(QUICK, [request(str(k), url=server.url) for k in range(30)])
        assert server.count == 1


def test_a_server_that_is_down_is_named() -> None:
    with serving() as server:
        url = server.url
    with pytest.raises(EngineError, match=url.removesuffix("/v1")) as raised:
        collect(QUICK, [request(url=url)])
    assert "cannot be reached: connection refused. Start the server" in str(raised.value)


def test_a_proxy_of_the_environment_is_used_but_never_for_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as proxy, serving() as server:
        monkeypatch.setenv("http_proxy", proxy.url.removesuffix("/v1"))
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        collect(QUICK, [request(url="http://models.invalid/v1"), request(url=server.url, model="m2")])
        assert [headers["Host"] for headers in proxy.headers] == ["models.invalid"]
        assert server.count == 1


def test_b95_more_calls_than_open_files() -> None:
    """`ulimit -n 256`, 1000 in flight, 2000 rows: all answered, the pool stays below the limit."""
    code = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
import logging, os
logging.basicConfig()
from fakes import collect, ends, request, tries
from judgebench.engine.openai import OpenAI
events = collect(OpenAI(concurrency=1000), [request(str(k), url=os.environ["URL"]) for k in range(2000)])
print(sum(end.output is not None for end in ends(events).values()), len(tries(events)))
"""
    here = os.path.dirname(__file__)
    with serving(latency_s=0.02) as server:
        env = {**os.environ, "PYTHONPATH": here, "URL": server.url}
        done = subprocess.run([sys.executable, "-c", code], env=env, cwd=here, capture_output=True, text=True)
        assert done.stdout == "2000 0\n", done.stderr
        assert "open files" in done.stderr
        assert 64 < server.most_in_flight <= 128


def test_a_modest_window_is_left_alone() -> None:
    assert window(64) == 64


def test_no_secret_in_a_repr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "sk-secret-1")
    with serving() as server:
        events = collect(QUICK, [request(url=server.url, key="SOME_KEY")])
    assert "sk-secret-1" not in repr((QUICK, events))
