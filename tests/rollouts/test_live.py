"""Any agent: its own models, identity, reward and end, and nothing of it touches another's."""

from __future__ import annotations

import asyncio
import math
import random
import threading
from typing import Any

import pytest
from live_parts import echo, play, specs

from tutelage import LitAgent, emit_reward, rollout
from tutelage.agents.session import current_rollout
from tutelage.engine.driver import EngineDriver
from tutelage.errors import EngineError, TutelageError
from tutelage.gateway import Gateway
from tutelage.policy.codec import Codec
from tutelage.resources import LLM, NamedResources
from tutelage.rewards import reward
from tutelage.rollouts.rows import build_rows
from tutelage.testing import ScriptedEngine, tiny_engine
from tutelage.tracing import span
from tutelage.types import FailureCause, Mode, Rollout, RolloutStatus

CAUSES = FailureCause


def cause(rollout: Rollout) -> FailureCause | None:
    return None if rollout.last.failure is None else rollout.last.failure.cause


def value(rollout: Rollout) -> float | None:
    return None if rollout.reward is None else rollout.reward.value


# ---------------------------------------------------------------- identity


async def test_two_hundred_interleaved_rollouts_keep_their_calls_spans_and_rewards(
    gateway: Gateway, codec: Codec
) -> None:
    """Some call directly, some over HTTP, some in threads; every reply names its question."""
    import httpx2

    gate = asyncio.Event()
    inside = 0
    spans: dict[str, list[str]] = {}

    async def ask(llm: LLM, question: str, how: int, http: Any) -> str:
        if how == 0:
            return (await llm.chat(question)).reply.content or ""
        body = {"model": "any", "messages": [{"role": "user", "content": question}]}
        keys = {"authorization": f"Bearer {llm.api_key}"}
        reply = await http.post(f"{llm.endpoint}/chat/completions", json=body, headers=keys)
        return reply.json()["choices"][0]["message"]["content"]

    async with httpx2.AsyncClient(timeout=60) as http:

        @rollout
        async def agent(task: Any, llm: LLM, rollout: Any) -> None:
            nonlocal inside
            inside += 1
            if inside == 200:
                gate.set()
            await gate.wait()  # all of them are inside at once
            number = int(task["question"][1:])
            rng = random.Random(number)
            for _ in range(2):
                await asyncio.sleep(rng.random() / 50)
                with span(f"think {number}"):
                    said = await ask(llm, task["question"], number % 2, http)
                here = await asyncio.to_thread(current_rollout)
                assert here is rollout
                emit_reward(float(said == f"a{number}"), f"right_{number}")
            emit_reward(number)

        played = await play(
            gateway,
            codec,
            agent,
            200,
            concurrency=200,
            timeout=120,
            on_spans=lambda r, found: spans.__setitem__(r.task.id, [s.name for s in found]),
        )
    assert inside == 200
    for i, done in enumerate(played):
        assert done.task.id == f"t{i}"
        assert value(done) == i, done.last.failure
        assert done.reward is not None
        assert done.reward.parts == {f"right_{i}": 1.0}
        assert len(done.last.calls) == 2
        assert {c.reply.content for c in done.last.calls} == {f"a{i}"}
        assert all(c.messages[0].content == f"q{i}" for c in done.last.calls)
        assert spans[f"t{i}"] == [f"think {i}"] * 2
    calls = [c.id for r in played for c in r.last.calls]
    assert len(set(calls)) == 400


# ---------------------------------------------------------------- rewards


@pytest.mark.parametrize(
    ("given", "expected", "parts"),
    [
        (0.25, 0.25, {}),
        (1, 1.0, {}),
        (True, 1.0, {}),
        ({"reward": 0.5, "format": 1}, 0.5, {"format": 1.0}),
    ],
)
async def test_what_an_agent_returns_is_its_reward(
    given: Any, expected: float, parts: Any, gateway: Gateway, codec: Codec
) -> None:
    def agent(task: Any) -> Any:
        return given

    (done,) = await play(gateway, codec, agent, 1)
    assert done.reward is not None
    assert (done.reward.value, dict(done.reward.parts)) == (expected, parts)
    assert done.last.status is RolloutStatus.SUCCEEDED


