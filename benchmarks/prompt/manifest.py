"""The world of record. Written 2026-11-21, before any tuning, and frozen: nobody tunes on it.

A freight office fills in a manifest, one box after the other; a box that is filled in wrong stops
the work, so only the *first* mistake of a task shows and all later boxes are lost. The rules are
conventions with alternatives: each box has one right convention and wrong ones, a prompt may state
either, and of two that contradict each other the later wins. So a wrong proposal undoes a right
one, unlike in `clerk.py` (independent rules, useless advice harmless) and `desk.py` (a logistic sum
by family, noisy blame). Past 90 words each statement is overlooked with probability 0.7, by a hash
of the prompt. The optimiser writes a right convention with p = 0.55 for a mistake it has read of.
Not a model; pure functions of their arguments; no optimiser imports this file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.prompt.formats import Asked
from benchmarks.prompt.worlds import Grade, Said, World, chance, last_user

ATTENTION = 90
OVERLOOKED = 0.7
KEPT = 0.96
"""How often a right convention that is stated and read leads to a right box."""
BOXES: dict[str, tuple[float, str, tuple[str, ...]]] = {
    "port": (
        0.35,
        "the port code was refused",
        (
            "Give ports as five letter codes.",
            "Give ports as three letter codes.",
            "Give ports by their city name.",
        ),
    ),
    "mass": (
        0.25,
        "the mass did not match the scales",
        (
            "State mass in whole kilograms.",
            "State mass in pounds.",
            "State mass in tonnes with three decimals.",
        ),
    ),
    "seal": (
        0.1,
        "the seal number was rejected",
        (
            "Copy seal numbers with all leading zeros.",
            "Copy seal numbers without leading zeros.",
        ),
    ),
    "hazard": (
        0.15,
        "the hazard class was missing",
        (
            "Declare hazard class before the goods.",
            "Declare hazard class after the goods.",
            "Declare hazard class only when asked.",
        ),
    ),
    "value": (
        0.3,
        "customs doubted the declared value",
        (
            "Declare value without freight and insurance.",
            "Declare value with freight and insurance.",
        ),
    ),
    "time": (
        0.2,
        "the arrival was booked on the wrong day",
        (
            "Write arrival times in coordinated universal time.",
            "Write arrival times in local time.",
            "Write arrival times in the time of the sender.",
        ),
    ),
    "owner": (
        0.15,
        "the consignee could not be reached",
        (
            "Name the consignee with a telephone number.",
            "Name the consignee by company alone.",
        ),
    ),
}
"""Box: how often right unasked, what is said of a wrong one, its conventions, the right first."""
EMPTY = (
    "Fill in the manifest with great care.",
    "Remember that ships cannot wait.",
    "Treat all customers alike.",
    "Go over everything a second time.",
)


class Manifest(World):
    """See the module's docstring."""

    name = "manifest"
    seed_prompt = "You are a freight clerk. Fill in the manifest for the consignment."

    @property
    def phrases(self) -> tuple[str, ...]:
        """Every convention, right and wrong, and what says nothing."""
        return (*(text for _, _, texts in BOXES.values() for text in texts), *EMPTY)

    def task(self, split: str, index: int) -> dict[str, Any]:
        """Three to five boxes, in an order of their own."""
        ranked = sorted(BOXES, key=lambda box: chance("box", split, index, box))
        size = 3 + int(chance("size", split, index) * 3)
        return {"question": f"Consignment {split}/{index}", "boxes": ranked[:size]}

    def reply(
        self, system: str, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], n: int
    ) -> Said:
        question = last_user(messages)
        found = re.search(r"Consignment (\S+)/(\d+)", question)
        if not found:
            return Said("There is no such consignment.")
        boxes = self.task(found[1], int(found[2]))["boxes"]
        told = stated(system)
        for done, box in enumerate(boxes):
            unasked, complaint, _ = BOXES[box]
            right = {None: unasked, True: KEPT, False: 0.02}[told.get(box)]
            if chance("fill", system, question, n, box) >= right:
                return Said(f"Stopped after {done} of {len(boxes)} boxes: {complaint}.")
        return Said(f"All {len(boxes)} boxes are filled in and accepted.")

    def grade(self, fields: Mapping[str, Any], reply: str) -> Grade:
        """The share of boxes done."""
        if reply.startswith("All "):
            return Grade(1.0, True, "accepted")
        found = re.match(r"Stopped after (\d+) of (\d+) boxes: (.*)\.$", reply)
        if not found:
            return Grade(0.0, False, "no manifest")
        return Grade(int(found[1]) / int(found[2]), False, found[3])

    def criticise(self, asked: Asked, salt: str) -> str:
        """The two mistakes that show most often, with a remark that varies."""
        ranked = _complaints(asked.evidence, salt)[:2]
        remark = EMPTY[int(chance("remark", salt) * len(EMPTY))]
        if not ranked:
            return f"I see no mistake. ({remark} {chance('tone', salt):.4f})"
        told = " and ".join(BOXES[box][1] for box in ranked)
        return f"The prompt does not prevent that {told}. ({remark} {chance('tone', salt):.4f})"

    def rewrite(self, asked: Asked, salt: str) -> str:
        """One paragraph: sentences replaced where they concern the box, else added at the end."""
        parts = [s for s in re.split(r"(?<=\.)\s+", asked.current.strip()) if s]
        if len(parts) > 2 and chance("drop", salt) < 0.15:
            del parts[1 + int(chance("which", salt) * (len(parts) - 1))]
        boxes = _complaints(asked.evidence, salt)[: 1 if asked.one_point else 2]
        if not boxes:
            guess = list(BOXES)[int(chance("guess", salt) * len(BOXES))]
            boxes = [guess]
        for box in boxes:
            sentence = _proposal(box, salt, known=bool(_complaints(asked.evidence, salt)))
            same = [i for i, part in enumerate(parts) if _topic(part) == box]
            if sentence in EMPTY or not same:
                parts += [] if sentence in parts else [sentence]
            else:
                parts[same[-1]] = sentence
        return " ".join(parts)


