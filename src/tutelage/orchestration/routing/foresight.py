"""What is to be expected of a try and of the rest of its workflow: functions on arrays.

The environment of training and the router at work keep what they know in the same arrays and ask
the same functions, so that a policy sees at work what it saw in training. Legend: D decisions, N
nodes, W workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tutelage.orchestration.data.outcomes import Floats
from tutelage.orchestration.routing.situation import Situation, Terms
from tutelage.orchestration.routing.workflows import Bools, Ints


@dataclass(frozen=True, slots=True)
class Progress:
    """How far workflows are, and what is expected of their nodes; one row a decision."""

    node_D: Ints
    """The node under decision."""
    parents_DNN: Bools
    done_DN: Bools
    running_DN: Bools
    chance_DN: Floats
    """That each node comes right."""
    plan_cost_DN: Floats
    plan_seconds_DN: Floats
    least_DN: Floats
    """USD that each node takes at the least."""
    finish_DN: Floats
    """When it ended, where it did."""
    expected_end_DN: Floats
    """When it may be expected to end, where it runs."""
    now_D: Floats

    def situation(self, *, chance_DW: Floats, last_D: Ints, **known: Any) -> Situation:
        """The situation of these decisions; `last_D` are the workers of the last answers, -1
        where there is none, `known` the fields that do not follow from the progress."""
        places = np.arange(len(self.node_D))
        others_DN = self.chance_DN.copy()
        others_DN[places, self.node_D] = 1.0
        unstarted_DN = ~self.done_DN & ~self.running_DN
        unstarted_DN[places, self.node_D] = False
        lasts_DN = self.plan_seconds_DN.copy()
        lasts_DN[places, self.node_D] = 0.0
        # When a try that runs will end is not known yet: only expected durations are used.
        ends_D, tail_D = _expected_path(
            self.parents_DNN, self.done_DN, self.running_DN, self.finish_DN,
            np.maximum(self.expected_end_DN, self.now_D[:, None]), lasts_DN, self.now_D,
            self.node_D,
        )  # fmt: skip
        return Situation(
            chance_DW=chance_DW,
            last_D=np.where(last_D >= 0, chance_DW[places, last_D], 0.0),
            others_D=others_DN.prod(axis=1),
            rest_cost_D=(self.plan_cost_DN * unstarted_DN).sum(axis=1),
            rest_least_D=(self.least_DN * unstarted_DN).sum(axis=1),
            now_D=self.now_D,
            ends_D=ends_D,
            tail_D=tail_D,
            open_D=(~self.done_DN).sum(axis=1).astype(np.float64),
            **known,
        )


def expected_plan(
    terms: Terms,
    chance_DNW: Floats,
    cost_DNW: Floats,
    seconds_DNW: Floats,
    legal_DNW: Bools,
    cost_ref_D: Floats,
    latency_ref_D: Floats,
) -> tuple[Floats, Floats, Floats]:
    """USD and seconds of each node by the worker that looks best there, and its least USD, [D, N].

    Before anything is tried; a chance is counted by half, since not all others come right.
    """
    per_usd_D, per_second_D = terms.prices(cost_ref_D, latency_ref_D)
    worth_DNW = (
        0.5 * terms.weights.alpha * chance_DNW
        - per_usd_D[:, None, None] * cost_DNW
        - per_second_D[:, None, None] * seconds_DNW
    )
    best_DN1 = np.where(legal_DNW, worth_DNW, -np.inf).argmax(axis=2)[:, :, None]
    return (
        np.take_along_axis(cost_DNW, best_DN1, 2)[:, :, 0],
        np.take_along_axis(seconds_DNW, best_DN1, 2)[:, :, 0],
        np.where(legal_DNW, cost_DNW, np.inf).min(axis=2),
    )


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


def _expected_path(
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
