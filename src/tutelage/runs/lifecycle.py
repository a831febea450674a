"""Lifecycle of a run of any kind: start, stop, resume, end.

    start ─▶ lock ─▶ prepare ─▶ config.json ─▶ open store, loggers, collector ─▶ phases
                                                                                    │
    result.json, status, report ◀──────────── result("finished" | "stopped" | "failed")

`start` begins a run in an empty folder, or resumes the same run; `resume` resumes the run of a
folder. A finished run returns its result again. The kind (`kinds.py`) has the phases, which
receive a `Run`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from tutelage.errors import RunError, TutelageError
from tutelage.runs.figures import read_object
from tutelage.runs.fingerprint import config_edits, source_changes, write_fingerprint
from tutelage.runs.folder import (
    RunFolder,
    append_json,
    check_vacant,
    create,
    lock_run,
    write_json,
)
from tutelage.runs.kinds import (
    FAILED,
    FINISHED,
    STOPPED,
    RunHeader,
    RunKind,
    check_ranks,
    kind_name,
)
from tutelage.runs.loggers import Logger, check_loggers, open_loggers
from tutelage.runs.progress import Progress
from tutelage.runs.resume_hint import resume_command, resume_hint
from tutelage.runs.signals import StopSignal, defer_signals
from tutelage.runs.stored import check_owner, claim_name, find_run_id, make_run_row
from tutelage.store import Listener, Store, StoreWriter, open_store
from tutelage.types import JSON, RolloutStatus

STOPPING = "stopping after this step; Ctrl-C again stops at once"
NOTHING_LEFT = "the run is finished; there is nothing to resume"


@dataclass(slots=True)
class Run:
    """State of a run in this process: its outputs, its progress display and its stop signal."""

    folder: RunFolder
    id: str
    """Id of the run in the store."""
    store: Store
    writer: StoreWriter
    progress: Progress
    stop: StopSignal
    loggers: list[Logger] = field(default_factory=list["Logger"])
    """Loggers of metrics besides the run folder and the store."""
    events: list[JSON] = field(default_factory=list[JSON])
    """Decisions of earlier processes of this run that depended on the clock."""
    sent: Listener | None = None
    """Sends spans to a collector as well; `writer` forwards to it by itself."""
    failed: bool = False
    """True if the work finished without success."""
    result: JSON = field(default_factory=dict[str, Any])
    """Content of `result.json`, once the work has ended."""

    def log(self, line: Mapping[str, Any]) -> None:
        """Write a line of metrics to the file, the store and the loggers.

        A line has `phase`, `step`, and `tick` if phases count on.
        """
        if not {"phase", "step"} <= line.keys():
            raise RunError(f"metrics must have 'phase' and 'step', got {sorted(line)}")
        append_json(self.folder.metrics, line)
        tick = int(line.get("tick", line["step"]))
        with defer_signals():
            self.store.put_metrics(self.id, tick, dict(line))
        for logger in self.loggers:
            logger.log(line)

    def log_event(self, name: str, **values: Any) -> None:
        """Record a decision that depends on the wall clock."""
        append_json(self.folder.events, {"event": name, **values})

    def find_decision(self, name: str, phase: str) -> JSON | None:
        """Return a decision recorded by an earlier process, or None if there is none."""
        records = (e for e in self.events if e["event"] == name and e.get("phase") == phase)
        return next(records, None)


# ---------------------------------------------------------------- the ways in


def start(job: RunKind, folder: RunFolder, progress: Progress) -> JSON:
    """Start a run, or resume the same run, and return the content of `result.json`; see `begin`.

    An interruption by Ctrl-C or a signal is raised as `KeyboardInterrupt` after everything is
    saved.
    """
    return _run_to_end(type(job), begin(job, folder, progress))


def resume(
    kind: type[RunKind],
    folder: RunFolder,
    progress: Progress,
    job: RunKind | None = None,
    *,
    allow_changes: bool = False,
) -> JSON:
    """Resume the run in a folder. `job` provides the objects that cannot be stored in files.

    Raises `RunError` if a source of the run has changed, unless `allow_changes` is True.
    """
    return _run_to_end(kind, _resume(kind, folder, progress, job, allow_changes=allow_changes))


async def begin(job: RunKind, folder: RunFolder, progress: Progress) -> JSON:
    """Start a run, or resume the same run. Asynchronous phases use the current event loop.

    The folder is new, empty, or holds the same run, which is resumed. Raises `RunError` if it holds
    another run, and the errors of the kind.
    """
    check_ranks(type(job))
    if folder.config.is_file():
        check_folder(job, folder)
        allowed = job.head.settings.allow_changes
        return await _resume(
            type(job), folder, progress, job, allow_changes=allowed, check_finished=True
        )
    if not folder.path.is_dir():
        create(folder.path)
    with lock_run(folder):
        # What is wrong with the input is found before anything is written.
        job.prepare(folder, progress)
        with closing(job):
            folder.checkpoints.mkdir(exist_ok=True)
            check_loggers(job.head.loggers)
            claim_name(job.head, folder)
            job.record(folder)
            job.begin(folder)
            return await _run_phases(job, folder, progress)


def check_folder(job: RunKind, folder: RunFolder) -> None:
    """Raise `RunError` if the folder contains another run."""
    check_kind(type(job), folder)
    if folder.config.is_file() and (difference := job.difference(folder)):
        raise _occupied_error(folder, difference)


def check_kind(kind: type[RunKind], folder: RunFolder) -> None:
    """Raise `RunError` if the folder contains a run of another type, or other files."""
    if not folder.config.is_file():
        check_vacant(folder.path)
    elif (name := kind_name(folder)) != kind.name:
        raise _occupied_error(folder, f"is of the kind {name!r}")


def _occupied_error(folder: RunFolder, difference: str) -> RunError:
    return RunError(
        f"the run in {str(folder.path)!r} {difference}; choose another --output, or continue that "
        f"run. {resume_hint(folder.path)}"
    )


def _run_to_end(kind: type[RunKind], coroutine: Coroutine[Any, Any, JSON]) -> JSON:
    """Run a coroutine to its end and return its result, with an event loop only if it is needed."""
    if kind.awaits:
        return asyncio.run(coroutine)
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return ended.value
    coroutine.close()
    raise RunError(f"a phase of the kind {kind.name!r} uses await; set awaits = True in its class")


async def _resume(
    kind: type[RunKind],
    folder: RunFolder,
    progress: Progress,
    job: RunKind | None,
    *,
    allow_changes: bool,
    check_finished: bool = False,
) -> JSON:
    """Resume a run. With `check_finished`, the sources of a finished run are checked as well."""
    check_ranks(kind)
    if not folder.config.is_file():
        raise RunError(f"{str(folder.path)!r} is not a run folder: it has no config.json")
    with lock_run(folder):
        finished = folder.read_result()
        more = job is not None and job.extends(folder)
        if finished is not None and finished.get("status") == FINISHED and not more:
            if check_finished and job is not None:
                _check_sources(job, folder, progress, finished=True)
            progress.note(NOTHING_LEFT)
            if not folder.report.is_file():
                kind.report(folder)  # it was killed between the two
            return finished
        left = kind.read(folder, progress) if job is None else job.reload(folder, progress)
        changed = _check_sources(left, folder, progress, allow_changes=allow_changes)
        left.prepare(folder, progress)
        with closing(left):
            check_loggers(left.head.loggers)
            if not allow_changes:
                check_owner(left.head, folder)
            if changed is not None:  # a change that cannot be worked with is asked about again
                write_fingerprint(folder, read_object(folder.config), changed)
            begun = folder.metrics.is_file() or any(folder.checkpoints.glob("step_*"))
            if begun and left.head.store is None and not folder.store.is_file():
                progress.note("Warning: store.db is missing: earlier rollouts are lost")
            return await _run_phases(left, folder, progress)


def _check_sources(
    job: RunKind,
    folder: RunFolder,
    progress: Progress,
    *,
    allow_changes: bool = False,
    finished: bool = False,
) -> dict[str, str] | None:
    """Raise `RunError` if configuration, agent, reward, tools, model or tasks have changed since
    the start of the run. If changes are allowed, report them and return the current sources."""
    sources = job.sources(folder)
    names = [*config_edits(folder), *source_changes(folder, sources)]
    if not names:
        return None
    changes, path = ", ".join(names[:5]), str(folder.path)
    if finished:
        raise RunError(
            f"the run in {path!r} has finished with different sources: {changes}; choose another "
            "--output"
        )
    if not allow_changes:
        raise RunError(
            f"the run in {path!r} was started with different sources: {changes}; restore them, "
            f"choose another --output, or continue with the change: {resume_command(folder.path)} "
            "--allow-changes (in Python: the key allow_changes)"
        )
    progress.note(f"Warning: continuing the run although {changes}")
    return sources


# ---------------------------------------------------------------- what is open while it works


@contextmanager
def enter_run(
    head: RunHeader, folder: RunFolder, progress: Progress, *, graceful: bool = False
) -> Generator[Run]:
    """Open the store, loggers and trace collector of a run, and mark it as running.

    With `graceful` the first Ctrl-C only requests a stop.
    """
    stop = StopSignal(lambda: progress.note(STOPPING))
    with ExitStack() as stack:
        sent = None
        if head.collector is not None:
            from tutelage.tracing.export import OtlpExporter

            content, headers = head.traced_content, head.trace_headers
            exporter = OtlpExporter(
                head.collector, warn=progress.note, content=content, extra_headers=headers
            )
            sent = stack.enter_context(exporter).submit
        loggers = stack.enter_context(open_loggers(head, folder, progress))
        if graceful:
            stack.enter_context(stop)
        closing = stack.enter_context(ExitStack())  # a signal is heard when the store is closed
        with defer_signals():
            store = stack.enter_context(open_store(head.store or folder.store))
            writer = stack.enter_context(StoreWriter(store, listener=sent))
            run_id = find_run_id(store, folder, own_store=head.store is None)
            store.put_run(run_id, **make_run_row(head, folder, read_object(folder.config)))
        stack.callback(lambda: closing.enter_context(defer_signals()))
        events = folder.read_events()
        yield Run(folder, run_id, store, writer, progress, stop, loggers, events, sent)


# ---------------------------------------------------------------- the work, and its end


async def _run_phases(job: RunKind, folder: RunFolder, progress: Progress) -> JSON:
    """Run all remaining phases, then write the result and the report."""
    with enter_run(job.head, folder, progress, graceful=job.finishes_step) as run:
        job.open(run)
        # That of the process before tells nothing of what this one does, were it killed.
        folder.result.unlink(missing_ok=True)
        with record_outcome(run, job.result):
            for name, phase in job.phases():
                if name in job.done:
                    continue
                job.enter(name)
                going = phase(run)
                if going is not None:
                    await going
                job.leave(name)
    job.report(folder)
    return run.result


@contextmanager
def record_outcome(run: Run, result: Callable[[str], JSON | None]) -> Generator[None]:
    """Context manager that writes the result of a run to its folder and the store."""
    try:
        yield
    except KeyboardInterrupt:
        _finish(run, RolloutStatus.CANCELLED, result(STOPPED))
        raise
    except asyncio.CancelledError:
        with suppress(Exception):
            _finish(run, RolloutStatus.CANCELLED, result(STOPPED))
        raise
    except BaseException:
        # The disk may be what failed: whatever cannot be written now must not hide the reason.
        with suppress(TutelageError):
            _finish(run, RolloutStatus.FAILED, result(FAILED))
        raise
    finally:
        run.progress.finish()
    _finish(run, RolloutStatus.FAILED if run.failed else RolloutStatus.SUCCEEDED, result(FINISHED))


def _finish(run: Run, status: RolloutStatus, result: JSON | None) -> None:
    """Write the result to the run folder and the store."""
    with defer_signals():
        run.writer.flush()
        try:
            if result is not None:
                write_json(run.folder.result, result)
        except (TypeError, ValueError) as error:
            raise RunError(f"invalid result of {run.folder.name!r}: {error}") from error
        run.store.set_run_status(run.id, status, result)
    run.result = result or {}
