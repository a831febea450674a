"""A model that `vllm_server.py` serves: a policy, and the native engine over it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.testing import vllm_wire as wire

from tutelage.engine.factory import make_engine

if TYPE_CHECKING:
    from tutelage.engine.driver import EngineDriver
    from tutelage.policy.model import Policy

SLOTS = 32
KNOWN = 1024
"""The most probable tokens whose probabilities are asked for: of vocabularies up to this size all
are known, and with them each rank."""


class SampledModel:
    """A policy with an engine of its own; its tensors are changed in place."""

    def __init__(self, policy: Policy, max_length: int) -> None:
        self.policy = policy
        self.engine: EngineDriver = make_engine(
            policy, slots=SLOTS, max_length=max_length, invariant=True, schedule="free"
        )

    def score(self, ids: tuple[int, ...]) -> list[wire.Candidates]:
        """What each token but the first could have been, the most probable first."""
        import torch

        from tutelage.policy.row import Row

        row = Row(ids, (0, *(1,) * (len(ids) - 1)))
        scores_TV = self.policy.network.distribution([row], 1.0, torch.float32)
        top = scores_TV.topk(min(KNOWN, scores_TV.shape[1]), dim=-1)
        pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
        return [tuple(zip(i, v, strict=True)) for i, v in pairs]

    @property
    def vocabulary(self) -> int:
        """Rows of the embedding."""
        config: Any = self.policy.config.get_text_config()
        return int(config.vocab_size)

    @property
    def known(self) -> int:
        """Tokens that vLLM lets through: of the embedding or of the tokenizer, which are more."""
        return max(self.vocabulary, len(self.policy.codec.tokenizer))

    def load(self, folder: Path) -> None:
        """Take over the tensors of a folder, by name."""
        mine = dict(self.policy.hf_tensors())
        for name, tensor in wire.tensors_of(folder):
            if name not in mine and name != "lm_head.weight":
                raise KeyError(name)
            if name in mine:
                mine[name].copy_(tensor)
        self._loaded()

    def adapt(self, base: Policy, folder: Path) -> None:
        """Become `base` with the adapters of a folder."""
        mine = dict(self.policy.hf_tensors())
        for name, tensor in base.hf_tensors():
            mine[name].copy_(tensor)
        for name, change in wire.adapters_of(folder):
            mine[name].add_(change)
        self._loaded()

    def _loaded(self) -> None:
        self.policy.version += 1
        self.engine.update_weights(self.policy, self.policy.version)
