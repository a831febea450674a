"""Our training step against a padded Hugging Face step: trained tokens per CPU second, one thread.

    python -m benchmarks.train_step.run        # prints, and writes benchmarks/train_step/RESULTS.md

Both compute the same gradient, which is checked first: the mean negative log-likelihood of the
masked tokens of 128 rows, as in a policy step where every rollout is trained, and one AdamW step.
The baseline is what one writes with transformers: rows sorted by length, right padding, batches of
32, logits at every position, the loss at masked ones. It runs with the attention that is faster
here. Rows once all different, once as in training: 16 prompts, each shared by a group of 8.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from benchmarks.engine.run import make_policy
from benchmarks.measure import alternate, rate, results, table

from tutelage.config.rl import OptimizerConfig
from tutelage.policy.model import Policy
from tutelage.policy.packing import plan_micro_batches
from tutelage.policy.row import Row
from tutelage.tasks.arithmetic import demonstrations, make_tasks
from tutelage.tools.registry import resolve_tools
from tutelage.weights.optim import make_optimizer
from tutelage.weights.process_group import ONE_PROCESS

ROWS, GROUP, BATCH, BUDGET = 128, 8, 32, 2048


def make_rows(policy: Policy, grouped: bool) -> list[Row]:
    """Rollouts of the embedded job: some call their tools, some guess."""
    rng = random.Random(3)
    specs = [t.spec for t in resolve_tools(("calculator", "sum_1_to_n", "lookup")).values()]
    rows: list[Row] = []
    for task in make_tasks("default", "train", ROWS // GROUP if grouped else ROWS, 5):
        for _ in range(GROUP if grouped else 1):
            said = demonstrations(task, rng.random() < 0.3, rng)
            ids, mask = policy.codec.encode_demonstration([*task.messages(), *said], specs)
            # Sampled answers differ within a group; demonstrations of one task would not.
            drawn = [rng.randrange(5, 300) if m else i for i, m in zip(ids, mask, strict=True)]
            rows.append(Row(tuple(drawn), mask))
    return rows


class Ours:
    """`policy.score` over micro-batches, as `weights/learner.py` calls it."""

    def __init__(self, policy: Policy, dtype: torch.dtype) -> None:
        self._policy, self._dtype = policy, dtype
        keys = OptimizerConfig(lr=1e-9, betas=(0.9, 0.95))
        self._optimizer = make_optimizer(policy.named_tensors(), keys)

    def step(self, rows: list[Row]) -> float:
        """One step; returns the loss."""
        total = sum(sum(r.mask) for r in rows)

        def loss(chosen: list[int]) -> tuple[Any, Any]:
            scores = self._policy.score([rows[i] for i in chosen], dtype=self._dtype)
            value = -scores.logp_K.sum() / total
            return value, value.detach()

        parts = ONE_PROCESS.accumulate(
            self._policy.parameters(), plan_micro_batches(rows, BUDGET), loss, threads=1
        )
        self._optimizer.step(1.0)
        return float(sum(parts))


class Padded:
    """The usual step over the same weights in transformers."""

    def __init__(self, policy: Policy, dtype: torch.dtype, attention: str) -> None:
        from transformers import AutoModelForCausalLM

        with tempfile.TemporaryDirectory() as folder:
            policy.save(Path(folder))
            self._model = AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32, attn_implementation=attention
            )
        self._dtype = dtype
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-9, fused=True)

    def step(self, rows: list[Row]) -> float:
        """One step; returns the loss."""
        total = sum(sum(r.mask) for r in rows)
        ordered = sorted(rows, key=lambda r: len(r.ids))
        out = 0.0
        for start in range(0, len(ordered), BATCH):
            part = ordered[start : start + BATCH]
            width = max(len(r.ids) for r in part)
            pad = [[0] * (width - len(r.ids)) for r in part]
            ids = torch.tensor([list(r.ids) + p for r, p in zip(part, pad, strict=True)])
            mask = torch.tensor([list(r.mask) + p for r, p in zip(part, pad, strict=True)])
            seen = torch.tensor([[1] * len(r.ids) + p for r, p in zip(part, pad, strict=True)])
            with torch.autocast("cpu", torch.bfloat16, enabled=self._dtype != torch.float32):
                logits = self._model(input_ids=ids, attention_mask=seen).logits
            logp = torch.log_softmax(logits[:, :-1].float(), -1)
            picked = logp.gather(-1, ids[:, 1:, None])[..., 0]
            value = -(picked * mask[:, 1:]).sum() / total
            value.backward()
            out += float(value.detach())
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return out


def main() -> None:
    """Measure all combinations and write the results."""
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--sizes", nargs="+", default=["xs", "s"])
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--out", default=str(Path(__file__).with_name("RESULTS.md")))
    args = p.parse_args()
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("medium")  # oneDNN's float32 products: faster on both sides
    rows: list[list[str]] = []
    for size in args.sizes:
        policy, _ = make_policy(size)
        for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
            ours = Ours(policy, dtype)
            peers = {a: Padded(policy, dtype, a) for a in ("eager", "sdpa")}
            for grouped in (False, True):
                data = make_rows(policy, grouped)
                a, b = ours.step(data), peers["eager"].step(data)
                assert abs(a - b) < (1e-4 if dtype == torch.float32 else 5e-2), (a, b)
                work = {k: partial(v.step, data) for k, v in {**peers, "ours": ours}.items()}
                found = alternate(work, args.rounds)
                best = min(peers, key=lambda k: rate(1, found[k]) ** -1)
                tokens = sum(len(r.ids) for r in data)
                slow, fast = rate(tokens, found[best]), rate(tokens, found["ours"])
                what = "groups of 8" if grouped else "all different"
                rows.append([size, name, what, f"{slow:,.0f} ({best})", f"{fast:,.0f}",
                             f"{fast / slow:.1f}x"])  # fmt: skip
                print(" ".join(rows[-1]), flush=True)
    text = (
        f"Tokens per CPU second, one thread, {ROWS} rows; medians of {args.rounds} alternating "
        "rounds after one to warm up.\n\n"
        + table(["size", "type", "prompts", "padded baseline", "ours", "ratio"], rows)
    )
    results(Path(args.out), "Our training step against a padded baseline", text)


if __name__ == "__main__":
    main()
