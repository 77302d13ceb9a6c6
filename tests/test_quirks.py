"""What models refuse: found at the first request, named with the way out, never dropped silently."""

from dataclasses import replace

import pytest
from fakes import collect, ends, request
from servers import Fault, serving

from judgebench.engine import Response
from judgebench.engine.faults import refused_setting, refuses_system
from judgebench.engine.openai import OpenAI
from judgebench.errors import EngineError
from judgebench.model import Model
from judgebench.prompt import chat_template
from judgebench.request import Request, messages_input

ENGINE = OpenAI(concurrency=8, timeout_s=5, max_attempts=3, max_wait_s=0.05)
MAX_TOKENS = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."


def refusing(message, status=400, when=lambda body: True):
    return lambda number, body: Fault(status, {"error": {"message": message}}) if when(body) else None


def test_the_limit_goes_by_the_name_that_the_model_knows():
    """One refused call a model, and none a request."""
    with serving(plan=refusing(MAX_TOKENS, when=lambda body: "max_tokens" in body)) as server:
        asks = [request(str(n), url=server.url, max_tokens=99) for n in range(40)]
        found = ends(collect(ENGINE, asks))
        assert all(isinstance(event, Response) for event in found.values())
        assert server.count == 41
        assert [body.get("max_completion_tokens") for body in server.bodies] == [None, *[99] * 40]


def test_a_server_that_knows_neither_name_is_told():
    both = "max_tokens and max_completion_tokens are unknown"
    with serving(plan=refusing(both)) as server:
        with pytest.raises(EngineError, match="max_tokens and max_completion_tokens are unknown"):
            collect(ENGINE, [request(str(n), url=server.url, max_tokens=9) for n in range(40)])
        assert server.count <= 12


@pytest.mark.parametrize(
    "message",
    [
        "Unsupported value: 'temperature' does not support 0. Only the default (1) value is supported.",
        "`temperature` is deprecated for this model.",
        "body.temperature: Extra inputs are not permitted",
        "Unrecognized request argument supplied: temperature",
    ],
)
def test_a_refused_setting_stops_the_run_at_its_first_request(message):
    with serving(plan=refusing(message)) as server:
        with pytest.raises(EngineError, match=r"judge\.sampling\.temperature=null"):
            collect(ENGINE, [request(str(n), url=server.url, temperature=0, max_tokens=9) for n in range(40)])
        assert server.count == 1


def test_a_model_that_has_answered_is_not_stopped_by_one_row():
    message = "Unsupported value: 'temperature' does not support 0."
    odd = refusing(message, when=lambda body: body["messages"][0]["content"] == "7")
    with serving(plan=odd) as server:
        found = ends(collect(ENGINE, [request(str(n), url=server.url, temperature=0) for n in range(20)]))
        assert sum(isinstance(event, Response) for event in found.values()) == 19


@pytest.mark.parametrize(
    ("message", "names", "found"),
    [
        ("temperature and top_p cannot both be specified: not supported", ["temperature", "top_p"], None),
        ("Invalid schema for stop", ["stop"], None),
        ("'stop' is not supported with this model", ["stop", "max_tokens"], "stop"),
        ("unknown field `top_k`", ["top_k", "k"], "top_k"),
    ],
)
def test_only_one_setting_that_is_named_is_blamed(message, names, found):
    assert refused_setting(message, names) == found


@pytest.mark.parametrize(
    "message",
    [
        "System role not supported",
        "System message is not supported by this template",
        "Conversation roles must alternate user/assistant/user/assistant/...",
        "This model only supports user and assistant roles; unsupported role: system",
    ],
)
@pytest.mark.parametrize("status", [400, 500])
def test_b69_a_refused_system_role_is_told_with_the_way_out(message, status):
    assert refuses_system(message)
    with serving(plan=refusing(message, status)) as server:
        plain = request("q", url=server.url)
        text = messages_input([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}])
        asks = [
            Request(plain.descriptor, plain.connection, text, plain.subject, sample) for sample in range(9)
        ]
        with pytest.raises(EngineError, match="fold_system=true"):
            collect(ENGINE, asks)
        assert server.count == 1


def test_b69_folding_is_in_the_key_and_in_the_template_hash():
    template = chat_template(
        [{"role": "system", "content": "Judge."}, {"role": "user", "content": "{{ answer }}"}]
    )
    folded = replace(template, fold_system=True)
    assert folded.hash != template.hash
    assert folded.render({"answer": "A"}) == messages_input([{"role": "user", "content": "Judge.\n\nA"}])
    assert template.render({"answer": "A"}) != folded.render({"answer": "A"})
    assert not Model("vllm", "m").fold_system
