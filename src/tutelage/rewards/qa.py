"""Rewards for short answers: token F1 and exact match, as SQuAD scores them, and GAIA's scorer.

Normalisation and F1 are those of the SQuAD v1.1 evaluation (Rajpurkar et al. 2016): lower case,
without punctuation, articles and extra spaces; with several right answers the best counts. Only the
signs that make a number what it is stay: `-5` is not `5`, nor `1.5` `15`, nor `5!` or `5%` `5`. Yes
and no must match as a whole, as in HotpotQA's evaluation. All run on the event loop: the time is
linear in a text of bounded length.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

from tutelage.rewards.answers import CHARACTERS, answer_text
from tutelage.rewards.function import reward

LONGEST = 20_000
"""Characters; a longer text is no short answer and earns nothing."""
GAIA_TOLERANCE = 1e-6

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_IN_NUMBER = (
    r"(?<=[0-9])[-./:](?=[0-9])|(?<![\w.])-(?=\.?[0-9])|(?<![\w.])\.(?=[0-9])"
    r"|(?<=[0-9]),(?=[0-9])(?![0-9]{3}(?![0-9]))|(?<=[0-9])!\s*\Z|(?<=[0-9])%"
)
_NO_PART_OF_A_WORD = re.compile(rf"(?!{_IN_NUMBER})[{re.escape(string.punctuation)}]")
_WHOLE = ("yes", "no", "noanswer")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?\Z")
_NUMBER_SIGNS = str.maketrans("", "", "$%,")


def normalise(text: str) -> str:
    """SQuAD's form of an answer; numbers keep their sign, their point and their percent."""
    text = re.sub(r"(?<=[0-9])[ \\]+%", "%", text.translate(CHARACTERS).lower())
    text = _ARTICLES.sub(" ", _NO_PART_OF_A_WORD.sub("", text))
    return " ".join(text.split())


def _f1(prediction: str, truth: str) -> float:
    """Harmonic mean of precision and recall over the words of two answers."""
    text, true = normalise(prediction), normalise(truth)
    if text != true and (text in _WHOLE or true in _WHOLE):
        return 0.0
    given_words, true_words = text.split(), true.split()
    if not given_words or not true_words:
        return 0.0
    same = (Counter(given_words) & Counter(true_words)).total()
    if not same:
        return 0.0
    precision, recall = same / len(given_words), same / len(true_words)
    return 2 * precision * recall / (precision + recall)


@reward(inline=True)
def qa_f1_reward(prediction: str, answer: Any) -> dict[str, float]:
    """Word F1 with `answer`, or with the best of a list of answers. Part `exact` is exact match."""
    truths = _answers_of(answer)
    if len(prediction) > LONGEST:
        return {"reward": 0.0, "exact": 0.0}
    return {
        "reward": max((_f1(prediction, truth) for truth in truths), default=0.0),
        "exact": _exact(prediction, truths),
    }


@reward(inline=True)
def exact_match(prediction: str, answer: Any) -> float:
    """1.0 when the final text is `answer`, or one of a list, after SQuAD's normalisation."""
    return 0.0 if len(prediction) > LONGEST else _exact(prediction, _answers_of(answer))


def _answers_of(answer: Any) -> list[str]:
    """The right answers as texts: one, or those of a list."""
    if isinstance(answer, (list, tuple)):
        return [answer_text(item) for item in cast("Sequence[Any]", answer)]
    return [answer_text(answer)]


def _exact(prediction: str, truths: Sequence[str]) -> float:
    text = normalise(prediction)
    return float(bool(text) and any(text == normalise(truth) for truth in truths))


@reward(inline=True)
def gaia_scorer(prediction: str, answer: Any) -> float:
    """1.0 when GAIA (Mialon et al. 2023) would count the final text as `answer`.

    A number must be equal within 1e-6, without `$`, `%` and `,`; a list has equal length and equal
    elements in order; other text is equal without spaces, punctuation and case.
    """
    given, truth = prediction.translate(CHARACTERS), answer_text(answer).translate(CHARACTERS)
    parts, true_parts = [given], [truth]
    if _float(truth) is None and ("," in truth or ";" in truth):
        parts, true_parts = re.split("[,;]", given), re.split("[,;]", truth)
    same = len(parts) == len(true_parts) and all(map(_same_part, parts, true_parts))
    return float(len(prediction) <= LONGEST and same)


def _same_part(given: str, truth: str) -> bool:
    number = _float(truth)
    if number is not None:
        amount = _float(given.translate(_NUMBER_SIGNS))
        return amount is not None and abs(amount - number) <= GAIA_TOLERANCE
    wanted = _squeezed(truth)
    return bool(wanted) and _squeezed(given) == wanted


def _squeezed(text: str) -> str:
    return "".join(text.lower().translate(_PUNCTUATION).split())


def _float(text: str) -> float | None:
    """ASCII decimal numbers only: `float` would also read `nan`, `1_0` and other scripts."""
    text = text.strip()
    return float(text) if len(text) <= 400 and _NUMBER.match(text) else None
