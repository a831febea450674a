"""The engine on a pretended GPU: no tensors of two devices meet, and it samples what the CPU does.

`tests/pretended_device.py` says what is checked, and what only a GPU can show.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from playback import finish, prompt
from tests.pretended_device import PretendedDevice, on_device, process_ended

from tutelage.engine.factory import make_engine
from tutelage.engine.protocol import Request
from tutelage.evaluate.config import AskConfig
from tutelage.evaluate.targets import ask, load_chat_client
from tutelage.policy import machine
from tutelage.policy.model import Policy
from tutelage.types import Sampled, Sampling

__all__ = ["process_ended"]
Fresh = Callable[..., Policy]
WAYS = {
    "plain": Sampling(1.0, max_tokens=5),
    "top-p and top-k": Sampling(0.7, top_p=0.9, top_k=20, max_tokens=5),
    "greedy": Sampling(0.0, max_tokens=5),
}


def sampled(policy: Policy, sampling: Sampling, **options: Any) -> list[Sampled]:
    """What ragged requests get, in more turns than there are slots."""
    grammar = options.pop("grammar", None)
    slots = 4 if options.get("invariant") else 2  # a session keeps its own there
    driver = make_engine(policy, slots=slots, max_length=96, **options)
    requests = [
        Request(prompt(seed, 3 + 4 * seed), sampling, seed, seed, f"s{seed % 4}", grammar=grammar)
        for seed in range(4)
    ]
    return finish(driver.engine, requests)


def assert_same(found: list[Sampled], wanted: list[Sampled]) -> None:
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.token_ids == theirs.token_ids
        assert mine.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "way"), [("gpt2", "plain"), ("gemma", "greedy"), *(("qwen3", way) for way in WAYS)]
)
@on_device
def test_it_samples_what_the_cpu_does(
    device: PretendedDevice, fresh: Fresh, kind: str, way: str
) -> None:
    wanted = sampled(fresh(kind), WAYS[way])
    assert not device.operations, "the CPU's policy is on the CPU"
    policy = fresh(kind).to(device.first)
    assert_same(sampled(policy, WAYS[way]), wanted)
    assert device.operations
    assert {place.partition(":")[0] for place in device.waits} <= {
        "engine/native.py",
        "engine/streams.py",
        "engine/backends.py",
        "engine/sampler.py",
    }


@on_device
def test_it_takes_over_weights(device: PretendedDevice, fresh: Fresh) -> None:
    """From the tensors that are trained there, shared or cast."""
    other = fresh("qwen2", 1)
    wanted = sampled(other, WAYS["greedy"])
    policy = fresh("qwen2").to(device.first)
    for dtype in (torch.float32, torch.bfloat16):
        driver = make_engine(policy, slots=2, max_length=96, dtype=dtype)
        driver.update_weights(other.to(device.first), 1)
        got = finish(driver.engine, [Request(prompt(0, 3), WAYS["greedy"], 0, 0, "s0")])
        if dtype == torch.float32:
            assert_same(got, wanted[:1])


@pytest.mark.full
@on_device
def test_a_model_is_asked_and_served_there(device: PretendedDevice, fresh: Fresh) -> None:
    """`ask`, `eval`, `serve` and a planner's model compute where a run would."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        fresh("qwen2").save(Path(folder))
        wanted = ask(folder, "1+1", AskConfig()).last.final_text
        assert not device.operations
        patch.setattr(machine, "sampling_device", lambda wanted="auto": device.first)
        assert ask(folder, "1+1", AskConfig()).last.final_text == wanted
        assert device.operations
        load_chat_client(folder, slots=1, max_length=None, seed=0)
