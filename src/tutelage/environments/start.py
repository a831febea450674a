"""Tasks and demonstrations that a training run takes from an environment.

An episode is a demonstration if the environment's expert played it, or, without an expert, if it is
among the best tenth of episodes of random actions.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from tutelage.config import RunConfig
from tutelage.environments.episode import PlayedEpisode, check_deterministic, play_episode
from tutelage.environments.lifecycle import STEP_SECONDS
from tutelage.environments.protocol import EnvironmentFactory, Observation
from tutelage.errors import ConfigError, pluralize
from tutelage.seeds import SeedTree
from tutelage.tasks.dataset import Dataset
from tutelage.tasks.demonstrations import Demonstration, load_demonstrations
from tutelage.tasks.overlap import hash_task
from tutelage.types import EXPECTED_FIELDS, Message, Task, ToolSpec

TURNS = 20
"""Default limit of model calls per rollout."""
TEST_TASKS = 100
"""Default number of tasks of an evaluation."""
OFFSETS: Mapping[str, int] = {"test": 10**6, "val": 2 * 10**6, "train": 0}
"""Seed offset of each split. A task that is in two splits is kept in the first one listed."""
EPISODES = 2_000
"""Number of episodes of random actions, and the maximum that an expert plays."""
OBSERVATIONS = 2_000
"""Number of observations after which no more expert episodes are played."""
AT_ONCE = 64
"""Episodes that are played concurrently."""
BEST = 0.1
"""Share of the random episodes that become demonstrations."""


def environment_tasks(
    factory: EnvironmentFactory, sizes: Mapping[str, int], seed: int
) -> dict[str, Sequence[Task]]:
    """Return the environment's tasks by split, at most `sizes[split]` per split.

    Duplicates are dropped; a task of both test and training is kept in the test. Raises
    `ConfigError` if the environment has no tasks, or a split no task that is in no other split.
    """
    if factory.tasks is None:
        raise ConfigError(
            f"the environment {factory.name!r} has no tasks of its own; pass some with --train "
            "FILE (tasks to evaluate on: --test FILE), or define tasks(split, n, seed) on its class"
        )
    known: set[str] = set()
    splits: dict[str, Sequence[Task]] = {}
    for split in (name for name in OFFSETS if name in sizes):
        count, own = sizes[split], seed + OFFSETS[split]
        try:
            found = factory.tasks(split, count, own)
        except Exception as error:
            raise ConfigError(
                f"tasks({split!r}, {count}, {own}) of the environment {factory.name!r} failed"
                f": {type(error).__name__}: {error}; return fewer tasks if there are not enough"
            ) from error
        fresh: list[Task] = []
        for task in Dataset(found, name=f"{factory.name} {split}", input_required=False):
            answered = not {*EXPECTED_FIELDS}.isdisjoint(task.fields)
            mark = hash_task(task, EXPECTED_FIELDS if answered else None)
            if mark not in known:
                known.add(mark)
                fresh.append(task)
        if not fresh:
            raise ConfigError(
                f"all {split} tasks of the environment {factory.name!r} are also in another split; "
                "pass tasks with --train FILE, or make tasks() depend on its split and seed"
            )
        splits[split] = fresh
    return splits


def check_determinism(
    factory: EnvironmentFactory, task: Task, seed: int, step_timeout: float = STEP_SECONDS
) -> None:
    """Play one episode twice if the environment is declared deterministic. Raises `ConfigError` if
    the two episodes differ."""
    if not factory.deterministic:
        return
    with ThreadPoolExecutor(1) as pool:  # the caller may be in an event loop
        played = check_deterministic(factory, task, seed, step_timeout)
        difference = pool.submit(asyncio.run, played).result()
    if difference is not None:
        raise ConfigError(
            f"the environment {factory.name!r} gave two different episodes for the same task, seed "
            f"and actions: {difference}; draw all random numbers from the seed of reset(), or set "
            "`deterministic = False` on its class"
        )


def collect_demonstrations(
    config: RunConfig,
    factory: EnvironmentFactory,
    tasks: Sequence[Task],
    path: Path | None,
    new_policy: bool,
) -> tuple[list[Demonstration], str]:
    """Return demonstrations for training, and a description of their origin. A `new_policy` needs
    them for its tokenizer too; other policies use only those of an expert. A resumed run reads them
    from the file `path`. Raises `ConfigError`."""
    seeds = SeedTree(config.seed).child("environment")
    if path is not None:
        return load_demonstrations([path]), path.name
    chat = config.agent.agent_type == "hf"
    if not new_policy and (factory.expert is None or not config.sft.max_steps or not chat):
        return [], ""
    if not chat:
        raise ConfigError(
            f"agent.agent_type={config.agent.agent_type!r} writes tool calls as text, but "
            "episodes are chat conversations; use agent.agent_type=hf, or pass --model NAME"
        )
    turns, limit = config.agent.max_turns, config.environment.step_timeout
    rows, origin = asyncio.run(play_demonstrations(factory, tasks, seeds, turns, limit))
    if prompt := config.agent.system_prompt:
        first = Message("system", prompt)
        rows = [replace(row, messages=(first, *row.messages)) for row in rows]
    return rows, origin


def filter_by_length(
    rows: Sequence[Demonstration],
    encode: Callable[[Sequence[Message], Sequence[ToolSpec]], tuple[Sequence[int], Any]],
    max_tokens: int,
) -> list[Demonstration]:
    """Return the episodes of at most `max_tokens` tokens. Raises `ConfigError` if none is left."""
    kept = [row for row in rows if len(encode(row.messages, row.tools)[0]) <= max_tokens]
    if not kept:
        raise ConfigError(
            f"every episode of the environment has more than {max_tokens} tokens; raise "
            "rollout.max_len, or use a model with a longer context"
        )
    return kept


async def play_demonstrations(
    factory: EnvironmentFactory,
    tasks: Sequence[Task],
    seeds: SeedTree,
    max_turns: int,
    step_timeout: float = STEP_SECONDS,
) -> tuple[list[Demonstration], str]:
    """Play demonstrations of at most `max_turns` turns for training tasks, and return them with a
    description of their origin.

    Raises `ConfigError` if there is no expert and an observation offers no actions.
    """
    expert = factory.expert

    async def play(index: int) -> tuple[PlayedEpisode, Demonstration]:
        task, seed = tasks[index % len(tasks)], seeds.child(index)
        rng, tools = seed.child("actions").python(), list[ToolSpec]()

        def act(task: Task, messages: Sequence[Message], observation: Observation) -> Message:
            tools[:] = observation.tools or tools or factory.tools
            if expert is not None:
                reply = expert(task, messages)
                if observation.actions and reply.content not in observation.actions:
                    raise ConfigError(
                        f"the expert of the environment {factory.name!r} replied "
                        f"{reply.content!r:.80}, which is not one of the offered actions"
                    )
                return reply
            if not observation.actions:
                raise ConfigError(
                    f"the environment {factory.name!r} has no expert and offers no actions, so a "
                    "new model has nothing to imitate; pass a model that can act (--model "
                    "smollm2), --demonstrations FILE, or search for a prompt with a served model "
                    "(--algorithm apo --endpoint URL); or define expert(task, messages) on its "
                    "class"
                )
            return Message("assistant", rng.choice(observation.actions))

        episode = await play_episode(
            factory, task, seed.value(), act, max_steps=max_turns, step_timeout=step_timeout
        )
        said = [*episode.messages]
        while said and said[-1].role != "assistant":
            said.pop()
        place = f"{factory.name}, episode {index}"
        return episode, Demonstration(tuple(said), tuple(tools), place, factory.name)

    played: list[tuple[PlayedEpisode, Demonstration]] = []
    shown = 0
    while len(played) < EPISODES and (expert is None or shown < OBSERVATIONS):
        numbers = range(len(played), min(EPISODES, len(played) + AT_ONCE))
        fresh = await asyncio.gather(*map(play, numbers))
        shown += sum(len(episode.rewards) for episode, _ in fresh)
        played += fresh
    if expert is not None:
        words = f"{pluralize(len(played), 'episode')} of the expert of {factory.name}"
        return [one for _, one in played], words
    returns = [episode.total for episode, _ in played]
    order = sorted(range(len(played)), key=lambda i: -returns[i])[: round(BEST * len(played))]
    words = (
        f"the best {len(order)} of {pluralize(len(played), 'episode')} of random actions in "
        f"{factory.name}, with a mean return of {sum(returns[i] for i in order) / len(order):.3g} "
        f"(of all: {sum(returns) / len(returns):.3g})"
    )
    return [played[i][1] for i in order], words


def write_demonstrations(path: Path, demonstrations: Sequence[Demonstration]) -> None:
    """Write demonstrations as chat rows, in the format of `load_demonstrations`."""
    with path.open("w", encoding="utf-8") as file:
        for one in demonstrations:
            messages = [message.to_dict() for message in one.messages]
            row = {"messages": messages, "tools": [tool.to_dict() for tool in one.tools]}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
