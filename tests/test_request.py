"""Identity: what makes a hit. The golden values are contracts: stores of years hang on them."""

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judgebench.errors import ConfigError
from judgebench.model import Model
from judgebench.request import (
    EXECUTION_ONLY,
    SECRETS,
    Connection,
    Descriptor,
    Request,
    Subject,
    canonical,
    clean,
    coerce_settings,
    decision_input,
    digest,
    endpoint_of,
    messages_input,
    names_secret,
    prompt_input,
)

SUBJECT = Subject("bench", "1", 1, "m")


def ask(text: str, settings: dict | None = None, sample: int = 0) -> Request:
    descriptor = Descriptor("openai", "m", coerce_settings(settings or {}))
    return Request(descriptor, Connection(), text, SUBJECT, sample)


def test_golden_input_keys():
    chat = messages_input([{"role": "user", "content": "Grüße, 模型 🙂"}])
    assert chat == '{"messages":[{"content":"Grüße, 模型 🙂","role":"user"}]}'
    assert digest(chat) == "c53d57c92dd1468c193d4b94c1ee3b6849c4141c960f856fbdc24f3791085681"
    assert prompt_input("Hi") == '{"prompt":"Hi"}'
    assert digest(prompt_input("Hi")) == "cb3dd0d02e882f60501eefdc5f1fc584ae8e5eaf21721b9926264330370f7696"
    assert decision_input("x", [{"type": "choice"}]) == (
        '{"decision":{"input":"x","questions":[{"type":"choice"}]}}'
    )


def test_golden_descriptor():
    descriptor = Descriptor(
        "openai",
        "gpt-4.1",
        coerce_settings({"temperature": 0, "max_tokens": 16.0, "stop": "x", "logprobs": 5, "seed": None}),
        endpoint="id:mine",
    )
    assert descriptor.text == (
        '{"endpoint":"id:mine","model":"gpt-4.1","provider":"openai","settings":{"logprobs":{"count":5,'
        '"positions":"first"},"max_tokens":16,"stop":["x"],"temperature":0.0}}'
    )
    assert descriptor.hash == "6607f5872b9051c4cece45d3"
    assert Descriptor.from_json(descriptor.text) == descriptor


def test_golden_subject():
    subject = Subject("bench", "1", 0, "m", "n", "direct", "p", "t", "a", "b")
    assert subject.key("h", 0) == "b2ac2918d3a75d716cd4a329186318e3"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"temperature": 1}, {"temperature": 1.0}),
        ({"temperature": "0.5"}, {"temperature": 0.5}),
        ({"max_tokens": 5.0}, {"max_tokens": 5}),
        ({"stop": "a"}, {"stop": ["a"]}),
        ({"top_p": None}, {}),
        ({"extra_body": {"top_a": 1.0}}, {"extra_body": {"top_a": 1}}),
        ({"logprobs": 5}, {"logprobs": {"count": 5}}),
    ],
)
def test_the_same_settings_are_one_descriptor(one, other):
    assert ask("{}", one).key == ask("{}", other).key


# Every body field that an engine may send, with two values of it.
BODY = {
    "temperature": (0.0, 0.1),
    "top_p": (1.0, 0.9),
    "top_k": (5, 50),
    "min_p": (0.0, 0.05),
    "typical_p": (1.0, 0.5),
    "presence_penalty": (0.0, 0.5),
    "frequency_penalty": (0.0, 0.5),
    "repetition_penalty": (1.0, 1.1),
    "max_tokens": (16, 17),
    "seed": (0, 1),
    "stop": (["a"], ["b"]),
    "logprobs": ({"count": 5}, {"count": 20}),
    "reasoning_effort": ("low", "high"),
    "thinking": ({"budget": 1024}, {"budget": 4096}),
    "grammar": ('root ::= "A"', 'root ::= "B"'),
    "response_format": ({"type": "text"}, {"type": "json_object"}),
    "structured_outputs": ({"choice": ["A"]}, {"choice": ["B"]}),
    "extra_body": ({"top_k": 5}, {"top_k": 50}),
    "logit_bias": ({"1": 1}, {"1": 2}),
    "tools": ([], [{"type": "function"}]),
    "something_new": (1, 2),
}


@pytest.mark.parametrize("name", BODY)
def test_no_body_field_is_deaf_in_the_key(name):
    one, other = BODY[name]
    keys = {ask("{}", {name: one}).key, ask("{}", {name: other}).key, ask("{}").key}
    assert len(keys) == 3


@pytest.mark.parametrize("name", sorted(EXECUTION_ONLY))
def test_execution_only_names_are_refused_among_settings(name):
    with pytest.raises(ConfigError, match="engine"):
        coerce_settings({name: 1})


@pytest.mark.parametrize("name", sorted(SECRETS))
def test_secrets_are_refused_and_not_repeated(name):
    with pytest.raises(ConfigError) as caught:
        coerce_settings({name: "sk-very-secret"})
    assert "sk-very-secret" not in str(caught.value)


@given(st.text(), st.integers(min_value=1, max_value=9))
def test_any_unknown_setting_moves_the_key(name, value):
    if names_secret(name) or name in EXECUTION_ONLY or name in BODY:
        return
    assert ask("{}", {name: value}).key != ask("{}").key


