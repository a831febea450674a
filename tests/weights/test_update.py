"""The gradient of a step: what it is, and that nothing about the cut of the batch changes it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from tests.marks import long
from torch import Tensor

from tutelage.config import RunConfig
from tutelage.policy.numerics import Numerics
from tutelage.policy.row import Row
from tutelage.types import FailureCause, Rollout
from tutelage.weights.batch import Batch
from tutelage.weights.learner import Learner, single_pass_logprobs

from .samples import (
    call,
    config,
    conversation,
    make_batch,
    rollout,
    step_of_rollouts,
    update_policy,
)

Fresh = Callable[..., Any]
MODES = (
    "token-mean",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
)
FEW_MODES = [
    "token-mean",
    "seq-mean-token-mean",
    *long("seq-mean-token-sum", "seq-mean-token-sum-norm"),
]
LAYOUTS = ("qwen2", "qwen3", "llama", "gpt2")


def each_once(first: Sequence[Any], second: Sequence[Any]) -> list[Any]:
    """All pairs of both; those of two that have another pair each are for `make test-full`."""
    return [
        pytest.param(a, b, marks=() if first[0] == a or second[0] == b else pytest.mark.full)
        for a in first
        for b in second
    ]


class Probe:
    """In the place of an optimizer: keeps the gradients and changes nothing."""

    def __init__(self, policy: Any) -> None:
        self.policy = policy
        self.steps: list[list[Tensor]] = []

    def step(self, rate: float = 1.0) -> float:
        grads = [
            torch.zeros_like(p) if p.grad is None else p.grad.clone()
            for p in self.policy.parameters()
        ]
        self.steps.append(grads)
        for parameter in self.policy.parameters():
            parameter.grad = None
        return float(torch.stack([g.norm() for g in grads]).norm())


def gradient(
    policy: Any, batch: Batch, settings: RunConfig, *, threads: int = 1
) -> tuple[list[Tensor], dict[str, float]]:
    """The gradient that `update_policy` hands to the optimizer, and its metrics."""
    probe: Any = Probe(policy)
    metrics = update_policy(policy, probe, batch, settings, Numerics(threads=threads))
    (grads,) = probe.steps or [[torch.zeros_like(p) for p in policy.parameters()]]
    return grads, metrics


def assert_same(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> None:
    """Equal to 1e-5 of the gradient's size."""
    size = float(torch.stack([g.norm() for g in wanted]).norm())
    assert size > 1e-3, "a gradient of zero proves nothing"
    for a, b in zip(found, wanted, strict=True):
        assert float((a - b).abs().max()) <= 1e-5 * max(1.0, size)


def flat_gradient(policy: Any, batch: Batch, settings: RunConfig) -> list[Tensor]:
    """The clipped surrogate's gradient, row by row and token by token, from the formula."""
    actor = settings.actor
    rollouts = sorted(set(batch.rollouts_B))
    lengths = {
        n: sum(row.n_trained for row, o in zip(batch.rows, batch.rollouts_B, strict=True) if o == n)
        for n in rollouts
    }
    counted = sum(length > 0 for length in lengths.values())
    total: Any = 0.0
    for b, row in enumerate(batch.rows):
        scores = policy.score([Row(row.ids, row.mask)])
        for logp, column in zip(scores.logp_K, scores.columns_K.tolist(), strict=True):
            advantage = batch.advantages_BT[b, column]
            ratio = (logp - row.logprobs[column]).exp()
            low = 1 - (actor.clip_ratio_low or actor.clip_ratio)
            high = 1 + (actor.clip_ratio_high or actor.clip_ratio)
            loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(low, high))
            if advantage < 0:
                loss = torch.minimum(loss, -advantage * actor.clip_ratio_c)
            weight = {
                "token-mean": 1 / sum(lengths.values()),
                "seq-mean-token-sum": 1 / counted,
                "seq-mean-token-mean": 1 / counted / lengths[batch.rollouts_B[b]],
                "seq-mean-token-sum-norm": 1 / counted / settings.response_tokens,
            }[actor.loss_agg_mode]
            total = total + weight * loss
    return list(torch.autograd.grad(total, policy.parameters()))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", [0, *long(1)])
def test_it_is_the_formulas_gradient(fresh: Fresh, mode: str, seed: int) -> None:
    """Against a flat twin: only sampled tokens are trained, each against its recorded logp."""
    policy = fresh("qwen2", seed)
    settings = config(f"actor.loss_agg_mode={mode}", "rollout.response_length=24")
    batch = make_batch(step_of_rollouts(policy, seed), settings)
    assert len(batch.rows) > len(set(batch.rollouts_B)), "some rollouts have several rows"
    found, metrics = gradient(policy, batch, settings)
    assert_same(found, flat_gradient(policy, batch, settings))
    assert metrics["max_dlogp"] == pytest.approx(0.1, abs=0.01), "the noise that was put in"
    assert metrics["ratio/clip_fraction"] == 0


