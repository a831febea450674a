"""What searches claim on a task whose reward the prompt has no effect on.

    python -m benchmarks.prompt.placebo

Twenty seeds of each algorithm: what the best prompt had on validation (what other tools report) and
what the held-out test says. True gain: 0.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence

from benchmarks.prompt import clerk
from benchmarks.prompt.worlds import chance, world

from tutelage.prompts import (
    APO,
    GEPA,
    Algorithm,
    Components,
    Episode,
    Limits,
    OptimiserReply,
    Reflect,
    Screen,
    Settings,
    Splits,
    Usage,
    optimise,
)
from tutelage.prompts.contract import RolloutSlot
from tutelage.types import Message, Task

SEEDS = 20


async def one(algorithm: Algorithm, seed: int) -> tuple[str, float]:
    """The verdict, and the gain on the ten validation tasks."""

    async def play(components: Components, task: Task, slot: RolloutSlot) -> Episode:
        question = str(task.fields["question"])
        reward = clerk.placebo(components["prompt"], question, slot.sample, seed)
        return Episode(reward, reward == 1, "" if reward else "too many digits", usage=Usage(1))

    async def ask(role: str, messages: Sequence[Message], step_key: str) -> OptimiserReply:
        if role == "gradient":
            return OptimiserReply(f"({step_key}) too many digits")
        guess = world("clerk").phrases[int(chance(seed, step_key) * 14)]
        return OptimiserReply(f"<prompt>\n{clerk.SEED_PROMPT}\n{guess} {step_key}\n</prompt>")

    def tasks(split: str, count: int) -> list[Task]:
        return [Task(f"{split}-{i}", clerk.make_task(f"{split}-{seed}", i)) for i in range(count)]

    data = Splits(tasks("train", 10), tasks("val", 10), tasks("test", 100))
    settings = Settings("placebo", Limits(rollouts=150), seed=seed)
    needs = ask if algorithm.needs_optimiser else None
    result = await optimise(
        algorithm, {"prompt": clerk.SEED_PROMPT}, data, play, settings, ask=needs
    )
    entries = {e.id: e for e in result.lineage}
    first, best = next(iter(entries.values())), entries[result.best.id]
    gain = float(best.scores["val"]["reward"]) - float(first.scores["val"]["reward"])
    return result.test.verdict.value, gain


def main() -> None:
    """One JSON line an algorithm."""
    bank = world("clerk").phrases
    for algorithm in (APO(), GEPA(), Reflect(), Screen(bank)):
        found = [asyncio.run(one(algorithm, seed)) for seed in range(SEEDS)]
        line = {
            "algorithm": algorithm.name,
            "seeds": SEEDS,
            "verdicts": dict(Counter(verdict for verdict, _ in found)),
            "gain_on_validation": round(sum(gain for _, gain in found) / SEEDS, 3),
            "true_gain": 0.0,
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
