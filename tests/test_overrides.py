import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from judgebench.errors import ConfigError
from judgebench.overrides import (
    parse,
    prepare,
    quote,
    refuse_secrets,
    scrub,
    scrub_text,
    scrub_word,
    secrets,
    shell,
    shown,
    split,
)

AWKWARD = [
    "1e3",
    "3.10",
    "007",
    "1_000",
    "off",
    "null",
    "true",
    "nan",
    "inf",
    "1.",
    "-5",
    "org/name=v2",
    "ckpt/epoch=3-step=10.ckpt",
    "x(y)",
    "v#1",
    "模型一",
    "C:\\tmp\\",
    "C:\\a\\'b",
    "~/runs",
    "{a: 1}",
    "[a]",
    "a:b:c",
    "it's",
    'say "hi"',
    "f(a,b)",
    "a]b",
    "ft:gpt-4o:org::id",
    "meta-llama/llama-3.1-8b:free",
    " padded ",
    "x\ty",
    "👍",
    "choice(a,b)",
    "\\",
    "\\\\",
    "a\\=b",
    "@home",
    "50%",
    "?",
    "a|b",
    "a*",
    "+1",
    "-",
    "a&b",
    "<b>",
    "a;b",
    "`x`",
]


def heard(word: str) -> object:
    """What Hydra makes of a prepared word."""
    return OverridesParser.create().parse_override(word).value()


@pytest.mark.parametrize("text", AWKWARD)
@pytest.mark.parametrize("key", ["candidate.name", "judges.a.name", "name"])
def test_text_settings_stay_what_was_typed(key: str, text: str) -> None:
    [word] = prepare([f"{key}={text}"])
    assert heard(word) == text


@pytest.mark.parametrize(
    "key",
    ["output_dir", "store.root", "data_dir", "benchmark.path", "judge.weights", "judge.label", "where.x"],
)
@pytest.mark.parametrize("text", [text for text in AWKWARD if text not in ("null", "[a]")])
def test_all_text_settings(key: str, text: str) -> None:
    [word] = prepare([f"{key}={text}"])
    assert heard(word) == text


@given(st.text(min_size=1).filter(lambda text: text.strip("'\"") and "$" not in text))
def test_any_text_survives_quoting(text: str) -> None:
    assert heard(f"a={quote(text)}") == text


@given(st.text(alphabet="ab,'\"\\()[]{}=: 1e.#~", min_size=1))
def test_any_label_is_text(text: str) -> None:
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    if not quoted and "'" not in text and '"' not in text:
        [word] = prepare([f"judge.label={text}"])
        assert heard(word) == text


@pytest.mark.parametrize("word", ["candidate.name='a,b'", 'candidate.name="x=y"', "judge.label='it\\'s'"])
def test_quoted_text_is_left_alone(word: str) -> None:
    assert prepare([word]) == [word]


def test_a_quoted_path_may_end_in_a_backslash() -> None:
    [word] = prepare(["output_dir='C:\\tmp\\'"])
    assert heard(word) == "C:\\tmp\\"


def test_null_unsets_what_may_be_unset() -> None:
    assert prepare(["judge.base_url=null", "output_dir=null"]) == ["judge.base_url=null", "output_dir=null"]
    assert heard(prepare(["judge.name=null"])[0]) == "null"


def test_plain_text_stays_readable() -> None:
    words = ["candidate.name=openai/gpt-4.1", "output_dir=runs/a", "judge.base_url=http://127.0.0.1:8000/v1"]
    assert prepare(["candidate.name=openai/gpt-4.1", "output_dir=runs/a"]) == words[:2]
    assert heard(prepare([words[2]])[0]) == "http://127.0.0.1:8000/v1"


def test_roles_are_choices_of_the_group_model() -> None:
    assert prepare(["candidate=local", "baseline=native", "judge=a,b"]) == [
        "model@candidate=local",
        "model@baseline=native",
        "model@judge=a,b",
    ]
    assert prepare(["judge=openai/gpt-4.1"]) == ["model@judge=openai/gpt-4.1"]
    assert prepare(["judge={name: x}", "++judge=x"]) == ["judge={name: x}", "++judge=x"]
    assert prepare(["judge=gpt=5"]) == ["model@judge='gpt=5'"]


def test_judges() -> None:
    assert prepare(["judges.strict=local", "+judges.b=x,y"]) == [
        "+model@judges.strict=local",
        "+model@judges.b=x,y",
    ]
    assert prepare(["judges.a.temperature=0", "judges.a={name: x}", "judges.a=null"]) == [
        "judges.a.temperature=0",
        "judges.a={name: x}",
        "judges.a=null",
    ]


