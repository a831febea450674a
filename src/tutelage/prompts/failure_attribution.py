"""Which of several components an edit should fix: those in force where rollouts went wrong.

An agent that knows nothing of its components' part in a failure blames none, and then they take
turns. Where failures blame some, turns go round among those, the one with most failures first, and
the evidence shown is of failures that blame the one in question. Pure functions of scores.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from tutelage.prompts.contract import Episode
from tutelage.prompts.evaluator import CandidateScore, EvaluationItem


def suspected_component(names: Sequence[str], scores: Sequence[CandidateScore], turn: int) -> str:
    """The component whose turn it is. `names` are all that may be edited, in order.

    A part of a component (`prompt#2`) counts for the whole.
    """
    counts: defaultdict[str, float] = defaultdict(float)
    for score in scores:
        for episode in score.judged:
            if episode.value < 1:
                # The likeliest culprit weighs most.
                for place, name in enumerate(episode.blame):
                    counts[name] += 1 / (1 + place)
    blamed = [name for name in names if counts[_whole(name)] > 0]
    ranked = sorted(blamed, key=lambda name: -counts[_whole(name)]) or list(names)
    return ranked[turn % len(ranked)]


def evidence(
    component: str, score: CandidateScore, most: int
) -> list[tuple[EvaluationItem, Episode]]:
    """The rollouts to show for a component, of those that were judged: those that blame it first,
    and the worst first."""
    name = _whole(component)

    def rank(pair: tuple[EvaluationItem, Episode]) -> tuple[bool, float]:
        blame = pair[1].blame
        return bool(blame) and name not in blame, pair[1].value

    return sorted(score.evidence, key=rank)[:most]


def _whole(part: str) -> str:
    """The component that a region is a part of."""
    return part.partition("#")[0]
