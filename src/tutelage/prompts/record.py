"""What a search leaves in its run folder, and how a part of it is read back.

    best_prompt.txt      the winner, one file a component; while the search runs, the best so far
    lineage.jsonl        every candidate, byte for byte reproducible
    result.json          the outcome in numbers, under the names that other runs use as well
    metrics.jsonl        a line a round
    tasks/*.jsonl        the splits
    journal.db           every answered rollout and request: what a resume goes on from

`job.py` writes it, `pages.py` draws it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tutelage.bounded import json_lines
from tutelage.errors import RunError
from tutelage.prompts.contract import Components, Splits
from tutelage.prompts.run import SearchResult
from tutelage.prompts.setup import SearchSetup
from tutelage.prompts.shots import DEMONSTRATIONS
from tutelage.runs.folder import RunFolder, write_text
from tutelage.runs.metrics import low_reward_text
from tutelage.runs.resume_hint import resume_command
from tutelage.runs.stored_evaluation import evaluation_keys
from tutelage.statistics.outcome import RewardKind
from tutelage.types import JSON, Task

BEST = "best_prompt.txt"
LINEAGE_FILE = "lineage.jsonl"
SPLITS = ("train", "val", "test")


def write_best(folder: RunFolder, components: Components) -> None:
    """One file a component; the first one has the short name."""
    for name, text in components.items():
        safe = "".join(c if c.isalnum() or c in "-_" else "_" for c in name)
        file = BEST if name == first_of(components) else f"best_prompt.{safe}.txt"
        write_text(folder.path / file, text)


def first_of(components: Components) -> str:
    """The component shown as the prompt: the first one that is no demonstrations."""
    return min(components, key=lambda name: (name == DEMONSTRATIONS, name))


def write_tasks(folder: RunFolder, splits: Splits) -> None:
    """The splits, so that a resume has them even if their files are gone.

    Fields keep their order: the store knows a task by its text.
    """
    place = folder.path / "tasks"
    place.mkdir(exist_ok=True)
    for name in SPLITS:
        rows = [{**t.fields, "id": t.id} for t in getattr(splits, name)]
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        write_text(place / f"{name}.jsonl", "".join(lines))


def read_tasks(folder: RunFolder) -> Splits | None:
    """The splits of a run, None where they were not written yet."""
    paths = [folder.path / "tasks" / f"{name}.jsonl" for name in SPLITS]
    if not all(path.is_file() for path in paths):
        return None
    parts = [[_task(line) for line in _lines(path)] for path in paths]
    return Splits(*parts)


def _lines(path: Path) -> list[JSON]:
    return [json.loads(line) for _, line in json_lines(path.read_bytes())]


def _task(row: JSON) -> Task:
    # An id that was a number is one as a field; the task's own id is its text.
    return Task(str(row["id"]), {k: v for k, v in row.items() if k != "id"})


def read_lineage(folder: RunFolder) -> list[JSON]:
    """The candidates in order. Raises `RunError` before there are any."""
    path = folder.path / LINEAGE_FILE
    if not path.is_file():
        raise RunError(
            f"{str(folder.path)!r} has no lineage yet: the search has not ended; continue it: "
            f"{resume_command(folder.path)}"
        )
    return _lines(path)


def candidate_of(entries: Sequence[JSON], prefix: str) -> JSON:
    """The candidate whose id begins so, or `seed`, `best`. Raises `RunError`."""
    if prefix == "seed":
        return entries[0]
    if prefix == "best":
        return next((e for e in entries if e["decision"] == "winner"), entries[0])
    bare = prefix.removeprefix("cand_")
    records = [e for e in entries if str(e["id"]).removeprefix("cand_").startswith(bare)]
    if len(records) == 1 and bare:
        return records[0]
    what = "several candidates start with" if records else "no candidate starts with"
    known = ", ".join(str(e["id"])[:13] for e in (records or entries)[:5])
    raise RunError(f"{what} {prefix!r}; choose one of seed, best, {known}")


def write_outcome(
    folder: RunFolder, setup: SearchSetup, result: SearchResult, seconds: float
) -> JSON:
    """Write the lineage and the best prompt; returns what is for `result.json`. Names such as
    `success_after_sampled` mean what they do for every run."""
    write_text(folder.path / LINEAGE_FILE, result.lineage.jsonl())
    write_best(folder, result.components)
    test, spent, on_test = result.test, result.spent, result.test_spent
    tasks, kind = test.tasks, RewardKind(has_success=test.exact is not None)
    failed = setup.config.failure_reward
    low = [low_reward_text("failure_reward", failed, result.lowest)]
    return {
        "status": "finished",
        "kind": "prompt",
        "recipe": setup.config.recipe,
        "algorithm": setup.variant,
        "reason": setup.reason,
        "seed": setup.config.seed,
        "wall_seconds": round(seconds, 3),
        "verdict": test.verdict.value,
        "exit_code": test.verdict.exit_code,
        "best": result.best.id,
        "components": dict(result.components),
        "seed_components": dict(setup.components),
        "candidates": sum(entry.decision != "experiment" for entry in result.lineage),
        "ended": result.ended,
        "rollouts": spent.rollouts + on_test.rollouts,
        "search_rollouts": spent.rollouts,
        "optimiser_calls": spent.optimiser_calls,
        "task_calls": spent.task_calls + on_test.task_calls,
        "tokens": spent.tokens + on_test.tokens,
        "dollars": round(spent.dollars + on_test.dollars, 6),
        "dollars_known": not setup.remarks,
        "spent": spent.to_dict(),
        "test_spent": on_test.to_dict(),
        "test": test.to_dict(),
        "test_tasks": tasks,
        "overlap": setup.overlap.record(),
        "train_tasks": len(setup.splits.train),
        "val_tasks": len(setup.splits.val),
        "graded": test.exact is None,
        **evaluation_keys("before_sampled", test.seed_sums.record(), kind),
        **evaluation_keys("after_sampled", test.best_sums.record(), kind),
        "best_prompt": str(folder.path / BEST),
        "failures": dict(result.failures),
        "warnings": low if result.lowest < failed else [],
    }
