"""An evaluation made ready: tasks, agent and grader read and checked, played, and added up.

What is wrong with a target, a file or an option is found here, before a model loads. Who plays is
`targets.py`; `kind.py` keeps an evaluation as a run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tutelage.agents.loading import source_hash
from tutelage.engine.endpoint import environment as settings
from tutelage.engine.prices import load_prices
from tutelage.engine.usage import Cost
from tutelage.environments.loading import load_environment
from tutelage.environments.protocol import EnvironmentFactory
from tutelage.environments.start import TEST_TASKS, check_repeats, environment_tasks
from tutelage.errors import ConfigError, DataError, MissingExtraError
from tutelage.evaluate.config import LABEL, EvaluationConfig
from tutelage.evaluate.evaluated_agent import EvaluatedAgent
from tutelage.evaluate.targets import (
    UNKEPT,
    FoundRun,
    agent_to_evaluate,
    check_options,
    run_of,
)
from tutelage.rewards import RewardFunction, check, resolve_reward
from tutelage.rollouts.grading import stop_if_text
from tutelage.rollouts.runner import RolloutSpec
from tutelage.runs.figures import Figures
from tutelage.runs.inputs import environment_of, training_tasks
from tutelage.runs.job_inputs import AGENT_REWARD, ENVIRONMENT_REWARD
from tutelage.runs.progress import Progress
from tutelage.runs.trust import check_trusted, code_of
from tutelage.seeds import SeedTree
from tutelage.statistics.outcome import Evaluation, Success, summarise
from tutelage.tasks.arithmetic import EMBEDDED_REWARD
from tutelage.tasks.dataset import Dataset
from tutelage.tasks.demonstrations import load_demonstrations, overlap_of
from tutelage.tasks.overlap import content, count_overlap, distinct
from tutelage.tracing.ingest import Sink
from tutelage.types import Mode, Rollout, Task


@dataclass(frozen=True, slots=True)
class PreparedEvaluation:
    """Who plays which tasks, and how they are graded: all of it read and checked."""

    asked: EvaluationConfig
    evaluated_agent: EvaluatedAgent
    tasks: Dataset[Any]
    grader: RewardFunction | None
    """None where the agent gives its own reward."""
    reward: str
    """The grader as it was named."""
    success: str | None
    """What succeeds, as it was said; None is the grader's own word."""
    run: FoundRun | None = None
    """The run whose policy it is; None for everything else."""
    agent: str = Figures.BUILT_IN
    """The own agent, by its file or its name."""
    costs: dict[str, Cost] = field(default_factory=dict[str, Cost])
    """Of rollouts whose calls servers answered, by id."""
    on_rollout: Callable[[Rollout], None] | None = None
    played: dict[str, Rollout] = field(default_factory=dict[str, Rollout])
    """The rollouts until now, by id: what a stop leaves."""

    def agent_mark(self) -> str | None:
        """Equal for equal code of an own agent."""
        return None if self.agent == Figures.BUILT_IN else source_hash(self.evaluated_agent.agent)

    def facts(self, target: str) -> dict[str, str]:
        """What is played, in words, and how many calls servers may answer."""
        rollouts, most = len(self.tasks) * self.asked.samples, self.evaluated_agent.max_calls
        calls = f"{rollouts:,} rollouts of at most {most} calls: at most {rollouts * most:,}"
        return {
            "target": target,
            "agent": self.agent,
            "model": self.evaluated_agent.model(),
            "tokens": self.evaluated_agent.tokens(),
            **({"calls": calls} if self.evaluated_agent.servers else {}),
        }

    async def play(
        self,
        progress: Progress,
        run_id: str = UNKEPT,
        known: Mapping[str, Rollout] | None = None,
        keep: Callable[[Rollout, Cost], None] | None = None,
        on_spans: Sink = lambda run_id, spans: None,
    ) -> list[Rollout]:
        """Play all tasks, each sample with seeds of its own. What is `known` by its id is not
        played again; `keep` receives each rollout as it ends, and `on_spans` the spans of the
        agent's own code, with the run's id."""
        named = _named_tools(self.tasks) if self.run is None else []
        if named and self.agent == Figures.BUILT_IN and not self.evaluated_agent.tools:
            progress.note(
                f"the tasks are for an agent with tools ({', '.join(named)}), but this target has "
                f"none; pass yours with --tools {','.join(named)}"
            )
        seeds = SeedTree(self.asked.seed).child("eval")
        specs = [
            RolloutSpec(task, Mode.TEST, task.id, i, seeds.child(task.id, i), label=LABEL)
            for task in self.tasks
            for i in range(self.asked.samples)
        ]
        rollouts = self.played
        rollouts |= known or {}
        left = [spec for spec in specs if spec.seeds.id("roll", run_id) not in rollouts]

        def count(rollout: Rollout, cost: Cost) -> None:
            rollouts[rollout.id], self.costs[rollout.id] = rollout, cost
            progress.evaluation(LABEL, len(rollouts), len(specs))
            if keep is not None:
                keep(rollout, cost)
            if self.on_rollout is not None:
                self.on_rollout(rollout)
            if len(rollouts) == 1:
                stop_if_text(rollout, self.grader)

        progress.evaluation(LABEL, len(rollouts), len(specs))
        await self.evaluated_agent.play(
            left, self.grader, run_id, count, progress.sampled, on_spans
        )
        return [rollouts[spec.seeds.id("roll", run_id)] for spec in specs]

    def add_up(self, played: Sequence[Rollout], progress: Progress) -> Evaluation:
        """What rollouts of all tasks come to, and how many of the tasks were trained on."""
        evaluation = summarise(played, Success.of(self.success))
        seen = None
        acts = self.evaluated_agent.environment is not None
        if self.run is not None and (self.grader is not None or acts):
            folder, config = self.run
            recorded = folder.tasks("train")
            own = recorded.is_file()
            fields = None if own or self.grader is None else self.grader.fields_read
            try:
                if config.recipe == "sft":
                    shown = load_demonstrations(config.data.train_files)
                    overlap = overlap_of(shown, (), self.tasks)
                else:
                    known = Dataset[Any].recorded(recorded) if own else training_tasks(config)
                    overlap = count_overlap(known, (), self.tasks, lambda t: content(t, fields))
                seen = overlap.test_in_train
            except (DataError, MissingExtraError):
                progress.note(
                    "it is unknown whether it was trained on these tasks: its files are missing"
                )
        repeated = len(self.tasks) - len(distinct(self.tasks, content))
        spent = (
            self.costs.get(rollout.id) or EvaluatedAgent.recorded_cost(rollout)
            for rollout in played
        )
        return replace(evaluation, in_training=seen, repeated=repeated, cost=sum(spent, Cost()))


