"""Keys stay out of files and messages, whatever a server or a library echoes.

Hidden first, cut afterwards: half a key would not be found any more. This file does not know engines.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterable
from dataclasses import replace
from itertools import accumulate
from typing import Any
from urllib.parse import quote, unquote

from judgebench.engine import Response
from judgebench.engine.faults import Fault

MARK = "***"
DETAIL_CHARS = 500
# Answers are kept as received, so a short stand-in for a key (EMPTY, sk-no-key-required) is no secret there.
_SURELY_A_KEY = 20
_TEXTS = ("output", "finish_reason", "reasoning", "served_model", "fingerprint", "top_logprobs")
_USERINFO = re.compile(r"(?<=//)[^/?#]*@")


def shown(url: str) -> str:
    """A URL for people: without user name, password, query and fragment."""
    return re.split("[?#]", _USERINFO.sub("", url), maxsplit=1)[0]


class Secrets:
    """The secrets of one route, in every spelling in which they may come back. It has no repr of them.

    Args:
        key: the API key.
        urls: whose user names and passwords are secrets too: base_url, proxy.
    """

    __slots__ = ("_keys", "_spellings")

    def __init__(self, key: str | None, *urls: str | None) -> None:
        plain = {key or ""}
        for url in urls:
            if found := _USERINFO.search(url or ""):
                user, _, password = found[0][:-1].partition(":")
                sent = f"{unquote(user)}:{unquote(password)}"  # by Basic authentication
                plain |= {password or user, unquote(password or user), b64encode(sent.encode()).decode()}
        spelled = {
            spelling
            for secret in plain
            for spelling in (secret, quote(secret, safe=""), json.dumps(secret)[1:-1], repr(secret)[1:-1])
        }
        # `non-empty` is not the stand-in EMPTY in another spelling.
        spelled |= {spelling.lower() for spelling in spelled if len(spelling) >= _SURELY_A_KEY}
        self._spellings = sorted(spelled - {""}, key=len, reverse=True)
        self._keys = [spelling for spelling in self._spellings if len(spelling) >= _SURELY_A_KEY]

    def hide(self, text: str, most: int | None = None) -> str:
        """The text without the secrets, then cut to `most` characters."""
        return _without(self._spellings, text)[:most]

    def hide_in_fault(self, fault: Fault) -> Fault:
        """The fault, whose detail and output hold no secret; the detail cut."""
        fault.detail = self.hide(fault.detail, DETAIL_CHARS)
        fault.output = fault.output and self.hide(fault.output)
        fault.finish_reason = fault.finish_reason and self.hide(fault.finish_reason)
        return fault

    def hide_in_answer(self, response: Response) -> Response:
        """The answer, none of whose texts holds a key."""
        texts: dict[str, str] = {name: text for name in _TEXTS if (text := getattr(response, name))}
        if not any(key in text for key in self._keys for text in texts.values()):
            return response
        hidden: dict[str, Any] = {name: _without(self._keys, text) for name, text in texts.items()}
        if response.top_logprobs:
            hidden["top_logprobs"] = self._without_tokens(response.top_logprobs)
        return replace(response, **hidden)

    def _without_tokens(self, logprobs: str) -> str:
        """Logprobs none of whose tokens are a piece of a key: joined, the pieces would be the key again."""
        entries = json.loads(logprobs)
        tokens = [entry["token"] for entry in entries]
        starts, spelled = [0, *accumulate(map(len, tokens))], "".join(tokens)
        for key in self._keys:
            at = spelled.find(key)
            while at >= 0:
                for number, entry in enumerate(entries):
                    if starts[number] < at + len(key) and at < starts[number + 1]:
                        entry.update(token=MARK, top_logprobs=[])
                at = spelled.find(key, at + 1)
        for option in (option for entry in entries for option in entry["top_logprobs"]):
            option["token"] = _without(self._keys, option["token"])
        return json.dumps(entries, ensure_ascii=False)


def _without(spellings: Iterable[str], text: str) -> str:
    for spelling in spellings:
        text = text.replace(spelling, MARK)
    return text
