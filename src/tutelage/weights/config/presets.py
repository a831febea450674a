"""The default values of recipes, as far as they differ from the schema's.

This is the table to tune. A preset is a recipe with, for the embedded job, a level and an
algorithm; later layers of it win. Users' flags and overrides win over all of it (`resolve.py`).
"""

from __future__ import annotations

from typing import Any

from tutelage.config.issues import ConfigIssue
from tutelage.environments.start import TEST_TASKS, TURNS
from tutelage.resources import SHIPPED

REWARDED: dict[str, Any] = {
    "actor.use_kl_loss": False,
    "actor.entropy_coeff": 0.0,
    "actor.loss_agg_mode": "token-mean",
    "actor.optim.lr_scheduler_type": "linear",
    "trainer.save_freq": 10,
}
"""Values that all recipes with built-in tasks share."""
# The embedded job: tool use on arithmetic, on a laptop CPU, in minutes.
MATH: dict[str, Any] = REWARDED | {
    "algorithm.adv_estimator": "grpo",
    "actor.clip_ratio_low": 0.2,
    "actor.clip_ratio_high": 0.28,
    "trainer.total_training_steps": 30,
    "trainer.test_freq": 10,
}
# A user's model takes the schema's defaults in place of the first, a user's tasks in place of the
# second, and either in place of the last: real chat templates are longer, and a pretrained model
# needs a smaller rate.
EMBEDDED_POLICY: dict[str, Any] = {"actor.optim.lr": 2e-4, "critic.optim.lr": 1e-3}
EMBEDDED_TASKS: dict[str, Any] = {"trainer.val_tasks": 50, "trainer.test_tasks": 200}
EMBEDDED_LENGTHS: dict[str, Any] = {"agent.max_tokens_per_turn": 40, "rollout.max_len": 256}
# Word problems in plain English, with a real model and a short cold start. A step plays many tasks
# twice: each kind is there four or five times, and it trains where one of the two succeeded.
WORD_PROBLEMS: dict[str, Any] = REWARDED | {
    "model.path": "smollm2",
    "model.dtype": "bfloat16",
    "algorithm.adv_estimator": "advantage_filtered",
    "data.train_batch_size": 32,
    "data.sampling": "sequential",
    "agent.num_chains": 2,
    "agent.max_tokens_per_turn": 48,
    "actor.optim.lr": 7e-5,
    "actor.optim.lr_scheduler_type": "cosine",
    "actor.optim.warmup_steps": 4,
    # A call that fails is not to be learned with the success that comes after it.
    "reward_model.tool_error_penalty": 0.2,
    "rollout.max_len": 384,
    "rollout.temperature": 0.7,
    "sft.optimizer": "adamw",
    "sft.lr": 2e-4,
    "sft.batch_size": 1,
    "sft.max_steps": 32,
    "sft.cooldown_steps": 32,
    "sft.mixed_steps": 0,
    "trainer.total_training_steps": 96,
    "trainer.max_actor_ckpt_to_keep": 1,
    "trainer.test_freq": 0,
}
WORD_PROBLEMS_LEVELS: dict[str, dict[str, Any]] = {
    # Fewer kinds and steps, and what is measured is less. `raft` trains on all successes, so that
    # none of the few kinds is forgotten while the others are learned.
    "default": {
        "algorithm.adv_estimator": "raft",
        "rollout.temperature": 1.0,
        "sft.max_steps": 20,
        "sft.cooldown_steps": 20,
        "actor.optim.warmup_steps": 6,
        "trainer.total_training_steps": 24,
        "trainer.test_tasks": TEST_TASKS,
        "trainer.skip_measurements": ("before/greedy", "after/no_tools"),
    },
    "full": {},
}
# The demonstrations again and again, for the time that reinforcement takes.
WORD_PROBLEMS_SFT: dict[str, dict[str, Any]] = {
    "default": {"sft.batch_size": 8, "sft.max_steps": 50, "sft.cooldown_steps": 25},
    "full": {"sft.batch_size": 8, "sft.max_steps": 100, "sft.cooldown_steps": 50},
}
MATH_LEVELS: dict[str, dict[str, Any]] = {
    "default": {},
    "hard": {"trainer.total_training_steps": 300, "trainer.test_freq": 20},
}

# The agent-RL guide's defaults are the schema's; this adds what the guide leaves open.
RL: dict[str, Any] = {"trainer.total_epochs": 1}

OWN_MODEL: dict[str, Any] = {"actor.optim.warmup_steps": 5}
"""Values for reinforcement learning of a user's model. AdamW knows the size of the
gradients only after a few steps, and its first ones at the full rate can destroy what was
pretrained. The embedded policy keeps the rate that its preset was measured with."""

# Demonstrations of the user's own. The rate is what full fine-tuning of a pretrained model takes;
# the embedded policy has random weights.
SFT: dict[str, Any] = {
    "algorithm.name": "sft",
    "data.train_batch_size": 32,
    "actor.optim.lr": 1e-5,
    "actor.optim.lr_scheduler_type": "linear",
    "actor.optim.warmup_steps": 20,
    "sft.optimizer": "adamw",
    "trainer.total_epochs": 1,
    "trainer.test_freq": 50,
    "trainer.save_freq": 100,
}
SFT_EMBEDDED: dict[str, Any] = {"actor.optim.lr": 3e-3, "sft.optimizer": "muon"}

