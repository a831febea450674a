"""What a configuration may not ask for, found before any model loads.

Each function yields findings about one subject, as key, reason and way out; `find_problems` runs
them all. Keys of parts that the package does not have yet are refused here, never ignored. Whether
a device exists is a fact in `Machine`: nothing is detected here; what an estimator, a loss or an
agent type cannot work with, it declares (`extensions.py`). Values that are fine but have no effect
are not refused but listed, with the reasons of `unused.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import urlsplit

from tutelage.agents.builtin import AGENTS
from tutelage.algorithms.extensions import ESTIMATORS, LOSSES, Estimator, Loss
from tutelage.config.facts import Machine
from tutelage.config.issues import ConfigIssue
from tutelage.config.keys import get, metadata
from tutelage.config.schema import RunConfig
from tutelage.config.unused import UnusedRule
from tutelage.platforms import platform_support
from tutelage.weights.config.ahead import played_ahead
from tutelage.weights.config.extensions import (
    CONTROL,
    ESTIMATOR,
    LOSS,
    NO_ESTIMATOR,
    unknown_names,
)
from tutelage.weights.config.placement import placement_findings
from tutelage.weights.config.vllm import vllm_findings

Finding = tuple[str, str, str]
"""Key, reason, way out."""
CPU_FIX = "trainer.device=cpu trains on the CPU and lists this key as unused."

NODES = "trainer.nnodes"
MORE_NODES = f"With ray_kwargs.ray_init.address=auto, Ray places a rank on each; {CPU_FIX}"


def find_problems(
    config: RunConfig, machine: Machine, *, own_agent: bool = False
) -> Iterator[ConfigIssue]:
    """Every reason not to start this run, in the order in which a reader would ask. `own_agent`
    says that a user's agent plays, and not a built-in one."""
    yield from unknown_names(config)
    for key, reason, fix in (
        *_findings(config, machine),
        *played_ahead(config, machine, own_agent),
    ):
        value = get(config, key)
        if key == "trainer.store_url":  # it may hold a password
            scheme, colon, _ = value.partition(":")
            value = f"{scheme}://..." if colon else value
        yield ConfigIssue(key, value, reason, fix)


def _findings(config: RunConfig, machine: Machine) -> Iterator[Finding]:
    yield from _device(config, machine)
    yield from _engine(config)
    yield from placement_findings(config, machine)
    yield from vllm_findings(config, machine)
    yield from _run(config)
    yield from _environment(config)
    yield from _addresses(config)
    if config.algorithm.name == "rl":
        yield from _loss(config)
        yield from _batch(config)
        yield from _critic(config)
        yield from _truncated(config)
        yield from _control(config)
        yield from _sampling(config)
        yield from _kl(config)


def unused_keys(
    config: RunConfig,
    machine: Machine,
    set_keys: Iterable[str],
    *,
    own_agent: bool = False,
) -> dict[str, str]:
    """The keys among `set_keys` that have no effect on this run, each with its first reason.

    `own_agent` says that a user's agent plays, and not a built-in one.
    """
    on_cpu = machine.device_of(config) == "cpu"
    # What another estimator or loss would read, and this one does not.
    others = [
        *_unread(ESTIMATOR, ESTIMATORS.load_or_none(config.algorithm.adv_estimator), ESTIMATORS),
        *_unread(LOSS, LOSSES.load_or_none(config.actor.policy_loss.loss_mode), LOSSES),
    ]
    values: dict[str, str] = {}
    for key in set_keys:
        reasons = UnusedRule.reasons(metadata(key), config, on_cpu=on_cpu, own_agent=own_agent)
        reasons += [
            reason for read, reason in others if f"{key}.".startswith(read.rstrip(".") + ".")
        ]
        if reasons:
            values[key] = reasons[0]
    return values


def _unread(
    key: str, rule: Estimator | Loss | None, registry: Mapping[str, Estimator | Loss]
) -> Iterator[tuple[str, str]]:
    readers: dict[str, list[str]] = {}
    for name, other in registry.items():
        for read in other.reads:
            readers.setdefault(read, []).append(name)
    for read, names in readers.items():
        if rule is not None and read not in rule.reads:
            yield read, f"only {key}={' or '.join(names)} uses it"


