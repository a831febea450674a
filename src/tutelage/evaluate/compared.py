"""Run folders as `compare.py` compares them: `read_facts` for a run of any kind.

A kind says what a run's files tell (`runs/figures.py`); here scores are added from the store, task
by task. Nothing is played and nothing raises for what is missing: a run that was stopped, or whose
store is gone, says less. Means that only `result.json` tells are kept as such.
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
from tutelage.evaluate.compare import Means, RunFacts, TaskScore, TaskScores
from tutelage.evaluate.preparation import PreparedEvaluation
from tutelage.runs.figures import Figures, Measure, ResourceUsage, RunFiles, TrainedSummary
from tutelage.runs.folder import RunFolder
from tutelage.runs.kinds import RunKind, registered
from tutelage.runs.stored import open_run
from tutelage.runs.stored_evaluation import StoredEvaluation
from tutelage.statistics.outcome import FULL, Evaluation, Success, succeeded
from tutelage.store import Grade, Totals
from tutelage.tasks.overlap import footnote, shared_in
from tutelage.types import EXACT, EXPECTED_FIELDS, INPUT_FIELDS, Rollout


def read_facts(run: RunFolder, kind: type[RunKind] | None = None) -> RunFacts:
    """The facts of a run, from its folder and its store. `kind` is the one that is registered by
    the name that the folder has, unless it is given."""
    files = RunFiles.of(run)
    figures = (kind or registered(run)).figures(files)
    remarks = [] if figures.remark is None else [figures.remark]
    grades, totals = _stored(files, figures, remarks)
    looks = cast("Mapping[str, Any]", files.result.get("test") or {}).get("looks", 1)
    if looks != 1:
        remarks.append(f"its test was opened {looks} times, and each look weakens a verdict")
    if text := footnote(files.result):
        remarks.append(text.removesuffix("."))
    measured, means = _measured(files, figures, grades), _means(files, figures)
    if means and not measured and totals is not None:
        lacks = "has rollouts of other tasks than" if grades else "has no rollouts of"
        remarks.append(
            f"its store {lacks} those of {files.run.tasks('test').name}, so its differences have "
            "no interval"
        )
    success = figures.success or "the grader's exact, else a reward of 1"
    for scores in measured.values():
        if any(score.exact is None for score in (*scores.before.values(), *scores.after.values())):
            success = ""
    return RunFacts(
        **{entry.name: getattr(figures, entry.name) for entry in fields(TrainedSummary)},
        name=run.name,
        folder=str(run.path),
        status=str(files.result.get("status", "unfinished")),
        measured=measured,
        success=success,
        means=means,
        spent=figures.spent or _spent(files, figures, totals),
        best=None if figures.best is None or not figures.best.exists() else str(figures.best),
        remarks=tuple(remarks),
        trained_on=shared_in(files.result),
    )


def facts_of(found: Evaluation, ready: PreparedEvaluation, name: str) -> RunFacts:
    """The facts of an evaluation that no folder keeps, under the name that it is to have."""
    rule = Success.of(ready.success)
    by_task: defaultdict[str, list[Rollout]] = defaultdict(list)
    for rollout in found.played:
        if rollout.reward is not None:
            by_task[_task_key(rollout.task.fields)].append(rollout)
    scores = {
        key: TaskScore(
            sum(r.reward.value for r in some if r.reward is not None) / len(some),
            sum(succeeded(r, rule) for r in some) / len(some) if found.kind.has_success else None,
        )
        for key, some in by_task.items()
    }
    stored_evaluation = StoredEvaluation(
        rollouts=found.rollouts, judged=found.judged, lost=found.lost
    )
    measure: Measure = "greedy" if ready.asked.sampled_at == 0 else "sampled"
    return RunFacts(
        trained=RunFacts.UNTRAINED,
        algorithm="evaluation",
        base=ready.evaluated_agent.model(),
        base_mark=ready.evaluated_agent.model_mark(),
        agent=ready.agent,
        agent_mark=ready.agent_mark(),
        grader=ready.reward,
        name=name,
        folder="",
        status="finished",
        measured={measure: TaskScores(after=scores, played_after=stored_evaluation)},
        success=ready.success or "",
        spent=ResourceUsage(calls=found.cost.calls, dollars=found.cost.dollars),
    )


# ---------------------------------------------------------------- scores


def _stored(
    files: RunFiles, told: Figures, remarks: list[str]
) -> tuple[list[Grade], Totals | None]:
    if not told.labels:
        return [], None
    if files.run.store_address() is None:
        remarks.append("it has no store, so its differences have no interval")
        return [], None
    labels = [label for names in told.labels.values() for label in (names.before, names.after)]
    try:
        with open_run(files.run) as (store, run_id):
            rule = _rule(told)
            part = EXACT if rule is None or rule.part is None else rule.part
            return store.grades(run_id, *labels, part=part), store.totals(run_id)
    except TutelageError as error:
        remarks.append(f"its store cannot be read, so its differences have no interval: {error}")
        return [], None


def _rule(told: Figures) -> Success | None:
    """What the user said is a success."""
    with suppress(ValueError):
        return Success.of(told.success)
    return None


def _measured(files: RunFiles, told: Figures, grades: Sequence[Grade]) -> dict[Measure, TaskScores]:
    tested = _test_tasks(files)
    # A later look at other tasks stands aside.
    grades = [g for g in grades if tested is None or _task_key(g.fields) in tested]
    rule = _rule(told)
    # Whether the run has a success is decided once, for all of its scores.
    graded = [g for g in grades if g.reward is not None and g.failure is None]
    marked = all(g.part is not None or g.reward in (0.0, 1.0) for g in graded)
    defined = rule is not None or marked
    values: dict[Measure, TaskScores] = {}
    for name, labels in told.labels.items():
        first, second = (
            [g for g in grades if g.label == label] for label in (labels.before, labels.after)
        )
        if not second and told.start_won:
            second = first
        if first or second:
            values[name] = TaskScores(
                _scores(told, first, defined),
                _scores(told, second, defined),
                _played(first),
                _played(second),
            )
    return values


def _played(grades: Sequence[Grade]) -> StoredEvaluation | None:
    """How many were judged of how many, and why the others were not."""
    if not grades:
        return None
    lost = Counter(g.failure or "not ended" for g in grades if g.reward is None)
    judged = len(grades) - lost.total()
    return StoredEvaluation(rollouts=len(grades), judged=judged, lost=dict(lost.most_common()))


def _scores(told: Figures, grades: Sequence[Grade], defined: bool) -> dict[str, TaskScore]:
    """By task; what infrastructure lost is left out, as the run's own means leave it out."""
    rule = _rule(told)
    by_task: defaultdict[str, list[tuple[float, bool]]] = defaultdict(list)
    for grade in grades:
        if grade.reward is None:
            continue
        failed = told.failed_reward if grade.failure else None
        reward = grade.reward if failed is None else failed
        by_task[_task_key(grade.fields)].append((reward, _right(grade, rule)))
    return {
        key: TaskScore(
            sum(reward for reward, _ in some) / len(some),
            sum(right for _, right in some) / len(some) if defined else None,
        )
        for key, some in by_task.items()
    }


