"""Every candidate that was ever proposed, the rejected ones too, and why each fared as it did.

Identifiers come from the seed tree and no time of day is kept, so the exported `lineage.jsonl` is
the same bytes for the same search, killed and resumed or not. `search_state.py` writes it.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field

from tutelage.prompts.contract import Components
from tutelage.prompts.evaluator import CandidateScore
from tutelage.runs.rounds import Spend
from tutelage.seeds import SeedTree
from tutelage.types import JSON


@dataclass(slots=True, eq=False)
class Candidate:
    """One line of the lineage; `decision` is the latest decision."""

    id: str
    components: Components
    parents: tuple[str, ...]
    operation: str
    diff: str
    critique: str
    cost: Spend
    scores: dict[str, JSON] = field(default_factory=dict[str, JSON])
    decision: str = "proposed"
    reason: str = ""

    def decide(self, decision: str, reason: str) -> None:
        """The latest decision."""
        self.decision, self.reason = decision, reason

    def note(self, split: str, score: CandidateScore) -> None:
        """Note what it earned; a larger score of the same split replaces it."""
        if split not in self.scores or self.scores[split]["n"] <= len(score.episodes):
            whole = len(score.judged) == len(score.episodes)
            self.scores[split] = {
                "n": len(score.episodes),
                "reward": score.reward,
                "exact": score.exact,
                **({} if whole else {"judged": len(score.judged)}),
            }


class Lineage:
    """Candidates in the order of their proposal."""

    def __init__(self, seeds: SeedTree) -> None:
        self._seeds = seeds
        self._candidates: dict[str, Candidate] = {}

    def add(
        self,
        components: Components,
        parents: Sequence[Candidate] = (),
        operation: str = "seed",
        critique: str = "",
        cost: Spend | None = None,
    ) -> Candidate:
        """Note a proposal; its diff is against the first parent."""
        identity = self._seeds.child("candidate", len(self._candidates)).id("cand")
        before = parents[0].components if parents else {}
        self._candidates[identity] = Candidate(
            id=identity,
            components=dict(components),
            parents=tuple(p.id for p in parents),
            operation=operation,
            diff=_difference(before, components) if parents else "",
            critique=critique,
            cost=cost or Spend(),
        )
        return self._candidates[identity]

    def __getitem__(self, identity: str) -> Candidate:
        return self._candidates[identity]

    def __iter__(self) -> Iterator[Candidate]:
        return iter(self._candidates.values())

    def __len__(self) -> int:
        return len(self._candidates)

    def jsonl(self) -> str:
        """One JSON object a line, keys sorted."""
        return "".join(
            json.dumps(asdict(e), ensure_ascii=False, sort_keys=True) + "\n" for e in self
        )


def _difference(before: Components, after: Components) -> str:
    """A unified diff of all components that changed."""
    lines: list[str] = []
    for name in after:
        old, new = before.get(name, "").splitlines(), after[name].splitlines()
        lines += difflib.unified_diff(old, new, name, name, lineterm="", n=1)
    return "\n".join(lines)
