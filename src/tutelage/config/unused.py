"""Why a key that someone set has no effect on a run: each reason once, for the keys that have it.

A key that only tunes an engine, a device or a loss that this run does not have is no mistake: the
guide's commands are full of them. It is accepted and listed, never dropped in silence. A reason
stands in the annotation of its key, or of a section for all keys in it (`schema.py`, `rl.py`); of
several that hold, the first one here is told. What is refused instead is in `checks.py`; which keys
an estimator or a loss reads, it declares (`extensions.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tutelage.config.schema import RunConfig


class _Case(NamedTuple):
    """What decides whether a key has an effect."""

    config: RunConfig
    on_cpu: bool
    own_agent: bool
    """Whether an agent of the user's plays, and not a built-in one."""


@dataclass(frozen=True, slots=True)
class Unused:
    """One reason, and when it holds."""

    reason: str
    applies: Callable[[_Case], bool]
    rank: int = field(default_factory=count().__next__)

    @staticmethod
    def reasons(
        notes: Iterable[object], config: RunConfig, *, on_cpu: bool, own_agent: bool
    ) -> list[str]:
        """The reasons among the notes of a key that hold for a run, the first one first.

        `own_agent` says that an agent of the user's plays, and not a built-in one.
        """
        case = _Case(config, on_cpu, own_agent)
        held = [note for note in notes if isinstance(note, Unused) and note.applies(case)]
        return [note.reason for note in sorted(held, key=attrgetter("rank"))]


def off(key: str, value: str | bool = False) -> Unused:
    """Unused where another key has the value that switches it off."""
    told = value if isinstance(value, str) else str(value).lower()
    return Unused(f"{key} is {told}", lambda on: attrgetter(key)(on.config) == value)


ON_THIS_CPU: Unused = Unused("the run is on the CPU of this machine", lambda on: on.on_cpu)
NO_GPU_MEMORY: Unused = Unused(
    "the run is on a CPU, so there is no GPU memory to free", lambda on: on.on_cpu
)
TIME_IS_SCARCER: Unused = Unused(
    "the run is on a CPU, where time is scarcer than memory", lambda on: on.on_cpu
)

_NO_STEP = "algorithm.name is sft, which makes no reinforcement-learning step"
BY_REWARDS: Unused = Unused(_NO_STEP, lambda on: on.config.algorithm.name == "sft")
IN_COLD_START: Unused = Unused(
    _NO_STEP, lambda on: on.config.algorithm.name == "sft" and on.config.recipe != "sft"
)
OWN_DEMONSTRATIONS: Unused = Unused(
    "it steers the cold start of `train math`; `train sft` has lr, batch_size and steps",
    lambda on: on.config.recipe == "sft",
)
ENDS_BY_STEPS: Unused = Unused(
    "`train sft` ends after its steps or epochs", lambda on: on.config.recipe == "sft"
)
NO_CONTROL: Unused = Unused(
    "algorithm.name is sft, and a control is for reinforcement learning",
    lambda on: on.config.algorithm.name == "sft",
)
NOT_PLAYED: Unused = Unused(
    "no task is played, because data.test_files names none",
    lambda on: on.config.recipe == "sft" and not on.config.data.test_files,
)
ALL_ARE_SHOWN: Unused = Unused(
    "`train sft` learns from all its demonstrations", lambda on: on.config.recipe == "sft"
)
NO_DEMONSTRATIONS: Unused = Unused(
    "only `train sft` reads demonstrations", lambda on: on.config.recipe != "sft"
)

CLIPPED_BY_BOTH: Unused = Unused(
    "clip_ratio_low and clip_ratio_high are both set",
    lambda on: None not in (on.config.actor.clip_ratio_low, on.config.actor.clip_ratio_high),
)
OTHER_AGGREGATION: Unused = Unused(
    "only loss_agg_mode=seq-mean-token-sum-norm divides by it",
    lambda on: on.config.actor.loss_agg_mode != "seq-mean-token-sum-norm",
)
ROWS_ARE_COUNTED: Unused = Unused(
    "ppo_micro_batch_size_per_gpu counts rows instead",
    lambda on: on.config.actor.ppo_micro_batch_size_per_gpu is not None,
)
NO_KL_IN_REWARD: Unused = off("algorithm.use_kl_in_reward")
FIXED_KL: Unused = off("algorithm.kl_ctrl.type", "fixed")
NO_KL_LOSS: Unused = off("actor.use_kl_loss")
NO_REFERENCE: Unused = Unused(
    "no KL is on, so no reference model is loaded", lambda on: not on.config.needs_reference
)

NO_VLLM: Unused = Unused(
    "it tunes vLLM, and the engine is another", lambda on: on.config.agent.backend != "vllm"
)
NOT_NATIVE: Unused = Unused(
    "it tunes the native engine, and the engine is another",
    lambda on: on.config.agent.backend != "native",
)
LOG_PROBS_ARE_RECORDED: Unused = Unused(
    "log-probabilities are recorded when sampled; where they are computed again, the actor's "
    "micro-batches are used",
    lambda on: True,
)
ALL_AT_ONCE: Unused = Unused(
    "a validation streams all its tasks through the engine (rollout.slots at once)",
    lambda on: True,
)
ONE_TURN: Unused = Unused(
    "agent.use_agent is false: one turn without tools", lambda on: not on.config.agent.use_agent
)
NO_JUDGE: Unused = Unused(
    "the reward is not llm_judge", lambda on: on.config.agent.reward_name != "llm_judge"
)
NO_SEARCH: Unused = Unused(
    "the agent has no search tool",
    lambda on: not {"search", "google_search"} & set(on.config.agent.tools),
)
NO_ADAPTERS: Unused = Unused(
    "model.lora.rank is 0, so there are no adapters", lambda on: on.config.model.lora.rank == 0
)
OWN_SHAPE: Unused = Unused(
    "model.path names a model that has its own", lambda on: on.config.model.path is not None
)
OWN_TEMPLATE: Unused = Unused(
    "the embedded policy has a template of its own", lambda on: on.config.model.path is None
)
OWN_TASKS: Unused = Unused(
    "the tasks are not the embedded ones",
    lambda on: on.config.recipe != "math" or bool(on.config.data.train_files),
)
TAUGHT_ALREADY: Unused = Unused(
    "the cold start is for the embedded policy, and model.path names another",
    lambda on: on.config.model.path is not None and on.config.algorithm.name == "rl",
)
STEPS_WIN: Unused = Unused(
    "trainer.total_training_steps wins over it",
    lambda on: on.config.trainer.total_training_steps is not None,
)
NO_TRACKER: Unused = Unused(
    "only wandb and mlflow file runs under a project",
    lambda on: not {"wandb", "mlflow"} & set(on.config.trainer.logger),
)
BUILT_IN_AGENT: Unused = Unused(
    "the built-in agents are bounded by agent.max_turns and by tokens, and each tool by its own "
    "timeout, so that no clock decides a result",
    lambda on: not on.own_agent,
)
BUILT_IN_REWARD: Unused = Unused(
    "the built-in rewards bound their own time",
    lambda on: not on.own_agent and ".py" not in (on.config.agent.reward_name or ""),
)
