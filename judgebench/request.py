"""What is asked, and what makes two asks the same: canonical JSON, input key, descriptor, request.

A request is a hit when its key (descriptor hash, input hash, sample) is stored. The input hash is
of the rendered input exactly as it is sent; the descriptor holds everything about the model that
can change its output. Names of runs, benchmarks, protocols and labels are in neither: they travel
as the `Subject`. This file does not know engines, stores or templates.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from json.encoder import encode_basestring as _quoted  # in C where there is C; raw UTF-8
from typing import Any, NamedTuple

from judgebench.errors import ConfigError

SURROGATE = re.compile("[\ud800-\udfff]")
REPLACEMENT = "\ufffd"

# Settings that tell how a call is executed, never what comes out of it. Everything else that
# reaches a provider is hashed, known to us or not: a deaf key serves wrong answers, an eager one
# only pays twice. `tests/test_request.py` walks every body field against this one list.
EXECUTION_ONLY = frozenset(
    """
    timeout timeout_s max_retries retries concurrency batch_size max_wait_s threads n_threads
    tensor_parallel_size pipeline_parallel_size data_parallel_size gpu_memory_utilization
    enforce_eager stream stream_options user metadata service_tier store prompt_cache_key
    safety_identifier cache_prompt
    """.split()
)

# Never sent as a setting and never hashed: keys come from `api_key_env` alone. `names_secret` normalises.
SECRETS = frozenset(
    """
    api_key apikey key token authorization auth bearer cookie credential credentials headers extra_headers
    jwt pass passwd password pwd sas secret sig signature
    """.split()
)
_SECRET = re.compile(
    r"(?:.*_)?(?:api|access|account|auth|bearer|client|hf|id|private|secret|session|subscription)_?"
    r"(?:key|secret|token)s?|.*_(?:authorization|cookie|headers|passwd|password|pwd|secret|signature)"
)

_FLOATS = frozenset(
    "temperature top_p min_p typical_p presence_penalty frequency_penalty repetition_penalty".split()
)
_INTS = frozenset("max_tokens top_k seed".split())
_TEXTS = frozenset("reasoning_effort grammar".split())


def clean(text: str) -> str:
    """Text that is valid UTF-8: each lone surrogate becomes U+FFFD. NUL and all else stay."""
    # Most text is ASCII, which is told in no time; to encode the rest takes a fifth of a search's time.
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return SURROGATE.sub(REPLACEMENT, text)
    return text


# Made once: `json.dumps` makes a new encoder for each call that is not all defaults.
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _atom(value: str | int | None) -> str:
    return "null" if value is None else _quoted(value) if isinstance(value, str) else str(value)


def canonical(value: Any) -> str:
    """The one JSON text of a value: sorted keys, no spaces, raw UTF-8, lone surrogates replaced.

    NaN and infinities are refused with `ConfigError`, since JSON has no word for them.
    """
    try:
        text = _CANONICAL.encode(value)
    except ValueError as error:
        raise ConfigError(f"{value!r} cannot be written as JSON: {error}") from None
    return clean(text)


def digest(text: str) -> str:
    """SHA-256 of a text's UTF-8 bytes, 64 hex digits."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def messages_input(messages: Sequence[Mapping[str, str]]) -> str:
    """Canonical input of a chat model."""
    parts = []
    for message in messages:
        if message.keys() != {"content", "role"} or not all(type(v) is str for v in message.values()):
            return canonical({"messages": list(messages)})
        # The same text as the encoder's, in a third of its time: a run of hits renders every message.
        parts.append(f'{{"content":{_quoted(message["content"])},"role":{_quoted(message["role"])}}}')
    return clean(f'{{"messages":[{",".join(parts)}]}}')


def prompt_input(prompt: str) -> str:
    """Canonical input of a text model."""
    return canonical({"prompt": prompt})


