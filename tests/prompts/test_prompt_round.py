"""A round of a prompt search stands on one page in its order, and nothing is played outside one."""

from __future__ import annotations

import ast

import pytest
from clerk import RULES, SEED_PROMPT, make_task
from contract.source_tree import modules, tree
from players import clerk_agent, clerk_optimiser, splits
from tests.marks import long

from tutelage.prompts import (
    APO,
    GEPA,
    GRIPS,
    Algorithm,
    Components,
    Episode,
    Limits,
    Screen,
    Settings,
    loop,
    optimise,
)
from tutelage.prompts.contract import RolloutSlot
from tutelage.prompts.rounds import SearchRound
from tutelage.types import Mode, Task

MODULE = "tutelage.prompts.loop"
MOST_LINES = 120
PAGE = ["select", "play", "propose", "compose", "validate", "keep", "record"]
BANK = tuple(sentence for sentence, _, _ in RULES.values())


def test_the_round_stands_on_one_page_in_its_order() -> None:
    assert len(modules()[MODULE].read_text().splitlines()) <= MOST_LINES
    functions = [n for n in tree(MODULE).body if isinstance(n, ast.AsyncFunctionDef)]
    (played,) = (n for n in functions if n.name == "search_round")
    lines = [[n for n in ast.walk(line) if isinstance(n, ast.Call)] for line in played.body[1:]]
    calls = [[ast.unparse(call.func) for call in line] for line in lines]
    assert calls == [[f"step.{name}"] for name in PAGE]


@pytest.mark.parametrize(
    "algorithm",
    [APO(), GEPA(), *long(GEPA(trials=0, minibatch=3), Screen(bank=BANK), GRIPS(bank=BANK))],
)
async def test_all_that_is_played_for_a_candidate_is_played_in_a_round(
    algorithm: Algorithm, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way: list[SearchRound] = []
    rounds = 0
    outside: list[RolloutSlot] = []
    plain, agent = loop.search_round, clerk_agent(0)

    async def watched(step: SearchRound) -> None:
        nonlocal rounds
        rounds += 1
        under_way.append(step)
        try:
            await plain(step)
        finally:
            under_way.pop()

    async def play(components: Components, task: Task, slot: RolloutSlot) -> Episode:
        if not under_way:
            outside.append(slot)
        return await agent(components, task, slot)

    monkeypatch.setattr(loop, "search_round", watched)
    result = await optimise(
        algorithm,
        {"prompt": SEED_PROMPT},
        splits(make_task, 12, 8, 10),
        play,
        Settings("clerk", Limits(rollouts=300)),
        ask=clerk_optimiser(0) if algorithm.needs_optimiser else None,
    )
    assert rounds > 1
    seed = next(iter(result.lineage)).id
    searched = [slot for slot in outside if slot.split is not Mode.TEST]
    assert {(slot.candidate, slot.split) for slot in searched} == {(seed, Mode.VAL)}
    assert len(searched) == 8, "the seed is scored once before the first round"
