"""What has to be seen on a GPU, each check with its bound: `gpu_checks.sh` runs it.

    python -m benchmarks.scale.gpu_checks --out gpu_checks.json
    python -m benchmarks.scale.gpu_checks --cpu

Every check prints a line; the exit status is 1 where a bound does not hold. `--cpu` runs all of it
on the CPU with tiny models, so that the script itself is tested. Weights are random: nothing is
downloaded.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tutelage.config import RunConfig
from tutelage.engine.factory import make_engine
from tutelage.engine.protocol import Request
from tutelage.policy.machine import (
    ComputeSettings,
    apply_settings,
    choose_compute,
    compute_conditions,
)
from tutelage.policy.model import Policy
from tutelage.policy.network import FusedNetwork
from tutelage.policy.numerics import Numerics
from tutelage.policy.row import Row
from tutelage.policy.weights import DecoderShape, DecoderWeights, Layer
from tutelage.testing import tiny_policy
from tutelage.types import Sampled, Sampling
from tutelage.weights.cold_start import supervised_step
from tutelage.weights.optim import SUPERVISED, make_optimizer
from tutelage.weights.process_group import ONE_PROCESS

BOUNDS = {torch.float32: 1e-3, torch.bfloat16: 0.2}
"""Most that sampler and trainer may differ by, in nats a token."""
SIZES = {
    "1.5B": (28, 1536, 12, 2, 8960, 151_936),
    "3B": (36, 2048, 16, 2, 11_008, 151_936),
    "7B": (28, 3584, 28, 4, 18_944, 152_064),
}
"""Layers, hidden, heads, kv heads, ffn and vocabulary of Qwen2.5's models."""
TINY = {"tiny": (2, 64, 4, 2, 128, 512)}
Found = dict[str, Any]


def facts(choice: ComputeSettings) -> Found:
    """What the figures belong to, and that all tensors are on the GPU of this process."""
    policy = tiny_policy().to(choice.device)
    gpu = choice.device.type == "cuda"
    index = torch.cuda.current_device() if gpu else None
    devices = sorted({str(t.device) for t in policy.parameters()})
    ok = devices == [str(choice.device)] and index == choice.device.index
    return {"ok": ok, "devices": devices, "reason": choice.reason, **compute_conditions(choice)}


def tf32_is_off(choice: ComputeSettings) -> Found:
    """Products in float32 are those of float32, also while gradients are computed."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(512, 512, generator=generator).to(choice.device) for _ in range(2))
    weight, errors = b.clone().requires_grad_(), list[float]()

    def loss(_: int) -> tuple[torch.Tensor, None]:
        exact = a.double() @ b.double()
        errors.append(float(((a @ b).double() - exact).abs().max() / exact.abs().max()))
        return (a @ weight).sum(), None

    ONE_PROCESS.accumulate([weight], [0], loss)
    allowed = torch.backends.cuda.matmul.allow_tf32
    return {"ok": errors[0] < 1e-5 and not allowed, "error": errors[0], "allow_tf32": allowed}


def sampler_and_trainer(choice: ComputeSettings) -> Found:
    """The engine's log-probabilities against the trainer's, by type; float32 against the CPU's."""
    there, here = tiny_policy().to(choice.device), tiny_policy()
    out: Found = {"ok": True}
    for dtype, bound in BOUNDS.items():
        rows, recorded = _sampled(there, dtype)
        told = torch.tensor(recorded)
        with torch.no_grad():
            gap = float((there.score(rows, dtype=dtype).logp_K.cpu() - told).abs().max())
        name = str(dtype).removeprefix("torch.")
        out[name] = gap
        out["ok"] &= gap < bound
        if dtype == torch.float32:
            with torch.no_grad():
                out["cpu"] = float((here.score(rows).logp_K - told).abs().max())
            out["ok"] &= out["cpu"] < bound
    return out


def _sampled(policy: Policy, dtype: torch.dtype) -> tuple[list[Row], list[float]]:
    engine = make_engine(policy, slots=4, max_length=96, dtype=dtype).engine
    prompts = {}
    for seed in range(8):
        ids = tuple(range(5 + seed, 15 + 2 * seed))
        prompts[engine.submit(Request(ids, Sampling(1.0, max_tokens=32), seed, seed))] = ids
    done: dict[int, Sampled] = {}
    while engine.is_busy:
        done.update(engine.step())
    rows = [
        Row(ids + done[n].token_ids, (0,) * len(ids) + (1,) * len(done[n].token_ids))
        for n, ids in prompts.items()
    ]
    return rows, [x for n in prompts for x in done[n].logprobs]


def training_repeats(choice: ComputeSettings) -> Found:
    """Two trainings from one start end with equal weights; how far they are apart if not."""
    ends = [_trained(tiny_policy().to(choice.device), choice.numerics) for _ in range(2)]
    gap = max(float((a - b).abs().max()) for a, b in zip(*ends, strict=True))
    return {"ok": gap == 0, "gap": gap}


def _trained(policy: Policy, numerics: Numerics, tokens: int = 64) -> list[torch.Tensor]:
    rows = [Row(tuple((7 * i + r) % 300 for i in range(tokens)), (0,) + (1,) * (tokens - 1))
            for r in range(4)]  # fmt: skip
    optimizer = make_optimizer(
        policy.named_tensors(), SUPERVISED.model_copy(update={"lr": 1e-4}), "adamw"
    )
    for _ in range(3):
        supervised_step(policy, optimizer, rows, numerics, 1.0, 4 * tokens)
    return [t.detach().cpu() for t in policy.parameters()]


