"""The embedded default: from a seed prompt near 0 to what `screen` finds, without a key.

    python benchmarks/prompt/embedded.py [--rollouts 600] [--seeds 0,1,2]

The policy is the one that comes with the package. Each search runs with each seed: 20 training and
20 validation tasks, a held-out test of 200 tasks, other ones for each seed, greedy decoding on the
native engine in its occupancy-invariant mode. Rewards are the
document's partial credit; `exact` is the share of right answers. The policy's sensitivity to its
prompt was trained in: these figures compare searches on one real small network, and say nothing of
language models. `embedded.json` is the committed result.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

import torch
from benchmarks.house.prompt_phrases import RULES, Rule
from benchmarks.house.prompt_recipe import CONTEXT

from tutelage.agents.tool_calling import ToolCallingAgent
from tutelage.engine.backends import make_backend
from tutelage.engine.driver import EngineDriver
from tutelage.engine.native import NativeEngine
from tutelage.policy.model import Policy
from tutelage.prompts import (
    Algorithm,
    Components,
    Episode,
    Limits,
    Play,
    Screen,
    SearchResult,
    Settings,
    Splits,
    Usage,
    optimise,
)
from tutelage.prompts.bank import build_bank
from tutelage.prompts.contract import RolloutSlot
from tutelage.recipes.prompt_following import EMBEDDED
from tutelage.recipes.prompted import PROMPTED_TOOLS, SEED_PROMPT, prompted_tasks
from tutelage.rewards import resolve_reward
from tutelage.rollouts.models import EngineModelProvider
from tutelage.rollouts.runner import RolloutSpec, Runner, RunnerSettings
from tutelage.seeds import SeedTree
from tutelage.tasks.arithmetic import PROMPTED_REWARD
from tutelage.tools.registry import resolve_tools
from tutelage.types import Mode, Sampling, Task

sys.path.insert(0, str(Path(__file__).parents[1]))

import measure
from held_out import HELD_OUT, HELD_OUT_USELESS

HERE = Path(__file__).parent
TOOLS = resolve_tools(PROMPTED_TOOLS)
GRADER = resolve_reward(PROMPTED_REWARD)
RUNNERS = 64
"""Rollouts at once: the engine batches them, and they change no result."""


def player(policy: Policy) -> Play:
    """The tool-calling agent on the native engine, greedy, with the prompt it is given."""
    engine = NativeEngine(
        lambda slots, width: make_backend(policy, slots, width, torch.float32),
        slots=RUNNERS,
        max_length=CONTEXT,
        eos_ids=sorted(policy.codec.eos_ids),
        decode=policy.codec.decode,
        invariant=True,
    )
    models = EngineModelProvider(EngineDriver(engine, schedule="free"), policy.codec)
    agent = ToolCallingAgent(TOOLS, Sampling(temperature=0.0, max_tokens=96), max_turns=3)

    async def play(components: Components, task: Task, slot: RolloutSlot) -> Episode:
        spec = RolloutSpec(
            task, Mode.VAL, task.id, slot.sample, SeedTree(0).child(task.id, slot.sample)
        )
        prompted = replace(agent, system_prompt=components["prompt"])
        runner = Runner(prompted, models, RunnerSettings("embedded"), reward=GRADER)
        (rollout,) = await runner.run([spec])
        last = rollout.last
        reward = 0.0 if last.reward is None else last.reward.value
        tokens = sum(len(c.prompt_ids) + len(c.sampled.token_ids) for c in last.calls)
        return Episode(reward, reward == 1.0, usage=Usage(len(last.calls), tokens))

    return play


def algorithm() -> Algorithm:
    """The search at its defaults, with the agent's own bank."""
    return Screen(bank=build_bank(TOOLS, GRADER))


def splits(seed: int) -> Splits:
    """20, 20 and 200 tasks, other ones for each seed."""
    return Splits(
        prompted_tasks("train", 20, seed),
        prompted_tasks("val", 20, seed),
        prompted_tasks("test", 200, seed),
    )


