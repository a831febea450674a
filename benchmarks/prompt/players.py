"""The simulators as the prompt searches see an agent and an optimiser LLM, in process.

`clerk_agent` and `desk_agent` are `Play`s, `clerk_optimiser` and `desk_optimiser` are `Ask`s; the
placebo is an agent on whose reward the prompt has no effect. `run.py` runs the searches on them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence

import clerk
import desk

from tutelage.prompts import Ask, Components, Episode, OptimiserReply, Play, Splits, Usage
from tutelage.prompts.contract import RolloutSlot
from tutelage.types import Message, Task

MakeTask = Callable[[str, int], dict[str, object]]


def splits(make: MakeTask, train: int, val: int, test: int, seed: int = 0) -> Splits:
    """Tasks of a simulator, other ones for each seed."""

    def some(name: str, count: int) -> list[Task]:
        return [Task(f"{name}-{i}", make(f"{name}-{seed}", i)) for i in range(count)]

    return Splits(some("train", train), some("val", val), some("test", test))


def clerk_agent(seed: int) -> Play:
    """Partial credit by rules obeyed; exact when all are."""

    async def play(components: Components, task: Task, slot: RolloutSlot) -> Episode:
        await asyncio.sleep(0)
        needs = list(task.fields["needs"])
        prompt, question = components["prompt"], str(task.fields["question"])
        broken = clerk.play(prompt, question, needs, slot.sample, seed)
        reward = 1 - len(broken) / len(needs)
        return Episode(reward, not broken, clerk.feedback(broken), usage=Usage(1, 100))

    return play


def clerk_optimiser(seed: int) -> Ask:
    """Reads nothing but the request."""

    async def ask(role: str, messages: Sequence[Message], step_key: str) -> OptimiserReply:
        await asyncio.sleep(0)
        return OptimiserReply(clerk.optimise(_text(messages), seed), Usage(1, 200))

    return ask


def desk_agent(seed: int) -> Play:
    """Solved or not."""

    async def play(components: Components, task: Task, slot: RolloutSlot) -> Episode:
        question, family = str(task.fields["question"]), str(task.fields["family"])
        solved, said = desk.play(components["prompt"], question, family, slot.sample, seed)
        return Episode(float(solved), solved, said, usage=Usage(1, 100))

    return play


def desk_optimiser(seed: int) -> Ask:
    """Critiques for the role `gradient`, prompts for `edit`."""

    async def ask(role: str, messages: Sequence[Message], step_key: str) -> OptimiserReply:
        request = _text(messages)
        if role == "gradient":
            return OptimiserReply(desk.criticise(request), Usage(1, 200))
        current = re.search(r"<current>\n(.*?)\n</current>", request, re.DOTALL)
        text = desk.optimise(request, current.group(1) if current else "", seed)
        return OptimiserReply(f"<prompt>\n{text}\n</prompt>", Usage(1, 200))

    return ask


def placebo_agent(seed: int) -> Play:
    """The prompt has no effect on the reward, which is a coin."""

    async def play(components: Components, task: Task, slot: RolloutSlot) -> Episode:
        question = str(task.fields["question"])
        reward = clerk.placebo(components["prompt"], question, slot.sample, seed)
        return Episode(reward, reward == 1, "" if reward else "too many digits")

    return play


def _text(messages: Sequence[Message]) -> str:
    return "\n".join(m.content or "" for m in messages)
