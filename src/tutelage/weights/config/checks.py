"""What a configuration may not ask for, found before any model loads.

Each function yields findings about one subject: key, reason, and the way out unless it is the key's
default; `find_problems` runs them all. Keys of parts that the package does not have yet are refused
here, never ignored. Whether a device exists is a fact in `Machine`: nothing is detected here; what
an estimator, a loss or an agent type cannot work with, it declares (`extensions.py`). Values that
are fine but have no effect are not refused but listed, with the reasons of `unused.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from tutelage.agents.builtin import AGENTS
from tutelage.algorithms.extensions import ESTIMATORS, LOSSES
from tutelage.config.facts import Machine
from tutelage.config.issues import ConfigIssue
from tutelage.config.keys import defaults, get, metadata
from tutelage.config.schema import RunConfig
from tutelage.config.unused import UnusedRule
from tutelage.platforms import platform_support
from tutelage.weights.config.extensions import (
    CONTROL,
    ESTIMATOR,
    LOSS,
    NO_ESTIMATOR,
    unknown_names,
)

Finding = tuple[str, str] | tuple[str, str, str]
"""Key, reason, way out."""
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
    """Every reason not to start this run, in the order in which a reader would ask. `own_agent`
    says that a user's agent plays, and not a built-in one."""
    yield from unknown_names(config)
    findings: list[Finding] = [
        *_device(config, machine),
        *_ranks(config, machine),
        *_sampler(config, machine),
        *_run(config),
        *_addresses(config),
    ]
    if config.algorithm.name == "rl":
        findings += [*_learning(config), *_control(config), *_ahead(config, machine, own_agent)]
    for key, reason, *fix in findings:
        value = get(config, key)
        if key == "trainer.store_url":  # it may hold a password
            scheme, colon, _ = value.partition(":")
            value = f"{scheme}://..." if colon else value
        way = fix[0] if fix else f"Use {key}={str(defaults()[key]).lower()}."
        yield ConfigIssue(key, value, reason, way)


def unused_keys(
    config: RunConfig,
    machine: Machine,
    set_keys: Iterable[str],
    *,
    own_agent: bool = False,
) -> dict[str, str]:
    """The keys among `set_keys` that have no effect on this run, each with its first reason."""
    on_cpu = machine.device_of(config) == "cpu"
    readers: dict[str, list[str]] = {}  # of what another estimator or loss reads, as choices
    for key, registry in ((ESTIMATOR, ESTIMATORS), (LOSS, LOSSES)):
        rule = registry.load_or_none(get(config, key))
        if rule is None:
            continue
        for name, other in registry.items():
            for read in {*other.reads} - {*rule.reads}:
                readers.setdefault(read.rstrip("."), [f"{key}="]).append(name)
    values: dict[str, str] = {}
    for key in set_keys:
        reasons = UnusedRule.reasons(metadata(key), config, on_cpu=on_cpu, own_agent=own_agent)
        reasons += [
            f"only {prefix}{' or '.join(names)} uses it"
            for read, (prefix, *names) in readers.items()
            if f"{key}.".startswith(f"{read}.")
        ]
        if reasons:
            values[key] = reasons[0]
    return values


def _device(config: RunConfig, machine: Machine) -> Iterator[Finding]:
    """Devices that are not there, or not supported."""
    device, there = config.trainer.device, machine.cuda_devices
    if device == "mps":
        yield "trainer.device", platform_support("Darwin", "mps").remark, "Use trainer.device=cpu."
    if device == "cuda" and not there:
        yield "trainer.device", "no CUDA device is available", "Use trainer.device=cpu."
    elif device in ("auto", "cuda") and not config.rollout.servers:
        key = "rollout.tensor_model_parallel_size"
        if (parts := config.rollout.tensor_model_parallel_size) > max(1, there):
            yield key, f"more GPUs than available ({there})", CPU_FIX
        elif parts > 1:
            yield key, "more than 1 GPU per model is not supported yet"
    if config.actor.ulysses_sequence_parallel_size > 1:
        key = "actor.ulysses_sequence_parallel_size"
        yield key, "sequence parallelism is not supported yet"