@pytest.mark.parametrize(
    "word", ["limit=3", "~judge", "+judge.top_k=4", "hydra.job.name=x", "a=[1,2]", "seed.order=1e3"]
)
def test_the_rest_is_hydras(word: str) -> None:
    assert prepare([word]) == [word]


def test_positionals_become_a_quoted_list(tmp_path) -> None:
    odd = tmp_path / "lr=3,x"
    odd.mkdir()
    [word] = prepare(["runs/a", "runs/b c", "runs/**", str(odd)], positionals="runs")
    assert heard(word) == ["runs/a", "runs/b c", "runs/**", str(odd)]
    assert prepare(["runs=runs/a"], positionals="runs") == ["runs=[runs/a]"]
    assert prepare(["runs=[a,b]"], positionals="runs") == ["runs=[a,b]"]
    assert heard(prepare(["1e3"], positionals="runs")[0]) == ["1e3"]
    with pytest.raises(ConfigError, match=r"'runs/a' is no override: write KEY=VALUE"):
        prepare(["runs/a"])


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("1_000", "1_000"),
        ("007", "007"),
        ("null", None),
        ("[a,007,1e3]", ["a", "007", "1e3"]),
        ("[a,null]", ["a", None]),
        ("true", "true"),
        ("'null'", "null"),
        ("'a,b'", "a,b"),
        ("x=y", "x=y"),
        ("[]", []),
    ],
)
def test_where_is_typed_text(typed: str, value: object) -> None:
    [word] = prepare([f"where.column={typed}"])
    assert word.startswith("+where.column=")
    assert heard(word) == value
    assert prepare([f"++where.column={typed}"])[0].startswith("++where.column=")


def test_sweeps_of_text() -> None:
    [word] = prepare(["candidate.name=1e3,org/x=v2, b"], multirun=True)
    assert word == "candidate.name='1e3','org/x=v2',b"
    assert prepare(["candidate.name='a,b',c"], multirun=True) == ["candidate.name='a,b',c"]
    assert prepare(["judge.label=choice(a,b)"], multirun=True) == ["judge.label=choice(a,b)"]
    assert prepare(["where.model_a=[a,b],[c]"], multirun=True) == ["+where.model_a=[a,b],[c]"]


@pytest.mark.parametrize(
    "word", ["candidate.name=a,b", "where.model_a=a,b", "judges.x.name='a','b'", "name=f(a,b"]
)
def test_a_comma_without_multirun_names_both_ways_out(word: str) -> None:
    with pytest.raises(ConfigError, match=r"add -m; .*quote it: \".*='.*'\"") as caught:
        prepare([word])
    assert word in str(caught.value)


def test_a_comma_in_other_text_is_text() -> None:
    assert heard(prepare(["judge.label=low, high"])[0]) == "low, high"
    assert heard(prepare(["output_dir=a,b"])[0]) == "a,b"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a,b", ["a", "b"]),
        ("a", ["a"]),
        ("'a,b'", ["'a,b'"]),
        ("[a,b],c", ["[a,b]", "c"]),
        ("f(a,b", ["f(a", "b"]),
        ("it's,that's", ["it's", "that's"]),
        ("${x:a,b},c", ["${x:a,b}", "c"]),
        ("", [""]),
        ("a,,b", ["a", "", "b"]),
    ],
)
def test_split(text: str, parts: list[str]) -> None:
    assert split(text) == parts


@pytest.mark.parametrize(
    "word",
    [
        "judge.api_key=hunter2hunter2",
        "+candidate.api_key=x",
        "judge=sk-abcdef123",
        "candidate.name=sk-proj-123456",
        "sk-abc123456",
        "judges.a.token=abc",
        "+judge.extra.hf_token=q",
        "candidate.api_key_env=sk-123456",
        "judge.api_key='x'",
    ],
)
def test_secrets_are_refused_and_not_repeated(word: str) -> None:
    with pytest.raises(ConfigError, match="api_key_env=") as caught:
        prepare([word])
    secret = word.partition("=")[2].strip("'") or word
    if len(secret) > 3:
        assert secret not in str(caught.value)


def test_a_pasted_value_of_a_key_variable_is_refused(monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "abcdefgh")
    with pytest.raises(ConfigError, match="secret") as caught:
        prepare(["judge.api_key_env=abcdefgh"])
    assert "abcdefgh" not in str(caught.value)
    assert prepare(["judge.api_key_env=OPENAI_API_KEY"]) == ["judge.api_key_env=OPENAI_API_KEY"]


@pytest.mark.parametrize(
    "word", ["judge.max_tokens=5", "judge.api_key=null", "judge.name=org/ask-me", "~judge.api_key"]
)
def test_no_secrets(word: str) -> None:
    prepare([word])


