"""What a search plays and asks with: its agents, the optimiser's client, the journal of answers.

`open_resources` opens them within a run, whose store keeps the rollouts; `preflight` plays a few
tasks with nothing kept. `job.py` runs searches.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from typing import Any

from tutelage.prompts.contract import RolloutSlot
from tutelage.prompts.journal import JOURNAL, SearchJournal
from tutelage.prompts.optimiser_client import OptimiserClient
from tutelage.prompts.play import CandidateRunner
from tutelage.prompts.setup import SearchSetup
from tutelage.rollouts.runner import RunnerSettings
from tutelage.runs.lifecycle import Run
from tutelage.seeds import SeedTree
from tutelage.types import Mode, Rollout

DRY = "dry-run"


@dataclass(frozen=True, slots=True)
class _SearchStage:
    """What a search plays and asks with."""

    play: CandidateRunner
    ask: OptimiserClient | None
    journal: SearchJournal
    began: float

    def seconds(self) -> float:
        """Of this process, and of the search before it."""
        return time.monotonic() - self.began

    def untold(self) -> dict[str, Any]:
        """What endpoints did not tell this process: calls that are charged at a bound."""
        unknown = self.play.unknown
        if self.ask is not None:
            unknown += sum(counted.unknown for counted in self.ask.counted.values())
        return {"calls_without_usage": unknown} if unknown else {}


@asynccontextmanager
async def open_resources(
    setup: SearchSetup, run: Run, heard: Callable[[Rollout], None] | None = None
) -> AsyncGenerator[_SearchStage]:
    """The journal, the optimiser's client and the agents, whose rollouts the run keeps."""
    seeds, folder = SeedTree(setup.config.seed), run.folder

    async def recorded() -> None:
        await asyncio.wrap_future(run.writer.flushed())

    def keep(rollout: Rollout) -> None:
        run.writer.submit([rollout])
        if heard is not None:
            heard(rollout)

    # What a killed process recorded and did not get to journal is played again.
    left = {*run.store.rollout_ids(run.id)}

    def begins(rollout_id: str) -> None:
        if rollout_id in left:
            left.remove(rollout_id)
            run.store.discard_rollout(run.id, rollout_id)

    place = folder.path / JOURNAL
    with closing(SearchJournal(place, recorded=recorded, warn=run.progress.note)) as journal:
        ask = _optimiser(setup, seeds)
        began = time.monotonic() - journal.elapsed()
        try:
            async with CandidateRunner(
                setup.bundle,
                seeds.child("prompt"),
                _limits(setup, run.id),
                runners=setup.settings.runners,
                on_rollout=keep,
                on_spans=run.writer.submit_spans,
                begins=begins,
            ) as play:
                yield _SearchStage(play, ask, journal, began)
        finally:
            if ask is not None:
                await ask.close()


async def preflight(setup: SearchSetup, n: int) -> list[Rollout]:
    """Play `n` training tasks with the seed prompt, one after another; nothing is written."""
    kept: list[Rollout] = []
    seeds = SeedTree(setup.config.seed).child(DRY)
    async with CandidateRunner(
        setup.bundle, seeds, _limits(setup, DRY), runners=1, on_rollout=kept.append
    ) as play:
        for task in setup.splits.train[:n]:
            await play(setup.components, task, RolloutSlot("", Mode.TRAIN, 0, task.id))
    return kept


def _limits(setup: SearchSetup, run_id: str) -> RunnerSettings:
    """Of a rollout."""
    config = setup.config
    return RunnerSettings(
        run_id,
        timeout=config.timeout,
        attempts=1,
        failure_reward=config.failure_reward,
        reward_timeout=config.reward_timeout,
    )


def _optimiser(setup: SearchSetup, seeds: SeedTree) -> OptimiserClient | None:
    if not setup.endpoints:
        return None
    return OptimiserClient(
        setup.endpoints,
        setup.prices,
        seeds.child("prompt", "optimiser"),
        temperature=setup.config.optimiser_temperature,
        max_tokens=setup.config.optimiser_tokens,
    )
