"""Where a step's rollouts come from: epochs, refills, greedy baselines."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from system.outcome import stored

from tutelage.errors import ConfigError
from tutelage.seeds import SeedTree
from tutelage.store import open_store
from tutelage.types import FailureCause, Mode, Rollout
from tutelage.weights.config import resolve
from tutelage.weights.sampling import BASELINE, epoch_indices, is_informative

from .samples import LAPTOP, config, make_batch, rollout
from .tiny_job import material, run, steps


@pytest.fixture(scope="module")
def source(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return material(tmp_path_factory.mktemp("source"))


@given(st.integers(1, 9), st.integers(0, 30), st.integers(0, 30))
def test_the_stream_is_one_stream_however_it_is_taken(total: int, first: int, second: int) -> None:
    seeds = SeedTree(3)
    whole = epoch_indices(total, 0, first + second, seeds)
    assert whole == [
        *epoch_indices(total, 0, first, seeds),
        *epoch_indices(total, first, second, seeds),
    ]


@pytest.mark.full
def test_tasks_are_played_in_the_given_order(source: Path, tmp_path: Path) -> None:
    folder = run(source, tmp_path / "run", data__sampling="sequential")
    first = sorted(
        (r for r in stored(folder.path) if r.mode == "train" and not r.index), key=_place
    )
    assert [r.task.id for r in first] == [f"q{i % 7}" for i in range(10)]


# ---------------------------------------------------------------- refills


@pytest.mark.full
def test_flat_groups_are_replaced_within_the_bound(source: Path, tmp_path: Path) -> None:
    """A reward that never differs: every round is played, and the step still has its size."""
    folder = run(
        source,
        tmp_path / "run",
        agent__reward_name=f"{source / 'rewards.py'}:same",
        algorithm__filter_groups__enable="true",
        algorithm__filter_groups__max_num_gen_batches=3,
        trainer__total_training_steps=2,
    )
    played = [r for r in stored(folder.path) if r.mode == "train"]
    assert Counter(r.label for r in played) == {"": 12, "refill/1": 12, "refill/2": 12}
    for line in steps(folder):
        assert (line["group/flat"], line["group/sampled"]) == (1.0, 6.0)
        assert line["group/zero_variance"] == 1.0
        assert line["grad_norm"] == 0.0
    order = [r.task.id for r in sorted(played, key=lambda r: _place(r)) if r.index == 0]
    assert len(order) == 12
    assert len(set(order[:7])) == 7, "refills take from the same epoch"


def _place(r: Rollout) -> tuple[int, int]:
    _, step, place = r.group.split("/")
    return int(step), int(place)


@pytest.mark.full
def test_a_batch_is_of_groups_that_teach(source: Path, tmp_path: Path) -> None:
    keys: dict[str, object] = {"agent__num_chains": 2, "data__train_batch_size": 3}
    plain = steps(run(source, tmp_path / "plain", **keys))
    keys |= {
        "algorithm__filter_groups__enable": "true",
        "algorithm__filter_groups__max_num_gen_batches": 20,
    }
    refilled = steps(run(source, tmp_path / "refilled", **keys))
    assert max(line["group/zero_variance"] for line in plain) > 0
    assert all(line["group/zero_variance"] == 0 for line in refilled)
    assert plain[0]["group/zero_variance"] == pytest.approx(refilled[0]["group/flat"])
    assert any(line["group/sampled"] > 3 for line in refilled)


def test_what_counts_as_informative() -> None:
    def group(*rewards: float | None) -> list[Rollout]:
        return [
            rollout(str(i), "g", [], x, cause=FailureCause.CANCELLED if x is None else None)
            for i, x in enumerate(rewards)
        ]

    assert is_informative(group(0.0, 1.0))
    assert not is_informative(group(1.0, 1.0))
    assert not is_informative(group(1.0))
    assert not is_informative(group(1.0, None)), "one survivor has nobody to be compared with"
    assert is_informative(group(1.0, None, 0.5))


@pytest.mark.parametrize("keys", [("adv_estimator=gae",), ("adv_estimator=remax",)])
def test_refills_need_groups(keys: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=r"filter_groups\.enable.*no groups to compare"):
        resolve("math", [*keys, "algorithm.filter_groups.enable=true"], machine=LAPTOP)


# ---------------------------------------------------------------- greedy baselines


@pytest.mark.full
def test_remax_plays_each_task_once_greedily_through_its_tools(
    source: Path, tmp_path: Path
) -> None:
    folder = run(source, tmp_path / "run", algorithm__adv_estimator="remax")
    played = [r for r in stored(folder.path) if r.mode == "train"]
    greedy = [r for r in played if r.label == BASELINE]
    sampled = [r for r in played if not r.label]
    assert (len(greedy), len(sampled)) == (5 * 2, 5 * 2 * 3)
    assert {r.group for r in greedy} == {r.group for r in sampled}
    assert {(r.group, r.task.id) for r in greedy} == {(r.group, r.task.id) for r in sampled}
    assert all(c.sampling.temperature == 0 for r in greedy for c in r.last.calls)
    assert all(c.sampling.temperature == 1 for r in sampled for c in r.last.calls)
    prompts = {r.group: r.last.calls[0].prompt_ids for r in sampled}
    assert all(r.last.calls[0].prompt_ids == prompts[r.group] for r in greedy), "tools included"
    for number, line in enumerate(steps(folder)):
        rewards = [r.reward for r in greedy if _place(r)[0] == number]
        values = [r.value for r in rewards if r is not None]
        assert line["reward/baseline"] == pytest.approx(sum(values) / 2)


def test_the_baseline_is_what_is_subtracted(one_thread: None) -> None:
    from tutelage.testing import tiny_policy

    from .samples import step_of_rollouts

    made = step_of_rollouts(tiny_policy("qwen2", 1), 1)
    settings = config("algorithm.adv_estimator=remax", "agent.num_chains=4")
    base = {"g0": 0.25, "g1": 0.5, "g2": -1.0}
    batch = make_batch(made, settings, baselines=base)
    for b, number in enumerate(batch.rollouts_B):
        reward = made[number].reward
        assert reward is not None
        found = batch.advantages_BT[b][batch.mask_BT[b]]
        assert (found - (reward.value - base[made[number].group])).abs().max() < 1e-6


@pytest.mark.full
@pytest.mark.parametrize("ahead", [0, 1])
def test_epochs_play_each_task_as_often_also_ahead_of_the_steps(
    source: Path, tmp_path: Path, ahead: int
) -> None:
    """Two passes over seven tasks, four a step: the last step has the two that are left. A group
    that became too old on a busy machine is dropped, and its task is played once more."""
    keys: dict[str, object] = {
        "trainer__total_training_steps": None,
        "trainer__total_epochs": 2,
        "data__train_batch_size": 4,
        "async_training__staleness_threshold": ahead,
    }
    folder = run(source, tmp_path / "run", **keys)
    with open_store(folder.store) as store:
        (found,) = store.runs()
        played = Counter(r.task.id for r in store.rollouts(found.id, mode=Mode.TRAIN))
    result = folder.read_result()
    assert result is not None
    dropped = result.get("dropped_groups", 0)
    assert dropped == 0 or ahead
    assert (len(played), min(played.values())) == (7, 2 * 3)
    assert played.total() == (2 * 7 + dropped) * 3
