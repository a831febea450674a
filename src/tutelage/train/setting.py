"""Everything a job works with, made from a configuration: tasks, tools, reward, policy, engines.

Cheap and fallible things come first (files, names, the reward's parameters), so that bad input is
refused before any model loads. `jobs.py` runs phases on a `Setting`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tutelage.agents.tool_calling import ToolCallingAgent
from tutelage.config import RunConfig
from tutelage.engine.backends import make_backend
from tutelage.engine.native import NativeEngine
from tutelage.errors import ConfigError
from tutelage.policy.model import Policy, build, load
from tutelage.rewards import RewardFunction, check, resolve_reward
from tutelage.seeds import SeedTree
from tutelage.tasks.arithmetic import Level, demonstrations, make_tasks
from tutelage.tasks.dataset import Dataset
from tutelage.tools.registry import resolve_tools
from tutelage.tools.tool import Tool
from tutelage.train.machine import Choice, choose, set_threads
from tutelage.types import Sampling, Task, ToolSpec

EMBEDDED_TOOLS = ("calculator", "sum_1_to_n", "lookup")
EMBEDDED_REWARD = "math"
TRAIN_TASKS = 8192
"""Training tasks that the embedded job draws."""


@dataclass(frozen=True, slots=True)
class Tasks:
    """Training, validation and test tasks; `demonstrated` when gold calls can be shown."""

    train: Sequence[Task]
    val: Sequence[Task]
    test: Sequence[Task]
    demonstrated: bool


@dataclass(frozen=True, slots=True)
class Setting:
    """What a job works with."""

    config: RunConfig
    seeds: SeedTree
    tasks: Tasks
    tools: Mapping[str, Tool]
    reward: RewardFunction
    policy: Policy
    choice: Choice

    def specs(self) -> list[ToolSpec]:
        """What the model is told about the tools."""
        return [t.spec for t in self.tools.values()]

    def agent(self, temperature: float, *, with_tools: bool = True) -> ToolCallingAgent:
        """The agent at a temperature; without tools it is told of none and gets no results."""
        config = self.config
        return ToolCallingAgent(
            tools=self.tools if with_tools else {},
            sampling=Sampling(
                temperature=temperature,
                top_p=config.rollout.top_p,
                top_k=config.rollout.top_k,
                max_tokens=config.agent.max_tokens_per_turn,
            ),
            max_turns=config.agent.max_turns if config.agent.use_agent else 1,
            token_budget=config.response_tokens,
        )

    def engine(self, *, slots: int | None = None, invariant: bool = False) -> NativeEngine:
        """A native engine that samples from the policy."""
        policy, codec = self.policy, self.policy.codec
        return NativeEngine(
            lambda count, width: make_backend(policy, count, width, self.choice.numerics.dtype),
            slots=slots or self.config.rollout.slots,
            max_length=min(self.config.rollout.max_len, policy.max_positions),
            eos_ids=sorted(codec.eos_ids),
            decode=codec.decode,
            invariant=invariant,
        )


def prepare(config: RunConfig, policy_folder: Path | None = None) -> Setting:
    """Make the setting of a run. `policy_folder` overrides where the policy comes from (resume)."""
    seeds = SeedTree(config.seed)
    tasks = load_tasks(config)
    tools = load_tools(config)
    reward = resolve_reward(config.agent.reward_name or EMBEDDED_REWARD)
    for part in (tasks.train, tasks.val, tasks.test):
        check(reward, part)
    policy = _policy(config, tasks, tools, policy_folder)
    choice = choose(config, policy.count())
    if choice.device != policy.device:
        policy = policy.to(choice.device)
    set_threads(choice, config, policy.count())
    return Setting(config, seeds, tasks, tools, reward, policy, choice)


def load_tools(config: RunConfig) -> dict[str, Tool]:
    """The agent's tools; none where the agent is off."""
    if not config.agent.use_agent:
        return {}
    return resolve_tools(config.agent.tools or EMBEDDED_TOOLS)


def load_tasks(config: RunConfig) -> Tasks:
    """The tasks of the configured files, or the embedded ones; all checked."""
    data, limit = config.data, config.trainer.val_tasks
    if not data.train_files:
        if data.val_files or data.test_files:
            raise ConfigError("--val and --test need --train: give the training tasks as well")
        level: Level = data.level
        return Tasks(
            train=make_tasks(level, "train", TRAIN_TASKS, config.seed),
            val=make_tasks(level, "val", limit, config.seed),
            test=make_tasks(level, "test", limit, config.seed),
            demonstrated=True,
        )
    train = _files(data.train_files)
    if data.val_files:
        val = _files(data.val_files)
    else:
        if len(train) < 2:
            raise ConfigError("one training task cannot be split; add tasks or give --val")
        held = min(limit, max(1, len(train) // 10))
        train, val = train[held:], train[:held]
    test = _files(data.test_files) if data.test_files else val
    return Tasks(train, val[:limit], test[:limit], demonstrated=False)


def _files(paths: Sequence[str]) -> Sequence[Task]:
    if len(paths) == 1:
        return Dataset.load(paths[0])
    return Dataset([task for path in paths for task in Dataset.load(path)])


def _policy(
    config: RunConfig, tasks: Tasks, tools: Mapping[str, Tool], folder: Path | None
) -> Policy:
    if folder is not None:
        return load(str(folder))
    if config.model.path is not None:
        return load(config.model.path)
    return build(
        _corpus(tasks.train, tools, SeedTree(config.seed)),
        size=config.model.size,
        layout=config.model.layout,
        seed=SeedTree(config.seed).child("weights").value(),
        max_positions=max(512, config.rollout.max_len),
    )


def _corpus(tasks: Sequence[Task], tools: Mapping[str, Tool], seeds: SeedTree) -> Iterator[str]:
    """What the embedded tokenizer is trained on: questions, calls, results and tool names."""
    rng = seeds.child("corpus").python()
    names = " ".join(f"{t.name}({', '.join(t.parameters['properties'])})" for t in tools.values())
    for task in tasks[:2000]:
        yield f"system\nTools: {names}\nuser\nassistant\ntool\n"
        yield str(task.input)
        if "calls" not in task.fields:
            continue
        for message in demonstrations(task, False, rng):
            if message.content:
                yield message.content
            for call in message.tool_calls:
                arguments = json.dumps(json.loads(call.arguments))
                yield f'{{"name": "{call.name}", "arguments": {arguments}}}'