def _ranks(config: RunConfig, machine: Machine) -> Iterator[Finding]:
    """GPUs and nodes that train: each has a rank, started by a launcher or placed by Ray."""
    gpu, ranks, nodes = machine.device_of(config) == "cuda", machine.ranks, "trainer.nnodes"
    placed, workers = machine.placed_ranks(config) > 1, config.agent.placement == "ray"
    for key, free, here, started, option in (
        (nodes, 1, machine.nodes, machine.nodes, "--nnodes"),
        ("trainer.n_gpus_per_node", 0, machine.cuda_devices, ranks, "--nproc-per-node"),
    ):
        value = get(config, key) or 0
        if config.trainer.device in ("cpu", "mps") or (placed and (key == nodes or value <= here)):
            continue
        if value > max(free, here):
            by_ray = "With ray_kwargs.ray_init.address=auto, Ray places a rank on each; "
            yield key, f"more than available ({here})", by_ray * (key == nodes) + CPU_FIX
        elif value > 0 and value != started and gpu:
            yield (
                key,
                f"each GPU needs its own rank, but torchrun started {started} here",
                f"Use {key}={started}, or start them: torchrun {option}={value} -m tutelage ...",
            )
    offloads = ("actor.fsdp_config.param_offload", "actor.fsdp_config.optimizer_offload")
    for key in (*offloads, "ref.fsdp_config.param_offload"):
        if gpu and not placed and machine.nodes * ranks == 1 and get(config, key):
            start = "torchrun --nproc-per-node=2 -m tutelage ..."
            message = "only a model sharded over several ranks can be offloaded"
            yield key, message, f"Use {key}=false, or start ranks: {start}"
    if placed and workers:
        yield (
            "agent.placement",
            "Ray workers are not supported yet together with ranks placed by Ray (trainer.nnodes)",
            "Use agent.placement=local, or start the ranks with torchrun.",
        )
    if workers and gpu:
        message = "Ray workers sample on CPUs, but this run uses a GPU"
        yield "agent.placement", message, "Use agent.placement=local, or trainer.device=cpu."
    address = config.ray_kwargs.ray_init.address
    host, _, port = (address or "").rpartition(":")
    valid = address in (None, "auto") or ("/" not in host and host and port.isdecimal())
    if (placed or workers) and not valid:
        yield (
            "ray_kwargs.ray_init.address",
            "not HOST:PORT of a Ray head node",
            "Use auto, or an address such as 10.0.0.5:6379. Elsewhere, use `ray job submit`.",
        )


def _sampler(config: RunConfig, machine: Machine) -> Iterator[Finding]:
    """What samples: an endpoint, or vLLM with its servers and transports."""
    rollout = config.rollout
    if config.agent.backend == "openai":
        yield (
            "agent.backend",
            "the weights of a model at an endpoint cannot be trained",
            "Use agent.backend=native. To search for a prompt with an endpoint: tutelage train "
            "prompt AGENT.py --endpoint URL --model NAME.",
        )
    if rollout.name != "vllm":
        return
    native = "or rollout.name=native."
    urls = [url.rstrip("/") for url in rollout.servers]
    for url in urls:
        parts = urlsplit(url)
        root = f"{parts.scheme}://{parts.netloc}"
        if parts.scheme not in ("http", "https") or not parts.netloc:
            yield "rollout.servers", f"{url!r} is not an HTTP URL", "Use http://HOST:PORT."
        elif parts.path:
            message = f"{url!r} must not have a path"
            yield "rollout.servers", message, f"Use {root}, without {parts.path}."
    if len(set(urls)) < len(urls):
        yield "rollout.servers", "duplicate server", "List each server once."
    if not urls and machine.device_of(config) == "cuda":
        message = "a vLLM server started by the run would share the GPU with training"
        yield "rollout.name", message, "Start vLLM elsewhere, set rollout.servers, " + native
    if config.agent.placement != "local":
        message = "workers that sample from vLLM servers are not supported yet"
        yield "agent.placement", message, f"Use agent.placement=local, {native}"
    if rollout.weight_transfer == "nccl":
        yield "rollout.weight_transfer", "not supported yet: it is not tested on GPUs"
    if rollout.weight_transfer == "lora" and not config.model.lora.rank:
        yield "rollout.weight_transfer", "it sends adapters, but model.lora.rank is 0"
    if config.needs_calls:
        message = "vLLM cannot be constrained to the grammar of a tool call"
        yield "agent.tool_choice", message, f"Use agent.tool_choice=auto, {native}"


