"""Which words around a number leave it the number it is, and which change it or take it back.

`5 apples` is 5; `5 million`, `5!`, `5 alternatively six` and `not 5` are not. The words are those
of English, a closed list for each kind: what changes a value only where it stands right after the
number (`5 squared`, but `5 litres to drink`), what never stands beside a committed answer
(negations, alternatives, doubts, further numbers in words). What is not certain is refused, since
a policy finds what is accepted by mistake; `answers.py` and `equations.py` ask here.
"""

from __future__ import annotations

import re

MOST_WORDS = 12
"""Words after a number that may still be its unit; more is a sentence of its own."""

_NUMBER_WORDS = (
    "zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|"
    "fifteen|sixteen|seventeen|eighteen|nineteen|twenty|thirty|forty|fifty|sixty|seventy|eighty|"
    "ninety|hundreds?|thousands?|millions?|billions?|trillions?|dozens?|half|halves"
)
_DENIED = (
    r"not|nor|neither|never|cannot|\w+n['’]t|wrong|incorrect|false|untrue|invalid|mistaken|"
    "impossible|unlikely"
)
_OPEN = (
    "or|alternatively|either|else|otherwise|instead|rather|versus|vs|maybe|perhaps|possibly|"
    "probably"
)
_BESIDE = "no|none|nothing|unless|except|negative|minus|negated|plus|between|if|than|least|most"
DENIED_OR_OPEN = re.compile(rf"\b(?:{_DENIED}|{_OPEN})\b", re.IGNORECASE)
"""Words that never stand before an answer that is committed to one number."""
_UNCOMMITTED = re.compile(rf"\b(?:{_NUMBER_WORDS}|{_DENIED}|{_OPEN}|{_BESIDE})\b", re.IGNORECASE)
"""Words that never stand after one."""
_NUMBER_WORD = re.compile(rf"(?:\s*-?\s*\b(?:{_NUMBER_WORDS})\b)+\s*\Z", re.IGNORECASE)
CHANGES_IT = (
    "[a-z]|pi|percent|squared|cubed|times|over|divided|multiplied|to|by|and|mod|modulo|point|"
    "factorial|raised|power|less|halved|doubled|tripled|score|gross|thirds?|fourths?|fifths?|"
    "sixths?|sevenths?|eighths?|ninths?|tenths?|hundredths?|thousandths?|increased|decreased"
)
"""What right after a number changes it."""

_SYMBOLS = re.compile(r"[=<>±+*^≠≤≥≈|¬~∨]|\\[A-Za-z]")
_BEFORE = re.compile(
    r"(?:\b(?:not|never|neither|nor|cannot|except|than|without)|n['’]t|≠|¬|!=|<>|\\ne|\\neq|\\lnot)"
    r"(?:\s+(?:be|equals?|equal\s+to|exactly|the|final|correct|right|answer|is))*[\s$:(*]*\Z",
    re.IGNORECASE,
)
_AFTER = re.compile(
    r"[\s$*)]*(?:(?:is|was|would\s+be|seems)\s+)?"
    r"(?:not\b|wrong\b|incorrect\b|false\b|untrue\b|(?:is|was|ca|wo)n['’]t\b|!)",
    re.IGNORECASE,
)
_DENIED_CLAIM = re.compile(
    r"(?:\b(?:not|never|cannot|doubt|deny|false|wrong|incorrect|untrue|unlikely)|n['’]t)"
    r"(?:\s+(?:true|correct|right|clear|certain|sure|the|case|think|believe|say|claim|mean|know|"
    r"agree|if|whether|that|final|my|your|a|an))*\s*\Z",
    re.IGNORECASE,
)
_LOOKED_AT = 60
"""Characters before and after a marked answer that could take it back."""


def is_unit(text: str) -> bool:
    """Whether what follows a number leaves it as it is: a unit, the thing counted, or nothing."""
    return (
        len(text.split()) <= MOST_WORDS
        and not any(ch.isdigit() for ch in text)
        and not _UNCOMMITTED.search(text)
        and not _SYMBOLS.search(text)
    )


def is_number_word(text: str) -> bool:
    """Whether a text is a number in words, such as `six`, and nothing else."""
    return bool(_NUMBER_WORD.match(text))


def taken_back(before: str, after: str) -> bool:
    """Whether the words beside a marked answer, such as a box, deny it."""
    return bool(_BEFORE.search(before[-_LOOKED_AT:]) or _AFTER.match(after[:_LOOKED_AT]))


def denied_claim(before: str) -> bool:
    """Whether `answer is` is denied by what leads to it: `it is not true that the`."""
    return bool(_DENIED_CLAIM.search(before[-_LOOKED_AT:]))
