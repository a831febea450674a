"""Preparation of an evaluation: tasks, agent and grader are read and checked.

Invalid targets, files and options are found here, before a model loads. `targets.py` finds the
agent; `kind.py` plays.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tutelage.engine.endpoint import read_environment as settings
from tutelage.engine.prices import load_prices
from tutelage.environments.loading import load_environment
from tutelage.environments.protocol import EnvironmentFactory
from tutelage.environments.start import TEST_TASKS, check_determinism, environment_tasks
from tutelage.errors import ConfigError
from tutelage.evaluate.config import EvaluationConfig
from tutelage.evaluate.evaluated_agent import EvaluatedAgent
from tutelage.evaluate.targets import (
    FoundRun,
    check_options,
    find_run,
    resolve_agent,
)
from tutelage.rewards import RewardFunction, check, resolve_reward
from tutelage.runs.figures import Figures
from tutelage.runs.inputs import environment_of
from tutelage.runs.job_inputs import AGENT_REWARD, ENVIRONMENT_REWARD
from tutelage.runs.trust import check_trusted, find_code
from tutelage.tasks.arithmetic import EMBEDDED_REWARD
from tutelage.tasks.dataset import Dataset
from tutelage.types import Rollout, Task


@dataclass(frozen=True, slots=True)
class PreparedEvaluation:
    """Agent, tasks and grader of an evaluation, loaded and checked."""

    asked: EvaluationConfig
    evaluated_agent: EvaluatedAgent
    tasks: Dataset[Any]
    grader: RewardFunction | None
    """None if the agent or the environment gives the reward."""
    reward: str
    """Name of the grader."""
    success: str | None
    """Definition of success; None uses the grader's own."""
    run: FoundRun | None = None
    """Run whose policy is evaluated; None for other targets."""
    agent: str = Figures.BUILT_IN
    """File or name of a custom agent."""
    on_rollout: Callable[[Rollout], None] | None = None


def prepare_evaluation(
    target: str, options: EvaluationConfig, *, trust: bool = False, trusted: Collection[str] = ()
) -> PreparedEvaluation:
    """Load and check all inputs of an evaluation; the model is loaded last.

    Without `asked.success`, the run's definition of success applies to the run's own reward. Raises
    `ConfigError` if code that another user's run names would be run, unless `trust` is True or
    `trusted` contains all of it.
    """
    kind = check_options(target, options)
    run = find_run(target)
    trust = trust or (run is not None and {*find_code(run[0])} <= {*trusted})
    own = target if kind == "agent" else None
    if run is not None and run[0].agent.is_file():
        file, _ = run[0].own_agent()
        if file is None:
            raise ConfigError(
                f"the run in {str(run[0].path)!r} trained a Python agent, which exists only in its "
                "program; call Trainer(...).evaluate(agent) there, or evaluate the policy with the "
                f"built-in agent: tutelage eval {run[0].policy} --test FILE --reward NAME"
            )
        own = str(file)
    environment: EnvironmentFactory | None = None
    if options.environment is not None:
        environment = load_environment(options.environment, json.loads(options.environment_kwargs))
    elif run is not None and run[1].environment.name is not None:
        check_trusted(run[0], [run[1].environment.name], trust=trust)
        environment = environment_of(run[1])
    # The tasks of a user's agent and of an environment need no question.
    asks = own is None and environment is None
    read = Dataset[Any].load if asks else Dataset[Any].recorded
    rows: Sequence[Task] = [task for path in options.test for task in read(path)]
    if not options.test:
        if environment is None:
            raise ConfigError("Missing option '--test': pass a file of tasks, or --environment")
        sizes = {"test": options.limit or TEST_TASKS}
        rows = environment_tasks(environment, sizes, options.seed)["test"]
    name = ", ".join(options.test) or str(options.environment)
    tasks = Dataset[Any](rows[: options.limit], name=name, input_required=asks)
    if environment is not None:
        check_determinism(environment, tasks[0], options.seed)
    name = options.reward or (None if run is None else run[1].agent.reward_name)
    if not name:
        usual = {ENVIRONMENT_REWARD: environment, EMBEDDED_REWARD: run, AGENT_REWARD: own}
        name = next((reward for reward, by in usual.items() if by is not None), None)
    if not name:
        raise ConfigError(
            f"{target!r} is not a run and has no reward; pass one with --reward NAME or --reward "
            "FILE.py:function"
        )
    if run is not None and options.reward is None:
        check_trusted(run[0], [name], trust=trust)
    none = name in (AGENT_REWARD, ENVIRONMENT_REWARD)
    grader, success = None if none else resolve_reward(name), options.success
    if success is None and run is not None and options.reward in (None, run[1].agent.reward_name):
        success = run[1].reward.success
    if grader is not None:
        check(grader, tasks)
    evaluated_agent = resolve_agent(target, run, own, options, trust=trust)
    evaluated_agent = replace(
        evaluated_agent,
        environment=environment,
        prices=load_prices(options.prices, settings()),
        runners=options.runners or (8 if evaluated_agent.servers else 64),
    )
    agent = own or Figures.BUILT_IN
    return PreparedEvaluation(options, evaluated_agent, tasks, grader, name, success, run, agent)
