"""The arguments of a `Trainer` as the job takes them: tasks, policies, a reward, names of keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tutelage.config.aliases import canonical
from tutelage.config.problems import Problem
from tutelage.policy.model import Policy
from tutelage.resources import POLICY, Roles
from tutelage.rewards import RewardFunction, reward
from tutelage.rewards.registry import resolve_reward
from tutelage.tasks.dataset import Dataset
from tutelage.types import Task

Tasks = Dataset[Any] | Sequence[Mapping[str, Any] | Task] | str | Path
"""Tasks as a Dataset, as rows, or as a file of them."""


def tasks_of(given: Tasks | None, name: str) -> Sequence[Task] | None:
    """Tasks as they are given; None stays None."""
    if given is None:
        return None
    if isinstance(given, (str, Path)):
        return Dataset[Any].load(given)
    if isinstance(given, Dataset):
        return given
    return Dataset(given, name=f"{name}_dataset", input_required=False)


def policies_of(policy: Policy | Mapping[str, Policy] | None) -> dict[str, Policy]:
    """Policies by name; one alone is the main one."""
    if policy is None:
        return {}
    return {POLICY: policy} if isinstance(policy, Policy) else dict(policy)


def reward_of(given: RewardFunction | Callable[..., Any] | str | None) -> RewardFunction | None:
    """A reward function, also from a plain function or a registered name."""
    if given is None or isinstance(given, RewardFunction):
        return given
    return resolve_reward(given) if isinstance(given, str) else reward(given)


def canonical_names(keys: Mapping[str, Any]) -> set[str]:
    """The canonical names of keys; what is none is refused later, with all other findings."""
    known: set[str] = set()
    for key, value in keys.items():
        with suppress(Problem):
            known.add(canonical(key, value))
    return known


def renamed(found: Roles, main: str) -> Roles:
    """The first policy is the main one, whatever it was called, unless another one is."""
    if POLICY in found.policies.values():
        order = sorted(found.policies.items(), key=lambda item: item[1] != POLICY)
        return Roles(dict(order), found.frozen, found.remote)
    renamed = {r: POLICY if name == main else name for r, name in found.policies.items()}
    return Roles(renamed, found.frozen, found.remote)