# Demonstrations before reinforcement learning; their number of steps is that of three passes. The
# embedded policy knows few words: tools of a user's own take it a hundred steps.
DEMONSTRATIONS: dict[str, Any] = {
    "sft.optimizer": "adamw",
    "sft.lr": 2e-4,
    "sft.batch_size": 8,
    "sft.max_steps": -1,
    "sft.cooldown_steps": -1,
    "sft.mixed_steps": 0,
}
DEMONSTRATIONS_EMBEDDED: dict[str, Any] = {
    "sft.optimizer": "muon",
    "sft.lr": 3e-3,
    "sft.max_steps": 90,
    "sft.cooldown_steps": 40,
}

# An environment: demonstrations of its expert, or of the best of random actions, for a short time,
# then its rewards.
ENVIRONMENT: dict[str, Any] = (
    REWARDED
    | DEMONSTRATIONS
    | {
        "algorithm.adv_estimator": "grpo",
        "agent.max_turns": TURNS,
        "data.train_tasks": 512,
        "trainer.total_training_steps": 30,
        "trainer.test_freq": 10,
        "trainer.val_tasks": 50,
        "trainer.test_tasks": TEST_TASKS,
    }
)
# As `benchmarks/environments` has it.
ENVIRONMENT_EMBEDDED: dict[str, Any] = {
    "actor.optim.lr": 6e-4,
    "actor.optim.lr_scheduler_type": "constant",
    "critic.optim.lr": 1e-3,
    "agent.max_tokens_per_turn": 40,
    "sft.optimizer": "muon",
    "sft.lr": 3e-3,
    "sft.max_steps": 160,
    "sft.cooldown_steps": 40,
    "data.train_tasks": 1280,
    "trainer.total_training_steps": 60,
}

WORK: dict[str, tuple[float, float, float, float, float]] = {
    "math": (0.25, 0.33, 0.15, 4.4, 0.6),
    "word-problems": (2.5, 0.32, 0.35, 1.3, 1.2),
}
"""Measured cost by recipe, from which the time of a run is estimated. In forward passes over 2 x
128 tokens on a CPU: a demonstration, a rollout, and the update on it. Then the cost of a rollout of
a measurement relative to one of training, and of a mean step relative to the first."""
UNKNOWN = (0.0, 0.0, 0.0, 2.0, 1.0)
"""Cost of a recipe that is not in `WORK`, for estimates after a measured step."""

RECIPES = {"math": "", "word-problems": "", "rl": "rewards", "sft": "demonstrations"}
"""Recipes, and the inputs that recipes without built-in tasks need."""


def recipe_preset(
    recipe: str,
    *,
    level: str,
    algorithm: str,
    own_model: bool = False,
    own_tasks: bool = False,
    own_start: bool = False,
    environment: bool = False,
) -> tuple[str, dict[str, Any]]:
    """Return the name and the values of the preset of a recipe.

    `own_model` is True if `model.path` is set, `own_tasks` if `data.train_files` is, `own_start` if
    a key of the cold start or of new weights is; without them the embedded job starts from the
    shipped policy. `environment` is True if `environment.name` is set. Raises `ConfigIssue` if the
    recipe has no such level or algorithm.
    """
    levels = {"math": MATH_LEVELS, "word-problems": WORD_PROBLEMS_LEVELS}.get(recipe, {level: {}})
    if level not in levels:
        way = f"Use {' or '.join(levels)}."
        raise ConfigIssue("data.level", level, f"the recipe {recipe!r} has no such level", way)
    if recipe in ("rl", "sft") and algorithm != recipe:
        reason = f"the recipe {recipe!r} learns from {RECIPES[recipe]} only"
        way = f"Remove it, or use the recipe {algorithm!r}."
        raise ConfigIssue("algorithm.name", algorithm, reason, way)
    rewarded = algorithm == "rl"
    if recipe == "math":
        values = MATH | MATH_LEVELS[level] | ({} if own_model else EMBEDDED_POLICY)
        values |= {} if own_tasks else EMBEDDED_TASKS
        values |= {} if own_model or own_tasks else EMBEDDED_LENGTHS
        if not rewarded:
            return f"math/{level}/sft", values | {"sft.mixed_steps": 0}
        if own_model:
            values |= OWN_MODEL
        elif level == "default" and not own_start:
            values["model.path"] = SHIPPED
        return f"math/{level}", values
    if recipe == "word-problems":
        values = WORD_PROBLEMS | WORD_PROBLEMS_LEVELS[level]
        return (
            (recipe, values) if rewarded else (f"{recipe}/sft", values | WORD_PROBLEMS_SFT[level])
        )
    if environment and rewarded:
        return "environment", ENVIRONMENT | (OWN_MODEL if own_model else ENVIRONMENT_EMBEDDED)
    if rewarded:
        return recipe, RL | (OWN_MODEL if own_model else {})
    return recipe, SFT | ({} if own_model else SFT_EMBEDDED)
