"""Extract the final answer from a text and read it as a number.

All functions are pure, read ASCII numbers and take bounded time on any text: only the end of a
long text is searched, and no pattern can backtrack over it. A text that cannot be read with
certainty gives None and earns no reward, which is safer than a guess that a policy can exploit.

Words around a number may change or retract it: `5 apples` is 5; `5 million`, `5!`,
`5 alternatively six` and `not 5` are not. Each kind of word is a closed English list: words that
change a value only directly after the number (`5 squared`, but `5 litres to drink`), and words
that never occur with a definite answer (negations, alternatives, doubts, further number words).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import cast

MAX_NUMBER_CHARS = 400
SEARCHED_CHARS = 4000
"""Number of characters at the end of a text that are searched for an answer."""
MAX_UNIT_WORDS = 12
"""Maximum number of words in a unit after a number; longer text is a new sentence."""

_NUMBER_WORDS = (
    "zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|"
    "fifteen|sixteen|seventeen|eighteen|nineteen|twenty|thirty|forty|fifty|sixty|seventy|eighty|"
    "ninety|hundreds?|thousands?|millions?|billions?|trillions?|dozens?|half|halves"
)
_DENIED = (
    r"not|nor|neither|never|cannot|\w+n['’]t|wrong|incorrect|false|untrue|invalid|mistaken|"
    "impossible|unlikely"
)
_CHOICE = (
    "or|alternatively|either|else|otherwise|instead|rather|versus|vs|maybe|perhaps|possibly|"
    "probably"
)
_OTHERS = "no|none|nothing|unless|except|negative|minus|negated|plus|between|if|than|least|most"
NEGATION_OR_CHOICE = re.compile(rf"\b(?:{_DENIED}|{_CHOICE})\b", re.IGNORECASE)
"""Words that never precede a definite answer."""
_UNCOMMITTED = re.compile(rf"\b(?:{_NUMBER_WORDS}|{_DENIED}|{_CHOICE}|{_OTHERS})\b", re.I)
"""Words that never follow a definite answer."""
_NUMBER_WORD = re.compile(rf"(?:\s*-?\s*\b(?:{_NUMBER_WORDS})\b)+\s*\Z", re.IGNORECASE)
MODIFIERS = (
    "[a-z]|pi|percent|squared|cubed|times|over|divided|multiplied|to|by|and|mod|modulo|point|"
    "factorial|raised|power|less|halved|doubled|tripled|score|gross|thirds?|fourths?|fifths?|"
    "sixths?|sevenths?|eighths?|ninths?|tenths?|hundredths?|thousandths?|increased|decreased"
)
"""Words that change a number when they follow it directly."""

_SYMBOLS = re.compile(r"[=<>±+*^≠≤≥≈|¬~∨]|\\[A-Za-z]")
_NEGATED_BEFORE = re.compile(
    r"(?:\b(?:not|never|neither|nor|cannot|except|than|without)|n['’]t|≠|¬|!=|<>|\\ne|\\neq|\\lnot)"
    r"(?:\s+(?:be|equals?|equal\s+to|exactly|the|final|correct|right|answer|is))*[\s$:(*]*\Z",
    re.IGNORECASE,
)
_NEGATED_AFTER = re.compile(
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
_CONTEXT_CHARS = 60
"""Number of characters around a marked answer that are searched for a retraction."""

_SIGN = r"(?P<sign>[-+]?)(?:[$€£]\s?)?(?P<sign2>[-+]?)"
_AMOUNT = (
    r"(?P<digits>(?:(?<![0-9.,])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+)"
    r"(?P<exponent>[eE][-+]?[0-9]{1,3})?(?:\s?/\s?(?P<denominator>[0-9]+))?"
    r"(?:(?P<percent>\s*(?:%|(?i:percent\b)))|\s?[€£°])?"
)
_NUMBER = _SIGN + _AMOUNT
_WHOLE = re.compile(_NUMBER + r"\Z")
# The atomic group prevents backtracking into the digits. A word may follow as a unit, unless it
# changes the number.
_LEADING = re.compile(
    rf"(?>{_NUMBER})(?=\s*\Z|[,;:)](?:\s|\Z)|\s+(?!(?:{MODIFIERS})\b)[A-Za-z])", re.IGNORECASE
)
# A sign belongs to a number unless it follows a value.
_ANYWHERE = re.compile(rf"(?:(?<![\w.)\]]){_SIGN})?{_AMOUNT}", re.ASCII)
_FUNCTION = r"(?:[dt]?frac|sqrt|sin|cos|tan|log|ln|exp)"
_CUT_BEFORE = re.compile(
    rf"(?:[\^}}]|[\^_}}]\{{|[0-9][./:]?|\\{_FUNCTION} |(?<![A-Za-z]){_FUNCTION}[({{]?)\Z"
)
_CUT_AFTER = re.compile(r"\s*(?:\^|π|\\?pi\b|\\(?:sqrt|frac)\b)")
"""Context that makes a number part of a larger term: `2^10`, `3/5/2024`, `\\sqrt{2}`, `5π`."""
_STATED = re.compile(
    r"\b(?:answer|result)\s{0,4}(?:is\b|:|=)[\s:*]{0,8}|####\s{0,4}(?=[-+$€£0-9.]|\\[dt]?frac)",
    re.I,
)
# After a number or a single letter, `!` is the factorial.
_SENTENCE_END = re.compile(r"(?:\.|(?<=[^\W\d][^\W\d])!)(?:\s|\Z)")
_SPACED_SIGN = re.compile(r"\s*([^\w\s])\s*")

CHARACTERS = {
    **{code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)},  # full-width forms of ASCII
    **dict.fromkeys(map(ord, "\u200b\u200c\u200d\u2060\ufeff")),  # zero-width characters
    **{ord("−"): "-", ord("∞"): "\\infty", ord("⩾"): "≥", ord("⩽"): "≤"},
}
"""Table for `str.translate` that replaces variants of characters."""
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
    r"""Normalise variants of characters, brackets and signs: `１`, `\left(`, `\geq`."""
    text = text if text.isascii() else text.translate(CHARACTERS)
    for pattern, replacement in _SPELLINGS if "\\" in text or "{" in text else ():
        text = pattern.sub(replacement, text)
    return text.replace(">=", "≥").replace("<=", "≤")


def _simplify_numbers(text: str) -> str:
    r"""Normalise text for reading numbers, resolving `\text{5}` and `\frac{1}{2}` too."""
    return _FRACTION.sub(r"\1/\2", LATEX_TEXT.sub(r"\1", plain_text(text)))


def read_number(value: object) -> Fraction | None:
    """Parse a complete text or value as a number, or return None if it is not a number.

    Reads signs, decimals, exponents, `1/2`, a sign of currency or degrees, well-formed thousands
    separators and percent (`50%` is 1/2). Only ASCII digits and their full-width forms count.
    """
    if isinstance(value, bool) or _is_too_long(value):
        return None
    match = _WHOLE.match(_simplify_numbers(str(value)).strip().strip("$").strip())
    return _to_fraction(match) if match else None


def is_empty(answer: object) -> bool:
    """Return True if an answer is null, blank, or a list with null or only empty items."""
    if isinstance(answer, (list, tuple)):
        items = cast("Sequence[object]", answer)
        return None in items or all(map(is_empty, items))
    return answer is None or (isinstance(answer, str) and not answer.strip())


def answer_text(answer: object) -> str:
    """Convert a task's answer to text. None becomes empty text, which matches nothing."""
    return "" if answer is None else str(answer)


