"""Our searches on a simulator: in process for development, over HTTP for the comparison.

`search` is one search and returns the prompt it found with what it used. The agent sends prompt and
question to the task model and grades the reply; the optimiser's requests carry a `seed` made of
their step key, since a deterministic endpoint cannot be asked twice otherwise. Without `--url` it
reports means on a development world; `compare.py` gives it one.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import httpx2
from benchmarks.prompt.formats import read
from benchmarks.prompt.peers import client as peers
from benchmarks.prompt.peers.client import TRAIN, VAL
from benchmarks.prompt.worlds import World, world

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


class Direct:
    """The world's functions, without a server between."""

    def __init__(self, here: World) -> None:
        self._world = here

    async def chat(self, model: str, messages: list[dict[str, Any]], seed: int = 0) -> str:
        """A reply, as the server would give it."""
        text = "\n".join(str(m["content"]) for m in messages)
        if model == "simulator-task":
            system, question = messages[0]["content"], messages[1:]
            return self._world.reply(system, question, (), 0).content
        asked = read(text)
        if asked is None:
            return ""
        salt = json.dumps([text, seed, 0] if seed else [text])
        made = self._world.criticise if asked.kind == "critique" else self._world.rewrite
        return asked.wrap(made(asked, salt))


class Served:
    """The server, over HTTP."""

    def __init__(self, url: str, key: str) -> None:
        limits = httpx2.Limits(max_connections=16, max_keepalive_connections=16)
        headers = {"authorization": f"Bearer {key}"}
        self.client = httpx2.AsyncClient(base_url=url, headers=headers, limits=limits)

    async def chat(self, model: str, messages: list[dict[str, Any]], seed: int = 0) -> str:
        """A reply."""
        body = {"model": model, "messages": messages} | ({"seed": seed} if seed else {})
        answer = await self.client.post("/chat/completions", json=body)
        answer.raise_for_status()
        return answer.json()["choices"][0]["message"]["content"]


def algorithm(name: str, here: World) -> Algorithm:
    """By name, at its defaults; those without an optimiser get the world's phrases."""
    made: dict[str, Algorithm] = {
        "apo": APO(),
        "gepa": GEPA(),
        "reflect": Reflect(),
        "screen": Screen(here.phrases),
    }
    return made[name]


async def search(
    here: World, chat: Direct | Served, chosen: Algorithm, seed: int, rollouts: int, calls: int
) -> dict[str, Any]:
    """One search; the test tasks are left to `compare.py`, which plays them for all alike."""

    async def play(components: Components, task: Task, slot: RolloutSlot) -> Episode:
        messages = [
            {"role": "system", "content": components["prompt"]},
            {"role": "user", "content": str(task.fields["question"])},
        ]
        reply = await chat.chat("simulator-task", messages)
        grade = here.grade(task.fields, reply)
        return Episode(grade.reward, grade.exact, grade.feedback, reply, usage=Usage(1, 100))

    async def ask(role: str, messages: Sequence[Message], step_key: str) -> OptimiserReply:
        digest = hashlib.blake2b(step_key.encode(), digest_size=4).digest()
        text = await chat.chat(
            "simulator-optimiser",
            [{"role": m.role, "content": m.content or ""} for m in messages],
            1 + int.from_bytes(digest, "big"),
        )
        return OptimiserReply(text, Usage(1, 200))

    def some(split: str, count: int) -> list[Task]:
        return [Task(f"{split}-{i}", here.task(f"{split}-{seed}", i)) for i in range(count)]

    # The held-out test of the package is not what is measured here, so it is one task.
    data = Splits(some("train", TRAIN), some("val", VAL), some("sealed", 1))
    began, cpu = time.perf_counter(), time.process_time()
    result = await optimise(
        chosen,
        {"prompt": here.seed_prompt},
        data,
        play,
        Settings(here.name, Limits(rollouts=rollouts, optimiser_calls=calls), seed=seed),
        ask=ask if chosen.needs_optimiser else None,
    )
    return {
        "prompt": result.components["prompt"],
        "rollouts": result.spent.rollouts,
        "optimiser_calls": result.spent.optimiser_calls,
        "ended": result.ended,
        "seconds": round(time.perf_counter() - began, 3),
        "cpu_seconds": round(time.process_time() - cpu, 3),
    }


def score(here: World, prompt: str, seed: int, tasks: int = 600) -> tuple[float, float]:
    """Mean reward and exact rate on unseen tasks: what the server would reply, without the wire."""
    rewards, exact = list[float](), list[bool]()
    for i in range(tasks):
        task = here.task(f"test-{seed}", i)
        reply = here.reply(prompt, [{"role": "user", "content": task["question"]}], (), 0)
        grade = here.grade(task, reply.content)
        rewards.append(grade.reward)
        exact.append(grade.exact)
    return sum(rewards) / tasks, sum(exact) / tasks


def develop() -> None:
    """Mean test score of our searches on a development world, in process."""
    parser = argparse.ArgumentParser(description=develop.__doc__)
    parser.add_argument(
        "--world", choices=("clerk", "desk", "clerk-formatted", "desk-formatted"), default="clerk"
    )
    parser.add_argument("--algorithms", nargs="+", default=["apo", "gepa", "reflect"])
    parser.add_argument("--rollouts", type=int, nargs="+", default=[300, 600])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=1000)
    parser.add_argument("--set", nargs="*", default=[], help="settings, as beam=2")
    given = parser.parse_args()
    here = world(given.world)
    changes = {k: json.loads(v) for k, v in (pair.split("=") for pair in given.set)}
    for name in given.algorithms:
        for rollouts in given.rollouts:
            found: list[float] = []
            used: list[int] = []
            for seed in range(given.first, given.first + given.seeds):
                chosen = replace(algorithm(name, here), **changes)
                args = (here, Direct(here), chosen, seed, rollouts, ceiling(rollouts))
                made = asyncio.run(search(*args))
                found.append(score(here, made["prompt"], seed)[0])
                used.append(made["optimiser_calls"])
            mean = sum(found) / len(found)
            spread = (sum((x - mean) ** 2 for x in found) / len(found)) ** 0.5
            calls = sum(used) / len(used)
            print(
                f"{given.world} {name} {rollouts}: {mean:.3f} ± {spread / len(found) ** 0.5:.3f}, "
                f"{calls:.0f} optimiser calls",
                flush=True,
            )


def ceiling(rollouts: int) -> int:
    """Optimiser calls that every method may make: 8 for 100 rollouts, as agentlightning's APO."""
    return rollouts * 8 // 100


def served(here: World, client: peers.Client, seed: int, given: argparse.Namespace) -> str:
    """One search against the server, in the form that peers have."""
    chosen = algorithm(given.algorithm, here)
    chat = Served(given.url, client.key)
    made = asyncio.run(search(here, chat, chosen, seed, given.rollouts, given.calls))
    return made["prompt"]


if __name__ == "__main__":
    if "--url" in sys.argv:
        peers.main("ours", served, lambda parser: parser.add_argument("--algorithm"))
    else:
        develop()
