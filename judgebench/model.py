"""A model as a conf names it: who answers, with which settings, and how it is reached."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from typing import Any
from urllib.parse import urlsplit

from judgebench.engine import Engine
from judgebench.errors import ConfigError
from judgebench.request import Connection, Descriptor, Price, coerce_settings, endpoint_of
from judgebench.weights import weights_identity

FORMS = ("chat", "text", "decision")


@dataclass(frozen=True, eq=False)
class Model:
    """Who answers. Mounted as `candidate`, `baseline` and `judge`.

    Args:
        provider: ours, not a library's prefix: `openai`, `anthropic`, `vllm`, `llamacpp`, …
        name: what is sent.
        label: what tables show; default the name.
        form: `chat`, or `text` for a base model (protocols have a rendering for each).
        base_url: where an OpenAI-compatible server listens; part of the identity. Several: deployments
            of one model, asked by load; they need an `endpoint_id`, which stands for all of them.
        endpoint_id: your name of the deployment; host and port then drop out of the identity.
        api_key_env: the environment variable that holds the key. Several: one for each base_url, or keys
            of one address; one that is refused is set aside.
        requests_per_minute, tokens_per_minute: of each deployment, kept by waiting.
        weights: of a local model: `package:NAME`, a path, or `hf://owner/repo@revision/file`.
        chat_template: when set, replaces the model's own.
        template: Jinja text that renders a conversation for a `text` model.
        fold_system: put the system message before the first user turn, for a chat template without one.
        sampling: the settings that change what comes out (temperature, max_tokens, stop, …).
        samples: how many answers to each request.
        shipped: take the answers that the benchmark ships for this name, at no call.
        price: USD per million tokens, `{input, output, cached}`, where the provider does not tell; `cached`
            for input that comes from its cache, where that costs less.
        engine: how it is reached, unless the run names another engine for all.
    """

    provider: str
    name: str | None = None
    label: str | None = None
    form: str = "chat"
    base_url: str | Sequence[str] | None = None
    endpoint_id: str | None = None
    api_key_env: str | Sequence[str] | None = None
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    weights: str | None = None
    chat_template: str | None = None
    template: str | None = None
    fold_system: bool = False
    sampling: Mapping[str, Any] = field(default_factory=dict)
    samples: int = 1
    shipped: bool = True
    price: Mapping[str, float] | None = None
    engine: Engine | None = None

    def __post_init__(self) -> None:
        for name in ("name", "label"):
            value = getattr(self, name)
            if isinstance(value, str) and "\0" in value:
                raise ConfigError(f"{name}={value!r} holds a NUL character: ids may not.")
            if value is not None and not isinstance(value, str):
                raise ConfigError(
                    f"{name}={value!r} arrived as a number or truth value: quote it, \"{name}='{value}'\"."
                )
        for url in _several(self.base_url):
            self._check_address(url)
        self._check_deployments()
        self._check_price()
        if self.form not in FORMS:
            raise ConfigError(f"form={self.form!r} is not known. Choices: {', '.join(FORMS)}.")
        if not isinstance(self.samples, int) or isinstance(self.samples, bool) or self.samples < 1:
            raise ConfigError(f"samples={self.samples!r}: a whole number of at least 1.")
        if not isinstance(self.sampling, Mapping):
            raise ConfigError(f"sampling={self.sampling!r}: settings by name, such as {{temperature: 0}}.")
        coerce_settings(self.sampling)  # refused here, nothing is written yet

    def _check_address(self, base_url: str) -> None:
        if re.search("[@?#]", base_url):
            raise ConfigError(
                f"The base_url of {self.shown!r} holds a user name, a password or a query, which would be "
                "written down in many places. Give the bare address, and the key in an environment variable "
                "that api_key_env names."
            )
        problem = "it does not begin with http:// or https:// and a host"
        try:
            parts = urlsplit(base_url)
            sound = parts.scheme.lower() in ("http", "https") and parts.hostname
            parts.port  # noqa: B018  checked when it is asked for
        except ValueError as error:
            sound, problem = None, str(error)
        if not sound:
            raise ConfigError(
                f"base_url={base_url!r} leads to no address ({problem}): write http://HOST:PORT/v1."
            )

    def _check_deployments(self) -> None:
        urls, keys = _several(self.base_url), _several(self.api_key_env)
        if len(urls) > 1 and self.endpoint_id is None:
            raise ConfigError(
                f"{self.shown!r} has {len(urls)} base_urls: name what they serve with endpoint_id=NAME, so "
                "that their answers are those of one model, whichever is asked and however many there are."
            )
        if len(urls) > 1 and len(keys) > 1 and len(urls) != len(keys):
            raise ConfigError(
                f"{self.shown!r} has {len(urls)} base_urls and {len(keys)} variables in api_key_env: give as "
                "many, or one for all."
            )
        for name in ("requests_per_minute", "tokens_per_minute"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not value > 0):
                raise ConfigError(f"{name}={value!r}: a number above 0, or null for no limit.")

    def _check_price(self) -> None:
        if self.price is None:
            return
        for name in {"input", "output", *self.price}:
            value = self.price.get(name)
            known = name in Price._fields and (value is not None or name == "cached")
            if not known or (value is not None and (isinstance(value, bool) or not value >= 0)):
                raise ConfigError(
                    f"The price of {self.shown!r} is {dict(self.price)!r}: give USD per million tokens as "
                    "{input: 2.5, output: 10}, with cached: 0.25 where input from the cache costs less."
                )

    @property
    def shown(self) -> str:
        """The label for tables."""
        return self.label or self.name or self.provider

    def descriptor(self, settings: Mapping[str, Any] | None = None) -> Descriptor:
        """The identity of an answer under `settings`, which a protocol merges over the sampling.

        A null among `settings` takes the model's own setting away.
        """
        return Descriptor(
            provider=self.provider,
            model=self.name or "",
            settings=coerce_settings({**self.sampling, **(settings or {})}),
            endpoint=endpoint_of(next(iter(_several(self.base_url)), None), self.endpoint_id),
            weights=None if self.weights is None else weights_identity(self.weights),
            chat_template=self.chat_template,
        )

    @property
    def connection(self) -> Connection:
        """How it is reached; nothing of it is hashed."""
        price = None
        if self.price is not None:
            price = Price(**{k: float(v) for k, v in self.price.items() if v is not None})
        urls = _several(self.base_url) or (None,)
        keys = _several(self.api_key_env) or (None,)
        several = max(len(urls), len(keys))
        rates = (self.requests_per_minute, self.tokens_per_minute)
        first, *others = (
            Connection(url, key, self.weights, price, *rates)
            for url, key in zip(islice(cycle(urls), several), islice(cycle(keys), several), strict=True)
        )
        return replace(first, also=tuple(others))

    def require_engine(self, override: Engine | None) -> Engine:
        """The engine of this model, `override` first; `ConfigError` where there is none."""
        engine = override or self.engine
        if engine is None:
            raise ConfigError(
                f"{self.shown!r} has no engine: name one for the run, for example engine=openai."
            )
        return engine


def _several(value: str | Sequence[str] | None) -> tuple[str, ...]:
    return () if value is None else (value,) if isinstance(value, str) else tuple(value)