def strip_solution(answer: object) -> object:
    """Strip the worked solution from an answer: return `X` for `... #### X` (GSM8K)."""
    if isinstance(answer, str) and "####" in answer:
        return answer.rpartition("####")[2].strip()
    return answer


def find_number(text: str) -> Fraction | None:
    """Extract the final numeric answer of a text, or return None if there is none.

    Reads the whole text, or what follows the last `answer is`, `result:` or `#### `, or the last
    box. A unit may follow the number, but not another number.
    """
    whole = read_number(strip_period(text.strip())) if not _is_too_long(text) else None
    if whole is not None:
        return whole
    answer = find_marked_answer(text)
    if answer is None:
        return None
    exact = read_number(answer)
    return read_leading_number(answer) if exact is None else exact


def find_last_number(text: str) -> Fraction | None:
    """Extract the last number of a text, ignoring other words, or return None.

    A sign belongs to the number unless it follows a value: `10-5` ends in 5, `is -5` in -5. A
    number that is part of a larger term gives None: `2^10`, `3/5/2024`.
    """
    text = _simplify_numbers(text[-SEARCHED_CHARS:])
    matches = list(_ANYWHERE.finditer(text))
    if not matches or _is_too_long(matches[-1][0]):
        return None
    match = matches[-1]
    before = text[: match.start()][-7:]
    # `2 1/2` is neither 2 nor 1/2.
    mixed = match["denominator"] and re.search(r"[0-9] \Z", before)
    cut = mixed or _CUT_BEFORE.search(before) or _CUT_AFTER.match(text, match.end())
    return None if cut else _to_fraction(match)


