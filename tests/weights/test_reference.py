"""The KL from a reference: in the loss, in the reward, and who steers its price."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.marks import long
from torch import Tensor

from tutelage.algorithms.rl import estimate_advantages, kl_penalty
from tutelage.errors import ConfigError, RunError
from tutelage.policy.numerics import Numerics
from tutelage.policy.row import Row
from tutelage.runs.folder import create
from tutelage.testing import tiny_policy
from tutelage.weights import jobs
from tutelage.weights.batch import add_advantages, make_rows
from tutelage.weights.config import resolve
from tutelage.weights.learner import Learner

from .samples import LAPTOP, config, learn, step_of_rollouts
from .test_update import Probe, assert_same
from .tiny_job import Notes, material, overrides, run, steps

Fresh = Callable[..., Any]
KINDS = ("kl", "abs", "mse", "low_var_kl", "full")
LOSS = ("actor.use_kl_loss=true", "actor.kl_loss_coef=1.0", "actor.skip_zero_variance=false")


def apart(policy: Any) -> Any:
    """A reference that is not the policy."""
    other = policy.copy()
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for tensor in other.parameters():
            tensor.add_(0.05 * torch.randn(tensor.shape, generator=generator))
    return other


def learner_of(policy: Any, *keys: str, reference: Any = None) -> Learner:
    """A learner, with another reference than the policy where one is given."""
    made = Learner(policy, config(*keys), Numerics())
    if reference is not None:
        assert made.reference is not None
        made.reference.policy = reference
    return made


def gradient(policy: Any, learner: Learner, seed: int) -> tuple[list[Tensor], Mapping[str, float]]:
    probe: Any = Probe(policy)
    learner.optimizer = probe
    rollouts = step_of_rollouts(policy, seed)
    _, told = learn(learner, rollouts)
    (grads,) = probe.steps
    return grads, told


@pytest.mark.parametrize(
    ("layout", "kind"),
    [
        ("qwen2", "kl"),
        ("qwen2", "low_var_kl"),
        ("qwen2", "kl+"),
        ("gpt2", "mse"),
        *long(*(("qwen2", kind) for kind in ("abs", "mse", "full"))),
        *long(*(("qwen2", f"{kind}+") for kind in KINDS[1:])),
        *long(("gpt2", "k3"), ("gpt2", "full")),
    ],
)
def test_the_loss_gets_the_formulas_gradient(fresh: Fresh, layout: str, kind: str) -> None:
    """The difference that the term makes to the gradient, against the formula token by token."""
    policy = fresh(layout, 1)
    reference = apart(policy)
    plain, _ = gradient(policy, learner_of(policy, "actor.skip_zero_variance=false"), 1)
    keys = (*LOSS, f"actor.kl_loss_type={kind}")
    found, told = gradient(policy, learner_of(policy, *keys, reference=reference), 1)
    rows = make_rows(step_of_rollouts(policy, 1), config())
    total: Any = 0.0
    value = 0.0
    exact: list[Any] = [0.0] * len(policy.parameters())
    for row in rows.rows:
        scores = policy.score([row])
        with torch.no_grad():
            ref = reference.score([row]).logp_K
        if kind.startswith("full"):
            each, slopes = exact_kl(policy, reference, row)
            if kind == "full":
                exact = [e + s for e, s in zip(exact, slopes, strict=True)]
            else:  # the value of the one, the gradient of the other
                total = total + kl_penalty(scores.logp_K[None], ref[None], "k2")[0].sum()
        else:
            each = kl_penalty(scores.logp_K[None], ref[None], kind)[0]
            total = total + each.sum()
        value += float(each.detach().sum())
    tokens = int(rows.mask_BT.sum())
    if kind == "full":
        term: Any = [e / tokens if isinstance(e, Tensor) else None for e in exact]
    else:
        term = torch.autograd.grad(total / tokens, policy.parameters(), allow_unused=True)
    wanted = [p + t for p, t in zip(plain, term, strict=True) if t is not None]
    assert_same([f for f, t in zip(found, term, strict=True) if t is not None], wanted)
    assert told["loss/kl"] == pytest.approx(value / tokens, rel=1e-3, abs=1e-5)


def exact_kl(policy: Any, reference: Any, row: Row) -> tuple[Tensor, list[Any]]:
    """Sum over the vocabulary, from every token's own score; and the gradient of all of them.

    One token after the other: the graphs of a whole row at once take gigabytes.
    """
    vocab = policy.config.vocab_size
    out: list[Tensor] = []
    slopes: list[Any] = [0.0] * len(policy.parameters())
    for column in (c for c, m in enumerate(row.mask) if m):
        heads = [(*row.ids[:column], v) for v in range(vocab)]
        mask = (0,) * column + (1,)
        every = [Row(ids, mask) for ids in heads]
        logp = policy.score(every).logp_K
        with torch.no_grad():
            ref = reference.score(every).logp_K
        distance = (logp.exp() * (logp - ref)).sum()
        out.append(distance.detach())
        if distance.requires_grad:
            found = torch.autograd.grad(distance, policy.parameters(), allow_unused=True)
            slopes = [s if f is None else s + f for s, f in zip(slopes, found, strict=True)]
    return torch.stack(out), slopes


@pytest.mark.parametrize("kind", ["kl", "low_var_kl", *long("abs", "mse", "full")])
def test_the_reward_pays_for_each_token(fresh: Fresh, kind: str) -> None:
    """Advantages are those of `score - beta * kl`, and groups are counted by their scores."""
    policy = fresh("qwen2", 2)
    reference = apart(policy)
    keys = (
        "algorithm.use_kl_in_reward=true",
        f"algorithm.kl_penalty={kind}",
        "algorithm.kl_ctrl.kl_coef=0.3",
        "algorithm.adv_estimator=reinforce_plus_plus",
    )
    learner = learner_of(policy, *keys, reference=reference)
    assert learner.reference is not None
    found = make_rows(step_of_rollouts(policy, 2), config(*keys))
    found = replace(found, trainer_logp_BT=found.old_logp_BT)
    found = learner.reference.measure(policy, found)
    kl_BT = torch.zeros_like(found.rewards_BT)
    for b, row in enumerate(found.rows):
        columns = [c for c, m in enumerate(row.mask) if m]
        with torch.no_grad():
            ref = reference.score([row]).logp_K
            if kind == "full":
                kl_BT[b, columns] = exact_kl(policy, reference, row)[0]
            else:
                logp = found.old_logp_BT[b, columns]
                kl_BT[b, columns] = kl_penalty(logp[None], ref[None], kind)[0]
    assert found.kl_BT is not None
    assert torch.allclose(found.kl_BT * found.mask_BT, kl_BT, atol=1e-4)
    wanted, _ = estimate_advantages(
        "reinforce_plus_plus",
        found.rewards_BT - 0.3 * kl_BT,
        found.mask_BT,
        rollouts_B=found.rollouts_B,
    )
    batch = add_advantages(found, config(*keys), beta=learner.reference.beta)
    assert torch.allclose(batch.advantages_BT, wanted, atol=1e-3)
    assert wanted.any()
    probe: Any = Probe(policy)
    learner.optimizer = probe
    _, told = learn(learner, step_of_rollouts(policy, 2))
    assert told["kl/reward"] == pytest.approx(float(kl_BT[found.mask_BT].mean()), abs=1e-4)
    assert told["kl/coef"] == 0.3
    assert told["group/zero_variance"] == pytest.approx(1 / 3)


def test_the_controller_moves_the_price_for_the_next_batch(fresh: Fresh) -> None:
    policy = fresh("qwen2", 3)
    keys = (
        "algorithm.use_kl_in_reward=true",
        "algorithm.kl_penalty=low_var_kl",
        "algorithm.kl_ctrl.type=adaptive",
        "algorithm.kl_ctrl.kl_coef=0.3",
        "algorithm.kl_ctrl.target_kl=0.001",
        "algorithm.kl_ctrl.horizon=120",
    )
    learner = learner_of(policy, *keys, reference=apart(policy))
    rollouts = step_of_rollouts(policy, 3)
    _, told = learn(learner, rollouts)
    assert told["kl/coef"] == 0.3, "what this batch paid"
    assert learner.reference is not None
    assert learner.reference.beta == pytest.approx(0.3 * (1 + 0.2 * 12 / 120))
    state = learner.state_dict()
    other = learner_of(policy, *keys)
    other.load_state_dict(state)
    assert other.reference is not None
    assert other.reference.beta == learner.reference.beta


def test_the_reference_stays_while_the_policy_moves(fresh: Fresh) -> None:
    policy = fresh("qwen3", 4)
    start = [t.clone() for t in policy.parameters()]
    learner = learner_of(policy, *LOSS, "actor.optim.lr=1e-2")
    _, told = learn(learner, step_of_rollouts(policy, 4))
    assert learner.reference is not None
    kept = learner.reference.policy.parameters()
    assert all(torch.equal(a, b) for a, b in zip(start, kept, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(start, policy.parameters(), strict=True))
    policy.version = 0  # that of the rollouts, which are thus of the present policy
    _, later = learn(learner, step_of_rollouts(policy, 4), seed=1, step=1)
    assert later["kl/ref"] > 1e-6
    assert told.keys() == later.keys()


def test_without_any_kl_no_reference_is_loaded(fresh: Fresh) -> None:
    policy = fresh("qwen2", 5)
    assert learner_of(policy).reference is None
    assert learner_of(policy, "algorithm.use_kl_in_reward=true").reference is not None
    assert learner_of(policy, "actor.use_kl_loss=true").reference is not None
    assert learner_of(policy).critic is None


def test_a_checkpoint_without_a_needed_part_is_refused(fresh: Fresh) -> None:
    policy = fresh("qwen2", 6)
    state = learner_of(policy).state_dict()
    with pytest.raises(RunError, match="no reference"):
        learner_of(policy, *LOSS).load_state_dict(state)
    with pytest.raises(RunError, match="no critic"):
        learner_of(policy, "algorithm.adv_estimator=gae").load_state_dict(state)


@pytest.fixture(scope="module")
def source(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return material(tmp_path_factory.mktemp("source"))


@pytest.mark.full
def test_a_reference_of_its_own(source: Path, tmp_path: Path) -> None:
    tiny_policy("qwen2", 8).save(tmp_path / "other")
    folder = run(source, tmp_path / "run", actor__use_kl_loss="true", ref__path=tmp_path / "other")
    assert all(line["kl/ref"] > 0.1 for line in steps(folder))


@pytest.mark.parametrize(
    "keys",
    [
        {"actor__use_kl_loss": "true", "ref__path": "OTHER"},
        {"algorithm__adv_estimator": "gae", "critic__model__path": "OTHER"},
    ],
)
def test_a_second_model_with_other_tokens_is_refused_before_anything_is_written(
    source: Path, tmp_path: Path, keys: dict[str, object]
) -> None:
    tiny_policy("qwen2", 8, corpus=["quite another text"]).save(tmp_path / "other")
    changed = {k: tmp_path / "other" if v == "OTHER" else v for k, v in keys.items()}
    resolved = resolve("math", overrides(source, **changed), machine=LAPTOP)
    folder = create(tmp_path / "run")
    with pytest.raises(ConfigError, match="the vocabulary of"):
        jobs.train(resolved, folder, Notes())
    assert not folder.config.exists()


@pytest.mark.full
def test_kl_as_a_loss_warns_once(source: Path, tmp_path: Path) -> None:
    keys = overrides(source, actor__use_kl_loss="true", actor__kl_loss_type="kl")
    notes = Notes()
    jobs.train(resolve("math", keys, machine=LAPTOP), create(tmp_path / "run"), notes)
    assert sum("expected gradient of zero" in note for note in notes.notes) == 1
