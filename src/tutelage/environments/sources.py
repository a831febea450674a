"""Sources of different price and reliability; group-relative rewards show which one pays.

A question has a price as its answer. A rumour is free and wrong half of the time, the register is
right and costs, an audit is right and costs three times as much. The reward is 1 for a right answer
less the costs, which are rewards of their turns. Variants: `sources:no_audit`; `sources:compare`,
where two rumours are independent; `sources:kinds`, with specialists for one kind of item.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from tutelage.environments.built_in import (
    ADJECTIVES,
    NOUNS,
    ToolWorld,
    call_message,
    check_argument,
    draw_tasks,
    draw_words,
)
from tutelage.environments.protocol import EnvironmentFactory, Observation
from tutelage.seeds import SeedTree
from tutelage.tools import tool
from tutelage.types import Message, Task

PRICES = range(10, 99)
TRUST = 0.5
"""Probability that a rumour is right, or a specialist about an item of the other kind."""
QUESTIONS = (
    "What does the {} cost?",
    "Price of the {}?",
    "How much is the {}?",
    "What is the price of the {}?",
    "The {}: how much?",
    "Tell me what the {} costs.",
    "I need the price of the {}.",
    "How much for the {}?",
)


@dataclass(frozen=True, slots=True)
class SourcesVariant:
    """Price sources of a variant, with the expert's strategies."""

    costs: Mapping[str, float]
    """Cost of a call by tool."""
    demonstrated: Mapping[str, int]
    """Weights of the expert's strategies, deliberately mixed for the start of training."""
    rumours: int = 1
    """Number of independent rumours; further questions repeat the last one."""


VARIANTS: Mapping[str, SourcesVariant] = {
    "": SourcesVariant(
        {"rumour": 0.0, "register": 0.15, "audit": 0.45},
        {"guess": 15, "rumour": 40, "audit": 33, "register": 12},
    ),
    "no_audit": SourcesVariant(
        {"rumour": 0.0, "register": 0.15}, {"guess": 15, "rumour": 40, "register": 12}
    ),
    "compare": SourcesVariant(
        {"rumour": 0.0, "register": 0.4},
        {"guess": 15, "rumour": 40, "register": 33, "compare": 12},
        rumours=2,
    ),
    "kinds": SourcesVariant(
        {"rumour": 0.0, "register": 0.3, "tailor": 0.05, "smith": 0.05},
        {"guess": 15, "rumour": 40, "register": 33, "tailor": 6, "smith": 6},
    ),
}


class SourcesEnvironment(ToolWorld):
    """An episode with several sources of prices."""

    def __init__(self, variant: SourcesVariant) -> None:
        super().__init__()
        self.variant = variant
        self.tools = {name: getattr(self, name) for name in variant.costs}

    async def reset(self, task: Task, seed: int) -> Observation:
        """Begin a task; rumours are drawn with `seed`."""
        self.task, self.rng = task, SeedTree(seed).child("sources").python()
        self.heard: dict[str, list[int]] = {}
        return Observation(tools=tuple(tool.spec for tool in self.tools.values()))

    def judge(self, answer: str) -> bool:
        """Return True if the answer is the correct price."""
        return answer == self.task["answer"]

    def _buy_price(self, source: str, item: str, accuracy: float, max_answers: int = 1) -> str:
        """Add the cost of a source and return its price of an item."""
        if item != self.task["item"]:
            return "unknown item"
        self.spent += self.variant.costs[source]
        heard, price = self.heard.setdefault(source, []), int(self.task["answer"])
        if len(heard) < max_answers:
            right = self.rng.random() < accuracy
            others = [other for other in PRICES if other != price]
            heard.append(price if right else self.rng.choice(others))
        return str(heard[-1])

    @tool(inline=True)
    def rumour(self, item: str) -> str:
        """Ask people what an item costs: free, often wrong."""
        return self._buy_price("rumour", item, TRUST, self.variant.rumours)

    @tool(inline=True)
    def register(self, item: str) -> str:
        """Look the price up in the register: right, for a fee."""
        return self._buy_price("register", item, 1.0)

    @tool(inline=True)
    def audit(self, item: str) -> str:
        """Have the price audited: right, for a large fee."""
        return self._buy_price("audit", item, 1.0)

    @tool(inline=True)
    def tailor(self, item: str) -> str:
        """Ask a tailor, who knows things of cloth, for a small fee."""
        return self._buy_price("tailor", item, 1.0 if self.task["kind"] == "tailor" else TRUST)

    @tool(inline=True)
    def smith(self, item: str) -> str:
        """Ask a smith, who knows things of metal, for a small fee."""
        return self._buy_price("smith", item, 1.0 if self.task["kind"] == "smith" else TRUST)


def draw_fields(split: str, rng: Random) -> dict[str, Any]:
    """Draw the fields of a task: question, answer, item, kind, and the seed of the expert."""
    kind = rng.choice([*NOUNS])
    item = draw_words(split, rng, ADJECTIVES, NOUNS[kind])
    return {
        "question": rng.choice(QUESTIONS).format(item),
        "answer": str(rng.choice(PRICES)),
        "item": item,
        "kind": kind,
        "seed": rng.getrandbits(32),
    }


def expert(variant: SourcesVariant, task: Task, messages: Sequence[Message]) -> Message:
    """Return the next reply of a demonstration; its strategy is drawn from the task's `seed`
    field."""
    rng, shares = SeedTree(task["seed"]).child("expert").python(), variant.demonstrated
    way = rng.choices([*shares], [*shares.values()])[0]
    if way == "guess":
        return Message("assistant", str(rng.choice(PRICES)))
    asked = ("rumour", "rumour", "register") if way == "compare" else (way,)
    heard = [message.content for message in messages if message.role == "tool"]
    if len(heard) == len(asked) or (len(heard) == 2 and heard[0] == heard[1]):
        return Message("assistant", heard[-1])
    return call_message(asked[len(heard)], len(heard), item=task["item"])


def make_factory(argument: str, kwargs: Mapping[str, Any]) -> EnvironmentFactory:
    """Return the factory of `sources` or of a variant. Raises `ConfigError` for an unknown
    variant."""
    check_argument("sources", argument, VARIANTS, kwargs)
    variant = VARIANTS[argument]
    return EnvironmentFactory(
        name=f"sources:{argument}" if argument else "sources",
        make=lambda: SourcesEnvironment(variant),
        tools=tuple(getattr(SourcesEnvironment, name).spec for name in variant.costs),
        tasks=lambda split, n, seed: draw_tasks("sources", split, n, seed, draw_fields),
        expert=partial(expert, variant),
    )
