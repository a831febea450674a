"""Prompt search from Python: what `Trainer(algorithm=APO(...))` does, and what it returns.

It is the same job as the command line's, with Python objects for its agent, tasks and models; what
of a run's configuration they do not say comes from `search=`, in the keys of a prompt search.
Agents play in the event loop of the caller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tutelage.engine.endpoint import DEFAULT_MODEL, Endpoint, checked_url, environment
from tutelage.engine.usage import Spend
from tutelage.errors import ConfigError
from tutelage.prompts import job
from tutelage.prompts.agent import with_components
from tutelage.prompts.apo import APO
from tutelage.prompts.choice import Algorithm
from tutelage.prompts.company import Subject
from tutelage.prompts.config import PromptConfig, resolve_prompt
from tutelage.prompts.contract import Splits
from tutelage.prompts.gate import Verdict
from tutelage.prompts.gepa import GEPA
from tutelage.prompts.grips import GRIPS
from tutelage.prompts.record import first_of
from tutelage.prompts.screen import Screen
from tutelage.prompts.setup import Setup, setup_from
from tutelage.prompts.staging import preflight
from tutelage.prompts.tasks import cut, sized
from tutelage.resources import LLM, NamedResources
from tutelage.runs.callbacks import Callback, Watch, on_rollout
from tutelage.runs.folder import RunFolder, folder_at, fresh_name
from tutelage.runs.measured import Measured, read
from tutelage.runs.progress import Progress
from tutelage.runs.result import TrainingResult
from tutelage.runs.rounds import Round
from tutelage.types import JSON, Rollout, Task

if TYPE_CHECKING:
    pass

PROMPT_ALGORITHMS = (APO, GEPA, Screen, GRIPS)
"""What `Trainer(algorithm=...)` takes for a prompt search."""


@dataclass(frozen=True, slots=True)
class PromptResult(TrainingResult):
    """The outcome of a prompt search. Rewards and success are means over the sealed test; no
    policy is trained, so `policy` is None."""

    verdict: Verdict = Verdict.NO_EVIDENCE
    """What the sealed test says."""
    interval: tuple[float, float] = (0.0, 0.0)
    """95 % interval of the difference in reward, best minus seed."""
    components: Mapping[str, str] = field(default_factory=dict[str, str])
    """The best texts, by component."""
    resources: NamedResources = field(default_factory=NamedResources)
    """The agent's resources with the best texts in place; the others are untouched."""
    dollars: float = 0.0
    """What endpoints cost, where their prices are known."""

    @property
    def prompt(self) -> str:
        """The best text, of the first component where there are several."""
        return self.components[first_of(self.components)]


@dataclass(frozen=True, slots=True)
class Search:
    """A search as a `Trainer` asks for it."""

    algorithm: Algorithm
    subject: Subject
    train: Sequence[Task] | None
    val: Sequence[Task] | None
    test: Sequence[Task] | None
    keys: Mapping[str, Any]
    """Keys of a prompt search."""
    optimiser: LLM | None
    output: Path | None
    callbacks: Sequence[Callback]
    progress: Progress


async def search_agent(asked: Search) -> PromptResult:
    """Run the search and return what came of it; in a folder that holds it unfinished, it goes on.

    Raises `ConfigError` and other `TutelageError`s, most of them before anything runs.
    """
    progress = Watch(asked.progress, asked.callbacks)
    setup = _setup(asked, progress)
    place = asked.output or fresh_name("prompt", claim=True)
    folder = folder_at(place)
    progress.start(f"prompt search, {setup.algorithm.name}", setup.facts)
    progress.phase("search")
    observer = Reported(progress, asked.callbacks)
    told = await job.search(setup, folder, progress, observer, heard=on_rollout(asked.callbacks))
    progress.finish()
    result = prompt_result(folder, setup, told)
    for callback in asked.callbacks:
        callback.on_train_end(result)
    return result


