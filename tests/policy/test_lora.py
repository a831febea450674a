"""Adapters: the same numbers as peft's, in the trainer, the engine and the files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tutelage.config.schema import LoraConfig
from tutelage.engine.backends import make_backend
from tutelage.errors import ConfigError
from tutelage.policy.lora import save_adapter, with_lora
from tutelage.policy.model import Policy, load_policy
from tutelage.policy.row import Row
from tutelage.testing import tiny_policy

ROWS = [
    Row(tuple(range(20, 50)), (0,) * 8 + (1,) * 22),
    Row((*range(20, 30), 7, 8, 9), (0,) * 8 + (1,) * 5),
]
PLACES = [(r, c) for r, row in enumerate(ROWS) for c in range(len(row.ids)) if row.mask[c]]
FUSED = ("qwen2", "qwen3", "llama")
FALLBACK = ("gpt2", "sliding")
SOME = LoraConfig(rank=3, alpha=8.0, target_modules=("q_proj", "v_proj", "up_proj"))
EVERY = LoraConfig(rank=4, alpha=16.0)


def adapted(policy: Policy, lora: LoraConfig) -> Policy:
    """Adapters as training might leave them: nothing is zero."""
    made = with_lora(policy, lora, seed=1)
    generator = torch.Generator().manual_seed(2)
    tensors = {n: 0.1 * torch.randn(t.shape, generator=generator) for n, t in made.named_tensors()}
    made.load_tensors(tensors)
    return made


def logp_of(model: Any) -> torch.Tensor:
    """Log-probabilities of the trained tokens by plain forwards."""
    found = [model(torch.tensor([row.ids])).logits[0].log_softmax(-1) for row in ROWS]
    return torch.stack([found[r][c - 1, ROWS[r].ids[c]] for r, c in PLACES])


@pytest.fixture(params=[*((n, EVERY) for n in (*FUSED, *FALLBACK)), ("qwen3", SOME)])
def case(request: Any, fresh: Callable[..., Any], tmp_path: Path) -> tuple[Policy, str]:
    """An adapted policy, and the folder of the model below it."""
    name, lora = request.param
    base = fresh(name)
    base.save(tmp_path / "base")
    return adapted(base, lora), str(tmp_path / "base")


def test_fresh_adapters_change_nothing(fresh: Callable[..., Any]) -> None:
    for name in (*FUSED, *FALLBACK):
        before = fresh(name).score(ROWS).logp_K.detach()
        after = with_lora(fresh(name), EVERY, seed=1)
        torch.testing.assert_close(after.score(ROWS).logp_K.detach(), before, atol=1e-6, rtol=0)
        assert all(".lora_" in n for n, _ in after.named_tensors())
        assert sum(t.numel() for t in after.parameters()) < after.count() / 2


def test_peft_reads_the_adapters_and_computes_the_same(
    case: tuple[Policy, str], tmp_path: Path
) -> None:
    from peft import PeftModel  # what it imports is large

    policy, base = case
    assert save_adapter(policy, tmp_path / "adapter", base=base)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    plain = logp_of(model).detach()
    peft: Any = PeftModel.from_pretrained(model, str(tmp_path / "adapter"), is_trainable=True)
    peft.eval()
    wanted = logp_of(peft)
    scored = policy.score(ROWS).logp_K
    torch.testing.assert_close(scored, wanted, atol=2e-5, rtol=1e-5)
    assert (wanted - plain).abs().max() > 0.01
    weight = torch.linspace(-1, 1, len(PLACES))
    ours = torch.autograd.grad((scored * weight).sum(), policy.parameters())
    theirs = {n: p for n, p in peft.named_parameters() if p.requires_grad}
    grads = torch.autograd.grad((wanted * weight).sum(), list(theirs.values()))
    by_shape = sorted(float(g.norm()) for g in grads)
    assert sorted(float(g.norm()) for g in ours) == pytest.approx(by_shape, rel=1e-3, abs=1e-4)


def test_the_saved_policy_is_the_merged_one(case: tuple[Policy, str], tmp_path: Path) -> None:
    policy, _ = case
    policy.save(tmp_path / "merged")
    whole = load_policy(str(tmp_path / "merged"))
    expected = policy.score(ROWS).logp_K.detach()
    torch.testing.assert_close(whole.score(ROWS).logp_K.detach(), expected, atol=2e-5, rtol=1e-5)
    assert not save_adapter(whole, tmp_path / "none", base="x")


def test_the_engine_takes_up_each_update(case: tuple[Policy, str]) -> None:
    policy, _ = case
    backend = make_backend(policy, 1, 64, torch.float32)
    for scale in (1.0, -0.5):
        policy.load_tensors({n: scale * t.detach().clone() for n, t in policy.named_tensors()})
        backend.load(policy)
        ids = torch.tensor([ROWS[0].ids])
        found = backend.extend(
            ids[:, :-1], torch.tensor([0]), torch.tensor([ids.shape[1] - 1]), 1, ids.shape[1] - 1
        )
        engine = found[0].log_softmax(-1)[ROWS[0].ids[-1]]
        trainer = policy.score(ROWS[:1]).logp_K[-1].detach()
        assert abs(float(engine) - float(trainer)) < 1e-4


def test_copies_share_the_base_and_nothing_else(fresh: Callable[..., Any]) -> None:
    for name in ("qwen2", "gpt2"):
        policy = adapted(fresh(name), EVERY)
        copied = policy.copy()
        before = copied.score(ROWS).logp_K.detach()
        policy.load_tensors({n: torch.zeros_like(t) for n, t in policy.named_tensors()})
        assert torch.equal(copied.score(ROWS).logp_K.detach(), before)
        moved = policy.to(torch.device("cpu"))
        assert torch.equal(moved.score(ROWS).logp_K, policy.score(ROWS).logp_K)


def test_a_target_that_is_none_is_refused() -> None:
    for targets in (("q_proj", "embed"), ("nothing",)):
        with pytest.raises(ConfigError, match="target_modules"):
            with_lora(tiny_policy(), LoraConfig(rank=2, alpha=4.0, target_modules=targets), seed=0)