def decision_input(body: Any, questions: Sequence[Mapping[str, Any]]) -> str:
    """Canonical input of a decision endpoint: the thing to decide on and the typed questions."""
    return canonical({"decision": {"input": body, "questions": list(questions)}})


def coerce_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with declared types, nulls omitted, sorted.

    Command lines turn `1.0` into `1` and back; JSON tells them apart, so each declared name is
    coerced to its type, and an undeclared whole float to an int.

    Raises:
        ConfigError: a secret or an execution-only name among the settings, or a value that is not of
            the declared type.
    """
    out: dict[str, Any] = {}
    for name in sorted(settings):
        value = settings[name]
        _refuse_secrets(name, value)
        if value is None:
            continue
        if name in EXECUTION_ONLY:
            raise ConfigError(
                f"{name!r} tells how a call is executed, not what comes out: set it on the engine "
                f"(engine.{name}=… or engine.body.{name}=…), where it moves no key."
            )
        out[name] = _coerce(name, value)
    return out


def names_secret(name: str) -> bool:
    """Whether a setting of this name is a secret, however it is spelt: `x-api-key`, `apiKey`, `API_KEY`."""
    plain = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().replace("-", "_").removeprefix("x_")
    return plain in SECRETS or bool(_SECRET.fullmatch(plain))


def _refuse_secrets(name: str, value: Any) -> None:
    """Neither a setting nor anything within one may be named like a secret."""
    if names_secret(name):
        raise ConfigError(f"{name!r} may not stand among settings: name its variable in api_key_env.")
    if isinstance(value, Mapping):
        for inner, within in value.items():
            _refuse_secrets(str(inner), within)
    elif isinstance(value, (list, tuple)):
        for within in value:
            _refuse_secrets("", within)


def _coerce(name: str, value: Any) -> Any:
    try:
        if name in _FLOATS:
            return float(value)
        if name in _INTS:
            if isinstance(value, bool) or int(value) != float(value):
                raise ValueError("not a whole number")
            return int(value)
        if name in _TEXTS:
            return str(value)
        if name == "stop":
            return [str(value)] if isinstance(value, str) else [str(item) for item in value]
        if name == "logprobs":
            return _logprobs(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name}={value!r} is not of its declared type: {error}") from None
    return _plain(value)


def _logprobs(value: Any) -> dict[str, Any]:
    """`{count, positions}`; a bare number counts alternatives at the first position."""
    if not isinstance(value, Mapping):
        value = {"count": value}
    positions = str(value.get("positions", "first"))
    if positions not in ("first", "all"):
        raise ValueError("positions is 'first' or 'all'")
    if "count" not in value:
        raise ValueError("count is missing: how many alternatives, as in {count: 5}")
    return {"count": int(value["count"]), "positions": positions}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items() if v is not None}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


class Price(NamedTuple):
    """USD per million tokens; input that comes from the provider's cache costs as the rest unless named."""

    input: float
    output: float
    cached: float | None = None


@dataclass(frozen=True, slots=True)
class Connection:
    """How a model is reached. Nothing of it is hashed; the key itself is read when it is used."""

    base_url: str | None = None
    api_key_env: str | None = None
    weights: str | None = None  # where a local engine finds them: path, package:NAME, hf://…
    price: Price | None = None
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    also: tuple[Connection, ...] = ()  # further deployments of the same model

    @property
    def deployments(self) -> tuple[Connection, ...]:
        """Everywhere that the model can be asked, this connection first."""
        return (self, *self.also) if self.also else (self,)


