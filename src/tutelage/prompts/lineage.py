"""Every candidate that was ever proposed, the rejected ones too, and why each fared as it did.

Identifiers come from the seed tree and no time of day is kept, so the exported `lineage.jsonl` is
the same bytes for the same search, killed and resumed or not. `workshop.py` writes it.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tutelage.engine.usage import Spend
from tutelage.prompts.contract import Components
from tutelage.prompts.evaluator import Score
from tutelage.seeds import SeedTree
from tutelage.types import JSON


@dataclass(frozen=True, slots=True)
class Candidate:
    """Components with an identity; equality is that of the identifier's candidate."""

    id: str
    components: Components = field(compare=False, hash=False)


@dataclass(slots=True)
class Entry:
    """One line of the lineage; `decision` is the last word on it so far."""

    id: str
    components: Components
    parents: tuple[str, ...]
    operation: str
    diff: str
    critique: str
    scores: dict[str, JSON] = field(default_factory=dict[str, JSON])
    decision: str = "proposed"
    reason: str = ""
    cost: Spend = field(default_factory=Spend)

    def to_dict(self) -> JSON:
        """As JSON."""
        return {
            "id": self.id,
            "parents": list(self.parents),
            "operation": self.operation,
            "components": dict(self.components),
            "diff": self.diff,
            "critique": self.critique,
            "scores": self.scores,
            "decision": self.decision,
            "reason": self.reason,
            "cost": self.cost.to_dict(),
        }


class Lineage:
    """Entries in the order of their proposal."""

    def __init__(self, seeds: SeedTree) -> None:
        self._seeds = seeds
        self._entries: dict[str, Entry] = {}

    def add(
        self,
        components: Components,
        parents: Sequence[Candidate] = (),
        operation: str = "seed",
        critique: str = "",
        cost: Spend | None = None,
    ) -> Candidate:
        """Note a proposal; its diff is against the first parent."""
        identity = self._seeds.child("candidate", len(self._entries)).id("cand")
        before = parents[0].components if parents else {}
        self._entries[identity] = Entry(
            id=identity,
            components=dict(components),
            parents=tuple(p.id for p in parents),
            operation=operation,
            diff=difference(before, components) if parents else "",
            critique=critique,
            cost=cost or Spend(),
        )
        return Candidate(identity, dict(components))

    def score(self, candidate: Candidate, split: str, score: Score) -> None:
        """Note what a candidate earned; a larger score of the same split replaces it."""
        scores, whole = self[candidate].scores, len(score.judged) == len(score.episodes)
        if split not in scores or scores[split]["n"] <= len(score.episodes):
            scores[split] = {
                "n": len(score.episodes),
                "reward": score.reward,
                "exact": score.exact,
                **({} if whole else {"judged": len(score.judged)}),
            }

    def decide(self, candidate: Candidate, decision: str, reason: str) -> None:
        """The last word on a candidate so far."""
        entry = self[candidate]
        entry.decision, entry.reason = decision, reason

    def __getitem__(self, candidate: Candidate) -> Entry:
        return self._entries[candidate.id]

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def jsonl(self) -> str:
        """One JSON object a line, keys sorted."""
        return "".join(
            json.dumps(e.to_dict(), ensure_ascii=False, sort_keys=True) + "\n" for e in self
        )


def difference(before: Components, after: Components) -> str:
    """A unified diff of all components that changed."""
    lines: list[str] = []
    for name in after:
        old, new = before.get(name, "").splitlines(), after[name].splitlines()
        lines += difflib.unified_diff(old, new, name, name, lineterm="", n=1)
    return "\n".join(lines)
