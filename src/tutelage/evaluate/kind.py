"""Evaluation as a kind of run: an agent plays tasks, and every rollout is stored as it ends.

    config.json        the settings, and the model, grader and code that they name
    tasks/test.jsonl   the tasks
    store.db           the run with its rollouts and metrics
    cost.jsonl         cost of each rollout, as servers counted it
    result.json        success, mean reward and cost, with their intervals

Stored rollouts are not played again, and rollouts are independent, so a run that was killed at any
moment resumes and ends with the numbers of an uninterrupted one. An evaluation without an output
folder is the same run in a temporary folder. `preparation.py` reads the input.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Self

from tutelage.agents.loading import source_hash
from tutelage.config.fields import RunSettings
from tutelage.engine.usage import Cost
from tutelage.errors import DataError, FailureBudgetError, MissingExtraError, RunError
from tutelage.evaluate.config import LABEL, EvaluationConfig
from tutelage.evaluate.evaluated_agent import recorded_cost
from tutelage.evaluate.preparation import PreparedEvaluation, prepare_evaluation
from tutelage.evaluate.targets import UNKEPT, target_kind
from tutelage.rollouts.runner import RolloutSpec, check_text_is_graded
from tutelage.runs.figures import (
    Figures,
    Labels,
    Measure,
    ResourceUsage,
    RunFiles,
    read_object,
)
from tutelage.runs.fingerprint import agent_sources, settings_sources
from tutelage.runs.folder import (
    RunFolder,
    append_json,
    create,
    find,
    open_folder,
    trim_lines,
    write_json,
)
from tutelage.runs.inputs import load_training_tasks
from tutelage.runs.job_inputs import write_tasks
from tutelage.runs.kinds import (
    FINISHED,
    Phase,
    RunHeader,
    RunKind,
    load_settings,
    register,
)
from tutelage.runs.lifecycle import Run
from tutelage.runs.metrics import rollout_metrics
from tutelage.runs.progress import Progress
from tutelage.runs.resume_hint import resume_command
from tutelage.runs.stored_evaluation import evaluation_keys
from tutelage.runs.trust import find_code
from tutelage.seeds import SeedTree
from tutelage.statistics.outcome import Evaluation, Success, summarise
from tutelage.store import open_store
from tutelage.tasks.dataset import Dataset
from tutelage.tasks.demonstrations import count_demonstration_overlap, load_demonstrations
from tutelage.tasks.overlap import count_overlap, group_duplicates, hash_task
from tutelage.tools.registry import close_tools
from tutelage.tracing.export import endpoint
from tutelage.types import JSON, Mode, Rollout


@register
@dataclass
class PolicyEvaluation(RunKind):
    """Run that evaluates the agent of a run, a user's agent, or a built-in agent on any model."""

    name: ClassVar[str] = "evaluation"
    model: ClassVar[type[RunSettings]] = EvaluationConfig
    awaits: ClassVar[bool] = True

    target: str
    asked: EvaluationConfig
    trust: bool = False
    """True if code that another user's run names may be run."""
    otlp: str | None = None
    """OTLP endpoint that also receives the traces."""
    kept: bool = True
    """False for a temporary folder, whose run is not remembered as trusted."""
    given: PreparedEvaluation | None = None
    """Evaluation that the caller has prepared, such as one of a Python agent."""
    ready: PreparedEvaluation = field(init=False)
    """The prepared evaluation, set by `prepare`."""
    played: dict[str, Rollout] = field(default_factory=dict[str, Rollout])
    """Rollouts played so far, by id."""
    _costs: dict[str, Cost] = field(default_factory=dict[str, Cost])
    """Costs by id of the rollouts whose calls servers answered."""
    _result: JSON = field(default_factory=dict[str, Any])
    _began: float = field(default_factory=time.monotonic)

    @classmethod
    def read(cls, folder: RunFolder, progress: Progress) -> Self:
        """Read the evaluation stored in a folder. Raises `RunError` for a Python agent."""
        asked, fields = load_settings(folder, EvaluationConfig), read_object(folder.config)
        if fields["python"]:
            raise RunError(
                f"the run in {str(folder.path)!r} evaluates the Python agent {fields['target']!r}, "
                "which exists only in its program; resume the run there with "
                f"Trainer(...).evaluate(agent, output_dir={str(folder.path)!r})"
            )
        return cls(str(fields["target"]), asked)

    def reload(self, folder: RunFolder, progress: Progress) -> Self:
        """Return this evaluation unchanged."""
        return self

    @classmethod
    def figures(cls, files: RunFiles) -> Figures:
        """Return the model, grader, test labels and cost of an evaluation."""
        measure = _get_measure(load_settings(files.run, EvaluationConfig))
        grader, spent = str(files.config.get("reward", "")), None
        known = grader != "llm_judge"  # whose calls are nobody's count
        if "cost" in files.result:
            cost, rollouts = Cost(**files.result["cost"]), files.count("rollouts")
            spent = ResourceUsage(
                rollouts=rollouts,
                test_rollouts=rollouts,
                calls=cost.calls,
                optimiser_calls=0,
                tokens=cost.prompt_tokens + cost.completion_tokens,
                dollars=cost.dollars if known else None,
                seconds=files.number("wall_seconds"),
            )
        return Figures(
            trained=Figures.UNTRAINED,
            algorithm=cls.name,
            base=str(files.config["base"]),
            base_mark=files.config.get("model"),
            agent=str(files.config.get("agent", "")),
            agent_mark=files.config.get("agent_mark"),
            grader=grader,
            labels={measure: Labels("", LABEL, measure)},
            success=files.config.get("success"),
            spent=spent,
        )

    def config(self) -> JSON:
        """Return the requested and the resolved settings as JSON."""
        ready, agent = self.ready, self.ready.evaluated_agent
        return {
            **super().config(),
            "target": self.target,
            "python": self.given is not None,
            "base": agent.model(),
            "model": agent.model_fingerprint(),
            "agent": ready.agent,
            "agent_mark": None if ready.agent == Figures.BUILT_IN else source_hash(agent.agent),
            "reward": ready.reward,
            "success": ready.success,
            "code": [] if ready.run is None else find_code(ready.run[0]),
        }

    def record(self, folder: RunFolder) -> None:
        """Write the settings and sources of the run; for a temporary folder, only the settings."""
        if self.kept:
            super().record(folder)
        else:
            write_json(folder.config, {"kind": self.name, **self.config()})

    def difference(self, folder: RunFolder) -> str | None:
        """Describe how the run in a folder differs from this run; return None if they are equal."""
        was = read_object(folder.config)["target"]
        if was != self.target:
            return f"was started with another target ({was!r}, now {self.target!r})"
        return super().difference(folder)

    def sources(self, folder: RunFolder) -> dict[str, str]:
        """Return hashes of the target and of the files and code named in the settings."""
        if self.given is not None:
            evaluated_agent, tasks = self.given.evaluated_agent, self.given.tasks
            own = agent_sources(
                evaluated_agent.agent, self.given.grader, evaluated_agent.resources, {"test": tasks}
            )
            return super().sources(folder) | own
        named = {"target": self.target}
        if target_kind(self.target) == "run":
            run = find(self.target)
            named = {f"target {self.target}": [str(run.policy), *find_code(run)]}
        return super().sources(folder) | settings_sources(named, folder)

    def prepare(self, folder: RunFolder, progress: Progress) -> None:
        """Load and check the tasks, the agent and the grader."""
        told = read_object(folder.config)
        # Whoever goes on with a folder is asked about the code that it names, so it is trusted.
        code = told.get("code", ())
        self.ready = self.given or prepare_evaluation(
            self.target, self.asked, trust=self.trust, trusted=code
        )
        if told:
            trim_lines(folder.metrics, 0)
            costs = folder.read_costs()
            trim_lines(folder.costs, len(costs))
            self._costs.update({line.pop("rollout"): Cost(**line) for line in costs})

    @property
    def head(self) -> RunHeader:
        """Header of the run for the store, the loggers and the trace collector."""
        return RunHeader(LABEL, self.name, self.asked, collector=endpoint(self.otlp))

    def open(self, run: Run) -> None:
        """Write the tasks, or check that they are unchanged, and report the start."""
        write_tasks(run.folder.tasks("test"), self.ready.tasks)
        agent, rollouts = self.ready.evaluated_agent, len(self.ready.tasks) * self.asked.samples
        lines = {"target": self.target, "agent": self.ready.agent, "model": agent.model()}
        lines["tokens"] = agent.describe_limits()
        if agent.servers:
            most = f"{rollouts:,} rollouts of at most {agent.max_calls} calls"
            lines["calls"] = f"{most}: at most {rollouts * agent.max_calls:,}"
        if self.kept:
            lines["run"] = str(run.folder.path)
        run.progress.start("evaluation", lines)

    def phases(self) -> Sequence[Phase]:
        """Return the single phase of the run, which evaluates all tasks."""
        return [(LABEL, self._play)]

    async def _play(self, run: Run) -> None:
        """Run all tasks, with separate seeds for each sample. Lost rollouts are repeated; if none
        could be graded, all rollouts are repeated."""
        ready, progress, rollouts = self.ready, run.progress, self.played
        rollouts |= {rollout.id: rollout for rollout in run.store.rollouts(run.id)}
        none = bool(summarise([*rollouts.values()]).ungraded)
        for rollout in [r for r in rollouts.values() if none or r.reward is None]:
            run.store.discard_rollout(run.id, rollout.id)
            del rollouts[rollout.id]
        seeds = SeedTree(self.asked.seed).child("eval")
        specs = [
            RolloutSpec(task, Mode.TEST, task.id, i, seeds.child(task.id, i), label=LABEL)
            for task in ready.tasks
            for i in range(self.asked.samples)
        ]
        ids = [spec.seeds.id("roll", run.id) for spec in specs]
        left = [spec for spec, id in zip(specs, ids, strict=True) if id not in rollouts]

        def save(rollout: Rollout, cost: Cost) -> None:
            rollouts[rollout.id], self._costs[rollout.id] = rollout, cost
            progress.evaluation(LABEL, len(rollouts), len(specs))
            if ready.evaluated_agent.servers:
                append_json(run.folder.costs, {"rollout": rollout.id, **asdict(cost)})
            run.writer.submit([rollout])
            if ready.on_rollout is not None:
                ready.on_rollout(rollout)
            if len(rollouts) == 1:
                check_text_is_graded(rollout, ready.grader)

        progress.evaluation(LABEL, len(rollouts), len(specs))
        await ready.evaluated_agent.play(left, ready.grader, run.id, save, run.writer.submit_spans)
        played = [rollouts[id] for id in ids]
        evaluation = self.summarise_rollouts(played, progress)
        if evaluation.ungraded:
            remedy = "Fix it, then run the command again"
            if self.kept:
                remedy = f"Fix it, then continue with: {resume_command(run.folder.path)} "
                remedy += "--allow-changes"
            raise FailureBudgetError(f"no rollout could be graded: {evaluation.ungraded}. {remedy}")
        run.log({"phase": LABEL, "step": 0, **rollout_metrics(played)})
        self._result = {
            "status": FINISHED,
            "seed": self.asked.seed,
            "graded": evaluation.kind.graded,
            **evaluation_keys(
                f"after_{_get_measure(self.asked)}", evaluation.record(), evaluation.kind
            ),
            "test_tasks": evaluation.tasks,
            "overlap": {
                "test_in_train": evaluation.in_training,
                "test_repeated": evaluation.repeated,
            },
            "rollouts": evaluation.rollouts,
            "cost": asdict(evaluation.cost),
            "wall_seconds": time.monotonic() - self._began,
        }

    def summarise_rollouts(self, rollouts: Sequence[Rollout], progress: Progress) -> Evaluation:
        """Summarise the rollouts of all tasks, and count the tasks that were used in training."""
        ready, seen = self.ready, None
        evaluation = summarise(rollouts, Success.parse(ready.success))
        acts = ready.evaluated_agent.environment is not None
        if ready.run is not None and (ready.grader is not None or acts):
            folder, config = ready.run
            own = folder.tasks("train").is_file()
            fields = None if own or ready.grader is None else ready.grader.task_fields
            try:
                if config.recipe == "sft":
                    shown = load_demonstrations(config.data.train_files)
                    overlap = count_demonstration_overlap(shown, (), ready.tasks)
                else:
                    tasks = folder.tasks("train")
                    known = Dataset[Any].recorded(tasks) if own else load_training_tasks(config)
                    overlap = count_overlap(known, (), ready.tasks, lambda t: hash_task(t, fields))
                seen = overlap.test_in_train
            except (DataError, MissingExtraError):
                progress.note(
                    "unknown whether these tasks were trained on: the training files are missing"
                )
        repeated = len(ready.tasks) - len(group_duplicates(ready.tasks, hash_task))
        costs = (self._costs.get(rollout.id) or recorded_cost(rollout) for rollout in rollouts)
        return replace(evaluation, in_training=seen, repeated=repeated, cost=sum(costs, Cost()))

    def result(self, status: str) -> JSON | None:
        """Return the rates and means, or None if the run was stopped."""
        return self._result if status == FINISHED else None

    def close(self) -> None:
        """Close the tools and their processes."""
        close_tools(self.ready.evaluated_agent.tools)


@contextmanager
def evaluation_folder(output: str | None) -> Generator[RunFolder]:
    """Yield the run folder of an evaluation, or a temporary folder if `output` is None."""
    if output is not None:
        yield open_folder(Path(output))
        return
    with TemporaryDirectory(prefix="tutelage-") as place:
        yield create(Path(place) / UNKEPT)


def load_evaluation(folder: RunFolder) -> Evaluation:
    """Load the summary of a finished evaluation, with rollouts in the order of its tasks."""
    fields, result = read_object(folder.config), folder.read_result() or {}
    overlap, cost = result["overlap"], Cost(**result["cost"])
    place = {task.id: i for i, task in enumerate(Dataset[Any].recorded(folder.tasks("test")))}
    with open_store(folder.store, create=False) as store:
        (run,) = store.runs()
        played = sorted(store.rollouts(run.id), key=lambda r: (place[r.task.id], r.index))
    evaluation = summarise(played, Success.parse(fields["success"]))
    seen, repeated = overlap["test_in_train"], overlap["test_repeated"]
    return replace(evaluation, in_training=seen, repeated=repeated, cost=cost)


def _get_measure(config: EvaluationConfig) -> Measure:
    return "greedy" if config.sampling_temperature == 0 else "sampled"
