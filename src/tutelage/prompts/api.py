"""Prompt search from Python: what `Trainer(algorithm=APO(...))` does, and what it returns.

It is the same job as the command line's, with Python objects for its agent, tasks and models; what
of a run's configuration they do not say comes from `search=`, in the keys of a prompt search.
Agents play in the event loop of the caller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import indent
from typing import Any

from tutelage.config.api_keys import api_key_of
from tutelage.engine.endpoint import DEFAULT_MODEL, Endpoint, check_url, environment
from tutelage.errors import ConfigError
from tutelage.prompts.agent import with_components
from tutelage.prompts.apo import APO
from tutelage.prompts.choice import Algorithm
from tutelage.prompts.config import PromptConfig, resolve_prompt
from tutelage.prompts.contract import Splits
from tutelage.prompts.gepa import GEPA
from tutelage.prompts.grips import GRIPS
from tutelage.prompts.holdout_test import Verdict
from tutelage.prompts.job import PromptSearch
from tutelage.prompts.play import AgentSpec
from tutelage.prompts.record import first_of
from tutelage.prompts.screen import Screen
from tutelage.prompts.setup import SearchSetup, setup_from
from tutelage.prompts.tasks import given_splits
from tutelage.resources import LLM, NamedResources
from tutelage.runs import lifecycle
from tutelage.runs.callbacks import Callback, on_rollout
from tutelage.runs.folder import RunFolder, folder_at
from tutelage.runs.progress import Progress
from tutelage.runs.result import TrainingResult, read_result
from tutelage.runs.rounds import Observer, Round, Spend
from tutelage.types import JSON, Task

PROMPT_ALGORITHMS = (APO, GEPA, Screen, GRIPS)
"""What `Trainer(algorithm=...)` takes for a prompt search."""


@dataclass(frozen=True, slots=True, repr=False)
class PromptResult(TrainingResult):
    """The outcome of a prompt search. Rewards and success are means over the held-out test; no
    policy is trained, so `policy` is None."""

    verdict: Verdict = Verdict.NO_EVIDENCE
    """What the held-out test says."""
    interval: tuple[float, float] = (0.0, 0.0)
    """95 % interval of the difference in reward, best minus seed."""
    components: Mapping[str, str] = field(default_factory=dict[str, str])
    """The best texts, by component."""
    resources: NamedResources = field(default_factory=NamedResources)
    """The agent's resources with the best texts in place; the others are untouched."""
    dollars: float = 0.0
    """What endpoints cost, where their prices are known."""

    def __repr__(self) -> str:
        low, high = self.interval
        told = f"  verdict  {self.verdict.value} (95 %: {low:+.3f} to {high:+.3f})"
        texts = [indent(f"{name}: {text}", "  ") for name, text in self.components.items()]
        return "\n".join([TrainingResult.__repr__(self), told, *texts])

    @property
    def prompt(self) -> str:
        """The best text, of the first component where there are several."""
        return self.components[first_of(self.components)]


def search_setup(
    algorithm: Algorithm,
    agent_spec: AgentSpec,
    splits: tuple[Sequence[Task] | None, Sequence[Task] | None, Sequence[Task] | None],
    keys: Mapping[str, Any],
    optimiser: LLM | None,
    progress: Progress,
) -> SearchSetup:
    """A search as a `Trainer` asks for it, `keys` being those of a prompt search.

    Checks everything that can be checked before a rollout. Raises `ConfigError`.
    """
    # Agent and tasks are objects here, so nothing that names their files is given.
    config = resolve_prompt("math", (), {**keys, "algorithm": algorithm.name})
    return setup_from(
        config,
        environment(),
        progress,
        agent_spec=agent_spec,
        splits=_splits(*splits, config),
        algorithm=algorithm,
        handed=_optimiser(optimiser),
    )


async def search_agent(
    setup: SearchSetup, output: Path, callbacks: Sequence[Callback], progress: Progress
) -> PromptResult:
    """Run the search and return its result; in a folder that holds it unfinished, it goes on.

    Raises `ConfigError` and other `TutelageError`s, most of them before anything runs.
    """
    folder = folder_at(output)
    facts = {**setup.facts, "run": str(folder.path)}
    progress.start(f"prompt search, {setup.variant}", facts)
    progress.phase("search")
    search = PromptSearch(setup, _Reported(progress, callbacks), on_rollout(callbacks))
    fields = await lifecycle.begin(search, folder, progress)
    progress.finish()
    result = _prompt_result(folder, setup, fields)
    for callback in callbacks:
        callback.on_train_end(result)
    return result


def _prompt_result(folder: RunFolder, setup: SearchSetup, told: JSON) -> PromptResult:
    """The result from `result.json`."""
    components = dict(told["components"])
    gap = told["test"]["reward"]
    return read_result(
        folder,
        told,
        PromptResult,
        policy=None,
        steps=len(folder.read_metrics()),
        verdict=Verdict(told["verdict"]),
        interval=(float(gap["low"]), float(gap["high"])),
        components=components,
        resources=with_components(setup.bundle.resources, components),
        dollars=float(told["dollars"]),
    )


class _Reported(Observer):
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
    """The endpoint of the optimiser that was passed, by role; none where none was."""
    if llm is None:
        return {}
    if llm.endpoint is None:
        raise ConfigError(
            "optimiser= needs an endpoint: LLM('gpt-4o', endpoint='https://...', api_key='...')"
        )
    env, url = environment(), check_url(llm.endpoint)
    model = llm.model or llm.name or env.get("OPENAI_MODEL") or DEFAULT_MODEL
    key = llm.api_key or api_key_of(env, "OPENAI_API_KEY")
    return {role: Endpoint(role, url, model, key) for role in ("gradient", "edit")}


def _splits(
    train: Sequence[Task] | None,
    val: Sequence[Task] | None,
    test: Sequence[Task] | None,
    config: PromptConfig,
) -> Splits | None:
    """The caller's tasks; one dataset alone is cut 40/20/40; None takes generated ones."""
    if train is None:
        if val is not None or test is not None:
            raise ConfigError("val_dataset and test_dataset also need a train_dataset")
        return None
    if (val is None) != (test is None):
        missing = "val_dataset" if val is None else "test_dataset"
        raise ConfigError(
            f"a prompt search also needs {missing}; or pass only train_dataset, which is then "
            "split 40/20/40"
        )
    return given_splits(train, val, test, config)