@pytest.mark.parametrize(("layout", "mode"), each_once(LAYOUTS, MODES))
def test_micro_batches_do_not_change_it(
    fresh: Fresh, layout: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = fresh(layout, 3)
    whole = config(f"actor.loss_agg_mode={mode}", "rollout.response_length=24")
    batch = make_batch(step_of_rollouts(policy, 3), whole)
    wanted, _ = gradient(policy, batch, whole)
    cuts = [f"actor.max_tokens_per_micro_batch={n}" for n in (1, 40, 150)]
    cuts += [f"actor.ppo_micro_batch_size_per_gpu={n}" for n in (1, 3)]
    for cut in cuts:
        settings = config(f"actor.loss_agg_mode={mode}", "rollout.response_length=24", cut)
        found, _ = gradient(policy, batch, settings)
        assert_same(found, wanted)
    if mode == "token-mean":
        monkeypatch.setattr(policy.network, "large", True)
        settings = config("rollout.response_length=24", "actor.max_tokens_per_micro_batch=40")
        found, _ = gradient(policy, batch, settings)
        assert_same(found, wanted)


@pytest.mark.parametrize("coefficient", [0.01, *long(0.0)])
@pytest.mark.parametrize("mode", MODES)
def test_entropy_and_micro_batches(fresh: Fresh, mode: str, coefficient: float) -> None:
    """The entropy bonus is averaged as the loss is, over all rows, also those without variance."""
    policy = fresh("llama", 4)
    common = (
        f"actor.loss_agg_mode={mode}",
        "rollout.response_length=24",
        f"actor.entropy_coeff={coefficient}",
    )
    batch = make_batch(step_of_rollouts(policy, 4), config(*common))
    wanted, _ = gradient(policy, batch, config(*common))
    found, _ = gradient(policy, batch, config(*common, "actor.ppo_micro_batch_size_per_gpu=1"))
    assert_same(found, wanted)
    plain = config(*common[:2], "actor.entropy_coeff=0")
    without, _ = gradient(policy, batch, plain)
    same = all(torch.allclose(a, b, atol=1e-7) for a, b in zip(wanted, without, strict=True))
    assert same == (coefficient == 0)


@pytest.mark.parametrize("threads", [2, *long(3)])
def test_threads_do_not_change_a_bit(fresh: Fresh, threads: int) -> None:
    policy = fresh("qwen3", 5)
    settings = config("actor.max_tokens_per_micro_batch=40")
    batch = make_batch(step_of_rollouts(policy, 5), settings)
    wanted, told = gradient(policy, batch, settings)
    found, again = gradient(policy, batch, settings, threads=threads)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    assert told == again


def padded(batch: Batch, columns: int) -> Batch:
    """The batch with more padding on the right, filled with what must never be looked at."""

    def wider(tensor: Tensor, value: float) -> Tensor:
        more = torch.full((tensor.shape[0], columns), value, dtype=tensor.dtype)
        return torch.cat([tensor, more], dim=1)

    return dataclasses.replace(
        batch,
        mask_BT=wider(batch.mask_BT, 0),
        old_logp_BT=wider(batch.old_logp_BT, float("nan")),
        advantages_BT=wider(batch.advantages_BT, 0.0),
    )


def permuted(batch: Batch, order: Sequence[int]) -> Batch:
    """The batch with its rows in another order."""
    picked = list(order)
    return dataclasses.replace(
        batch,
        rows=[batch.rows[b] for b in picked],
        rollouts_B=[batch.rollouts_B[b] for b in picked],
        mask_BT=batch.mask_BT[picked],
        old_logp_BT=batch.old_logp_BT[picked],
        advantages_BT=batch.advantages_BT[picked],
    )


@pytest.mark.parametrize("mode", FEW_MODES)
def test_padding_and_order_do_not_change_it(fresh: Fresh, mode: str) -> None:
    policy = fresh("qwen2", 6)
    settings = config(f"actor.loss_agg_mode={mode}", "rollout.response_length=24")
    batch = make_batch(step_of_rollouts(policy, 6), settings)
    wanted, _ = gradient(policy, batch, settings)
    assert_same(gradient(policy, padded(batch, 37), settings)[0], wanted)
    order = torch.randperm(len(batch.rows), generator=torch.Generator().manual_seed(0)).tolist()
    assert_same(gradient(policy, permuted(batch, order), settings)[0], wanted)


def split(batch: Batch) -> Batch:
    """Every row cut into one row for each of its turns: same contexts, same trained tokens."""
    rows: list[Row] = []
    owners: list[int] = []
    parents: list[int] = []
    for b, row in enumerate(batch.rows):
        turns = _turns(row.mask)
        for begin, end in turns:
            mask = tuple(int(begin <= i < end) for i in range(end))
            logprobs = tuple(x if m else 0.0 for x, m in zip(row.logprobs[:end], mask, strict=True))
            rows.append(Row(row.ids[:end], mask, logprobs=logprobs))
            owners.append(batch.rollouts_B[b])
            parents.append(b)
    width = max(len(row.ids) for row in rows)
    mask_BT = torch.zeros(len(rows), width, dtype=torch.bool)
    for i, row in enumerate(rows):
        mask_BT[i, : len(row.mask)] = torch.tensor(row.mask, dtype=torch.bool)
    return dataclasses.replace(
        batch,
        rows=rows,
        rollouts_B=owners,
        mask_BT=mask_BT,
        old_logp_BT=batch.old_logp_BT[parents][:, :width] * mask_BT,
        advantages_BT=batch.advantages_BT[parents][:, :width] * mask_BT,
    )


def _turns(mask: Sequence[int]) -> list[tuple[int, int]]:
    edges = [i for i in range(1, len(mask) + 1) if (i < len(mask) and mask[i]) != mask[i - 1]]
    return list(zip(edges[::2], edges[1::2], strict=True))


def without_attention(policy: Any) -> set[int]:
    """Make every token depend on the token before it alone; the tensors that still see context."""
    blind: set[int] = set()
    for index, (name, tensor) in enumerate(policy.named_tensors()):
        if name.endswith(".out"):
            with torch.no_grad():
                tensor.zero_()
            blind.add(index)
    assert blind
    return blind


@pytest.mark.parametrize("mode", FEW_MODES)
def test_observations_carry_no_gradient(fresh: Fresh, mode: str) -> None:
    """Law 2: in a model that cannot see them, inserted observations change nothing at all."""
    import random

    policy = fresh("llama", 8)
    blind = without_attention(policy)
    settings = config(f"actor.loss_agg_mode={mode}", "rollout.response_length=24")
    opening = (7, 9)

    def step(extra: int) -> list[Rollout]:
        rng, out = random.Random(8), []
        for g in range(2):
            for m in range(3):
                known: tuple[int, ...] = ()
                calls = []
                for turn in range(3):
                    observed = tuple(rng.randrange(300) for _ in range(4))
                    inserted = tuple((31 * k + 5 * m) % 300 for k in range(extra * turn))
                    prompt = known + observed + inserted + opening
                    sampled = tuple(rng.randrange(300) for _ in range(5))
                    calls.append(call(policy, turn, prompt, sampled, 0.1, rng.randrange(1 << 30)))
                    known = prompt + sampled
                out.append(rollout(f"{g}-{m}", f"g{g}", calls, float(m == g)))
        return out

    plain, longer = (make_batch(step(extra), settings) for extra in (0, 11))
    assert len(longer.rows) == len(plain.rows) == 6
    assert longer.mask_BT.shape[1] > plain.mask_BT.shape[1]
    assert torch.equal(longer.advantages_BT[longer.mask_BT], plain.advantages_BT[plain.mask_BT])
    wanted, _ = gradient(policy, plain, settings)
    found, _ = gradient(policy, longer, settings)
    chosen = [i for i in range(len(wanted)) if i not in blind]
    assert_same([found[i] for i in chosen], [wanted[i] for i in chosen])


@pytest.mark.parametrize(
    ("mode", "cause"),
    each_once(MODES, [cause for cause in FailureCause if cause.infrastructure]),
)
def test_lost_rollouts_leave_the_gradient_of_the_rest(
    fresh: Fresh, mode: str, cause: FailureCause
) -> None:
    import random

    policy = fresh("qwen2", 10)
    settings = config(f"actor.loss_agg_mode={mode}", "rollout.response_length=24")
    clean = step_of_rollouts(policy, 10)
    rng, mixed = random.Random(0), list(clean)
    for number in range(5):
        calls = conversation(policy, rng, turns=2) if number % 2 else []
        lost = rollout(f"lost-{number}", f"g{number % 3}", calls, None, cause=cause)
        mixed.insert(rng.randrange(len(mixed)), lost)
    wanted, told = gradient(policy, make_batch(clean, settings), settings)
    found, again = gradient(policy, make_batch(mixed, settings), settings)
    assert_same(found, wanted)
    assert again["group/zero_variance"] == told["group/zero_variance"]


def test_a_step_without_variance_changes_no_weight(fresh: Fresh) -> None:
    policy = fresh("qwen2", 11)
    settings = config()
    batch = make_batch(step_of_rollouts(policy, 11, groups=1), settings)
    probe: Any = Probe(policy)
    version = policy.version
    metrics = update_policy(policy, probe, batch, settings)
    assert probe.steps == []
    assert metrics["group/zero_variance"] == 1
    assert "max_dlogp" not in metrics, "no row was scored, so nothing was compared"
    assert metrics["loss/policy"] == 0
    assert policy.version == version + 1


def test_several_optimizer_batches_share_out_the_rollouts(fresh: Fresh) -> None:
    policy = fresh("qwen2", 12)
    settings = config(
        "actor.ppo_mini_batch_size=4",
        "actor.ppo_epochs=2",
        "data.train_batch_size=3",
        "agent.num_chains=4",
        "actor.skip_zero_variance=false",
    )
    batch = make_batch(step_of_rollouts(policy, 12), settings)
    first, second, other = Probe(policy), Probe(policy), Probe(policy)
    for probe, seed in ((first, 0), (second, 0), (other, 1)):
        update_policy(policy, probe, batch, settings, seed=seed)
    assert len(first.steps) == 6
    for a, b in zip(first.steps, second.steps, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    assert not all(
        torch.equal(x, y)
        for a, b in zip(first.steps, other.steps, strict=True)
        for x, y in zip(a, b, strict=True)
    )


def test_the_first_forward_pass_measures_the_sampler(fresh: Fresh) -> None:
    """`max_dlogp` is the largest gap of a trained token, to the engine's number."""
    policy = fresh("qwen2", 13)
    settings = config("actor.skip_zero_variance=false")
    exact = step_of_rollouts(policy, 13)
    import random

    calls = [conversation(policy, random.Random(n), turns=2, noise=0.0) for n in range(4)]
    exact = [rollout(f"{n}", "g", c, float(n % 2)) for n, c in enumerate(calls)]
    _, told = gradient(policy, make_batch(exact, settings), settings)
    assert 0 <= told["max_dlogp"] < 1e-5
    late = calls[0][-1]
    wrong = dataclasses.replace(
        late,
        sampled=dataclasses.replace(
            late.sampled, logprobs=(late.sampled.logprobs[0] - 0.5, *late.sampled.logprobs[1:])
        ),
    )
    off = [rollout("0", "g", [*calls[0][:-1], wrong], 0.0), *exact[1:]]
    _, told = gradient(policy, make_batch(off, settings), settings)
    assert told["max_dlogp"] == pytest.approx(0.5, abs=1e-4)
    assert told["ratio/max"] == pytest.approx(2.718281828**0.5, rel=1e-3)


@pytest.mark.parametrize("correction", ["none", "token_tis", *long("icepop")])
@pytest.mark.parametrize("dtype", [torch.float32, *long(torch.bfloat16)])
def test_the_only_pass_may_tell_what_the_trainer_said_before(
    fresh: Fresh, correction: str, dtype: torch.dtype
) -> None:
    """With one optimizer step a batch, its own forward pass stands for a pass before it."""
    settings = config(f"rollout.correction={correction}", "actor.max_tokens_per_micro_batch=4096")
    numerics = Numerics(dtype=dtype)
    policy = fresh("qwen3")
    batch = make_batch(step_of_rollouts(policy, 3), settings)
    recorded = batch.old_logp_BT + 0.3 * batch.mask_BT * torch.randn(
        batch.mask_BT.shape, generator=torch.Generator().manual_seed(1)
    )
    batch = dataclasses.replace(batch, old_logp_BT=recorded)
    found: list[list[Tensor]] = []
    for known in (None, Learner(policy, settings, numerics).trainer_logp(batch)):
        probe = Probe(policy)
        told = dataclasses.replace(batch, trainer_logp_BT=known)
        update_policy(policy, probe, told, settings, numerics)
        found.append(probe.steps[0])
    assert single_pass_logprobs(settings, numerics) == (
        correction != "none" or dtype == torch.bfloat16
    )
    if single_pass_logprobs(settings, numerics):
        size = float(torch.stack([g.norm() for g in found[1]]).norm())
        gap = max(float((a - b).abs().max()) for a, b in zip(*found, strict=True))
        assert gap <= (1e-5 if dtype == torch.float32 else 2e-2) * max(1.0, size)


def test_what_needs_the_whole_batch_is_computed_before() -> None:
    for keys in (
        ["rollout.correction=sequence_tis"],
        ["actor.policy_loss.loss_mode=clip_cov"],
        ["actor.ppo_epochs=2"],
    ):
        settings = (
            config(*keys)
            if "correction" in keys[0]
            else config("rollout.correction=token_tis", *keys)
        )
        assert not single_pass_logprobs(settings, Numerics()), keys