async def try_agent(asked: Search, n: int) -> list[Rollout]:
    """Play `n` training tasks with the prompt as it is; nothing is searched for or written."""
    return await preflight(_setup(asked, asked.progress), n)


def _setup(asked: Search, progress: Progress) -> Setup:
    """Check everything that can be checked before a rollout. Raises `ConfigError`."""
    # Agent and tasks are objects here, so nothing that names their files is given.
    config = resolve_prompt("math", (), {**asked.keys, "algorithm": asked.algorithm.name})
    return setup_from(
        config,
        environment(),
        progress,
        subject=asked.subject,
        splits=_splits(asked, config),
        algorithm=asked.algorithm,
        handed=_optimiser(asked.optimiser),
    )


def prompt_result(folder: RunFolder, setup: Setup, told: JSON) -> PromptResult:
    """The result from `result.json`."""
    components = dict(told["components"])
    gap = told["test"]["reward"]
    before = read(told, "before_sampled") or Measured()
    after = read(told, "after_sampled") or Measured()
    return PromptResult(
        status=str(told["status"]),
        folder=folder.path,
        policy=None,
        steps=len(folder.read_metrics()),
        rollouts=int(told["rollouts"]),
        tokens=int(told["tokens"]),
        reward_before=before.reward,
        reward_after=after.reward,
        success_before=before.success,
        success_after=after.success,
        judged_before=before.counts,
        judged_after=after.counts,
        failures=dict(told.get("failures") or {}),
        metrics=tuple(folder.read_metrics()),
        details=told,
        verdict=Verdict(told["verdict"]),
        interval=(float(gap["low"]), float(gap["high"])),
        components=components,
        resources=with_components(setup.company.resources, components),
        dollars=float(told["dollars"]),
    )


class Reported:
    """An `Observer` that tells a `Progress`, whose steps are rounds, and callbacks."""

    def __init__(self, progress: Progress, callbacks: Sequence[Callback] = ()) -> None:
        self._progress, self._callbacks = progress, callbacks

    def played(self, stage: str, done: int, total: int, spent: Spend) -> None:
        """Rollouts of a batch."""
        self._progress.evaluation(stage, done, total)

    def round(self, found: Round) -> None:
        """One step; its reward is that of the prompt that the round began with."""
        values = {"rollouts": float(found.spent.rollouts), "dollars": found.spent.dollars}
        values |= found.metrics()
        self._progress.step(found.number, values)
        for callback in self._callbacks:
            callback.on_round_end(found)


def _optimiser(llm: LLM | None) -> dict[str, Endpoint]:
    """The endpoint of the optimiser that was handed over, by role; none where none was."""
    if llm is None:
        return {}
    if llm.endpoint is None:
        raise ConfigError(
            "optimiser= needs an endpoint: LLM('gpt-4o', endpoint='https://...', api_key='...')"
        )
    env, url = environment(), checked_url(llm.endpoint)
    model = llm.model or llm.name or env.get("OPENAI_MODEL") or DEFAULT_MODEL
    key = llm.api_key or env.get("OPENAI_API_KEY")
    return {role: Endpoint(role, url, model, key) for role in ("gradient", "edit")}


def _splits(asked: Search, config: PromptConfig) -> Splits | None:
    """The caller's tasks; one dataset alone is cut 40/20/40; None takes generated ones."""
    if asked.train is None:
        if asked.val is not None or asked.test is not None:
            raise ConfigError("val_dataset and test_dataset need a train_dataset as well")
        return None
    if (asked.val is None) != (asked.test is None):
        missing = "val_dataset" if asked.val is None else "test_dataset"
        raise ConfigError(
            f"a prompt search needs {missing} too; or give train_dataset alone, which is then cut "
            "40/20/40"
        )
    if asked.val is None or asked.test is None:
        return sized(cut(asked.train, config.seed), config)
    return sized(Splits(asked.train, asked.val, asked.test), config)
