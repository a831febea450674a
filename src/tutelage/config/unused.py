"""Why a key that someone set has no effect on a run: each reason once, for the keys that have it.

A key that only tunes an engine, a device or a loss that this run does not have is no mistake: the
guide's commands are full of them. It is accepted and listed, never dropped silently. A reason
stands in the annotation of its key, or of a section for all keys in it (`schema.py`, `rl.py`); of
several that hold, the first one here is told. What is refused instead is in `checks.py`; which keys
an estimator or a loss reads, it declares (`extensions.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from operator import attrgetter
from typing import TYPE_CHECKING

from tutelage.resources import SHIPPED

if TYPE_CHECKING:
    from tutelage.config.schema import RunConfig


@dataclass(frozen=True, slots=True)
class UnusedRule:
    """One reason, and when it holds."""

    reason: str
    applies: Callable[[RunConfig], bool] = lambda config: True
    on_cpu: bool = False
    """Whether it holds on the CPU alone."""
    built_in: bool = False
    """Whether it holds for a built-in agent alone, and not for a user's agent."""
    rank: int = field(default_factory=count().__next__)

    @staticmethod
    def reasons(
        notes: Iterable[object], config: RunConfig, *, on_cpu: bool, own_agent: bool
    ) -> list[str]:
        """The reasons among the notes of a key that hold for a run, the first one first.

        `own_agent` says that a user's agent plays, and not a built-in one.
        """
        held = [
            note
            for note in notes
            if isinstance(note, UnusedRule)
            and on_cpu >= note.on_cpu
            and not (own_agent and note.built_in)
            and note.applies(config)
        ]
        return [note.reason for note in sorted(held, key=attrgetter("rank"))]


def _for_sft(reason: str) -> UnusedRule:
    return UnusedRule(reason, lambda run: run.recipe == "sft")


def _without_steps(reason: str) -> UnusedRule:
    return UnusedRule(reason, lambda run: run.algorithm.name == "sft")


def off(key: str, value: str | bool = False) -> UnusedRule:
    """Unused where another key has the value that switches it off."""
    message = value if isinstance(value, str) else str(value).lower()
    return UnusedRule(f"{key} is {message}", lambda run: attrgetter(key)(run) == value)


ON_THIS_CPU = UnusedRule("the run is on the CPU of this machine", on_cpu=True)
NODES_ON_THIS_CPU: UnusedRule = UnusedRule(
    "the run is on the CPU of this machine",
    lambda run: run.trainer.nnodes == 1 or not run.ray_kwargs.ray_init.is_named,
    on_cpu=True,
)
_NO_RAY = "agent.placement is local, and only one rank is configured"
NO_RAY: UnusedRule = UnusedRule(
    _NO_RAY,
    lambda run: (
        run.agent.placement == "local"
        and run.trainer.nnodes == 1
        and (run.trainer.n_gpus_per_node or 1) == 1
    ),
)
NO_RANKS_ON_CPU: UnusedRule = UnusedRule(
    _NO_RAY,
    lambda run: run.agent.placement == "local" and run.trainer.nnodes == 1,
    on_cpu=True,
)
OTHERS_CPUS: UnusedRule = UnusedRule(
    "the CPUs of the cluster at ray_kwargs.ray_init.address are fixed",
    lambda run: run.agent.placement == "local" and run.ray_kwargs.ray_init.address is not None,
)
NO_GPU_MEMORY = UnusedRule("the run is on a CPU, so there is no GPU memory to free", on_cpu=True)

_NO_STEP = "algorithm.name is sft, which has no reinforcement-learning steps"
BY_REWARDS = _without_steps(_NO_STEP)
IN_COLD_START = UnusedRule(
    _NO_STEP, lambda run: run.algorithm.name == "sft" and run.recipe != "sft"
)
OWN_DEMONSTRATIONS = _for_sft(
    "it is for the cold start of `train math`; `train sft` uses lr, batch_size and steps"
)
ENDS_BY_STEPS = _for_sft("`train sft` ends after its steps or epochs")
NO_CONTROL = _without_steps("algorithm.name is sft, and the control needs reinforcement learning")
NOT_PLAYED: UnusedRule = UnusedRule(
    "no task is played because data.test_files is empty",
    lambda run: run.recipe == "sft" and not run.data.test_files,
)
ALL_ARE_SHOWN = _for_sft("`train sft` learns from all its demonstrations")
LEARNS_FROM_TRAIN_FILES = _for_sft("`train sft` learns from data.train_files")
NO_DEMONSTRATIONS: UnusedRule = UnusedRule(
    "only `train sft` and data.demonstrations read demonstrations",
    lambda run: run.recipe != "sft" and not run.data.demonstrations,
)
NO_ENVIRONMENT: UnusedRule = UnusedRule(
    "there is no environment", lambda run: run.environment.name is None
)
SHOWN_IN_PASSES: UnusedRule = UnusedRule(
    "demonstrations are learned as they are, for sft.max_steps and sft.cooldown_steps",
    lambda run: bool(run.data.demonstrations or run.environment.name),
)

