"""What a configuration is checked against: the machine it will run on, and what is built.

Both are passed in, never detected here: finding GPUs needs torch, and a test of an eight-GPU
command should run anywhere. `Built` is the one place to extend when an estimator, a loss or a
backend is added; until then a key that asks for it is refused (`checks.py`), never ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, get_args

from tutelage.config.fields import LoggerName
from tutelage.config.rl import Aggregation, Correction, Estimator, LossMode
from tutelage.config.schema import RunConfig, Template


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine of a run: GPUs it can see, CPU cores it may use, whether vLLM can be reached."""

    cuda_devices: int
    cores: int
    vllm: bool = False
    nodes: int = 1


class LossRule(Protocol):
    """What a policy loss declares of itself (`LossDefaults` in `algorithms/rl/losses`)."""

    @property
    def source(self) -> str:
        """Who says so."""
        ...

    @property
    def aggregation(self) -> str:
        """Its value of `actor.loss_agg_mode`."""
        ...

    @property
    def clip(self) -> tuple[float, float] | None:
        """Its clip distances, low and high; None where it clips no ratio."""
        ...

    def contradictions(
        self, aggregation: str | None, low: float | None, high: float | None
    ) -> Iterable[tuple[str, object, object]]:
        """(key of `actor`, value, its own) of each choice that its paper contradicts."""
        ...


@dataclass(frozen=True, slots=True)
class Built:
    """What the package can do today; everything else that the schema names is refused."""

    estimators: tuple[str, ...] = get_args(Estimator)
    loss_modes: tuple[str, ...] = get_args(LossMode)
    aggregations: tuple[str, ...] = get_args(Aggregation)
    corrections: tuple[str, ...] = get_args(Correction)
    losses: Mapping[str, LossRule] = field(default_factory=dict[str, LossRule], hash=False)
    """What the losses declare, where it is known: it takes torch to read it. `policy/machine.py`
    fills it in; without it a null key stays null, and the loss takes the same when it is called."""
    agent_types: tuple[str, ...] = ("hf", "react", "code")
    templates: tuple[str, ...] = ("qwen2.5", "qwen2.5-vl", "qwen3", "llama-3.2")
    backends: tuple[str, ...] = ("native",)
    loggers: tuple[str, ...] = get_args(LoggerName)
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
            agent_types=("hf", "react", "code", "gui"),
            templates=get_args(Template),
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


def device_of(config: RunConfig, machine: Machine) -> Literal["cpu", "cuda"]:
    """Where the run trains: what `trainer.device` names, or the GPU that `auto` finds."""
    if config.trainer.device == "auto":
        return "cuda" if machine.cuda_devices else "cpu"
    return config.trainer.device
