"""`train sft`: supervised training on the user's demonstrations.

Token rows come from files (`inputs.py`). A step draws a batch of them in shuffled epochs, addressed
by the seed tree, so a step depends only on seed and number, and the phase continues after a kill
without a difference. The step is in `cold_start.py`: mean negative log-likelihood over the batch's
trained tokens, which are the assistant's. Tasks of `--test`, if any, are played before and after.
`run.py` has the shared parts of all phases.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tutelage.policy.model import Policy
from tutelage.policy.row import Row
from tutelage.runs.lifecycle import Run
from tutelage.weights import cold_start
from tutelage.weights.checkpoint import SFT
from tutelage.weights.inputs import SFTDataset, TrainingInputs, count_drawn, step_limit
from tutelage.weights.optim import learning_rate_factor, make_optimizer
from tutelage.weights.run import TrainingRun
from tutelage.weights.sampling import epoch_indices

LEARNED = ("epochs", "trained_tokens", "train_loss_before", "train_loss_after")
"""Keys of the results: epochs, trained tokens, and the loss of the first and of the last batch."""


def run_sft(ctx: TrainingRun, run: Run) -> None:
    """Run supervised training from its checkpoint."""
    setting, state = ctx.setting, ctx.state
    sft_dataset, config = setting.sft_dataset, setting.config
    assert sft_dataset is not None, "the phase of supervised training needs demonstrations"
    group, policy = setting.group, setting.policy
    if config.sft.optimizer == "adamw":  # Muon needs whole matrices
        policy = group.shard(policy, setting.choice.cold_start.dtype)
    ctx.optimizer = optimizer = ctx.restore(
        make_optimizer(policy.named_tensors(), config.actor.optim, config.sft.optimizer, group)
    )
    limit = step_limit(setting)
    run.progress.phase("supervised training", steps=limit, seconds=ctx.seconds_left())
    if state.phase_step == 0 and sft_dataset.val and config.trainer.val_before_train:
        number = _compute_loss(setting, sft_dataset.val, policy)
        state.results["val_loss_before"] = number
        ctx.log(SFT, 0, {"val/loss": number})
    order = setting.seeds.child(SFT, "order")
    while not ctx.is_over(SFT, limit):
        step, data = state.phase_step, state.results
        first, last = count_drawn(setting, step), count_drawn(setting, step + 1)
        places = epoch_indices(setting.example_count, first, last - first, order)
        rate = learning_rate_factor(step, limit, config.actor.optim)
        rows = [sft_dataset.train[i] for i in places]
        numerics, at_once = setting.choice.cold_start, config.actor.max_tokens_per_micro_batch
        values = cold_start.supervised_step(policy, optimizer, rows, numerics, rate, at_once, group)
        group.publish(policy, setting.policy)
        tokens = sum(sum(row.mask) for row in rows)
        data["trained_tokens"] = data.get("trained_tokens", 0) + tokens
        data.setdefault("train_loss_before", values["loss/sft"])
        data["train_loss_after"] = values["loss/sft"]
        data["epochs"] = last / setting.example_count
        state.phase_step, state.tick = step + 1, state.tick + 1
        values |= {"lr": config.actor.optim.lr * rate, "epoch": data["epochs"]}
        every = config.trainer.test_freq
        if sft_dataset.val and every > 0 and state.phase_step % every == 0:
            values["val/loss"] = _compute_loss(setting, sft_dataset.val, policy)
            ctx.note_best(-values["val/loss"])
        ctx.end_step(SFT, values)
    ctx.end_training()
    if sft_dataset.val:
        state.results["val_loss_after"] = _compute_loss(setting, sft_dataset.val, policy)


@torch.no_grad()
def _compute_loss(inputs: TrainingInputs, rows: Sequence[Row], policy: Policy) -> float:
    """Compute the mean negative log-likelihood of the rows' trained tokens, in nats."""
    dtype = inputs.choice.cold_start.dtype

    def sum_logp(indices: list[int]) -> float:
        return float(policy.score([rows[i] for i in indices], dtype=dtype).logp_K.sum())

    plan = policy.micro_batches(rows, inputs.config.actor.max_tokens_per_micro_batch)
    return -sum(inputs.group.map(plan, sum_logp)) / sum(sum(row.mask) for row in rows)


# ---------------------------------------------------------------- the dry run


@dataclass(frozen=True, slots=True)
class SFTPreview:
    """Summary of the data of supervised training."""

    rows: int
    tokens: int
    trained: int
    """Number of tokens that the assistant wrote."""
    longest: int
    steps: int | None
    loss: float
    """Loss of the untrained policy on one batch, in nats per trained token."""
    pieces: tuple[tuple[str, bool], ...]
    """The first demonstration as rendered for the model: its parts, each with True if trained."""


def preview(inputs: TrainingInputs, sft_dataset: SFTDataset) -> SFTPreview:
    """Describe the first demonstration and the size of the data."""
    first, train = sft_dataset.train[0], sft_dataset.train
    decode = inputs.policy.codec.decode
    pairs = zip(first.ids, first.mask, strict=True)
    groups = itertools.groupby(pairs, key=lambda pair: bool(pair[1]))
    return SFTPreview(
        rows=len(train),
        tokens=sum(len(row.ids) for row in train),
        trained=sum(sum(row.mask) for row in train),
        longest=max(len(row.ids) for row in train),
        steps=step_limit(inputs),
        loss=_compute_loss(inputs, train[: inputs.config.data.train_batch_size], inputs.policy),
        pieces=tuple((decode([i for i, _ in group]), trained) for trained, group in groups),
    )
