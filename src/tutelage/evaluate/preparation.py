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
from tutelage.config import RunConfig
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
    TargetKind,
    builtin_agent,
    own_agent,
    run_of,
    server_of,
    target_kind,
)
from tutelage.rewards import RewardFunction, check, resolve_reward
from tutelage.rollouts.grading import stop_if_text
from tutelage.rollouts.runner import RolloutSpec
from tutelage.runs.figures import Figures
from tutelage.runs.folder import RunFolder
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
            seen = _trained_on(*self.run, self.tasks, self.grader)
            if seen is None:
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
    kind = target_kind(target)
    _check_options(kind, target, asked)
    run = run_of(target, others=True)
    trust = trust or (run is not None and {*code_of(run[0])} <= {*trusted})
    own = target if kind == "agent" else _own_agent_of(run)
    environment = _environment(asked, run, trust)
    # The tasks of a user's agent and of an environment need no question.
    asks = own is None and environment is None
    tasks = _tasks(asked, environment, input_required=asks)
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
    try:
        Success.of(success)
    except ValueError as error:
        raise ConfigError(
            f"invalid --success {success!r}: {error}; use a part of the reward (right), a bound "
            "('>=0.5') or both ('right>=0.5')"
        ) from error
    if success is None and run is not None and asked.reward in (None, run[1].agent.reward_name):
        success = run[1].reward.success
    if run is not None:
        check_trusted(run[0], [run[1].agent.agent_type], trust=trust)
    if grader is not None:
        check(grader, tasks)
    if own is None:
        server = server_of(target if kind == "server" else None, asked)
        evaluated_agent = builtin_agent(target, run, asked.tools, asked, server, trust=trust)
    else:
        if run is not None:
            check_trusted(run[0], [own], trust=trust)
        evaluated_agent = own_agent(own, run, asked)
    evaluated_agent = replace(
        evaluated_agent,
        environment=environment,
        prices=load_prices(asked.prices, settings()),
        runners=asked.runners or (8 if evaluated_agent.servers else 64),
    )
    agent = own or Figures.BUILT_IN
    return PreparedEvaluation(asked, evaluated_agent, tasks, grader, name, success, run, agent)


def _environment(
    asked: EvaluationConfig, run: FoundRun | None, trust: bool
) -> EnvironmentFactory | None:
    """The environment that is named, else the run's. Raises `ConfigError` where the code of a run
    of another user would be run."""
    if asked.environment is not None:
        return load_environment(asked.environment, json.loads(asked.environment_kwargs))
    if run is None or run[1].environment.name is None:
        return None
    check_trusted(run[0], [run[1].environment.name], trust=trust)
    return environment_of(run[1])


def _tasks(
    asked: EvaluationConfig, environment: EnvironmentFactory | None, *, input_required: bool
) -> Dataset[Any]:
    """The tasks of the files, else those of the environment; one of these is played twice."""
    read = Dataset[Any].load if input_required else Dataset[Any].recorded
    rows: Sequence[Task] = [task for path in asked.test for task in read(path)]
    if not asked.test:
        if environment is None:
            raise ConfigError("Missing option '--test': pass a file of tasks, or --environment")
        sizes = {"test": asked.limit or TEST_TASKS}
        rows = environment_tasks(environment, sizes, asked.seed)["test"]
    name = ", ".join(asked.test) or str(asked.environment)
    tasks = Dataset[Any](rows[: asked.limit], name=name, input_required=input_required)
    if environment is not None:
        check_repeats(environment, tasks[0], asked.seed)
    return tasks


# ---------------------------------------------------------------- what is asked for


def _check_options(kind: TargetKind, target: str, asked: EvaluationConfig) -> None:
    """Raise `ConfigError` for options that a target has no use for."""
    wrong: list[tuple[str, str]] = []
    if kind == "agent" and asked.tools is not None:
        wrong.append(("--tools", "a custom agent uses the tools of its file"))
    if kind == "server" and asked.endpoint:
        wrong.append(("--endpoint", "the target is already a server"))
    if kind == "model" and (asked.endpoint or asked.model):
        wrong.append(("--endpoint" if asked.endpoint else "--model", "the target is the model"))
    if kind == "run" and asked.model and not asked.endpoint:
        wrong.append(("--model", "a run has its own policy; use --endpoint URL for another model"))
    for option, reason in wrong:
        raise ConfigError(f"{option} cannot be used with {target!r}: {reason}; remove it")


def _trained_on(
    folder: RunFolder, config: RunConfig, tasks: Sequence[Task], grader: RewardFunction | None
) -> int | None:
    """How many of the tasks stand in what a run was trained on; None where its files are gone."""
    try:
        if config.recipe == "sft":
            return overlap_of(load_demonstrations(config.data.train_files), (), tasks).test_in_train
        recorded = folder.tasks("train")
        own = recorded.is_file()
        known = Dataset[Any].recorded(recorded) if own else training_tasks(config)
    except (DataError, MissingExtraError):
        return None
    fields = None if own or grader is None else grader.fields_read
    return count_overlap(known, (), tasks, lambda task: content(task, fields)).test_in_train


def _named_tools(tasks: Sequence[Task]) -> list[str]:
    """The tools of the calls that tasks say are right."""
    found: list[Any] = [task.fields.get("calls") for task in tasks]
    calls: list[Any] = [call for calls in found if isinstance(calls, list) for call in calls]
    return sorted({str(c["name"]) for c in calls if isinstance(c, Mapping) and "name" in c})


def _own_agent_of(run: FoundRun | None) -> str | None:
    """The file of the agent that a run trained; None for a built-in agent.

    Raises `ConfigError` for an agent that only a program has.
    """
    if run is None or not run[0].agent.is_file():
        return None
    told = json.loads(run[0].agent.read_text(encoding="utf-8"))
    if told.get("file"):
        return str(told["file"])
    raise ConfigError(
        f"the run in {str(run[0].path)!r} trained the Python agent {told.get('agent')!r}, which "
        "only its program has; call Trainer(...).evaluate(agent) there, or evaluate its policy "
        f"with the built-in agent: tutelage eval {run[0].policy} --test FILE --reward NAME"
    )
