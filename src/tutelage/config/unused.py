"""Rules for configuration keys that have no effect on a run.

A key that tunes an engine, a device or a loss that this run does not use is not an error, since the
guide's commands contain many. It is accepted and listed. A rule stands in the annotation of its
key, or of a section for all keys in it (`schema.py`, `rl.py`); if several apply, the first one
defined here is reported. `checks.py` has what is rejected; estimators and losses declare which keys
they read (`extensions.py`).
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
    """Condition under which a key has no effect, with the reason."""

    reason: str
    applies: Callable[[RunConfig], bool] = lambda config: True
    on_cpu: bool = False
    """True if the rule applies on a CPU only."""
    built_in: bool = False
    """True if the rule applies to built-in agents only."""
    rank: int = field(default_factory=count().__next__)

    @staticmethod
    def reasons(
        metadata: Iterable[object], config: RunConfig, *, on_cpu: bool, own_agent: bool
    ) -> list[str]:
        """Return the reasons why a key has no effect on a run, from the `metadata` of the key.

        `own_agent` is True if the run uses a custom agent.
        """
        rules = sorted((n for n in metadata if isinstance(n, UnusedRule)), key=attrgetter("rank"))
        candidates = [r for r in rules if on_cpu >= r.on_cpu and not (own_agent and r.built_in)]
        return [rule.reason for rule in candidates if rule.applies(config)]


def if_in(reason: str, key: str, *values: object) -> UnusedRule:
    """Return a rule: a configuration key has no effect if `key` has one of `values`."""
    return UnusedRule(reason, lambda run: attrgetter(key)(run) in values)


def if_not_in(reason: str, key: str, *values: object) -> UnusedRule:
    """Return a rule: a configuration key has no effect if `key` has none of `values`."""
    return UnusedRule(reason, lambda run: attrgetter(key)(run) not in values)


def if_off(key: str, value: str | bool = False) -> UnusedRule:
    """Return a rule: a configuration key has no effect if `key` has the value for "disabled"."""
    return if_in(f"{key} is {value if isinstance(value, str) else str(value).lower()}", key, value)


ON_THIS_CPU = UnusedRule("the run is on the CPU of this machine", on_cpu=True)
NODES_ON_THIS_CPU: UnusedRule = UnusedRule(
    ON_THIS_CPU.reason,
    lambda run: run.trainer.nnodes == 1 or not run.ray_kwargs.ray_init.is_configured,
    on_cpu=True,
)
_LOCAL = "agent.placement is local, and only one rank is configured"
NO_RAY: UnusedRule = UnusedRule(
    _LOCAL, lambda run: run.is_local and (run.trainer.n_gpus_per_node or 1) == 1
)
NO_RANKS_ON_CPU: UnusedRule = UnusedRule(_LOCAL, lambda run: run.is_local, on_cpu=True)
OTHERS_CPUS: UnusedRule = UnusedRule(
    "the CPUs of the cluster at ray_kwargs.ray_init.address are fixed",
    lambda run: run.agent.placement == "local" and run.ray_kwargs.ray_init.address is not None,
)
NO_GPU_MEMORY = UnusedRule("the run is on a CPU, so there is no GPU memory to free", on_cpu=True)

_NO_STEP = "algorithm.name is sft, which has no reinforcement-learning steps"
BY_REWARDS = if_in(_NO_STEP, "algorithm.name", "sft")
IN_COLD_START: UnusedRule = UnusedRule(
    _NO_STEP, lambda run: run.algorithm.name == "sft" and run.recipe != "sft"
)
_COLD = "it is for the cold start of `train math`; `train sft` uses lr, batch_size and steps"
OWN_DEMONSTRATIONS = if_in(_COLD, "recipe", "sft")
ENDS_BY_STEPS = if_in("`train sft` ends after its steps or epochs", "recipe", "sft")
NO_CONTROL = if_in(_NO_STEP, "algorithm.name", "sft")
NOT_PLAYED: UnusedRule = UnusedRule(
    "no task is played because data.test_files is empty",
    lambda run: run.recipe == "sft" and not run.data.test_files,
)
ALL_ARE_SHOWN = if_in("`train sft` learns from all its demonstrations", "recipe", "sft")
LEARNS_FROM_TRAIN_FILES = if_in("`train sft` learns from data.train_files", "recipe", "sft")
NO_DEMONSTRATIONS: UnusedRule = UnusedRule(
    "only `train sft` and data.demonstrations read demonstrations",
    lambda run: run.recipe != "sft" and not run.data.demonstrations,
)
NO_ENVIRONMENT = if_in("there is no environment", "environment.name", None)
SHOWN_IN_PASSES: UnusedRule = UnusedRule(
    "demonstrations are learned as they are, for sft.max_steps and sft.cooldown_steps",
    lambda run: bool(run.data.demonstrations or run.environment.name),
)

CLIPPED_BY_BOTH: UnusedRule = UnusedRule(
    "clip_ratio_low and clip_ratio_high are both set",
    lambda run: None not in (run.actor.clip_ratio_low, run.actor.clip_ratio_high),
)
_SUMS, _ROWS = "seq-mean-token-sum-norm", "ppo_micro_batch_size_per_gpu"
OTHER_AGGREGATION = if_not_in(
    f"only loss_agg_mode={_SUMS} divides by it", "actor.loss_agg_mode", _SUMS
)
ROWS_ARE_COUNTED = if_not_in(f"{_ROWS} counts rows instead", f"actor.{_ROWS}", None)
THOUGHT_IS_SHORTER: UnusedRule = UnusedRule(
    "turns are shorter (agent.max_tokens_per_turn, rollout.response_length)",
    lambda run: (run.agent.max_thinking_tokens or 0) >= run.turn_tokens,
    built_in=True,
)
NO_KL_IN_REWARD = if_off("algorithm.use_kl_in_reward")
FIXED_KL = if_off("algorithm.kl_ctrl.type", "fixed")
NO_KL_LOSS = if_off("actor.use_kl_loss")
NO_REFERENCE = if_in("no KL is enabled, so no reference model is loaded", "needs_reference", False)

NO_VLLM = if_not_in("the engine is not vLLM", "rollout.name", "vllm")
_RUNNING = "the servers in rollout.servers are already running"
SERVERS_ARE_GIVEN = if_not_in(_RUNNING, "rollout.servers", ())
NOT_NATIVE = if_not_in("the engine is not native", "rollout.name", "native")
NOTHING_IS_SCORED: UnusedRule = UnusedRule(
    "sampled log-probabilities are exact, and there is no reference",
    lambda run: (
        not (run.needs_reference or run.model.dtype == "bfloat16")
        and run.rollout.correction == "none"
    ),
    on_cpu=True,
)
ONE_TURN = if_in("agent.use_agent is false: one turn without tools", "agent.use_agent", False)
NO_JUDGE = if_not_in("the reward is not llm_judge", "agent.reward_name", "llm_judge")
NO_SEARCH: UnusedRule = UnusedRule(
    "the agent has no search tool",
    lambda run: not {"search", "google_search"} & set(run.agent.tools or ()),
)
NO_ADAPTERS = if_in("model.lora.rank is 0, so there are no adapters", "model.lora.rank", 0)
OWN_SHAPE = if_not_in("the model in model.path has its own", "model.path", None)
OWN_TEMPLATE = if_in("the embedded policy has its own template", "model.path", None, SHIPPED)
OWN_TASKS: UnusedRule = UnusedRule(
    "the tasks are not the embedded ones",
    lambda run: run.recipe != "math" or bool(run.data.train_files),
)
TAUGHT_ALREADY: UnusedRule = UnusedRule(
    "the cold start is for the embedded policy, but model.path is another model",
    lambda run: (
        (run.algorithm.name, run.recipe) == ("rl", "math")
        and not (run.model.path is None or run.data.demonstrations)
    ),
)
_BY_STEPS = "trainer.total_training_steps overrides it"
STEPS_WIN = if_not_in(_BY_STEPS, "trainer.total_training_steps", None)
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
