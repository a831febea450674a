"""Sampling from a model of real size: decode beside Hugging Face `generate`, and shared prompts.

    python -m benchmarks.real_model.sampling      # prints tables; see --only and --before

*Decode*: 64 rows in bfloat16 whose context grows from 224 to 288 tokens, once with prompts that
have nothing in common, once in groups of 8 that share their prompt and begin with a system prompt
of 184 tokens, as training samples them.
`generate` samples the same rows, at temperature 1 from the whole vocabulary, with both attentions
and with a static cache; `--only compiled` compiles the model around that. A step of `generate` is
timed between its stopping criteria. The roofline is one step's products at the best rate measured
for 64 rows, and one read of all weights and cached keys and values at the best rate of reading
memory, without overlap.

*Prefill*: prompts of word problems, which share their system prompt and tools, until each has its
first token; then others, with the shared part kept. `--before SRC` runs that on the sources of
another checkout as well.

`--device cuda` measures decode and prefill on a GPU, without the roofline, which is a CPU's.

*Threads* (`--only threads`): decode of the same rows on one thread, on two threads in each
operation, and as it is by default, first on a quiet machine and then beside an endless loop in a
process of its own, in turn. `OMP_NUM_THREADS` has to be unset.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.measure import machine, table

from tutelage.engine.factory import make_engine
from tutelage.engine.native import NativeEngine
from tutelage.engine.protocol import Request
from tutelage.policy.model import Policy, load_policy
from tutelage.policy.sources import local_folder
from tutelage.types import Sampling

ROWS, PROMPT, SHARED, NEW, GROUP = 64, 224, 184, 64, 8
BF16 = torch.bfloat16


def best(work: Callable[[], object], rounds: int) -> float:
    """Seconds of the fastest round after one to warm up."""
    work()
    seconds: list[float] = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


@torch.inference_mode()
def roofline(policy: Policy) -> tuple[float, str]:
    """Tokens a second that the machine would allow, and what that was computed from."""
    s = policy.network.weights.shape  # pyright: ignore[reportAttributeAccessIssue]
    rates: list[float] = []
    for n, k in ((2 * s.ffn, s.hidden), (s.hidden, s.ffn), (s.hidden, s.hidden)):
        x, w = torch.randn(ROWS, k).to(BF16), torch.randn(n, k).to(BF16)
        packed = torch.ops.mkldnn._reorder_linear_weight(w, ROWS)
        kernels = (lambda x=x, w=w: F.linear(x, w), lambda x=x, w=packed: product(x, w))
        rates += [2 * ROWS * n * k / best(kernel, 200) for kernel in kernels]
    memory = torch.ones(1 << 27)
    reading = memory.nbytes / best(lambda: memory.sum(), 8)
    weights, length = policy.count(), PROMPT + NEW // 2
    flop = 2.0 * ROWS * weights
    cached = 2 * 2 * s.layers * s.kv_heads * s.head_dim * length * ROWS
    seconds = flop / max(rates) + (2 * weights + cached) / reading
    words = (
        f"{flop / 1e9:.1f} GFLOP at {max(rates) / 1e9:,.0f} GFLOP/s, {2 * weights / 1e6:.0f} MB of "
        f"weights and {cached / 1e6:.0f} MB of keys and values at {reading / 1e9:.1f} GB/s"
    )
    return ROWS / seconds, words


def product(x: torch.Tensor, packed: torch.Tensor) -> object:
    """A product with a weight in oneDNN's layout."""
    return torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")