async def test_emitted_rewards_count_the_last_of_a_name_and_a_returned_one_wins(
    gateway: Gateway, codec: Codec
) -> None:
    async def emits(task: Any) -> Any:
        emit_reward(0.1)
        emit_reward({"reward": 0.2, "style": 0.3})
        emit_reward(0.4, "style")
        return 0.9 if task["id"] == "t1" else None

    first, second = await play(gateway, codec, emits, 2)
    assert first.reward is not None
    assert second.reward is not None
    assert (first.reward.value, dict(first.reward.parts)) == (0.2, {"style": 0.4})
    assert (second.reward.value, dict(second.reward.parts)) == (0.9, {"style": 0.4})


@pytest.mark.parametrize(
    ("given", "kind", "earned"),
    [
        (math.nan, CAUSES.ANSWER_ERROR, 0.0),
        ({"reward": 1.0, "part": math.inf}, CAUSES.ANSWER_ERROR, 0.0),
        *((each, CAUSES.REWARD_ERROR, None) for each in (None, "no", {"other": 1.0}, [1.0])),
    ],
)
async def test_what_is_no_reward_is_an_error_that_names_the_task(
    given: Any, kind: FailureCause, earned: float | None, gateway: Gateway, codec: Codec
) -> None:
    def agent(task: Any) -> Any:
        return given if task["id"] == "t1" else 1.0

    played = await play(gateway, codec, agent, 3)
    assert [cause(r) for r in played] == [None, kind, None]
    assert [value(r) for r in played] == [1.0, earned, 1.0]
    failure = played[1].last.failure
    assert failure is not None
    assert "'t1'" in failure.message


async def test_a_reward_function_grades_a_text_and_an_agent_without_a_reward(
    gateway: Gateway, codec: Codec
) -> None:
    @reward(inline=True)
    def exact(prediction: str, answer: str) -> dict[str, float]:
        return {"reward": float(prediction == answer), "length": len(prediction)}

    async def agent(task: Any, llm: LLM, rollout: Any) -> Any:
        text = (await llm.chat(task["question"])).reply.content or ""
        if task["id"] == "t0":
            return text
        rollout.answer = text + "!"
        emit_reward(0.5, "mine")
        return None

    first, second = await play(gateway, codec, agent, 2, reward=exact)
    assert first.reward is not None
    assert second.reward is not None
    assert (first.last.answer, first.reward.value) == ("a0", 1.0)
    assert (second.last.answer, second.reward.value) == ("a1!", 0.0)
    assert dict(second.reward.parts) == {"mine": 0.5, "length": 3.0}


async def test_a_reward_that_comes_after_the_end_is_refused(gateway: Gateway, codec: Codec) -> None:
    kept: list[Any] = []

    async def agent(task: Any, rollout: Any) -> float:
        kept.append(rollout)
        return 0.5

    (done,) = await play(gateway, codec, agent, 1)
    with pytest.raises(TutelageError, match="too late"):
        kept[0].emit_reward(1.0)
    with pytest.raises(TutelageError, match="has ended"):
        kept[0].mark_agent_as_trainable("x")
    assert value(done) == 0.5
    with pytest.raises(TutelageError, match="outside of a rollout"):
        emit_reward(1.0)


# ---------------------------------------------------------------- bad agents


async def test_a_hanging_agent_is_stopped_with_what_it_did_so_far(
    gateway: Gateway, codec: Codec
) -> None:
    cleaned: list[str] = []

    async def agent(task: Any, llm: LLM, rollout: Any) -> float:
        if task["id"] != "t1":
            return 1.0
        assert 0 < rollout.remaining <= 2.0
        try:
            await llm.chat(task["question"])
            await asyncio.sleep(3600)
        finally:
            cleaned.append(task["id"])
            assert rollout.cancelled
        return 1.0

    limits: dict[str, Any] = {"timeout": 2.0, "failure_reward": -1.0}
    played = await play(gateway, codec, agent, 3, **limits)
    assert [cause(r) for r in played] == [None, CAUSES.TIMEOUT, None]
    assert value(played[1]) == -1.0
    assert cleaned == ["t1"]
    assert len(played[1].last.calls) == 1
    failure = played[1].last.failure
    assert failure is not None
    assert "2 seconds" in failure.message


