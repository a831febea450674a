"""Validate a configuration before any model loads.

Each function yields problems of one subject: key, reason, and the fix unless it is the key's
default; `find_problems` runs them all. Keys of features that the package does not have yet are
refused here. Whether a device exists is a field of `Machine`: nothing is detected here. Estimators,
losses and agent types declare their requirements (`extensions.py`). Valid values without an effect
are listed, with the reasons of `unused.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tutelage.agents.builtin import AGENTS
from tutelage.algorithms.extensions import ESTIMATOR, ESTIMATORS, LOSS, LOSSES
from tutelage.config.facts import Machine
from tutelage.config.issues import ConfigIssue
from tutelage.config.keys import defaults, get, metadata
from tutelage.config.schema import RunConfig
from tutelage.config.unused import UnusedRule
from tutelage.platforms import platform_support
from tutelage.weights.config.extensions import (
    CONTROL,
    NO_ESTIMATOR,
    unknown_names,
)

Finding = tuple[str, str] | tuple[str, str, str]
"""Key, reason, and how to fix it."""
CPU_FIX = "trainer.device=cpu trains on the CPU and lists this key as unused."
THRESHOLD = "async_training.staleness_threshold"
_AHEAD: Mapping[str, tuple[Any, str, str]] = {
    "algorithm.filter_groups.enable": (True, "played groups cannot be replaced", "false"),
    "rollout.schedule": ("deterministic", "rollouts would wait for the slowest one", "free"),
    "rollout.correction": ("none", "older samples need importance weights", "token_tis"),
    "agent.placement": ("ray", "workers cannot update weights during rollouts", "local"),
}
"""Keys with the value that cannot go with rollouts ahead of their step, the reason, and another."""


def find_problems(
    config: RunConfig, machine: Machine, *, own_agent: bool = False
) -> Iterator[ConfigIssue]:
    """Yield all problems of a configuration, the most basic problems first.

    `own_agent` is True if a user's agent plays instead of a built-in one.
    """
    yield from unknown_names(config)
    issues = [*_check_gpus(config, machine), *_check_engine(config, machine), *_check_run(config)]
    if config.algorithm.name == "rl":
        issues += [*_check_learning(config), *_check_async(config, machine, own_agent)]
    for key, reason, *fix in issues:
        value = get(config, key)
        if key == "trainer.store_url":  # it may hold a password
            value = re.sub("://.*", "://...", value)
        way = fix[0] if fix else f"Use {key}={str(defaults()[key]).lower()}."
        yield ConfigIssue(key, value, reason, way)


def unused_keys(
    config: RunConfig,
    machine: Machine,
    set_keys: Iterable[str],
    *,
    own_agent: bool = False,
) -> dict[str, str]:
    """Return the keys among `set_keys` without an effect on this run, with the first reason of
    each."""
    on_cpu = machine.training_device(config) == "cpu"
    readers: dict[str, list[str]] = {}  # of what another estimator or loss reads
    for key, registry in ((ESTIMATOR, ESTIMATORS), (LOSS, LOSSES)):
        rule = registry.load_or_none(get(config, key))
        own = {key for r in ([rule] if rule else registry.values()) for key in r.config_keys}
        for name, other in registry.items():
            for read in {*other.config_keys} - own:
                readers.setdefault(read.rstrip("."), []).append(f"{key}={name}")
    found = {
        key: [
            *UnusedRule.reasons(metadata(key), config, on_cpu=on_cpu, own_agent=own_agent),
            *(
                f"only {' or '.join(names)} uses it"
                for read, names in readers.items()
                if f"{key}.".startswith(f"{read}.")
            ),
        ]
        for key in set_keys
    }
    return {key: reasons[0] for key, reasons in found.items() if reasons}


def _check_gpus(config: RunConfig, machine: Machine) -> Iterator[Finding]:
    """Yield problems of GPUs, nodes and ranks."""
    device, there, nodes = config.trainer.device, machine.cuda_devices, "trainer.nnodes"
    gpu, placed = machine.training_device(config) == "cuda", machine.count_ray_ranks(config) > 1
    if device == "mps":
        yield "trainer.device", platform_support("Darwin", "mps")[1], "Use trainer.device=cpu."
    if device == "cuda" and not there:
        yield "trainer.device", "no CUDA device is available", "Use trainer.device=cpu."
    parts = config.rollout.tensor_model_parallel_size > 1 and not config.rollout.servers
    if parts and device in ("auto", "cuda"):
        key = "rollout.tensor_model_parallel_size"
        yield key, "more than 1 GPU per model is not supported yet", CPU_FIX
    for key, here, started, option in (
        (nodes, machine.nodes, machine.nodes, "--nnodes"),
        ("trainer.n_gpus_per_node", there, machine.ranks, "--nproc-per-node"),
    ):
        value = get(config, key) or 0
        if device in ("cpu", "mps") or (placed and (key == nodes or value <= here)):
            continue
        if value > here:
            yield key, f"more than available ({here})", CPU_FIX
        elif value > 0 and value != started and gpu:
            yield (
                key,
                f"each GPU needs its own rank, but torchrun started {started} here",
                f"Use {key}={started}, or start them: torchrun {option}={value} -m tutelage ...",
            )
    offloads = ("actor.fsdp_config.param_offload", "actor.fsdp_config.optimizer_offload")
    for key in (*offloads, "ref.fsdp_config.param_offload"):
        if gpu and not placed and machine.nodes * machine.ranks == 1 and get(config, key):
            yield key, "only a model sharded over several ranks can be offloaded"
    for unfit, reason in (
        (placed, "Ray workers cannot play for ranks that Ray places (trainer.nnodes)"),
        (gpu, "Ray workers sample on CPUs, but this run uses a GPU unless trainer.device=cpu"),
        (config.rollout.name == "vllm", "Ray workers cannot sample from vLLM servers"),
        (config.environment.name is not None, "environments run in this process only"),
    ):
        if unfit and config.agent.placement == "ray":
            yield "agent.placement", reason


def _check_engine(config: RunConfig, machine: Machine) -> Iterator[Finding]:
    """Yield problems of the rollout engine, its servers and the weight transfer."""
    rollout, native = config.rollout, "or rollout.name=native."
    if rollout.name == "openai":
        yield (
            "rollout.name",
            "the weights of a model at an endpoint cannot be trained",
            "Use rollout.name=native. To search for a prompt with an endpoint: tutelage train "
            "prompt AGENT.py --endpoint URL --model NAME.",
        )
    if rollout.name != "vllm":
        return
    if not rollout.servers and machine.training_device(config) == "cuda":
        message = "a vLLM server started by the run would share the GPU with training"
        yield "rollout.name", message, f"Start vLLM elsewhere, set rollout.servers, {native}"
    if rollout.weight_transfer == "lora" and not config.model.lora.rank:
        yield "rollout.weight_transfer", "it sends adapters, but model.lora.rank is 0"
    if config.needs_calls:
        message = "vLLM cannot be constrained to the grammar of a tool call"
        yield "agent.tool_choice", message, f"Use agent.tool_choice=auto, {native}"


def _check_run(config: RunConfig) -> Iterator[Finding]:
    """Yield problems of the run: data, reward, number of steps, and storage."""
    trainer, recipe, data = config.trainer, config.recipe, config.data
    acts, own = config.environment.name is not None, recipe in ("sft", "rl")
    agent = AGENTS.load_or_none(config.agent.agent_type)
    if agent and config.agent.use_agent and (refused := agent.refusal(config.agent.tools or ())):
        yield "agent.tools", *refused
    if config.rollout.max_len is not None and config.response_tokens >= config.rollout.max_len:
        message = f"a rollout may sample {config.response_tokens} tokens, and its prompt must fit"
        yield "rollout.max_len", message, "Raise rollout.max_len, or lower rollout.response_length."
    endless = trainer.total_training_steps is trainer.total_epochs is trainer.minutes is None
    if endless and (recipe == "sft" or config.algorithm.name == "rl"):
        yield "trainer.total_training_steps", "the run would never end", "Use steps=100."
    if config.model.lora.rank and config.model.path is None:
        message = "the embedded policy starts with random weights, which adapters cannot train"
        yield "model.lora.rank", message, "Set model.path, or use model.lora.rank=0."
    if acts and recipe != "rl":
        yield "recipe", "it has tasks of its own, so it cannot take an environment", "Leave it out."
    if own and not (data.train_files or acts):
        yield "data.train_files", f"the recipe {recipe!r} has no data of its own", "Pass a file."
    graded = (recipe == "rl" and not acts) or (recipe == "sft" and data.test_files)
    if graded and config.agent.reward_name is None:
        yield "agent.reward_name", "tasks of files need a reward", "Set one, such as reward=math."
    for key in ("sft.max_steps", "sft.cooldown_steps"):
        if get(config, key) < 0 and not (data.demonstrations or acts):
            yield key, "a number of passes needs data.demonstrations", "Use a number of steps."
    if (trainer.resume_mode == "resume_path") != (trainer.resume_from_path is not None):
        message = "trainer.resume_mode=resume_path and trainer.resume_from_path go together"
        yield "trainer.resume_from_path", message, "Set both, or neither."
    if (store := trainer.store_url) is not None:  # it is written into the run folder
        if not re.match(r"postgres(ql)?(\+\w+)?://[^/]*/.", store):
            message = "not the URL of a PostgreSQL database"
            yield "trainer.store_url", message, "Use postgresql://HOST/DATABASE."
        if re.search(r"//[^/@]*:[^/@]*@|[?&]password=", store):
            message = "it contains a password, which would be written to disk"
            yield "trainer.store_url", message, "Put it into PGPASSWORD or ~/.pgpass instead."
    if config.actor.ulysses_sequence_parallel_size > 1:
        key = "actor.ulysses_sequence_parallel_size"
        yield key, "sequence parallelism is not supported yet"


def _check_learning(config: RunConfig) -> Iterator[Finding]:
    """Yield problems of estimator, loss, KL and control settings."""
    name, chains = config.algorithm.adv_estimator, config.agent.num_chains
    loss = LOSSES.load_or_none(config.actor.policy_loss.loss_mode)
    for option, reason, fix in loss.invalid_options(dict(config.actor.policy_loss)) if loss else ():
        yield f"actor.policy_loss.{option}", reason, fix
    buffer, room = config.reward_model.overlong_buffer, config.response_tokens
    if buffer.enable and not 0 < buffer.len <= room:
        key = "reward_model.overlong_buffer.len"
        message = f"expected a number of tokens from 1 to the response length, {room}"
        yield key, message, f"Use {key}={max(1, room // 5)}, or another rollout.response_length."
    if config.algorithm.mask_truncated and config.algorithm.bootstrap_truncated:
        message = "algorithm.mask_truncated=true excludes the rollouts that it applies to"
        yield "algorithm.bootstrap_truncated", message, "Keep one of them."
    if config.rollout.temperature <= 0:
        message = "greedy rollouts of a task are all equal, so there is nothing to learn from"
        yield "rollout.temperature", message
    for key in ("rollout.top_p", "rollout.top_k"):
        if get(config, key) != defaults()[key]:
            yield key, "training by scores of a part of the vocabulary is not supported yet"
    control = config.trainer.control
    judge = None if control in NO_ESTIMATOR else ESTIMATORS.load_or_none(control)
    if judge and (judge.critic or judge.baselines or (judge.groups and chains == 1)):
        message = "it would need a critic, a greedy rollout of each task, or more rollouts of one"
        yield CONTROL, message, "Use trainer.control=auto."
    if (rule := ESTIMATORS.load_or_none(name)) is None:
        return
    learns_alone = rule.lonely and config.algorithm.single_member != "zero"
    if rule.groups and chains == 1 and not learns_alone:
        message = f"{name} compares the rollouts of one task, so every advantage would be 0"
        yield "agent.num_chains", message, "Use agent.num_chains=8, or another estimator."
    if config.algorithm.filter_groups.enable and (not rule.groups or chains == 1):
        message = f"{name} with {chains} rollouts of each task has no groups to compare"
        yield "algorithm.filter_groups.enable", message
    total, steps = config.rollouts_per_batch, config.trainer.total_training_steps
    for key in ("actor.ppo_mini_batch_size", *["critic.ppo_mini_batch_size"] * rule.critic):
        size = get(config, key)
        if size is not None and total % size:
            near = max(n for n in range(1, min(size, total) + 1) if total % n == 0)
            message = f"does not divide the {total} rollouts of a batch"
            yield key, f"{message} (data.train_batch_size x agent.num_chains)", f"Use {key}={near}."
    if rule.critic and steps is not None and 0 < steps <= config.trainer.critic_warmup:
        message = f"the run has {steps} steps, so the policy would never be trained"
        yield "trainer.critic_warmup", message, f"Use a number below {steps}."


def _check_async(config: RunConfig, machine: Machine, own_agent: bool) -> Iterator[Finding]:
    """Yield problems of asynchronous training (`asynchronous.py`)."""
    if not config.async_training.staleness_threshold:
        return
    ranks = machine.nodes * machine.ranks > 1 or machine.count_ray_ranks(config) > 1
    off, rule = f"{THRESHOLD}=0.", ESTIMATORS.load_or_none(config.algorithm.adv_estimator)
    if own_agent:
        yield THRESHOLD, "a custom agent in another thread could sample from partly updated weights"
    if ranks:
        yield THRESHOLD, "training with several ranks is not supported here yet"
    if rule is not None and rule.baselines:
        message = "it needs a greedy rollout by the policy of the step"
        yield ESTIMATOR, message, f"Use another estimator, or {off}"
    for key, (value, reason, other) in _AHEAD.items():
        if get(config, key) == value:
            yield key, reason, f"Use {key}={other}, or {off}"