def _addresses(config: RunConfig) -> Iterator[Finding]:
    """Where records go: the configuration is written into the run folder, so it holds no secret."""
    store = config.trainer.store_url
    if store is not None:
        try:
            address = urlsplit(store)
        except ValueError:  # brackets that do not close
            address = urlsplit("")
        database = address.scheme.partition("+")[0] in ("postgresql", "postgres")
        if not database or not address.path.strip("/"):
            yield (
                "trainer.store_url",
                "not the URL of a PostgreSQL database",
                "Use postgresql://HOST/DATABASE, or remove it to use a file in the run folder.",
            )
        if address.password or "password=" in address.query:
            yield (
                "trainer.store_url",
                "it contains a password, which would be written to disk",
                "Put the password into PGPASSWORD or ~/.pgpass instead.",
            )
    otlp = urlsplit(config.trainer.otlp_endpoint or "http://none")
    if otlp.scheme not in ("http", "https") or not otlp.netloc:
        yield (
            "trainer.otlp_endpoint",
            "not an HTTP URL",
            "Use the address of a collector, such as http://localhost:4318.",
        )


def _device(config: RunConfig, machine: Machine) -> Iterator[Finding]:
    device, there = config.trainer.device, machine.cuda_devices
    if device == "mps":
        yield "trainer.device", platform_support("Darwin", "mps").remark, "Use trainer.device=cpu."
    if device == "cuda" and not there:
        yield "trainer.device", "no CUDA device is available", "Use trainer.device=cpu."
        return
    if device in ("cpu", "mps"):
        return
    yield from _ranks(config, machine)
    key, several = "rollout.tensor_model_parallel_size", config.rollout.tensor_model_parallel_size
    if config.rollout.servers:
        return  # they are on GPUs of their own
    if several > max(1, there):
        yield key, f"more GPUs than available ({there})", CPU_FIX
    elif several > 1:
        yield key, "more than 1 GPU per model is not supported yet", f"Use {key}=1."


def _ranks(config: RunConfig, machine: Machine) -> Iterator[Finding]:
    """GPUs that train: each has a rank, which a launcher has started."""
    gpu, ranks = machine.device_of(config) == "cuda", machine.ranks
    by_ray = machine.placed_ranks(config) > 1
    for key, free, here, started, option in (
        (NODES, 1, machine.nodes, machine.nodes, "--nnodes"),
        ("trainer.n_gpus_per_node", 0, machine.cuda_devices, ranks, "--nproc-per-node"),
    ):
        value = get(config, key) or 0
        if by_ray and (key == NODES or value <= here):
            continue
        if value > max(free, here):
            yield key, f"more than available ({here})", MORE_NODES if key == NODES else CPU_FIX
        elif value > 0 and value != started and gpu:
            yield (
                key,
                f"each GPU needs its own rank, but torchrun started {started} here",
                f"Use {key}={started}, or start them: torchrun {option}={value} -m tutelage ...",
            )
    if not gpu or by_ray or machine.nodes * ranks > 1:
        return
    for key in (
        "actor.fsdp_config.param_offload",
        "actor.fsdp_config.optimizer_offload",
        "ref.fsdp_config.param_offload",
    ):
        if get(config, key):
            yield (
                key,
                "only a model sharded over several ranks can be offloaded",
                f"Use {key}=false, or start ranks: torchrun --nproc-per-node=2 -m tutelage ...",
            )


