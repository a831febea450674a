"""The training step at 135 M parameters against Hugging Face's padded one, on the same rows.

    python -m benchmarks.real_model.training_step                    # bfloat16, the times
    python -m benchmarks.real_model.training_step --dtype float32
    python -m benchmarks.real_model.training_step --peak ours        # memory, one kind a process
    python -m benchmarks.real_model.training_step --device cuda --padded-rows 64

A GRPO step of word problems: 8 tasks, 8 rollouts each, all trained, turns of different
lengths with the result of a tool between them. Ours is `Learner` of `weights/learner.py`, the
optimizer step and its metrics included. The baseline is what one writes with transformers: float32
master weights, autocast, rows sorted by length and padded on the right, logits from the first
trained token on, the loss at trained ones, the faster attention, AdamW. Losses and gradient norms
of both are compared. Seconds are wall time: the machine has to be quiet. `RESULTS.md` has a table.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from benchmarks.measure import alternate, table

from tutelage.config import Machine, RunConfig
from tutelage.policy.machine import choose_compute, trim_memory
from tutelage.policy.model import Policy, load_policy
from tutelage.policy.numerics import Numerics
from tutelage.policy.row import Row
from tutelage.policy.sources import local_folder
from tutelage.seeds import SeedTree
from tutelage.tasks.arithmetic import demonstrations
from tutelage.tasks.word_problems import make_word_problems
from tutelage.tools.registry import resolve_tools
from tutelage.weights.batch import Batch
from tutelage.weights.config import resolve
from tutelage.weights.learner import Learner
from tutelage.weights.scoring import compute_logp

TASKS, MEMBERS, LONGEST_TURN = 8, 8, 48
RATE = 1e-7
"""A learning rate at which both stay where they are."""


def make_rows(policy: Policy) -> list[Row]:
    """Rollouts of the job: the gold conversation, each sampled turn with a length and tokens of its
    own, so that members of a group share their prompt alone."""
    rng = random.Random(3)
    specs = [t.spec for t in resolve_tools(("calculator", "lookup")).values()]
    two_turns = [t for t in make_word_problems("train", 40, 5) if len(t.fields["calls"]) == 1]
    rows: list[Row] = []
    for task in two_turns[:TASKS]:
        said = demonstrations(task, False, rng)
        ids, mask = policy.codec.encode_demonstration([*task.messages(), *said], specs)
        for _ in range(MEMBERS):
            rows.append(_sampled(ids, mask, rng))
    return rows


def _sampled(ids: Sequence[int], mask: Sequence[int], rng: random.Random) -> Row:
    """A row whose trained stretches are drawn anew."""
    out: list[tuple[int, int]] = []
    for trained, pairs in groupby(zip(ids, mask, strict=True), key=lambda pair: pair[1]):
        stretch = list(pairs)
        if trained:
            count = rng.randint(-(-len(stretch) // 2), min(LONGEST_TURN, 2 * len(stretch)))
            stretch = [(rng.randrange(100, 40_000), 1) for _ in range(count)]
        out += stretch
    return Row(tuple(i for i, _ in out), tuple(m for _, m in out))


def make_batch(rows: list[Row]) -> Batch:
    """A batch whose advantages are none of them 0."""
    width = max(len(r.ids) for r in rows)
    mask_BT = torch.zeros(len(rows), width, dtype=torch.bool)
    for b, row in enumerate(rows):
        mask_BT[b, : len(row.mask)] = torch.tensor(row.mask, dtype=torch.bool)
    nothing_BT = torch.zeros(len(rows), width)
    signs = torch.tensor([1.0 if b % 3 else -1.0 for b in range(len(rows))])
    return Batch(
        rollouts=[],
        rows=rows,
        rollouts_B=list(range(len(rows))),
        rowless=[],
        mask_BT=mask_BT,
        old_logp_BT=nothing_BT,
        rewards_BT=nothing_BT,
        advantages_BT=signs[:, None] * mask_BT,
        returns_BT=nothing_BT,
        old_values_BT=nothing_BT,
    )


class Ours:
    """Our learner on a batch."""

    def __init__(self, policy: Policy, dtype: torch.dtype, overrides: Sequence[str]) -> None:
        laptop = Machine(cuda_devices=int(policy.device.type == "cuda"), cores=2)
        # No correction: there are no log-probabilities of a sampler, and ratios have to be 1.
        keys = ["rollout.correction=none", "rollout.temperature=1", f"actor.optim.lr={RATE}"]
        keys += overrides
        self._config: RunConfig = resolve("word-problems", keys, machine=laptop).config
        choice = choose_compute(self._config, policy.count())
        self._policy, self._numerics = policy, Numerics(dtype, choice.numerics.threads)
        if self._config.model.enable_gradient_checkpointing:
            policy.network.enable_checkpointing()
        self._learner = Learner(policy, self._config, self._numerics)
        self._known_BT: torch.Tensor | None = None

    def step(self, batch: Batch) -> tuple[float, float]:
        """One step; returns the loss and the gradient's norm. In float32 what a sampler recorded is
        taken for what the trainer says: computed once, since the rate moves nothing."""
        if self._numerics.is_exact and self._known_BT is None:
            self._known_BT = compute_logp(
                self._policy, batch.rows, self._config, self._numerics.dtype
            )
        if self._known_BT is not None:
            batch = replace(batch, old_logp_BT=self._known_BT)
        _, values = self._learner.optimize(batch, seeds=SeedTree(0), step=0, limit=None)
        return values["loss/policy"], values["grad_norm"]


class Padded:
    """The usual step in transformers."""

    def __init__(self, dtype: torch.dtype, attention: str, device: str, rows: int) -> None:
        from transformers import AutoModelForCausalLM

        self._model: Any = AutoModelForCausalLM.from_pretrained(
            local_folder("smollm2"), dtype=torch.float32, attn_implementation=attention
        ).to(device)
        self._dtype, self._device, self._rows = dtype, device, rows
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=RATE, fused=True)

    def step(self, batch: Batch) -> tuple[float, float]:
        """One step; returns the loss and the gradient's norm."""
        total = int(batch.mask_BT.sum())
        order = sorted(range(len(batch.rows)), key=lambda b: len(batch.rows[b].ids))
        loss = 0.0
        for start in range(0, len(order), self._rows):
            chosen = order[start : start + self._rows]
            part = [batch.rows[b] for b in chosen]
            width = max(len(r.ids) for r in part)
            first = min(r.prompt_length() for r in part)
            padded = [[*r.ids, *[0] * (width - len(r.ids))] for r in part]
            ids = torch.tensor(padded, device=self._device)
            seen = torch.tensor([[int(t < len(r.ids)) for t in range(width)] for r in part])
            keep = width - first + 1
            with torch.autocast(self._device, torch.bfloat16, enabled=self._dtype != torch.float32):
                logits = self._model(
                    input_ids=ids, attention_mask=seen.to(self._device), use_cache=False,
                    logits_to_keep=keep,
                ).logits  # fmt: skip
            logp = torch.log_softmax(logits[:, :-1].float(), -1)
            picked = logp.gather(-1, ids[:, first:, None])[..., 0]
            weights = (batch.advantages_BT * batch.mask_BT)[chosen, first:width].to(self._device)
            # The policy gradient at ratio 1, whose value is minus the mean advantage.
            ratio = (picked - picked.detach()).exp()
            value = -(ratio * weights).sum() / total
            value.backward()
            loss += float(value.detach())
        norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return loss, float(norm)


