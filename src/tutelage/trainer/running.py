"""Execution of a `Trainer`'s jobs: event loops, interruptions, display, and evaluation."""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import threading
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tutelage.config import Resolved
from tutelage.engine.endpoint import read_endpoints, read_environment
from tutelage.engine.prices import load_prices
from tutelage.environments.protocol import EnvironmentFactory
from tutelage.environments.start import TEST_TASKS, environment_tasks
from tutelage.errors import ConfigError
from tutelage.evaluate.config import EvaluationConfig
from tutelage.evaluate.evaluated_agent import build_agent
from tutelage.evaluate.kind import PolicyEvaluation, evaluation_folder, load_evaluation
from tutelage.evaluate.preparation import PreparedEvaluation
from tutelage.policy.sources import model_folder
from tutelage.rewards import RewardFunction, check
from tutelage.runs import lifecycle
from tutelage.runs.folder import RunFolder, new_run_path, open_folder
from tutelage.runs.job_inputs import AGENT_REWARD, ENVIRONMENT_REWARD, JobInputs
from tutelage.runs.launched import is_nonzero_rank
from tutelage.runs.progress import Progress
from tutelage.runs.result import TrainingResult, read_result
from tutelage.runs.signals import StopSignal, graceful_exit
from tutelage.statistics.outcome import Evaluation
from tutelage.tasks.dataset import Dataset
from tutelage.trainer.algorithm import training_packages
from tutelage.trainer.arguments import Tasks, resolve_agent, task_files, to_dataset

if TYPE_CHECKING:
    from tutelage.policy.model import Policy

T = TypeVar("T")
Plan = tuple[Resolved, Path, JobInputs]
"""Checked training, ready to run: its configuration, its folder, and its objects."""


def default_progress() -> Progress:
    """Return a progress display: live on a terminal, plain lines in a notebook, file or log."""
    # The module stands below the trainer: it is found when it is shown.
    return importlib.import_module("tutelage.cli.display").LiveDisplay().open()


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to completion, in a thread if an event loop is running, as in a notebook.

    Ctrl-C, SIGTERM and SIGHUP cancel the coroutine and are raised after its end.
    """
    logging.getLogger("asyncio").addFilter(_is_relevant)
    with graceful_exit():
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(_close_clients(coroutine))
        return _run_in_thread(coroutine)


async def _close_clients(coroutine: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine, then close clients that agents left open. Closing a client after its event
    loop was closed would print a traceback."""
    try:
        return await coroutine
    finally:
        gc.collect()
        if tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(tasks, timeout=1)


def _is_relevant(record: logging.LogRecord) -> bool:
    """Return False for asyncio log records about clients left open in a closed event loop."""
    return not record.exc_info or str(record.exc_info[1]) != "Event loop is closed"


def _run_in_thread(coroutine: Coroutine[Any, Any, T]) -> T:
    future, cancels = Future[T](), list[Callable[[], object]]()

    async def run_coroutine() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.ensure_future(_close_clients(coroutine))
        cancels.append(lambda: loop.call_soon_threadsafe(task.cancel))
        return await task

    def run() -> None:
        try:
            future.set_result(asyncio.run(run_coroutine()))
        except BaseException as error:
            future.set_exception(error)

    def interrupt() -> None:
        for cancel in cancels:
            cancel()

    with StopSignal(interrupt) as stop:
        threading.Thread(target=run, name="tutelage-fit").start()
        try:
            return future.result()
        except asyncio.CancelledError:
            raise (stop.to_exception() if stop.asked else KeyboardInterrupt) from None


@contextmanager
def report_stop(path: str | Path, progress: Progress, *, notify: bool = True) -> Generator[None]:
    """Report an interruption and how to resume the run, if `notify` is True. False is for callers
    with their own display."""
    try:
        yield
    except (KeyboardInterrupt, asyncio.CancelledError):
        saved = open_folder(Path(path)).config.is_file()
        hint = f"; progress is saved: the same call with output_dir={str(path)!r} resumes it"
        if notify:
            progress.note("stopped" + (hint if saved else " before there was anything to save"))
        raise


def agree_on_plan(output_dir: Path | None, make_plan: Callable[[Path], Plan]) -> Plan:
    """Return the plan for a run folder, a new one if `output_dir` is None. All ranks use the folder
    of the first rank, and only the first rank raises errors."""
    with training_packages():
        from tutelage.weights.process_group import get_group, run_on_all

    group = get_group()
    path = output_dir or group.broadcast(lambda: new_run_path("agent", claim=True))

    try:
        return run_on_all(group, lambda: make_plan(path))
    except Exception:
        if output_dir is None:
            with suppress(OSError):
                path.rmdir()
        raise


