"""Rewards for short answers: token F1 and exact match, as SQuAD scores them, and GAIA's scorer.

Normalisation and F1 follow the SQuAD v1.1 evaluation (Rajpurkar et al. 2016): lower case, without
punctuation, articles and extra spaces; the best of several right answers counts. Signs that change
a number are kept: `-5` is not `5`, `1.5` is not `15`, and `5!` and `5%` are not `5`. Yes and no
must match as a whole, as in HotpotQA's evaluation. All run on the event loop, because their time is
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

MAX_ANSWER_CHARS = 20_000
"""Longest text that is graded as a short answer; longer texts get 0.0."""
GAIA_TOLERANCE = 1e-6

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_KEPT_SIGNS = (
    r"(?<=[0-9])[-./:](?=[0-9])|(?<![\w.])-(?=\.?[0-9])|(?<![\w.])\.(?=[0-9])"
    r"|(?<=[0-9]),(?=[0-9])(?![0-9]{3}(?![0-9]))|(?<=[0-9])!\s*\Z|(?<=[0-9])%"
)
_REMOVED_SIGNS = re.compile(rf"(?!{_KEPT_SIGNS})[{re.escape(string.punctuation)}]")
_SPECIAL_ANSWERS = ("yes", "no", "noanswer")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?\Z")
_NUMBER_SIGNS = str.maketrans("", "", "$%,")


def normalise(text: str) -> str:
    """Normalise an answer as SQuAD does, but keep sign, decimal point and percent of numbers."""
    text = re.sub(r"(?<=[0-9])[ \\]+%", "%", text.translate(CHARACTERS).lower())
    text = _ARTICLES.sub(" ", _REMOVED_SIGNS.sub("", text))
    return " ".join(text.split())


def _compute_f1(prediction: str, truth: str) -> float:
    """Compute the word F1 score of two answers."""
    text, true = normalise(prediction), normalise(truth)
    if text != true and (text in _SPECIAL_ANSWERS or true in _SPECIAL_ANSWERS):
        return 0.0
    predicted_words, true_words = text.split(), true.split()
    if not predicted_words or not true_words:
        return 0.0
    overlap = (Counter(predicted_words) & Counter(true_words)).total()
    if not overlap:
        return 0.0
    precision, recall = overlap / len(predicted_words), overlap / len(true_words)
    return 2 * precision * recall / (precision + recall)


@reward(inline=True)
def qa_f1_reward(prediction: str, answer: Any) -> dict[str, float]:
    """Return the word F1 score of the final text for `answer`, or for the best of a list.

    Part `exact` is 1.0 for an exact match.
    """
    truths = _gold_answers(answer)
    if len(prediction) > MAX_ANSWER_CHARS:
        return {"reward": 0.0, "exact": 0.0}
    return {
        "reward": max((_compute_f1(prediction, truth) for truth in truths), default=0.0),
        "exact": _score_exact(prediction, truths),
    }


@reward(inline=True)
def exact_match(prediction: str, answer: Any) -> float:
    """Return 1.0 if the final text equals a correct answer after SQuAD's normalisation."""
    return _score_exact(prediction, _gold_answers(answer))


def _gold_answers(answer: Any) -> list[str]:
    """Convert a task's answer, or list of correct answers, to a list of texts."""
    if isinstance(answer, (list, tuple)):
        return [answer_text(item) for item in cast("Sequence[Any]", answer)]
    return [answer_text(answer)]


def _score_exact(prediction: str, truths: Sequence[str]) -> float:
    if len(prediction) > MAX_ANSWER_CHARS:
        return 0.0
    text = normalise(prediction)
    return float(bool(text) and any(text == normalise(truth) for truth in truths))


@reward(inline=True)
def gaia_scorer(prediction: str, answer: Any) -> float:
    """Return 1.0 if GAIA's scorer (Mialon et al. 2023) accepts the final text as `answer`.

    Numbers must be equal within 1e-6, without `$`, `%` and `,`; lists must have equal elements in
    the same order; other text is compared without spaces, punctuation and case.
    """
    predicted, truth = prediction.translate(CHARACTERS), answer_text(answer).translate(CHARACTERS)
    parts, true_parts = [predicted], [truth]
    if _parse_float(truth) is None and ("," in truth or ";" in truth):
        parts, true_parts = re.split("[,;]", predicted), re.split("[,;]", truth)
    overlap = len(parts) == len(true_parts) and all(map(_is_same_part, parts, true_parts))
    return float(len(prediction) <= MAX_ANSWER_CHARS and overlap)


def _is_same_part(predicted: str, truth: str) -> bool:
    number = _parse_float(truth)
    if number is not None:
        amount = _parse_float(predicted.translate(_NUMBER_SIGNS))
        return amount is not None and abs(amount - number) <= GAIA_TOLERANCE
    expected = _normalise_part(truth)
    return bool(expected) and _normalise_part(predicted) == expected


def _normalise_part(text: str) -> str:
    return "".join(text.lower().translate(_PUNCTUATION).split())


def _parse_float(text: str) -> float | None:
    """Parse an ASCII decimal number, rejecting `nan`, `1_0` and non-ASCII digits unlike `float`."""
    text = text.strip()
    return float(text) if len(text) <= 400 and _NUMBER.match(text) else None
