"""The pool learns what sentences are worth from rollouts that share them, and composes the best."""

from __future__ import annotations

import numpy as np
import pytest
from clerk import SEED_PROMPT, make_task
from players import clerk_agent, clerk_optimiser, splits

from tutelage.prompts import APO, GEPA, Limits, Reflect, SearchResult, Settings, optimise
from tutelage.prompts.sentence_model import SentenceModel, sentence_similarity

SEED = {"prompt": "You help."}
GOOD, BAD, IDLE = "Use the table.", "Guess quickly.", "Be kind."


def learned(rounds: int = 40) -> SentenceModel:
    """A pool that has seen a good sentence, a harmful one and an idle one in random company."""
    pool, rng = SentenceModel(SEED), np.random.default_rng(0)
    for i in range(rounds):
        has = rng.random(3) < 0.5
        chosen = [s for s, h in zip((GOOD, BAD, IDLE), has, strict=True) if h]
        text = "\n".join(["You help.", *chosen])
        reward = 0.5 + 0.4 * has[0] - 0.4 * has[1] + 0.05 * rng.standard_normal()
        pool.add_rollout({"prompt": text}, f"t{i % 7}", float(reward))
    return pool


def test_it_tells_what_helps_from_what_harms() -> None:
    names, mean, covariance = learned().fit("prompt")
    worth = dict(zip(names, mean, strict=True))
    assert worth[GOOD] > 0.25
    assert worth[BAD] < -0.25
    assert abs(worth[IDLE]) < 0.1
    assert np.linalg.eigvalsh(covariance).min() > 0


def test_the_best_sentences_come_first_and_the_seed_stays_whole() -> None:
    pool = learned()
    names, mean, _ = pool.fit("prompt")
    lines = pool.text("prompt", names, mean).split("\n")
    assert lines[:2] == ["You help.", GOOD]
    assert BAD not in lines


def test_a_sentence_never_played_is_believed_by_what_is_like_it() -> None:
    pool = learned()
    like, other = "Always use the table.", "Sing a song."
    pool.add_sentences({"prompt": f"You help.\n{like}\n{other}"})
    names, mean, _ = pool.fit("prompt")
    worth = dict(zip(names, mean, strict=True))
    assert worth[like] > worth[other]
    text = pool.text("prompt", names, mean)
    assert (GOOD in text) != (like in text), "two that say the same are not both taken"


def test_components_are_learned_apart() -> None:
    pool = SentenceModel({"a": "A.", "b": "B."})
    pool.add_rollout({"a": "A. Same words.", "b": "B."}, "t", 1.0)
    pool.add_rollout({"a": "A.", "b": "B. Same words."}, "t", 0.0)
    assert pool.fit("a")[1][0] > pool.fit("b")[1][0]
    assert sentence_similarity([("a", "x y"), ("b", "x y")])[0, 1] == 0


async def searched(algorithm: APO | GEPA | Reflect, calls: int | None = None) -> SearchResult:
    limits = Limits(rollouts=200, optimiser_calls=calls)
    data = splits(make_task, 20, 12, 30)
    settings = Settings("clerk", limits)
    seed = {"prompt": SEED_PROMPT}
    return await optimise(algorithm, seed, data, clerk_agent(0), settings, ask=clerk_optimiser(0))


async def test_trials_stand_in_the_lineage_with_their_cost_and_keep_the_budget() -> None:
    for algorithm in (APO(), Reflect()):
        result = await searched(algorithm)
        tried = [e for e in result.lineage if e.operation == "trials"]
        assert tried
        assert all(e.decision == "experiment" for e in tried)
        assert sum(e.cost.rollouts for e in tried) > 0
        composed = [e for e in result.lineage if e.operation == "compose"]
        assert any("expected to add" in e.critique for e in composed)
        assert result.spent.rollouts <= 200


@pytest.mark.full
async def test_when_the_optimiser_calls_are_spent_trials_go_on() -> None:
    result = await searched(Reflect(), calls=4)
    assert result.spent.optimiser_calls == 4
    assert result.spent.rollouts > 100