def random_prompts(groups: int) -> list[tuple[int, ...]]:
    """As many prompts of random tokens as there are rows. Those of a group are equal, and groups
    begin alike."""
    ids = torch.randint(5, 40_000, (groups, PROMPT), generator=torch.Generator().manual_seed(0))
    if groups < ROWS:
        ids[:, :SHARED] = ids[0, :SHARED]
    return [tuple(ids[i * groups // ROWS].tolist()) for i in range(ROWS)]


def begun(policy: Policy, groups: int, **options: Any) -> NativeEngine:
    """An engine whose rows have been read, and have their first tokens."""
    engine = make_engine(policy, slots=ROWS, max_length=512, dtype=BF16, **options).engine
    for i, prompt in enumerate(random_prompts(groups)):
        shared = SHARED if groups < ROWS else 0
        sampling = Sampling(1.0, max_tokens=NEW + 2)
        engine.submit(Request(prompt, sampling, i, i, shared=shared))
    engine.step()
    return engine


def ours(engine: NativeEngine, steps: int = NEW - 1) -> float:
    """Tokens a second of the native engine at the median step."""
    seconds: list[float] = []
    for _ in range(steps):
        start = time.perf_counter()
        engine.step()
        seconds.append(time.perf_counter() - start)
    return ROWS / statistics.median(seconds)


def by_threads(policy: Policy, rounds: int = 2, steps: int = 8) -> list[list[str]]:
    """Tokens a second of each way to use two cores: quiet in each round, and beside a busy core."""
    asked = {
        "one thread": 1,
        "two threads an operation": 2,
        "two threads with rows of their own": 0,
    }
    engines = {name: begun(policy, ROWS, threads=count or None) for name, count in asked.items()}
    found: dict[str, list[str]] = {name: [name] for name in asked}
    for busy in (False, True):
        loop = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if busy else None
        try:
            for _ in range(rounds):
                for name, count in asked.items():
                    torch.set_num_threads(count or 1)
                    found[name].append(f"{ours(engines[name], steps):,.0f}")
        finally:
            if loop is not None:
                loop.kill()
                loop.wait()
    return list(found.values())


@torch.inference_mode()
def generate(attention: str, new: int, device: str, **settings: Any) -> float:
    """Tokens a second of Hugging Face `generate` at the median step."""
    from transformers import AutoModelForCausalLM, StoppingCriteriaList

    model: Any = AutoModelForCausalLM.from_pretrained(
        local_folder("smollm2"), dtype=BF16, attn_implementation=attention
    )
    model = model.to(device).eval()
    times: list[float] = []

    def look(*_: Any, **__: Any) -> torch.Tensor:
        if device != "cpu":
            torch.cuda.synchronize()
        times.append(time.perf_counter())
        return torch.zeros(ROWS, dtype=torch.bool, device=device)

    ids = torch.tensor(random_prompts(ROWS), device=device)
    model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=True, temperature=1.0,
        top_k=0, top_p=1.0, max_new_tokens=new, min_new_tokens=new, pad_token_id=2,
        stopping_criteria=StoppingCriteriaList([look]), **settings,
    )  # fmt: skip
    steps = [b - a for a, b in pairwise(times)]
    return ROWS / statistics.median(steps)


def compiled() -> dict[str, Any]:
    """What makes `generate` compile the model on a CPU too."""
    from transformers import CompileConfig

    config: Any = CompileConfig(fullgraph=False, mode="default")
    config._compile_all_devices = True
    return {"compile_config": config}


SETTINGS: dict[str, Callable[[], dict[str, Any]]] = {
    "generate": lambda: {"disable_compile": True},
    "compiled": compiled,
}


def prefill(policy: Policy) -> list[tuple[str, int, float]]:
    """(what, prompt tokens, tokens a second) of two batches of tasks."""
    from tutelage.tasks.word_problems import make_word_problems
    from tutelage.tools.registry import resolve_tools

    codec, engine = policy.codec, make_engine(policy, slots=ROWS, max_length=512, dtype=BF16).engine
    specs = [tool.spec for tool in resolve_tools(("calculator", "sum_1_to_n")).values()]
    found: list[tuple[str, int, float]] = []
    tasks = [task.messages() for task in make_word_problems("train", 3 * ROWS, 0)]
    for number, what in enumerate(("(warm-up)", "other tasks", "more tasks")):
        total = 0
        for i, messages in enumerate(tasks[number * ROWS : (number + 1) * ROWS]):
            ids = codec.render(messages, specs)
            shared: dict[str, Any] = {}
            if hasattr(codec, "shared_length"):  # checkouts from before have none
                shared["shared"] = codec.shared_length(messages, specs, ids)
            engine.submit(Request(ids, Sampling(1.0, max_tokens=1), i, i, **shared))
            total += len(ids)
        start = time.perf_counter()
        engine.step()
        found.append((what, total, total / (time.perf_counter() - start)))
        assert not engine.is_busy
    return found


def main() -> None:
    """Measure what is asked for and print it."""
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--before", help="sources of another checkout, for its prefill")
    parts = ["decode", "generate", "compiled", "prefill", "threads"]
    p.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    p.add_argument("--only", nargs="+", choices=parts, default=[*parts[:2], parts[3]])
    args = p.parse_args()
    threads = torch.get_num_threads()
    gpu = args.device == "cuda"
    print(f"{machine()}, {threads} threads", torch.cuda.get_device_name() if gpu else "")
    policy, bound = load_policy("smollm2").to(torch.device(args.device)), 0.0
    rows: list[list[str]] = []
    if "decode" in args.only:
        if not gpu:
            bound, words = roofline(policy)
            rows.append([f"roofline: {words}", f"{bound:,.0f}", ""])
        for what, groups in (("prompts apart", ROWS), ("groups of 8", ROWS // GROUP)):
            found = ours(begun(policy, groups))
            share = f"{found / bound:.0%} of the roofline" if groups == ROWS and bound else ""
            rows.append([f"native engine, {what}", f"{found:,.0f}", share])
    torch.set_num_threads(threads)  # an engine has set its own
    if "generate" in args.only:
        for attention in ("eager", "sdpa"):
            found = generate(attention, NEW // 2, args.device)
            rows.append([f"generate, {attention}, dynamic cache", f"{found:,.0f}", ""])
    for part, what in (("generate", "not compiled"), ("compiled", "compiled")):
        if part in args.only:
            options = {"cache_implementation": "static", **SETTINGS[part]()}
            found = generate("sdpa", NEW // 2, args.device, **options)
            rows.append([f"generate, sdpa, static cache, {what}", f"{found:,.0f}", ""])
    if rows:
        print(table(["decode, 64 rows, bf16", "tokens/s", ""], rows))
    if "threads" in args.only:
        times = ["quiet", "quiet again", "one core busy", "busy again"]
        print(table(["decode, 64 rows, bf16, tokens/s", *times], by_threads(policy)))
    if "prefill" in args.only:
        lines = [[w, f"{n:,}", f"{rate:,.0f}"] for w, n, rate in prefill(policy)]
        print(table(["prefill, 64 prompts, bf16", "tokens", "tokens/s"], lines), flush=True)
        if args.before:
            sources = {**os.environ, "PYTHONPATH": f"{args.before}:."}
            words = [sys.executable, "-m", "benchmarks.real_model.sampling", "--only", "prefill"]
            subprocess.run(words, env=sources, check=True)


if __name__ == "__main__":
    main()
