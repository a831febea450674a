"""Aliases of configuration keys: the long names of the agent-RL guide, and short names.

The canonical key is that of the schema; aliases map to it by name or by prefix. The error for an
unknown key suggests the most similar known key. `resolve.py` rejects two aliases that set one key
to different values.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import cache
from typing import Any

from tutelage.config.issues import ConfigIssue
from tutelage.config.keys import leaf_fields, section_names

PREFIXES: Mapping[str, str] = {
    "actor_rollout_ref.actor.": "actor.",
    "actor_rollout_ref.rollout.": "rollout.",
    "actor_rollout_ref.ref.": "ref.",
    "actor_rollout_ref.model.": "model.",
    "agent.init_args.": "agent.",
}
"""Guide prefix -> canonical prefix."""

_SHORT = (
    *("model.size", "model.layout", "model.dtype", "trainer.device", "trainer.threads"),
    *("data.demonstrations", "data.level", "agent.tools", "tools.allow_unsandboxed"),
    *("agent.template", "agent.max_turns", "agent.num_chains"),
    *("algorithm.adv_estimator", "actor.policy_loss.loss_mode", "agent.agent_type"),
    *("actor.optim.lr", "rollout.temperature", "trainer.minutes", "trainer.logger"),
)
"""Keys that may also be set by their last word alone."""
NAMES: Mapping[str, str] = {key.rpartition(".")[2]: key for key in _SHORT} | {
    # The guide's.
    "agent.model_name_or_path": "model.path",
    "agent.init_args.model_name_or_path": "model.path",
    "agent.backend": "rollout.name",
    "actor_rollout_ref.rollout.n": "agent.num_chains",
    "rollout.n": "agent.num_chains",
    "data.max_response_length": "rollout.response_length",
    "rollout.max_model_len": "rollout.max_len",
    "model.gradient_checkpointing": "model.enable_gradient_checkpointing",
    "model.lora_rank": "model.lora.rank",
    "model.lora_alpha": "model.lora.alpha",
    "model.target_modules": "model.lora.target_modules",
    # People's.
    "backend": "rollout.name",
    "model": "model.path",
    "model.device": "trainer.device",
    "train": "data.train_files",
    "tasks": "data.train_files",
    "val": "data.val_files",
    "test": "data.test_files",
    "batch_size": "data.train_batch_size",
    "environment": "environment.name",
    "environment_kwargs": "environment.kwargs",
    "reward": "agent.reward_name",
    "success": "reward.success",
    "store": "trainer.store_url",
    "otlp": "trainer.otlp_endpoint",
    "algorithm": "algorithm.name",
    "estimator": "algorithm.adv_estimator",
    "learning_rate": "actor.optim.lr",
    "steps": "trainer.total_training_steps",
    "epochs": "trainer.total_epochs",
}
"""Other names by spelling, with their canonical key. A name that is also a section (`model`) takes
one value."""


def canonical_key(spelling: str, value: Any) -> str:
    """Return the canonical name of a key. Raises `ConfigIssue` for an unknown spelling."""
    if (key := _find_key(spelling)) is not None:
        return key
    if (section := canonical_section(spelling)) is not None:
        first = next(key for key in leaf_fields() if key.startswith(f"{section}."))
        raise ConfigIssue(
            spelling, value, "this is a section, not a key", f"Set one of its keys: {first}=..."
        )
    match = find_nearest(spelling)
    fix = f"Did you mean {match!r}?" if match else "`tutelage config` lists every key."
    raise ConfigIssue(spelling, value, "unknown key", fix)


def canonical_section(spelling: str) -> str | None:
    """Return the canonical name of a section; None if the name is not a section."""
    name = f"{spelling}."
    for long, short in PREFIXES.items():
        name = short + name.removeprefix(long) if name.startswith(long) else name
    return name[:-1] if name[:-1] in section_names() else None


def find_nearest(spelling: str) -> str | None:
    """Return the known key that is most similar to an unknown one; None if no key is similar."""
    if slip := difflib.get_close_matches(spelling, all_spellings(), n=1, cutoff=0.85):
        return slip[0]
    # A last word that exists elsewhere (`clip_grad`, `trainer.lr`) says more than faint likeness.
    last = spelling.rpartition(".")[2]
    same_word = [key for key in leaf_fields() if key.rpartition(".")[2] == last]
    if len(same_word) == 1 or (same_word and last in NAMES):
        return last if last in NAMES and len(same_word) > 1 else same_word[0]
    if close := difflib.get_close_matches(spelling, all_spellings(), n=1, cutoff=0.6):
        return close[0]
    by_word = {key.rpartition(".")[2]: key for key in reversed([*leaf_fields()])}
    word = difflib.get_close_matches(last, by_word, n=1, cutoff=0.75)
    return by_word[word[0]] if word else None


@cache
def list_aliases(key: str) -> tuple[str, ...]:
    """Return the aliases of a canonical key, sorted."""
    by_name = {name for name, target in NAMES.items() if target == key}
    by_prefix = {
        long + key.removeprefix(short)
        for long, short in PREFIXES.items()
        if key.startswith(short) and _find_key(long + key.removeprefix(short)) == key
    }
    return tuple(sorted(by_name | by_prefix))


@cache
def all_spellings() -> tuple[str, ...]:
    """Return all canonical keys, then all aliases."""
    return (*leaf_fields(), *(name for key in leaf_fields() for name in list_aliases(key)))


def _find_key(spelling: str) -> str | None:
    if spelling in leaf_fields():
        return spelling
    if spelling in NAMES:
        return NAMES[spelling]
    for long, short in PREFIXES.items():
        if spelling.startswith(long):
            return _find_key(short + spelling.removeprefix(long))
    return None