@pytest.mark.parametrize("how", ["awaited", "in a thread", "over HTTP"])
async def test_waiting_for_a_model_costs_an_agent_none_of_its_time(
    how: str, gateway: Gateway, codec: Codec
) -> None:
    """Each call takes longer than the whole rollout may, and two agents wait for a slot."""

    async def slow(request: Any) -> str:
        await asyncio.sleep(2.0)
        return "x"

    async def agent(task: Any, llm: LLM) -> float:
        if how == "awaited":
            return float((await llm.chat(task["question"])).reply.content == "x")
        return float(await ask_http(llm, task["question"]) == "x")

    def sync(task: Any, llm: LLM) -> float:
        return float(asyncio.run(llm.chat(task["question"])).reply.content == "x")

    played = await play(
        gateway,
        codec,
        sync if how == "in a thread" else agent,
        2,
        engine=ScriptedEngine(codec, slow),
        timeout=1.5,
        group_deadline=1.4,
    )
    assert [cause(r) for r in played] == [None, None]
    assert [value(r) for r in played] == [1.0, 1.0]


async def test_conversations_that_keep_every_slot_from_one_another_fail_as_the_engine_does(
    gateway: Gateway, tiny: Any
) -> None:
    """No deadline ends that: nobody's own time runs while everybody waits for a slot."""
    policy = tiny("qwen2")
    both = asyncio.Event()
    inside: list[str] = []

    async def two(task: Any, rollout: Any) -> float:
        await rollout.llm().chat(task["question"])
        inside.append(task["id"])
        if len(inside) == 2:
            both.set()
        await both.wait()
        with rollout.agent("other"):
            await rollout.llm().chat(task["question"])
        return 1.0

    engine = EngineDriver(tiny_engine(policy, slots=2, invariant=True), "free")
    played = await asyncio.wait_for(
        play(gateway, policy.codec, two, 2, engine=engine, attempts=1), 120
    )
    failure = played[0].last.failure
    assert failure is not None
    assert failure.cause is CAUSES.ENGINE_ERROR
    assert "idle conversations hold all 2 slots" in failure.message


async def test_an_agent_that_will_not_go_is_left_behind_and_can_do_no_harm(
    gateway: Gateway, codec: Codec
) -> None:
    go = threading.Event()
    late: list[str] = []

    def stubborn(task: Any, llm: LLM, rollout: Any) -> float:
        if task["id"] != "t0":
            return 1.0
        go.wait(30)  # nothing can end a thread
        for act in (lambda: emit_reward(5.0), lambda: asyncio.run(llm.chat("q0"))):
            try:
                act()
            except TutelageError as error:
                late.append(str(error))
        return 5.0

    played = await play(gateway, codec, stubborn, 3, timeout=1.5)
    assert [cause(r) for r in played] == [CAUSES.TIMEOUT, None, None]
    failure = played[0].last.failure
    assert failure is not None
    assert "1.5 seconds" in failure.message
    go.set()
    for _ in range(500):
        if len(late) == 2:
            break
        await asyncio.sleep(0.01)
    assert len(late) == 2
    assert value(played[0]) == 0.0
    assert played[0].last.calls == ()


async def test_blocking_agents_in_threads_do_not_block_each_other(
    gateway: Gateway, codec: Codec
) -> None:
    barrier = threading.Barrier(6, timeout=30)

    def agent(task: Any) -> float:
        barrier.wait()
        return 1.0

    assert [value(r) for r in await play(gateway, codec, agent, 6)] == [1.0] * 6


# ---------------------------------------------------------------- infrastructure


