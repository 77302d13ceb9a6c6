"""Text that looks like what is judged: paragraphs, quotes, line breaks; a third holds letters beyond ASCII.

Of older models' answers a tenth does, of recent ones' nearly all (dashes, quotation marks), and such text
costs several times as much to escape and encode.
"""

from __future__ import annotations

import random

_OPENINGS = (
    "The first thing to settle is|In most cases|A careful reader will notice that|For this reason|By contrast"
    "|As the question says|To be precise|Once that is done|There is one exception:|Put differently"
).split("|")
_SUBJECTS = (
    "the interest rate|a second witness|the train from the coast|an index on both columns|the old recipe"
    '|the word "fair"|every clause of the contract|the café on the corner|a loop over the remaining items'
    "|the treaty of 1648|its author|the control group"
).split("|")
_VERBS = (
    "depends on|is easily mistaken for|comes before|has little to do with|explains|contradicts"
    "|costs more than|was replaced by|should be weighed against|follows from"
).split("|")
_ENDS = (
    "what was agreed in spring.|the sum of the first two.|a rule of thumb that holds up to about 10,000 rows."
    "|the reading that most textbooks give.|how long the dough has rested – overnight, ideally."
    "|the answer that was asked for.\n\n|an assumption nobody has tested.\n- |the next step:\n\n"
).split("|")
_SENTENCES = 2000


def _pools() -> tuple[list[str], list[str]]:
    draw = random.Random(7)
    parts = (_OPENINGS, _SUBJECTS, _VERBS, _ENDS)
    pool = [" ".join(draw.choice(part) for part in parts) for _ in range(_SENTENCES)]
    return pool, [sentence for sentence in pool if sentence.isascii()]


MIXED, PLAIN = _pools()


def prose(name: str, size: int) -> str:
    """`size` characters that depend on `name` alone and begin with it."""
    draw, text = random.Random(name), f"({name})"
    pool = PLAIN if draw.random() < 2 / 3 else MIXED
    while len(text) < size:
        text += " " + " ".join(draw.choices(pool, k=1 + size // 80))
    return text[:size].rstrip()
