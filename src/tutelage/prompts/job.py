"""A prompt search as a kind of run: begin one, continue one, look again with fresh tasks.

The journal makes a resume a replay: what was answered is not asked again, so a search killed at any
moment ends in the same lineage byte for byte. The command line and `Trainer` are thin callers;
`runs/lifecycle.py` has the steps of every run.
"""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from tutelage.config.fields import RunSettings
from tutelage.engine.endpoint import environment
from tutelage.errors import RunError
from tutelage.prompts import optimise, record
from tutelage.prompts.budget import SearchBudget
from tutelage.prompts.config import KIND as NAME
from tutelage.prompts.config import PromptConfig
from tutelage.prompts.cost import SearchCost, search_cost
from tutelage.prompts.embedded import embedded
from tutelage.prompts.evaluator import Evaluator
from tutelage.prompts.figures import figures_of
from tutelage.prompts.holdout_test import HoldoutResult, run_holdout_test
from tutelage.prompts.journal import JOURNAL
from tutelage.prompts.pages import write_pages
from tutelage.prompts.search_resources import open_resources
from tutelage.prompts.setup import SearchSetup, setup_from
from tutelage.prompts.tasks import fresh
from tutelage.runs.estimate import Pace
from tutelage.runs.figures import Figures, RunFiles, read_object
from tutelage.runs.findings import keep, warnings_of
from tutelage.runs.fingerprint import settings_sources
from tutelage.runs.folder import RunFolder, locked, write_json
from tutelage.runs.health import ROLLOUT_RULES, Setup
from tutelage.runs.kinds import (
    FINISHED,
    Phase,
    RunHeader,
    RunKind,
    register,
    stored_settings,
)
from tutelage.runs.lifecycle import Run, ending, opened
from tutelage.runs.metrics import rollout_metrics, stop_if_alike, unused_template_warnings
from tutelage.runs.progress import Progress
from tutelage.runs.resume_hint import resume_command
from tutelage.runs.rounds import Observer, Round, Spend
from tutelage.seeds import SeedTree
from tutelage.tasks.readers import short
from tutelage.tools.registry import resolve_tools
from tutelage.tracing.export import endpoint, headers
from tutelage.types import JSON, FailureCause, Rollout, Task, ToolSpec


@register
@dataclass
class PromptSearch(RunKind):
    """A search for better prompts; what its journal has is not played again."""

    name: ClassVar[str] = NAME
    model: ClassVar[type[RunSettings]] = PromptConfig
    awaits: ClassVar[bool] = True
    free: ClassVar[tuple[str, ...]] = ("runners", "timeout")

    setup: SearchSetup
    observer: Observer = field(default_factory=Observer)
    heard: Callable[[Rollout], None] | None = None
    """Receives every rollout."""
    _found: JSON = field(default_factory=dict[str, Any])

    @classmethod
    def read(cls, folder: RunFolder, progress: Progress) -> Self:
        """The search of the folder, put together again."""
        return cls(read_setup(folder, progress))

    @classmethod
    def report(cls, folder: RunFolder) -> None:
        """The report, and the lineage as a page."""
        write_pages(folder)

    @classmethod
    def figures(cls, files: RunFiles) -> Figures:
        """Its candidates, models and costs."""
        return figures_of(files)

    @classmethod
    def tools(cls, folder: RunFolder) -> tuple[ToolSpec, ...]:
        """Those of the embedded task's agent; an own agent's are in the record of its calls."""
        config = stored_settings(folder, PromptConfig)
        if config.recipe != "math":
            return ()
        tools = resolve_tools(config.tools or embedded().tools)
        return tuple(tool.spec for tool in tools.values())

    def config(self) -> JSON:
        """The keys, the models with their addresses, and what the search begins with."""
        setup = self.setup
        models = {name: e.to_public_dict() for name, e in setup.bundle.endpoints.items()}
        models |= {role: e.to_public_dict() for role, e in setup.endpoints.items()}
        python = {"python": setup.bundle.agent.name} if setup.python else {}
        return {
            "config": setup.config.model_dump(mode="json"),
            "models": models,
            "components": dict(setup.components),
            **python,
        }

    def difference(self, folder: RunFolder) -> str | None:
        """Whether a key differs that the search depends on, where that is not allowed."""
        found = None if self.setup.config.allow_changes else super().difference(folder)
        return found and f"{found} (--allow-changes continues anyway)"

    def sources(self, folder: RunFolder) -> dict[str, str]:
        """Those of its setup."""
        named = {"environment": self.setup.config.environment}
        return self.setup.sources() | settings_sources(named, folder)

    def again(self, folder: RunFolder, progress: Progress) -> Self:
        """The caller's: it is put together already."""
        return self

    def prepare(self, folder: RunFolder, progress: Progress) -> None:
        """Raises `ConfigError` for a plan that cannot work, `RunError` for a search whose answers
        are gone: it would play and pay for all of it again."""
        search_cost(self.setup)
        journal = folder.path / JOURNAL
        if folder.config.is_file() and folder.metrics.is_file() and not journal.is_file():
            raise RunError(
                f"the journal {str(journal)!r} of the search is missing; restore it, or start "
                "again with another --output"
            )

    @property
    def head(self) -> RunHeader:
        """What store, loggers and collector know of the run."""
        config, env = self.setup.config, environment()
        return RunHeader(
            recipe=config.recipe,
            algorithm=self.setup.algorithm.name,
            settings=config,
            store=config.store,
            collector=endpoint(config.otlp, env),
            trace_headers=headers(env),
        )

    def begin(self, folder: RunFolder) -> None:
        """Keep the splits."""
        record.write_tasks(folder, self.setup.splits)

    def open(self, run: Run) -> None:
        """A replay reports every round again."""
        run.folder.metrics.unlink(missing_ok=True)

    def phases(self) -> Sequence[Phase]:
        """The search, with its held-out test."""
        return [("search", self._search)]

    async def _search(self, run: Run) -> None:
        setup = self.setup
        given = setup.bundle.resources
        recorder = _Recorder(run, self.observer, search_cost(setup), self.heard, given)
        async with open_resources(setup, run, recorder.heard) as search_resources:
            result = await optimise(
                setup.algorithm,
                setup.components,
                setup.splits,
                search_resources.play,
                setup.settings,
                ask=search_resources.ask,
                journal=search_resources.journal,
                observer=recorder,
            )
            run.writer.flush()
            fields = record.write_outcome(run.folder, setup, result, search_resources.seconds())
            for warning in fields["warnings"]:
                run.progress.note(f"Warning: {warning}")
            recorder.examine(ended=True)
            fields["warnings"] += recorder.warnings + warnings_of(recorder.health, "iteration")
            self._found = fields | {"health": recorder.health} | search_resources.untold()
            # The winner as versions of its resources, where a later run can find them.
            for name, text in result.components.items():
                data, kind = {"text": text}, "prompt_template"
                run.store.put_resource(run.id, name, version=1, step=0, kind=kind, data=data)

    def result(self, status: str) -> JSON | None:
        """The outcome; a search that was stopped has its journal instead."""
        return self._found if status == FINISHED else None


