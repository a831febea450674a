"""A model that cannot be had is never the agent's answer, also where its framework hides that."""

from __future__ import annotations

from typing import Any

from live_parts import play

from tutelage.errors import ContextOverflowError, EngineError
from tutelage.gateway import Gateway
from tutelage.policy.codec import Codec
from tutelage.resources import LLM
from tutelage.testing import ScriptedEngine
from tutelage.types import FailureCause, Rollout


def cause(rollout: Rollout) -> FailureCause | None:
    return None if rollout.last.failure is None else rollout.last.failure.cause


async def swallowing(task: Any, llm: LLM) -> float:
    """As many frameworks do: what goes wrong becomes the answer."""
    try:
        return float((await llm.chat(task["question"])).reply.content == "fine")
    except EngineError:
        return 0.0


async def test_an_agent_that_hides_an_engines_failure_has_no_reward(
    gateway: Gateway, codec: Codec
) -> None:
    engine = ScriptedEngine(codec, lambda _: EngineError("lost it"))
    (done,) = await play(gateway, codec, swallowing, 1, engine=engine, attempts=2)
    assert len(done.attempts) == 2
    assert cause(done) is FailureCause.ENGINE_ERROR
    assert done.reward is None
    assert done.last.failure is not None
    assert "lost it" in done.last.failure.message


async def test_an_answer_after_the_failure_is_an_answer(gateway: Gateway, codec: Codec) -> None:
    """It asked again by itself, or another model."""
    asked: list[Any] = []

    def reply(request: Any) -> Any:
        asked.append(request)
        return EngineError("lost it") if len(asked) == 1 else "fine"

    async def again(task: Any, llm: LLM) -> float:
        return await swallowing(task, llm) or await swallowing(task, llm)

    (done,) = await play(gateway, codec, again, 1, engine=ScriptedEngine(codec, reply))
    assert (len(done.attempts), cause(done)) == (1, None)
    assert done.reward is not None
    assert done.reward.value == 1.0


async def test_a_prompt_that_is_too_long_is_the_agents_to_handle(
    gateway: Gateway, codec: Codec
) -> None:
    engine = ScriptedEngine(codec, lambda _: ContextOverflowError("too long"))
    (done,) = await play(gateway, codec, swallowing, 1, engine=engine)
    assert cause(done) is None
    assert done.reward is not None