def shaky(codec: Codec, failures: int) -> ScriptedEngine:
    """Fails the first requests of each rollout."""
    failed: dict[int, int] = {}

    def answer(request: Any) -> Any:
        failed[request.order] = failed.get(request.order, 0) + 1
        return EngineError("lost it") if failed[request.order] <= failures else "fine"

    return ScriptedEngine(codec, answer)


async def ask_http(llm: LLM, question: str) -> str:
    """As an OpenAI client would: a failure is an exception of its own."""
    import httpx2

    async with httpx2.AsyncClient(timeout=30) as http:
        done = await http.post(
            f"{llm.endpoint}/chat/completions",
            json={"model": llm.model, "messages": [{"role": "user", "content": question}]},
            headers={"authorization": f"Bearer {llm.api_key}"},
        )
        if done.status_code != 200:
            raise RuntimeError(f"status {done.status_code}")
        return done.json()["choices"][0]["message"]["content"]


@pytest.mark.parametrize("over_http", [True, False])
async def test_engine_failures_are_retried_in_new_attempts_also_behind_http(
    over_http: bool, gateway: Gateway, codec: Codec
) -> None:
    async def agent(task: Any, llm: LLM) -> float:
        if over_http:
            return float(await ask_http(llm, task["question"]) == "fine")
        return float((await llm.chat(task["question"])).reply.content == "fine")

    engine = shaky(codec, 2)
    played = await play(gateway, codec, agent, 2, engine=engine, attempts=3)
    for done in played:
        causes = [a.failure.cause if a.failure else None for a in done.attempts]
        assert causes == [CAUSES.ENGINE_ERROR, CAUSES.ENGINE_ERROR, None]
        assert all(a.reward is None for a in done.attempts[:2])
        assert value(done) == 1.0
    assert len({r.seed for r in engine.requests}) == len(engine.requests) == 6
    (lost,) = await play(gateway, codec, agent, 1, engine=shaky(codec, 9), attempts=2)
    assert len(lost.attempts) == 2
    assert lost.reward is None
    failure = lost.last.failure
    assert failure is not None
    assert failure.cause is CAUSES.ENGINE_ERROR
    assert "lost it" in failure.message


async def test_a_group_closes_at_its_deadline_in_training_alone(
    gateway: Gateway, codec: Codec
) -> None:
    """A held-out task has its own timeout, and what fails there counts as a failure."""

    async def agent(task: Any) -> float:
        await asyncio.sleep(3600 if task["id"] == "t1" else 0)
        return 1.0

    played = await play(gateway, codec, agent, 2, group_deadline=1.5)
    assert [cause(r) for r in played] == [None, CAUSES.CANCELLED]
    assert played[1].reward is None
    failure = played[1].last.failure
    assert failure is not None
    assert "its group closed without it after 1.5 seconds" in failure.message
    chosen = specs(2, mode=Mode.VAL)
    limits: dict[str, Any] = {"group_deadline": 0.2, "timeout": 2.0}
    played = await play(gateway, codec, agent, chosen=chosen, **limits)
    assert [cause(r) for r in played] == [None, CAUSES.TIMEOUT]
    assert value(played[1]) == 0.0


# ---------------------------------------------------------------- which agent, which model


async def test_only_marked_agents_are_trained_and_marking_counts_for_earlier_calls(
    gateway: Gateway, codec: Codec
) -> None:
    class Two(LitAgent):
        async def rollout_async(self, task: Any, resources: NamedResources, rollout: Any) -> float:
            question = task["question"]
            await rollout.llm("main").chat(question)
            with rollout.agent("user"):
                llm = rollout.llm("main")
                await (llm.chat(question) if task["id"] == "t0" else ask_http(llm, question))
            await rollout.llm().chat(question)
            if task["id"] != "t2":
                rollout.mark_agent_as_trainable("main")
            return 1.0

    played = await play(gateway, codec, Two(), 3)
    for done in played[:2]:
        assert [c.agent for c in done.last.calls] == ["main", "user", "main"]
        assert [c.policy for c in done.last.calls] == ["main", None, "main"]
        rows = build_rows(done.last.calls)
        assert sum(r.n_trained for r in rows) == sum(
            len(c.sampled.token_ids) for c in done.last.calls if c.agent == "main"
        )
    assert [c.policy for c in played[2].last.calls] == ["main"] * 3


