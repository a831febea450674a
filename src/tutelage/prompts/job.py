"""Run a prompt search in a run folder, go on with one, look again with fresh tasks.

The journal makes a resume a replay: what was answered is not asked again, so a search killed at any
moment ends in the same lineage byte for byte. `search` is async and plays agents in the loop of its
caller; `run` is it for code without one. The command line and `Trainer` are thin callers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tutelage.engine.endpoint import environment
from tutelage.engine.usage import Spend
from tutelage.errors import RunError
from tutelage.prompts import record
from tutelage.prompts.agent import ToolAgent
from tutelage.prompts.budget import Budget
from tutelage.prompts.config import PromptConfig, from_json, to_json
from tutelage.prompts.evaluator import Evaluator
from tutelage.prompts.gate import Sealed, sealed_test
from tutelage.prompts.journal import Journal
from tutelage.prompts.optimiser_client import OptimiserClient
from tutelage.prompts.pages import write_pages
from tutelage.prompts.plan import make_plan
from tutelage.prompts.play import Records, Theatre
from tutelage.prompts.run import Result, optimise
from tutelage.prompts.setup import Setup, setup_from
from tutelage.prompts.tasks import fresh
from tutelage.rollouts.runner import RunnerSettings
from tutelage.runs.folder import RunFolder, locked, write_json, write_text
from tutelage.runs.progress import Progress
from tutelage.runs.rounds import Observer, Round
from tutelage.runs.trust import remember
from tutelage.seeds import SeedTree
from tutelage.store import Listener, RunStatus, Store, StoreWriter, open_store
from tutelage.types import JSON, Rollout

DRY = "dry-run"


def run(setup: Setup, folder: RunFolder, progress: Progress, observer: Observer) -> JSON:
    """`search` for code without an event loop; returns what is in result.json."""
    return asyncio.run(search(setup, folder, progress, observer))


async def search(
    setup: Setup,
    folder: RunFolder,
    progress: Progress,
    observer: Observer,
    heard: Callable[[Rollout], None] | None = None,
) -> JSON:
    """Run a search in a folder that is new, or go on where it was left. `heard` is told of every
    rollout.

    Raises `ConfigError` for a plan that cannot work, `RunError` for a folder of another search.
    """
    make_plan(setup)
    with locked(folder):
        if not folder.config.is_file():
            write_text(folder.config, _config_text(setup))
            remember(folder)
            record.write_tasks(folder, setup.splits)
        folder.metrics.unlink(missing_ok=True)  # a replay tells of every round again
        async with _opened(setup, folder, progress, heard) as stage:
            return await _search(setup, folder, stage, progress, observer)


def resume(folder: RunFolder, progress: Progress, observer: Observer) -> JSON:
    """Go on with a search from its folder. Raises `RunError` for one that only its program has."""
    finished = folder.read_result()
    if finished is not None and finished.get("status") == "finished":
        progress.note("the run is finished; there is nothing to resume")
        if not folder.report.is_file():
            write_pages(folder)
        return finished
    return run(read_setup(folder, progress), folder, progress, observer)


def read_setup(folder: RunFolder, progress: Progress, allow_changes: bool = False) -> Setup:
    """The search of a folder, put together again. Raises `RunError`, `ConfigError`."""
    text = folder.config.read_text(encoding="utf-8")
    told = json.loads(text)
    if told.get("python"):
        raise RunError(
            f"the run in {str(folder.path)!r} searches for the Python agent {told['python']!r}, "
            "which only its program has: go on with it from there, "
            f"Trainer(output_dir={str(folder.path)!r}, ...)"
        )
    config = from_json(text)
    if allow_changes:
        config = config.model_copy(update={"allow_changes": True})
    splits = record.read_tasks(folder)
    return setup_from(config, environment(), progress, splits=splits)


def confirm(folder: RunFolder, progress: Progress, files: Sequence[str] = ()) -> JSON:
    """Seed against best on fresh sealed tasks; the look is counted and kept in `result.json`."""
    finished = folder.read_result()
    if finished is None or "components" not in finished:
        raise RunError(
            f"the search in {str(folder.path)!r} has no result yet; go on with it: "
            f"tutelage resume {folder.path}"
        )
    setup = read_setup(folder, progress)
    looks: list[JSON] = list(finished.get("confirmations", []))
    used = len(setup.splits.test) + sum(int(look["tasks"]) for look in looks if not look["files"])
    tasks = fresh(setup.config, used, files)
    replace(setup.splits, test=tasks).check_sealed(setup.fields)
    sealed = asyncio.run(_confirm(setup, folder, progress, finished, tasks, len(looks)))
    told = sealed.to_dict() | {"files": list(files)}
    write_json(folder.result, finished | {"confirmations": [*looks, told]})
    write_pages(folder)
    return told


async def dry_run(setup: Setup) -> Rollout:
    """Play one training task with the seed prompt; nothing is written."""
    return (await preflight(setup, 1))[0]


async def preflight(setup: Setup, n: int) -> list[Rollout]:
    """Play `n` training tasks with the seed prompt, one after another; nothing is written."""
    kept: list[Rollout] = []
    records = Records(DRY, kept.append, lambda run_id, spans: None)
    async with Theatre(
        setup.company,
        records,
        SeedTree(setup.config.seed).child(DRY),
        runners=1,
        limits=_limits(setup),
    ) as play:
        for task in setup.splits.train[:n]:
            await play(setup.components, task, 0)
    return kept


# ---------------------------------------------------------------- what they share


def _limits(setup: Setup) -> RunnerSettings:
    """Of a rollout. The embedded agent is bounded by its turns and tokens, by no clock."""
    config = setup.config
    embedded = isinstance(setup.company.program, ToolAgent)
    return RunnerSettings(
        DRY,
        timeout=math.inf if embedded else config.timeout,
        attempts=1,
        concurrency=1,
        failure_reward=config.failure_reward,
        reward_timeout=config.reward_timeout,
    )


@dataclass(frozen=True, slots=True)
class _Stage:
    """What is open while a search runs."""

    play: Theatre
    ask: OptimiserClient | None
    journal: Journal
    store: Store
    writer: StoreWriter
    began: float

    def seconds(self) -> float:
        """Of this process, and of the search before it."""
        return time.monotonic() - self.began


@contextlib.asynccontextmanager
async def _opened(
    setup: Setup,
    folder: RunFolder,
    progress: Progress,
    heard: Callable[[Rollout], None] | None = None,
) -> AsyncGenerator[_Stage]:
    config, seeds = setup.config, SeedTree(setup.config.seed)
    with contextlib.ExitStack() as last:
        traced = last.enter_context(_tracing(config, progress))
        store = last.enter_context(open_store(config.store or folder.store))
        store.put_run(
            folder.name,
            name=folder.name,
            recipe=config.recipe,
            algorithm=setup.algorithm.name,
            config=json.loads(folder.config.read_text(encoding="utf-8")),
            seed=config.seed,
            folder=str(folder.path),
            status=RunStatus.RUNNING,
        )
        writer = last.enter_context(StoreWriter(store, also=traced))

        async def recorded() -> None:
            await asyncio.wrap_future(writer.flushed())

        journal = Journal(record.journal_file(folder), recorded=recorded)
        last.callback(journal.close)

        def keep(rollout: Rollout) -> None:
            writer.submit([rollout])
            if heard is not None:
                heard(rollout)

        # What a killed process recorded and did not get to journal is played again.
        left = {*store.rollout_ids(folder.name)}

        def begins(rollout_id: str) -> None:
            if rollout_id in left:
                left.remove(rollout_id)
                store.discard_rollout(folder.name, rollout_id)

        records = Records(folder.name, keep, writer.submit_spans, begins)
        ask = _optimiser(setup, seeds)
        began = time.monotonic() - journal.elapsed()
        try:
            async with Theatre(
                setup.company,
                records,
                seeds.child("prompt"),
                runners=setup.settings.runners,
                limits=_limits(setup),
            ) as play:
                yield _Stage(play, ask, journal, store, writer, began)
        except BaseException as error:
            stopped = isinstance(error, KeyboardInterrupt | asyncio.CancelledError)
            with contextlib.suppress(Exception):  # the disk may be what failed
                writer.flush()
                status = RunStatus.CANCELLED if stopped else RunStatus.FAILED
                store.set_run_status(folder.name, status)
            raise
        finally:
            if ask is not None:
                await ask.close()


async def _search(
    setup: Setup, folder: RunFolder, stage: _Stage, progress: Progress, observer: Observer
) -> JSON:
    result = await optimise(
        setup.algorithm,
        setup.components,
        setup.splits,
        stage.play,
        setup.settings,
        ask=stage.ask,
        journal=stage.journal,
        observer=_Recorder(folder, observer),
    )
    stage.writer.flush()
    told = record.write_result(folder, setup, result, stage.seconds(), _counted(stage))
    for warning in told["warnings"]:
        progress.note(f"Warning: {warning}")
    _keep_best(stage.store, folder, result)
    stage.store.set_run_status(folder.name, RunStatus.SUCCEEDED, told)
    write_pages(folder)
    return told


async def _confirm(
    setup: Setup,
    folder: RunFolder,
    progress: Progress,
    finished: Mapping[str, Any],
    tasks: Sequence[Any],
    number: int,
) -> Sealed:
    settings = setup.settings
    with locked(folder):
        async with _opened(setup, folder, progress) as stage:
            evaluator = Evaluator(
                stage.play,
                Budget(replace(settings.limits, rollouts=None, seconds=None), settings.worst),
                stage.journal,
                fingerprint=settings.fingerprint,
                runners=settings.runners,
                timeout=settings.timeout,
                failure_reward=settings.failure_reward,
                name=f"confirm/{number}",
            )
            sealed = await sealed_test(
                evaluator,
                stage.journal,
                finished["seed_components"],
                finished["components"],
                tasks,
                SeedTree(settings.seed).child("prompt", "confirm", number),
                settings.samples,
            )
            stage.writer.flush()
            stage.store.set_run_status(folder.name, RunStatus.SUCCEEDED, dict(finished))
            return sealed


class _Recorder:
    """Writes each round down, and the best so far, then tells the observer."""

    def __init__(self, folder: RunFolder, inner: Observer) -> None:
        self._folder, self._inner = folder, inner

    def played(self, stage: str, done: int, total: int, spent: Spend) -> None:
        """Pass it on."""
        self._inner.played(stage, done, total, spent)

    def round(self, found: Round) -> None:
        """One line of metrics, and the best prompt so far."""
        line: dict[str, Any] = {
            "phase": "search",
            "step": found.number,
            "candidates": len(found.standings),
            "leader": found.leader,
            **found.spent.to_dict(),
            **found.metrics(),
        }
        record.add_round(self._folder, line)
        record.write_best(self._folder, found.best)
        self._inner.round(found)


def _optimiser(setup: Setup, seeds: SeedTree) -> OptimiserClient | None:
    if not setup.endpoints:
        return None
    return OptimiserClient(
        setup.endpoints,
        setup.prices,
        seeds.child("prompt", "optimiser"),
        temperature=setup.config.optimiser_temperature,
        max_tokens=setup.config.optimiser_tokens,
    )


def _counted(stage: _Stage) -> dict[str, Any]:
    """What endpoints did not tell this process: calls that are charged at a bound."""
    unknown = stage.play.unknown
    if stage.ask is not None:
        unknown += sum(counted.unknown for counted in stage.ask.counted.values())
    return {"calls_without_usage": unknown} if unknown else {}


def _keep_best(store: Store, folder: RunFolder, result: Result) -> None:
    """The winner as versions of its resources, where a later run can find them."""
    for name, text in result.components.items():
        store.put_resource(
            folder.name, name, version=1, step=0, kind="prompt_template", data={"text": text}
        )


def _config_text(setup: Setup) -> str:
    models = {name: e.shown() for name, e in setup.company.endpoints.items()}
    models |= {role: e.shown() for role, e in setup.endpoints.items()}
    more: dict[str, Any] = {"models": models, "components": dict(setup.components)}
    if setup.python:
        more["python"] = setup.company.program.name
    return to_json(setup.config, **more)


@contextlib.contextmanager
def _tracing(config: PromptConfig, progress: Progress) -> Generator[Listener | None]:
    from tutelage.tracing.export import OtlpExporter, endpoint, headers

    env = environment()
    url = endpoint(config.otlp, env)
    if url is None:
        yield None
        return
    with OtlpExporter(url, warn=progress.note, extra_headers=headers(env)) as exporter:
        yield exporter.submit