CLIPPED_BY_BOTH: UnusedRule = UnusedRule(
    "clip_ratio_low and clip_ratio_high are both set",
    lambda run: None not in (run.actor.clip_ratio_low, run.actor.clip_ratio_high),
)
OTHER_AGGREGATION: UnusedRule = UnusedRule(
    "only loss_agg_mode=seq-mean-token-sum-norm divides by it",
    lambda run: run.actor.loss_agg_mode != "seq-mean-token-sum-norm",
)
ROWS_ARE_COUNTED: UnusedRule = UnusedRule(
    "ppo_micro_batch_size_per_gpu counts rows instead",
    lambda run: run.actor.ppo_micro_batch_size_per_gpu is not None,
)
THOUGHT_IS_SHORTER: UnusedRule = UnusedRule(
    "turns are shorter (agent.max_tokens_per_turn, rollout.response_length)",
    lambda run: (run.agent.max_thinking_tokens or 0) >= run.turn_tokens,
    built_in=True,
)
NO_KL_IN_REWARD = off("algorithm.use_kl_in_reward")
FIXED_KL = off("algorithm.kl_ctrl.type", "fixed")
NO_KL_LOSS = off("actor.use_kl_loss")
NO_REFERENCE: UnusedRule = UnusedRule(
    "no KL is enabled, so no reference model is loaded", lambda run: not run.needs_reference
)

NO_VLLM: UnusedRule = UnusedRule("the engine is not vLLM", lambda run: run.agent.backend != "vllm")
SERVERS_ARE_GIVEN: UnusedRule = UnusedRule(
    "the servers in rollout.servers are already running", lambda run: bool(run.rollout.servers)
)
NOT_NATIVE: UnusedRule = UnusedRule(
    "the engine is not native",
    lambda run: run.agent.backend != "native",
)
NOTHING_IS_SCORED: UnusedRule = UnusedRule(
    "sampled log-probabilities are exact, and there is no reference",
    lambda run: (
        not run.needs_reference
        and run.rollout.correction == "none"
        and run.model.dtype != "bfloat16"
    ),
    on_cpu=True,
)
ONE_TURN: UnusedRule = UnusedRule(
    "agent.use_agent is false: one turn without tools", lambda run: not run.agent.use_agent
)
NO_JUDGE = UnusedRule(
    "the reward is not llm_judge", lambda run: run.agent.reward_name != "llm_judge"
)
NO_SEARCH: UnusedRule = UnusedRule(
    "the agent has no search tool",
    lambda run: not {"search", "google_search"} & set(run.agent.tools or ()),
)
NO_ADAPTERS: UnusedRule = UnusedRule(
    "model.lora.rank is 0, so there are no adapters", lambda run: run.model.lora.rank == 0
)
OWN_SHAPE: UnusedRule = UnusedRule(
    "the model in model.path has its own", lambda run: run.model.path is not None
)
OWN_TEMPLATE: UnusedRule = UnusedRule(
    "the embedded policy has its own template",
    lambda run: run.model.path in (None, SHIPPED),
)
OWN_TASKS: UnusedRule = UnusedRule(
    "the tasks are not the embedded ones",
    lambda run: run.recipe != "math" or bool(run.data.train_files),
)
TAUGHT_ALREADY: UnusedRule = UnusedRule(
    "the cold start is for the embedded policy, but model.path is another model",
    lambda run: (
        run.model.path is not None
        and run.algorithm.name == "rl"
        and run.recipe == "math"
        and not run.data.demonstrations
    ),
)
STEPS_WIN: UnusedRule = UnusedRule(
    "trainer.total_training_steps overrides it",
    lambda run: run.trainer.total_training_steps is not None,
)
NO_TRACKER: UnusedRule = UnusedRule(
    "only wandb and mlflow use projects",
    lambda run: not {"wandb", "mlflow"} & set(run.trainer.logger),
)
BUILT_IN_AGENT: UnusedRule = UnusedRule(
    "built-in agents are limited by agent.max_turns and tokens, and each tool by its own timeout, "
    "so results do not depend on time",
    built_in=True,
)
ALWAYS_CALLS = UnusedRule("a built-in agent calls the model in every rollout", built_in=True)
BUILT_IN_REWARD: UnusedRule = UnusedRule(
    "built-in rewards have their own time limits",
    lambda run: ".py" not in (run.agent.reward_name or ""),
    built_in=True,
)
