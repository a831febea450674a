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
        "a step takes groups that were played before, so it has none to replace",
        "Use algorithm.filter_groups.enable=false",
    ),
    (
        "data.sampling",
        "difficulty",
        "tasks are drawn before the steps that would say how difficult they are",
        "Use data.sampling=epochs",
    ),
    (
        "rollout.schedule",
        "deterministic",
        "it has every rollout wait for the slowest one",
        "Use rollout.schedule=free",
    ),
    (
        "rollout.correction",
        "none",
        "what older versions sampled has to be weighted by its difference to the policy",
        "Use rollout.correction=token_tis",
    ),
    (
        "agent.placement",
        "ray",
        "workers elsewhere do not take new weights under rollouts that run; that is not built yet",
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
            "an agent of your own plays in another thread, whose engine would sample from weights "
            "that are half updated; that is not built yet",
            f"Give a class as agent.agent_type=FILE.py:Class, or {_OFF}",
        )
    if machine.nodes * machine.ranks > 1 or machine.placed_ranks(config) > 1:
        yield (
            THRESHOLD,
            "several ranks train one run, and which rollouts meet is not agreed on among them yet",
            f"Start one process, or {_OFF}",
        )
    rule = ESTIMATORS.known(config.algorithm.adv_estimator)
    if rule is not None and rule.baselines:
        yield (
            ESTIMATOR,
            "it needs a greedy rollout by the policy of the step, and rollouts are played before",
            f"Use another estimator, or {_OFF}",
        )
    for key, value, reason, fix in _REFUSED:
        if get(config, key) == value:
            yield key, reason, f"{fix}, or {_OFF}"
