"""A model that cannot be meant is refused when it is named, before anything is written or asked."""

import pytest

from judgebench.errors import ConfigError
from judgebench.model import Model


@pytest.mark.parametrize(
    "base_url",
    [
        "http://user:hunter2@127.0.0.1:1/v1",
        "htp://user:hunter2@host",
        "http://user:pa@hunter2@host/v1",
        "http://user:pa/hunter2@host/v1",
        "user:hunter2@host/v1",
        "http://host/v1?key=hunter2",
        "http://host/v1#hunter2",
    ],
)
def test_an_address_with_a_secret_is_refused_and_not_repeated(base_url):
    with pytest.raises(ConfigError, match="api_key_env") as caught:
        Model("vllm", "m", base_url=base_url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("base_url", ["http://127.0.0.1:99999/v1", "http://[::1/v1", "http://host:abc/v1"])
def test_an_address_that_is_none_is_refused(base_url):
    with pytest.raises(ConfigError, match="leads to no address"):
        Model("vllm", "m", base_url=base_url)


@pytest.mark.parametrize("samples", [0, -1, 1.5, "abc", True, None])
def test_samples_are_a_whole_number(samples):
    with pytest.raises(ConfigError, match="a whole number of at least 1"):
        Model("vllm", "m", samples=samples)


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        (5, "settings by name"),
        ({"temperature": "hot"}, "temperature"),
        ({"x-api-key": "hunter2"}, "api_key_env"),
        ({"extra_query": {"key": "hunter2"}}, "api_key_env"),
        ({"timeout": 5}, "engine.timeout"),
    ],
)
def test_impossible_sampling_is_refused(sampling, message):
    with pytest.raises(ConfigError, match=message) as caught:
        Model("vllm", "m", sampling=sampling)
    assert "hunter2" not in str(caught.value)
