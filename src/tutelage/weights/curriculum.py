"""A curriculum by difficulty: tasks that are solved about half the time are drawn most often.

A group teaches most where its rewards differ most, which for a success rate p is at p = 1/2: the
variance of its rewards is p (1 - p). Each task keeps a running mean of its groups' mean rewards,
and is drawn, without replacement within a draw, with the weight

    w = floor + (1 - floor) * 4 p (1 - p)

so that a task that is always or never solved is still seen, `floor` times as often as the best one,
and comes back when the policy has changed. A task not seen yet has p = 1/2. Rewards are meant to
lie in [0, 1] and are cut to it. The state is a number for each seen task and travels in the
checkpoint. `sampling.py` draws and remembers.

Sources: Bae et al. (arXiv 2504.03380) for the p (1 - p) rule; Efraimidis and Spirakis (2006) for
weighted draws without replacement.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from tutelage.seeds import SeedTree

STATE = "difficulty"
"""The state's name in `TrainingState.phase_data`."""

MEMORY = 0.5
"""Weight of what was known of a task when it is seen again."""


def draw(
    total: int, count: int, known: Mapping[str, float], floor: float, seeds: SeedTree
) -> list[int]:
    """Numbers of `count` tasks of `total`; each at most once unless more are asked for than are."""
    out: list[int] = []
    for round_number in range(math.ceil(count / total)):
        rng = seeds.child(round_number).python()
        keys: list[tuple[float, int]] = []
        for i in range(total):
            rate = known.get(str(i), 0.5)
            weight = floor + (1.0 - floor) * 4.0 * rate * (1.0 - rate)  # of the best one: 1
            # The greatest u^(1/w), taken as the least -log(u) / w.
            keys.append((-math.log(1.0 - rng.random()) / weight, i))
        out += [i for _, i in sorted(keys)[: count - len(out)]]
    return out


def remember(known: Mapping[str, float], seen: Mapping[int, float]) -> dict[str, float]:
    """The state after a step that saw these mean rewards by task number."""
    out = dict(known)
    for number, reward in seen.items():
        p = min(1.0, max(0.0, reward))
        before = out.get(str(number))
        out[str(number)] = p if before is None else MEMORY * before + (1.0 - MEMORY) * p
    return out