def read_setup(folder: RunFolder, progress: Progress, allow_changes: bool = False) -> SearchSetup:
    """The search of a folder, put together again. Raises `RunError`, `ConfigError`."""
    fields = read_object(folder.config)
    if fields.get("python"):
        raise RunError(
            f"the run in {str(folder.path)!r} searches for the Python agent {fields['python']!r}, "
            "which only its program has; resume it there with "
            f"Trainer(output_dir={str(folder.path)!r}, ...)"
        )
    config = stored_settings(folder, PromptConfig)
    if allow_changes:
        config = config.model_copy(update={"allow_changes": True})
    splits = record.read_tasks(folder)
    return setup_from(config, environment(), progress, splits=splits)


def confirm(folder: RunFolder, progress: Progress, files: Sequence[str] = ()) -> JSON:
    """Seed against best on fresh held-out tasks; the look is counted and kept in `result.json`."""
    finished = folder.read_result()
    if finished is None or "components" not in finished:
        raise RunError(
            f"the search in {str(folder.path)!r} has no result yet; continue it: "
            f"{resume_command(folder.path)}"
        )
    setup = read_setup(folder, progress)
    looks: list[JSON] = list(finished.get("confirmations", []))
    used = len(setup.splits.test) + sum(int(look["tasks"]) for look in looks if not look["files"])
    tasks = fresh(setup.config, used, files, setup.bundle.environment)
    replace(setup.splits, test=tasks).check_held_out(setup.fields)
    holdout = asyncio.run(_confirm(setup, folder, progress, finished, tasks, len(looks)))
    fields = holdout.to_dict() | {"files": list(files)}
    write_json(folder.result, finished | {"confirmations": [*looks, fields]})
    write_pages(folder)
    return fields


async def _confirm(
    setup: SearchSetup,
    folder: RunFolder,
    progress: Progress,
    finished: Mapping[str, Any],
    tasks: Sequence[Task],
    number: int,
) -> HoldoutResult:
    settings = setup.settings
    with (
        locked(folder),
        opened(PromptSearch(setup).head, folder, progress) as run,
        ending(run, lambda status: dict(finished) if status == FINISHED else None),
    ):
        async with open_resources(setup, run) as search_resources:
            budget = SearchBudget(
                replace(settings.limits, rollouts=None, seconds=None), settings.worst
            )
            evaluator = Evaluator(
                search_resources.play,
                budget,
                search_resources.journal,
                settings,
                f"confirm/{number}",
            )
            seeds = SeedTree(settings.seed).child("prompt", "confirm", number)
            seed, best = finished["seed_components"], finished["components"]
            return await run_holdout_test(evaluator, seed, best, tasks, seeds)


