"""Whole searches on the test simulator: they lift the prompt, repeat, resume, and do not lie."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import clerk
import pytest
from players import clerk_agent, clerk_optimiser, placebo_agent, splits
from tests.marks import long

from tutelage.errors import EngineError, RemoteError
from tutelage.prompts import (
    APO,
    GEPA,
    Algorithm,
    Components,
    Episode,
    Limits,
    OptimiserReply,
    Reflect,
    Screen,
    SearchJournal,
    SearchResult,
    Settings,
    Splits,
    Verdict,
    optimise,
)
from tutelage.prompts.contract import RolloutSlot
from tutelage.prompts.gepa import frontier
from tutelage.store import Store, open_store
from tutelage.types import Message, Task

BANK = (*(sentence for sentence, _, _ in clerk.RULES.values()), *clerk.DECOYS)
SEED = {"prompt": clerk.SEED_PROMPT}
SETTINGS = Settings("clerk", Limits(rollouts=240))
LARGE = replace(SETTINGS, limits=Limits(rollouts=600))
DATA = splits(clerk.make_task, 20, 12, 30)


async def searched(
    algorithm: Algorithm,
    settings: Settings = SETTINGS,
    data: Splits = DATA,
    journal: SearchJournal | None = None,
) -> SearchResult:
    ask = clerk_optimiser(settings.seed) if algorithm.needs_optimiser else None
    play = clerk_agent(settings.seed)
    return await optimise(algorithm, SEED, data, play, settings, ask=ask, journal=journal)


@pytest.mark.parametrize(
    "algorithm", [APO(), GEPA(), Reflect(), Screen(bank=BANK)], ids=lambda a: a.name
)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.full)])
async def test_it_lifts_the_held_out_score_well_above_the_seed_prompt(
    algorithm: Algorithm, seed: int
) -> None:
    data = splits(clerk.make_task, 20, 24, 200, seed)
    result = await searched(algorithm, replace(LARGE, seed=seed), data)
    assert result.test.verdict is Verdict.IMPROVED
    assert result.test.seed_reward < 0.2
    assert result.test.best_reward > 0.5
    assert result.spent.rollouts <= 600
    assert result.test_spent.rollouts <= 400


@pytest.mark.parametrize(
    "algorithm", [Reflect(), *long(APO(), GEPA(), Screen(bank=BANK))], ids=lambda a: a.name
)
async def test_one_runner_and_eight_give_the_same_lineage(algorithm: Algorithm) -> None:
    one = await searched(algorithm, replace(SETTINGS, runners=1))
    eight = await searched(algorithm, replace(SETTINGS, runners=8))
    assert one.lineage.to_jsonl() == eight.lineage.to_jsonl()
    assert (one.test, one.spent) == (eight.test, eight.spent)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "store.db") as opened:
        yield opened


class Killed(BaseException):
    """Ends a search at once, as SIGKILL does: nothing after it runs."""


@pytest.mark.parametrize(
    "algorithm", [APO(), *long(GEPA(), Reflect(), Screen(bank=BANK))], ids=lambda a: a.name
)
@pytest.mark.parametrize("at", [150, *long(1)])
async def test_killed_and_resumed_is_the_same_byte_for_byte(
    algorithm: Algorithm, at: int, tmp_path: Path
) -> None:
    whole = await searched(algorithm)
    agent, played = clerk_agent(0), list[tuple[str, str, int]]()
    settings = replace(SETTINGS, runners=1)
    ask = clerk_optimiser(0) if algorithm.needs_optimiser else None

    async def dying(components: Components, task: Task, slot: RolloutSlot) -> Episode:
        if len(played) == at:
            raise Killed
        played.append((components["prompt"], task.id, slot.sample))
        return await agent(components, task, slot)

    async def living(components: Components, task: Task, slot: RolloutSlot) -> Episode:
        played.append((components["prompt"], task.id, slot.sample))
        return await agent(components, task, slot)

    with open_store(tmp_path / "store.db") as store:
        first = SearchJournal(store)
        with pytest.raises(BaseExceptionGroup):
            await optimise(algorithm, SEED, DATA, dying, settings, ask=ask, journal=first)
    with open_store(tmp_path / "store.db") as store:
        second = SearchJournal(store)
        resumed = await optimise(algorithm, SEED, DATA, living, settings, ask=ask, journal=second)
    assert resumed.lineage.to_jsonl() == whole.lineage.to_jsonl()
    assert resumed.test == whole.test
    assert len(played) == len({*played}), "a rollout was repeated"


def test_answers_are_replaced_and_forgotten(store: Store) -> None:
    journal = SearchJournal(store)
    journal.put("play/1", {"reward": 0.5})
    journal.put("play/1", {"reward": 1.0})
    journal.put("play/2", {"reward": 0.0})
    journal.forget(["play/2", "play/3"])
    took = journal.elapsed()
    again = SearchJournal(store)
    assert again.get("play/1") == {"reward": 1.0}
    assert again.get("play/2") is None
    assert 0 < again.elapsed() < took + 60


async def test_answers_of_another_grader_are_not_used(store: Store) -> None:
    algorithm, other = GEPA(rounds=2), replace(SETTINGS, fingerprint="another grader")
    first, played = await searched(algorithm, journal=SearchJournal(store)), 0
    agent = clerk_agent(0)

    async def play(components: Components, task: Task, slot: RolloutSlot) -> Episode:
        nonlocal played
        played += 1
        return await agent(components, task, slot)

    for settings, new in ((SETTINGS, False), (other, True)):
        ask, journal = clerk_optimiser(0), SearchJournal(store)
        again = await optimise(algorithm, SEED, DATA, play, settings, ask=ask, journal=journal)
        assert again.lineage.to_jsonl() == first.lineage.to_jsonl()
        assert (played > 0) == new


@pytest.mark.full  # six seconds
async def test_the_placebo_gives_no_evidence() -> None:
    verdicts = [await _placebo(seed) for seed in range(20)]
    assert verdicts.count(Verdict.NO_EVIDENCE) >= 17


async def _placebo(seed: int) -> Verdict:
    data = splits(clerk.make_task, 10, 10, 100, seed)
    settings = Settings("placebo", Limits(rollouts=100), seed=seed)
    algorithm = (Reflect(), APO())[seed % 2]
    ask, play = clerk_optimiser(seed), placebo_agent(seed)
    return (await optimise(algorithm, SEED, data, play, settings, ask=ask)).test.verdict


async def test_an_agent_that_is_always_right_ends_the_search() -> None:
    async def perfect(components: Components, task: Task, slot: RolloutSlot) -> Episode:
        return Episode(1.0, exact=True)

    for algorithm in (APO(), GEPA(), Reflect()):
        result = await optimise(algorithm, SEED, DATA, perfect, SETTINGS, ask=clerk_optimiser(0))
        assert "no new rollouts" in result.ended
        assert result.test.verdict is Verdict.NO_EVIDENCE


async def test_malformed_optimiser_replies_end_in_the_seed_and_a_full_lineage() -> None:
    async def mute(role: str, messages: Sequence[Message], step_key: str) -> OptimiserReply:
        return OptimiserReply("")

    settings = Settings("clerk", Limits(rollouts=200, optimiser_calls=40))
    result = await optimise(Reflect(), SEED, DATA, clerk_agent(0), settings, ask=mute)
    assert result.components == SEED
    assert {e.decision for e in result.lineage} == {"winner", "rejected"}
    assert result.spent.optimiser_calls <= 40


@pytest.mark.parametrize("algorithm", [APO(), *long(GEPA(), Reflect())], ids=lambda a: a.name)
async def test_an_endpoint_that_refuses_stops_the_search_in_its_own_words(
    algorithm: Algorithm, store: Store
) -> None:
    async def refuse(role: str, messages: Sequence[Message], step_key: str) -> OptimiserReply:
        raise RemoteError("the server answered 401: Incorrect API key", 401)

    play = clerk_agent(0)
    with pytest.raises(EngineError, match=r"Incorrect API key.*resume"):
        await optimise(
            algorithm, SEED, DATA, play, SETTINGS, ask=refuse, journal=SearchJournal(store)
        )
    resumed = await searched(algorithm, journal=SearchJournal(store))
    assert resumed.lineage.to_jsonl() == (await searched(algorithm)).lineage.to_jsonl()


async def test_a_seed_that_infrastructure_loses_stops_the_run_and_resumes(store: Store) -> None:
    async def away(components: Components, task: Task, slot: RolloutSlot) -> Episode:
        raise EngineError("the server is away")

    with pytest.raises(EngineError, match="server is away"):
        await optimise(Screen(bank=BANK), SEED, DATA, away, SETTINGS, journal=SearchJournal(store))
    result = await searched(Screen(bank=BANK), journal=SearchJournal(store))
    assert result.lineage.to_jsonl() == (await searched(Screen(bank=BANK))).lineage.to_jsonl()


@pytest.mark.full
async def test_with_samples_the_winner_is_chosen_on_fresh_draws() -> None:
    settings = Settings("clerk", Limits(rollouts=1500), samples=2)
    result = await searched(Reflect(rounds=12), settings)
    assert any("val fresh" in entry.scores for entry in result.lineage)
    assert result.test.tasks == 30


@pytest.mark.full
async def test_two_components_are_both_edited_and_merged() -> None:
    agent = clerk_agent(0)

    async def play(components: Components, task: Task, slot: RolloutSlot) -> Episode:
        return await agent({"prompt": "\n".join(components.values())}, task, slot)

    seed = {"prompt": clerk.SEED_PROMPT, "style": "Write well."}
    ask = clerk_optimiser(0)
    result = await optimise(Reflect(), seed, DATA, play, LARGE, ask=ask)
    assert {n for e in result.lineage for n in seed if e.components[n] != seed[n]} == {*seed}
    result = await optimise(GEPA(), seed, DATA, play, LARGE, ask=ask)
    assert all(result.components[name] != seed[name] for name in seed)
    merges = [e for e in result.lineage if e.operation == "merge"]
    assert merges
    assert all(len(e.parents) == 2 for e in merges)


def test_what_was_lost_keeps_no_candidate_from_the_frontier() -> None:
    assert frontier({"a": [1, 0, None], "b": [1, 1, None]}) == {"b": 2}
    assert frontier({"a": [None, 1], "b": [0.5, 1]}) == {"b": 2}
    assert frontier({"a": [None, 1, 1], "b": [0.5, 0, 0]}) == {"a": 2, "b": 1}