def _engine(config: RunConfig) -> Iterator[Finding]:
    if config.actor.ulysses_sequence_parallel_size > 1:
        key = "actor.ulysses_sequence_parallel_size"
        yield key, "sequence parallelism is not supported yet", f"Use {key}=1."
    if config.agent.backend == "openai":
        yield (
            "agent.backend",
            "the weights of a model at an endpoint cannot be trained",
            "Use agent.backend=native. To search for a prompt with an endpoint: tutelage train "
            "prompt AGENT.py --endpoint URL --model NAME.",
        )
    agent = AGENTS.load_or_none(config.agent.agent_type)
    refused = agent.refusal(config.agent.tools or ()) if agent and config.agent.use_agent else None
    if refused is not None:
        yield "agent.tools", *refused
    context = config.rollout.max_len
    if context is not None and config.response_tokens >= context:
        yield (
            "rollout.max_len",
            f"a rollout may sample {config.response_tokens} tokens, and its prompt must fit too",
            "Raise rollout.max_len, or lower rollout.response_length.",
        )


def _run(config: RunConfig) -> Iterator[Finding]:
    trainer, recipe, none = config.trainer, config.recipe, "Pass a file."
    ends = (trainer.total_training_steps, trainer.total_epochs, trainer.minutes)
    endless = all(end is None for end in ends)
    if config.algorithm.name == "rl" and endless:
        yield "trainer.total_training_steps", "the run would never end", "Use steps=100."
    if config.model.lora.rank and config.model.path is None:
        yield (
            "model.lora.rank",
            "the embedded policy starts with random weights, which adapters cannot train",
            "Set model.path, or use model.lora.rank=0.",
        )
    if recipe == "sft" and endless:
        yield "trainer.total_epochs", "the run would never end", "Use epochs=1."
    if recipe == "sft" and not config.data.train_files:
        yield "data.train_files", "the recipe 'sft' has no demonstrations", none
    if recipe == "sft" and config.data.test_files and config.agent.reward_name is None:
        yield (
            "agent.reward_name",
            "success on the test tasks needs a reward",
            "Set one, for example agent.reward_name=math, or remove data.test_files.",
        )
    acts = config.environment.name is not None
    for key in ("sft.max_steps", "sft.cooldown_steps"):
        if get(config, key) < 0 and not (config.data.demonstrations or acts):
            yield key, "a number of passes needs data.demonstrations", "Use a number of steps."
    if recipe == "rl" and not config.data.train_files and not acts:
        yield "data.train_files", "the recipe 'rl' has no tasks of its own", none
    if recipe == "rl" and config.agent.reward_name is None and not acts:
        yield (
            "agent.reward_name",
            "the recipe 'rl' has no reward of its own",
            "Set one, for example agent.reward_name=math_reward_string_equal.",
        )
    by_path = trainer.resume_mode == "resume_path"
    if by_path and trainer.resume_from_path is None:
        fix = "Set trainer.resume_from_path."
        yield "trainer.resume_mode", "there is no path to resume from", fix
    if trainer.resume_from_path is not None and not by_path:
        yield (
            "trainer.resume_from_path",
            f"trainer.resume_mode={trainer.resume_mode!r} would ignore it",
            "Use trainer.resume_mode=resume_path.",
        )


def _environment(config: RunConfig) -> Iterator[Finding]:
    """What an environment cannot be combined with."""
    if config.environment.name is None:
        return
    if config.recipe != "rl":
        yield "recipe", "it has tasks of its own, so it cannot take an environment", "Leave it out."
    if config.agent.placement == "ray":
        yield "agent.placement", "environments run in this process only", "Use local."


def _loss(config: RunConfig) -> Iterator[Finding]:
    loss = LOSSES.load_or_none(config.actor.policy_loss.loss_mode)
    for option, reason, fix in loss.impossible(dict(config.actor.policy_loss)) if loss else ():
        yield f"actor.policy_loss.{option}", reason, fix


def _batch(config: RunConfig) -> Iterator[Finding]:
    name, chains = config.algorithm.adv_estimator, config.agent.num_chains
    rule = ESTIMATORS.load_or_none(name)
    if rule is None:
        return
    learns_alone = rule.lonely and config.algorithm.single_member != "zero"
    if rule.groups and chains == 1 and not learns_alone:
        yield (
            "agent.num_chains",
            f"{name} compares the rollouts of one task, so every advantage would be 0",
            "Use agent.num_chains=8, or an estimator without groups.",
        )
    if config.algorithm.filter_groups.enable and (not rule.groups or chains == 1):
        yield (
            "algorithm.filter_groups.enable",
            f"{name} with {chains} rollouts of each task has no groups to compare",
            "Use algorithm.filter_groups.enable=false.",
        )
    yield from _divides("actor.ppo_mini_batch_size", config)