async def train_weights(
    resolved: Resolved, path: Path, job_inputs: JobInputs, progress: Progress
) -> TrainingResult:
    """Train weights: agents run in this event loop, training runs in a thread. Only the first rank
    runs agents."""
    from tutelage.weights import jobs

    def job() -> TrainingResult | KeyboardInterrupt | SystemExit:
        """Run the training. Interruptions and the exit of another rank are returned, not raised,
        because an exception in a thread would stop the event loop instead of this task."""
        folder = RunFolder(path) if is_nonzero_rank() else open_folder(path)
        try:
            details = jobs.train(resolved, folder, progress, job_inputs)
        except (KeyboardInterrupt, SystemExit) as stopped:
            return stopped
        return read_result(folder, details, TrainingResult)

    async with nullcontext() if is_nonzero_rank() else job_inputs.manager:
        work = asyncio.ensure_future(asyncio.to_thread(job))
        try:
            result = await asyncio.shield(work)
        except asyncio.CancelledError:
            job_inputs.manager.stop()
            await asyncio.wait({work})
            work.exception()
            raise
    if isinstance(result, KeyboardInterrupt | SystemExit):
        raise result
    return result


def prepare_agent(
    agent: Any,
    keys: Mapping[str, Any],
    test_dataset: Tasks | None,
    resources: Mapping[str, Any],
    endpoints: Mapping[str, str],
    reward: RewardFunction | None,
    policies: Mapping[str, Policy],
    model: str | Path | None,
    factory: EnvironmentFactory | None,
) -> PreparedEvaluation:
    """Prepare the evaluation of an agent with its tasks and models; `keys` are the fields of an
    `EvaluationConfig`. Raises `ConfigError` for an LLM without a model."""
    tasks = to_dataset(test_dataset, "test")
    if tasks is None and factory is not None:
        tasks = environment_tasks(factory, {"test": TEST_TASKS}, keys.get("seed", 0))["test"]
    if tasks is None:
        raise ConfigError("no tasks to evaluate on; pass test_dataset")
    config = EvaluationConfig(test=tuple(task_files(test_dataset)) or ("test_dataset",), **keys)
    player, merged, file = resolve_agent(agent, resources)
    local, folders = bool(policies) or model is not None, set[str]()

    def load(resolved: Mapping[str, Any], names: Sequence[str]) -> Mapping[str, Policy]:
        if policies:
            main = next(iter(policies.values()))
            return {name: policies.get(resolved[name].policy) or main for name in names}
        paths = {name: str(model or model_folder(resolved[name]) or "") for name in names}
        if unanswered := [name for name in names if not paths[name]]:
            raise ConfigError(
                f"no LLM is configured for {unanswered[0]!r} of the agent {player.name!r}; pass "
                f"policy=, model=, or endpoints={{{unanswered[0]!r}: 'http://...'}}"
            )
        from tutelage.policy.machine import sampling_device
        from tutelage.policy.model import load_policy

        folders.update(paths.values())
        loaded = {folder: load_policy(folder, device=sampling_device()) for folder in folders}
        return {name: loaded[paths[name]] for name in names}

    dataset = Dataset(tasks, name="test_dataset", input_required=False)
    if reward is not None:
        check(reward, dataset)
    server = None if local else read_endpoints(read_environment()).get("task")
    resolved_agent = build_agent(player, merged, config, load, urls=endpoints, server=server)
    evaluated_agent = replace(
        resolved_agent,
        weights=", ".join(sorted(folders)),
        prices=load_prices(config.prices, read_environment()),
        environment=factory,
        runners=config.runners or (8 if resolved_agent.servers else 64),
    )
    usual = AGENT_REWARD if factory is None else ENVIRONMENT_REWARD
    name = usual if reward is None else reward.name
    return PreparedEvaluation(
        config, evaluated_agent, dataset, reward, name, config.success, agent=file or player.name
    )


async def play_evaluation(prepared: PreparedEvaluation, progress: Progress) -> Evaluation:
    """Run an evaluation, in a run folder if it has an output folder."""
    output, name = prepared.asked.output, prepared.evaluated_agent.agent.name
    with evaluation_folder(output) as folder:
        with nullcontext() if output is None else report_stop(output, progress):
            run = PolicyEvaluation(name, prepared.asked, kept=output is not None, given=prepared)
            await lifecycle.begin(run, folder, progress)
        return load_evaluation(folder)