async def test_agents_in_parallel_tasks_keep_their_names(gateway: Gateway, codec: Codec) -> None:
    async def agent(task: Any, rollout: Any) -> float:
        async def speak(name: str) -> None:
            with rollout.agent(name):
                for _ in range(2):
                    await asyncio.sleep(0)
                    await rollout.llm().chat(f"q{name}")

        await asyncio.gather(*(speak(n) for n in ("one", "two", "three")))
        rollout.mark_agent_as_trainable("two")
        return 1.0

    (done,) = await play(gateway, codec, agent, 1)
    assert len(done.last.calls) == 6
    for call in done.last.calls:
        assert call.messages[0].content == f"q{call.agent}"
        assert call.policy == ("main" if call.agent == "two" else None)


async def test_frozen_and_remote_models_are_recorded_and_never_trained(
    gateway: Gateway, codec: Codec
) -> None:
    resources = {
        "actor": LLM("label", trainable=True),
        "user": LLM(frozen=True),
        "judge": LLM("gpt-x", endpoint="http://elsewhere/v1"),
    }
    asked: list[str] = []

    class Elsewhere:
        def __init__(self, name: str) -> None:
            self.name = name

        async def chat(self, messages: Any, **rest: Any) -> Any:
            from tutelage.types import Call, Message, Sampled, Sampling, StopReason

            asked.append(messages[-1].content)
            empty = Sampled((), (), (), StopReason.STOP, 0)
            return Call(
                "r", rest["agent"], 0, tuple(messages), (), empty,
                Message("assistant", "judged"), Sampling(),
            )  # fmt: skip

    async def agent(task: Any, rollout: Any, judge: LLM, user: LLM) -> float:
        first = await rollout.llm("actor").chat("q1")
        second = await ask_http(user, "q2")
        third = await judge.chat("is it good?")
        assert rollout.llm("main").model == "actor"
        assert (first.reply.content, second, third.reply.content) == ("a1", "old", "judged")
        return 1.0

    (done,) = await play(
        gateway,
        codec,
        agent,
        1,
        resources=resources,
        engines={"user": ScriptedEngine(codec, lambda _: "old")},
        remote=lambda name, seeds: Elsewhere(name),  # type: ignore[arg-type,return-value]
    )
    assert value(done) == 1.0, done.last.failure
    assert asked == ["is it good?"]
    assert [c.policy for c in done.last.calls] == ["main", None, None]
    assert [c.index for c in done.last.calls] == [0, 1, 2]
    assert len(build_rows(done.last.calls)) == 1


@pytest.mark.parametrize("label", ["u-label", "a-label"])
async def test_over_http_a_model_is_chosen_by_the_name_that_is_sent(
    gateway: Gateway, codec: Codec, label: str
) -> None:
    """A label of both is the policy's: nothing answers in its place."""
    resources = {"actor": LLM("a-label", trainable=True), "user": LLM(label, frozen=True)}

    async def agent(task: Any, rollout: Any) -> dict[str, float]:
        import httpx2

        llm, said = rollout.llm("actor"), dict[str, str]()
        async with httpx2.AsyncClient() as http:
            for name in ("actor", "a-label", "anything", "user", "u-label"):
                done = await http.post(
                    f"{llm.endpoint}/chat/completions",
                    json={"model": name, "messages": [{"role": "user", "content": "q1"}]},
                    headers={"authorization": f"Bearer {llm.api_key}"},
                )
                found = done.json()
                said[name] = (
                    found["choices"][0]["message"]["content"]
                    if done.status_code == 200
                    else found["error"]["code"]
                )
        assert said == {
            "actor": "a1",
            "a-label": "a1",
            "anything": "model_not_found",  # never the policy by accident
            "user": "old",
            "u-label": "old" if label == "u-label" else "model_not_found",
        }
        return {"reward": 1.0}

    (done,) = await play(
        gateway,
        codec,
        agent,
        1,
        resources=resources,
        engines={"user": ScriptedEngine(codec, lambda _: "old")},
    )
    assert value(done) == 1.0, done.last.failure
    asked = 2 if label == "u-label" else 1
    assert [c.policy for c in done.last.calls] == ["main"] * 2 + [None] * asked


