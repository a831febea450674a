"""What a rank holds in memory beside activations, and whether it fits: told before a run begins.

A trained parameter has four numbers of float32: itself, its gradient, AdamW's two. A matrix with
adapters is there without them, as it is sampled from, and as each thread of a step computes with
it.
Parameters are shared out over the ranks from 20 million on, and the policy that samples is whole:
beside the engine's copy on the first rank's device, and in the main memory of the others.
`inputs.py` has the models, `process_group.py` the ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tutelage.config import Machine, RunConfig
from tutelage.errors import RunError
from tutelage.policy.described import DescribedModel
from tutelage.policy.machine import SMALL_MODEL, gradient_threads, machine_facts
from tutelage.policy.model import LAYOUTS
from tutelage.policy.sources import SMOLLM2, local_folder
from tutelage.weights.config.extensions import has_critic

if TYPE_CHECKING:
    from tutelage.weights.inputs import TrainingInputs

NODES = (2, 4, 8, 16)
"""Numbers of nodes that are looked through for a setting that fits."""
ADAPTED = 0.01
"""Share of a model's parameters that adapters of rank 16 have at most, as an estimate."""

MARGIN = 0.1
"""Share of the memory that a setting leaves for activations where it is proposed."""

JOB_PEAK = 4_700_000_000
"""Bytes that `tutelage train word-problems` was seen to take, activations and libraries included:
more than the 4 GB below which its model is refused."""


@dataclass(frozen=True, slots=True)
class Models:
    """The parameters of a training."""

    policy: int
    trained: int
    """Those of the policy that have a gradient."""
    reference: bool = False
    critic: bool = False
    whole_critic: bool = False
    """Whether the critic is a model of its own, which has no adapters."""
    merged: int = 0
    """Those of the matrices that have adapters."""
    whole_reference: bool = False
    """Whether the reference is a model of its own."""
    copies: int = 2
    """How often these are there with their adapters; see `_copies`."""
    linear: int = 0
    """Those of all matrices that may have adapters, where that is known."""


def models_of(setting: TrainingInputs) -> Models:
    """Those of a run."""
    policies = [setting.policy, *setting.others.values()]
    config, named = setting.config, dict(setting.policy.named())
    pairs = [(t, named[f"{name[:-1]}B"]) for name, t in named.items() if name.endswith(".lora_A")]
    return Models(
        sum(policy.count() for policy in policies),
        sum(p.numel() for policy in policies for p in policy.parameters() if p.requires_grad),
        config.needs_reference,
        has_critic(config),
        config.critic.model.path is not None,
        sum(a.shape[1] * b.shape[0] for a, b in pairs),
        config.ref.path is not None,
        _copies(config, setting.policy.count(), gpu=setting.choice.device.type == "cuda"),
    )


def _copies(config: RunConfig, parameters: int, *, gpu: bool) -> int:
    """How often a matrix is there with its adapters: one is sampled from, and one is what each
    thread of a step computes with, which gradient checkpointing has block by block."""
    if config.model.enable_gradient_checkpointing:
        return 1
    return 1 + gradient_threads(config, parameters, gpu=gpu)


