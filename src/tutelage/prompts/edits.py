"""Checks of an edited prompt before it costs a rollout, and parsing of replies.

Same placeholders, escaped braces, a maximum length, no leaked question or answer: pure checks that
return the safe text or raise `RejectedEdit` with the reason. `search.py` applies them to every
proposal.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from tutelage.prompts.contract import Components
from tutelage.resources import PromptTemplate
from tutelage.types import EXPECTED_FIELDS, Task

LENGTH_CAP = 800
"""Minimum of a component's length limit in tokens; otherwise twice the seed's length."""
OVERLAP = 8
"""Consecutive tokens shared with a question that count as a leak."""
SHORTEST_ANSWER = 3
"""Minimum characters of an answer that is checked: shorter ones (7, no) occur in any text."""

_TOKEN = re.compile(r"\w+|[^\w\s]")
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_SLOT = re.compile(rf"\{{\{{{_NAME}\}}\}}|\{{({_NAME})\}}")
_PROMPT = re.compile(r"<prompt>\n?(.*?)\n?</prompt>", re.DOTALL)


class RejectedEdit(Exception):
    """Raised for an unsafe edit; `rule` names the violated rule, `reason` is a sentence."""

    def __init__(self, rule: str, reason: str) -> None:
        super().__init__(rule, reason)
        self.rule = rule
        self.reason = reason


def _tokenize(text: str) -> list[str]:
    """Split text into lowercase words and punctuation, as an approximation of tokens."""
    return _TOKEN.findall(text.lower())


def parse_edit(reply: str) -> str:
    """Return the text between the last `<prompt>` tags. Raises `RejectedEdit` if there is none."""
    items = _PROMPT.findall(reply)
    if not items or not items[-1].strip():
        raise RejectedEdit("malformed", "the reply holds no text between <prompt> and </prompt>")
    return items[-1].strip("\n")


class EditRules:
    """Checks for edited prompts, based on the seed components and the tasks of a search."""

    def __init__(self, seed: Components, tasks: Sequence[Task]) -> None:
        """Collect texts that must not leak; answers shared by a tenth of the tasks are allowed."""
        self._seed = seed
        self._questions = {run for task in tasks for run in _ngrams(get_question(task), OVERLAP)}
        counted = Counter(a for task in tasks for a in {*_expected_answers(task)})
        label = max(3, len(tasks) / 10)
        self._expected_answers = {tuple(_tokenize(a)) for a, n in counted.items() if n < label}

    def check_edit(self, component: str, text: str) -> str:
        """Return the edit with unknown `{names}` escaped. Raises `RejectedEdit` for a new leak, a
        lost placeholder or excessive length."""
        seed = self._seed[component]
        shared = ({*_ngrams(text, OVERLAP)} - {*_ngrams(seed, OVERLAP)}) & self._questions
        if shared:
            raise RejectedEdit(
                "leak", f"the edit quotes a training question: {' '.join(min(shared))}"
            )
        for size in sorted({len(a) for a in self._expected_answers}):
            said = {*_ngrams(text, size)} - {*_ngrams(seed, size)}
            if pairs := said & self._expected_answers:
                raise RejectedEdit(
                    "leak", f"the edit tells an expected answer: {' '.join(min(pairs))}"
                )
        known = PromptTemplate(seed).placeholders
        safe = _SLOT.sub(lambda m: f"{{{m[0]}}}" if m[1] and m[1] not in known else m[0], text)
        got = PromptTemplate(safe).placeholders
        lost = [name for name in known if name not in got]
        new = [name for name in got if name not in known]
        if lost or new:
            raise RejectedEdit("placeholders", f"the edit lost {lost!r} and added {new!r}")
        size, cap = len(_tokenize(safe)), max(2 * len(_tokenize(seed)), LENGTH_CAP)
        if size > cap:
            raise RejectedEdit("length", f"the edit has {size} tokens, more than the {cap} allowed")
        return safe


def _ngrams(text: str, size: int) -> Iterable[tuple[str, ...]]:
    """Return all sequences of `size` consecutive tokens of a text."""
    words = _tokenize(text)
    return (tuple(words[i : i + size]) for i in range(len(words) - size + 1))


def get_question(task: Task, separator: str = " ") -> str:
    """Return the question of a task as text, or an empty string if it has no chat messages."""
    try:
        return separator.join(m.content or "" for m in task.messages())
    except (KeyError, TypeError, ValueError):
        return ""


def _expected_answers(task: Task) -> Iterable[str]:
    """Yield the expected answers of a task in lower case."""
    for name in EXPECTED_FIELDS:
        value = task.fields.get(name)
        for answer in value if isinstance(value, list | tuple) else [value]:
            text = str(answer).strip().lower()
            if answer is not None and len(text) >= SHORTEST_ANSWER and _tokenize(text):
                yield text
