"""Other people's environments on 100 held-out seeds: reasoning-gym, gymnasium and TextWorld.

    python -m benchmarks.environments.others [--only NAME;NAME] [--train]

Without `--train` it plays uniform random actions (of those offered) and the best constant answer:
of all candidates, the one that is best on these very test tasks. With `--train` it runs `tutelage
train --environment ...` on one thread, and adds its start and its result on the same tasks. Rows
that were measured before stay in `others.json`; `OTHERS.md` is made of it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.measure import table

from tutelage.environments import EnvironmentFactory, load_environment
from tutelage.environments.episode import Act, play_episode, random_act
from tutelage.environments.start import environment_tasks
from tutelage.types import Message, Task

HERE = Path(__file__).parent
SEEDS, TURNS = 100, 12


@dataclass(frozen=True, slots=True)
class Case:
    """An environment, and how it is trained."""

    name: str
    kwargs: dict[str, Any]
    train: tuple[str, ...] = ()
    """Further words of the command."""
    commands: tuple[str, ...] = field(default=())
    """Constant answers to try; the answers and actions of training tasks where there are none."""


ONE_DIGIT = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
CASES = {
    "chain_sum": Case("reasoning_gym:chain_sum", ONE_DIGIT),
    "gcd": Case("reasoning_gym:gcd", {"max_value": 30}),
    "frozen_lake": Case(
        "gym:FrozenLake-v1",
        {"is_slippery": False},
        ("--success", ">=1"),
    ),
    "textworld": Case(
        "textworld:",
        {"nb_rooms": 1, "nb_objects": 2, "quest_length": 2},
        ("--train-size", "50"),
    ),
}


async def play(
    factory: EnvironmentFactory, tasks: Sequence[Task], act: Act | None
) -> tuple[float, float]:
    """Return success and mean reward over the tasks; without `act`, of random actions."""
    rewards, successes = list[float](), list[float]()
    for number, task in enumerate(tasks):
        chosen = act or random_act(factory, number)
        episode = await play_episode(factory, task, number, chosen, max_steps=TURNS)
        rewards.append(episode.total)
        successes.append(float(episode.infos[-1].get("success", episode.total >= 1)))
    return sum(successes) / len(tasks), sum(rewards) / len(tasks)


async def without_training(case: Case) -> dict[str, Any]:
    """Return the rows that need no policy."""
    factory = load_environment(case.name, case.kwargs)
    splits = environment_tasks(factory, {"train": SEEDS, "test": SEEDS}, 0)
    tasks = splits["test"]
    rows: dict[str, Any] = {"tasks": len(tasks)}
    offered = Counter[str]()
    for task in splits["train"][:20]:
        actions = list[str]()

        def look(
            _: Task, __: Sequence[Message], observation: Any, found: list[str] = actions
        ) -> Any:
            found += observation.actions
            return Message("assistant", (observation.actions or ("",))[0])

        await play_episode(factory, task, 0, look, max_steps=1)
        offered.update(actions)
    if offered:
        rows["random"] = await play(factory, tasks, None)
    candidates = [word for word, _ in offered.most_common(12)] or [
        word for word, _ in Counter(str(t["answer"]) for t in splits["train"]).most_common(12)
    ]
    best = (-1.0, 0.0)
    for word in candidates:
        reply = Message("assistant", word)

        def constant(
            task: Task, messages: Sequence[Message], seen: Any, reply: Message = reply
        ) -> Message:
            return reply

        found = await play(factory, tasks, constant)
        if found > best:
            best, rows["constant"], rows["answer"] = found, found, word
    return rows


def trained(case: Case, steps: str) -> dict[str, Any]:
    """Train by the public command, and return success before and after on the test tasks."""
    with tempfile.TemporaryDirectory(prefix="others-") as place:
        words = [
            *(sys.executable, "-m", "tutelage", "train", "--environment", case.name),
            *("--environment-kwargs", json.dumps(case.kwargs), "--algorithm", "grpo"),
            *("--test-size", str(SEEDS), "--steps", steps, "--seed", "0", *case.train),
            *("--output", f"{place}/run", "trainer.threads=1"),
        ]
        subprocess.run(words, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        result = json.loads(Path(place, "run", "result.json").read_text())
        kept = {k: v for k, v in result.items() if "success" in k or "reward" in k}
        return {
            "result": kept,
            "cpu_seconds": used.ru_utime + used.ru_stime,
            "command": " ".join(words[3:-3]),
        }


def page(found: dict[str, Any]) -> str:
    """Return the results as a table."""

    def share(value: Any) -> str:
        return (
            "-"
            if value is None
            else f"{100 * (value[0] if isinstance(value, list) else value):.0f} %"
        )

    rows = [
        [
            f"`{CASES[name].name}` {json.dumps(CASES[name].kwargs)}",
            str(row["tasks"]),
            share(row.get("result", {}).get("success_before_sampled")),
            share(row.get("random")),
            f"{share(row['constant'])} ({row['answer']!r})",
            share(row.get("result", {}).get("success_demonstrations_sampled")),
            share(row.get("result", {}).get("success_after_sampled")),
        ]
        for name, row in found.items()
    ]
    head = ["environment", "test tasks", "untrained", "random", "best constant"]
    head += ["after imitation", "trained"]
    return (
        "# Other people's environments\n\n"
        f"Success on {SEEDS} held-out seeds (equal questions are dropped, so a small dataset has "
        f"fewer), one seed of training, at most {TURNS} turns. The policy is the new one of "
        "`tutelage train --environment NAME`: untrained, after it has imitated the expert (or the "
        "best tenth of random episodes), and after rewards; it is sampled at temperature 1. Random "
        "are actions that are offered. The best constant answer was chosen on these tasks.\n\n"
        f"{table(head, rows)}\n"
        "Command: `python -m benchmarks.environments.others --train` (12 steps of 128 rollouts, "
        "the lake 20). Greedy, the lake is at 100 % after training. With -1 for a hole, which was "
        "tried first, its policy learned to stand still: 5 % after imitation, 0 % trained. Figures "
        "are in `others.json`.\n"
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=";".join(CASES), help="names with semicolons")
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--steps", default="12", help="steps of 128 rollouts")
    asked = parser.parse_args()
    file = HERE / "others.json"

    def measured() -> dict[str, Any]:
        return json.loads(file.read_text()) if file.is_file() else {}

    for name in asked.only.split(";"):
        row = measured().get(name, {})
        if "tasks" not in row:
            row |= asyncio.run(without_training(CASES[name]))
        if asked.train:
            row |= trained(CASES[name], asked.steps)
        print(name, json.dumps(row), flush=True)
        found = measured() | {name: row}
        found = {name: found[name] for name in CASES if name in found}
        file.write_text(json.dumps(found, indent=1) + "\n")
        (HERE / "OTHERS.md").write_text(page(found))


if __name__ == "__main__":
    main()
