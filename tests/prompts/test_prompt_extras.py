"""Evidence, components, and what an observer hears."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import clerk
from players import clerk_agent, clerk_optimiser, splits

from tutelage.prompts import (
    APO,
    Algorithm,
    Components,
    Episode,
    Limits,
    Screen,
    SearchResult,
    Settings,
    Usage,
    optimise,
)
from tutelage.prompts.contract import RolloutSlot
from tutelage.prompts.evaluator import CandidateScore, EvaluationItem
from tutelage.runs.rounds import Observer, Round, Spend
from tutelage.types import FailureCause, Mode, Task

SEED = {"prompt": clerk.SEED_PROMPT}
SETTINGS = Settings("clerk", Limits(rollouts=300))
DATA = splits(clerk.make_task, 20, 16, 60)
BANK = tuple(sentence for sentence, _, _ in clerk.RULES.values())


class Heard(Observer):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.rounds: list[Round] = []
        self.played_: list[tuple[str, int, int]] = []

    def on_progress(self, stage: str, done: int, total: int, spent: Spend) -> None:
        self.played_.append((stage, done, total))

    def on_round(self, found: Round) -> None:
        self.rounds.append(found)


async def searched(
    algorithm: Algorithm, settings: Settings = SETTINGS, heard: Heard | None = None
) -> SearchResult:
    ask = clerk_optimiser(settings.seed) if algorithm.needs_optimiser else None
    play = clerk_agent(settings.seed)
    return await optimise(algorithm, SEED, DATA, play, settings, ask=ask, observer=heard)


# ------------------------------------------------------------ evidence


def score(*episodes: Episode) -> CandidateScore:
    items = tuple(
        EvaluationItem(Mode.TRAIN, Task(f"t{i}", {"question": "q"})) for i in range(len(episodes))
    )
    return CandidateScore(items, episodes)


def test_evidence_is_worst_first_and_leaves_out_what_was_lost() -> None:
    lost = Episode(0.0, failure=FailureCause.ENGINE_ERROR)
    shown = score(Episode(0.5), lost, Episode(1.0), Episode(0.25)).get_worst(2)
    assert [e.value for _, e in shown] == [0.25, 0.5]


# ------------------------------------------------------------ observers and slots


async def test_rounds_tell_wins_losses_and_ties_against_the_parent() -> None:
    heard = Heard()
    result = await searched(APO(rounds=3), heard=heard)
    assert [r.number for r in heard.rounds] == [1, 2, 3]
    told = [s for r in heard.rounds for s in r.standings]
    assert {s.id for s in told} == {e.id for e in result.lineage} - {next(iter(result.lineage)).id}
    for standing in told:
        assert standing.wins + standing.losses + standing.ties == standing.tasks
    assert any(s.wins for s in told)
    assert heard.rounds[0].components == SEED
    assert heard.rounds[0].split == "train"
    assert [r.spent.rollouts for r in heard.rounds] == sorted(
        r.spent.rollouts for r in heard.rounds
    )
    assert {stage for stage, _, _ in heard.played_} == {"search", "test"}
    assert all(0 < done <= total for _, done, total in heard.played_)


async def test_an_agent_knows_which_rollout_it_is_asked_for() -> None:
    slots: list[RolloutSlot] = []
    agent = clerk_agent(0)

    async def play(components: Components, task: Task, slot: RolloutSlot) -> Episode:
        slots.append(slot)
        return await agent(components, task, slot)

    await optimise(Screen(bank=BANK), SEED, DATA, play, replace(SETTINGS, seed=1))
    assert len({s.key for s in slots}) == len(slots)
    assert {s.split for s in slots} == {*Mode}
    assert {s.candidate for s in slots if s.split is Mode.TEST} == {"seed", "best"}


def test_an_episode_comes_back_from_the_journal() -> None:
    episode = Episode(0.5, failure=FailureCause.TIMEOUT, usage=Usage(1, 2, 0.5))
    assert Episode.from_dict(json.loads(json.dumps(asdict(episode)))) == episode
