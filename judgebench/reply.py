"""What a judge says in its own voice: normal characters, no quotations and no code, cut into units.

A reply holds more than the judge's verdict: reasoning, quoted answers, forged verdicts inside those
quotes, instructions repeated. Everything that is not the judge's own statement is blanked here, for
parsing only; the stored text stays as it is. JSON objects and tags in which the judge *does* state its
verdict (`{"winner": "B"}`, `<score>4</score>`) are turned into the line `Verdict: [[B]]`.

This file does not know labels, scores or frames.
"""

from __future__ import annotations

import json
import re
import unicodedata
from functools import cache

BLANK = "\ufffc"  # stands for a quotation or code; no word, no space, so it never looks like a verdict's end

# All characters of Unicode category Cf in the basic plane, and the emoji variation selectors: invisible.
_FORMAT = re.compile(
    "[\u00ad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u202a-\u202e"
    "\u2060-\u2064\u2066-\u206f\ufe00-\ufe0f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
# NFKC would turn 7½ into 71⁄2 and a footnote mark into a digit.
_SPECIAL = re.compile("[½¼¾⁰¹²³⁴-⁹₀-₉【】〖〗⟦⟧−‒–]")
_SPECIAL_TO = {"½": ".5", "¼": ".25", "¾": ".75", "⟦": "[[", "⟧": "]]", "−": "-", "‒": "-", "–": "-"}
_SPECIAL_TO |= {"【": "[", "〖": "[", "】": "]", "〗": "]"}

_ENTITY = re.compile("&(lt|gt|quot|amp|#39|nbsp);")
_ENTITY_TO = {"lt": "<", "gt": ">", "quot": '"', "amp": "&", "#39": "'", "nbsp": " "}

# Every branch begins with one character, so that the engine skips to the next of them: 20 times faster.
_BLANKED = re.compile(
    r"""
      ```+ (?:.*?```+|.*\Z)                                 # code block; unclosed, it runs to the end
    | `[^`\n]+`
    | \n[ \t]*>[^\n]*                                       # block quote
    | " (?<![A-Za-z0-9"]") (?:[^"]*"(?![A-Za-z0-9])|[^"\n]*$) # unclosed, it runs to the end of the line
    | “[^”]*(?:”|\Z) | „[^“”]*[“”] | «[^»]*» | 「[^」]*」 | 『[^』]*』
    | ' (?<![A-Za-z0-9']') (?=\S) (?:[^'\n]|(?<=[A-Za-z])'(?=[A-Za-z]))* (?<=\S)' (?![A-Za-z0-9])
    | ‘ (?:[^‘’\n]|(?<=[A-Za-z])’(?=[A-Za-z]))* ’
    """,
    re.VERBOSE | re.MULTILINE | re.DOTALL,
)
_QUOTING = re.compile("[`\"'“„«「『‘>]")
# The judge's own verdict put in quotes or code by itself: a heading for it before, nothing behind.
_OWN_QUOTE = re.compile(
    r"""(^[ \t#*]*(?:(?:my|the|final|overall)\s+)*(?:verdict|decision|judge?ment|rating)"""
    r"""[\s*]*(?:[:：][\s*]*|\n\s*))"""
    r"""(["“`]{1,3})([^"“”`]{1,200})["”`]{1,3}([\s.*]*)\Z""",
    re.IGNORECASE | re.MULTILINE,
)

_ESCAPE = re.compile(r"\\(?:(?:boxed|text(?:bf|it|rm)?|math(?:bf|rm|it))(?=\s*\{)|[\[\](){}<>*_$#=.!-])")
_LATEX = re.compile(r"\{([^{}\n]{1,80})\}")
_TABLE_ROW = re.compile(r"\n[ \t]*\|([^\n]*)")
_TAG = re.compile(r"</?[A-Za-z][\w-]*\s*/?>")

_RATED = "score rating overall grade points"
_KEYS = {
    "score": _RATED,
    "label": f"winner verdict decision preference preferred choice better judgment judgement result {_RATED}",
}
_QUALIFIERS = r"(?:final|overall|total|my)[_ ]?"

# A JSON object of the judge's own begins a line, perhaps in a fence.
_OBJECT = re.compile(r"\n(?:[ \t]*```\w*[ \t]*\n)?[ \t]*(?=\{\s*[\"'}])")
_OBJECT_END = re.compile(r"\s*(?:```[ \t]*)?")
_OWN_INTRO = re.compile(
    r"verdict|judge?ment|evaluation|decision|result|json|assessment|rating|score|\bmy\b", re.IGNORECASE
)
_OTHERS_INTRO = re.compile(
    r"\b(?:assistant|answer|response|reply|output|model|candidate)\b.*"
    r"\b(?:is|was|says|said|contains|ends|closes|returns|includes|prints|gives|writes|wrote|reads|with)\b",
    re.IGNORECASE,
)
_DECODER = json.JSONDecoder()
_NO_BRACKETS = str.maketrans("", "", "[]\n\r")

# The end of a line, or of a sentence; or a conclusion within one ("…, so 2/5"), which stands for itself.
_UNIT_END = re.compile(
    r"[.!?。,;\n\r\x0b\x0c\x85\u2028\u2029](?:"
    r"(?<=[.!?])(?<!\be\.g\.)(?<!\bi\.e\.)(?<!\bvs\.)[)\]]*\s+"
    r"|(?<=[,;])\s+(?=(?:so|therefore|thus|hence|finally|final|因此|所以)\b)"
    r"|(?<![.!?,;])\s*)"
)

_REFUSAL = re.compile(
    r"\bI(?:['’]m| am| must| have to| do)*(?: respectfully)? (?:cannot|can['’]?t|can not|won['’]t|will not"
    r"|unable to|not able to|not feel comfortable|decline(?: to)?|refuse(?: to)?) (?:help|assist|evaluat|judg"
    r"|rank|rat|compar|grad|scor|provid|comply|engag|fulfil|assess|respond|answer|continu|participat|encourag"
    r"|take part|do th|do so|make th|give|offer|complete|process)"
    r"|(?:无法|不能|拒绝)[^。\n]{0,20}(?:评价|评判|评估|比较|协助|回答|提供)",
    re.IGNORECASE,
)


class Units:
    """The sentences and lines of a cleaned reply, in order; none is empty. Cut out only when asked for."""

    def __init__(self, text: str) -> None:
        self._text = text.strip()
        self._ends = [match.end() for match in _UNIT_END.finditer(self._text)]
        if self._text and (not self._ends or self._ends[-1] < len(self._text)):
            self._ends.append(len(self._text))

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, i: int) -> str:
        return self._text[self._ends[i - 1] if i else 0 : self._ends[i]].rstrip()

    def after(self, i: int) -> str:
        """All that follows unit `i`."""
        return self._text[self._ends[i] :]