def _run(config: RunConfig) -> Iterator[Finding]:
    """What a recipe needs: data, a reward, an end."""
    trainer, recipe, data = config.trainer, config.recipe, config.data
    agent = AGENTS.load_or_none(config.agent.agent_type)
    if agent and config.agent.use_agent and (refused := agent.refusal(config.agent.tools or ())):
        yield "agent.tools", *refused
    if config.rollout.max_len is not None and config.response_tokens >= config.rollout.max_len:
        message = f"a rollout may sample {config.response_tokens} tokens, and its prompt must fit"
        yield "rollout.max_len", message, "Raise rollout.max_len, or lower rollout.response_length."
    if trainer.total_training_steps is trainer.total_epochs is trainer.minutes is None:
        if recipe == "sft":
            yield "trainer.total_epochs", "the run would never end", "Use epochs=1."
        elif config.algorithm.name == "rl":
            yield "trainer.total_training_steps", "the run would never end", "Use steps=100."
    if config.model.lora.rank and config.model.path is None:
        message = "the embedded policy starts with random weights, which adapters cannot train"
        yield "model.lora.rank", message, "Set model.path, or use model.lora.rank=0."
    acts = config.environment.name is not None
    if acts and recipe != "rl":
        yield "recipe", "it has tasks of its own, so it cannot take an environment", "Leave it out."
    if acts and config.agent.placement == "ray":
        yield "agent.placement", "environments run in this process only"
    if recipe in ("sft", "rl") and not (data.train_files or acts):
        what = "demonstrations" if recipe == "sft" else "tasks"
        yield "data.train_files", f"the recipe {recipe!r} has no {what} of its own", "Pass a file."
    graded = (recipe == "rl" and not acts) or (recipe == "sft" and data.test_files)
    if graded and config.agent.reward_name is None:
        yield "agent.reward_name", "tasks of files need a reward", "Set one, such as reward=math."
    for key in ("sft.max_steps", "sft.cooldown_steps"):
        if get(config, key) < 0 and not (data.demonstrations or acts):
            yield key, "a number of passes needs data.demonstrations", "Use a number of steps."
    if trainer.resume_mode == "resume_path" and trainer.resume_from_path is None:
        message = "there is no path to resume from"
        yield "trainer.resume_mode", message, "Set trainer.resume_from_path."
    if trainer.resume_mode != "resume_path" and trainer.resume_from_path is not None:
        message = f"trainer.resume_mode={trainer.resume_mode!r} would ignore it"
        yield "trainer.resume_from_path", message, "Use trainer.resume_mode=resume_path."