def prepare_evaluation(
    target: str, asked: EvaluationConfig, *, trust: bool = False, trusted: Collection[str] = ()
) -> PreparedEvaluation:
    """Read and check all that an evaluation needs, and load a model last.

    Without an `asked.success` the run's holds, with the run's own reward. Raises `ConfigError`
    where code that a run of another user names would be run, unless `trust`, or all of it is among
    what is `trusted`.
    """
    kind = check_options(target, asked)
    run = run_of(target, others=True)
    trust = trust or (run is not None and {*code_of(run[0])} <= {*trusted})
    own = target if kind == "agent" else None
    if run is not None and run[0].agent.is_file():
        file, _ = run[0].own_agent()
        if file is None:
            raise ConfigError(
                f"the run in {str(run[0].path)!r} trained a Python agent, which only its program "
                "has; call Trainer(...).evaluate(agent) there, or evaluate its policy with the "
                f"built-in agent: tutelage eval {run[0].policy} --test FILE --reward NAME"
            )
        own = str(file)
    environment: EnvironmentFactory | None = None
    if asked.environment is not None:
        environment = load_environment(asked.environment, json.loads(asked.environment_kwargs))
    elif run is not None and run[1].environment.name is not None:
        check_trusted(run[0], [run[1].environment.name], trust=trust)
        environment = environment_of(run[1])
    # The tasks of a user's agent and of an environment need no question.
    asks = own is None and environment is None
    read = Dataset[Any].load if asks else Dataset[Any].recorded
    rows: Sequence[Task] = [task for path in asked.test for task in read(path)]
    if not asked.test:
        if environment is None:
            raise ConfigError("Missing option '--test': pass a file of tasks, or --environment")
        sizes = {"test": asked.limit or TEST_TASKS}
        rows = environment_tasks(environment, sizes, asked.seed)["test"]
    name = ", ".join(asked.test) or str(asked.environment)
    tasks = Dataset[Any](rows[: asked.limit], name=name, input_required=asks)
    if environment is not None:
        check_repeats(environment, tasks[0], asked.seed)
    name = asked.reward
    if not name and environment is not None:
        name = (None if run is None else run[1].agent.reward_name) or ENVIRONMENT_REWARD
    elif not name and run is not None:
        name = run[1].agent.reward_name or EMBEDDED_REWARD
    elif not name and own is not None:
        name = AGENT_REWARD
    elif not name:
        what = "a server" if kind == "server" else "a model"
        raise ConfigError(
            f"{target!r} is {what}, not a run, so it has no reward; pass one with --reward NAME or "
            "--reward FILE.py:function"
        )
    if run is not None and asked.reward is None:
        check_trusted(run[0], [name], trust=trust)
    none = name in (AGENT_REWARD, ENVIRONMENT_REWARD)
    grader, success = None if none else resolve_reward(name), asked.success
    if success is None and run is not None and asked.reward in (None, run[1].agent.reward_name):
        success = run[1].reward.success
    if grader is not None:
        check(grader, tasks)
    evaluated_agent = agent_to_evaluate(target, run, own, asked, trust=trust)
    evaluated_agent = replace(
        evaluated_agent,
        environment=environment,
        prices=load_prices(asked.prices, settings()),
        runners=asked.runners or (8 if evaluated_agent.servers else 64),
    )
    agent = own or Figures.BUILT_IN
    return PreparedEvaluation(asked, evaluated_agent, tasks, grader, name, success, run, agent)


def _named_tools(tasks: Sequence[Task]) -> list[str]:
    """The tools of the calls that tasks say are right."""
    found: list[Any] = [task.fields.get("calls") for task in tasks]
    calls: list[Any] = [call for calls in found if isinstance(calls, list) for call in calls]
    return sorted({str(c["name"]) for c in calls if isinstance(c, Mapping) and "name" in c})
