"""Which label a judge's own words settle on. Compiled once from the labels, then total on any text.

Statements come in two strengths. A *stated* label was put down as the verdict: `[[A]]`, `Verdict: A`, a
field of JSON, a line that is nothing but the label. The last unit (sentence or line) that states one
decides, and two different labels in it decide nothing. Only where no label is stated does *prose* count
("Assistant A is better."), and only in sentences that say nothing else: most sentences with "better" in
them weigh one aspect, and reading those would be a verdict that nobody gave.

Labels that are supposed ("would have earned [[A]]"), reported ("the answer says [[A]]") or denied ("not
[[A]]") are not stated. This file does not know frames, numbers other than the ends of the scale, or scores.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from judgebench.errors import ConfigError
from judgebench.reply import BLANK, Units, cleaned, is_refusal

_NOUNS = (
    "assistant answer response output model candidate reply completion text solution summary translation"
    " story essay system assistent assistente asistente antwort respuesta resposta réponse risposta"
    " ответ ассистент 助手 回答 答案 模型 アシスタント 어시스턴트"
).split()
_TIES = (
    "tie tied draw equal equallygood bothequal bothareequal empate égalité unentschieden gleichstand pareggio"
    " ничья 平局 平手 引き分け 무승부"
).split()
_NOUN = f"(?:{'|'.join(_NOUNS)})s?"
_SEPARATORS = re.compile(r"[\s()\[\]{}\"'*_]+")

_BRACKET = re.compile(r"\[ ?\[\s*([^\[\]\n]{1,60}?)\s*\] ?\]")
_REACH = 200  # characters before a label that may take it back
# What stands before a label, in its own clause, when the label is supposed or reported.
_SUPPOSED = re.compile(
    r"(?:\b(?:would|could|might|should|may)(?:n't)? (?:\w+ )?have (?:\w+ ){0,3}"
    r"|\b(?:graders?|judges?|people|readers?|reviewers?|evaluators?|others?|one|someone|some|many|they|users?)"
    r" (?:would|could|might|may) (?:\w+ ){0,3}"
    r"|\bif (?!I (?:must|had to|have to|need to))(?:\w+ ){0,12}"
    r"|\b(?:says?|said|saying|writes?|wrote|claims?|contains?|includes?|prints?|ends with|closes with"
    r"|injects?|instructs?|demands?|quotes?|(?:asked|asks|told|tells) (?:\w+ )?to \w+)"
    r"(?: the (?:\w+ )?| a | an | )?[:(]?\s*"
    r"|\bthe (?:text|string|words?|phrase|line|marker) "
    r"|(?:^|[:,;] )(?:please )?(?:output|print|write|return|(?:answer|respond|reply) with) )$",
    re.IGNORECASE,
)
_DENIED = re.compile(
    r"(?:(?:\b(?:not(?! only)|never|no longer|neither|nor)|n't)\s(?:\w+ ){0,3}"
    r"|\b(?:instead of|rather than|other than|worse than|unlike)\s(?:\w+ ){0,2})$",
    re.IGNORECASE,
)
_CONDITION_AFTER = re.compile(
    r"\s*(?:\?|(?:if|when|means?|stands for|for an? (?:tie|draw)|would|could)\b)", re.IGNORECASE
)
_RETRACTION = re.compile(
    r"\bI(?:'ve| have)? changed? my mind|\bI (?:must |have to |need to |should )?(?:revise|correct myself"
    r"|correct my|withdraw|retract|take that back)|\bon second thoughts?\b",
    re.IGNORECASE,
)

_LEAD = (
    r"(?:(?:so|therefore|thus|hence|overall|finally|in (?:conclusion|summary|short|sum|the end|my opinion)"
    r"|on balance|all in all|to sum up|for these reasons|all things considered|因此|所以|综上所述"
    r"|综上|总之|总体而言|总的来说|したがって|よって)\b\s*[,，:：、]?\s*"
    r"(?:(?:based on|given|considering|in light of)(?:(?!\b(?:alone|only|solely|purely)\b)[^,;.]){1,150}"
    r",\s*)?)"
)
_CUE_NOUN = (
    rf"(?:verdict|decision|winner|judge?ment|grade|preference|vote|(?:better|best|stronger) (?:{_NOUN}|one)"
    r"|overall|veredicto|decisión|ganador|urteil|entscheidung|gewinner|verdetto|vincitore|vencedor|gagnant"
    r"|vainqueur|вердикт|победитель|最终判决|最终裁决|最终结论|最终评判|判决|裁决|判断|判定|评判结果|胜者|获胜者"
    r"|結論|勝者|판정|승자)(?:\s+(?:final|finale|définitif))?"
)
_CUE = re.compile(
    rf"[\s#=>•(-]*(?:\d+[.)]\s*)?{_LEAD}?(?:(?:the|my|our|le|el|il|das|mein)\s+)*"
    rf"(?:(?:final|overall|clear|mi)\s+)*"
    rf"(?:{_CUE_NOUN}(?:\s+(?:of (?:this|the) \w+|overall|here))?|\[RESULT\])\s*"
    r"(?:(?:(?:is|ist|est|es|goes to)\b(?:\s+that\b)?|=>|->|[:：=—是为-])\s*[:：]?\s*|(?=$|[(\[{]))",
    re.IGNORECASE,
)
_MY_CHOICE = re.compile(
    r"\bmy (?:final |overall )?(?:choice|pick|verdict|decision|preference|judge?ment|vote)"
    r" (?:is|goes to|remains)(?: that)?\s*:?\s*",
    re.IGNORECASE,
)
_OTHER_HEADING = re.compile(
    r"answer|option|question|solution|response|antwort|respuesta|答案|^#|:$|^\W*\w[).:]\s", re.IGNORECASE
)

_ADVERB = (
    r"(?:(?:slightly|significantly|clearly|much|marginally|somewhat|overall|far|definitely|also|a bit)\s+)*"
)
_BETTER = (
    rf"(?:is|was|ist|est|es|é|è)\s+{_ADVERB}(?:the\s+)?{_ADVERB}"
    r"(?:better|best|superior|stronger|preferable|preferred|winner|besser|mejor|meilleure?|melhor|migliore)\b"
    rf"(?:\s+(?:one|{_NOUN}|choice|option|overall|of the two))?"
)
_BETTER_CJK = r"(?:更好|更优|更胜一筹|胜出|获胜|のほうが優れている|の方が優れている)"
_BECAUSE = r"(?:because|since|due to|as (?:it|they)|mainly|overall|weil|porque|car)\b|,\s*(?:as|for|with)\b"
_ENDS = rf"(?=\s*[.!]?\s*$|\s*[,;:]?\s*(?:{_BECAUSE})|\s*[。！]|\s+[—-]\s)"
_I_FIND = r"(?:I (?:believe|think|find|conclude|feel|judge|would say|'d say)(?: that)?\s+|我认为)?"
_TIE_WORD = re.compile(
    r"(?:an?\s+|it(?:'s| is) an?\s+)?(?:overall\s+|clear\s+)?"
    r"(?:tied?|draw|平局|平手|引き分け|empate|égalité|unentschieden)(?=\s*$|\s*[.,;:!)。，（(-])",
    re.IGNORECASE,
)
_TIE_PROSE = re.compile(
    rf"(?P<lead>{_LEAD})?{_I_FIND}(?:"
    r"(?:so )?(?:it|this)(?:'s| is)(?: therefore| clearly)? a (?:tie|draw)"
    r"|I(?:'d| would| will)? (?:call|declare) (?:it|this) a (?:tie|draw)"
    rf"|neither(?: of (?:them|the (?:two|{_NOUN})))?(?: {_NOUN})? is (?:clearly |significantly )?better"
    r"(?: than the other)?"
    rf"|(?:both|the two)(?: {_NOUN})? are (?:equally good|equal|tied|of equal quality|equal in quality)"
    rf"|there is no (?:clear )?winner){_ENDS}"
    r"|^(?:两者|两位助手|两个回答)[^，。]{0,8}(?:平局|不相上下)[。]?$",
    re.IGNORECASE,
)


class Stated(NamedTuple):
    """A label put down as the verdict; None where what was announced as the verdict is none of the labels."""

    label: str | None
    end: int  # offset in the unit
    closed: bool  # no longer word can begin like this


class Said(NamedTuple):
    """A label preferred in prose, in which unit, and whether as a conclusion ("Therefore, ...")."""

    label: str | None
    unit: int
    concludes: bool


class Found(NamedTuple):
    """The label a reply settles on, or None and the reason."""

    label: str | None
    reason: str | None


class LabelRules:
    """The rules for one set of labels, given as label -> preference in [0, 1].

    Raises `ConfigError` for labels that cannot be told apart in a text.
    """

    def __init__(self, labels: Mapping[str, float]) -> None:
        # m and M are two labels in AlpacaEval; everywhere else case means nothing.
        self._has_case = len({label.casefold() for label in labels}) < len(labels)
        ties = [label for label, preference in labels.items() if preference == 0.5]
        self._tie = ties[0] if len(ties) == 1 else None
        first, second = (
            [label for label, preference in labels.items() if preference == end and ">" not in label]
            for end in (0.0, 1.0)
        )
        self._forms = self._spellings(labels, first, second)

        anyone = _alternatives(labels, self._has_case)
        side = _alternatives(first + second, self._has_case)
        self._value = re.compile(
            rf"{_subject(anyone)}(?:\s+{_BETTER}|\s+wins\b)?"
            rf"(?P<after>\s*$|\s*[.,;:!)—](?!\w)|\s+-\s|\s+(?:{_BECAUSE}))",
            re.IGNORECASE,
        )
        self._another = re.compile(
            rf"\s*(?:[,/&]|\b(?:and|or|und|oder|et|ou|y|o)\b)+\s*(?:{_NOUN}\s*)?{anyone}(?!\w)",
            re.IGNORECASE,
        )
        than = rf"than\s+(?:the other(?: {_NOUN}| one)?|(?:{_NOUN}\s*)?\(?{side}\)?(?:['’]s(?: {_NOUN})?)?)"
        self._prose = [
            re.compile(pattern, re.IGNORECASE)
            for pattern in (
                rf"(?P<lead>{_LEAD})?{_I_FIND}{_subject(side)}\s*(?:{_BETTER}|wins\b|{_BETTER_CJK})"
                rf"(?:\s+overall)?(?:\s+{than})?{_ENDS}",
                rf"(?P<lead>{_LEAD})?I(?:'d| would| will| must| have to)?\s+(?:prefer|choose|pick|select"
                rf"|favou?r|go with|vote for)\s+{_subject(side)}"
                rf"(?:\s+as the (?:better|best|winner)\b.*|\s+over\b.*)?{_ENDS}",
            )
        ]
        self._elliptic = re.compile(rf"{_subject(side)}\s+is\s*[.!]?$", re.IGNORECASE)

    def find(self, text: str, cut: bool) -> Found:
        """The label that `text`, a reply without its reasoning, settles on; `cut`: it hit its cap."""
        parts = cleaned(text, "label")
        if not parts:
            return Found(None, "empty")
        denied: set[str] = set()
        said: list[Said] = []
        for i in reversed(range(len(parts))):
            stated = self._stated(parts, i, denied)
            if stated:
                tail = parts[i][stated[-1].end :] + parts.after(i)
                return self._settled(stated, denied, said, tail, cut)
            said += self._said(parts, i)
        if cut and not (
            said and said[0].unit == len(parts) - 1 and parts[len(parts) - 1].endswith((".", "。"))
        ):
            return Found(None, "truncated")
        if not said:
            return Found(None, "refusal" if is_refusal(text) else "no_verdict")
        contradicted = any(other.label != said[0].label for other in said)
        if said[0].label in denied or (contradicted and not said[0].concludes):
            return Found(None, "ambiguous")
        return Found(said[0].label, None)

    def _settled(
        self, stated: list[Stated], denied: set[str], said: list[Said], tail: str, cut: bool
    ) -> Found:
        """What the last unit that states a label comes to, given all that follows it."""
        last = stated[-1]
        if cut and (not last.closed or re.search(rf"[\w{BLANK}]", tail)):
            return Found(None, "truncated")
        if last.label is None:
            return Found(None, "no_verdict")
        others = {statement.label for statement in stated} | {statement.label for statement in said[:1]}
        if others != {last.label} or last.label in denied or _RETRACTION.search(tail):
            return Found(None, "ambiguous")
        return Found(last.label, None)

    def _stated(self, parts: Units, i: int, denied: set[str]) -> list[Stated]:
        """The labels put down in unit `i`, in order; those that it denies are added to `denied`."""
        unit = parts[i]
        if "[[" in unit or "[ [" in unit:
            labels = [Stated(self._resolved(m[1]), m.end(), True) for m in _BRACKET.finditer(unit)]
            labels = [stated for stated in labels if stated.label]
            if labels:
                owned = [self._is_owned(unit, stated, denied) for stated in labels]
                return labels if any(owned) else []
        cue = _CUE.match(unit) or ("my " in unit and _MY_CHOICE.search(unit))
        if cue and cue.end() < len(unit):
            return self._announced(unit, cue.end(), cue[0])
        if i and (heading := _CUE.match(parts[i - 1])) and heading.end() == len(parts[i - 1]):
            return self._announced(unit, 0, "")
        return self._alone(parts, i)

    def _is_owned(self, unit: str, stated: Stated, denied: set[str]) -> bool:
        """Whether a bracketed label is the judge's own verdict, by the words around it."""
        start = unit.rindex("[", 0, unit.rindex("[", 0, stated.end))
        before = unit[max(start - _REACH, 0) : start].rstrip("[ ") + " "
        if _DENIED.search(before):
            denied.add(stated.label or "")
            return False
        return not (_SUPPOSED.search(before) or _CONDITION_AFTER.match(unit, stated.end))

    def _announced(self, unit: str, start: int, cue: str) -> list[Stated]:
        """The label after a cue such as "Final verdict:"."""
        value = self._value.match(unit, start)
        if value and not self._another.match(unit, value.start("after")):
            label = self._resolved(value["label"])
            sure = bool(value["noun"] or value["open"]) or value["label"] == label
            if sure or not value["after"].strip():  # "a, b and c": an article is no label
                return [Stated(label, value.start("after"), sure)]
        rest = unit[start:]
        if (label := self._resolved(rest)) or (label := self._tie if _TIE_WORD.match(rest) else None):
            return [Stated(label, len(unit), True)]
        if len(rest) < 60 and re.search(r"(?:verdict|winner|decision)\s*[:：]", cue, re.IGNORECASE):
            return [Stated(None, len(unit), True)]
        return []

    def _alone(self, parts: Units, i: int) -> list[Stated]:
        """The label that is all of unit `i`, if that is the first or last and not one of several headings."""
        if i not in (0, len(parts) - 1) or len(parts[i]) > 40:
            return []
        label = self._resolved(parts[i])
        if label is None:
            return []
        if len(parts) > 1:
            has_noun = label != self._tie and self._key(parts[i]) != self._key(label)
            if has_noun or (i and _OTHER_HEADING.search(parts[i - 1])):
                return []
            if any(
                self._resolved(part) not in (None, label)
                for part in map(parts.__getitem__, range(len(parts)))
                if len(part) <= 40
            ):
                return []
        return [Stated(label, len(parts[i]), True)]

    def _said(self, parts: Units, i: int) -> list[Said]:
        """The preference that unit `i` expresses as a plain sentence, if any."""
        unit = parts[i]
        if i and parts[i - 1].endswith(":") and not _CUE.match(parts[i - 1]):
            return []  # under a heading: one aspect, not all
        if self._tie and (tie := _TIE_PROSE.match(unit)):
            return [Said(self._tie, i, bool(tie["lead"]))]
        for pattern in self._prose:
            if (match := pattern.match(unit)) and self._is_named(match):
                return [Said(self._resolved(match["label"]), i, bool(match["lead"]))]
        if (match := self._elliptic.match(unit)) and i and "better" in parts[i - 1]:
            return [Said(self._resolved(match["label"]), i, True)]
        return []

    def _is_named(self, match: re.Match[str]) -> bool:
        """Whether a label in prose is one: a lower-case letter without a noun may be an article."""
        written = match["label"]
        is_word = len(written) > 1 or not written.islower()
        return bool(match["noun"] or match["open"]) or (is_word and written == self._resolved(written))

    def _resolved(self, written: str) -> str | None:
        return self._forms.get(self._key(written)) if len(written) <= 60 else None

    def _key(self, written: str) -> str:
        key = _SEPARATORS.sub("", written).strip(".:,;!。")
        return key if self._has_case else key.casefold()

    def _spellings(self, labels: Mapping[str, float], first: list[str], second: list[str]) -> dict[str, str]:
        """Every form in which a label may stand alone, as in brackets or in a JSON field, and its label."""
        forms: dict[str, str] = {}
        for label in labels:
            key = self._key(label)
            if not key or key in forms:
                raise ConfigError(
                    f"labels {list(labels)!r}: {label!r} cannot be told from the others in a text."
                )
            forms[key] = label
        more = {noun + key: label for key, label in forms.items() for noun in _NOUNS}
        if self._tie:
            more |= dict.fromkeys(_TIES, self._tie)
        for key, label in forms.items():
            if comparison := re.fullmatch(r"([^<>=]+)([>=]+)([^<>=]+)", key):  # A>>B is also B<<A
                more[comparison[3] + comparison[2].replace(">", "<") + comparison[1]] = label
        if len(first) == len(second) == 1:  # a judge with three labels may still answer with five
            one, two = self._key(first[0]), self._key(second[0])
            for sign in (">", ">>"):
                more |= {one + sign + two: first[0], two + sign + one: second[0]}
                more |= {
                    two + sign.replace(">", "<") + one: first[0],
                    one + sign.replace(">", "<") + two: second[0],
                }
            if self._tie:
                more |= {f"{one}={two}": self._tie, f"{two}={one}": self._tie}
        return more | forms


def _alternatives(labels: Iterable[str], has_case: bool) -> str:
    either = "|".join(re.escape(label) for label in sorted(labels, key=len, reverse=True)) or r"(?!)"
    # ASCII, so that no letter but the label's own two cases matches: "ı" is no "I".
    return f"(?a-i:{either})" if has_case else f"(?a:{either})"


def _subject(label: str) -> str:
    """A pattern for one of the labels as it is named in a sentence: "the response by Assistant A"."""
    return (
        rf"(?:the\s+|l')?(?:{_NOUN}\s+(?:by|from|of)\s+)?(?P<noun>{_NOUN}\s*)?"
        rf"(?P<open>[\[({{]*)(?P<label>{label})(?![A-Za-z0-9_>=-]|['’](?!s\s))[\])}}]*(?:['’]s\s+{_NOUN}|的(?:回答|答案))?"
    )
