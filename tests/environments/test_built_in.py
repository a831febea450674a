"""The built-in environments: what their policies earn, their splits, and that they repeat.

The values stand in `benchmarks/environments/EXPECTED.md`: by a formula where there is one, else as
they come out on the first 200 tasks of the test.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from statistics import mean
from typing import Any

import pytest

from tutelage.environments import (
    EnvironmentFactory,
    Observation,
    PlayedEpisode,
    check_deterministic,
    load_environment,
    play_episode,
)
from tutelage.environments.built_in import call_message
from tutelage.environments.sources import PRICES, VARIANTS
from tutelage.seeds import SeedTree
from tutelage.testing import check_environment
from tutelage.types import Message, Task, ToolCall

NAMES = ("sources", *(f"sources:{v}" for v in VARIANTS if v), "service_desk", "rooms")
Play = Callable[[Task, Sequence[Message], Observation], Message]


def asking(*sources: str) -> Play:
    """Ask sources one after another until two agree, and answer what the last one said."""

    def act(task: Task, messages: Sequence[Message], observation: Observation) -> Message:
        heard = [m.content for m in messages if m.role == "tool"]
        agree = len(heard) == 2 and heard[0] == heard[1]
        if len(heard) == len(sources) or agree:
            return Message("assistant", heard[-1])
        name = task["kind"] if sources[len(heard)] == "specialist" else sources[len(heard)]
        return call_message(name, len(heard), item=task["item"])

    return act


def guess(task: Task, messages: Sequence[Message], observation: Observation) -> Message:
    return Message("assistant", "55")


async def play(factory: EnvironmentFactory, task: Task, seed: int, act: Play) -> PlayedEpisode:
    """Play without the threads and checks of a rollout."""
    environment = factory.make()
    observation = await environment.reset(task, seed)
    messages, infos = [*task.messages(), *observation.messages], [dict(observation.info)]
    rewards: list[float | None] = []
    while True:
        messages.append(act(task, messages, observation))
        step = await environment.step(messages[-1])
        observation = step.observation
        messages += observation.messages
        rewards.append(step.reward)
        infos.append({**observation.info, **step.info})
        if step.terminated or step.truncated:
            await environment.close()
            ended = step.terminated, step.truncated
            return PlayedEpisode(tuple(messages), tuple(rewards), tuple(infos), *ended)


async def episodes(name: str, act: Play, rounds: int = 1, tasks: int = 200) -> list[PlayedEpisode]:
    factory = load_environment(name)
    assert factory.tasks is not None
    drawn = factory.tasks("test", tasks, 0)
    return [
        await play(factory, task, 1000 * turn + place, act)
        for turn in range(rounds)
        for place, task in enumerate(drawn)
    ]


async def value(name: str, act: Play, rounds: int = 1) -> float:
    return mean(one.total for one in await episodes(name, act, rounds))


def expert_of(factory: EnvironmentFactory) -> Play:
    expert = factory.expert
    assert expert is not None
    return lambda task, messages, observation: expert(task, messages)


async def test_what_sources_earn_is_what_their_costs_and_trust_say() -> None:
    assert await value("sources", asking("register")) == pytest.approx(0.85)
    assert await value("sources", asking("audit")) == pytest.approx(0.55)
    assert await value("sources", asking("rumour"), 10) == pytest.approx(0.5, abs=0.04)
    assert await value("sources", guess, 10) == pytest.approx(1 / len(PRICES), abs=0.02)
    assert 1 / len(PRICES) == pytest.approx(0.011, abs=0.0005)


async def test_comparing_two_rumours_beats_both_a_rumour_and_the_register() -> None:
    assert await value("sources:compare", asking("register")) == pytest.approx(0.6)
    assert await value("sources:compare", asking("rumour"), 10) == pytest.approx(0.5, abs=0.04)
    # Two rumours agree if both are right, or both wrong by the same one of the other prices.
    wrong = 0.25 / (len(PRICES) - 1)
    expected = 0.25 + (1 - 0.25 - wrong) * 0.6
    assert expected == pytest.approx(0.698, abs=0.0005)
    twice = asking("rumour", "rumour", "register")
    assert await value("sources:compare", twice, 10) == pytest.approx(expected, abs=0.03)


async def test_the_right_specialist_beats_always_the_same_one() -> None:
    assert await value("sources:kinds", asking("specialist")) == pytest.approx(0.95)
    assert await value("sources:kinds", asking("register")) == pytest.approx(0.7)
    assert await value("sources:kinds", asking("rumour"), 10) == pytest.approx(0.5, abs=0.04)
    for one in ("tailor", "smith"):
        assert await value("sources:kinds", asking(one), 10) == pytest.approx(0.7, abs=0.05)


async def test_each_call_is_paid_in_its_turn_and_an_unknown_item_is_free() -> None:
    factory = load_environment("sources")
    assert factory.tasks is not None
    task = factory.tasks("train", 1, 0)[0]
    calls = [("register", task["item"]), ("audit", task["item"]), ("register", "blue moon")]
    both = [ToolCall(n, n, json.dumps({"item": item})) for n, item in calls]
    script = [Message("assistant", None, tuple(both)), Message("assistant", task["answer"])]
    one = await play_episode(factory, task, 0, lambda t, m, o: script[len(m) > 2])
    assert one.rewards == pytest.approx((-0.6, 1.0))
    assert one.infos[-1] == {"success": True, "cost": 0.6}
    assert [m.content for m in one.messages[2:5]] == [*[task["answer"]] * 2, "unknown item"]
    cut = await play_episode(factory, task, 0, lambda t, m, o: script[0])
    assert (len(cut.rewards), cut.truncated, cut.terminated) == (6, True, False)
    assert cut.infos[-1]["success"] is False


async def test_the_service_desk_pays_who_looks_before_acting() -> None:
    factory = load_environment("service_desk")

    def blind(task: Task, messages: Sequence[Message], observation: Observation) -> Message:
        requests, turn = task["requests"], sum(m.role == "assistant" for m in messages)
        if turn == 0:
            return call_message("find", 0, name=task["customer"])
        if turn > len(requests):
            return Message("assistant", "Done.")
        request = requests[turn - 1]
        new = {"item": request["new"]} if request["new"] else {}
        return call_message(request["action"], turn, order=request["order"], **new)

    expert = await episodes("service_desk", expert_of(factory))
    assert mean(one.total for one in expert) == pytest.approx(0.9057)
    assert all(one.infos[-1]["success"] for one in expert)
    turns = [len(one.rewards) for one in expert]
    assert (min(turns), max(turns)) == (4, 8)
    acting = await episodes("service_desk", blind)
    assert mean(one.total for one in acting) == pytest.approx(0.3945)
    declining = await episodes("service_desk", guess)
    assert mean(one.total for one in declining) == pytest.approx(0.21)


async def test_rooms_pay_at_the_end_alone_and_chance_seldom_gets_there() -> None:
    factory = load_environment("rooms")
    expert = await episodes("rooms", expert_of(factory))
    assert [one.total for one in expert] == [1.0] * 200
    assert all(one.rewards[:-1] == (0.0,) * (len(one.rewards) - 1) for one in expert)
    moves = [len(one.rewards) for one in expert]
    assert (min(moves), max(moves)) == (9, 17)
    states = [info.get("state") for info in expert[0].infos]
    assert states[0] == expert[0].messages[1].content.partition(":")[0]
    assert any(state is not None and state.endswith("with key") for state in states)
    rng = SeedTree(0).child("chance").python()

    def wander(task: Task, messages: Sequence[Message], observation: Observation) -> Message:
        return Message("assistant", rng.choice(observation.actions))

    chance = await episodes("rooms", wander, 10)
    assert mean(one.total for one in chance) == pytest.approx(0.023, abs=0.01)
    assert max(len(one.rewards) for one in chance) == 20
    assert all(one.terminated is bool(one.total) for one in chance)


@pytest.mark.parametrize("name", NAMES)
async def test_splits_share_no_question_and_repeat_with_their_seed(name: str) -> None:
    factory = load_environment(name)
    assert factory.tasks is not None
    splits = {s: factory.tasks(s, 300, 0) for s in ("train", "val", "test")}
    questions = [task.input for tasks in splits.values() for task in tasks]
    assert len({*questions}) == 900
    assert factory.tasks("train", 100, 0) == splits["train"][:100]
    assert factory.tasks("train", 100, 1) != splits["train"][:100]
    assert json.loads(json.dumps([dict(t.fields) for t in splits["test"]])) == [
        dict(t.fields) for t in splits["test"]
    ]
    words: dict[str, set[Any]] = {}
    for split, tasks in splits.items():
        words[split] = {t.fields.get(key) for t in tasks for key in ("item", "customer")}
        words[split] |= {order[2] for t in tasks for order in t.fields.get("orders", ())}
    words = {split: found - {None} for split, found in words.items()}
    assert not words["train"] & (words["test"] | words["val"])
    assert not words["val"] & words["test"]
    assert await check_deterministic(factory, splits["train"][0], 5) is None


@pytest.mark.parametrize("name", NAMES)
def test_they_pass_the_suite_for_authors(name: str) -> None:
    check_environment(name)
