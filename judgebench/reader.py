"""Readers: what a judge's raw reply says, as a preference or a score, or no verdict and the reason.

A reader is made from conf, compiled once, and pure: `read` takes a frame of replies and gives a frame of
readings, row for row. It is total: whatever a judge wrote gives a row. Unreadable is never a tie, a zero
or a loss. Rules for words are in `label_rules` and `score_rules`; this file holds the readers' settings,
log probabilities, and the frame. It does not know judges, orientations or the store.

Reasons: `empty`, `unclosed_reasoning`, `no_verdict`, `refusal`, `ambiguous`, `truncated`; of scores also
`out_of_range`; of log probabilities `no_logprobs` and `no_label_in_logprobs`.
"""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd

from judgebench.errors import ConfigError, choices
from judgebench.label_rules import LabelRules
from judgebench.reasoning import split_reasoning
from judgebench.score_rules import ScoreRules


class Reading(NamedTuple):
    """What one reply says. Without a verdict everything but `reason` is None.

    `preference` is P(the answer in slot B is better); `score` is on the judge's own scale; `confidence`
    is the probability that the labels hold together at the verdict's position (log probabilities only).
    """

    preference: float | None = None
    score: float | None = None
    label: str | None = None
    confidence: float | None = None
    reason: str | None = None


class Reader(ABC):
    """What all readers share: from one reply to a frame of them.

    `version` names the rules and changes whenever a stored reply might be read differently; `needs` names
    the optional parts of a reply without which it cannot be read.
    """

    __slots__ = ()
    version: ClassVar[str]
    needs: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def read_one(self, output: str | None, finish_reason: str | None, top_logprobs: str | None) -> Reading:
        """Read one reply.

        Args:
            output: the text as received.
            finish_reason: normalised; only "length" matters here.
            top_logprobs: the store's JSON: a list of positions, each
                `{"token", "logprob", "top_logprobs": [{"token", "logprob"}, ...]}`.
        """

    def read(self, replies: pd.DataFrame) -> pd.DataFrame:
        """Read every reply.

        Args:
            replies: columns `output`, `finish_reason` and, for readers that need it, `top_logprobs`; text,
                with None or NaN where there is none.

        Returns:
            A frame with the same index and order: `preference`, `score`, `confidence` (float64, NaN where
            there is none), `label`, `reason` (object, None where there is none).
        """
        logprobs = replies["top_logprobs"].tolist() if "top_logprobs" in self.needs else [None] * len(replies)
        readings = map(self.read_one, replies["output"].tolist(), replies["finish_reason"].tolist(), logprobs)
        preference, score, label, confidence, reason = zip(*readings, strict=True) if logprobs else [()] * 5
        return pd.DataFrame(
            {
                "preference": np.array(preference, dtype=np.float64),
                "score": np.array(score, dtype=np.float64),
                "label": pd.Series(label, index=replies.index, dtype=object),
                "confidence": np.array(confidence, dtype=np.float64),
                "reason": pd.Series(reason, index=replies.index, dtype=object),
            },
            index=replies.index,
        )


@dataclass(frozen=True, slots=True)
class LastLabel(Reader):
    """The last label that the judge states in words; it was asked for `[[LABEL]]`.

    Args:
        labels: label -> preference in [0, 1], the probability that the answer in slot B is better.

    Raises:
        ConfigError: labels or numbers that cannot be meant.
    """

    labels: Mapping[str, float]
    version: ClassVar[str] = "last_label/1"
    _rules: LabelRules = field(init=False, repr=False, compare=False)
    _readings: dict[str, Reading] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        labels = _checked(self.labels)
        object.__setattr__(self, "labels", labels)
        object.__setattr__(self, "_rules", LabelRules(labels))
        readings = {label: Reading(preference=number, label=label) for label, number in labels.items()}
        object.__setattr__(self, "_readings", readings)

    def read_one(
        self, output: str | None, finish_reason: str | None, top_logprobs: str | None = None
    ) -> Reading:
        """Read one reply by its words; `top_logprobs` is not looked at."""
        if not isinstance(output, str):
            return Reading(reason="empty")
        if reading := self._readings.get(_plain_end(output)):
            return reading
        split = split_reasoning(output)
        if split.reason:
            return Reading(reason=split.reason)
        found = self._rules.find(split.answer, finish_reason == "length")
        return Reading(reason=found.reason) if found.label is None else self._readings[found.label]


