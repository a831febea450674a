"""What rollouts that are played ahead of their step cannot go with (`async_training`).

`checks.py` asks, as it does for all other keys; `weights/asynchronous.py` plays them.
"""

from __future__ import annotations

from collections.abc import Iterator

from tutelage.algorithms.extensions import ESTIMATORS
from tutelage.config.facts import Machine
from tutelage.config.keys import get
from tutelage.config.schema import RunConfig
from tutelage.weights.config.extensions import ESTIMATOR

THRESHOLD = "async_training.staleness_threshold"
_OFF = f"use {THRESHOLD}=0."
_REFUSED = (
    (
        "algorithm.filter_groups.enable",
        True,
        "groups are played before the step, so they cannot be replaced",
        "Use algorithm.filter_groups.enable=false",
    ),
    (
        "data.sampling",
        "difficulty",
        "tasks are drawn before their difficulty is known",
        "Use data.sampling=epochs",
    ),
    (
        "rollout.schedule",
        "deterministic",
        "every rollout would wait for the slowest one",
        "Use rollout.schedule=free",
    ),
    (
        "rollout.correction",
        "none",
        "samples of older policy versions need importance weights",
        "Use rollout.correction=token_tis",
    ),
    (
        "agent.placement",
        "ray",
        "remote workers cannot update weights during rollouts; this is not supported yet",
        "Use agent.placement=local",
    ),
)
"""Keys with the value that is refused, the reason, and the way out."""


def played_ahead(
    config: RunConfig, machine: Machine, own_agent: bool
) -> Iterator[tuple[str, str, str]]:
    """(key, reason, way out) of each. `own_agent` says that a user's agent plays."""
    if config.algorithm.name != "rl" or not get(config, THRESHOLD):
        return
    if own_agent:
        yield (
            THRESHOLD,
            "a custom agent runs in another thread and could sample from partly updated weights; "
            "this is not supported yet",
            f"Use a class, agent.agent_type=FILE.py:Class, or {_OFF}",
        )
    if machine.nodes * machine.ranks > 1 or machine.placed_ranks(config) > 1:
        yield (
            THRESHOLD,
            "training with several ranks is not supported here yet",
            f"Start one process, or {_OFF}",
        )
    rule = ESTIMATORS.load_or_none(config.algorithm.adv_estimator)
    if rule is not None and rule.baselines:
        yield (
            ESTIMATOR,
            "it needs a greedy rollout by the policy of the step, but rollouts are played earlier",
            f"Use another estimator, or {_OFF}",
        )
    for key, value, reason, fix in _REFUSED:
        if get(config, key) == value:
            yield key, reason, f"{fix}, or {_OFF}"