def _right(grade: Grade, rule: Success | None) -> bool:
    if grade.failure is not None or grade.reward is None:
        return False
    if rule is None:
        return (grade.reward if grade.part is None else grade.part) >= FULL
    value = grade.reward if rule.part is None else grade.part
    return value is not None and value >= rule.least


def _task_key(fields: Mapping[str, Any]) -> str:
    """What makes two tasks the same: what is asked and what is expected, whatever else a row has.

    A task without a question is known by all of its fields but the id.
    """
    asked = any(name in fields for name in INPUT_FIELDS)
    names = {*INPUT_FIELDS, *EXPECTED_FIELDS} if asked else {*fields} - {"id"} or {"id"}
    said = {name: value for name, value in fields.items() if name in names}
    text = json.dumps(said, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _test_tasks(files: RunFiles) -> frozenset[str] | None:
    """The held-out tasks of the run, where it wrote them down."""
    path = files.run.tasks("test")
    if not path.is_file():
        return None
    with suppress(OSError, ValueError):
        return frozenset(_task_key(json.loads(x)) for _, x in json_lines(path.read_bytes()))
    return None


def _means(files: RunFiles, told: Figures) -> dict[Measure, Means]:
    """What `result.json` says itself."""
    names = {"reward": "reward_{}_{}", "exact": "success_{}_{}"}
    mapping: dict[Measure, Means] = {}
    for measure, labels in told.labels.items():
        values = {
            f"{part}_{when}": files.number(name.format(when, labels.means))
            for part, name in names.items()
            for when in ("before", "after")
        }
        if any(value is not None for value in values.values()):
            mapping[measure] = values
    return mapping


def _spent(files: RunFiles, told: Figures, totals: Totals | None) -> ResourceUsage:
    return ResourceUsage(
        rollouts=files.count("rollouts") if totals is None else totals.rollouts,
        test_rollouts=None if totals is None else totals.tests,
        calls=None if totals is None else totals.calls,
        optimiser_calls=0,
        tokens=None if totals is None else totals.prompt_tokens + totals.sampled_tokens,
        dollars=told.dollars,
        seconds=files.number("wall_seconds"),
    )
