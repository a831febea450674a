"""The second world of record. Written 2026-11-21 and frozen: no search ran on it before its run.

It took the place of `manifest.py` when the pilot there had been seen and an algorithm was to change
(see README.md). A travel office plans trips: a trip has one requirement on which most of the reward
hangs and two wishes, and the reward is a product, not a sum. A complaint names a *kind* of trouble
that two rules share, and a quarter of the complaints is never made. The optimiser words each rule
in one of three ways, so a sentence seldom comes twice, writes bulleted lists, and now and then adds
a sentence that spoils the rest. It hits a rule of the kind complained of with p = 0.55. Past 90
words the task model reads little. Not a model; pure functions; no optimiser imports this file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.prompt.formats import Asked
from benchmarks.prompt.worlds import Grade, Said, World, chance, last_user

ATTENTION = 90
TOLD, FAR, UNTOLD = 0.95, 0.3, 0.12
SPOILED = 0.85
"""What a spoiling sentence leaves of the odds that a rule is kept."""
RULES: dict[str, tuple[str, tuple[str, ...]]] = {
    "transfer": (
        "connections",
        (
            "Leave an hour for every transfer.",
            "Plan each transfer with an hour to spare.",
            "Never plan a transfer under an hour.",
        ),
    ),
    "night": (
        "connections",
        (
            "Avoid arrivals after midnight.",
            "Let nobody arrive past midnight.",
            "Arrive before midnight on every leg.",
        ),
    ),
    "visa": (
        "papers",
        (
            "Check which visa the traveller needs.",
            "Say which visa is required.",
            "Name every visa on the way.",
        ),
    ),
    "insurance": (
        "papers",
        (
            "Offer insurance with each booking.",
            "Add travel insurance to the plan.",
            "Mention insurance before the price.",
        ),
    ),
    "total": (
        "money",
        (
            "Give the total in the traveller's currency.",
            "Put one total at the end.",
            "State a total for the whole trip.",
        ),
    ),
    "deposit": (
        "money",
        (
            "Say when the deposit is due.",
            "Name the deposit and its date.",
            "Write the deposit beside the price.",
        ),
    ),
    "diet": (
        "comfort",
        (
            "Ask for a diet before booking meals.",
            "Note every diet with the hotel.",
            "Pass the diet on to the airline.",
        ),
    ),
    "seat": (
        "comfort",
        (
            "Reserve a seat on each train.",
            "Book seats together.",
            "Choose the seat the traveller likes.",
        ),
    ),
}
"""Rule: its kind of trouble, its wordings. A prompt states a rule by the word of its name."""
TROUBLE = {
    "connections": "the connections did not hold",
    "papers": "papers were missing",
    "money": "the costs were a surprise",
    "comfort": "the traveller was uncomfortable",
}
FILLERS = (
    "Be a thoughtful travel agent.",
    "Every journey is a story.",
    "Write with warmth.",
    "Keep the customer in mind.",
    "Think of the whole trip.",
)
SPOILERS = ("Keep the plan to the bare minimum.", "Skip all details.")


class Itinerary(World):
    """See the module's docstring."""

    name = "itinerary"
    seed_prompt = "You plan trips for customers of a travel office."

    @property
    def phrases(self) -> tuple[str, ...]:
        """The first two wordings of each rule, and what is of no use or worse."""
        worded = (text for _, texts in RULES.values() for text in texts[:2])
        return (*worded, *FILLERS, *SPOILERS)

    def task(self, split: str, index: int) -> dict[str, Any]:
        """A requirement and two wishes."""
        ranked = sorted(RULES, key=lambda rule: chance("trip", split, index, rule))
        return {"question": f"Trip {split}/{index}", "must": ranked[0], "wishes": ranked[1:3]}

    def reply(
        self, system: str, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], n: int
    ) -> Said:
        question = last_user(messages)
        found = re.search(r"Trip (\S+)/(\d+)", question)
        if not found:
            return Said("I know of no such trip.")
        task = self.task(found[1], int(found[2]))
        odds = kept(system)
        broken = [
            rule
            for rule in (task["must"], *task["wishes"])
            if chance("keep", system, question, n, rule) >= odds[rule]
        ]
        told = [
            TROUBLE[RULES[rule][0]]
            for rule in broken
            if chance("tell", system, question, n, rule) >= 0.25
        ]
        marks = "".join("x" if r in broken else "o" for r in (task["must"], *task["wishes"]))
        words = "; ".join(dict.fromkeys(told)) or ("no complaint" if broken else "all well")
        return Said(f"Plan {marks}: {words}.")

    def grade(self, fields: Mapping[str, Any], reply: str) -> Grade:
        """The requirement times the wishes."""
        found = re.match(r"Plan ([ox])([ox])([ox]): (.*)\.$", reply)
        if not found:
            return Grade(0.0, False, "there is no plan")
        must = 1.0 if found[1] == "o" else 0.2
        wishes = 0.4 + 0.3 * (found[2] == "o") + 0.3 * (found[3] == "o")
        return Grade(must * wishes, must * wishes == 1, found[4])

    def criticise(self, asked: Asked, salt: str) -> str:
        """The kinds of trouble in the order of their weight, in a sentence that varies."""
        told = ", and ".join(TROUBLE[kind] for kind in _kinds(asked.evidence, salt))
        mood = FILLERS[int(chance("mood", salt) * len(FILLERS))]
        return f"{mood} ({chance('tone', salt):.5f}) Above all: {told or 'nothing clear'}."

    def rewrite(self, asked: Asked, salt: str) -> str:
        """A bulleted list under the first line: a bullet lost now and then, new ones at the end."""
        lines = [line for line in asked.current.split("\n") if line.strip()]
        if len(lines) > 1 and chance("drop", salt) < 0.18:
            del lines[1 + int(chance("which", salt) * (len(lines) - 1))]
        kinds = _kinds(asked.evidence, salt)[: 1 if asked.one_point else 3]
        right = 0.55 if kinds else 0.2
        for kind in kinds or [list(TROUBLE)[int(chance("guess", salt) * len(TROUBLE))]]:
            sentence = _sentence(kind, "\n".join(lines), right, salt)
            if not any(sentence in line for line in lines):
                lines.append(f"- {sentence}")
        return "\n".join(lines)