# ---------------------------------------------------------------- measuring

OURS = {
    "ours": (),
    "ours, enable_gradient_checkpointing": ("model.enable_gradient_checkpointing=true",),
}
PADDED = {"padded, eager": "eager", "padded, sdpa": "sdpa"}


def make_step(kind: str, dtype: torch.dtype, asked: argparse.Namespace) -> Ours | Padded:
    """A step of one kind, with a model of its own."""
    if kind in PADDED:
        return Padded(dtype, PADDED[kind], asked.device, asked.padded_rows)
    policy = load_policy("smollm2").to(torch.device(asked.device))
    return Ours(policy, dtype, [*OURS[kind], *asked.keys])


def peak(step: Ours | Padded, device: str) -> float:
    """Memory in GB at its highest during two steps: resident, or that of a GPU."""
    batch = make_batch(make_rows(load_policy("smollm2")))
    if device != "cpu":
        for _ in range(2):
            step.step(batch)
        return torch.cuda.max_memory_allocated() / 1e9
    trim_memory()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    for _ in range(2):
        step.step(batch)
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(x.split()[1]) * 1024 / 1e9 for x in status if x.startswith("VmHWM"))


def seconds(steps: dict[str, Ours | Padded], dtype: torch.dtype, rounds: int) -> list[list[str]]:
    """The time of each kind, in turn, and its ratio to the fastest padded one."""
    batch, kinds = make_batch(make_rows(load_policy("smollm2"))), list(steps)
    firsts: dict[str, tuple[float, float]] = {}

    def take(kind: str) -> None:
        firsts.setdefault(kind, steps[kind].step(batch))
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    found = alternate({kind: partial(take, kind) for kind in kinds}, rounds, time.perf_counter)
    loss, norm = firsts["ours"]
    for kind, (other, length) in firsts.items():
        allowed = 1e-3 if dtype == torch.float32 else 2e-2
        assert abs(other - loss) < 1e-3, (kind, firsts)
        assert abs(length / norm - 1) < allowed, (kind, firsts)
    median = {kind: statistics.median(values) for kind, values in found.items()}
    best = min(median[kind] for kind in kinds if kind in PADDED)
    name = str(dtype).removeprefix("torch.")
    return [
        [name, kind, " ".join(f"{s:.3g}" for s in found[kind]), f"{best / median[kind]:.1f}x"]
        for kind in kinds
    ]


def main() -> None:
    """Measure the times, or the memory of one kind."""
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    p.add_argument("--kinds", nargs="+", default=[*PADDED, "ours"])
    p.add_argument("--rounds", type=int, default=1)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    p.add_argument("--keys", nargs="+", default=[], help="settings of ours")
    p.add_argument("--deterministic", action="store_true", help="kernels that repeat, on a GPU")
    p.add_argument("--padded-rows", type=int, default=8, help="of a micro-batch of the baseline")
    p.add_argument("--peak", metavar="KIND", help="print the peak memory of one kind instead")
    args = p.parse_args()
    torch.set_num_threads(args.threads)
    if args.deterministic:
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    dtype = getattr(torch, args.dtype)
    kinds = [args.peak] if args.peak else args.kinds
    steps = {kind: make_step(kind, dtype, args) for kind in kinds}
    if args.peak:
        print(f"{args.dtype}, {args.peak}: {peak(steps[args.peak], args.device):.2f} GB")
        return
    rows = seconds(steps, dtype, args.rounds)
    print(table(["type", "step", "seconds", "ratio"], rows))


if __name__ == "__main__":
    main()
