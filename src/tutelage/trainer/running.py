"""How a `Trainer` runs what it is asked for: to its end, with the display of every job, and without
training in an evaluation."""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tutelage.engine.endpoint import environment, read_endpoints
from tutelage.engine.prices import load_prices
from tutelage.errors import ConfigError
from tutelage.evaluate.config import EvaluationConfig
from tutelage.evaluate.kind import PolicyEvaluation, recorded
from tutelage.evaluate.preparation import PreparedEvaluation
from tutelage.evaluate.subject import Subject, answered, equipped
from tutelage.resources import NamedResources, model_folder
from tutelage.rewards import RewardFunction, check
from tutelage.rollouts.runner import RunnerSettings
from tutelage.runs import lifecycle
from tutelage.runs.folder import folder_at
from tutelage.runs.job_inputs import AGENT_REWARD
from tutelage.runs.progress import Progress
from tutelage.runs.signals import graceful_exit
from tutelage.statistics.outcome import Evaluation
from tutelage.tasks.dataset import Dataset
from tutelage.trainer.arguments import Tasks, agent_of, files_of, tasks_of
from tutelage.types import Sampling

if TYPE_CHECKING:
    from tutelage.policy.model import Policy

T = TypeVar("T")
_DISPLAY = "tutelage.cli.display"
"""The module of the display, which stands below the trainer: it is found when it is shown."""


def default_progress() -> Progress:
    """The display of a job: a live picture on a terminal, lines in a notebook, a file or a log."""
    made: Progress = importlib.import_module(_DISPLAY).default_display()
    return made


def blocking(work: Callable[[], T]) -> T:
    """Run work that has an event loop of its own, also where one runs already, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        with graceful_exit():
            return work()
    box: list[T | BaseException] = []

    def run() -> None:
        try:
            box.append(work())
        except BaseException as error:
            box.append(error)

    thread = threading.Thread(target=run, name="tutelage-fit")
    thread.start()
    thread.join()
    if isinstance(box[0], BaseException):
        raise box[0]
    return box[0]


def evaluation_of(
    agent: Any,
    keys: Mapping[str, Any],
    given: Tasks | None,
    resources: Mapping[str, Any],
    endpoints: Mapping[str, str],
    reward: RewardFunction | None,
    policies: Mapping[str, Policy],
    model: str | Path | None,
) -> PreparedEvaluation:
    """An agent with its tasks and what answers its LLMs, ready to be evaluated; `keys` are those of
    an evaluation. Raises `ConfigError` where nothing answers an LLM."""
    tasks = tasks_of(given, "test")
    if tasks is None:
        raise ConfigError("there are no tasks to evaluate on: give test_dataset")
    asked = EvaluationConfig(test=tuple(files_of(given)) or ("test_dataset",), **keys)
    player, own, file = agent_of(agent)
    resolved = equipped(player, NamedResources({**own, **resources}), asked.sampled_at, None)
    local = bool(policies) or model is not None
    server = None if local else read_endpoints(environment()).get("task")
    servers, here = answered(resolved, endpoints, server, None)
    named = {name: str(model or model_folder(resolved[name]) or "") for name in here}
    unanswered = [name for name in here if not policies and not named[name]]
    if unanswered:
        raise ConfigError(
            f"nothing answers the LLM {unanswered[0]!r} of the agent {player.name!r}: give "
            f"policy=, model=, or endpoints={{{unanswered[0]!r}: 'http://...'}}"
        )
    dataset = Dataset(tasks, name="test_dataset", input_required=False)
    if reward is not None:
        check(reward, dataset)
    main = next(iter(policies.values()), None)
    loaded: dict[str, Policy] = {}
    if here and main is None:
        from tutelage.policy.model import load_policy

        loaded = {folder: load_policy(folder) for folder in {*named.values()}}
    found = {n: policies.get(resolved[n].policy) or main or loaded[named[n]] for n in here}
    subject = Subject(
        agent=player,
        sampling=Sampling(temperature=asked.sampled_at, max_tokens=2000),
        resources=resolved,
        policies=found,
        weights=", ".join(sorted({*named.values()})) if not policies else "",
        servers=servers,
        prices=load_prices(asked.prices, environment()),
        max_length=None,
        runners=asked.runners,
        limits=RunnerSettings("", timeout=asked.timeout),
    )
    name = AGENT_REWARD if reward is None else reward.name
    return PreparedEvaluation(
        asked, subject, dataset, reward, name, asked.success, agent=file or player.name
    )


def evaluated(
    ready: PreparedEvaluation, output: str | Path | None, progress: Progress
) -> Evaluation:
    """Play an evaluation, in a run folder where `output` names one."""
    if output is None:
        return ready.add_up(ready.play(progress), progress)
    folder, name = folder_at(Path(output)), ready.subject.agent.name
    lifecycle.start(PolicyEvaluation(name, ready.asked, given=ready), folder, progress)
    return recorded(folder)
