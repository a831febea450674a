"""A very small policy and an engine over it, created quickly and without a network.

The weights are random, with every tensor, biases and norms included, drawn wide enough that the
next token depends strongly on the previous ones. A freshly initialised model is almost uniform, and
tests on it pass whatever the code computes. `policy/model.py` creates the real ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tutelage.engine.factory import make_engine

if TYPE_CHECKING:
    from tutelage.engine.native import NativeEngine
    from tutelage.policy.model import Policy

CORPUS = (
    "What is 12 + 34? The answer is 46.",
    "What is the sum of 1 to 9? It is 45.",
    '<tool_call>{"name": "calculator", "arguments": {"expression": "12 + 34"}}</tool_call>',
    "system user assistant tool Tools: calculator(expression) sum_1_to_n(n)",
)
"""Default training text of the tokenizer of `tiny_policy`."""


def tiny_policy(
    layout: str = "qwen2",
    seed: int = 0,
    *,
    corpus: Iterable[str] = CORPUS,
    max_positions: int = 256,
) -> Policy:
    """Return a random policy with 2 blocks and width 32, in a layout of `policy.model.LAYOUTS`.

    Equal arguments give equal weights. Raises `ModelError` for an unknown layout.
    """
    import torch

    from tutelage.policy.model import build_policy

    policy = build_policy(
        corpus, size="test", layout=layout, seed=seed, vocab_size=320, max_positions=max_positions
    )
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, tensor in policy.named_tensors():
            noise = torch.randn(tensor.shape, generator=generator)
            if tensor.dim() > 1:
                tensor.copy_(0.2 * noise)
            else:
                tensor.add_(0.1 * noise)
    return policy


def tiny_engine(
    policy: Policy, *, slots: int = 8, max_length: int | None = None, invariant: bool = False
) -> NativeEngine:
    """Return a float32 native engine for `policy`; `max_length` is in tokens, by default that of
    the model."""
    return make_engine(policy, slots=slots, max_length=max_length, invariant=invariant).engine