def cleaned(text: str, kind: str) -> Units:
    """The judge's own words in `text` (without reasoning), for the rules of `kind`: "label" or "score"."""
    text = "\n" + normalised(text)
    if "{" in text:
        text = _objects_to_lines(text, kind)
    if _QUOTING.search(text):
        if text.rstrip(" \n*.")[-1:] in ('"', "”", "`"):
            text = _OWN_QUOTE.sub(r"\1\3\4", text)
        text = _BLANKED.sub(BLANK, text)
    if "\\" in text:
        text = _ESCAPE.sub(lambda m: m[0][1:] if len(m[0]) == 2 else "", text)
        text = _LATEX.sub(r"\1", text)
    text = text.replace("*", "").replace("__", "").replace("$", "")
    if "</" in text:
        text = _tag_pair(kind).sub(r"\nVerdict: \1\n", text)
    if "<" in text:
        text = _TAG.sub(" ", text)
    if "|" in text:
        text = _TABLE_ROW.sub(lambda m: "\n" + ": ".join(filter(None, map(str.strip, m[1].split("|")))), text)
    return Units(text.replace("[RESULT]", "\n[RESULT]"))


def normalised(text: str) -> str:
    """NFKC without its traps for numbers; no invisible characters, plain brackets and entities resolved."""
    if not text.isascii():
        text = _FORMAT.sub("", text)
        text = _SPECIAL.sub(lambda m: _SPECIAL_TO.get(m[0], " "), text)
        text = unicodedata.normalize("NFKC", text)
    if "&" in text:
        text = _ENTITY.sub(lambda m: _ENTITY_TO[m[1]], text)
    return text


def is_refusal(text: str) -> bool:
    """Whether a reply that holds no verdict declines to give one."""
    return _REFUSAL.search(text) is not None


@cache
def _tag_pair(kind: str) -> re.Pattern[str]:
    return re.compile(rf"<{_key(kind).pattern}>\s*([^<]{{1,80}}?)\s*</\w+>", re.IGNORECASE)


@cache
def _key(kind: str) -> re.Pattern[str]:
    return re.compile(rf"(?:{_QUALIFIERS})?(?:{_KEYS[kind].replace(' ', '|')})", re.IGNORECASE)


@cache
def _broken_pair(kind: str) -> re.Pattern[str]:
    value = r"""(?:"([^"\n]*)"|'([^'\n]*)'|([\w.+-]+))"""
    return re.compile(rf"""["']({_key(kind).pattern})["']\s*:\s*{value}\s*(?=[,}}\n])""", re.IGNORECASE)


def _objects_to_lines(text: str, kind: str) -> str:
    """Replace each JSON object that is the judge's own by its verdict, as `Verdict: [[value]]`."""
    pieces = []
    done = 0
    for match in list(_OBJECT.finditer(text))[-20:]:  # each may be searched to the end of the text
        if match.start() < done:
            continue
        fields, end = _object(text, match.end(), kind)
        end = _OBJECT_END.match(text, end).end()  # type: ignore[union-attr]
        if fields and _is_own(text[done : match.start()], text[end:]):
            values = " ".join(f"[[{value.translate(_NO_BRACKETS)}]]" for value in fields)
            closed = "" if text[:end].rstrip("` \n\t").endswith("}") else BLANK
            pieces.append(f"{text[done : match.start()]}\nVerdict: {values}\n{closed}")
            done = end
    return "".join(pieces) + text[done:]


def _object(text: str, start: int, kind: str) -> tuple[list[str], int]:
    """The verdict values of the JSON object at `start`, broken ones included, and where it ends."""
    try:
        found, end = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        end = text.rfind("}", start) + 1 or len(text)
        return [m[2] or m[3] or m[4] or "" for m in _broken_pair(kind).finditer(text, start, end)], end
    while len(found) == 1 and isinstance(inner := next(iter(found.values())), dict):
        found = inner
    return [str(value) for name, value in found.items() if _key(kind).fullmatch(name)], end


def _is_own(before: str, after: str) -> bool:
    """Whether an object is the judge's statement rather than something it shows."""
    intro = before.rstrip().rpartition("\n")[2].strip(" *#")
    if intro.endswith((":", "：")):
        return _OWN_INTRO.search(intro) is not None and _OTHERS_INTRO.search(intro) is None
    return not intro or not after.strip()
