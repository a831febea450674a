"""What the package can do today: everything else that the schema names is refused.

The one place to extend when a backend is added; until then a key that asks for it is refused
(`checks.py`), never ignored.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Built:
    """What the package can do today; everything else that the schema names is refused."""

    backends: tuple[str, ...] = ("native",)
    narrowed_sampling: bool = False
    """Training with top_p or top_k, which needs the support set replayed in the trainer."""
    gradient_checkpointing: bool = False
    offload: bool = False
    nodes: int = 1
    gpus_per_node: int = 1
    tensor_parallel: int = 1

    @classmethod
    def everything(cls) -> Built:
        """All that the schema can name: what the checks allow once every part exists."""
        return cls(
            backends=("native", "vllm", "openai"),
            narrowed_sampling=True,
            gradient_checkpointing=True,
            offload=True,
            nodes=1024,
            gpus_per_node=1024,
            tensor_parallel=1024,
        )


BUILT = Built()
"""What is built today."""
