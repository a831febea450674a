"""Simulator 2, for development: a help desk, shaped otherwise than `clerk.py`. Not a model.

Success is a probability, a logistic sum and no list of rules: advice counts by ticket family, some
advice helps one family and harms another, two pieces only work together, and every word past 90
costs a little. Feedback is noisy: a third of the time it names a wrong symptom. Pure functions of
their arguments; the prompt searches never import this file. The worlds of record are
`manifest.py` and `itinerary.py`.
"""

from __future__ import annotations

import hashlib
import math
import re

LABEL = "simulator-desk-1"
SEED_PROMPT = "You work at a help desk. Solve the ticket."
FAMILIES = ("billing", "login", "network", "shipping", "refund")
ADVICE: dict[str, tuple[str, str, dict[str, float]]] = {
    "verify": (
        "Verify the account before anything else.",
        "the account was not verified",
        {"billing": 1.6, "login": 1.8, "refund": 1.2},
    ),
    "logs": (
        "Ask for the error log and read it.",
        "nobody read the error log",
        {"network": 2.0, "login": 1.2, "shipping": -0.6},
    ),
    "order": (
        "Look up the order number.",
        "the order number was not looked up",
        {"shipping": 2.2, "refund": 1.0, "billing": 0.8},
    ),
    "policy": (
        "Quote the policy that applies.",
        "the policy was not quoted",
        {"refund": 1.8, "billing": 1.4, "network": -0.4},
    ),
    "steps": (
        "Number the steps of the solution.",
        "the steps were hard to follow",
        {"network": 1.4, "login": 1.4, "shipping": 0.8},
    ),
    "restart": (
        "Begin with a restart of the device.",
        "no restart was tried",
        {"network": 1.2, "login": -0.8},
    ),
    "confirm": (
        "Confirm the result with the customer.",
        "the result was not confirmed",
        {"billing": 0.8, "login": 0.6, "network": 0.6, "shipping": 1.0, "refund": 0.8},
    ),
}
"""Advice: its sentence, the symptom of its absence, its weight for each family."""
TOGETHER = (("verify", "policy", "refund", 1.2), ("order", "confirm", "shipping", 1.2))
VAGUE = ("Try harder.", "Be friendly to everyone.", "Quality matters here.", "Think it over twice.")
BASE = -2.2
ATTENTION = 90
WORD_COST = 0.02


def chance(*address: object) -> float:
    """A uniform draw in [0, 1), a pure function of its address."""
    digest = hashlib.sha256(repr(address).encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def make_task(split: str, index: int) -> dict[str, object]:
    """Fields of one ticket."""
    family = FAMILIES[int(chance("family", split, index) * len(FAMILIES))]
    return {"question": f"Ticket {split}-{index} about {family}", "family": family}


def given(prompt: str) -> set[str]:
    """The advice that a prompt gives: two thirds of the sentence's words, in one line of it."""
    lines = [set(re.findall(r"\w+", line.lower())) for line in re.split(r"[\n.!?]+", prompt)]
    return {
        name
        for name, (sentence, _, _) in ADVICE.items()
        if (words := set(re.findall(r"\w+", sentence.lower())))
        and any(len(words & line) >= 2 * len(words) / 3 for line in lines)
    }


def success(prompt: str, family: str) -> float:
    """The probability that a ticket of this family is solved."""
    told = given(prompt)
    logit = BASE + sum(ADVICE[name][2].get(family, 0.0) for name in ADVICE if name in told)
    logit += sum(w for a, b, f, w in TOGETHER if f == family and a in told and b in told)
    logit -= WORD_COST * max(0, len(prompt.split()) - ATTENTION)
    return 1 / (1 + math.exp(-logit))


def play(prompt: str, question: str, family: str, sample: int, seed: int) -> tuple[bool, str]:
    """Whether the ticket was solved, and what the grader says."""
    address = (seed, prompt, question, sample)
    if chance("play", *address) < success(prompt, family):
        return True, "solved"
    told = given(prompt)
    lacking = [n for n in ADVICE if ADVICE[n][2].get(family, 0.0) > 0 and n not in told]
    pool = list(ADVICE) if not lacking or chance("noise", *address) < 1 / 3 else lacking
    return False, ADVICE[pool[int(chance("blame", *address) * len(pool))]][1]


def optimise(request: str, current: str, seed: int) -> str:
    """A better prompt from the request alone: it answers the symptoms it reads, p = 0.55 right."""
    lines = [line for line in current.split("\n") if line.strip()]
    if len(lines) > 1 and chance("drop", seed, request) < 0.2:
        del lines[1 + int(chance("which", seed, request) * (len(lines) - 1))]
    blamed = sorted(
        (n for n in ADVICE if ADVICE[n][1] in request),
        key=lambda n: (-request.count(ADVICE[n][1]), chance("order", seed, request, n)),
    )
    for name in blamed[:2]:
        right = chance("right", seed, request, name) < 0.55
        vague = VAGUE[int(chance("vague", seed, request, name) * len(VAGUE))]
        sentence = ADVICE[name][0] if right else vague
        if sentence not in lines:
            lines.append(sentence)
    return "\n".join(lines)


def criticise(request: str) -> str:
    """A critique that repeats the symptoms as often as the request shows them."""
    counted = {n: request.count(ADVICE[n][1]) for n in ADVICE}
    seen = [ADVICE[n][1] for n, times in counted.items() for _ in range(times)]
    return "What went wrong: " + "; ".join(seen)
