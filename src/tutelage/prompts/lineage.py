"""The lineage of a search: all candidates, including rejected ones, with their decisions.

Identifiers come from the seed tree and no time of day is stored, so the exported `lineage.jsonl`
has the same bytes for the same search, resumed or not. `search.py` fills it.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from tutelage.bounded import json_lines
from tutelage.errors import RunError
from tutelage.prompts.contract import Components
from tutelage.prompts.evaluator import CandidateScore
from tutelage.runs.folder import RunFolder
from tutelage.runs.resume_hint import resume_command
from tutelage.runs.rounds import Spend
from tutelage.seeds import SeedTree
from tutelage.types import JSON

LINEAGE_FILE = "lineage.jsonl"


@dataclass(slots=True, eq=False)
class Candidate:
    """A proposed prompt; `decision` is the latest decision about it."""

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
        """Set the latest decision and its reason."""
        self.decision, self.reason = decision, reason

    def record_score(self, split: str, score: CandidateScore) -> None:
        """Record the score of a split, unless a score on more tasks is already recorded."""
        if split not in self.scores or self.scores[split]["n"] <= len(score.episodes):
            whole = len(score.judged) == len(score.episodes)
            self.scores[split] = {
                "n": len(score.episodes),
                "reward": score.reward,
                "exact": score.exact,
                **({} if whole else {"judged": len(score.judged)}),
            }


class Lineage(list[Candidate]):
    """List of candidates in the order of their proposal."""

    def __init__(self, seeds: SeedTree) -> None:
        super().__init__()
        self._seeds = seeds

    def add(
        self,
        components: Components,
        parents: Sequence[Candidate] = (),
        operation: str = "seed",
        critique: str = "",
        cost: Spend | None = None,
    ) -> Candidate:
        """Append a proposal and return it; its diff is relative to the first parent."""
        lines: list[str] = []
        for name in components if parents else ():
            old, new = parents[0].components[name].split("\n"), components[name].split("\n")
            lines += difflib.unified_diff(old, new, name, name, lineterm="", n=1)
        candidate = Candidate(
            id=self._seeds.child("candidate", len(self)).id("cand"),
            components=dict(components),
            parents=tuple(p.id for p in parents),
            operation=operation,
            diff="\n".join(lines),
            critique=critique,
            cost=cost or Spend(),
        )
        self.append(candidate)
        return candidate

    def to_jsonl(self) -> str:
        """Return the candidates as JSON lines with sorted keys."""
        return "".join(
            json.dumps(asdict(e), ensure_ascii=False, sort_keys=True) + "\n" for e in self
        )


def read_lineage(folder: RunFolder) -> list[JSON]:
    """Read the candidates of a run in order. Raises `RunError` if there are none yet."""
    path = folder.path / LINEAGE_FILE
    if not path.is_file():
        raise RunError(
            f"{str(folder.path)!r} has no lineage yet: the search has not ended; continue it: "
            f"{resume_command(folder.path)}"
        )
    return [json.loads(line) for _, line in json_lines(path.read_bytes())]


def format_scores(entry: JSON) -> str:
    """Format the scores of each split as text, such as `val 0.95 on 20 (exact 0.90)`."""
    words: list[str] = []
    for split, s in sorted(entry["scores"].items(), reverse=True):
        exact = "" if s["exact"] is None else f" (exact {s['exact']:.2f})"
        words.append(f"{split} {s['reward']:.2f} on {s.get('judged', s['n'])}{exact}")
    return "; ".join(words)


def find_candidate(entries: Sequence[JSON], prefix: str) -> JSON:
    """Find a candidate by a prefix of its id, or by the name `seed` or `best`. Raises `RunError` if
    no single candidate matches."""
    if prefix == "seed":
        return entries[0]
    if prefix == "best":
        return next((e for e in entries if e["decision"] == "winner"), entries[0])
    bare = prefix.removeprefix("cand_")
    records = [e for e in entries if str(e["id"]).removeprefix("cand_").startswith(bare)]
    if len(records) == 1 and bare:
        return records[0]
    known = ", ".join(str(e["id"])[:13] for e in (records or entries)[:5])
    raise RunError(
        f"{len(records)} candidates start with {prefix!r}; choose one of seed, best, {known}"
    )
