"""Worlds that the server plays: a task model that obeys its prompt, a grader, an optimiser model.

None is a language model; the label says so. A world is a set of pure functions, so equal requests
get equal replies. What went wrong on a task stands in the task model's reply in plain words: a
framework that shows its optimiser only the messages loses nothing against one that shows feedback.
`clerk.py` and `desk.py` hold the rules of two worlds, `maths.py` and `manifest.py` are whole worlds
of their own; `formats.py` reads the optimiser's requests. Tuning happens on clerk and desk alone.
Standard library only, so that a peer's environment can grade with it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.prompt import clerk, desk
from benchmarks.prompt.formats import Asked

Body = Mapping[str, Any]


@dataclass(frozen=True)
class Said:
    """What the task model replies: a text, or calls of tools (name, JSON arguments)."""

    content: str
    calls: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Grade:
    """What a reply is worth."""

    reward: float
    exact: bool
    feedback: str


class World:
    """One simulator. `name` is how it is asked for, `label` is in every reply's fingerprint."""

    name = ""
    seed_prompt = ""

    @property
    def phrases(self) -> tuple[str, ...]:
        """Right sentences and useless ones: the bank of searches without an optimiser LLM."""
        return ()

    def task(self, split: str, index: int) -> dict[str, Any]:
        """Fields of one task; `question` is what the task model is sent."""
        raise NotImplementedError

    def reply(self, system: str, messages: Sequence[Body], tools: Sequence[Body], n: int) -> Said:
        """The task model's reply to a conversation; `n` tells repeats apart."""
        raise NotImplementedError

    def grade(self, fields: Body, reply: str) -> Grade:
        """What the last reply of a rollout earns."""
        raise NotImplementedError

    def criticise(self, asked: Asked, salt: str) -> str:
        """The optimiser's critique, from the request alone."""
        raise NotImplementedError

    def rewrite(self, asked: Asked, salt: str) -> str:
        """The optimiser's new text, from the request alone."""
        raise NotImplementedError