def kept(prompt: str) -> dict[str, float]:
    """How likely each rule is kept under a prompt."""
    words = re.findall(r"\w+", prompt.lower())
    near, whole = {*words[:ATTENTION]}, {*words}
    spoiled = any(text.rstrip(".").lower() in prompt.lower() for text in SPOILERS)
    odds = {
        rule: TOLD if _says(rule, near) else FAR if _says(rule, whole) else UNTOLD for rule in RULES
    }
    return {rule: value * (SPOILED if spoiled else 1) for rule, value in odds.items()}


def _says(rule: str, words: set[str]) -> bool:
    return rule in words or f"{rule}s" in words or (rule == "night" and "midnight" in words)


def _kinds(evidence: str, salt: str) -> list[str]:
    """Kinds of trouble complained of, the most frequent first."""
    seen = {kind: evidence.count(said) for kind, said in TROUBLE.items()}
    return sorted((k for k in seen if seen[k]), key=lambda k: (-seen[k], chance("tie", salt, k)))


def _sentence(kind: str, text: str, right: float, salt: str) -> str:
    draw = chance("draw", salt, kind)
    words = {*re.findall(r"\w+", text.lower())}
    open_ = [r for r in RULES if RULES[r][0] == kind and not _says(r, words)]
    if draw < right and open_:
        rule = open_[int(chance("rule", salt, kind) * len(open_))]
        texts = RULES[rule][1]
        return texts[int(chance("wording", salt, kind) * len(texts))]
    pool = SPOILERS if chance("spoil", salt, kind) < 0.2 else FILLERS
    return pool[int(chance("pool", salt, kind) * len(pool))]