def _addresses(config: RunConfig) -> Iterator[Finding]:
    """Where records go: the configuration is written into the run folder, so it holds no secret."""
    key, store = "trainer.store_url", config.trainer.store_url
    if store is not None:
        try:
            address = urlsplit(store)
        except ValueError:  # brackets that do not close
            address = urlsplit("")
        database = address.scheme.partition("+")[0] in ("postgresql", "postgres")
        if not database or not address.path.strip("/"):
            yield key, "not the URL of a PostgreSQL database", "Use postgresql://HOST/DATABASE."
        if address.password or "password=" in address.query:
            message = "it contains a password, which would be written to disk"
            yield key, message, "Put the password into PGPASSWORD or ~/.pgpass instead."
    otlp = urlsplit(config.trainer.otlp_endpoint or "http://none")
    if otlp.scheme not in ("http", "https") or not otlp.netloc:
        fix = "Use the address of a collector, such as http://localhost:4318."
        yield "trainer.otlp_endpoint", "not an HTTP URL", fix


def _learning(config: RunConfig) -> Iterator[Finding]:
    """What an estimator, a loss and a KL cannot learn from."""
    name, chains = config.algorithm.adv_estimator, config.agent.num_chains
    loss = LOSSES.load_or_none(config.actor.policy_loss.loss_mode)
    for option, reason, fix in loss.impossible(dict(config.actor.policy_loss)) if loss else ():
        yield f"actor.policy_loss.{option}", reason, fix
    buffer, room = config.reward_model.overlong_buffer, config.response_tokens
    if buffer.enable and not 0 < buffer.len <= room:
        key = "reward_model.overlong_buffer.len"
        message = f"expected a number of tokens from 1 to the response length, {room}"
        yield key, message, f"Use {key}={max(1, room // 5)}, or another rollout.response_length."
    if config.rollout.temperature <= 0:
        message = "greedy rollouts of a task are all equal, so there is nothing to learn from"
        yield "rollout.temperature", message
    for key in ("rollout.top_p", "rollout.top_k"):
        if get(config, key) != defaults()[key]:
            yield key, "training by scores of a part of the vocabulary is not supported yet"
    for switch, coefficient in (
        ("algorithm.use_kl_in_reward", "algorithm.kl_ctrl.kl_coef"),
        ("actor.use_kl_loss", "actor.kl_loss_coef"),
    ):
        if get(config, switch) and get(config, coefficient) == 0:
            message = f"{switch}=true would load a reference model for nothing"
            yield coefficient, message, f"Use {switch}=false, or a coefficient above 0."
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


def _control(config: RunConfig) -> Iterator[Finding]:
    """What trains the control must be comparable: the same rollouts, and another estimator."""
    control = config.trainer.control
    rule = None if control in NO_ESTIMATOR else ESTIMATORS.load_or_none(control)
    if rule is None:
        return
    auto = "Use trainer.control=auto."
    if rule.critic or rule.baselines:
        message = "it needs a critic or a greedy rollout of each task, so more would differ"
        yield CONTROL, message, auto
    elif control == config.algorithm.adv_estimator:
        yield CONTROL, "the policy is already trained with this estimator", auto
    elif rule.groups and config.agent.num_chains == 1:
        yield CONTROL, "it compares the rollouts of one task, and agent.num_chains is 1", auto


def _ahead(config: RunConfig, machine: Machine, own_agent: bool) -> Iterator[Finding]:
    """What rollouts that are played ahead of their step cannot go with (`asynchronous.py`)."""
    off = f"use {THRESHOLD}=0."
    if not get(config, THRESHOLD):
        return
    if own_agent:
        message = "a custom agent in another thread could sample from partly updated weights"
        yield THRESHOLD, message, f"Use a class, agent.agent_type=FILE.py:Class, or {off}"
    if machine.nodes * machine.ranks > 1 or machine.placed_ranks(config) > 1:
        message = "training with several ranks is not supported here yet"
        yield THRESHOLD, message, f"Start one process, or {off}"
    rule = ESTIMATORS.load_or_none(config.algorithm.adv_estimator)
    if rule is not None and rule.baselines:
        message = "it needs a greedy rollout by the policy of the step"
        yield ESTIMATOR, message, f"Use another estimator, or {off}"
    for key, (value, reason, other) in _AHEAD.items():
        if get(config, key) == value:
            yield key, reason, f"Use {key}={other}, or {off}"
