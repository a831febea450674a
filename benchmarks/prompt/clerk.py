"""Simulator 1, for tests: a clerk that obeys latent rules stated in its prompt. Not a model.

Each task needs two or three of eight rules; a rule that the prompt states within its first 90 words
is mostly obeyed, a later one seldom. What is not obeyed errs in a typed way, which feedback tells.
The optimiser reads only what its request holds. Pure functions of their arguments: equal requests
get equal replies. The prompt searches never import this file.
"""

from __future__ import annotations

import hashlib
import re

LABEL = "simulator-clerk-1"
ATTENTION = 90
RULES: dict[str, tuple[str, str, str]] = {
    "unit": ("Always write the unit after the number.", r"\bunit", "the number has no unit"),
    "round": ("Round amounts to two decimals.", r"\btwo decimals", "too many digits"),
    "date": ("Write dates as year-month-day.", r"\byear-month-day", "the date is in no order"),
    "table": ("Look prices up in the table first.", r"\bin the table", "a price was made up"),
    "sign": ("Put refunds in with a minus sign.", r"\bminus sign", "a refund was added"),
    "tax": ("Add the tax at the very end.", r"\btax at the", "the tax was counted too early"),
    "name": ("Address the customer by name.", r"\bby name", "nobody was addressed"),
    "short": ("Answer in one line only.", r"\bone line", "the answer rambles"),
}
"""Rule: the sentence that states it, how it is recognised in a prompt, what is said when broken."""
DECOYS = (
    "Be careful.",
    "Do your best work.",
    "Take pride in good service.",
    "Consider the whole question.",
    "Stay polite and calm.",
    "Double check everything.",
)
SEED_PROMPT = "You are a clerk. Answer the customer's request."


def chance(*address: object) -> float:
    """A uniform draw in [0, 1), a pure function of its address."""
    digest = hashlib.blake2b(repr(address).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def make_task(split: str, index: int) -> dict[str, object]:
    """Fields of one task: its question and the rules it needs."""
    ranked = sorted(RULES, key=lambda rule: chance("need", split, index, rule))
    needed = ranked[: 2 + (chance("count", split, index) < 0.5)]
    return {"question": f"Request {split}-{index} for the clerk", "needs": sorted(needed)}


def stated(prompt: str) -> dict[str, bool]:
    """The rules a prompt states, and whether within the reach of attention."""
    near = " ".join(prompt.split()[:ATTENTION]).lower()
    whole = " ".join(prompt.split()).lower()
    return {
        rule: re.search(pattern, near) is not None
        for rule, (_, pattern, _) in RULES.items()
        if re.search(pattern, whole)
    }


def play(prompt: str, question: str, needs: list[str], sample: int, seed: int) -> list[str]:
    """The rules broken on one task."""
    known = stated(prompt)
    broken: list[str] = []
    for rule in needs:
        obeys = {True: 0.97, False: 0.3, None: 0.1}[known.get(rule)]
        if chance("play", seed, prompt, question, sample, rule) >= obeys:
            broken.append(rule)
    return broken


def feedback(broken: list[str]) -> str:
    """What the grader says of the broken rules."""
    return "; ".join(RULES[rule][2] for rule in broken) or "all in order"


def optimise(request: str, seed: int) -> str:
    """Reply of the optimiser: a critique, or a new prompt between tags, from the request alone."""
    blamed = [rule for rule, (_, _, said) in RULES.items() if said in request]
    if "<prompt>" not in request:
        return "The agent was not told enough: " + feedback(blamed)
    found = re.search(r"<current>\n(.*?)\n</current>", request, re.DOTALL)
    lines = (found.group(1) if found else "").split("\n")
    if len(lines) > 1 and chance("drop", seed, request) < 0.15:
        del lines[1 + int(chance("which", seed, request) * (len(lines) - 1))]
    known = stated("\n".join(lines))
    for rule in blamed[: 1 + 2 * ("Rewrite" in request)]:
        right = chance("right", seed, request, rule) < 0.55
        decoy = DECOYS[int(chance("decoy", seed, request, rule) * len(DECOYS))]
        sentence = RULES[rule][0] if right and rule not in known else decoy
        if sentence not in lines:
            lines.append(sentence)
    return "I would change this:\n<prompt>\n" + "\n".join(lines) + "\n</prompt>"


def placebo(prompt: str, question: str, sample: int, seed: int) -> float:
    """A reward on which the prompt has no effect but noise: every prompt earns 0.5 on average."""
    return float(chance("placebo", seed, prompt, question, sample) < 0.5)
