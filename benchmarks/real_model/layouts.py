"""Sampling with layouts that the fused decoder does not know: how fast 16 rows are.

    python benchmarks/real_model/layouts.py

Random models in the layouts of GPT-2, Gemma 3 and Phi run on the forward of transformers. 16
requests with prompts of their own, of 32 to 92 tokens, get 48 tokens each, in an engine with 16
slots. Prints tokens a second, without the step that prefills and with it, and the largest
difference from the trainer's log-probabilities.
"""

from __future__ import annotations

import argparse
import platform
import time
from typing import Any

import torch
import transformers

from tutelage.engine.backends import make_backend
from tutelage.engine.native import NativeEngine
from tutelage.engine.protocol import Request
from tutelage.policy.codec import Codec
from tutelage.policy.hf_model import HFNetwork
from tutelage.policy.model import Policy
from tutelage.policy.row import Row
from tutelage.policy.tokenizer import train_tokenizer
from tutelage.testing.tiny import CORPUS
from tutelage.types import Sampling

VOCAB, ROWS, TOKENS = 8192, 16, 48
SMALL: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4,
    "intermediate_size": 1024, "max_position_embeddings": 512, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0,
}  # fmt: skip
GPT2 = {"vocab_size": VOCAB, "n_positions": 512, "n_embd": 256, "n_layer": 6, "n_head": 4}
GEMMA = {"num_key_value_heads": 1, "head_dim": 64, "sliding_window": 64}
LAYOUTS: dict[str, tuple[str, dict[str, Any]]] = {
    "GPT-2": ("GPT2Config", GPT2),
    "Gemma 3": ("Gemma3TextConfig", SMALL | GEMMA),
    "Phi": ("PhiConfig", SMALL),
    "GPT-2, real size": ("GPT2Config", {}),
}


def policy_of(kind: str, options: dict[str, Any]) -> Policy:
    """A random policy of a layout."""
    config = getattr(transformers, kind)(**options)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    codec = Codec(train_tokenizer(CORPUS, vocab_size=320))
    return Policy(HFNetwork(model, torch.device("cpu")), config, codec)


def sample(policy: Policy) -> tuple[float, float, list[Row], list[float]]:
    """Tokens a second without and with the first step; rows, and their log-probabilities."""
    numbers = torch.Generator().manual_seed(0)
    engine = NativeEngine(
        lambda rows, width: make_backend(policy, rows, width, torch.float32),
        slots=ROWS, max_length=256, eos_ids=[VOCAB], decode=policy.codec.decode,
    )  # fmt: skip
    prompts = [
        tuple(torch.randint(5, 300, (32 + 4 * i,), generator=numbers).tolist()) for i in range(ROWS)
    ]
    begun = time.perf_counter()
    handles = [
        engine.submit(Request(p, Sampling(max_tokens=TOKENS), i)) for i, p in enumerate(prompts)
    ]
    results = dict(engine.step())
    prefilled = time.perf_counter()
    while engine.is_busy:
        results |= dict(engine.step())
    ended = time.perf_counter()
    rows, said = list[Row](), list[float]()
    for ids, handle in zip(prompts, handles, strict=True):
        got = results[handle]
        mask = [0] * len(ids) + [1] * len(got.token_ids)
        rows.append(Row(ids + got.token_ids, tuple(mask)))
        said += got.logprobs
    # The first step draws two tokens a row: one from the prompt, one after it.
    decode = (len(said) - 2 * ROWS) / (ended - prefilled)
    return decode, len(said) / (ended - begun), rows, said


def main() -> None:
    """Print a line a layout."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--threads", type=int, default=1)
    arguments.add_argument("--rounds", type=int, default=3)
    args = arguments.parse_args()
    torch.set_num_threads(args.threads)
    print(
        f"torch {torch.__version__}, transformers {transformers.__version__}, "
        f"{args.threads} thread(s), {platform.machine()}"
    )
    for name, (kind, options) in LAYOUTS.items():
        policy = policy_of(kind, options)
        sample(policy)
        speeds = [sample(policy) for _ in range(args.rounds)]
        *_, rows, said = speeds[0]
        with torch.no_grad():
            trained = policy.score(rows).logp_K
        worst = float((trained - torch.tensor(said)).abs().max())
        decode, whole = (max(run[i] for run in speeds) for i in (0, 1))
        size = policy.count() / 1e6
        print(f"| {name} | {size:.1f} | {decode:,.0f} | {whole:,.0f} | {worst:.1e} |", flush=True)


if __name__ == "__main__":
    main()
