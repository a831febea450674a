"""An evaluation as a kind of run: an agent plays tasks, and every rollout is kept as it ends.

    config.json        what was asked for; the model, the grader and the code that result from it
    tasks/test.jsonl   the tasks
    store.db           the run with its rollouts and metrics
    cost.jsonl         what servers counted of each rollout
    result.json        success, mean reward and cost, with their intervals

What the store has is not played again, and a rollout depends on no other one, so a run killed at
any moment goes on and ends with the numbers of one that never stopped. `preparation.py` reads the
input and plays.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Self

from tutelage.config.fields import RunSettings
from tutelage.engine.usage import Cost
from tutelage.errors import FailureBudgetError, RunError
from tutelage.evaluate.config import LABEL, EvaluationConfig
from tutelage.evaluate.preparation import PreparedEvaluation, prepare_evaluation
from tutelage.evaluate.targets import target_kind
from tutelage.runs.figures import (
    Figures,
    Labels,
    Measure,
    ResourceUsage,
    RunFiles,
    read_object,
)
from tutelage.runs.fingerprint import agent_sources, settings_sources
from tutelage.runs.folder import RunFolder, append_json, find, keep_lines
from tutelage.runs.job_inputs import write_tasks
from tutelage.runs.kinds import (
    FINISHED,
    Phase,
    RunHeader,
    RunKind,
    register,
    stored_settings,
)
from tutelage.runs.lifecycle import Run
from tutelage.runs.metrics import rollout_metrics
from tutelage.runs.progress import Progress
from tutelage.runs.resume_hint import resume_command
from tutelage.runs.stored_evaluation import evaluation_keys
from tutelage.runs.trust import code_of
from tutelage.statistics.outcome import Evaluation, Success, summarise
from tutelage.store import open_store
from tutelage.tasks.dataset import Dataset
from tutelage.tools.registry import close_tools
from tutelage.tracing.export import endpoint
from tutelage.types import JSON, Rollout


@register
@dataclass
class PolicyEvaluation(RunKind):
    """An agent plays tasks: a run's, a user's, or a built-in one on any model."""

    name: ClassVar[str] = "evaluation"
    model: ClassVar[type[RunSettings]] = EvaluationConfig
    awaits: ClassVar[bool] = True

    target: str
    asked: EvaluationConfig
    trust: bool = False
    """Whether code that a run of another user names may be run."""
    otlp: str | None = None
    """A collector that gets the traces as well."""
    given: PreparedEvaluation | None = None
    """What a Python caller has made ready; no file has it."""
    ready: PreparedEvaluation = field(init=False)
    """What it works with, once it is prepared."""
    _result: JSON = field(default_factory=dict[str, Any])
    _began: float = field(default_factory=time.monotonic)

    @classmethod
    def read(cls, folder: RunFolder, progress: Progress) -> Self:
        """What was asked for, as the folder has it."""
        asked, fields = stored_settings(folder, EvaluationConfig), read_object(folder.config)
        if fields["python"]:
            raise RunError(
                f"the run in {str(folder.path)!r} evaluates the Python agent {fields['target']!r}, "
                "which only its program has; resume it there with Trainer(...).evaluate(agent, "
                f"output_dir={str(folder.path)!r})"
            )
        return cls(str(fields["target"]), asked)

    def again(self, folder: RunFolder, progress: Progress) -> Self:
        """This evaluation as it was asked for."""
        return self

    @classmethod
    def figures(cls, files: RunFiles) -> Figures:
        """Its model and grader; nothing was trained, so there are scores of one side only."""
        settings = {key: value for key, value in files.settings.items() if key != "recipe"}
        measure = _measure(EvaluationConfig.model_validate(settings))
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
            dollars=0.0 if known else None,
        )

    def config(self) -> JSON:
        """What was asked for, and the resolved settings."""
        ready = self.ready
        return {
            **super().config(),
            "target": self.target,
            "python": self.given is not None,
            "base": ready.evaluated_agent.model(),
            "model": ready.evaluated_agent.model_mark(),
            "agent": ready.agent,
            "agent_mark": ready.agent_mark(),
            "reward": ready.reward,
            "success": ready.success,
            "code": [] if ready.run is None else code_of(ready.run[0]),
        }

    def difference(self, folder: RunFolder) -> str | None:
        """How the run in a folder differs from this one; None where they are the same."""
        was = read_object(folder.config)["target"]
        if was != self.target:
            return f"was started with another target ({was!r}, now {self.target!r})"
        return super().difference(folder)

    def sources(self, folder: RunFolder) -> dict[str, str]:
        """Marks of what the settings name, and of the target."""
        if self.given is not None:
            evaluated_agent, tasks = self.given.evaluated_agent, self.given.tasks
            own = agent_sources(
                evaluated_agent.agent, self.given.grader, evaluated_agent.resources, {"test": tasks}
            )
            return super().sources(folder) | own
        named = {"target": self.target}
        if target_kind(self.target) == "run":
            run = find(self.target)
            named = {f"target {self.target}": [str(run.policy), *code_of(run)]}
        return super().sources(folder) | settings_sources(named, folder)

    def prepare(self, folder: RunFolder, progress: Progress) -> None:
        """The tasks, the agent and the grader."""
        told = read_object(folder.config)
        # Whoever goes on with a folder is asked about the code that it names, so it is trusted.
        code = told.get("code", ())
        self.ready = self.given or prepare_evaluation(
            self.target, self.asked, trust=self.trust, trusted=code
        )
        if told:
            keep_lines(folder.metrics, 0)
            costs = folder.read_costs()
            keep_lines(folder.costs, len(costs))
            self.ready.costs.update({line.pop("rollout"): Cost(**line) for line in costs})

    @property
    def head(self) -> RunHeader:
        """What store, loggers and collector know of the run."""
        return RunHeader(LABEL, self.name, self.asked, collector=endpoint(self.otlp))

    def open(self, run: Run) -> None:
        """Write the tasks down, or see that they are the same, and say what begins."""
        write_tasks(run.folder.tasks("test"), self.ready.tasks)
        facts = self.ready.facts(self.target)
        run.progress.start("evaluation", {**facts, "run": str(run.folder.path)})

    def phases(self) -> Sequence[Phase]:
        """The playing of all tasks."""
        return [(LABEL, self._play)]

    async def _play(self, run: Run) -> None:
        """What was lost is played again, and all where the grader could judge none."""
        rollouts = {rollout.id: rollout for rollout in run.store.rollouts(run.id)}
        none = bool(summarise([*rollouts.values()]).ungraded)
        for rollout in [r for r in rollouts.values() if none or r.reward is None]:
            run.store.discard_rollout(run.id, rollout.id)
            del rollouts[rollout.id]

        def keep(rollout: Rollout, cost: Cost) -> None:
            if self.ready.evaluated_agent.servers:
                append_json(run.folder.costs, {"rollout": rollout.id, **asdict(cost)})
            run.writer.submit([rollout])

        played = await self.ready.play(
            run.progress, run.id, rollouts, keep, run.writer.submit_spans
        )
        evaluation = self.ready.add_up(played, run.progress)
        if evaluation.ungraded:
            raise FailureBudgetError(
                f"no rollout could be graded: {evaluation.ungraded}. Fix it, then continue with: "
                f"{resume_command(run.folder.path)} --allow-changes"
            )
        run.log({"phase": LABEL, "step": 0, **rollout_metrics(played)})
        self._result = {
            "status": FINISHED,
            "seed": self.asked.seed,
            "graded": evaluation.kind.graded,
            **evaluation_keys(
                f"after_{_measure(self.asked)}", evaluation.record(), evaluation.kind
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

    def result(self, status: str) -> JSON | None:
        """The rates and means; a run that was stopped has its rollouts instead."""
        return self._result if status == FINISHED else None

    def close(self) -> None:
        """End the programs behind tools."""
        close_tools(self.ready.evaluated_agent.tools)


def recorded(folder: RunFolder) -> Evaluation:
    """What the rollouts of a finished run add up to, in the order of its tasks."""
    fields, result = read_object(folder.config), folder.read_result() or {}
    overlap, cost = result["overlap"], Cost(**result["cost"])
    place = {task.id: i for i, task in enumerate(Dataset[Any].recorded(folder.tasks("test")))}
    with open_store(folder.store, create=False) as store:
        (run,) = store.runs()
        played = sorted(store.rollouts(run.id), key=lambda r: (place[r.task.id], r.index))
    evaluation = summarise(played, Success.of(fields["success"]))
    seen, repeated = overlap["test_in_train"], overlap["test_repeated"]
    return replace(evaluation, in_training=seen, repeated=repeated, cost=cost)


def _measure(asked: EvaluationConfig) -> Measure:
    return "greedy" if asked.sampled_at == 0 else "sampled"