def memory(choice: ComputeSettings, sizes: Sequence[str]) -> Found:
    """Peak memory of a supervised training of random weights in each size, or that it is too
    much: a figure, not a bound."""
    out: Found = {"ok": True}
    for name in sizes:
        out[name] = found = {}
        try:
            policy = random_policy(name, choice.device)
            policy.network.enable_checkpointing()
            found["parameters"] = policy.count()
            _trained(policy, choice.numerics, 512 if name in SIZES else 32)
        except torch.OutOfMemoryError as error:
            found["does not fit"] = str(error).partition("\n")[0]
        policy = None
        if choice.device.type == "cuda":
            found["peak_gb"] = torch.cuda.max_memory_allocated() / 1e9
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
    return out


def random_policy(size: str, device: torch.device) -> Policy:
    """A policy of random weights, drawn where they stay."""
    layers, hidden, heads, kv, ffn, vocab = {**SIZES, **TINY}[size]
    shape = DecoderShape(layers, hidden, heads, kv, hidden // heads, ffn, vocab, 1e-6, 4096, False)
    rows = {"qkv": (heads + 2 * kv) * shape.head_dim, "gate_up": 2 * ffn, "out": hidden}
    sizes = {name: (count, hidden) for name, count in rows.items()}
    sizes |= {"qkv_bias": (rows["qkv"],), "down": (hidden, ffn)}
    sizes |= {"norm1": (hidden,), "norm2": (hidden,)}
    nowhere = torch.device("meta")
    empty = lambda *dims: torch.empty(dims, device=nowhere)  # noqa: E731
    fields = {n: empty(*sizes[n]) if n in sizes else None for n in Layer.__slots__}
    weights = DecoderWeights(
        shape, empty(vocab, hidden), [Layer(**fields) for _ in range(layers)], empty(hidden),
        empty(vocab, hidden), empty(shape.head_dim // 2), 1.0,
    )  # fmt: skip
    network = FusedNetwork(weights.to(nowhere, torch.float32)).to_empty(device=device)
    with torch.no_grad():
        steps = torch.arange(0, shape.head_dim, 2, device=device) / shape.head_dim
        network.inv_freq.copy_(1e6**-steps)
        for tensor in network.parameters():
            tensor.normal_(0, 0.02) if tensor.dim() > 1 else tensor.fill_(1)
    known = tiny_policy()
    return Policy(network, known.config, known.codec)


def weights_travel(choice: ComputeSettings) -> Found:
    """Weights as a file and back, and into an engine that samples: equal, with the seconds."""
    size = "1.5B" if choice.device.type == "cuda" else "tiny"
    policy = random_policy(size, choice.device)
    with tempfile.TemporaryDirectory() as folder:
        start, path = time.perf_counter(), Path(folder) / "weights.safetensors"
        save_file({n: t.contiguous() for n, t in policy.hf_tensors()}, path)
        written = time.perf_counter()
        read = load_file(path, device=str(choice.device))
        ok = all(torch.equal(read[name], tensor) for name, tensor in policy.hf_tensors())
        seconds = {"write": written - start, "read": time.perf_counter() - written}
    del read
    engine = make_engine(policy, slots=2, max_length=64, dtype=torch.bfloat16).engine
    start = time.perf_counter()
    engine.update_weights(policy, 1)
    if choice.device.type == "cuda":
        torch.cuda.synchronize()
    return {"ok": ok and engine.version == 1, "update": time.perf_counter() - start, **seconds}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the checks; the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cpu", action="store_true", help="on the CPU, with tiny models")
    parser.add_argument("--out", type=Path, help="a file for all figures")
    parser.add_argument("--sizes", default=",".join(SIZES), help="of the models for memory")
    asked = parser.parse_args(arguments)
    if not asked.cpu and not torch.cuda.is_available():
        parser.error("torch sees no GPU here; --cpu plays the checks on the CPU")
    config = RunConfig()
    config = config.model_copy(
        update={"trainer": config.trainer.model_copy(update={"device": "cpu"})} if asked.cpu else {}
    )
    choice = choose_compute(config, 1)
    apply_settings(choice, large=False)
    sizes = list(TINY) if asked.cpu else asked.sizes.split(",")
    checks: dict[str, Callable[[], Found]] = {
        "device": lambda: facts(choice),
        "tf32": lambda: tf32_is_off(choice),
        "bounds": lambda: sampler_and_trainer(choice),
        "repeats in float32": lambda: training_repeats(_in_float32(choice)),
        "repeats": lambda: training_repeats(choice),
        "memory": lambda: memory(choice, sizes),
        "weights": lambda: weights_travel(choice),
    }
    found = {name: _told(name, check) for name, check in checks.items()}
    if asked.out is not None:
        asked.out.write_text(json.dumps(found, indent=2) + "\n")
    return 0 if all(one["ok"] for one in found.values()) else 1


def _told(name: str, check: Callable[[], Found]) -> Found:
    """What a check found, or what it raised, which is printed."""
    try:
        found = check()
    except Exception as error:  # the others are to be seen all the same
        found = {"ok": False, "raised": f"{type(error).__name__}: {error}"}
    words = {k: v for k, v in found.items() if k != "ok"}
    print("ok  " if found["ok"] else "FAIL", name, words, flush=True)
    return found


def _in_float32(choice: ComputeSettings) -> ComputeSettings:
    return replace(choice, numerics=Numerics())


if __name__ == "__main__":
    raise SystemExit(main())
