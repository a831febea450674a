"""A prompt search as a run: started, resumed, and confirmed with new test tasks.

    best_prompt.txt      the best prompt so far, one file per component
    lineage.jsonl        every candidate, reproducible byte for byte
    result.json          the results, with the field names of other runs
    metrics.jsonl        one line per round
    tasks/*.jsonl        the splits
    store.db             every rollout, and every answer as an event, for resume

Callers are the command line and `Trainer`; `runs/lifecycle.py` has the steps of every run.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from textwrap import indent
from typing import Any, ClassVar, Self

from tutelage.config.fields import RunSettings
from tutelage.engine.endpoint import read_environment
from tutelage.errors import RunError
from tutelage.prompts.agent import set_components
from tutelage.prompts.budget import SearchBudget
from tutelage.prompts.config import KIND, PromptConfig
from tutelage.prompts.contract import Components, RolloutSlot
from tutelage.prompts.evaluator import Evaluator, SearchJournal
from tutelage.prompts.figures import build_figures
from tutelage.prompts.holdout_test import HoldoutResult, Verdict, run_holdout_test
from tutelage.prompts.lineage import LINEAGE_FILE
from tutelage.prompts.optimiser_client import OptimiserClient
from tutelage.prompts.play import DRY, CandidateRunner
from tutelage.prompts.search import SearchResult, optimise
from tutelage.prompts.setup import SearchSetup, build_setup
from tutelage.prompts.tasks import draw_fresh_tasks, read_tasks, write_tasks
from tutelage.resources import NamedResources
from tutelage.runs import lifecycle
from tutelage.runs.callbacks import Callback
from tutelage.runs.figures import Figures, RunFiles, read_object
from tutelage.runs.findings import add_findings, list_warnings
from tutelage.runs.fingerprint import settings_sources
from tutelage.runs.folder import RunFolder, lock_run, open_folder, write_json, write_text
from tutelage.runs.health import ROLLOUT_RULES, Setup
from tutelage.runs.kinds import (
    FINISHED,
    Phase,
    RunHeader,
    RunKind,
    load_settings,
    register,
)
from tutelage.runs.lifecycle import Run, enter_run, record_outcome
from tutelage.runs.metrics import (
    check_equal_failures,
    low_reward_text,
    rollout_metrics,
    unused_template_warnings,
)
from tutelage.runs.progress import Progress
from tutelage.runs.result import TrainingResult, read_result
from tutelage.runs.resume_hint import resume_command
from tutelage.runs.rounds import Observer, Round, Spend
from tutelage.runs.stored_evaluation import evaluation_keys
from tutelage.seeds import SeedTree
from tutelage.statistics.outcome import RewardKind
from tutelage.tracing.export import endpoint, headers
from tutelage.types import JSON, FailureCause, Mode, Rollout, Sampling

BEST = "best_prompt.txt"
_REMEDIES = {
    "constant_reward": "see whether the reward reads the reply as it is, and whether any prompt "
    "can earn more: tutelage show RUN --rollouts 3"
}
"""Remedies that replace those of a training."""


@register
@dataclass
class PromptSearch(RunKind):
    """Prompt search as a run; requests that are already in its journal are not repeated."""

    name: ClassVar[str] = KIND
    model: ClassVar[type[RunSettings]] = PromptConfig
    awaits: ClassVar[bool] = True
    free: ClassVar[tuple[str, ...]] = ("runners", "timeout")

    setup: SearchSetup
    observer: Observer = field(default_factory=Observer)
    callbacks: Sequence[Callback] = ()
    _fields: JSON = field(default_factory=dict[str, Any])

    @classmethod
    def read(cls, folder: RunFolder, progress: Progress) -> Self:
        """Read the configuration of a folder and return its search."""
        return cls(read_setup(folder))

    @classmethod
    def figures(cls, files: RunFiles) -> Figures:
        """Return the figures of a search: candidates, models and costs."""
        return build_figures(files)

    def config(self) -> JSON:
        """Return the configuration keys, the models with addresses, and the seed components."""
        setup = self.setup
        models = {**setup.bundle.endpoints, **setup.endpoints}
        python = {"python": setup.bundle.spec.agent.name} if setup.python else {}
        return {
            "config": setup.config.model_dump(mode="json"),
            "models": {name: e.to_public_dict() for name, e in models.items()},
            "components": dict(setup.components),
            **python,
        }

    def difference(self, folder: RunFolder) -> str | None:
        """Return the keys that differ, or None if changes are allowed."""
        changed = None if self.setup.config.allow_changes else super().difference(folder)
        return changed and f"{changed} (--allow-changes continues anyway)"

    def sources(self, folder: RunFolder) -> dict[str, str]:
        """Return hashes of the setup and of the sources named in the settings."""
        named = {"environment": self.setup.config.environment}
        return self.setup.sources() | settings_sources(named, folder)

    def reload(self, folder: RunFolder, progress: Progress) -> Self:
        """Return this search unchanged, because its setup is complete."""
        return self

    def prepare(self, folder: RunFolder, progress: Progress) -> None:
        """Do nothing, because the setup has already been checked."""

    @property
    def head(self) -> RunHeader:
        """Return the header of the run for the store, the loggers and the trace collector."""
        config, env = self.setup.config, read_environment()
        return RunHeader(
            recipe=config.recipe,
            algorithm=self.setup.algorithm.name,
            settings=config,
            store=config.store,
            collector=endpoint(config.otlp, env),
            trace_headers=headers(env),
        )

    def begin(self, folder: RunFolder) -> None:
        """Write the tasks of all splits to the run folder."""
        write_tasks(folder, self.setup.splits)

    def open(self, run: Run) -> None:
        """Remove the metrics, because a resumed search reports every round again."""
        run.folder.metrics.unlink(missing_ok=True)

    def phases(self) -> Sequence[Phase]:
        """Return the search phase, which includes the held-out test."""
        return [("search", self._search)]

    async def _search(self, run: Run) -> None:
        """Run the search and write its outcome."""
        setup, config = self.setup, self.setup.config
        seeds = SeedTree(config.seed).child("prompt")
        recorder, journal = _SearchRecorder(run, self), SearchJournal(run.store, run.id)
        temperature, most = config.optimiser_temperature, config.optimiser_tokens
        asked = Sampling(temperature=temperature, max_tokens=most)
        client = OptimiserClient(setup.endpoints, setup.prices, seeds.child("optimiser"), asked)
        runners = setup.settings.runners
        async with (
            aclosing(client) as ask,
            CandidateRunner(setup.bundle, seeds, runners, recorder.add_rollout, run) as play,
        ):
            result = await optimise(
                setup.algorithm,
                setup.components,
                setup.splits,
                play,
                setup.settings,
                ask=ask,
                journal=journal,
                observer=recorder,
            )
        run.writer.flush()
        fields = write_outcome(run.folder, setup, result, journal.elapsed())
        recorder.check_health(ended=True)
        failed, lowest = config.failure_reward, recorder.lowest
        if lowest < failed:
            recorder.warn([low_reward_text("failure_reward", failed, lowest)])
        causes = {str(f.cause): f.number for f in run.store.failures(run.id)}
        fields["failures"] = dict(sorted(causes.items()))
        fields["warnings"] = recorder.warnings + list_warnings(recorder.health, "iteration")
        fields["health"] = recorder.health
        if unknown := play.unknown + ask.unknown:
            fields["calls_without_usage"] = unknown
        self._fields = fields

    def result(self, status: str) -> JSON | None:
        """Return the result of a finished search, or None if the search was stopped."""
        return self._fields if status == FINISHED else None


def read_setup(folder: RunFolder, allow_changes: bool = False) -> SearchSetup:
    """Read the configuration of a folder and return the setup of its search. Raises `RunError` or
    `ConfigError`."""
    if agent := read_object(folder.config).get("python"):
        raise RunError(
            f"the run in {str(folder.path)!r} is a search for the Python agent {agent!r}, "
            "which exists only in its program; resume it there with "
            f"Trainer(output_dir={str(folder.path)!r}, ...)"
        )
    config = load_settings(folder, PromptConfig)
    if allow_changes:
        config = config.model_copy(update={"allow_changes": True})
    return build_setup(config, read_environment(), splits=read_tasks(folder))


def write_best(folder: RunFolder, components: Components) -> None:
    """Write one file per component; the file of the first component is `best_prompt.txt`."""
    for name, text in components.items():
        safe = "".join(c if c.isalnum() or c in "-_" else "_" for c in name)
        file = BEST if name == min(components) else f"best_prompt.{safe}.txt"
        write_text(folder.path / file, text)


def write_outcome(
    folder: RunFolder, setup: SearchSetup, result: SearchResult, seconds: float
) -> JSON:
    """Write the lineage and the best prompt, and return the fields of `result.json`. Their names
    are the same as in other runs, such as `success_after_sampled`."""
    write_text(folder.path / LINEAGE_FILE, result.lineage.to_jsonl())
    write_best(folder, result.components)
    test, spent = result.test, (result.spent + result.test_spent).to_dict()
    kind = RewardKind(has_success=test.exact is not None)
    return {
        "status": "finished",
        "kind": KIND,
        "recipe": setup.config.recipe,
        "algorithm": setup.algorithm.name,
        "reason": setup.reason,
        "seed": setup.config.seed,
        "wall_seconds": round(seconds, 3),
        "verdict": test.verdict.value,
        "exit_code": test.verdict.exit_code,
        "best": result.best.id,
        "components": dict(result.components),
        "seed_components": dict(setup.components),
        "candidates": sum(entry.decision != "experiment" for entry in result.lineage),
        "ended": result.ended,
        **spent | {"dollars": round(spent["dollars"], 6)},
        "dollars_known": not setup.remarks,
        "spent": result.spent.to_dict(),
        "test_spent": result.test_spent.to_dict(),
        "test": test.to_dict(),
        "test_tasks": test.tasks,
        "overlap": setup.overlap.record(),
        "train_tasks": len(setup.splits.train),
        "val_tasks": len(setup.splits.val),
        "graded": test.exact is None,
        **evaluation_keys("before_sampled", test.seed_sums.record(), kind),
        **evaluation_keys("after_sampled", test.best_sums.record(), kind),
    }


def confirm(folder: RunFolder, progress: Progress, files: Sequence[str] = ()) -> JSON:
    """Test the seed prompt and the best prompt on new held-out tasks, add the test to
    `result.json`, and return it."""
    finished = folder.read_result()
    if finished is None or "components" not in finished:
        raise RunError(
            f"the search in {str(folder.path)!r} has no result yet; continue it: "
            f"{resume_command(folder.path)}"
        )
    setup = read_setup(folder)
    looks: list[JSON] = list(finished.get("confirmations", []))
    used = len(setup.splits.test) + sum(int(look["tasks"]) for look in looks if not look["files"])
    tasks = draw_fresh_tasks(setup.config, used, files, setup.bundle.spec.environment)
    replace(setup.splits, test=tasks).check_held_out(setup.fields)
    settings, seeds = setup.settings, SeedTree(setup.config.seed).child("prompt")
    budget = SearchBudget(replace(settings.limits, rollouts=None), settings.worst)

    async def play_test() -> HoldoutResult:
        journal, runners = SearchJournal(run.store, run.id), settings.runners
        async with CandidateRunner(setup.bundle, seeds, runners, lambda _: None, run) as play:
            evaluator = Evaluator(play, budget, journal, settings, "confirm")
            seed, best = finished["seed_components"], finished["components"]
            draws, number = seeds.child("confirm", len(looks)), len(looks) + 2
            return await run_holdout_test(evaluator, seed, best, tasks, draws, number)

    with (
        lock_run(folder),
        enter_run(PromptSearch(setup).head, folder, progress) as run,
        record_outcome(run, lambda status: dict(finished) if status == FINISHED else None),
    ):
        holdout = asyncio.run(play_test())
    fields = holdout.to_dict() | {"files": list(files)}
    finished["confirmations"] = [*looks, fields]
    write_json(folder.result, finished)
    return fields


async def preflight(setup: SearchSetup, n: int) -> list[Rollout]:
    """Run `n` training tasks sequentially with the seed prompt, without writing files."""
    rollouts: list[Rollout] = []
    seeds = SeedTree(setup.config.seed).child(DRY)
    async with CandidateRunner(setup.bundle, seeds, 1, rollouts.append) as play:
        for task in setup.splits.train[:n]:
            await play(setup.components, task, RolloutSlot("", Mode.TRAIN, 0, task.id))
    return rollouts


# ---------------------------------------------------------------- observers


class _SearchRecorder(Observer):
    """Records the metrics of each round, the best prompt and the health findings, and forwards
    events."""

    def __init__(self, run: Run, search: PromptSearch) -> None:
        self._run, self._inner, self._callbacks = run, search.observer, search.callbacks
        self._resources = search.setup.bundle.resources
        self.warnings: list[str] = []
        self.health: list[JSON] = []
        self.lowest = search.setup.config.failure_reward
        """The lowest reward of a rollout that did not fail, if lower than the failure reward."""
        self._number = 0
        self._failures: dict[str, str] = {}
        self._steps: list[dict[str, float]] = []
        self._rollouts: list[Rollout] = []

    def add_rollout(self, rollout: Rollout) -> None:
        """Store a rollout for the next health check."""
        self._rollouts.append(rollout)
        if rollout.reward is not None and rollout.last.failure is None:
            self.lowest = min(self.lowest, rollout.reward.value)
        for callback in self._callbacks:
            callback.on_rollout_end(rollout)

    def warn(self, warnings: Sequence[str]) -> None:
        """Show warnings and store them for the result."""
        self.warnings += warnings
        for warning in warnings:
            self._run.progress.note(f"Warning: {warning}")

    def on_progress(self, stage: str, done: int, total: int, spent: Spend) -> None:
        """Forward the progress to the search's observer."""
        self._inner.on_progress(stage, done, total, spent)

    def check_health(self, *, ended: bool = False) -> None:
        """Record health findings for the rollouts since the last check."""
        run = shlex.quote(str(self._run.folder.path))
        if self._rollouts:
            self._steps.append(rollout_metrics(self._rollouts))
            for failure in (r.last.failure for r in self._rollouts):
                if failure is not None:
                    self._failures.setdefault(failure.cause.value, failure.message)
            self._rollouts = []
        setup = Setup(
            limits="max_turns, max_tokens",
            rules=ROLLOUT_RULES,
            ended=ended,
            remedies=_REMEDIES,
            failures=self._failures,
        )
        for finding in add_findings(self.health, self._steps, setup, number=self._number, run=run):
            self._run.progress.note(f"Warning: {finding}")

    def on_round(self, found: Round) -> None:
        """Write the metrics of a round and the best prompt so far. Raises `FailureBudgetError` if
        the reward raised the same error on every rollout of the first round."""
        run = self._run
        line = {"phase": "search", "step": found.number, "candidates": len(found.standings)}
        run.log({**line, "leader": found.leader, **found.spent.to_dict(), **found.metrics()})
        write_best(run.folder, found.best)
        self._inner.on_round(found)
        for callback in self._callbacks:
            callback.on_round_end(found)
        self._number = found.number
        if found.number == 1:
            run.writer.flush()
            count, failed = run.store.count(run.id), run.store.failures(run.id)
            if [(f.cause, f.number) for f in failed] == [(FailureCause.ANSWER_ERROR, count)]:
                check_equal_failures(list(run.store.rollouts(run.id)), count)
            # A resume has played only a part of them; only the seed has the agent's own texts.
            if len(self._rollouts) >= found.spent.rollouts:
                seeds = [r for r in self._rollouts if r.label == self._rollouts[0].label]
                self.warn(unused_template_warnings(seeds, self._resources))
        self.check_health()


