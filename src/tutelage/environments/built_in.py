"""Tool environments, task generation and word lists that the built-in environments share.

`sources.py` and `service_desk.py` are tool environments; `rooms.py` offers actions as text. No
item, name or question of a split occurs in another split.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from random import Random
from typing import Any

from tutelage.environments.protocol import Observation, Step
from tutelage.errors import ConfigError
from tutelage.seeds import SeedTree
from tutelage.tasks.arithmetic import split_of
from tutelage.tools import Tool, execute_tool_calls
from tutelage.types import Message, Task, ToolCall

SPLITS = ("train", "val", "test")
SEEDS_APART = 10**6
"""Distance between the seeds of two splits."""
MAX_REPEATS = 2000
"""Consecutive draws without a new question after which drawing stops."""
ADJECTIVES = (
    "red old big huge wet dry tan odd low long wide thin soft blue grey pink "
    "pale dark neat fine rare plain round short tall flat warm cold loud calm weak green"
)
NOUNS: Mapping[str, str] = {
    "tailor": "hat cap bag coat sock scarf glove shirt towel tent rug sail",
    "smith": "key pan fork bell nail saw spoon lock chain coin hook pot",
}
"""Nouns of items, by the specialist who knows their prices."""
FIRST = "Ann Bob Cleo Dan Eve Finn Gina Hugo Ida Jack Kate Leo Mia Noah Olga Paul"
LAST = "Poe Hall Ross Lane Kent Ford Webb Cole Hart Moss Reed Shaw Vale West Wood York"


class ToolWorld:
    """Base class of environments with tool calls as actions; a reply without calls ends the
    episode.

    A subclass sets `tools` in `reset`, adds the costs of a turn to `spent`, and judges the end.
    """

    max_turns = 6
    """Turns after which an episode is truncated."""
    cost_of_call = 0.0
    """Cost of any call, in addition to the tool's own cost."""

    def __init__(self) -> None:
        self.tools: dict[str, Tool] = {}
        self.turns = 0
        self.spent = 0.0
        """Costs of the current turn."""
        self.total = 0.0
        """Costs of the episode."""

    def judge(self, answer: str) -> bool:
        """Return True if the task is solved; `answer` is the last reply."""
        raise NotImplementedError

    async def step(self, action: Message) -> Step:
        """Execute a reply's tool calls, or end the episode if there are none."""
        self.turns += 1
        if not action.tool_calls:
            success = self.judge((action.content or "").strip())
            info = {"success": success, "cost": round(self.total, 6)}
            return Step(reward=float(success), terminated=True, info=info)
        self.spent = self.cost_of_call * len(action.tool_calls)
        results = await execute_tool_calls(action.tool_calls, self.tools)
        self.total += self.spent
        shown = [Message("tool", r.text, (), r.call_id, r.name) for r in results]
        truncated = self.turns >= self.max_turns
        info = {"success": False, "cost": round(self.total, 6)} if truncated else {}
        return Step(Observation(tuple(shown)), 0.0 - self.spent, truncated=truncated, info=info)

    async def close(self) -> None:
        """Do nothing, since there are no resources to free."""


def call_message(name: str, turn: int, /, **arguments: str) -> Message:
    """Return an assistant message with one tool call, whose id is `call_` and the number `turn`."""
    text = json.dumps(arguments, ensure_ascii=False)
    return Message("assistant", None, (ToolCall(f"call_{turn}", name, text),))


def draw_tasks(
    name: str, split: str, n: int, seed: int, draw: Callable[[str, Random], dict[str, Any]]
) -> list[Task]:
    """Return `n` tasks of a split with distinct questions; a smaller `n` gives a prefix of the
    list.

    `draw(split, rng)` returns the fields of a task. Raises `ConfigError` for an unknown split and
    for more tasks than there are distinct questions.
    """
    if split not in SPLITS:
        raise ConfigError(f"unknown split {split!r} of {name}: use one of {', '.join(SPLITS)}")
    tree = SeedTree(seed + SEEDS_APART * SPLITS.index(split)).child(name)
    tasks: dict[str, Task] = {}
    index = repeats = 0
    while len(tasks) < n:
        fields = draw(split, tree.child(index).python())
        question = fields["question"]
        index += 1
        repeats = repeats + 1 if question in tasks else 0
        if repeats == MAX_REPEATS:
            raise ConfigError(f"{name} has {len(tasks)} distinct {split} tasks, fewer than {n}")
        digest = hashlib.blake2b(question.encode(), digest_size=6).hexdigest()
        tasks.setdefault(question, Task(f"{name}-{split}-{digest}", fields))
    return list(tasks.values())


def draw_words(split: str, rng: Random, first: str, last: str) -> str:
    """Return a random pair of words of the split, such as `red hat`."""
    while True:
        words = f"{rng.choice(first.split())} {rng.choice(last.split())}"
        if split_of(words) == split:
            return words


def check_argument(
    name: str, argument: str, variants: Collection[str], kwargs: Mapping[str, Any]
) -> None:
    """Raise `ConfigError` for an unknown variant of an environment, or if any options are given."""
    if argument not in variants:
        choices = ", ".join(f"{name}:{variant}" if variant else name for variant in variants)
        raise ConfigError(f"unknown environment '{name}:{argument}': use one of {choices}")
    if kwargs:
        raise ConfigError(
            f"the environment {name} has no options, but environment.kwargs has "
            f"{', '.join(kwargs)}: remove them"
        )
