"""Create the inputs of a training from its configuration: tasks, tools, reward and policy.

Inputs that are cheap to check come first (files, names, the reward's parameters), so that invalid
ones are refused before any model loads. All phases use `TrainingInputs`. Of demonstrations, only
the assistant's tokens are trained (`Codec.encode_demonstration`); those that do not fit the model
are refused.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path

import torch

from tutelage.agents.builtin import AGENTS, template_tools
from tutelage.agents.loop import LoopAgent
from tutelage.config import RunConfig
from tutelage.environments.protocol import EnvironmentFactory
from tutelage.environments.start import check_determinism, collect_demonstrations, filter_by_length
from tutelage.errors import ConfigError, DataError, ModelError, pluralize
from tutelage.policy.codec import Codec
from tutelage.policy.machine import ComputeSettings, apply_settings, choose_compute
from tutelage.policy.model import Policy, build_policy, load_policy
from tutelage.policy.network import FusedNetwork
from tutelage.policy.row import Row
from tutelage.policy.sources import model_folder
from tutelage.resources import POLICY
from tutelage.rewards import RewardFunction, check, resolve_reward
from tutelage.rollouts.runner import AT_ONCE, RunnerSettings
from tutelage.runs.inputs import (
    DemonstrationRows,
    Tasks,
    environment_of,
    load_demonstration_rows,
    load_tasks,
    load_test_tasks,
    load_tools,
    max_test_tasks,
    max_val_tasks,
    reward_of,
    select_tools,
    split_tasks,
)
from tutelage.runs.job_inputs import JobInputs
from tutelage.seeds import SeedTree
from tutelage.tasks.arithmetic import EMBEDDED_REWARD, demonstrations
from tutelage.tasks.demonstrations import (
    Demonstration,
    count_demonstration_overlap,
    demonstration_texts,
    load_demonstrations,
    message_texts,
)
from tutelage.tasks.overlap import Overlap, count_overlap, hash_task
from tutelage.tools.tool import Tool
from tutelage.types import Constraint, Mode, Sampling, Task, ToolSpec
from tutelage.weights.config.extensions import load_extensions
from tutelage.weights.learner import try_extensions
from tutelage.weights.paths import check_models_exist
from tutelage.weights.process_group import ONE_PROCESS, ProcessGroup

EMBEDDED_LENGTH = 1024
"""Default maximum sequence length of an embedded policy."""
EVALUATION_SLOTS = 64


@dataclass(frozen=True, slots=True)
class SFTDataset:
    """Token rows for training and for validation."""

    train: Sequence[Row]
    val: Sequence[Row] = ()
    remarks: Sequence[str] = ()
    """A note for each file with rows that are left out."""
    origin: str = ""
    """Origin and cost of the rows that are learned before reinforcement learning."""


@dataclass(frozen=True, slots=True)
class TrainingInputs:
    """The inputs of a training: configuration, tasks, tools, reward, policies and data."""

    config: RunConfig
    seeds: SeedTree
    tasks: Tasks
    tools: Mapping[str, Tool]
    reward: RewardFunction | None
    """None if the rewards of an agent's turns count."""
    policy: Policy
    choice: ComputeSettings
    given: JobInputs | None = None
    """The Python agent to train and its inputs, or None for a built-in agent."""
    others: Mapping[str, Policy] = field(default_factory=dict[str, "Policy"])
    """Further policies that are trained at the same time, by name."""
    sft_dataset: SFTDataset | None = None
    """The data of the recipe `sft`; see `sft.py`."""
    shown: SFTDataset | None = None
    """The rows of `data.demonstrations`, learned before reinforcement learning."""
    overlap: Overlap = field(default_factory=Overlap)
    """Tasks that are in more than one split."""
    group: ProcessGroup = ONE_PROCESS
    """The processes that train."""
    environment: EnvironmentFactory | None = None
    """Creates the environment that answers the agent over several turns."""
    imitated: Sequence[Demonstration] = ()
    """Episodes of the environment to imitate before reinforcement learning."""

    def notes(self) -> list[str]:
        """Return notes on the data, shown at the start."""
        dataset = self.sft_dataset or self.shown
        more = [] if dataset is None else [*dataset.remarks]
        if self.environment is not None and not self.environment.deterministic:
            more.append(
                f"the environment {self.environment.name!r} is not deterministic: recorded "
                "rollouts replay, and the same command may give another result"
            )
        own = self.config.data.train_files or (self.given is not None and self.given.has_own_tasks)
        return [*self.overlap.notes(generated=not own), *more]  # drawn ones repeat by chance

    @property
    def example_count(self) -> int:
        """Return the number of training tasks or demonstration rows."""
        return len(self.tasks.train if self.sft_dataset is None else self.sft_dataset.train)

    def make_agent(self, temperature: float, *, with_tools: bool = True) -> LoopAgent:
        """Create the built-in agent for a sampling temperature, with or without tools."""
        config = self.config
        return AGENTS.find(config.agent.agent_type)(
            self.tools if with_tools else {},
            Sampling(
                temperature=temperature,
                top_p=config.rollout.top_p,
                top_k=config.rollout.top_k,
                max_tokens=config.turn_tokens,
            ),
            max_turns=config.agent.max_turns if config.agent.use_agent else 1,
            token_budget=config.response_tokens,
            system_prompt=config.agent.system_prompt,
            tool_choice=config.agent.tool_choice if with_tools else "none",
        )

    def limits(self, run_id: str, mode: Mode = Mode.TRAIN) -> RunnerSettings:
        """Return the runner settings for the rollouts of a run."""
        agent, at_once = self.config.agent, self.config.data.val_batch_size
        return RunnerSettings(
            run_id,
            timeout=agent.timeout,
            group_deadline=agent.group_deadline,
            failure_reward=agent.failure_reward,
            allow_no_calls=agent.allow_no_calls,
            reward_timeout=agent.reward_timeout,
            concurrency=AT_ONCE if mode is Mode.TRAIN else at_once or AT_ONCE,
            pool_size=self.config.environment.pool_size,
            step_timeout=self.config.environment.step_timeout,
        )

    def save_policies(self, folder: Path) -> None:
        """Save the main policy as a Hugging Face folder, and other policies in its subfolders."""
        self.policy.save(folder, replace=True)
        for name, other in self.others.items():
            other.save(folder / "policies" / name)

    @property
    def context(self) -> int:
        """Return the maximum tokens of a rollout, including prompt and observations."""
        rollout = self.config.rollout
        at_once = min(rollout.slots, max(self.config.rollouts_per_batch, EVALUATION_SLOTS))
        known = rollout.max_len or self.policy.context_length(at_once, self.choice.numerics.dtype)
        return min(known, self.policy.max_positions)


