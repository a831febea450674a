"""Facts of run folders for `compare.py`.

The kind of a run reads its small files (`runs/figures.py`); here scores by task are added from the
store. Nothing is played, and missing files raise nothing: a stopped run, or one without a store,
has fewer facts. Means that only `result.json` has are kept.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import Any, cast

from tutelage.bounded import json_lines
from tutelage.errors import TutelageError
from tutelage.evaluate.compare import RunFacts, TaskScore, TaskScores
from tutelage.runs.figures import Figures, Measure, ResourceUsage, RunFiles, TrainedSummary
from tutelage.runs.folder import RunFolder
from tutelage.runs.kinds import RunKind, find_kind
from tutelage.runs.stored import open_run
from tutelage.runs.stored_evaluation import StoredEvaluation
from tutelage.statistics.outcome import FULL, Success
from tutelage.store import Grade
from tutelage.tasks.overlap import count_shared, footnote
from tutelage.types import EXACT, EXPECTED_FIELDS, INPUT_FIELDS


def read_facts(run: RunFolder, kind: type[RunKind] | None = None) -> RunFacts:
    """Read the facts of a run from its folder and store. By default, `kind` is the registered kind
    of the run."""
    files = RunFiles.read(run)
    figures = (kind or find_kind(run)).figures(files)
    remarks = [] if figures.remark is None else [figures.remark]
    grades, totals, rule = list[Grade](), None, None
    with suppress(ValueError):
        rule = Success.parse(figures.success)
    part = EXACT if rule is None or rule.part is None else rule.part
    if figures.labels:
        labels = [label for names in figures.labels.values() for label in names[:2]]
        try:
            with open_run(run) as (store, run_id):
                grades = store.grades(run_id, *labels, part=part)
                totals = store.totals(run_id)
        except TutelageError as error:
            remarks.append(f"its store cannot be read, so it has no scores by task: {error}")
    looks = cast("Mapping[str, Any]", files.result.get("test") or {}).get("looks", 1)
    if looks != 1:
        remarks.append(f"its test was opened {looks} times, and each look weakens a verdict")
    if text := footnote(files.result):
        remarks.append(text.removesuffix("."))
    held_out = grades
    with suppress(OSError, ValueError):  # a later look at other tasks stands aside
        known = {_hash_task(json.loads(x)) for _, x in json_lines(run.tasks("test").read_bytes())}
        held_out = [grade for grade in grades if _hash_task(grade.fields) in known]
    # Whether it has a success is decided once, for all of its scores.
    judged = [g for g in held_out if g.reward is not None and g.failure is None]
    defined = rule is not None or all(g.part is not None or g.reward in (0.0, 1.0) for g in judged)
    measured = dict[Measure, tuple[TaskScores, TaskScores]]()
    for measure, labels in figures.labels.items():
        before, after = (
            _score_tasks([g for g in held_out if g.label == label], figures, rule, defined)
            for label in labels[:2]
        )
        if after.played is None and figures.start_won:
            after = before
        if before.played or after.played:
            measured[measure] = before, after
    spent = figures.spent or ResourceUsage(
        rollouts=files.count("rollouts") if totals is None else totals.rollouts,
        test_rollouts=None if totals is None else totals.tests,
        calls=None if totals is None else totals.calls,
        optimiser_calls=0,
        tokens=None if totals is None else totals.prompt_tokens + totals.sampled_tokens,
        dollars=figures.dollars,
        seconds=files.number("wall_seconds"),
    )
    success = figures.success or "the grader's exact, else a reward of 1"
    return RunFacts(
        **{entry.name: getattr(figures, entry.name) for entry in fields(TrainedSummary)},
        name=run.name,
        folder=str(run.path),
        status=str(files.result.get("status", "unfinished")),
        measured=measured,
        spent=spent,
        success=success if defined else "",
        best=None if figures.best is None or not figures.best.exists() else str(figures.best),
        remarks=tuple(remarks),
        trained_on=count_shared(files.result),
    )


def _score_tasks(
    grades: Sequence[Grade], figures: Figures, rule: Success | None, has_success: bool
) -> TaskScores:
    """Compute the scores of one test by task, without rollouts lost to infrastructure failures."""
    by_task: defaultdict[str, list[tuple[float, bool]]] = defaultdict(list)
    lost, least = Counter[str](), FULL if rule is None else rule.least
    for grade in grades:
        if grade.reward is None:
            lost[grade.failure or "not ended"] += 1
            continue
        value = grade.part
        if (rule is None and value is None) or (rule is not None and rule.part is None):
            value = grade.reward
        right = value is not None and value >= least and grade.failure is None
        failed = figures.failed_reward if grade.failure else None
        reward = grade.reward if failed is None else failed
        by_task[_hash_task(grade.fields)].append((reward, right))
    judged, counts = len(grades) - lost.total(), dict(lost.most_common())
    played = StoredEvaluation(rollouts=len(grades), judged=judged, lost=counts)
    tasks = {
        key: TaskScore(
            sum(reward for reward, _ in pairs) / len(pairs),
            sum(right for _, right in pairs) / len(pairs) if has_success else None,
        )
        for key, pairs in by_task.items()
    }
    return TaskScores({} if played.is_withheld else tasks, played if grades else None)


def _hash_task(fields: Mapping[str, Any]) -> str:
    """Return a hash of a task's input and expected fields, or of all fields except the id if the
    task has no input."""
    asked = any(name in fields for name in INPUT_FIELDS)
    names = {*INPUT_FIELDS, *EXPECTED_FIELDS} if asked else {*fields} - {"id"} or {"id"}
    said = {name: value for name, value in fields.items() if name in names}
    text = json.dumps(said, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
