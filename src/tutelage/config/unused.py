"""Keys that a run accepts and has no use for, each with the reason.

A key that only tunes an engine, a device or a loss that this run does not have is no mistake: the
guide's commands are full of them. It is accepted and listed, never dropped in silence. One table of
rules; a rule applies to the keys that someone set, never to defaults. What is refused instead is
in `checks.py`; which keys an estimator or a loss reads, it declares (`extensions.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tutelage.config.extensions import Extensions
from tutelage.config.facts import Machine, device_of
from tutelage.config.schema import RunConfig


@dataclass(frozen=True, slots=True)
class Rule:
    """`keys` (a name ending in `.` or `_` means all that begin so) are unused when `applies`."""

    keys: tuple[str, ...]
    reason: str
    applies: Callable[[RunConfig], bool]

    def covers(self, key: str) -> bool:
        """Whether the rule speaks of this key."""
        return any(key == name or (name[-1] in "._" and key.startswith(name)) for name in self.keys)


def unused_keys(
    config: RunConfig,
    machine: Machine,
    extensions: Extensions,
    set_keys: Iterable[str],
    *,
    own_agent: bool = False,
) -> dict[str, str]:
    """The keys among `set_keys` that have no effect on this run, each with its first reason.

    `own_agent` says that an agent of the user's plays, and not a built-in one.
    """
    known = [*_rules(config, machine, extensions), *(() if own_agent else BUILT_IN)]
    rules = [rule for rule in known if rule.applies(config)]
    found: dict[str, str] = {}
    for key in set_keys:
        reason = next((rule.reason for rule in rules if rule.covers(key)), None)
        if reason is not None:
            found[key] = reason
    return found


def _rules(config: RunConfig, machine: Machine, extensions: Extensions) -> Iterator[Rule]:
    if device_of(config, machine) == "cpu":
        yield from ON_CPU
    yield from SUPERVISED
    yield from LEARNING
    yield from (Rule((key,), reason, _always) for key, reason in extensions.unread(config))
    yield from KL
    yield from ENGINE
    yield from RUN


def _always(_: RunConfig) -> bool:
    return True


SUPERVISED = (
    Rule(
        (
            "actor.",
            "data.train_batch_size",
            "data.train_tasks",
            "trainer.total_training_steps",
            "trainer.total_epochs",
        ),
        "algorithm.name is sft, which makes no reinforcement-learning step",
        lambda config: config.algorithm.name == "sft" and config.recipe != "sft",
    ),
    Rule(
        (
            "actor.ppo_",
            "actor.use_kl_loss",
            "actor.kl_loss_",
            "actor.entropy_coeff",
            "actor.clip_ratio",
            "actor.clip_ratio_",
            "actor.loss_",
            "actor.skip_zero_variance",
            "actor.policy_loss.",
            "actor.fsdp_config.",
            "algorithm.adv_estimator",
            "algorithm.gamma",
            "algorithm.lam",
            "algorithm.use_kl_in_reward",
            "algorithm.kl_penalty",
            "algorithm.norm_adv_by_std_in_grpo",
            "algorithm.single_member",
            "algorithm.kl_ctrl.",
            "algorithm.filter_groups.",
            "critic.",
            "trainer.critic_warmup",
            "ref.",
            "agent.num_chains",
            "rollout.correction",
            "rollout.correction_cap",
            "data.sampling",
            "data.sampling_floor",
            "agent.group_deadline",
            "trainer.record_tokens",
        ),
        "algorithm.name is sft, which makes no reinforcement-learning step",
        lambda config: config.algorithm.name == "sft",
    ),
    Rule(
        (
            "sft.lr",
            "sft.batch_size",
            "sft.max_steps",
            "sft.skill_target",
            "sft.eval_every",
            "sft.cooldown_steps",
            "sft.mixed_steps",
            "sft.guess_share",
            "sft.mixed_success",
            "sft.hard_share",
        ),
        "it steers the cold start of `train math`; `train sft` has lr, batch_size and steps",
        lambda config: config.recipe == "sft",
    ),
    Rule(
        ("trainer.stop_at_success",),
        "`train sft` ends after its steps or epochs",
        lambda config: config.recipe == "sft",
    ),
    Rule(
        ("trainer.control",),
        "algorithm.name is sft, and a control is for reinforcement learning",
        lambda config: config.algorithm.name == "sft",
    ),
    Rule(
        (
            "agent.agent_type",
            "agent.tools",
            "agent.reward_name",
            "agent.use_agent",
            "agent.max_turns",
            "agent.max_tokens_per_turn",
            "agent.timeout",
            "agent.failure_reward",
            "agent.reward_timeout",
            "agent.system_prompt",
            "agent.backend",
            "tools.",
            "reward.",
            "judge.",
            "rollout.",
            "trainer.val_tasks",
            "trainer.test_tasks",
        ),
        "no task is played, because data.test_files names none",
        lambda config: config.recipe == "sft" and not config.data.test_files,
    ),
    Rule(
        ("data.train_tasks",),
        "`train sft` learns from all its demonstrations",
        lambda config: config.recipe == "sft",
    ),
    Rule(
        ("data.max_length",),
        "only `train sft` reads demonstrations",
        lambda config: config.recipe != "sft",
    ),
)

LEARNING = (
    Rule(
        ("actor.clip_ratio",),
        "clip_ratio_low and clip_ratio_high are both set",
        lambda config: None not in (config.actor.clip_ratio_low, config.actor.clip_ratio_high),
    ),
    Rule(
        ("algorithm.filter_groups.max_num_gen_batches",),
        "algorithm.filter_groups.enable is false",
        lambda config: not config.algorithm.filter_groups.enable,
    ),
    Rule(
        ("data.sampling_floor",),
        "data.sampling is epochs",
        lambda config: config.data.sampling != "difficulty",
    ),
    Rule(
        ("actor.loss_scale_factor",),
        "only loss_agg_mode=seq-mean-token-sum-norm divides by it",
        lambda config: config.actor.loss_agg_mode != "seq-mean-token-sum-norm",
    ),
    Rule(
        ("actor.max_tokens_per_micro_batch",),
        "ppo_micro_batch_size_per_gpu counts rows instead",
        lambda config: config.actor.ppo_micro_batch_size_per_gpu is not None,
    ),
    Rule(
        ("rollout.correction_cap",),
        "rollout.correction is none",
        lambda config: config.rollout.correction == "none",
    ),
)

KL = (
    Rule(
        ("algorithm.kl_penalty", "algorithm.kl_ctrl."),
        "algorithm.use_kl_in_reward is false",
        lambda config: not config.algorithm.use_kl_in_reward,
    ),
    Rule(
        ("algorithm.kl_ctrl.target_kl", "algorithm.kl_ctrl.horizon"),
        "algorithm.kl_ctrl.type is fixed",
        lambda config: config.algorithm.kl_ctrl.type == "fixed",
    ),
    Rule(
        ("actor.kl_loss_coef", "actor.kl_loss_type"),
        "actor.use_kl_loss is false",
        lambda config: not config.actor.use_kl_loss,
    ),
    Rule(
        ("ref.",),
        "no KL is on, so no reference model is loaded",
        lambda config: not config.needs_reference,
    ),
)

ENGINE = (
    Rule(
        ("rollout.gpu_memory_utilization", "rollout.tensor_model_parallel_size"),
        "it tunes vLLM, and the engine is another",
        lambda config: config.agent.backend != "vllm",
    ),
    Rule(
        ("rollout.slots", "rollout.max_len", "rollout.schedule"),
        "it tunes the native engine, and the engine is another",
        lambda config: config.agent.backend != "native",
    ),
    Rule(
        ("rollout.log_prob_micro_batch_size_per_gpu",),
        "log-probabilities are recorded when sampled; where they are computed again, the actor's "
        "micro-batches are used",
        _always,
    ),
    Rule(
        ("data.val_batch_size",),
        "a validation streams all its tasks through the engine (rollout.slots at once)",
        _always,
    ),
    Rule(
        ("agent.tools", "agent.max_turns"),
        "agent.use_agent is false: one turn without tools",
        lambda config: not config.agent.use_agent,
    ),
)

RUN = (
    Rule(
        ("judge.",),
        "the reward is not llm_judge",
        lambda config: config.agent.reward_name != "llm_judge",
    ),
    Rule(
        ("tools.search_index",),
        "the agent has no search tool",
        lambda config: not {"search", "google_search"} & set(config.agent.tools),
    ),
    Rule(
        ("model.lora.alpha", "model.lora.target_modules"),
        "model.lora.rank is 0, so there are no adapters",
        lambda config: config.model.lora.rank == 0,
    ),
    Rule(
        ("model.size", "model.layout"),
        "model.path names a model that has its own",
        lambda config: config.model.path is not None,
    ),
    Rule(
        ("agent.template",),
        "the embedded policy has a template of its own",
        lambda config: config.model.path is None,
    ),
    Rule(
        ("data.level",),
        "the tasks are not the embedded ones",
        lambda config: config.recipe != "math" or bool(config.data.train_files),
    ),
    Rule(
        ("sft.",),
        "the cold start is for the embedded policy, and model.path names another",
        lambda config: config.model.path is not None and config.algorithm.name == "rl",
    ),
    Rule(
        ("trainer.total_epochs",),
        "trainer.total_training_steps wins over it",
        lambda config: config.trainer.total_training_steps is not None,
    ),
    Rule(
        ("trainer.project_name",),
        "only wandb and mlflow file runs under a project",
        lambda config: not {"wandb", "mlflow"} & set(config.trainer.logger),
    ),
)

BUILT_IN = (
    Rule(
        ("agent.timeout", "agent.group_deadline"),
        "the built-in agents are bounded by agent.max_turns and by tokens, and each tool by its "
        "own timeout, so that no clock decides a result",
        _always,
    ),
    Rule(
        ("agent.reward_timeout",),
        "the built-in rewards bound their own time",
        lambda config: ".py" not in (config.agent.reward_name or ""),
    ),
)

ON_CPU = (
    Rule(
        ("trainer.nnodes", "trainer.n_gpus_per_node", "rollout.tensor_model_parallel_size"),
        "the run is on the CPU of this machine",
        _always,
    ),
    Rule(
        ("actor.fsdp_config.", "ref.fsdp_config."),
        "the run is on a CPU, so there is no GPU memory to free",
        _always,
    ),
    Rule(
        ("model.enable_gradient_checkpointing",),
        "the run is on a CPU, where time is scarcer than memory",
        _always,
    ),
)