def parts_of(models: Models, machine: Machine, *, gpu: bool) -> dict[str, int]:
    """Bytes of the rank that holds most, by what they are for: on its GPU, or in main memory."""
    ranks = machine.nodes * machine.ranks
    share = ranks if models.policy >= SMALL_MODEL else 1
    out = {"weights, gradients and optimizer": (4 * models.policy + 12 * models.trained) // share}
    if models.reference:
        # With adapters it shares what is frozen, but for the matrices that have them.
        shares = models.merged and models.copies and not models.whole_reference and share == 1
        out["reference"] = 4 * (models.merged if shares else models.policy) // share
    if models.critic:
        # A copy of the policy has its adapters, too.
        trained = models.policy if models.whole_critic else models.trained
        out["critic"] = (4 * models.policy + 12 * trained) // share
    if models.merged and share == 1:
        out["adapters merged"] = 4 * models.merged * models.copies
    if share > 1:
        out["weights to sample from"] = 4 * models.policy
    if gpu:
        out["the engine's copy"] = 2 * models.policy
    return out


def words(models: Models, machine: Machine, *, gpu: bool) -> str:
    """What a rank holds, and of how much."""
    parts = parts_of(models, machine, gpu=gpu)
    listed = ", ".join(f"{what} {_gb(size)}" for what, size in parts.items())
    several = machine.nodes * machine.ranks > 1
    each = "the first rank" if several else "this process"
    total = _gb(sum(parts.values()))
    ranks = f", for {machine.ranks} ranks" if machine.ranks > 1 else ""
    there = f"there are {_gb(machine.memory)}{ranks}"
    if gpu:
        there = f"a GPU has {_gb(machine.gpu_memory)}"
    return f"{each} holds {total} beside activations and libraries ({listed}); {there}"


def here(*, gpu: bool) -> Machine:
    """This machine, with the memory of its first GPU where a run is on one."""
    machine = machine_facts()
    if not gpu:
        return machine
    import torch

    return replace(machine, gpu_memory=torch.cuda.get_device_properties(0).total_memory)


def fact(setting: TrainingInputs) -> dict[str, str]:
    """What a rank of a run holds, where that is worth a word."""
    models, gpu = models_of(setting), setting.choice.device.type == "cuda"
    if setting.group.size == 1 and models.policy < SMALL_MODEL:
        return {}
    machine, text = here(gpu=gpu), ""
    config = setting.config
    job = config.recipe == "word-problems" and config.model.path == SMOLLM2
    if job and config.algorithm.name == "rl" and not gpu and 0 < machine.memory < JOB_PEAK:
        text = (
            f". The job took {_gb(JOB_PEAK)} at its peak, so it may be killed here; its "
            "demonstrations alone (--algorithm sft) took 3.5 GB"
        )
    return {"memory": words(models, machine, gpu=gpu) + text}


def check(models: Models, machine: Machine, *, gpu: bool) -> None:
    """Raise `RunError` for a training that cannot fit, with the smallest setting that does."""
    if _fits(models, machine, gpu):
        return
    raise RunError(
        f"a model of {models.policy / 1e9:.2f} billion parameters does not fit in memory: "
        f"{words(models, machine, gpu=gpu)}. The smallest setting that fits: "
        f"{smallest_setting(models, machine, gpu=gpu)}"
    )


def smallest_setting(models: Models, machine: Machine, *, gpu: bool) -> str:
    """Return what to write instead: the smallest other setting that leaves `MARGIN` for
    activations."""
    most = max(1, machine.cuda_devices) if gpu else 1
    numbers: Sequence[tuple[int, int]] = [(1, n) for n in range(1, most + 1)]
    numbers = [*numbers, *((n, most) for n in NODES)] if gpu else numbers
    base = models.policy - (models.trained if models.merged else 0)
    rank16, merged = int(ADAPTED * base), models.merged or models.linear or base
    few = replace(models, policy=base + rank16, trained=rank16, merged=merged)
    thin, rank = replace(few, copies=min(1, few.copies)), "model.lora.rank=16"
    blocks = f"{rank} model.enable_gradient_checkpointing=true"
    for smaller, adapters in ((models, ""), (few, rank), (thin, blocks)):
        for nodes, ranks in numbers:
            there = replace(machine, nodes=nodes, ranks=ranks)
            if not _fits(smaller, there, gpu, MARGIN):
                continue
            more = f" --nnodes={nodes}" if nodes > 1 else ""
            command = f"torchrun{more} --nproc-per-node={ranks} -m tutelage ..."
            way = "one process" if nodes * ranks == 1 else command
            same = adapters and (nodes, ranks) == (machine.nodes, machine.ranks)
            return adapters if same else f"{adapters} and {way}" if adapters else way
    return "a smaller model"


def check_stored(config: RunConfig) -> None:
    """`check` of a model that is in a folder, before it is loaded."""
    if (found := _stored(config)) is not None:
        models, machine, gpu = found
        check(models, machine, gpu=gpu)


def stored_words(config: RunConfig) -> str | None:
    """`words` of a model that is in a folder, where that says its size."""
    found = _stored(config)
    return None if found is None else words(found[0], found[1], gpu=found[2])


def _stored(config: RunConfig) -> tuple[Models, Machine, bool] | None:
    """The models of a training by what lies in a folder, the machine, and whether by its GPU."""
    if config.model.path is None:
        return None
    import torch

    described = DescribedModel.of(Path(local_folder(config.model.path)).expanduser())
    if described is None:
        return None
    count, lora = described.count(), config.model.lora
    trained, adapted = count, 0
    fused = described.layout in LAYOUTS  # others run on peft's own layers
    gpu = torch.cuda.is_available() and config.trainer.device != "cpu"
    copies = _copies(config, count, gpu=gpu) if fused else 0
    if lora.rank:
        trained, adapted = described.adapter_counts(lora.rank, lora.target_modules)
        count += trained
    own = config.critic.model.path is not None
    models = Models(count, trained, config.needs_reference, has_critic(config), own, adapted)
    models = replace(models, copies=copies, linear=described.adapter_counts(1)[1])
    return replace(models, whole_reference=config.ref.path is not None), here(gpu=gpu), gpu


def _fits(models: Models, machine: Machine, gpu: bool, margin: float = 0) -> bool:
    """Whether a rank has room, and leaves `margin` of its memory."""
    size, there = sum(parts_of(models, machine, gpu=gpu).values()), machine.gpu_memory
    if not gpu:
        size, there = size * machine.ranks, machine.memory
    return not there or size <= (1 - margin) * there


def _gb(size: int) -> str:
    if size < 10e6:
        return f"{size / 1e6:.2f} MB"
    return f"{size / 1e9:.2f} GB" if size < 10e9 else f"{size / 1e9:.0f} GB"
