"""The factory of engines, and weights that are passed: shared or copied, with a version."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from playback import one, prompt

import tutelage
from tutelage.engine.driver import EngineDriver
from tutelage.engine.factory import make_engine
from tutelage.engine.protocol import Engine, Request
from tutelage.policy.model import Policy
from tutelage.testing import ScriptedEngine, tiny_policy
from tutelage.types import Sampling

SOURCE = Path(tutelage.__file__).parent


def test_engines_are_made_in_one_place() -> None:
    makers = [
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if re.search(r"\b(NativeEngine|EngineDriver|make_backend)\(", path.read_text())
    ]
    # `make_backend` is defined in the second.
    assert sorted(makers) == ["engine/backends.py", "engine/factory.py"]


def test_an_engine_begins_with_the_version_and_the_length_of_its_policy() -> None:
    policy = tiny_policy(max_positions=64)
    policy.version = 3
    assert make_engine(policy, slots=1).version == 3
    assert make_engine(policy, slots=1).max_length == 64
    assert make_engine(policy, slots=1, max_length=32).max_length == 32
    assert make_engine(policy, slots=1, max_length=999).max_length == 64


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_engine_takes_up_the_weights_of_another_policy(
    fresh: Callable[..., Any], dtype: torch.dtype
) -> None:
    policy: Policy = fresh("qwen2", 0)
    other: Policy = fresh("qwen2", 1)
    engine = make_engine(policy, slots=2, dtype=dtype)
    wanted = Request(prompt(1, 16), Sampling(max_tokens=6), 1)
    before = one(engine.engine, wanted)
    engine.update_weights(other, 7)
    after = one(engine.engine, wanted)
    assert (before.policy_version, after.policy_version, engine.version) == (0, 7, 7)
    assert after.token_ids != before.token_ids or after.logprobs != before.logprobs
    alone = one(make_engine(other, slots=2, dtype=dtype).engine, wanted)
    assert (after.token_ids, after.logprobs) == (alone.token_ids, alone.logprobs)


def test_an_engine_refuses_the_weights_of_another_kind_of_network(tiny: Any) -> None:
    for mine, theirs in (("qwen2", "gpt2"), ("gpt2", "qwen2")):
        with pytest.raises(TypeError, match="does not support"):
            make_engine(tiny(mine), slots=1).update_weights(tiny(theirs), 1)


def test_one_engine_serves_one_loop_after_another(tiny: Any) -> None:
    """A loop that ended with a step planned does not keep the next one from stepping."""
    engine = make_engine(tiny("qwen2"), slots=2)
    wanted = Request(prompt(1, 8), Sampling(max_tokens=4), 1)

    async def play() -> Any:
        async with engine.participant():
            return await asyncio.wait_for(engine.sample(wanted), 30)

    first, second = asyncio.run(play()), asyncio.run(play())
    assert first == second


def test_what_is_scripted_has_a_version_too(tiny: Any) -> None:
    policy = tiny("qwen2")
    engines: list[Engine] = [ScriptedEngine(policy.codec, ["one", "two"])]
    engines.append(EngineDriver(make_engine(policy, slots=1).engine))
    for engine in engines:
        engine.update_weights(policy, 5)
        assert engine.version == 5
