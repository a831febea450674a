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
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, cast

from tutelage.bounded import json_lines
from tutelage.errors import TutelageError
from tutelage.evaluate.compare import RunFacts, TaskScore, TaskScores
from tutelage.evaluate.config import LABEL
from tutelage.evaluate.kind import PolicyEvaluation
from tutelage.runs.figures import Figures, Measure, ResourceUsage, RunFiles, TrainedSummary
from tutelage.runs.folder import RunFolder
from tutelage.runs.kinds import FINISHED, RunKind, registered
from tutelage.runs.stored import open_run
from tutelage.runs.stored_evaluation import StoredEvaluation
from tutelage.statistics.outcome import FULL, Evaluation, Success
from tutelage.store import Grade
from tutelage.tasks.overlap import footnote, shared_in
from tutelage.types import EXACT, EXPECTED_FIELDS, INPUT_FIELDS


def read_facts(run: RunFolder, kind: type[RunKind] | None = None) -> RunFacts:
    """The facts of a run, from its folder and its store. `kind` is the one that is registered by
    the name that the folder has, unless it is given."""
    files = RunFiles.of(run)
    figures = (kind or registered(run)).figures(files)
    remarks = [] if figures.remark is None else [figures.remark]
    grades, totals = list[Grade](), None
    if figures.labels:
        rule = _rule(figures.success)
        part = EXACT if rule is None or rule.part is None else rule.part
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
    held_out, tasks = grades, run.tasks("test")
    with suppress(OSError, ValueError):  # a later look at other tasks stands aside
        known = {_task_key(json.loads(x)) for _, x in json_lines(tasks.read_bytes())}
        held_out = [grade for grade in grades if _task_key(grade.fields) in known]
    facts = _facts(figures, held_out, run.name, str(run.path))
    if grades and not facts.measured:
        remarks.append(f"its store has rollouts of other tasks than those of {tasks.name}")
    spent = figures.spent or ResourceUsage(
        rollouts=files.count("rollouts") if totals is None else totals.rollouts,
        test_rollouts=None if totals is None else totals.tests,
        calls=None if totals is None else totals.calls,
        optimiser_calls=0,
        tokens=None if totals is None else totals.prompt_tokens + totals.sampled_tokens,
        dollars=figures.dollars,
        seconds=files.number("wall_seconds"),
    )
    return replace(
        facts,
        status=str(files.result.get("status", facts.status)),
        spent=spent,
        best=None if figures.best is None or not figures.best.exists() else str(figures.best),
        remarks=tuple(remarks),
        trained_on=shared_in(files.result),
    )


def facts_of(job: PolicyEvaluation, evaluation: Evaluation, name: str) -> RunFacts:
    """The facts of an evaluation that no folder keeps, under the name that it is to have."""
    config, result = job.config(), {"cost": asdict(evaluation.cost), "status": FINISHED}
    files = RunFiles(RunFolder(Path(name)), config, config["config"], result, {})
    figures, grades = job.figures(files), list[Grade]()
    rule = _rule(figures.success)
    part = EXACT if rule is None or rule.part is None else rule.part
    for rollout in evaluation.played:
        failure, reward, task = rollout.last.failure, rollout.reward, rollout.task
        cause = None if failure is None else failure.cause.value
        value, parts = (None, {}) if reward is None else (reward.value, reward.parts)
        grades.append(Grade(LABEL, task.id, task.fields, value, parts.get(part), cause))
    return replace(_facts(figures, grades, name, ""), status=FINISHED)


# ---------------------------------------------------------------- scores


def _facts(figures: Figures, grades: Sequence[Grade], name: str, folder: str) -> RunFacts:
    """The facts of a run with the scores that its grades add up to. Whether it has a success is
    decided once, for all of its scores."""
    rule = _rule(figures.success)
    known = [g for g in grades if g.reward is not None and g.failure is None]
    defined = rule is not None or all(g.part is not None or g.reward in (0.0, 1.0) for g in known)

    def scores(some: Sequence[Grade]) -> dict[str, TaskScore]:
        """By task; what infrastructure lost is left out, as the run's own means leave it out."""
        by_task: defaultdict[str, list[tuple[float, bool]]] = defaultdict(list)
        for grade in some:
            if grade.reward is None:
                continue
            value = grade.part if rule is not None and rule.part is not None else grade.reward
            if rule is None and grade.part is not None:
                value = grade.part
            right = value is not None and value >= (FULL if rule is None else rule.least)
            failed = figures.failed_reward if grade.failure else None
            reward = grade.reward if failed is None else failed
            by_task[_task_key(grade.fields)].append((reward, right and grade.failure is None))
        return {
            key: TaskScore(
                sum(reward for reward, _ in pairs) / len(pairs),
                sum(right for _, right in pairs) / len(pairs) if defined else None,
            )
            for key, pairs in by_task.items()
        }

    def played(some: Sequence[Grade]) -> StoredEvaluation | None:
        """How many were judged of how many, and why the others were not."""
        lost = Counter(g.failure or "not ended" for g in some if g.reward is None)
        counts = dict(lost.most_common())
        judged = len(some) - lost.total()
        return StoredEvaluation(rollouts=len(some), judged=judged, lost=counts) if some else None

    measured = dict[Measure, TaskScores]()
    for measure, labels in figures.labels.items():
        before, after = ([g for g in grades if g.label == label] for label in labels[:2])
        if not after and figures.start_won:
            after = before
        if before or after:
            measured[measure] = TaskScores(
                scores(before), scores(after), played(before), played(after)
            )
    success = figures.success or "the grader's exact, else a reward of 1"
    return RunFacts(
        **{entry.name: getattr(figures, entry.name) for entry in fields(TrainedSummary)},
        name=name,
        folder=folder,
        status="unfinished",
        measured=measured,
        success=success if defined else "",
        spent=figures.spent or ResourceUsage(),
    )


def _rule(success: str | None) -> Success | None:
    """What the user defined as a success."""
    with suppress(ValueError):
        return Success.of(success)
    return None


def _task_key(fields: Mapping[str, Any]) -> str:
    """What makes two tasks the same: what is asked and what is expected, whatever else a row has.

    A task without a question is known by all of its fields but the id.
    """
    asked = any(name in fields for name in INPUT_FIELDS)
    names = {*INPUT_FIELDS, *EXPECTED_FIELDS} if asked else {*fields} - {"id"} or {"id"}
    said = {name: value for name, value in fields.items() if name in names}
    text = json.dumps(said, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