def step_limit(inputs: TrainingInputs) -> int | None:
    """Return the maximum number of training steps, or None without a limit."""
    config = inputs.config
    if config.epochs is None:
        return config.trainer.total_training_steps
    return max(1, math.ceil(config.epochs * inputs.example_count / config.data.train_batch_size))


def count_drawn(inputs: TrainingInputs, steps: int) -> int:
    """Return the number of tasks or demonstration rows used by the first `steps` steps.

    If epochs end the training, the last step uses the remaining ones.
    """
    config, count = inputs.config, steps * inputs.config.data.train_batch_size
    return count if config.epochs is None else min(count, config.epochs * inputs.example_count)


def load_inputs(
    config: RunConfig, inputs: JobInputs | None
) -> tuple[Tasks, Mapping[str, Tool], RewardFunction | None, EnvironmentFactory | None]:
    """Load tasks, tools, reward and environment from the configuration or a Python agent.

    The reward is None if rewards come from the environment. Raises `TutelageError`s for inputs that
    cannot be read, and for a reward that does not fit the tasks.
    """
    limit, tested = config.trainer.val_tasks, max_test_tasks(config)
    factory = None if inputs is None else inputs.environment
    factory = environment_of(config) if factory is None else factory
    if config.recipe == "sft":
        tasks = Tasks((), (), load_test_tasks(config) if inputs is None else inputs.test or ())
    elif inputs is None or inputs.train is None:
        tasks = load_tasks(config, factory)
    else:  # a part of the caller's training tasks is held out
        train, val = inputs.train[: config.data.train_tasks], inputs.val
        if val is None:
            train, val = split_tasks(train, max_val_tasks(config), "val_dataset")
        test = val if inputs.test is None else inputs.test
        tasks = Tasks(train, val[:limit], test[:tested])
        if config.recipe == "math" and all("calls" in task.fields for task in train):
            tasks = replace(tasks, shown=train, skill=val[:100])
    played = config.recipe != "sft" or (tasks.test and inputs is None)
    tools = load_tools(config) if played else {}
    if inputs is None:
        reward = reward_of(config)
    else:
        acts = config.environment.name is not None
        reward = inputs.reward or (None if acts else resolve_reward(EMBEDDED_REWARD))
    every = [*tasks.train, *tasks.val, *tasks.test]
    if reward is not None and every and (inputs is None or inputs.reward is not None):
        check(reward, every)
    if factory is not None and tasks.train:
        seed = SeedTree(config.seed).child("environment", "check").value()
        check_determinism(factory, tasks.train[0], seed, config.environment.step_timeout)
    return tasks, tools, reward, factory