async def test_two_policies_each_get_their_own_calls(gateway: Gateway, codec: Codec) -> None:
    resources = {"asker": LLM(trainable=True), "solver": LLM(trainable=True, policy="b")}

    async def agent(task: Any, asker: LLM, solver: LLM) -> float:
        await asker.chat("q1")
        await solver.chat("q2")
        return 1.0

    engines = {"solver": ScriptedEngine(codec, lambda _: "bbb")}
    (done,) = await play(gateway, codec, agent, 1, resources=resources, engines=engines)
    assert [(c.policy, c.reply.content) for c in done.last.calls] == [("main", "a1"), ("b", "bbb")]
    assert len(build_rows(done.last.calls, "main")) == len(build_rows(done.last.calls, "b")) == 1


async def test_the_run_decides_how_a_policy_is_sampled_and_the_agent_how_long(
    gateway: Gateway, codec: Codec
) -> None:
    async def agent(task: Any, llm: LLM) -> float:
        await llm.chat(task["question"], temperature=0.3, top_p=0.5, max_tokens=1)
        await llm.chat(task["question"])
        return 1.0

    engine = echo(codec)
    await play(gateway, codec, agent, 1, engine=engine, temperature=0.7)
    asked = [
        (r.sampling.temperature, r.sampling.top_p, r.sampling.max_tokens) for r in engine.requests
    ]
    assert asked == [(0.7, 1.0, 1), (0.7, 1.0, 16)]


# ---------------------------------------------------------------- shapes of agents


async def test_parameters_are_filled_by_name(gateway: Gateway, codec: Codec) -> None:
    seen: dict[str, Any] = {}

    @rollout(model=LLM("m"), tokenizer=LLM("m", tokenizer_only=True))
    async def agent(
        task: Any, llm: Any, tokenizer: Any, rollout: Any, resources: Any, shop: Any, extra: int = 7
    ) -> float:
        seen.update(locals())
        return 1.0

    resources = {**agent.own_resources(), "shop": {"open": True}}
    (done,) = await play(gateway, codec, agent, 1, resources=resources)
    assert value(done) == 1.0, done.last.failure
    assert seen["task"] == {"question": "q0", "answer": "a0", "id": "t0"}
    assert seen["llm"].endpoint.startswith("http://127.0.0.1:")
    assert seen["llm"].endpoint.endswith("/v1")
    assert seen["tokenizer"].decode(seen["tokenizer"].encode("46")) == "46"
    assert seen["rollout"].mode is Mode.TRAIN
    assert (seen["rollout"].id, seen["rollout"].attempt_id) == (done.id, done.last.id)
    assert seen["resources"].shop == seen["shop"] == {"open": True}
    assert seen["extra"] == 7


@pytest.mark.parametrize("mode", [Mode.TRAIN, Mode.VAL, Mode.TEST])
async def test_a_class_is_played_by_its_most_specific_method(
    mode: Mode, gateway: Gateway, codec: Codec
) -> None:
    class General(LitAgent):
        def rollout(self, task: Any, resources: NamedResources, rollout: Any) -> float:
            assert threading.current_thread() is not threading.main_thread()
            return 1.0

    class Specific(General):
        async def training_rollout_async(self, task: Any, resources: Any, rollout: Any) -> float:
            return 2.0

        def validation_rollout(self, task: Any, resources: Any, rollout: Any) -> float:
            return 3.0

    chosen = specs(1, mode=mode)
    (done,) = await play(gateway, codec, General(), chosen=chosen)
    assert value(done) == 1.0
    (done,) = await play(gateway, codec, Specific(), chosen=chosen)
    assert value(done) == (2.0 if mode is Mode.TRAIN else 3.0)
