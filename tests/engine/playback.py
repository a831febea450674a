"""The slow way to sample, and helpers to drive a native engine by hand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tutelage.engine.native import NativeEngine
from tutelage.engine.protocol import Request
from tutelage.engine.sampler import draw, draw_uniforms
from tutelage.policy.hf_model import HFNetwork
from tutelage.policy.model import Policy
from tutelage.types import Sampled, Sampling, StopReason


def transformers_model(policy: Policy) -> Any:
    """The policy's weights in the transformers implementation."""
    if isinstance(policy.network, HFNetwork):
        return policy.network.model
    model: Any = AutoModelForCausalLM.from_config(policy.config, dtype=torch.float32)
    model.load_state_dict(policy.network.state(), strict=False)
    model.tie_weights()
    return model.eval()


@torch.no_grad()
def slowly(policy: Policy, request: Request, max_length: int = 256) -> Sampled:
    """One full transformers forward a token: no cache, no batch, no neighbours."""
    model, sampling = transformers_model(policy), request.sampling
    ids, logp, raw = list(request.prompt_ids), [], []
    limit = max(1, min(sampling.max_tokens, max_length - len(ids)))
    reason = StopReason.LENGTH
    for uniform in draw_uniforms(request.seed, limit):
        logits = model(torch.tensor([ids])).logits[0, -1:].float()
        token, warm, cold = draw(
            logits,
            torch.tensor([uniform]),
            torch.tensor([sampling.temperature]),
            torch.tensor([sampling.top_p]),
            torch.tensor([sampling.top_k]),
        )
        ids.append(int(token))
        logp.append(float(warm))
        raw.append(float(cold))
        said = ids[len(request.prompt_ids) :]
        text = policy.codec.decode(said)
        if ids[-1] in policy.codec.eos_ids or any(s in text for s in sampling.stop):
            reason = StopReason.STOP
            break
    return Sampled(tuple(said), tuple(logp), tuple(raw), reason, 0)


def finish(engine: NativeEngine, requests: Iterable[Request] = ()) -> list[Sampled]:
    """Submit requests, step until the engine is idle, and return the results in their order."""
    handles = [engine.submit(r) for r in requests]
    results: dict[int, Sampled] = {}
    for _ in range(5000):
        if not engine.is_busy:
            break
        results.update(engine.step())
    assert not engine.is_busy
    return [results[h] for h in handles]


def one(engine: NativeEngine, request: Request) -> Sampled:
    """`finish` for a single request."""
    return finish(engine, [request])[0]


def prompt(seed: int, length: int = 12) -> tuple[int, ...]:
    """Token ids without special tokens, a function of the arguments."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(5, 300, (length,), generator=generator).tolist())


def request(
    seed: int,
    *,
    ids: tuple[int, ...] | None = None,
    session: str | None = None,
    order: int = 0,
    temperature: float = 1.0,
    max_tokens: int = 20,
    **sampling: Any,
) -> Request:
    """A request with a prompt and a seed of its own."""
    wanted = Sampling(temperature=temperature, max_tokens=max_tokens, **sampling)
    return Request(ids or prompt(seed, 5 + seed % 17), wanted, 1000 + seed, order, session)


def short_chunks(patch: pytest.MonkeyPatch, *, whole: int, chunk: int) -> None:
    """Prefill prompts of more than `whole` tokens in chunks of `chunk`."""
    for module in ("engine.native", "policy.decoder", "policy.packed_decoder"):
        patch.setattr(f"tutelage.{module}.WHOLE_PROMPT", whole)
    for backend in ("engine.backends._PaddedBackend", "policy.packed_decoder.PackedDecoder"):
        patch.setattr(f"tutelage.{backend}.prefill_chunk", chunk)
