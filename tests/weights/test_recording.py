"""What the store keeps of a training step: it is what the trainer computed, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tutelage.algorithms.rl import importance_weights
from tutelage.policy.numerics import Numerics
from tutelage.store import StoreWriter, TrainingRow, open_store
from tutelage.types import Rollout
from tutelage.weights.batch import Batch
from tutelage.weights.learner import Learner
from tutelage.weights.recording import record

from .samples import config, learn, make_batch, step_of_rollouts
from .tiny_job import material, run

SEVERAL = ("data.train_batch_size=3", "agent.num_chains=4", "actor.ppo_mini_batch_size=4")
"""Three optimizer steps of the rollouts of `step_of_rollouts`."""
Fresh = Callable[..., Any]
RUN: dict[str, Any] = {
    "name": "sums", "recipe": "math", "algorithm": "rl", "config": {}, "seed": 7,
    "folder": ".", "status": "running",
}  # fmt: skip


def kept(
    path: Path, policy: Any, rollouts: list[Rollout], *keys: str
) -> tuple[list[TrainingRow], dict[str, float]]:
    """The rows that a step leaves in the store, and its metrics."""
    with open_store(path) as store, StoreWriter(store) as writer:
        store.put_run("run", **RUN)
        learner = Learner(policy, config(*keys), Numerics())
        batch, metrics = learn(learner, rollouts)
        record(writer, "run", 1, {"main": batch})
        writer.flush()
        return store.training_rows("run"), metrics


def numbers(rows: list[TrainingRow], name: Any) -> list[float]:
    return [x for row in rows for x in row.values(name) or ()]


def trained(values_BT: torch.Tensor, batch: Batch, rows: list[int]) -> list[float]:
    return [float(x) for b in rows for x in values_BT[b][batch.mask_BT[b]]]


def test_rows_hold_what_the_trainer_computed(fresh: Fresh, tmp_path: Path) -> None:
    policy = fresh("qwen2", 0)
    rollouts = step_of_rollouts(policy, 0)
    keys = ("rollout.correction=token_tis", "rollout.correction_cap=1.02")
    batch = make_batch(rollouts, config(*keys))
    scores = policy.score(batch.rows)
    logp_BT = torch.zeros_like(batch.old_logp_BT)
    logp_BT[scores.rows_K, scores.columns_K] = scores.logp_K.detach()
    entropy_BT = torch.zeros_like(logp_BT)
    entropy_BT[scores.rows_K, scores.columns_K] = scores.entropy_K.detach()
    weights_BT = importance_weights(logp_BT - batch.old_logp_BT, batch.mask_BT, "token_tis", 1.02)
    rows, _ = kept(tmp_path / "x.db", policy, rollouts, *keys)
    judged = [r for r in rollouts if r.reward is not None]
    assert [row.rollout_id for row in rows] == [judged[n].id for n in batch.rollouts_B]
    assert [row.tokens for row in rows] == [row.n_trained for row in batch.rows]
    assert [row.position for row in rows] == list(range(len(rows)))
    assert {(row.step, row.policy) for row in rows} == {(1, "main")}
    for b, row in enumerate(rows):
        assert {row.advantage} == set(trained(batch.advantages_BT, batch, [b]))
    scored = [b for b, row in enumerate(rows) if row.logprobs is not None]
    assert scored
    for b, row in enumerate(rows):
        # What cannot teach is skipped together with its rollout, and has no numbers.
        assert (b in scored) or row.advantage == 0
    exact = {"abs": 1e-5}
    assert numbers(rows, "logprobs") == pytest.approx(trained(logp_BT, batch, scored), **exact)
    assert numbers(rows, "entropies") == pytest.approx(trained(entropy_BT, batch, scored), rel=1e-3)
    weights = numbers(rows, "importance_weights")
    assert weights == pytest.approx(trained(weights_BT, batch, scored), rel=1e-3)
    assert max(weights) == pytest.approx(1.02, rel=1e-3), "the cap was reached"


@pytest.mark.parametrize(
    "keys",
    [
        (),
        (*SEVERAL, "actor.ppo_epochs=2"),
        ("rollout.correction=sequence_tis",),
    ],
    ids=["plain", "several updates", "sequences"],
)
def test_keeping_rows_changes_nothing(fresh: Fresh, tmp_path: Path, keys: tuple[str, ...]) -> None:
    policy, twin = fresh("qwen2", 1), fresh("qwen2", 1)
    rollouts = step_of_rollouts(policy, 1)
    _, metrics = kept(tmp_path / "x.db", policy, rollouts, *keys)
    learner = Learner(twin, config(*keys), Numerics())
    assert learn(learner, rollouts)[1] == metrics
    for (name, a), (_, b) in zip(policy.named_tensors(), twin.named_tensors(), strict=True):
        assert torch.equal(a, b), name


def test_with_several_updates_the_logprobs_are_those_before_the_first(
    fresh: Fresh, tmp_path: Path
) -> None:
    policy = fresh("qwen2", 2)
    rollouts = step_of_rollouts(policy, 2)
    keys = (*SEVERAL, "rollout.correction=token_tis", "actor.optim.lr=1e-2")
    batch = make_batch(rollouts, config(*keys))
    scores = policy.score(batch.rows)
    logp_BT = torch.zeros_like(batch.old_logp_BT)
    logp_BT[scores.rows_K, scores.columns_K] = scores.logp_K.detach()
    rows, _ = kept(tmp_path / "x.db", policy, rollouts, *keys)
    scored = [b for b, row in enumerate(rows) if row.logprobs is not None]
    assert numbers(rows, "logprobs") == pytest.approx(trained(logp_BT, batch, scored), abs=1e-5)


@pytest.mark.full
def test_a_run_keeps_a_row_for_each_rollout_that_it_learned_from(
    one_thread: None, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    material(source)
    whole = run(source, tmp_path / "a" / "run", trainer__total_training_steps=2)
    with open_store(whole.store) as store:
        rows = store.training_rows(whole.name)
        assert {row.rollout_id for row in rows} == {
            r.id for r in store.rollouts(whole.name, label="") if r.mode == "train"
        }
        assert any(row.logprobs is not None for row in rows)