@pytest.mark.parametrize(
    "name",
    "x-api-key api-key X_Api_Key apiKey Ocp-Apim-Subscription-Key accessToken hf_token x_auth pwd".split(),
)
@pytest.mark.parametrize("shape", [lambda name: {name: "hunter2"}, lambda name: {"a": [{name: "hunter2"}]}])
def test_secrets_are_known_however_they_are_spelt_and_wherever_they_stand(name, shape):
    with pytest.raises(ConfigError, match="api_key_env") as caught:
        coerce_settings(shape(name))
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("name", ["max_tokens", "stop_token_ids", "eos_token", "logit_bias", "top_k"])
def test_settings_of_other_names_are_no_secrets(name):
    assert not names_secret(name)


def test_logprobs_without_a_count_are_refused():
    with pytest.raises(ConfigError, match="count is missing"):
        coerce_settings({"logprobs": {"positions": "first"}})


def test_positions_of_logprobs_count():
    first, every = {"count": 5, "positions": "first"}, {"count": 5, "positions": "all"}
    assert ask("{}", {"logprobs": first}).key != ask("{}", {"logprobs": every}).key
    with pytest.raises(ConfigError, match="positions"):
        coerce_settings({"logprobs": {"count": 5, "positions": "last"}})


@pytest.mark.parametrize("value", [True, 1.5, "many", [1]])
def test_a_wrong_type_is_refused(value):
    with pytest.raises(ConfigError, match="max_tokens"):
        coerce_settings({"max_tokens": value})


def test_samples_are_rows_and_move_the_seed_that_is_sent():
    base, third = ask("{}", {"seed": 7}), ask("{}", {"seed": 7}, sample=2)
    assert base.key != third.key
    assert base.descriptor == third.descriptor  # the descriptor holds the base
    assert (base.settings()["seed"], third.settings()["seed"]) == (7, 9)
    assert "seed" not in ask("{}", sample=2).settings()


def test_lone_surrogates_are_replaced_before_hashing():
    broken = messages_input([{"role": "user", "content": "ok \ud83d"}])
    assert json.loads(broken)["messages"][0]["content"] == "ok \ufffd"
    assert ask(broken).input_hash == digest(broken)
    assert clean("a\0b") == "a\0b"


@given(st.text())
def test_any_text_can_be_a_prompt(text):
    request = ask(messages_input([{"role": "user", "content": clean(text)}]))
    assert request.input["messages"][0]["content"] == clean(text)


def test_a_megabyte_prompt():
    text = "x\0é🙂" * 150_000
    assert ask(prompt_input(text)).input["prompt"] == text


def test_nan_is_no_setting():
    with pytest.raises(ConfigError, match="JSON"):
        canonical({"a": float("nan")})


@pytest.mark.parametrize(
    ("url", "name", "expected"),
    [
        ("http://127.0.0.1:8001/v1/", None, "127.0.0.1:8001/v1"),
        ("https://user:secret@host/v1", None, "host/v1"),
        ("http://127.0.0.1:8001/v1", "my-7b", "id:my-7b"),
        ("http://127.0.0.1:8002/v1", "my-7b", "id:my-7b"),
        (None, None, None),
    ],
)
def test_endpoints(url, name, expected):
    assert endpoint_of(url, name) == expected


def test_subject_keys_tell_nulls_apart():
    subjects = [
        Subject("b", "1", 0, "m"),
        Subject("b", "1", 0, "m", "n"),
        Subject("b", "1", 0, "m", None, "n"),
        Subject("b", "1", 0, "m", None, None, "n"),
        Subject("b", "1", 1, "m"),
    ]
    keys = {s.key("h", n) for s in subjects for n in (0, 1)}
    assert len(keys) == 10


def test_names_are_never_part_of_the_key():
    one = Request(Descriptor("p", "m"), Connection(), "{}", Subject("b1", "1", 0, "x"))
    other = Request(Descriptor("p", "m"), Connection("http://h", "KEY"), "{}", Subject("b2", "2", 0, "y"))
    assert one.key == other.key


@pytest.mark.parametrize("name", ["x-api-key", "API-Key", "bearer", "subscription-key", "access_token"])
def test_a_secret_by_any_name_is_refused_among_settings(name):
    for settings in ({name: "hunter2pass"}, {"extra_query": {name: "hunter2pass"}}):
        with pytest.raises(ConfigError, match="api_key_env") as told:
            coerce_settings(settings)
        assert "hunter2pass" not in str(told.value)


@pytest.mark.parametrize("url", ["http://u:hunter2pass@h/v1", "http://h/v1?key=hunter2pass"])
def test_a_base_url_with_a_secret_is_refused_by_the_model(url):
    with pytest.raises(ConfigError, match="api_key_env") as told:
        Model("openai", "m", base_url=url)
    assert "hunter2pass" not in str(told.value)


def test_the_fast_ways_write_the_canonical_text():
    for text in ("plain", 'quo"ted\\\n\t\x00\x1f\x7f', "ü 模型 \u2028", "half \ud83d", ""):
        messages = [{"role": "system", "content": text}, {"content": text, "role": "user"}]
        assert messages_input(messages) == canonical({"messages": messages})
        more = [{"role": "user", "content": text, "name": "x"}]
        assert messages_input(more) == canonical({"messages": more})
        subject = Subject(text, "1", 0, text, None, "direct")
        whole = clean(json.dumps([*subject, "h", 3], separators=(",", ":"), ensure_ascii=False))
        assert subject.key("h", 3) == hashlib.sha256(whole.encode()).hexdigest()[:32]