@dataclass(frozen=True, slots=True)
class LabelLogprobs(Reader):
    """The expected preference under the judge's own probabilities of the labels, at the verdict's position.

    preference = sum(p_label * number) / sum(p_label), over the tokens that are labels. The sampled token
    counts even outside the top k; a label that is not listed, or without a number, has probability 0. The
    sampled token cannot have that one: where it is a label without a number, there is no verdict.

    Args:
        labels: label -> preference in [0, 1].
        exact: compare tokens as they are; otherwise without surrounding white space, so that " A" is "A"
            and both count. Case matters either way: AlpacaEval's labels are m and M.
        missing: `zero`, or `unread` for no verdict unless every label is listed.
        position: `first`, for verdicts of one token; `aligned`, for the token that holds the label by which
            `LastLabel` would read the reply.

    Raises:
        ConfigError: a setting that is unknown, or labels that cannot be meant.
    """

    labels: Mapping[str, float]
    exact: bool = False
    missing: str = "zero"
    position: str = "first"
    version: ClassVar[str] = "label_logprobs/2"
    needs: ClassVar[frozenset[str]] = frozenset({"top_logprobs"})
    _words: LastLabel = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.missing not in ("zero", "unread"):
            raise ConfigError(f"reader.missing: {choices(self.missing, ('zero', 'unread'))}")
        if self.position not in ("first", "aligned"):
            raise ConfigError(f"reader.position: {choices(self.position, ('first', 'aligned'))}")
        object.__setattr__(self, "_words", LastLabel(self.labels))
        object.__setattr__(self, "labels", self._words.labels)

    def read_one(self, output: str | None, finish_reason: str | None, top_logprobs: str | None) -> Reading:
        """Read one reply by its log probabilities, never by its words alone."""
        positions = _positions(top_logprobs)
        if not positions:
            return Reading(reason="no_logprobs")
        if self.position == "first":
            return self._expected(positions[0], "", "")
        reading = self._words.read_one(output, finish_reason)
        if reading.label is None or output is None:
            return reading
        place = self._place(positions, output, reading.label, finish_reason)
        return self._expected(*place) if place else Reading(reason="no_label_in_logprobs")

    def _expected(self, position: dict[str, Any], before: str, after: str) -> Reading:
        """The reading at a position whose tokens hold a label between `before` and `after`."""
        wanted = {before + label + after: label for label in self.labels}
        if not self.exact:
            wanted = {written.strip(): label for written, label in wanted.items()}

        def label_of(token: str) -> str | None:
            return wanted.get(token if self.exact else token.strip())

        logprobs: dict[str, list[float]] = {}
        alternatives = _alternatives(position)
        for token, logprob in alternatives.items():
            label = label_of(token)
            if label is not None:
                logprobs.setdefault(label, []).append(logprob)
        sampled = position.get("token")
        if isinstance(sampled, str) and sampled not in alternatives and label_of(sampled) is not None:
            return Reading(reason="no_label_in_logprobs")
        if not logprobs or (self.missing == "unread" and len(logprobs) < len(self.labels)):
            return Reading(reason="no_label_in_logprobs")
        # Relative to the likeliest one, so that labels of probability 1e-400 still compare.
        peak = max(map(max, logprobs.values()))
        weights = {label: sum(math.exp(p - peak) for p in found) for label, found in logprobs.items()}
        mass = sum(weights.values())
        best = max(weights, key=weights.__getitem__)
        drawn = sum(weight == weights[best] for weight in weights.values()) > 1
        return Reading(
            preference=sum(weight * self.labels[label] for label, weight in weights.items()) / mass,
            label=None if drawn else best,
            confidence=min(mass * math.exp(peak), 1.0),
        )

    def _place(
        self, positions: list[dict[str, Any]], output: str, label: str, finish_reason: str | None
    ) -> tuple[dict[str, Any], str, str] | None:
        """The position of the label that decides, and what its token holds before and after the label."""
        start = self._deciding(output, label, finish_reason)
        tokens = [_token_bytes(position) for position in positions]
        covered = output.encode("utf-8", "surrogatepass").rfind(b"".join(tokens))
        if start is None or covered < 0:
            return None
        begin = len(output[:start].encode("utf-8", "surrogatepass")) - covered
        end = begin + len(label.encode())
        for position, token in zip(positions, tokens, strict=True):
            if begin >= 0 and end <= len(token):
                return position, token[:begin].decode(errors="replace"), token[end:].decode(errors="replace")
            begin, end = begin - len(token), end - len(token)
        return None

    def _deciding(self, output: str, label: str, finish_reason: str | None) -> int | None:
        """Where in `output` the label stands that the words are read by.

        It is the last one that, exchanged for another label, changes the reading: so quoted labels and
        those in code are passed over by the very rules that read the reply.
        """
        other = next(name for name in self.labels if name != label)
        written = re.compile(rf"(?<![A-Za-z0-9]){re.escape(label)}(?![A-Za-z0-9])")
        # A verdict so early that a hundred mentions follow it is not worth a hundred readings more.
        for match in list(written.finditer(output))[:-101:-1]:
            changed = output[: match.start()] + other + output[match.end() :]
            if self._words.read_one(changed, finish_reason).label != label:
                return match.start()
        return None


