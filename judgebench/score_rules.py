"""Which rating a judge's own words settle on, on a scale from `low` to `high`.

Ratings come in two strengths, as labels do (`label_rules`): *stated* ones (`Rating: [[8]]`, `[RESULT] 4`,
`Score: 8/10`, a JSON field), of which the last unit decides, and ratings in *prose* ("a solid three out of
five"), which count only where none is stated. A number off the scale, or on another scale ("85/100" where
10 is the top), is out of range: it is never rescaled. Numbers that merely count something are no ratings.

This file does not know labels or frames.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from judgebench.reply import BLANK, Units, cleaned, is_refusal

_WORDS = "zero one two three four five six seven eight nine ten".split()
_NUMBER = rf"(?a:[-+]?(?:\d+(?:[.,]\d{{1,2}})?|\.\d{{1,2}})(?![\d%])(?![.,]\d)|\b(?:{'|'.join(_WORDS)})\b)"
_OF = r"(?:/|\bout of\b|\bof\b|\bvon\b|\bsur\b|\bde\b|\bsu\b|\bиз\b|\bav\b)"
_POINTS = r"(?:points?|stars?|punkte|puntos|点|分|점)"
# A number, perhaps the other end of a range, perhaps the top of its scale.
_VALUE = (
    rf"(?P<value>{_NUMBER})(?:\s*(?:-|to\b|or\b|and\b|bis\b|~)\s*(?P<until>{_NUMBER}))?"
    rf"(?:\s*{_POINTS})?(?:\s*[\])}}]*\s*\(?{_OF}\s*[\[({{]*(?P<top>{_NUMBER})[\])}}]*)?(?:\s*{_POINTS})?"
)
_ENDS = (
    r"(?=[\])}]*\s*(?:$|[.,;:!)—](?!\d)|\(|\s-\s|。"
    r"|(?:because|since|as|due to|from|overall|in total|and|but)\b))"
)
_BRACKET = re.compile(r"\[ ?\[([^\[\]\n]{1,40})\] ?\]")
_INSIDE = re.compile(rf"\s*(?:\w+\s*:?\s*)??{_VALUE}\s*$", re.IGNORECASE)
_CUE = re.compile(
    r"[\s#=>•(-]*(?:\d+[.)]\s*)?(?:(?:so|therefore|thus|hence|overall|finally|in conclusion)\b[,:]?\s+)?"
    r"(?:(?:the|my|i would give an?|final|overall|total|initial|preliminary|numerical|numeric)\s+)*"
    r"(?:\[RESULT\]|(?:score|rating|grade|mark|verdict|overall|note|nota|bewertung|punktzahl|gesamtnote"
    r"|puntuación|calificación|puntaje|punteggio|voto|pontuação|оценка|评分|得分|分数|打分|評価|スコア|点数|점수|평점)\b"
    r"(?:\s+(?:finale?|final|globale|total)\b)?"
    r"(?:\s+(?:of|for) (?:the|this) (?:\w+ )?(?:response|answer|reply|output|submission|essay|assistant)\b)?)"
    r"\s*(?P<is>(?:is|would be|ist|est|es|è|:|=|—|-|->|=>)*)\s*(?:an?\s+)?[\[({]*",
    re.IGNORECASE,
)
_CUED = re.compile(rf"{_VALUE}(?!(?:\s*\([^()]*\))?\s*(?:,|and\b)\s*\d){_ENDS}", re.IGNORECASE)
_GIVEN = re.compile(
    r"\bI(?:'d| would| will|'ll| must| have to)?(?: (?:rate|score|grade|give|award|assign|place|put)"
    r" (?:it|this|that|the|an?)\b| settle on)(?:(?!\b(?:would|could|if|instead|not)\b)[^\d,;:.]){0,60}?"
    rf"\s{_VALUE}{_ENDS}",
    re.IGNORECASE,
)
_FRACTION = re.compile(
    rf"(?<![\w/.]){_VALUE}(?:\s*(?:from me|in my (?:view|opinion)))?{_ENDS}", re.IGNORECASE
)
_STARS = re.compile(rf"^\W*(?P<value>{_NUMBER})[\s-]stars?\b(?!\s+\w)", re.IGNORECASE)
_REACH = 200  # characters before a rating that may take it back
_NUMERIC = re.compile(rf"\d|[★⭐]|\b(?:{'|'.join(_WORDS)})\b", re.IGNORECASE)
_ASPECT = re.compile(r"\W*\w+(?: \w+){0,2}:\s*")  # "Relevance: 5/5" rates one aspect
_DRAWN_STARS = re.compile(r"([★⭐]+)(☆*)")
_UNSURE_CUE = re.compile(r"\b(?:note|nota|mark)\b", re.IGNORECASE)  # "Note: 3, 4 and 5 are wrong."
_SUPPOSED = re.compile(
    r"\b(?:would|could|might|should) (?:have|need|be|require|take|handle)\b|\bif (?:it|the|they)\b"
    r"|\ban? \S+ (?:answer|response|reply|essay|rating|score) (?:would|should|is|has|needs)\b|\bnot an?\b"
    r"|\b(?:instead of|rather than)\b|^\W*(?:for|to (?:get|earn|reach|deserve)) an?\s*$",
    re.IGNORECASE,
)
_CONCLUDES = re.compile(
    r"\b(?:overall|so|therefore|thus|hence|final|finally|settle|in conclusion|in total)\b", re.I
)


class Rated(NamedTuple):
    """A rating in a unit: a number on the scale, or the reason why it is none."""

    value: float
    reason: str | None  # None, "ambiguous" (a range), "out_of_range"
    end: int  # offset in the unit
    could_grow: bool  # more digits would give another number on the scale: 1 may be the start of 10


class Found(NamedTuple):
    """The rating a reply settles on, or None and the reason."""

    value: float | None
    reason: str | None


class ScoreRules:
    """The rules for one scale; `integer` makes numbers between the steps out of range."""

    def __init__(self, low: float, high: float, integer: bool) -> None:
        self._low, self._high, self._integer = low, high, integer

    def find(self, text: str, cut: bool) -> Found:
        """The rating that `text`, a reply without its reasoning, settles on; `cut`: it hit its cap."""
        parts = cleaned(text, "score")
        if not parts:
            return Found(None, "empty")
        said: list[tuple[int, list[Rated]]] = []
        for i in reversed(range(len(parts))):
            if stated := self._stated(parts, i):
                return self._settled(stated, parts, i, cut)
            if ratings := self._said(parts[i]):
                said.append((i, ratings))
        if not said:
            return Found(None, "truncated" if cut else "refusal" if is_refusal(text) else "no_verdict")
        i, ratings = said[0]
        agree = {rating.value for _, others in said for rating in others} == {ratings[-1].value}
        if not agree and not cut and not _CONCLUDES.search(parts[i]):
            return Found(None, "ambiguous")
        return self._settled(ratings, parts, i, cut)

    def _settled(self, ratings: list[Rated], parts: Units, i: int, cut: bool) -> Found:
        """What the deciding unit comes to, given all that follows it."""
        last = ratings[-1]
        tail = parts[i][last.end :] + parts.after(i)
        if cut and (re.search(rf"[\w{BLANK}]", tail) or (last.could_grow and tail.strip() in ("", "."))):
            return Found(None, "truncated")
        if len({rating.value for rating in ratings}) > 1:
            return Found(None, "ambiguous")
        return Found(None, last.reason) if last.reason else Found(last.value, None)

    def _stated(self, parts: Units, i: int) -> list[Rated]:
        """The ratings put down in unit `i`, in order."""
        unit = parts[i]
        found = []
        for bracket in _BRACKET.finditer(unit):
            inside = _INSIDE.fullmatch(bracket[1])
            if inside and not _SUPPOSED.search(unit[max(bracket.start() - _REACH, 0) : bracket.start()]):
                found.append(self._rated(inside)._replace(end=bracket.end(), could_grow=False))
        if found:
            return found
        cue = _CUE.match(unit)
        if cue is None and (len(parts) == 1 or self._is_heading(parts, i - 1)):
            cue = re.match("", unit)  # "### Rating" and "8" below it, or "8" alone
        value = cue and _CUED.match(unit, cue.end())
        if cue and value and (value["top"] or not _UNSURE_CUE.search(cue[0])):
            return [self._rated(value)]
        return []

    def _is_heading(self, parts: Units, i: int) -> bool:
        return i >= 0 and (cue := _CUE.match(parts[i])) is not None and cue.end() == len(parts[i])

    def _said(self, unit: str) -> list[Rated]:
        """The ratings that a unit gives in prose: "I would give it a 7", "3/5", "4 stars"."""
        if not _NUMERIC.search(unit) or _SUPPOSED.search(unit):
            return []
        found = []
        for match in _FRACTION.finditer(unit):
            of_all = match["top"] and _number(match["top"]) == self._high
            if of_all and not _ASPECT.fullmatch(unit, 0, match.start()):
                found.append(self._rated(match))
        if not found:
            given = [match for match in _GIVEN.finditer(unit) if match["top"] or not match["value"].isalpha()]
            found = [self._rated(match) for match in given]
        if not found and (few := _STARS.match(unit)):
            found = [self._rated(few)]
        if not found and (stars := _DRAWN_STARS.search(unit)):
            of = len(stars[1] + stars[2])
            reason = "out_of_range" if of > self._high or (stars[2] and of != self._high) else None
            found = [Rated(float(len(stars[1])), reason, stars.end(), True)]
        return found

    def _rated(self, match: re.Match[str]) -> Rated:
        parts = match.groupdict()
        value = _number(parts["value"])
        top = _number(parts["top"]) if parts.get("top") else None
        on_scale = self._low <= value <= self._high and (value.is_integer() or not self._integer)
        reason = None if on_scale and top in (None, self._high) else "out_of_range"
        if parts.get("until") and _number(parts["until"]) != value:
            reason = "ambiguous"
        end = max(match.end(name) for name in parts)
        return Rated(value, reason, end, (value if top is None else top) * 10 <= self._high)


def _number(written: str) -> float:
    word = written.lower()
    return float(_WORDS.index(word)) if word in _WORDS else float(word.replace(",", "."))