def search(
    policy: Policy, name: str, seed: int, rollouts: int, runners: int = RUNNERS
) -> SearchResult:
    """One search and its held-out test."""
    settings = Settings("embedded", Limits(rollouts=rollouts), seed=seed, runners=runners)
    return asyncio.run(
        optimise(algorithm(), {"prompt": SEED_PROMPT}, splits(seed), player(policy), settings)
    )


def row(policy: Policy, name: str, seed: int, rollouts: int) -> Mapping[str, object]:
    """A search as the numbers of one line of the table."""
    cpu, wall = time.process_time(), time.perf_counter()
    found = search(policy, name, seed, rollouts)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    test = found.test
    return {
        "algorithm": name,
        "seed": seed,
        "seed_exact": test.seed_exact,
        "best_exact": test.best_exact,
        "exact_interval": [test.exact.low, test.exact.high],
        "seed_reward": test.seed_reward,
        "best_reward": test.best_reward,
        "verdict": test.verdict.value,
        "test_tasks": test.tasks,
        "rollouts": found.spent.rollouts,
        "rollouts_of_test": found.test_spent.rollouts,
        "cpu_seconds": round(cpu, 1),
        "seconds": round(wall, 1),
        "prompt": found.components["prompt"],
    }


def same_with(runners: int, policy: Policy, seed: int, rollouts: int) -> bool:
    """Whether a search with fewer runners has the same lineage and test, to the byte."""
    few, many = (search(policy, "screen", seed, rollouts, n) for n in (runners, RUNNERS))
    return few.lineage.to_jsonl() == many.lineage.to_jsonl() and few.test == many.test


def held_out(policy: Policy) -> list[Mapping[str, object]]:
    """Exact answers on 100 validation tasks to prompts of wordings that were never trained on:
    all rules in one, and the same without each of them."""
    tasks = prompted_tasks("val", 100, 0)

    async def exact(rules: Sequence[Rule], number: int) -> float:
        play = player(policy)
        said = [HELD_OUT[rule][number] for rule in rules]
        prompt = "\n".join([SEED_PROMPT, *HELD_OUT_USELESS, *said])
        played = await asyncio.gather(*(play({"prompt": prompt}, task, 0) for task in tasks))
        return sum(episode.exact for episode in played) / len(tasks)

    async def measured(number: int) -> Mapping[str, object]:
        found: dict[str, object] = {"all rules": await exact(RULES, number)}
        for rule in RULES:
            found[f"without {rule}"] = await exact([r for r in RULES if r != rule], number)
        return found

    return [asyncio.run(measured(number)) for number in range(3)]


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rollouts", type=int, default=600)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--check-runners", action="store_true", help="search again with 8 runners")
    parser.add_argument("--output", type=Path, default=HERE / "embedded.json")
    given = parser.parse_args()
    torch.set_num_threads(1)
    policy = EMBEDDED.policy()
    names, seeds = ["screen"], [int(s) for s in given.seeds.split(",")]
    rows: list[Mapping[str, object]] = []
    result: dict[str, object] = {
        "machine": measure.machine(),
        "date": date.today().isoformat(),
        "rollouts_limit": given.rollouts,
        "parameters": policy.count(),
        "searches": rows,
    }

    def keep() -> None:
        given.output.write_text(json.dumps(result, indent=2) + "\n")

    for name in names:
        for seed in seeds:
            rows.append(row(policy, name, seed, given.rollouts))
            print({k: v for k, v in rows[-1].items() if k != "prompt"}, flush=True)
            keep()
    result["held_out_wordings"] = held_out(policy)
    keep()
    if given.check_runners:
        same = same_with(8, policy, seeds[0], given.rollouts)
        result["same_with_8_runners"] = same
        keep()


if __name__ == "__main__":
    main()