def _critic(config: RunConfig) -> Iterator[Finding]:
    rule = ESTIMATORS.load_or_none(config.algorithm.adv_estimator)
    if rule is None or not rule.critic:
        return
    steps = config.trainer.total_training_steps
    if steps is not None and 0 < steps <= config.trainer.critic_warmup:
        yield (
            "trainer.critic_warmup",
            f"the run has {steps} steps, so the policy would never be trained",
            f"Use a number below {steps}.",
        )
    yield from _divides("critic.ppo_mini_batch_size", config)


def _truncated(config: RunConfig) -> Iterator[Finding]:
    """What is done about rollouts that are too long."""
    buffer, room = config.reward_model.overlong_buffer, config.response_tokens
    if buffer.enable and not 0 < buffer.len <= room:
        yield (
            "reward_model.overlong_buffer.len",
            f"expected a number of tokens from 1 to the response length, {room}",
            f"Use reward_model.overlong_buffer.len={max(1, room // 5)}, or another "
            "rollout.response_length.",
        )
    if config.algorithm.mask_truncated and config.algorithm.bootstrap_truncated:
        yield (
            "algorithm.bootstrap_truncated",
            "algorithm.mask_truncated=true excludes the rollouts that it applies to",
            "Keep one of them.",
        )


def _divides(key: str, config: RunConfig) -> Iterator[Finding]:
    """Optimizer batches are parts of a batch of one size."""
    size, total = get(config, key), config.rollouts_per_batch
    if size is None or total % size == 0:
        return
    near = max(divisor for divisor in range(1, min(size, total) + 1) if total % divisor == 0)
    yield (
        key,
        f"does not divide the {total} rollouts of a batch (data.train_batch_size="
        f"{config.data.train_batch_size} times agent.num_chains={config.agent.num_chains})",
        f"Use {key}={near}.",
    )


def _control(config: RunConfig) -> Iterator[Finding]:
    """What trains the control must be comparable: the same rollouts, and another estimator."""
    control = config.trainer.control
    rule = None if control in NO_ESTIMATOR else ESTIMATORS.load_or_none(control)
    if rule is None:
        return
    if rule.critic or rule.baselines:
        yield (
            CONTROL,
            "it needs a critic or a greedy rollout of each task, so the runs would differ in more "
            "than the estimator",
            "Use trainer.control=auto.",
        )
    elif control == config.algorithm.adv_estimator:
        yield CONTROL, "the policy is already trained with this estimator", "Choose another one."
    elif rule.groups and config.agent.num_chains == 1:
        yield (
            CONTROL,
            "it compares the rollouts of one task, and agent.num_chains is 1",
            "Use trainer.control=auto, or agent.num_chains=8.",
        )


def _sampling(config: RunConfig) -> Iterator[Finding]:
    if config.rollout.temperature <= 0:
        yield (
            "rollout.temperature",
            "greedy rollouts of a task are all equal, so there is nothing to learn from",
            "Use rollout.temperature=1.0.",
        )
    for key, off in ("rollout.top_p", 1.0), ("rollout.top_k", 0):
        if get(config, key) != off:
            yield (
                key,
                "training scores tokens over the full vocabulary; restricting it is not supported "
                "yet",
                f"Use {key}={off}.",
            )


def _kl(config: RunConfig) -> Iterator[Finding]:
    for switch, coefficient in (
        ("algorithm.use_kl_in_reward", "algorithm.kl_ctrl.kl_coef"),
        ("actor.use_kl_loss", "actor.kl_loss_coef"),
    ):
        if get(config, switch) and get(config, coefficient) == 0:
            yield (
                coefficient,
                f"{switch}=true would load a reference model for nothing",
                f"Use {switch}=false, or a coefficient above 0.",
            )