class _Recorder(Observer):
    """Writes each round down, and the best so far, then tells the observer. Says what the search
    will cost once the seed was played, and what is wrong with its rollouts."""

    def __init__(
        self,
        run: Run,
        inner: Observer,
        plan: SearchCost,
        heard: Callable[[Rollout], None] | None,
        resources: Mapping[str, object],
    ) -> None:
        self._run, self._inner, self._plan, self._heard = run, inner, plan, heard
        self._resources = resources
        self.warnings: list[str] = []
        self.health: list[JSON] = []
        self._number = 0
        self._failures: dict[str, str] = {}
        self._steps: list[dict[str, float]] = []
        self._remedies: Mapping[str, str] = {}
        self._rollouts: list[Rollout] = []
        self._began: float | None = None
        self._told = False

    def heard(self, rollout: Rollout) -> None:
        """A rollout was played."""
        self._rollouts.append(rollout)
        if self._heard is not None:
            self._heard(rollout)

    def played(self, stage: str, done: int, total: int, spent: Spend) -> None:
        """Pass it on."""
        self._inner.played(stage, done, total, spent)
        self._began = self._began or time.monotonic()
        if spent.rollouts and not self._told:
            self._told = True
            self._tell_cost(spent)
            # Later texts are candidates', so what a resume plays first says nothing of the seed.
            if len(self._rollouts) >= spent.rollouts:
                self.warnings = unused_template_warnings(self._rollouts, self._resources)
            for warning in self.warnings:
                self._run.progress.note(f"Warning: {warning}")

    def _tell_cost(self, spent: Spend) -> None:
        """What is left of the plan, at the pace of the rollouts that this process has played."""
        assert self._began is not None, "something was played"
        seconds, count = time.monotonic() - self._began, len(self._rollouts)
        left = self._plan.search.rollouts - spent.rollouts + self._plan.test.rollouts
        if count < 2 or left <= 0:
            return
        share = count / spent.rollouts
        pace = Pace(count, round(spent.tokens * share), seconds, spent.dollars * share)
        self._run.progress.note(f"Cost from here, at most: {pace.words(left)}")

    def examine(self, *, ended: bool = False) -> None:
        """Say at once what is wrong with the rollouts since the last time."""
        if self._rollouts:
            self._steps.append(rollout_metrics(self._rollouts))
            for failure in (r.last.failure for r in self._rollouts):
                if failure is not None:
                    self._failures.setdefault(failure.cause.value, failure.message)
            poor = (r for r in self._rollouts if r.reward is not None and r.reward.value < 1)
            if (rollout := next(poor, None)) is not None:
                self._remedies = {"constant_reward": _look_at(rollout, self._run.folder)}
            self._rollouts = []
        setup = Setup(
            limits="max_turns, max_tokens",
            rules=ROLLOUT_RULES,
            ended=ended,
            remedies=self._remedies,
            failures=self._failures,
        )
        run = shlex.quote(str(self._run.folder.path))
        for finding in keep(self.health, self._steps, setup, number=self._number, run=run):
            self._run.progress.note(f"Warning: {finding}")

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
        self._run.log(line)
        record.write_best(self._run.folder, found.best)
        self._inner.round(found)
        self._number = found.number
        if found.number == 1:
            self._stop_if_never_graded()
        self.examine()

    def _stop_if_never_graded(self) -> None:
        """A reward that raises the same on every rollout of the first round reads no answer. Raises
        `FailureBudgetError`."""
        run = self._run
        run.writer.flush()
        count, failed = run.store.count(run.id), run.store.failures(run.id)
        if [(f.cause, f.number) for f in failed] == [(FailureCause.ANSWER_ERROR, count)]:
            stop_if_alike(list(run.store.rollouts(run.id)), count)


def _look_at(rollout: Rollout, folder: RunFolder) -> str:
    """What to look at where every prompt earns the same: one rollout, with its reply and reward."""
    last = rollout.last
    reply = "none" if last.final_text is None else short(last.final_text)
    earned = "none" if last.reward is None else f"{last.reward.value:g}"
    failed = "" if last.failure is None else f" ({last.failure.message})"
    return (
        f"see whether the reward reads the reply as it is, and whether any prompt can earn more: "
        f"task {short(rollout.task.title)}, reply {reply}, reward {earned}{failed}: "
        f"tutelage show {rollout.id} --run {shlex.quote(str(folder.path))}"
    )
