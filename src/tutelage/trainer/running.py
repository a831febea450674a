"""How a `Trainer` runs what it is asked for: to its end, with the display of every job, and without
training in an evaluation."""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import threading
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tutelage.config import Resolved
from tutelage.evaluate.kind import PolicyEvaluation, recorded
from tutelage.evaluate.preparation import PreparedEvaluation
from tutelage.runs import lifecycle
from tutelage.runs.folder import RunFolder, folder_at, fresh_name
from tutelage.runs.job_inputs import JobInputs
from tutelage.runs.launched import follows
from tutelage.runs.progress import Progress
from tutelage.runs.result import TrainingResult, read_result
from tutelage.runs.signals import StopSignal, graceful_exit
from tutelage.statistics.outcome import Evaluation
from tutelage.trainer.algorithm import packages_of_training

if TYPE_CHECKING:
    pass

T = TypeVar("T")
Plan = tuple[Resolved, Path, JobInputs]
"""A training, checked and ready to run: its configuration, its folder, and its objects."""


def default_progress() -> Progress:
    """The display of a job: a live picture on a terminal, lines in a notebook, a file or a log."""
    # The module stands below the trainer: it is found when it is shown.
    return importlib.import_module("tutelage.cli.display").LiveDisplay().open()


def blocking(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end: in a thread where an event loop runs already, as in a notebook.
    Ctrl-C, SIGTERM and SIGHUP cancel it, and are raised when it has ended."""
    logging.getLogger("asyncio").addFilter(_is_news)
    with graceful_exit():
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(_closing(work))
        return _in_thread(work)


async def _closing(work: Coroutine[Any, Any, T]) -> T:
    """The work, then an end to clients that agents left open: once their loop is closed, closing
    them fails, with a traceback in whatever runs by then."""
    try:
        return await work
    finally:
        gc.collect()
        if left := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(left, timeout=1)


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a record of asyncio is more than a client that an agent left open in a loop of its
    own: whichever loop runs when it is collected tries to close it, in vain."""
    return not record.exc_info or str(record.exc_info[1]) != "Event loop is closed"


def _in_thread(work: Coroutine[Any, Any, T]) -> T:
    ended, cancels = Future[T](), list[Callable[[], object]]()

    async def cancellable() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.ensure_future(_closing(work))
        cancels.append(lambda: loop.call_soon_threadsafe(task.cancel))
        return await task

    def run() -> None:
        try:
            ended.set_result(asyncio.run(cancellable()))
        except BaseException as error:
            ended.set_exception(error)

    def interrupt() -> None:
        for cancel in cancels:
            cancel()

    with StopSignal(interrupt) as stop:
        threading.Thread(target=run, name="tutelage-fit").start()
        try:
            return ended.result()
        except asyncio.CancelledError:
            raise (stop.stopped() if stop.asked else KeyboardInterrupt) from None


@contextmanager
def stop_told(place: str | Path, progress: Progress, *, own: bool = True) -> Generator[None]:
    """Say how to resume the run of a folder where it is interrupted. Who brings a display of his
    own, as the command line does, says it there."""
    try:
        yield
    except (KeyboardInterrupt, asyncio.CancelledError):
        saved = folder_at(Path(place)).config.is_file()
        again = f"; progress is saved: the same call with output_dir={str(place)!r} resumes it"
        if own:
            progress.note("stopped" + (again if saved else " before there was anything to save"))
        raise


def agreed(place: Path | None, plan: Callable[[Path], Plan]) -> Plan:
    """What `plan` makes of the folder of a run, a new one if there is none yet: of several
    ranks all have that of the first, which alone says what is wrong."""
    with packages_of_training():
        from tutelage.weights.process_group import in_step, launched

    group = launched()
    there = place or group.agree(lambda: fresh_name("agent", claim=True))

    try:
        return in_step(group, lambda: plan(there))
    except Exception:
        if place is None:
            with suppress(OSError):
                there.rmdir()
        raise


async def trained(
    resolved: Resolved, place: Path, given: JobInputs, progress: Progress
) -> TrainingResult:
    """Train weights: agents play in this event loop, the rest is done in a thread. A rank that
    follows plays none."""
    from tutelage.weights import jobs

    def job() -> TrainingResult | KeyboardInterrupt | SystemExit:
        """The training. An interruption, and the end of a rank that follows, come back as values:
        raised in a thread, they would stop the event loop instead of this task."""
        folder = RunFolder(place) if follows() else folder_at(place)
        try:
            details = jobs.train(resolved, folder, progress, given)
        except (KeyboardInterrupt, SystemExit) as stopped:
            return stopped
        return read_result(folder, details, TrainingResult)

    async with nullcontext() if follows() else given.manager:
        work = asyncio.ensure_future(asyncio.to_thread(job))
        try:
            result = await asyncio.shield(work)
        except asyncio.CancelledError:
            given.manager.stop()
            await asyncio.wait({work})
            work.exception()
            raise
    if isinstance(result, KeyboardInterrupt | SystemExit):
        raise result
    return result


async def evaluated(
    ready: PreparedEvaluation, output: str | Path | None, progress: Progress
) -> Evaluation:
    """Play an evaluation, in a run folder where `output` names one."""
    if output is None:
        return ready.add_up(await ready.play(progress), progress)
    folder, name = folder_at(Path(output)), ready.evaluated_agent.agent.name
    with stop_told(output, progress):
        asked = PolicyEvaluation(name, ready.asked, given=ready)
        await lifecycle.begin(asked, folder, progress)
    return recorded(folder)
