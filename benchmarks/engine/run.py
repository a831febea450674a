"""The native engine against Hugging Face `generate`: tokens per CPU second on one thread.

    python -m benchmarks.engine.run            # prints, and writes benchmarks/engine/RESULTS.md

Two workloads on one model with random weights. *Ragged*: 128 requests whose answers are 8 to 96
tokens long; `generate` gets a stopping criterion that ends each row at its own length, and still
decodes until the longest row is done. *Multi-turn*: 128 conversations of three turns with
observations of 8 to 12 tokens between them; `generate` reads the whole conversation again at each
turn, in lockstep, as trainers on top of it do. Each once with all prompts different and once with
16 prompts, each shared by a group of 8, as in training. Useful tokens are counted on both sides.

`generate` runs at the settings that are fastest here: left padding, no gradient, the attention and
the product kernels that win (both are tried in a short round), one batch of 128.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from benchmarks.measure import alternate, rate, results, table

from tutelage.engine.backends import make_backend
from tutelage.engine.native import NativeEngine
from tutelage.engine.protocol import Request
from tutelage.policy.model import Policy, build_policy
from tutelage.tasks.arithmetic import make_tasks
from tutelage.tools.registry import resolve_tools
from tutelage.types import Sampling

ROWS, GROUP, TURNS = 128, 8, 3
NEVER = 10**6
"""An end-of-turn id that is never sampled: lengths are given."""

Prompts = list[tuple[int, ...]]


def make_policy(size: str) -> tuple[Policy, Callable[[int], Prompts]]:
    """A policy with random weights, and a way to draw prompts of the embedded job."""
    tools = resolve_tools(("calculator", "sum_1_to_n", "lookup"))
    specs = [t.spec for t in tools.values()]
    tasks = make_tasks("default", "train", 2000, 0)
    names = "system\nTools: calculator sum_1_to_n lookup\nuser\nassistant\ntool\n"
    policy = build_policy([names, *(str(t.input) for t in tasks)], size=size, seed=0)

    def prompts(count: int) -> Prompts:
        return [policy.codec.render(t.messages(), specs) for t in tasks[:count]]

    return policy, prompts


class Ours:
    """The native engine with 128 slots."""

    def __init__(self, policy: Policy, dtype: torch.dtype) -> None:
        self._engine = NativeEngine(
            lambda count, width: make_backend(policy, count, width, dtype),
            slots=ROWS,
            max_length=320,
            eos_ids=[NEVER],
            decode=policy.codec.decode,
        )

    def ragged(self, prompts: Prompts, lengths: Sequence[int]) -> int:
        """All requests at once; returns the tokens sampled."""
        engine = self._engine
        for i, (prompt, n) in enumerate(zip(prompts, lengths, strict=True)):
            engine.submit(Request(prompt, Sampling(1.0, max_tokens=n), i, i))
        return sum(len(s.token_ids) for s in self._drain().values())

    def turns(self, prompts: Prompts, lengths: list[list[int]], seen: list[list[Any]]) -> int:
        """Conversations that continue as soon as their own turn ends."""
        engine, ids, total = self._engine, list(prompts), 0
        owner: dict[int, tuple[int, int]] = {}

        def submit(i: int, turn: int) -> None:
            sampling = Sampling(1.0, max_tokens=lengths[turn][i])
            handle = engine.submit(Request(ids[i], sampling, 1000 * turn + i, i, f"s{i}"))
            owner[handle] = (i, turn)

        for i in range(len(prompts)):
            submit(i, 0)
        while engine.is_busy:
            for handle, sampled in engine.step():
                i, turn = owner.pop(handle)
                total += len(sampled.token_ids)
                if turn + 1 < TURNS:
                    ids[i] = ids[i] + sampled.token_ids + seen[turn][i]
                    submit(i, turn + 1)
                else:
                    engine.release(f"s{i}")
        return total

    def _drain(self) -> dict[int, Any]:
        done: dict[int, Any] = {}
        while self._engine.is_busy:
            done.update(self._engine.step())
        return done


class HuggingFace:
    """`generate` over the same weights, saved and loaded as an ordinary model folder."""

    def __init__(self, policy: Policy, dtype: torch.dtype, attention: str) -> None:
        from transformers import AutoModelForCausalLM

        with tempfile.TemporaryDirectory() as folder:
            policy.save(Path(folder))
            self._model = AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, attn_implementation=attention
            ).eval()
        self._pad = policy.codec.pad_id

    @torch.inference_mode()
    def ragged(self, prompts: Prompts, lengths: Sequence[int]) -> int:
        """One batch, left padding, each row stopped at its own length."""
        self._generate(prompts, lengths)
        return sum(lengths)

    @torch.inference_mode()
    def turns(self, prompts: Prompts, lengths: list[list[int]], seen: list[list[Any]]) -> int:
        """Turn by turn for all conversations, each time from the beginning."""
        ids, total = list(prompts), 0
        for turn in range(TURNS):
            new = self._generate(ids, lengths[turn])
            total += sum(lengths[turn])
            if turn + 1 < TURNS:
                ids = [a + b + c for a, b, c in zip(ids, new, seen[turn], strict=True)]
        return total

    def _generate(self, prompts: Prompts, lengths: Sequence[int]) -> list[tuple[int, ...]]:
        from transformers import StoppingCriteriaList

        width = max(len(p) for p in prompts)
        ids = torch.tensor([[self._pad] * (width - len(p)) + list(p) for p in prompts])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
        limit = torch.tensor(list(lengths)) + width

        def done(tokens: Any, scores: Any, **_: Any) -> Any:
            return tokens.shape[1] >= limit

        out = self._model.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=max(lengths),
            eos_token_id=None,
            pad_token_id=self._pad,
            stopping_criteria=StoppingCriteriaList([done]),
        )
        return [tuple(row[width : width + n].tolist()) for row, n in zip(out, lengths, strict=True)]


def workload(prompts: Callable[[int], Prompts], grouped: bool) -> dict[str, Any]:
    """Prompts, lengths and observations."""
    rng = random.Random(7)
    drawn = prompts(ROWS // GROUP if grouped else ROWS)
    return {
        "prompts": [p for p in drawn for _ in range(GROUP if grouped else 1)],
        "ragged": [rng.randint(8, 96) for _ in range(ROWS)],
        "turns": [[rng.randint(8, 32) for _ in range(ROWS)] for _ in range(TURNS)],
        "seen": [
            [tuple(rng.randrange(5, 300) for _ in range(rng.randint(8, 12))) for _ in range(ROWS)]
            for _ in range(TURNS - 1)
        ],
    }


def best_attention(policy: Policy, dtype: torch.dtype, work: dict[str, Any]) -> str:
    """The attention with which `generate` is faster here."""
    peers = {a: HuggingFace(policy, dtype, a) for a in ("eager", "sdpa")}
    short = [16] * ROWS
    found = alternate(
        {a: lambda p=p: p.ragged(work["prompts"], short) for a, p in peers.items()}, 2
    )
    return min(found, key=lambda a: min(found[a]))


def main() -> None:
    """Measure all combinations and write the results."""
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--sizes", nargs="+", default=["xs", "s"])
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--out", default=str(Path(__file__).with_name("RESULTS.md")))
    args = p.parse_args()
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("medium")  # oneDNN's float32 products: faster on both sides
    rows: list[list[str]] = []
    for size in args.sizes:
        policy, prompts = make_policy(size)
        for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
            ours = Ours(policy, dtype)
            attention = best_attention(policy, dtype, workload(prompts, False))
            peer = HuggingFace(policy, dtype, attention)
            for grouped in (False, True):
                w = workload(prompts, grouped)
                for kind in ("ragged", "turns"):
                    extra = () if kind == "ragged" else (w["seen"],)
                    arguments = (w["prompts"], w[kind], *extra)
                    work = {
                        "generate": partial(getattr(peer, kind), *arguments),
                        "ours": partial(getattr(ours, kind), *arguments),
                    }
                    total = work["ours"]()
                    assert total == work["generate"](), "both sides must sample as many tokens"
                    found = alternate(work, args.rounds)
                    a, b = rate(total, found["generate"]), rate(total, found["ours"])
                    what = "groups of 8" if grouped else "all different"
                    label = "ragged" if kind == "ragged" else "multi-turn"
                    rows.append([size, name, label, what, f"{a:,.0f} ({attention})", f"{b:,.0f}",
                                 f"{b / a:.1f}x"])  # fmt: skip
                    print(" ".join(rows[-1]), flush=True)
    text = (
        "Useful tokens per CPU second, one thread, 128 requests; medians of "
        f"{args.rounds} alternating rounds after one to warm up.\n\n"
        + table(
            ["size", "type", "workload", "prompts", "HF generate", "native engine", "ratio"], rows
        )
    )
    out = Path(args.out)
    others = out.read_text().partition("\n## ")[1:] if out.is_file() else ()
    results(out, "The native engine against Hugging Face generate", text + "".join(others))


if __name__ == "__main__":
    main()