@dataclass(frozen=True, slots=True)
class _ProgressObserver(Observer):
    """Forwards rounds and rollouts to a `Progress`; rounds are reported as steps."""

    progress: Progress

    def on_progress(self, stage: str, done: int, total: int, spent: Spend) -> None:
        """Show the progress of a batch."""
        self.progress.evaluation(stage, done, total)

    def on_round(self, found: Round) -> None:
        """Show a round as a step, with the reward of its initial leader."""
        values = {"rollouts": float(found.spent.rollouts), "dollars": found.spent.dollars}
        self.progress.step(found.number, values | found.metrics())


# ---------------------------------------------------------------- the search of a Trainer


@dataclass(frozen=True, slots=True, repr=False)
class PromptResult(TrainingResult):
    """Result of a prompt search. Rewards and success rates are means over the held-out test; no
    policy is trained, so `policy` is None."""

    verdict: Verdict = Verdict.NO_EVIDENCE
    """The verdict of the held-out test."""
    interval: tuple[float, float] = (0.0, 0.0)
    """95 % interval of the difference in reward, best minus seed."""
    components: Mapping[str, str] = field(default_factory=dict[str, str])
    """The best texts, by component."""
    resources: NamedResources = field(default_factory=NamedResources)
    """The agent's resources with the best texts in place."""
    dollars: float = 0.0
    """The cost of endpoints with known prices."""

    def __repr__(self) -> str:
        low, high = self.interval
        verdict = f"  verdict  {self.verdict.value} (95 %: {low:+.3f} to {high:+.3f})"
        texts = [indent(f"{name}: {text}", "  ") for name, text in self.components.items()]
        return "\n".join([TrainingResult.__repr__(self), verdict, *texts])

    @property
    def prompt(self) -> str:
        """Return the best text, or the text of the first component if there are several."""
        return self.components[min(self.components)]


async def search_agent(
    setup: SearchSetup, output: Path, callbacks: Sequence[Callback], progress: Progress
) -> PromptResult:
    """Run the search and return its result; an unfinished search in the folder is resumed.

    Raises `ConfigError` and other `TutelageError`s, most of them before any rollout.
    """
    folder = open_folder(output)
    facts = {**setup.facts, "run": str(folder.path)}
    progress.start(f"prompt search, {setup.algorithm.name}", facts)
    progress.phase("search")
    search = PromptSearch(setup, _ProgressObserver(progress), callbacks)
    fields = await lifecycle.begin(search, folder, progress)
    progress.finish()
    gap, components = fields["test"]["reward"], dict(fields["components"])
    result = read_result(
        folder,
        fields,
        PromptResult,
        policy=None,
        steps=len(folder.read_metrics()),
        verdict=Verdict(fields["verdict"]),
        interval=(float(gap["low"]), float(gap["high"])),
        components=components,
        resources=set_components(setup.bundle.resources, components),
        dollars=float(fields["dollars"]),
    )
    for callback in callbacks:
        callback.on_train_end(result)
    return result
