"""Which rollouts to show side by side, and how rollouts ended.

Pure functions over episodes. The choice is fixed by the order of the record, so that the same run
always shows the same rollouts, and it is honest: beside tasks that were learned stand one that got
worse and one that still fails, where there are any. `view.py` words the findings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tutelage.runs.report.episodes import Episode

_VERDICTS: Mapping[str, str] = {
    "learned": "learned",
    "worse": "got worse",
    "unsolved": "still fails",
    "kept": "solved all along",
    "more": "earned more",
    "less": "earned less",
    "same": "earned the same",
}
"""What came of a task, in words; the last three are of a graded reward without a success."""
_LEARNED = 3
"""Tasks shown that failed before and are solved after."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One task before and after."""

    verdict: str
    before: Episode
    after: Episode

    @property
    def words(self) -> str:
        """The verdict in words."""
        return _VERDICTS[self.verdict]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How often rollouts ended in one way, for each evaluation in turn."""

    name: str
    good: bool
    counts: tuple[int, ...]


def choose(before: Sequence[Episode], after: Sequence[Episode]) -> list[Pair]:
    """A few tasks in both: learned ones of different families, one worse, one that still fails.

    When none of these exists, one task that was solved all along. The first rollout of each task
    is taken.
    """
    first: dict[str, Episode] = {}
    for episode in before:
        first.setdefault(episode.task_id, episode)
    sides: dict[str, tuple[Episode, Episode]] = {}
    for episode in after:
        if episode.task_id in first:
            sides.setdefault(episode.task_id, (first[episode.task_id], episode))
    kinds: dict[str, list[Pair]] = {kind: [] for kind in _VERDICTS}
    for old, new in sides.values():
        kind = _verdict(old, new)
        kinds[kind].append(Pair(kind, old, new))
    chosen = _varied(kinds["learned"], _LEARNED) + kinds["worse"][:1] + kinds["unsolved"][:1]
    chosen += _varied(kinds["more"], _LEARNED) + kinds["less"][:1]
    return chosen or kinds["kept"][:1] or kinds["same"][:1]


def outcomes(evaluations: Mapping[str, Sequence[Episode]]) -> list[Outcome]:
    """Every way in which a rollout ended: `solved` first, then the most frequent."""
    tallies = [Counter(e.outcome for e in episodes) for episodes in evaluations.values()]
    total = sum(tallies, Counter[str]())
    ordered = sorted(total, key=lambda name: (name != "solved", -total[name], name))
    return [
        Outcome(name, name == "solved", tuple(tally[name] for tally in tallies)) for name in ordered
    ]


def _verdict(old: Episode, new: Episode) -> str:
    if old.solved is None or new.solved is None:
        first, second = old.reward or 0.0, new.reward or 0.0
        return "more" if second > first else "less" if second < first else "same"
    if new.solved:
        return "kept" if old.solved else "learned"
    return "worse" if old.solved else "unsolved"


def _varied(pairs: Sequence[Pair], number: int) -> list[Pair]:
    """The first pairs, each from a family that has been shown least, those that use tools first."""
    left = sorted(pairs, key=lambda pair: pair.after.tool_calls == 0)
    shown: Counter[str] = Counter()
    chosen: list[Pair] = []
    while left and len(chosen) < number:
        pair = min(left, key=lambda p: shown[p.after.family])
        left.remove(pair)
        shown[pair.after.family] += 1
        chosen.append(pair)
    return chosen
