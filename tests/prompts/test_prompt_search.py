"""Whole searches on the test simulator: they lift the prompt, repeat, resume, and do not lie."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import clerk
import pytest
from players import clerk_agent, clerk_optimiser, placebo_agent, splits
from tests.marks import long

from tutelage.cli.prompt_view import round_lines
from tutelage.errors import ConfigError, EngineError, RemoteError, RunError
from tutelage.prompts import (
    APO,
    GEPA,
    GRIPS,
    Algorithm,
    Components,
    Episode,
    Limits,
    OptimiserReply,
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
from tutelage.runs.rounds import Observer, Round
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


@pytest.mark.parametrize("algorithm", [APO(), GEPA(), Screen(bank=BANK)], ids=lambda a: a.name)
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


async def test_grips_lifts_it_too_without_a_model() -> None:
    result = await searched(GRIPS(bank=BANK), LARGE, splits(clerk.make_task, 20, 24, 200))
    assert result.test.best_reward > result.test.seed_reward + 0.1
    assert result.spent.optimiser_calls == 0


@pytest.mark.parametrize(
    "algorithm", [GEPA(), *long(APO(), Screen(bank=BANK))], ids=lambda a: a.name
)
async def test_one_runner_and_eight_give_the_same_lineage(algorithm: Algorithm) -> None:
    one = await searched(algorithm, replace(SETTINGS, runners=1))
    eight = await searched(algorithm, replace(SETTINGS, runners=8))
    assert one.lineage.jsonl() == eight.lineage.jsonl()
    assert (one.test, one.spent) == (eight.test, eight.spent)


class Killed(BaseException):
    """Ends a search at once, as SIGKILL does: nothing after it runs."""


@pytest.mark.parametrize(
    "algorithm", [APO(), *long(GEPA(), Screen(bank=BANK))], ids=lambda a: a.name
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

    first = SearchJournal(tmp_path / "journal.db")
    with pytest.raises(BaseExceptionGroup):
        await optimise(algorithm, SEED, DATA, dying, settings, ask=ask, journal=first)
    first.close()
    second = SearchJournal(tmp_path / "journal.db")
    resumed = await optimise(algorithm, SEED, DATA, living, settings, ask=ask, journal=second)
    second.close()
    assert resumed.lineage.jsonl() == whole.lineage.jsonl()
    assert resumed.test == whole.test
    assert len(played) == len({*played}), "a rollout was repeated"


def test_a_damaged_answer_is_dropped_and_said(tmp_path: Path) -> None:
    said: list[str] = []
    first = SearchJournal(tmp_path / "journal.db")
    first.put("play/1", {"reward": 0.25})
    first.close()
    with closing(sqlite3.connect(tmp_path / "journal.db")) as db, db:
        db.execute("UPDATE step SET payload = replace(payload, '0.25', '0.75')")
    second = SearchJournal(tmp_path / "journal.db", warn=said.append)
    assert second.get("play/1") is None
    assert "the answer 'play/1'" in said[0]
    assert "is damaged and is requested again" in said[0]
    second.put("play/1", {"reward": 0.25})
    assert second.get("play/1") == {"reward": 0.25}
    second.close()


def test_half_a_surrogate_pair_comes_back_from_the_journal(tmp_path: Path) -> None:
    """As in what an agent said to a model."""
    journal = SearchJournal(tmp_path / "journal.db")
    journal.put("play/1", {"trace": "\ud83d \u00e9"})
    assert journal.get("play/1") == {"trace": "\ud83d \u00e9"}
    journal.close()


async def test_a_journal_of_another_search_is_refused_without_a_flag(tmp_path: Path) -> None:
    algorithm = GEPA(rounds=2)
    await searched(algorithm, journal=SearchJournal(tmp_path / "j.db"))
    other = replace(SETTINGS, fingerprint="another grader")
    with pytest.raises(RunError, match="another agent, grader"):
        await searched(algorithm, other, journal=SearchJournal(tmp_path / "j.db"))
    accepted = replace(other, accept_changes=True)
    assert (await searched(algorithm, accepted, journal=SearchJournal(tmp_path / "j.db"))).best


@pytest.mark.full  # six seconds
async def test_the_placebo_gives_no_evidence() -> None:
    verdicts = [await _placebo(seed) for seed in range(20)]
    assert verdicts.count(Verdict.NO_EVIDENCE) >= 17


async def _placebo(seed: int) -> Verdict:
    data = splits(clerk.make_task, 10, 10, 100, seed)
    settings = Settings("placebo", Limits(rollouts=100), seed=seed)
    algorithm = (GEPA(), APO())[seed % 2]
    ask, play = clerk_optimiser(seed), placebo_agent(seed)
    return (await optimise(algorithm, SEED, data, play, settings, ask=ask)).test.verdict


async def test_an_agent_that_is_always_right_ends_the_search() -> None:
    async def perfect(components: Components, task: Task, slot: RolloutSlot) -> Episode:
        return Episode(1.0, exact=True)

    for algorithm in (APO(), GEPA()):
        result = await optimise(algorithm, SEED, DATA, perfect, SETTINGS, ask=clerk_optimiser(0))
        assert "nothing new to play" in result.ended
        assert result.test.verdict is Verdict.NO_EVIDENCE


async def test_malformed_optimiser_replies_end_in_the_seed_and_a_full_lineage() -> None:
    async def mute(role: str, messages: Sequence[Message], step_key: str) -> OptimiserReply:
        return OptimiserReply("")

    settings = Settings("clerk", Limits(rollouts=200, optimiser_calls=40))
    result = await optimise(GEPA(), SEED, DATA, clerk_agent(0), settings, ask=mute)
    assert result.components == SEED
    assert {e.decision for e in result.lineage} == {"winner", "rejected"}
    assert result.spent.optimiser_calls <= 40


@pytest.mark.parametrize(
    "algorithm", [APO(), *long(GEPA(), GEPA(trials=0))], ids=["apo", "gepa", "paper"]
)
async def test_an_endpoint_that_refuses_stops_the_search_in_its_own_words(
    algorithm: Algorithm, tmp_path: Path
) -> None:
    async def refuse(role: str, messages: Sequence[Message], step_key: str) -> OptimiserReply:
        raise RemoteError("the server answered 401: Incorrect API key", 401)

    path, play = tmp_path / "j.db", clerk_agent(0)
    with pytest.raises(EngineError, match=r"Incorrect API key.*resume"):
        await optimise(
            algorithm, SEED, DATA, play, SETTINGS, ask=refuse, journal=SearchJournal(path)
        )
    resumed = await searched(algorithm, journal=SearchJournal(path))
    assert resumed.lineage.jsonl() == (await searched(algorithm)).lineage.jsonl()


async def test_an_endpoint_that_is_away_for_long_stops_the_search() -> None:
    asked = list[str]()

    async def away(role: str, messages: Sequence[Message], step_key: str) -> OptimiserReply:
        asked.append(step_key)
        raise EngineError("cannot reach the server")

    with pytest.raises(EngineError, match="cannot reach the server"):
        await optimise(APO(), SEED, DATA, clerk_agent(0), SETTINGS, ask=away)
    assert not [key for key in asked if key.endswith("/repair")]


async def test_a_request_that_is_lost_is_one_proposal_less_and_stands_in_the_lineage() -> None:
    answering = clerk_optimiser(0)

    async def once(role: str, messages: Sequence[Message], step_key: str) -> OptimiserReply:
        if step_key.startswith("apo/0/"):
            raise RemoteError("the server answered 503: busy", 503)
        return await answering(role, messages, step_key)

    result = await optimise(APO(), SEED, DATA, clerk_agent(0), SETTINGS, ask=once)
    lost = [e for e in result.lineage if e.reason.startswith("unanswered")]
    assert [(e.operation, e.decision) for e in lost] == [("critique", "rejected")]
    assert "503: busy" in lost[0].reason
    assert lost[0].cost.optimiser_calls == 1
    assert lost[0].cost.tokens == 0  # a refusal costs nothing
    assert result.best.id != next(iter(result.lineage)).id


async def test_a_seed_that_infrastructure_loses_stops_the_run_and_resumes(tmp_path: Path) -> None:
    async def away(components: Components, task: Task, slot: RolloutSlot) -> Episode:
        raise EngineError("the server is away")

    path = tmp_path / "j.db"
    with pytest.raises(EngineError, match="server is away"):
        await optimise(Screen(bank=BANK), SEED, DATA, away, SETTINGS, journal=SearchJournal(path))
    result = await searched(Screen(bank=BANK), journal=SearchJournal(path))
    assert result.lineage.jsonl() == (await searched(Screen(bank=BANK))).lineage.jsonl()


async def test_a_deadline_is_kept_and_comes_again_at_the_same_place(tmp_path: Path) -> None:
    agent = clerk_agent(0)

    async def slow(components: Components, task: Task, slot: RolloutSlot) -> Episode:
        await asyncio.sleep(0.01)
        return await agent(components, task, slot)

    settings = Settings("clerk", Limits(rollouts=240, seconds=0.2), runners=2)
    path = tmp_path / "j.db"
    ask = clerk_optimiser(0)
    once = await optimise(GEPA(), SEED, DATA, slow, settings, ask=ask, journal=SearchJournal(path))
    again = await optimise(
        GEPA(), SEED, DATA, agent, settings, ask=ask, journal=SearchJournal(path)
    )
    assert "seconds" in once.ended
    assert again.lineage.jsonl() == once.lineage.jsonl()
    assert again.test == once.test


async def test_a_budget_for_fewer_than_three_proposals_is_refused() -> None:
    with pytest.raises(ConfigError, match="fewer than 3"):
        await searched(GEPA(), Settings("clerk", Limits(rollouts=40)))


@pytest.mark.full
async def test_with_samples_the_winner_is_chosen_on_fresh_draws() -> None:
    settings = Settings("clerk", Limits(rollouts=1500), samples=2)
    result = await searched(GEPA(rounds=12), settings)
    assert any("val fresh" in entry.scores for entry in result.lineage)
    assert result.test.tasks == 30


async def test_screen_tries_whole_subsets_where_rollouts_are_too_few_for_a_regression() -> None:
    result = await searched(Screen(bank=BANK), Settings("clerk", Limits(rollouts=160)))
    assert {e.operation for e in result.lineage} == {"seed", "random subset"}
    assert result.test.best_reward > result.test.seed_reward


@pytest.mark.full
async def test_two_components_are_both_edited_and_merged() -> None:
    agent = clerk_agent(0)

    async def play(components: Components, task: Task, slot: RolloutSlot) -> Episode:
        return await agent({"prompt": "\n".join(components.values())}, task, slot)

    seed = {"prompt": clerk.SEED_PROMPT, "style": "Write well."}
    ask = clerk_optimiser(0)
    result = await optimise(GEPA(), seed, DATA, play, LARGE, ask=ask)
    assert {n for e in result.lineage for n in seed if e.components[n] != seed[n]} == {*seed}
    classical = GEPA(trials=0, minibatch=3)
    result = await optimise(classical, seed, DATA, play, LARGE, ask=ask)
    assert all(result.components[name] != seed[name] for name in seed)
    merges = [e for e in result.lineage if e.operation == "merge"]
    assert merges
    assert all(len(e.parents) == 2 for e in merges)


class _Rounds(Observer):
    def __init__(self) -> None:
        self.found: list[Round] = []

    def round(self, found: Round) -> None:
        self.found.append(found)


async def test_a_rounds_average_leaves_out_what_was_lost() -> None:
    """One of twelve validation rollouts is lost; the others earn full marks."""
    gone = DATA.val[3].id

    async def play(components: Components, task: Task, slot: RolloutSlot) -> Episode:
        if task.id == gone:
            raise EngineError("the server is away")
        return Episode(1.0, exact=True)

    seen = _Rounds()
    await optimise(Screen(bank=BANK), SEED, DATA, play, SETTINGS, observer=seen)
    told = next(found for found in seen.found if found.split == "val")
    assert set(told.rewards) == {1.0}
    lines = "\n".join(round_lines(told, 120))
    assert "Tasks: 12 validation tasks" in lines
    assert "Average: 11 of 12 judged, the others lost to infrastructure" in lines
    assert told.average is None
    assert told.metrics() == {"rollout/number": 12, "rollout/judged": 11}


@pytest.mark.parametrize(
    ("loses", "earned", "decision"), [("seed", 0.45, "rejected"), ("child", 0.6, "winner")]
)
async def test_a_lost_rollout_is_no_zero_in_a_minibatch(
    loses: str, earned: float, decision: str
) -> None:
    """One of six is lost: too few to give the candidate up, and no evidence about it."""
    train = {task.id for task in DATA.train}
    gone: list[str] = []

    async def play(components: Components, task: Task, slot: RolloutSlot) -> Episode:
        who = "seed" if components == SEED else "child"
        if who == loses and task.id in train and gone in ([], [task.id]):
            gone[:] = [task.id]
            raise EngineError("the server is away")
        return Episode(0.5 if who == "seed" else earned, exact=False)

    shown: list[Sequence[Message]] = []

    async def ask(role: str, messages: Sequence[Message], step_key: str) -> OptimiserReply:
        shown.append(messages)
        return OptimiserReply(f"<prompt>{clerk.SEED_PROMPT} Take care.</prompt>")

    paper = GEPA(trials=0, minibatch=6, rounds=1)
    result = await optimise(paper, SEED, DATA, play, SETTINGS, ask=ask)
    child = next(entry for entry in result.lineage if entry.operation == "reflect")
    assert gone
    assert child.decision == decision
    if decision == "rejected":
        assert child.reason.endswith("5 of 6 rollouts judged both times")
    assert "the server is away" not in str(shown)


def test_what_was_lost_keeps_no_candidate_from_the_frontier() -> None:
    assert frontier({"a": [1, 0, None], "b": [1, 1, None]}) == {"b": 2}
    assert frontier({"a": [None, 1], "b": [0.5, 1]}) == {"b": 2}
    assert frontier({"a": [None, 1, 1], "b": [0.5, 0, 0]}) == {"a": 2, "b": 1}