@dataclass(frozen=True, slots=True)
class Score(Reader):
    """The last rating that the judge states, as it stands: nothing is rescaled, nothing defaults to a number.

    Args:
        low, high: the ends of the scale, both included.
        integer: ratings between whole numbers are out of range.

    Raises:
        ConfigError: `low` is not below `high`.
    """

    low: float
    high: float
    integer: bool = False
    version: ClassVar[str] = "score/1"
    _rules: ScoreRules = field(init=False, repr=False, compare=False)
    _readings: dict[str, Reading] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not -math.inf < self.low < self.high < math.inf:
            raise ConfigError(
                f"reader.low={self.low!r}, high={self.high!r}: low must be below high, both finite."
            )
        object.__setattr__(self, "_rules", ScoreRules(float(self.low), float(self.high), self.integer))
        usual = [number for number in range(101) if self.low <= number <= self.high]
        object.__setattr__(self, "_readings", {str(n): Reading(score=float(n)) for n in usual})

    def read_one(
        self, output: str | None, finish_reason: str | None, top_logprobs: str | None = None
    ) -> Reading:
        """Read one reply by its words; `top_logprobs` is not looked at."""
        if not isinstance(output, str):
            return Reading(reason="empty")
        if reading := self._readings.get(_plain_end(output)):
            return reading
        split = split_reasoning(output)
        if split.reason:
            return Reading(reason=split.reason)
        found = self._rules.find(split.answer, finish_reason == "length")
        return Reading(score=found.value, reason=found.reason)


# A reply that ends in brackets can be read from its last line alone if nothing before them is quotation,
# code, markup or JSON, and no word in the line could take the verdict back. Everything else goes through
# the rules, which give the same (tested). Many replies of instructed judges are of this kind, and this
# reads 200,000 of them a second where the rules read 30,000.
_UNUSUAL = '"`\\<>|{&'
_PLAIN = re.compile(r"[A-Za-z0-9 *#:,.()=-]{0,200}")
_DOUBT = re.compile(
    r"\b(?:an?|the|have|would|could|might|should|may|if|not|never|longer|neither|nor|for|of|than|to|unlike|with"
    r"|sa(?:y|ys|id|ying)|writes?|wrote|claims?|contains?|includes?|prints?|injects?|instructs?|demands?|quotes?"
    r"|output|print|return|respond|reply)\b",
    re.IGNORECASE,
)


def _plain_end(text: str) -> str:
    """What stands in the double brackets that end an unremarkable reply; "" for all other replies."""
    start = text.rfind("[[")
    stop = text.find("]]", start)
    if start < 0 or stop < 0 or not text.isascii() or text[stop + 2 :].strip(" \n*."):
        return ""
    line = text[text.rfind("\n", 0, start) + 1 : start]
    if not _PLAIN.fullmatch(line) or _DOUBT.search(line) or any(map(text[:start].__contains__, _UNUSUAL)):
        return ""
    return "" if "THINK]" in text else text[start + 2 : stop]


def _checked(labels: Mapping[str, float]) -> dict[str, float]:
    """The labels as text and float.

    Raises:
        ConfigError: fewer than two labels, a label that YAML made no text, or a number outside [0, 1].
    """
    if len(labels) < 2:
        raise ConfigError(f"reader.labels={dict(labels)!r}: give at least two labels with their preferences.")
    for label, number in labels.items():
        if isinstance(label, bool) or not str(label).strip():
            raise ConfigError(f"reader.labels: {label!r} is no text; write yes, no, on and off in quotes.")
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number <= 1:
            raise ConfigError(f"reader.labels.{label}={number!r}: a preference is a number from 0 to 1.")
    return {str(label): float(number) for label, number in labels.items()}


def _positions(top_logprobs: object) -> list[dict[str, Any]]:
    """The positions in the store's JSON; empty where there are none or the text is not of that shape."""
    if not isinstance(top_logprobs, str):
        return []
    try:
        positions = json.loads(top_logprobs)
    except (ValueError, RecursionError):
        return []
    is_list = isinstance(positions, list) and all(isinstance(position, dict) for position in positions)
    return positions if is_list else []


_NEVER = -9999.0  # vLLM's word for minus infinity; others take null or what their floats hold
_ROUNDING = 0.1  # half-precision sums give log probabilities just above 0


def _alternatives(position: dict[str, Any]) -> dict[str, float]:
    """Token -> log probability at a position: the sampled token and the top ones, unknown ones left out.

    Empty where a number is so far above 0 that none of them can be a log probability.
    """
    listed = position.get("top_logprobs")
    found: dict[str, float] = {}
    for entry in [position, *listed] if isinstance(listed, list) else [position]:
        if not isinstance(entry, dict):
            continue
        token, logprob = entry.get("token"), entry.get("logprob")
        if not isinstance(token, str) or isinstance(logprob, bool) or not isinstance(logprob, (int, float)):
            continue
        if logprob > _ROUNDING:
            return {}
        if logprob > _NEVER:
            found[token] = max(min(float(logprob), 0.0), found.get(token, -math.inf))
    return found


def _token_bytes(position: dict[str, Any]) -> bytes:
    """A token's bytes: one character may be spread over several tokens, whose text is then unusable."""
    listed = position.get("bytes")
    if isinstance(listed, list) and all(type(byte) is int and 0 <= byte < 256 for byte in listed):
        return bytes(listed)
    return str(position.get("token") or "").encode("utf-8", "surrogatepass")