def stated(prompt: str) -> dict[str, bool]:
    """For each box that a prompt speaks of and is heard on: whether the convention is right."""
    told: dict[str, bool] = {}
    flat = " ".join(prompt.split())
    found = sorted(
        (flat.find(text.rstrip(".")), box, place == 0)
        for box, (_, _, texts) in BOXES.items()
        for place, text in enumerate(texts)
        if text.rstrip(".") in flat
    )
    for at, box, right in found:
        far = len(flat[:at].split()) >= ATTENTION
        if not (far and chance("overlooked", flat, box, at) < OVERLOOKED):
            told[box] = right
    return told


def _topic(sentence: str) -> str | None:
    """The box that a sentence is about."""
    return next((b for b, (_, _, texts) in BOXES.items() if sentence.strip() in texts), None)


def _complaints(evidence: str, salt: str) -> list[str]:
    """Boxes complained of, the most frequent first."""
    seen = {box: evidence.count(complaint) for box, (_, complaint, _) in BOXES.items()}
    return sorted((b for b in seen if seen[b]), key=lambda b: (-seen[b], chance("tie", salt, b)))


def _proposal(box: str, salt: str, *, known: bool) -> str:
    """Right with p = 0.55 (0.25 without evidence), else as often a wrong convention as nothing."""
    draw, right = chance("propose", salt, box), 0.55 if known else 0.25
    texts = BOXES[box][2]
    if draw < right:
        return texts[0]
    if draw < right + (1 - right) / 2:
        return texts[1 + int(chance("wrong", salt, box) * (len(texts) - 1))]
    return EMPTY[int(chance("empty", salt, box) * len(EMPTY))]
