"""What is to be expected of a try and of the rest of its workflow: two functions on arrays.

The environment of training and the router at work ask the same ones, so that a policy sees at work
what it saw in training. Legend: D decisions, N nodes, W workers.
"""

from __future__ import annotations

import numpy as np

from tutelage.orchestration.data.outcomes import Floats
from tutelage.orchestration.routing.workflows import Bools, Ints


def foresee(
    chance_DW: Floats, worker: Ints, passes_right: float, passes_wrong: float
) -> tuple[Floats, Floats]:
    """Chance that an asked node comes right: if the answer passes, and before that is known.

    Should it be rejected, the next best worker is counted at half its chance.
    """
    places = np.arange(len(worker))
    p = chance_DW[places, worker]
    passes = passes_wrong + (passes_right - passes_wrong) * p
    if_pass = p * passes_right / np.maximum(passes, 1e-9)
    others_DW = chance_DW.copy()
    others_DW[places, worker] = 0.0
    return if_pass, passes * if_pass + (1 - passes) * 0.5 * others_DW.max(axis=1)


def expected_path(
    parents_DNN: Bools,
    done_DN: Bools,
    running_DN: Bools,
    finish_DN: Floats,
    running_end_DN: Floats,
    lasts_DN: Floats,
    now_D: Floats,
    node_D: Ints,
) -> tuple[Floats, Floats]:
    """(end of all if `node_D` took no time, longest chain of expected seconds behind it), [D]."""
    places = np.arange(len(node_D))
    end_DN = np.zeros_like(lasts_DN)
    for j in range(lasts_DN.shape[1]):
        before_D = np.where(parents_DNN[:, :, j], end_DN, 0.0).max(axis=1, initial=0.0)
        later_D = np.maximum(before_D, now_D) + lasts_DN[:, j]
        end_DN[:, j] = np.where(
            done_DN[:, j], finish_DN[:, j],
            np.where(running_DN[:, j], running_end_DN[:, j], later_D),
        )  # fmt: skip
    behind_DN = np.zeros_like(lasts_DN)
    for i in reversed(range(lasts_DN.shape[1])):
        chains_DN = np.where(parents_DNN[:, i, :], behind_DN + lasts_DN, 0.0)
        behind_DN[:, i] = chains_DN.max(axis=1, initial=0.0)
    return end_DN.max(axis=1), behind_DN[places, node_D]
