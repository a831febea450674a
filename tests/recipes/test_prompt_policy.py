"""The training of the embedded policy of prompt search."""

from __future__ import annotations

import pytest
import torch
from benchmarks.house.prompt_recipe import PolicyRecipe, train_policy, training_rows

from tutelage.recipes.prompted import prompted_tasks
from tutelage.runs.progress import Progress
from tutelage.seeds import SeedTree

TINY = PolicyRecipe(steps=2, cooldown=1, prompts=2, tasks=2, size="test", vocabulary=400)


class Told(Progress):
    """Remembers the losses."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def step(self, done: int, values: object) -> None:
        assert isinstance(values, dict)
        self.losses.append(values["loss/sft"])


@pytest.mark.full
def test_the_same_recipe_gives_the_same_weights() -> None:
    first, second = (dict(train_policy(TINY, Progress()).named_tensors()) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.full
def test_it_learns() -> None:
    told = Told()
    train_policy(PolicyRecipe(40, 10, prompts=4, tasks=4, size="test", vocabulary=400), told)
    assert sum(told.losses[-4:]) / 4 < 0.7 * told.losses[0]


def test_only_what_the_agent_writes_is_trained() -> None:
    policy = train_policy(TINY, Progress())
    rows = training_rows(policy, prompted_tasks("train", 20, 0), TINY, SeedTree(0))
    assert len(rows) == TINY.prompts * TINY.tasks
    for row in rows:
        trained = policy.codec.decode([i for i, m in zip(row.ids, row.mask, strict=True) if m])
        rest = policy.codec.decode([i for i, m in zip(row.ids, row.mask, strict=True) if not m])
        assert trained.endswith("<|im_end|>")
        assert "Tools:" not in trained
        assert "Tools: calculator(expression) sum_1_to_n(n)" in rest