@dataclass(frozen=True, slots=True)
class Descriptor:
    """Everything about a model that can change its output.

    `settings` are as `coerce_settings` leaves them. A field that is null or empty is left out of
    the JSON, so that a field added later moves no old hash.
    """

    provider: str
    model: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    endpoint: str | None = None
    weights: str | None = None
    chat_template: str | None = None
    text: str = field(init=False)
    hash: str = field(init=False)

    def __post_init__(self) -> None:
        fields = {
            "provider": self.provider,
            "model": self.model,
            "endpoint": self.endpoint,
            "weights": self.weights,
            "chat_template": self.chat_template,
            "settings": dict(self.settings),
        }
        text = canonical({k: v for k, v in fields.items() if v is not None and v != {}})
        object.__setattr__(self, "text", text)
        object.__setattr__(self, "hash", digest(text)[:24])

    def __hash__(self) -> int:
        return hash(self.hash)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Descriptor) and other.hash == self.hash

    @staticmethod
    def from_json(text: str) -> Descriptor:
        """The descriptor that `metadata.json` holds."""
        fields = json.loads(text)
        return Descriptor(**fields)


class Subject(NamedTuple):
    """What an answer is used for: names for people, for tables and for deletion, never for the key.

    `turn`: completions 1 to n; judgements the turn judged, 0 = the whole conversation.
    `model_a`, `model_b`: the positional slots of the rendered prompt (completions: the candidate
    in `model_a`). `answer_a`, `answer_b`: the completions shown, `descriptor_hash:input_hash:sample`.
    """

    benchmark: str
    instruction_id: str
    turn: int
    model_a: str
    model_b: str | None = None
    orientation: str | None = None
    protocol: str | None = None
    template_hash: str | None = None
    answer_a: str | None = None
    answer_b: str | None = None

    def key(self, input_hash: str, sample: int) -> str:
        """32 hex digits over all columns, the input key and the sample."""
        text = f"[{','.join([*map(_atom, self), _quoted(input_hash), str(sample)])}]"
        return hashlib.sha256(clean(text).encode("utf-8")).hexdigest()[:32]


class Key(NamedTuple):
    """What makes a hit."""

    descriptor_hash: str
    input_hash: str
    sample: int

    def __str__(self) -> str:
        return f"{self.descriptor_hash}:{self.input_hash}:{self.sample}"


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One ask of one model. `input_text` is canonical JSON of the rendered input; `tag` is the asker's."""

    descriptor: Descriptor
    connection: Connection
    input_text: str
    subject: Subject
    sample: int = 0
    tag: int = 0
    refuse: frozenset[str] = frozenset()  # stored answers that are not to be served: `store.reuse`
    input_hash: str = field(init=False)
    subject_key: str = field(init=False)

    def __post_init__(self) -> None:
        input_hash = digest(self.input_text)
        object.__setattr__(self, "input_hash", input_hash)
        object.__setattr__(self, "subject_key", self.subject.key(input_hash, self.sample))

    @property
    def key(self) -> Key:
        """What makes this request a hit."""
        return Key(self.descriptor.hash, self.input_hash, self.sample)

    @property
    def input(self) -> dict[str, Any]:
        """The rendered input: `messages`, `prompt` or `decision`."""
        value: dict[str, Any] = json.loads(self.input_text)
        return value

    def settings(self) -> dict[str, Any]:
        """The descriptor's settings with the seed of this sample: base seed + sample."""
        settings = dict(self.descriptor.settings)
        if "seed" in settings:
            settings["seed"] += self.sample
        return settings


@lru_cache(maxsize=512)
def _endpoint(base_url: str) -> str:
    stripped = re.sub(r"^[a-z]+://", "", base_url.strip(), flags=re.IGNORECASE).rstrip("/")
    # What may be a secret; `Model` refuses such an address.
    return re.split("[?#]", re.sub(r"^.*@", "", stripped), maxsplit=1)[0]


def endpoint_of(base_url: str | None, endpoint_id: str | None) -> str | None:
    """The endpoint's identity: the user's name for it, else authority and path, else null.

    >>> endpoint_of("http://127.0.0.1:8001/v1/", None)
    '127.0.0.1:8001/v1'
    """
    if endpoint_id is not None:
        return f"id:{endpoint_id}"
    return None if base_url is None else _endpoint(base_url)
