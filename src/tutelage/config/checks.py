"""What a configuration may not ask for, found before any model loads.

Each function yields findings about one subject; `find_problems` runs them all. Whether a part of
the package exists is a fact in `Built`, whether a device exists is a fact in `Machine`: nothing is
detected here; what an estimator, a loss or an agent type cannot work with, it declares
(`extensions.py`). Values that are fine but have no effect are not refused: see `unused.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from tutelage.config.extensions import CONTROL, NO_ESTIMATOR, Extensions
from tutelage.config.facts import Built, Machine, device_of
from tutelage.config.keys import get
from tutelage.config.problems import Problem
from tutelage.config.schema import RunConfig

CPU_FIX = "trainer.device=cpu trains on the CPU and lists this key as unused."


def find_problems(config: RunConfig, machine: Machine, built: Built) -> Iterator[Problem]:
    """Every reason not to start this run, in the order in which a reader would ask."""
    yield from built.extensions.problems(config)
    yield from _device(config, machine, built)
    yield from _engine(config, built)
    yield from _run(config)
    yield from _addresses(config)
    if config.algorithm.name == "rl":
        yield from _learning(config, built)
        yield from _batch(config, built.extensions)
        yield from _critic(config, built.extensions)
        yield from _control(config, built.extensions)
        yield from _sampling(config, built)
        yield from _kl(config)


def find_warnings(config: RunConfig, built: Built) -> Iterator[str]:
    """What is allowed and probably not meant."""
    if config.algorithm.name == "rl":
        yield from _other_than_the_paper(config, built)
    loss_kl_on = config.algorithm.name == "rl" and config.actor.use_kl_loss
    if loss_kl_on and config.actor.kl_loss_type in ("kl", "k1"):
        yield (
            f"actor.kl_loss_type={config.actor.kl_loss_type!r} has an expected gradient of zero as "
            "a loss, so it does not hold the policy near the reference; low_var_kl or kl+ does"
        )


def _other_than_the_paper(config: RunConfig, built: Built) -> Iterator[str]:
    actor, mode = config.actor, config.actor.policy_loss.loss_mode
    own = built.extensions.loss(mode)
    if own is None:
        return
    both = actor.clip_ratio
    low = both if actor.clip_ratio_low is None else actor.clip_ratio_low
    high = both if actor.clip_ratio_high is None else actor.clip_ratio_high
    for key, value, default in own.contradictions(actor.loss_agg_mode, low, high):
        yield (
            f"actor.{key}={value!r} is not what {mode} is defined with: its own is {default!r}, as "
            f"{own.source}; leave actor.{key} out to take that"
        )


def _addresses(config: RunConfig) -> Iterator[Problem]:
    """Where records go: the configuration is written into the run folder, so it holds no secret."""
    store = config.trainer.store_url
    if store is not None:
        address = urlsplit(store)
        if address.scheme.partition("+")[0] not in ("postgresql", "postgres") or not (
            address.path.strip("/")
        ):
            yield Problem(
                "trainer.store_url",
                f"{address.scheme}://..." if address.scheme else store,
                "it names no PostgreSQL database",
                "Use postgresql://HOST/DATABASE, or leave it out for a file in the run folder.",
            )
        if address.password or "password=" in address.query:
            yield Problem(
                "trainer.store_url",
                f"{address.scheme}://...",
                "it holds a password, and the configuration is written to disk",
                "Put the password into PGPASSWORD or ~/.pgpass and leave it out here.",
            )
    otlp = config.trainer.otlp_endpoint
    if otlp is not None and (
        urlsplit(otlp).scheme not in ("http", "https") or not urlsplit(otlp).netloc
    ):
        yield Problem(
            "trainer.otlp_endpoint",
            otlp,
            "it is no http address",
            "Use the address of a collector, such as http://localhost:4318.",
        )


def _device(config: RunConfig, machine: Machine, built: Built) -> Iterator[Problem]:
    trainer = config.trainer
    if trainer.device == "cuda" and not machine.cuda_devices:
        yield Problem(
            "trainer.device", "cuda", "there is no CUDA device here", "Use trainer.device=cpu."
        )
        return
    if trainer.device == "cpu":
        return
    parallel = config.rollout.tensor_model_parallel_size
    asked = (
        ("trainer.nnodes", trainer.nnodes, 1, machine.nodes, built.nodes, "nodes"),
        (
            "trainer.n_gpus_per_node",
            trainer.n_gpus_per_node or 0,
            0,
            machine.cuda_devices,
            built.gpus_per_node,
            "GPUs for one run",
        ),
        (
            "rollout.tensor_model_parallel_size",
            parallel,
            1,
            machine.cuda_devices,
            built.tensor_parallel,
            "GPUs for one model",
        ),
    )
    for key, value, free, there, can, noun in asked:
        if value <= free:
            continue
        if value > there:
            yield Problem(key, value, f"more than what is there: {there}", CPU_FIX)
        elif value > can:
            yield Problem(key, value, f"{noun} above {can} are not built yet", f"Use {key}={can}.")
    if device_of(config, machine) == "cuda":
        yield from _gpu_memory(config, built)


def _gpu_memory(config: RunConfig, built: Built) -> Iterator[Problem]:
    wanted = [("model.enable_gradient_checkpointing", built.gradient_checkpointing)]
    wanted += [("actor.fsdp_config.param_offload", built.offload)]
    wanted += [("actor.fsdp_config.optimizer_offload", built.offload)]
    wanted += [("ref.fsdp_config.param_offload", built.offload)]
    for key, exists in wanted:
        if get(config, key) and not exists:
            yield Problem(key, True, "not built yet", f"Use {key}=false.")


def _engine(config: RunConfig, built: Built) -> Iterator[Problem]:
    backend = config.agent.backend
    if backend not in built.backends:
        fix = f"Built: {', '.join(built.backends)}. Use agent.backend={built.backends[0]}."
        yield Problem("agent.backend", backend, "not built yet", fix)
    agent = built.extensions.agent(config.agent.agent_type)
    refused = agent.refusal(config.agent.tools) if agent and config.agent.use_agent else None
    if refused is not None:
        yield Problem("agent.tools", list(config.agent.tools), *refused)
    if config.response_tokens >= config.rollout.max_len:
        yield Problem(
            "rollout.max_len",
            config.rollout.max_len,
            f"a rollout may sample {config.response_tokens} tokens, and its prompt must fit too",
            "Raise rollout.max_len, or lower rollout.response_length.",
        )


def _run(config: RunConfig) -> Iterator[Problem]:
    trainer = config.trainer
    ends = (trainer.total_training_steps, trainer.total_epochs, trainer.minutes)
    if config.algorithm.name == "rl" and all(end is None for end in ends):
        yield Problem(
            "trainer.total_training_steps", None, "the run would never end", "Use steps=100."
        )
    if config.model.lora.rank and config.model.path is None:
        yield Problem(
            "model.lora.rank",
            config.model.lora.rank,
            "the embedded policy begins with random weights, which adapters cannot teach",
            "Give a model with model.path, or use model.lora.rank=0.",
        )
    supervised = config.recipe == "sft"
    if supervised and all(end is None for end in ends):
        yield Problem("trainer.total_epochs", None, "the run would never end", "Use epochs=1.")
    if supervised and not config.data.train_files:
        yield Problem(
            "data.train_files", (), "the recipe 'sft' has no demonstrations", "Give a file."
        )
    if supervised and config.data.test_files and config.agent.reward_name is None:
        yield Problem(
            "agent.reward_name",
            None,
            "success on the test tasks is measured by a reward",
            "Name one, for example agent.reward_name=math, or leave data.test_files out.",
        )
    if config.recipe == "rl":
        if not config.data.train_files:
            yield Problem(
                "data.train_files", (), "the recipe 'rl' has no tasks of its own", "Give a file."
            )
        if config.agent.reward_name is None:
            yield Problem(
                "agent.reward_name",
                None,
                "the recipe 'rl' has no reward of its own",
                "Name one, for example agent.reward_name=math_reward_string_equal.",
            )
    path, by_path = trainer.resume_from_path, trainer.resume_mode == "resume_path"
    if by_path and path is None:
        yield Problem(
            "trainer.resume_mode",
            "resume_path",
            "there is no path to resume from",
            "Set trainer.resume_from_path.",
        )
    if path is not None and not by_path:
        yield Problem(
            "trainer.resume_from_path",
            path,
            f"trainer.resume_mode={trainer.resume_mode!r} would ignore it",
            "Use trainer.resume_mode=resume_path.",
        )


def _learning(config: RunConfig, built: Built) -> Iterator[Problem]:
    loss = built.extensions.loss(config.actor.policy_loss.loss_mode)
    options = dict(config.actor.policy_loss)
    for option, reason, fix in () if loss is None else loss.impossible(options):
        key = f"actor.policy_loss.{option}"
        yield Problem(key, get(config, key), reason, fix)


def _batch(config: RunConfig, extensions: Extensions) -> Iterator[Problem]:
    name, chains = config.algorithm.adv_estimator, config.agent.num_chains
    rule = extensions.estimator(name)
    if rule is None:
        return
    learns_alone = rule.lonely and config.algorithm.single_member != "zero"
    if rule.groups and chains == 1 and not learns_alone:
        yield Problem(
            "agent.num_chains",
            1,
            f"{name} compares the rollouts of one task, so every advantage would be 0",
            "Use agent.num_chains=8, or an estimator without groups.",
        )
    if config.algorithm.filter_groups.enable and (not rule.groups or chains == 1):
        yield Problem(
            "algorithm.filter_groups.enable",
            True,
            f"{name} with {chains} rollouts of each task has no groups to compare",
            "Use algorithm.filter_groups.enable=false.",
        )
    yield from _divides("actor.ppo_mini_batch_size", config.actor.ppo_mini_batch_size, config)


def _critic(config: RunConfig, extensions: Extensions) -> Iterator[Problem]:
    rule = extensions.estimator(config.algorithm.adv_estimator)
    if rule is None or not rule.critic:
        return
    warmup, steps = config.trainer.critic_warmup, config.trainer.total_training_steps
    if steps is not None and 0 < steps <= warmup:
        yield Problem(
            "trainer.critic_warmup",
            warmup,
            f"the run has {steps} steps, so the policy would never be trained",
            f"Use a number below {steps}.",
        )
    yield from _divides("critic.ppo_mini_batch_size", config.critic.ppo_mini_batch_size, config)


def _divides(key: str, size: int | None, config: RunConfig) -> Iterator[Problem]:
    """Optimizer batches are parts of a batch of one size."""
    total = config.rollouts_per_batch
    if size is None or total % size == 0:
        return
    near = max(divisor for divisor in range(1, min(size, total) + 1) if total % divisor == 0)
    yield Problem(
        key,
        size,
        f"does not divide the {total} rollouts of a batch (data.train_batch_size="
        f"{config.data.train_batch_size} times agent.num_chains={config.agent.num_chains})",
        f"Use {key}={near}.",
    )


def _control(config: RunConfig, extensions: Extensions) -> Iterator[Problem]:
    """What trains the control must be comparable: the same rollouts, and another estimator."""
    control = config.trainer.control
    rule = None if control in NO_ESTIMATOR else extensions.estimator(control)
    if rule is None:
        return
    if rule.critic or rule.baselines:
        yield Problem(
            CONTROL,
            control,
            "it needs a critic or a greedy rollout of each task, so it would not be the same run "
            "with another estimator",
            "Use trainer.control=auto.",
        )
    elif control == config.algorithm.adv_estimator:
        reason = "it is the estimator that trains the policy already"
        yield Problem(CONTROL, control, reason, "Name another one.")
    elif rule.groups and config.agent.num_chains == 1:
        yield Problem(
            CONTROL,
            control,
            "it compares the rollouts of one task, and agent.num_chains is 1",
            "Use trainer.control=auto, or agent.num_chains=8.",
        )


def _sampling(config: RunConfig, built: Built) -> Iterator[Problem]:
    rollout = config.rollout
    if rollout.temperature <= 0:
        yield Problem(
            "rollout.temperature",
            rollout.temperature,
            "greedy rollouts of a task are all equal, so there is nothing to learn from",
            "Use rollout.temperature=1.0.",
        )
    narrowed: Sequence[tuple[str, Any, Any]] = (
        ("rollout.top_p", rollout.top_p, 1.0),
        ("rollout.top_k", rollout.top_k, 0),
    )
    for key, value, off in narrowed:
        if value != off and not built.narrowed_sampling:
            yield Problem(
                key,
                value,
                "training scores tokens over the full vocabulary, and replaying the narrowed one "
                "is not built yet",
                f"Use {key}={off}.",
            )


def _kl(config: RunConfig) -> Iterator[Problem]:
    places = (
        ("algorithm.use_kl_in_reward", "algorithm.kl_ctrl.kl_coef"),
        ("actor.use_kl_loss", "actor.kl_loss_coef"),
    )
    for switch, coefficient in places:
        if not get(config, switch):
            continue
        if get(config, coefficient) == 0:
            yield Problem(
                coefficient,
                0.0,
                f"{switch}=true would load a reference model for nothing",
                f"Use {switch}=false, or a coefficient above 0.",
            )