def read_leading_number(answer: str) -> Fraction | None:
    """Parse the number at the start of an answer such as `12 pens`, or return None.

    Returns None if the following words change it, as in `12 or 13` and `2 pi`.
    """
    match = _LEADING.match(answer)
    if match is None or _is_too_long(match[0]) or not is_unit(answer[match.end() :]):
        return None
    return _to_fraction(match)


def find_marked_answer(text: str) -> str | None:
    r"""Extract the marked answer of a text: the last `\boxed{}`, `#### X` or `answer is X`."""
    tail = plain_text(text[-SEARCHED_CHARS:])
    boxed = find_last_box(tail)
    if boxed is not None:
        return boxed.strip()
    heads = list(_STATED.finditer(tail))
    # The words before `answer is` may negate it: `it is not true that the`.
    if not heads or _DENIED_CLAIM.search(tail[: heads[-1].start()][-_CONTEXT_CHARS:]):
        return None
    answer = tail[heads[-1].end() :].partition("\n")[0]
    end = _SENTENCE_END.search(answer)
    if end:
        answer = answer[: end.start()]
    return answer.strip(" \t\r*`#")


def normalise_text(text: str) -> str:
    """Normalise an answer for string comparison.

    Removes case, spacing, `$`, the box, a final period and everything up to the last `####`. A
    text too long to be an answer is returned unchanged.
    """
    boxed = find_last_box(text)
    text = str(strip_solution(text)) if boxed is None else boxed
    if len(text) > SEARCHED_CHARS:
        return text
    text = LATEX_TEXT.sub(r"\1", plain_text(unicodedata.normalize("NFC", text))).replace("$", "")
    text = " ".join(strip_period(text.casefold().strip()).split())
    # Remove thousands separators only if the whole text is a number: "1, 234" is a list.
    is_number = _WHOLE.match(text)
    text = _SPACED_SIGN.sub(r"\1", text)
    return text.replace(",", "") if is_number else text


def strip_period(text: str) -> str:
    """Remove the final period of a text.

    `5...` is an open sequence and is kept; `3.33...` is reduced to its digits.
    """
    bare = text.rstrip(".")
    cut = len(text) - len(bare)
    return text if cut > 1 and re.search(r"(?<![0-9.])[0-9]+\Z", bare) else bare


def is_unit(text: str) -> bool:
    """Return True if the text after a number is a unit, a counted noun, or empty."""
    return (
        len(text.split()) <= MAX_UNIT_WORDS
        and not any(ch.isdigit() for ch in text)
        and not _UNCOMMITTED.search(text)
        and not _SYMBOLS.search(text)
    )


def is_number_word(text: str) -> bool:
    """Return True if the whole text is a number word, such as `six`."""
    return bool(_NUMBER_WORD.match(text))


def _is_too_long(value: object) -> bool:
    return isinstance(value, str) and len(value) > MAX_NUMBER_CHARS


def _to_fraction(match: re.Match[str]) -> Fraction | None:
    signs = (match["sign"] or "") + (match["sign2"] or "")
    denominator = match["denominator"]
    if len(signs) > 1 or (denominator is not None and not int(denominator)):
        return None
    value = Fraction(match["digits"].replace(",", "") + (match["exponent"] or ""))
    value /= int(denominator or 1)
    if match["percent"]:
        value /= 100
    return -value if signs == "-" else value


def find_last_box(text: str) -> str | None:
    r"""Return the content of the last `\boxed{...}` of a text, with balanced braces.

    Returns None if there is no closed box, or if the words around it negate it.
    """
    text = text[-SEARCHED_CHARS:]
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth, begin = 0, start + len("\\boxed")
    for i in range(begin, len(text)):
        if text[i] == "{":
            depth += 1
        elif text[i] == "}":
            depth -= 1
            if not depth:
                before, after = text[:start][-_CONTEXT_CHARS:], text[i + 1 :][:_CONTEXT_CHARS]
                denied = _NEGATED_BEFORE.search(before) or _NEGATED_AFTER.match(after)
                return None if denied else text[begin + 1 : i]
    return None