def prepare_rl(
    config: RunConfig,
    policy_folder: Path | None = None,
    inputs: JobInputs | None = None,
    episode_file: Path | None = None,
) -> TrainingInputs:
    """Create the inputs of reinforcement learning.

    On resume `policy_folder` overrides the start of the policy and `episode_file` the episodes of
    an environment. `inputs` is a Python agent with its tasks, or None.
    """
    load_extensions(config)
    try_extensions(config)
    check_models_exist(config)
    seeds = SeedTree(config.seed)
    tasks, tools, reward, factory = load_inputs(config, inputs)
    demonstrated = load_demonstration_rows(config)
    acted = factory is not None and not config.data.demonstrations
    if factory is not None and not demonstrated.rows:
        new = config.model.path is None and (inputs is None or not inputs.policies)
        rows, origin = collect_demonstrations(config, factory, tasks.train, episode_file, new)
        demonstrated = DemonstrationRows(rows, (), origin)
    config = _limit_batch_size(config, len(tasks.train))
    if demonstrated.rows:  # which are all clean; a negative number of steps means passes over them
        each, sft = -(-len(demonstrated.rows) // config.sft.batch_size), config.sft
        steps = {"max_steps": 2 * each, "cooldown_steps": each}
        steps = {key: steps[key] for key in steps if getattr(sft, key) < 0} | {"mixed_steps": 0}
        config = config.model_copy(update={"sft": sft.model_copy(update=steps)})
    asked, tool_specs = inputs is None and config.needs_tools, list[ToolSpec]()
    if asked and factory is None:
        tool_specs = template_tools(config, tools)
    elif asked and factory is not None and config.agent.agent_type == "hf":
        tool_specs = [*(tool.spec for tool in tools.values()), *factory.tools]
    if inputs is not None and inputs.policies and config.model.lora.rank:
        raise ConfigError("model.lora needs a model folder; pass with_lora(model) for an object")
    texts = chain(demonstration_texts(demonstrated.rows[:2000]), _corpus(tasks.train, tools, seeds))
    length = max(512, config.rollout.max_len or EMBEDDED_LENGTH)
    policy = _make_policy(config, inputs, policy_folder, tool_specs, texts, length)
    if config.needs_calls and inputs is None:
        policy.codec.grammar(tool_specs, Constraint("required"))  # raises where there can be none
    tools, policy, choice = _place_policy(config, tools, policy)
    others = {} if inputs is None else _make_others(inputs, policy, config)
    # By input and what the reward reads; by all fields where an agent or an environment may read.
    open_ended = inputs is not None or any(t.environment is not None for t in tools.values())
    key = partial(hash_task, fields=None if open_ended or not reward else reward.task_fields)
    overlap, shown = count_overlap(*tasks.splits.values(), key=key), None
    if demonstrated.rows and (config.sft.max_steps or not acted):
        known = count_demonstration_overlap(demonstrated.rows, (), tasks.test)
        solved = count_overlap(demonstrated.solved, (), tasks.test, key)
        both = max(one.test_in_train for one in (overlap, known, solved))
        overlap = replace(overlap, test_in_train=both)
        rows, most = demonstrated.rows, policy.max_positions
        rows = filter_by_length(rows, policy.codec.encode_demonstration, most) if acted else rows
        shown = _encode_dataset(config, policy.codec, most, rows, ())
        shown = replace(shown, origin=demonstrated.origin)
    setting = TrainingInputs(
        config, seeds, tasks, tools, reward, policy, choice, inputs, others, None, shown, overlap,
        environment=factory, imitated=demonstrated.rows if acted else (),
    )  # fmt: skip
    if (config.rollout.response_length or 0) >= setting.context:
        raise ConfigError(
            f"rollout.response_length={config.rollout.response_length} is too large: the prompt "
            f"must also fit into the model's context of {setting.context} tokens; lower it"
        )
    return setting


def prepare_sft(
    config: RunConfig, policy_folder: Path | None = None, inputs: JobInputs | None = None
) -> TrainingInputs:
    """Create the inputs of supervised training. All rows are read before the policy is created.

    `inputs` is a Python agent that plays the test tasks, or None.
    """
    train = load_demonstrations(config.data.train_files)
    val = load_demonstrations(config.data.val_files)
    tasks, tools, reward, _ = load_inputs(config, inputs)
    specs = template_tools(config, tools) if config.agent.tools else []
    size = max(EMBEDDED_LENGTH, config.data.max_length or 0)
    texts = demonstration_texts(train[:2000])
    policy = _make_policy(config, inputs, policy_folder, specs, texts, size)
    dataset = _encode_dataset(config, policy.codec, policy.max_positions, train, val)
    config = _limit_batch_size(config, len(train))
    tools, policy, choice = _place_policy(config, tools, policy)
    overlap, seeds = count_demonstration_overlap(train, val, tasks.test), SeedTree(config.seed)
    return TrainingInputs(
        config, seeds, tasks, tools, reward, policy, choice, inputs, {}, dataset, None, overlap
    )


def _limit_batch_size(config: RunConfig, examples: int) -> RunConfig:
    """Limit the batch size to the number of tasks or rows, if epochs end the training."""
    size = min(config.data.train_batch_size, examples)
    data = config.data.model_copy(update={"train_batch_size": size})
    return config if config.epochs is None else config.model_copy(update={"data": data})


def _make_policy(
    config: RunConfig,
    inputs: JobInputs | None,
    folder: Path | None,
    tools: Sequence[ToolSpec],
    corpus: Iterable[str],
    max_positions: int,
) -> Policy:
    """Create the policy: a passed object, a loaded folder or model, or a new embedded policy.

    A new one gets a tokenizer trained on `corpus`; `model.lora` adds adapters. `folder` is the
    start of a resumed run.
    """
    policy = None if inputs is None else inputs.policies.get(POLICY)
    if policy is not None:
        if folder is not None:
            policy.load_tensors(dict(load_policy(str(folder)).named_tensors()))
        return policy
    if folder is not None:
        return _add_adapters(load_policy(str(folder)), config)
    if (path := config.model.path) is not None:
        return _add_adapters(load_policy(path, template=config.agent.template, tools=tools), config)
    return build_policy(
        corpus,
        size=config.model.size,
        layout=config.model.layout,
        seed=SeedTree(config.seed).child("weights").value(),
        max_positions=max_positions,
    )


def _place_policy(
    config: RunConfig, tools: Mapping[str, Tool], policy: Policy
) -> tuple[Mapping[str, Tool], Policy, ComputeSettings]:
    """Return the tools in the prompt, and the policy on its training device."""
    tools = select_tools(config, tools, supports_tools=policy.codec.supports_tools)
    choice = choose_compute(config, policy.count(), isinstance(policy.network, FusedNetwork))
    apply_settings(choice, large=policy.network.large)
    return tools, _configure_policy(policy, config, choice.device), choice


def _configure_policy(policy: Policy, config: RunConfig, device: torch.device) -> Policy:
    """Apply the configured settings to the policy and move it to the device."""
    policy.codec.choose_thinking(config.agent.thinking, config.agent.max_thinking_tokens)
    policy = policy if device == policy.device else policy.to(device)
    if config.model.enable_gradient_checkpointing:
        policy.network.enable_checkpointing()
    return policy


def _make_others(inputs: JobInputs, main_policy: Policy, config: RunConfig) -> dict[str, Policy]:
    """Return the other policies: passed objects, loaded models, or copies of the main policy."""
    out: dict[str, Policy] = {}
    for resource, name in inputs.roles.policies.items():
        if name == POLICY or name in out:
            continue
        folder = model_folder(inputs.resources[resource])
        policy = inputs.policies.get(name) or (
            _add_adapters(load_policy(folder), config) if folder is not None else main_policy.copy()
        )
        out[name] = _configure_policy(policy, config, main_policy.device)
    return out


def _add_adapters(policy: Policy, config: RunConfig) -> Policy:
    """Return the policy, with LoRA adapters if `model.lora` is set."""
    lora = config.model.lora
    if lora.rank == 0:
        return policy
    from tutelage.policy.lora import with_lora

    return with_lora(policy, lora, seed=SeedTree(config.seed).child("lora").value())


def _corpus(tasks: Sequence[Task], tools: Mapping[str, Tool], seeds: SeedTree) -> Iterator[str]:
    """Yield the training texts of the embedded tokenizer: questions, calls, results, tool names."""
    rng = seeds.child("corpus").python()
    names = " ".join(f"{t.name}({', '.join(t.parameters['properties'])})" for t in tools.values())
    for task in tasks[:2000]:
        yield f"system\nTools: {names}\nuser\nassistant\ntool\n"
        yield str(task.input) if task.has_input else json.dumps(task.fields, ensure_ascii=False)
        messages = demonstrations(task, False, rng) if "calls" in task.fields else ()
        yield from message_texts(messages, lambda text: json.dumps(json.loads(text)))


def _encode_dataset(
    config: RunConfig,
    codec: Codec,
    max_positions: int,
    train: Sequence[Demonstration],
    val: Sequence[Demonstration],
) -> SFTDataset:
    """Encode demonstrations as token rows. Raises `DataError` for an invalid demonstration.

    A demonstration is invalid if it has more tokens than the model or `data.max_length` allows, or
    if the chat template rejects it.
    """
    limit, rows = min(max_positions, config.data.max_length or max_positions), list[Row]()
    for example in (*train, *val):
        try:
            rows.append(Row(*codec.encode_demonstration(example.messages, example.tools)))
        except ModelError as error:
            raise DataError(f"{example.place}: field 'messages': {error}") from error
        if len(rows[-1].ids) > limit:
            raise DataError(
                f"{example.place}: field 'messages' has {len(rows[-1].ids)} tokens, more than "
                f"{limit}; shorten it, or raise data.max_length as far as the model allows"
            )
    unseen = Counter(example.file for example in (*train, *val) if example.has_reasoning)
    remarks = [
        f"{file}: the reasoning_content (or reasoning) of {pluralize(count, 'row')} is not trained"
        ", since the chat template does not show it; use one that does, or write it into the text"
        for file, count in unseen.items()
        if not codec.renders_reasoning
    ]
    return SFTDataset(rows[: len(train)], rows[len(train) :], remarks)