def chance(*address: object) -> float:
    """A uniform draw in [0, 1), a pure function of its address."""
    digest = hashlib.blake2b(json.dumps(address, default=str).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


@dataclass(frozen=True)
class Vocabulary:
    """What a simulated optimiser knows: a sentence that fixes each symptom, and useless ones."""

    sentences: Mapping[str, str]
    symptoms: Mapping[str, str]
    decoys: Sequence[str]
    stated: Callable[[str], set[str]]
    right: float = 0.55
    """How often it proposes the right sentence for a symptom it has seen."""
    drop: float = 0.15
    """How often it loses a line of the old text."""
    blind: float = 0.2
    """How often a guess without evidence is right."""
    points: int = 3
    """Symptoms that one rewrite answers."""
    wordings: tuple[str, ...] = ("",)
    """What it may put before a sentence, so that the same advice comes in several wordings."""

    @property
    def phrases(self) -> tuple[str, ...]:
        """All sentences."""
        return (*self.sentences.values(), *self.decoys)

    def criticise(self, evidence: str, salt: str) -> str:
        """Each symptom as often as the evidence shows it; the opening varies with the request."""
        seen = {name: evidence.count(said) for name, said in self.symptoms.items()}
        told = [f"- {self.symptoms[n]} (seen {c} times)" for n, c in seen.items() if c]
        mark = hashlib.blake2b(salt.encode(), digest_size=3).hexdigest()
        if not told:
            return f"Reading {mark}: nothing in particular went wrong."
        return f"Reading {mark}: the agent was not told enough.\n" + "\n".join(told)

    def rewrite(self, asked: Asked, salt: str, evidence: str | None = None) -> str:
        """The current text, now and then less a line, with sentences for the worst symptoms."""
        lines = [line for line in asked.current.split("\n") if line.strip()]
        if len(lines) > 1 and chance("drop", salt) < self.drop:
            del lines[1 + int(chance("which", salt) * (len(lines) - 1))]
        known = self.stated("\n".join(lines))
        points = 1 if asked.one_point else self.points
        for name in self.blamed(asked.evidence if evidence is None else evidence, salt)[:points]:
            decoy = self.decoys[int(chance("decoy", salt, name) * len(self.decoys))]
            right = chance("right", salt, name) < self.right and name not in known
            wording = self.wordings[int(chance("wording", salt, name) * len(self.wordings))]
            sentence = wording + (self.sentences[name] if right else decoy)
            if sentence not in lines:
                lines.append(sentence)
        return "\n".join(lines)

    def blamed(self, evidence: str, salt: str) -> list[str]:
        """Symptoms by weight; without any, a few guesses that are seldom right."""
        weights = {n: _weight(said, evidence) for n, said in self.symptoms.items()}
        ranked = sorted(self.symptoms, key=lambda n: (-weights[n], chance("order", salt, n)))
        seen = [n for n in ranked if weights[n]]
        return seen or [n for n in ranked[:2] if chance("blind", salt, n) < self.blind / self.right]


def _weight(said: str, evidence: str) -> int:
    """How often a symptom shows, a critique's count included."""
    told = re.search(re.escape(said) + r" \(seen (\d+) times\)", evidence)
    return int(told[1]) if told else evidence.count(said)


@dataclass(frozen=True)
class Rules(World):
    """A world of one turn whose optimiser is a `Vocabulary`."""

    words: Vocabulary = field(default_factory=lambda: Vocabulary({}, {}, (), lambda text: set()))

    @property
    def phrases(self) -> tuple[str, ...]:
        return self.words.phrases

    def criticise(self, asked: Asked, salt: str) -> str:
        return self.words.criticise(asked.evidence, salt)

    def rewrite(self, asked: Asked, salt: str) -> str:
        return self.words.rewrite(asked, salt)


class Clerk(Rules):
    """`clerk.py`: two or three of eight rules a task, partial credit."""

    name = "clerk"
    seed_prompt = clerk.SEED_PROMPT

    def task(self, split: str, index: int) -> dict[str, Any]:
        return clerk.make_task(split, index)

    def reply(self, system: str, messages: Sequence[Body], tools: Sequence[Body], n: int) -> Said:
        question = last_user(messages)
        found = re.search(r"Request (\S+)-(\d+) for the clerk", question)
        if not found:
            return Said("This is no request that a clerk knows.")
        needs = [str(x) for x in clerk.make_task(found[1], int(found[2]))["needs"]]
        broken = clerk.play(system, question, needs, n, 0)
        return Said(f"Done with {found[1]}-{found[2]}: {clerk.feedback(broken)}.")

    def grade(self, fields: Body, reply: str) -> Grade:
        broken = [rule for rule in fields["needs"] if clerk.RULES[rule][2] in reply]
        done = reply.startswith("Done with")
        reward = (1 - len(broken) / len(fields["needs"])) * done
        return Grade(reward, reward == 1, clerk.feedback(broken) if done else "no answer")


class Desk(Rules):
    """`desk.py`: solved or not, a logistic sum of advice by ticket family, noisy blame."""

    name = "desk"
    seed_prompt = desk.SEED_PROMPT

    def task(self, split: str, index: int) -> dict[str, Any]:
        return desk.make_task(split, index)

    def reply(self, system: str, messages: Sequence[Body], tools: Sequence[Body], n: int) -> Said:
        question = last_user(messages)
        found = re.search(r"Ticket \S+ about (\w+)", question)
        if not found or found[1] not in desk.FAMILIES:
            return Said("This is no ticket that the desk knows.")
        solved, said = desk.play(system, question, found[1], n, 0)
        return Said("The ticket is solved." if solved else f"The ticket stays open: {said}.")

    def grade(self, fields: Body, reply: str) -> Grade:
        solved = reply == "The ticket is solved."
        return Grade(float(solved), solved, reply)


def last_user(messages: Sequence[Body]) -> str:
    """The text of the last user message."""
    return next((text_of(m) for m in reversed(messages) if m.get("role") == "user"), "")


def text_of(message: Body) -> str:
    """A message's text, also where it comes in parts."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text", "")) for part in content)


def world(name: str) -> World:
    """The world of this name. Raises `KeyError`.

    `clerk-worded` and `desk-worded` are for development: their optimiser words each sentence in one
    of five ways.
    """
    wordings = WORDINGS if name.endswith("-formatted") else ("",)
    if name.startswith("clerk"):
        sentences = {n: s for n, (s, _, _) in clerk.RULES.items()}
        symptoms = {n: said for n, (_, _, said) in clerk.RULES.items()}
        return Clerk(
            Vocabulary(
                sentences,
                symptoms,
                clerk.DECOYS,
                lambda t: {*clerk.stated(t)},
                wordings=wordings,
            )
        )
    if name.startswith("desk"):
        sentences = {n: s for n, (s, _, _) in desk.ADVICE.items()}
        symptoms = {n: said for n, (_, said, _) in desk.ADVICE.items()}
        return Desk(
            Vocabulary(
                sentences,
                symptoms,
                desk.VAGUE,
                desk.given,
                points=2,
                drop=0.2,
                wordings=wordings,
            )
        )
    if name == "math":
        from benchmarks.prompt.maths import Maths

        return Maths()
    if name == "manifest":
        from benchmarks.prompt.manifest import Manifest

        return Manifest()
    if name == "itinerary":
        from benchmarks.prompt.itinerary import Itinerary

        return Itinerary()
    raise KeyError(name)


WORDINGS = ("", "Please note: ", "Remember this: ", "- ", "It matters that you heed this: ")
WORLDS = ("clerk", "desk", "math", "manifest", "itinerary")
"""`manifest` and `itinerary` are worlds of record."""