def test_scrub() -> None:
    held = frozenset({"s3cret-value"})
    config = {
        "api_key": "x",
        "api_key_env": "NAME",
        "max_tokens": 5,
        "deep": [{"token": None, "url": "a?k=s3cret-value"}],
    }
    assert scrub(config, held) == {
        "api_key": "***",
        "api_key_env": "NAME",
        "max_tokens": 5,
        "deep": [{"token": None, "url": "a?k=***"}],
    }
    assert scrub_text("key sk-abcdef1234 here", frozenset()) == "key *** here"
    environ = {
        "A_KEY": "abcdef",
        "MONKEY": "banana",
        "KEY_FILE": "/etc/key",
        "SHORT_KEY": "abc",
        "HOME": "whatever",
    }
    assert secrets(environ) == {"abcdef", "banana"}


@pytest.mark.parametrize(
    "word",
    [
        "judge.base_url=http://user:hunter2@127.0.0.1:1/v1",
        "judge.base_url=htp://user:pa@hunter2@host",
        "judge.base_url=http://user:pa/hunter2@host",
        "judge.base_url=user:hunter2@host/v1",
        "judge.base_url=http://host/v1?x=hunter2",
        "judge.base_url=http://host/v1#hunter2",
        "judge={provider: x, base_url: http://host/v1?x=hunter2}",
        "+judge.sampling.x-api-key=hunter2",
        "+judge.sampling.x_auth=hunter2",
        "+judge.sampling.pwd=hunter2",
        "+judge.sampling.extra_headers.X=hunter2",
        "+judge.sampling={extra_query: {a: 1, key: hunter2}}",
        "++judge={provider: x, sampling: {a: {b: 1}, key: hunter2}}",
        "+judge.sampling.extra_body={a: [{apiKey: hunter2}]}",
    ],
)
def test_secrets_in_addresses_and_settings_are_refused_and_scrubbed(word: str) -> None:
    with pytest.raises(ConfigError, match=r" judge\.api_key_env=") as caught:
        prepare([word])
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in scrub_word(word)
    assert scrub_word(word).partition("=")[0] == word.partition("=")[0]


@pytest.mark.parametrize(
    "word",
    [
        "judge.base_url=http://127.0.0.1:8000/v1",
        "judge.sampling={max_tokens: 5, stop: [a, b]}",
        "benchmark.columns={key: id, output: a}",
        "where.subject_key=abc",
        "~judge.api_key",
        "limit=3",
    ],
)
def test_other_words_stay(word: str) -> None:
    prepare([word])
    assert scrub_word(word) == word


def test_settings_of_a_conf_are_scrubbed_by_their_whole_name() -> None:
    config = {
        "judge": {"sampling": {"key": "x", "a": [{"pwd": "x"}]}, "base_url": "http://h/v1?x=y"},
        "key": 1,
    }
    assert scrub(config, frozenset()) == {
        "judge": {"sampling": {"key": "***", "a": [{"pwd": "***"}]}, "base_url": "***"},
        "key": 1,
    }


def test_shown_is_the_inverse_of_the_sugar() -> None:
    for word in ["candidate=local", "judge=a,b", "judges.strict=x", "limit=3"]:
        assert shown(prepare([word])[0]) == word


def test_parse_and_shell() -> None:
    assert parse("~a") == ("~", "a", None)
    assert str(parse("++a=b=c")) == "++a=b=c"
    assert shell("a='$x'") == "\"a='\\$x'\""


@pytest.mark.parametrize(
    "word",
    [
        "judge.base_url=http://user:hunter2pass@127.0.0.1:1/v1",
        "judge.base_url=htp://user:hunter2pass@host/v1",
        "judge.base_url=http://user:pa@hunter2pass@host/v1",
        "judge.base_url=http://user:pa/hunter2pass@host/v1",
        "judge.base_url=http://host/v1?key=hunter2pass",
        "+judge.sampling.x-api-key=hunter2pass",
        "+judge.sampling.bearer=hunter2pass",
        "+judge.sampling.X_Api_Key=hunter2pass",
        "+judge.sampling.extra_query.key=hunter2pass",
        "+judge.sampling.auth=hunter2pass",
    ],
)
def test_a_secret_in_a_url_or_under_another_name_is_refused_and_not_repeated(word):
    with pytest.raises(ConfigError, match="api_key_env") as told:
        refuse_secrets([word])
    assert "hunter2pass" not in str(told.value)


@pytest.mark.parametrize(
    "word",
    ["judge.base_url=http://127.0.0.1:8000/v1", "where.key=x", "data_dir=hf://datasets/a/b@main/c?x=1"],
)
def test_what_is_no_secret_is_let_pass(word):
    refuse_secrets([word])


def test_a_url_in_a_text_loses_its_secrets():
    text = "POST http://me:hunter2pass@host/v1?token=hunter3pass&x=1 failed"
    assert scrub_text(text) == "POST http://***host/v1?***&x=1 failed"
