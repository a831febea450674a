"""Reading the answer in a final text: which part of it is the answer, and which number that is.

Everything here is a pure function over ASCII numbers, bounded in time on any text: only the end of
a long text is searched, and no pattern can backtrack over it. What cannot be read with certainty
is None, which earns nothing; that is safer than a guess that a policy can learn to exploit.

Which words around a number leave it the number it is, and which change it or take it back, is the
second half: `5 apples` is 5; `5 million`, `5!`, `5 alternatively six` and `not 5` are not. The
words are those of English, a closed list for each kind: what changes a value only where it stands
right after the number (`5 squared`, but `5 litres to drink`), what never occurs with a committed
answer (negations, alternatives, doubts, further numbers in words).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import cast

MAX_NUMBER_CHARS = 400
SEARCHED_CHARS = 4000
"""How much of the end of a text is searched for an answer."""
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

_SIGN = r"(?P<sign>[-+]?)(?:[$€£]\s?)?(?P<sign2>[-+]?)"
_AMOUNT = (
    r"(?P<digits>(?:(?<![0-9.,])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+)"
    r"(?P<exponent>[eE][-+]?[0-9]{1,3})?(?:\s?/\s?(?P<denominator>[0-9]+))?"
    r"(?:(?P<percent>\s*(?:%|(?i:percent\b)))|\s?[€£°])?"
)
_NUMBER = _SIGN + _AMOUNT
_WHOLE = re.compile(_NUMBER + r"\Z")
# The atomic group stops the engine from giving digits back to make what follows fit. A word may
# follow as a unit, unless it changes the number.
_LEADING = re.compile(
    rf"(?>{_NUMBER})(?=\s*\Z|[,;:)](?:\s|\Z)|\s+(?!(?:{CHANGES_IT})\b)[A-Za-z])", re.IGNORECASE
)
# A sign belongs to a number where it follows no value.
_ANYWHERE = re.compile(rf"(?:(?<![\w.)\]]){_SIGN})?{_AMOUNT}", re.ASCII)
_FUNCTION = r"(?:[dt]?frac|sqrt|sin|cos|tan|log|ln|exp)"
_CUT_BEFORE = re.compile(
    rf"(?:[\^}}]|[\^_}}]\{{|[0-9][./:]?|\\{_FUNCTION} |(?<![A-Za-z]){_FUNCTION}[({{]?)\Z"
)
_CUT_AFTER = re.compile(r"\s*(?:\^|π|\\?pi\b|\\(?:sqrt|frac)\b)")
"""What makes a number a part of something else: `2^10`, `3/5/2024`, `\\sqrt{2}`, `5π`."""
_STATED = re.compile(
    r"\b(?:answer|result)\s{0,4}(?:is\b|:|=)[\s:*]{0,8}|####\s{0,4}(?=[-+$€£0-9.]|\\[dt]?frac)",
    re.I,
)
# After a number or a letter of its own, `!` is the factorial.
_SENTENCE_END = re.compile(r"(?:\.|(?<=[^\W\d][^\W\d])!)(?:\s|\Z)")
_AROUND_SIGN = re.compile(r"\s*([^\w\s])\s*")

CHARACTERS = {
    **{code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)},  # full-width forms of ASCII
    **dict.fromkeys(map(ord, "\u200b\u200c\u200d\u2060\ufeff")),  # of no width
    **{ord("−"): "-", ord("∞"): "\\infty", ord("⩾"): "≥", ord("⩽"): "≤"},
}
"""For `str.translate`: other forms of the same characters."""
_RELATIONS = {"g": "≥", "l": "≤", "n": "≠"}
_SPELLINGS: Sequence[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = (
    (re.compile(r"(?<=[0-9])(?<!\b0)(?:\{,\}|,\\!)(?=[0-9]{3}(?![0-9]))"), ""),
    (re.compile(r"(?<!\\)\\(?:([%$&#{}])|[;: ]|(?<=,\\),)"), lambda match: match[1] or " "),
    (re.compile(r"\\(?:left|right|[bB]igg?[lr]?)(?![A-Za-z])|(?<!\\)\\[,!()\[\]]"), ""),
    (re.compile(r"\\([gln])eq?(?:slant)?(?![A-Za-z])"), lambda match: _RELATIONS[match[1]]),
    (re.compile(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))|\\degree(?![A-Za-z])"), "°"),
)
LATEX_TEXT = re.compile(r"\\(?:text[a-z]*|mbox|math(?:rm|bf|it|sf|tt))\s*\{([^{}]*)\}")
_FRACTION = re.compile(r"(?<![0-9.])\\[dt]?frac\s*\{\s*(-?[0-9]+)\s*\}\s*\{\s*([0-9]+)\s*\}")


def plain_text(text: str) -> str:
    r"""Rewrite other forms of the same characters, brackets and signs: `１`, `\left(`, `\geq`."""
    text = text if text.isascii() else text.translate(CHARACTERS)
    for pattern, replacement in _SPELLINGS if "\\" in text or "{" in text else ():
        text = pattern.sub(replacement, text)
    return text.replace(">=", "≥").replace("<=", "≤")


def _plain_numbers(text: str) -> str:
    r"""Rewrite `plain_text` further, where only numbers are read: `\text{5}`, `\frac{1}{2}`."""
    return _FRACTION.sub(r"\1/\2", LATEX_TEXT.sub(r"\1", plain_text(text)))


def read_number(value: object) -> Fraction | None:
    """The number that `value` is as a whole, or None.

    Reads signs, decimals, exponents, `1/2`, a sign of currency or degrees, well-formed thousands
    separators and percent (`50%` is 1/2). Only the ASCII digits, and their full-width forms, are
    digits.
    """
    if isinstance(value, bool) or _too_long(value):
        return None
    match = _WHOLE.match(_plain_numbers(str(value)).strip().strip("$").strip())
    return _value(match) if match else None


def is_empty(answer: object) -> bool:
    """True for what nothing can be compared with: null, a text of blanks, and a list that has a
    null or nothing but these."""
    if isinstance(answer, (list, tuple)):
        items = cast("Sequence[object]", answer)
        return None in items or all(map(is_empty, items))
    return answer is None or (isinstance(answer, str) and not answer.strip())


def answer_text(answer: object) -> str:
    """The answer of a task as text; null is the empty one, which no final text equals."""
    return "" if answer is None else str(answer)


def true_answer(answer: object) -> object:
    """The answer of a task without its solution: `X` of a text that ends in `#### X` (GSM8K)."""
    if isinstance(answer, str) and "####" in answer:
        return answer.rpartition("####")[2].strip()
    return answer


def find_number(text: str) -> Fraction | None:
    """The number that a final text gives as its answer, or None.

    That is the whole text, or what follows the last `answer is`, `result:`, `#### ` or is in the
    last box; a unit may follow, another number may not.
    """
    whole = read_number(without_period(text.strip())) if not _too_long(text) else None
    if whole is not None:
        return whole
    answer = stated_answer(text)
    if answer is None:
        return None
    exact = read_number(answer)
    return leading_number(answer) if exact is None else exact


def last_number(text: str) -> Fraction | None:
    """The last number of a text, whatever stands around it; None without one.

    A sign belongs to it where it follows no value: `10-5` ends in 5, `is -5` in -5. One that is a
    part of something else is none: `2^10`, `3/5/2024`.
    """
    text = _plain_numbers(text[-SEARCHED_CHARS:])
    matches = list(_ANYWHERE.finditer(text))
    if not matches or _too_long(matches[-1][0]):
        return None
    match = matches[-1]
    before = text[: match.start()][-7:]
    # `2 1/2` is neither 2 nor 1/2.
    mixed = match["denominator"] and re.search(r"[0-9] \Z", before)
    cut = mixed or _CUT_BEFORE.search(before) or _CUT_AFTER.match(text, match.end())
    return None if cut else _value(match)


def leading_number(answer: str) -> Fraction | None:
    """The number that an answer such as `12 pens` begins with; None for `12 or 13`, `2 pi`.

    What follows must leave it as it is.
    """
    match = _LEADING.match(answer)
    if match is None or _too_long(match[0]) or not is_unit(answer[match.end() :]):
        return None
    return _value(match)


def stated_answer(text: str) -> str | None:
    r"""What the text marks as its answer: the last `\boxed{}`, `#### X`, `answer is X`."""
    tail = plain_text(text[-SEARCHED_CHARS:])
    boxed = last_box(tail)
    if boxed is not None:
        return boxed.strip()
    heads = list(_STATED.finditer(tail))
    # `answer is` may be denied by what leads to it: `it is not true that the`.
    if not heads or _DENIED_CLAIM.search(tail[: heads[-1].start()][-_LOOKED_AT:]):
        return None
    answer = tail[heads[-1].end() :].partition("\n")[0]
    end = _SENTENCE_END.search(answer)
    if end:
        answer = answer[: end.start()]
    return answer.strip(" \t\r*`#")


def normalise_text(text: str) -> str:
    """For comparing answers as strings: case, spacing, `$`, box and a final period do not count.

    Nor does what stands before the last `####`. A text too long to be an answer is returned as it
    is.
    """
    boxed = last_box(text)
    text = str(true_answer(text)) if boxed is None else boxed
    if len(text) > SEARCHED_CHARS:
        return text
    text = LATEX_TEXT.sub(r"\1", plain_text(unicodedata.normalize("NFC", text))).replace("$", "")
    text = " ".join(without_period(text.casefold().strip()).split())
    # Separators are dropped only from a text that is a number: in "1, 234" they list.
    is_number = _WHOLE.match(text)
    text = _AROUND_SIGN.sub(r"\1", text)
    return text.replace(",", "") if is_number else text


def without_period(text: str) -> str:
    """The text without the period that ends it.

    `5...` goes on and stays as it is; of `3.33...` the digits are what was meant.
    """
    bare = text.rstrip(".")
    cut = len(text) - len(bare)
    return text if cut > 1 and re.search(r"(?<![0-9.])[0-9]+\Z", bare) else bare


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


def _too_long(value: object) -> bool:
    return isinstance(value, str) and len(value) > MAX_NUMBER_CHARS


def _value(match: re.Match[str]) -> Fraction | None:
    signs = (match["sign"] or "") + (match["sign2"] or "")
    denominator = match["denominator"]
    if len(signs) > 1 or (denominator is not None and not int(denominator)):
        return None
    value = Fraction(match["digits"].replace(",", "") + (match["exponent"] or ""))
    value /= int(denominator or 1)
    if match["percent"]:
        value /= 100
    return -value if signs == "-" else value


def last_box(text: str) -> str | None:
    r"""The content of the last `\boxed{...}` of a text, braces matched.

    None without a closed one, and where the words around it take it back.
    """
    text = text[-SEARCHED_CHARS:]
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth, begin = 0, start + len("\\boxed")
    for at in range(begin, len(text)):
        if text[at] == "{":
            depth += 1
        elif text[at] == "}":
            depth -= 1
            if not depth:
                before, after = text[:start][-_LOOKED_AT:], text[at + 1 :][:_LOOKED_AT]
                denied = _BEFORE.search(before) or _AFTER.match(after)
                return None if denied else text[begin + 1 : at]
    return None
