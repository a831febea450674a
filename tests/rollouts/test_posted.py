"""Programs elsewhere: they know an address and a key, and post what their rollout has earned."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest
from live_parts import play

from tutelage import LLM, RL, ExternalAgent, Trainer, emit_reward, rollout
from tutelage.errors import ConfigError
from tutelage.gateway import Gateway
from tutelage.policy.codec import Codec
from tutelage.store import open_store
from tutelage.testing import tiny_policy
from tutelage.types import FailureCause, Rollout

PROGRAM = """
import encodings.idna, http.client, json, os, sys
from urllib.parse import urlsplit

if os.getuid() == 0:  # another user; Python's own files may be out of its reach
    os.setgroups([]), os.setgid(65534), os.setuid(65534)

def post(url, body):
    at = urlsplit(url)
    line = http.client.HTTPConnection(at.hostname, at.port, timeout=20,
                                      source_address=("127.0.0.2", 0))
    line.request("POST", at.path, json.dumps(body), {
        "authorization": "Bearer " + os.environ["AGL_KEY"], "content-type": "application/json"})
    answer = line.getresponse()
    said = json.loads(answer.read())
    assert answer.status == 200, said
    return said

task = json.loads(os.environ["AGL_TASK"])
said = post(os.environ["AGL_OPENAI_BASE_URL"] + "/chat/completions", {
    "model": "auto", "max_tokens": 4, "temperature": 1.0,
    "messages": [{"role": "user", "content": task["question"]}]})
text = said["choices"][0]["message"]["content"]
reward = float(len(text) % 2)
post(os.environ["AGL_EVENT_URL"], {
    "event_type": "reward", "data": {"value": reward, "reason": "parity"}})
"""
"""An agent in the manner of agent-lightning 1.0: three variables, and one of its own."""


def value(played: Rollout) -> float | None:
    return None if played.reward is None else played.reward.value


def post_with(env: Any, reward: float, name: str = "reward") -> str:
    """A program's code that posts a reward."""
    return (
        "import json, os, urllib.request as u; u.urlopen(u.Request("
        f"os.environ['TUTELAGE_REWARD_URL'], json.dumps({{{name!r}: {reward}}}).encode(), "
        "{'authorization': 'Bearer ' + os.environ['OPENAI_API_KEY']}))"
    )


async def test_a_program_posts_its_reward(gateway: Gateway, codec: Codec) -> None:
    program = ExternalAgent([sys.executable, "-c", post_with(None, 0.5) + "; print('an answer')"])
    played = await play(gateway, codec, program, 2)
    assert [value(r) for r in played] == [0.5, 0.5]
    assert [r.last.answer for r in played] == ["an answer"] * 2


async def test_what_the_program_says_wins_over_what_it_posted(
    gateway: Gateway, codec: Codec
) -> None:
    code = post_with(None, 0.5) + "; " + post_with(None, 3, "speed") + "; print(0.25)"
    program = ExternalAgent([sys.executable, "-c", code], output="reward")
    (played,) = await play(gateway, codec, program, 1)
    assert played.reward is not None
    assert (played.reward.value, played.reward.parts) == (0.25, {"speed": 3.0})


@pytest.mark.parametrize("said", ["", "; print('done')"])
async def test_a_posted_reward_stands_for_one_that_is_not_printed(
    gateway: Gateway, codec: Codec, said: str
) -> None:
    code = post_with(None, 0.5) + said
    program = ExternalAgent([sys.executable, "-c", code], output="reward")
    (played,) = await play(gateway, codec, program, 1)
    assert (value(played), played.last.failure) == (0.5, None)


async def test_a_program_that_fails_earns_the_failure_reward(
    gateway: Gateway, codec: Codec
) -> None:
    program = ExternalAgent([sys.executable, "-c", post_with(None, 1) + "; exit(3)"])
    (played,) = await play(gateway, codec, program, 1, failure_reward=-1.0)
    assert (value(played), played.last.failure and played.last.failure.cause) == (
        -1.0,
        FailureCause.AGENT_ERROR,
    )


@rollout
async def handed_over(task: Any, llm: LLM, rollout: Any) -> None:
    """Starts a program elsewhere and returns at once, when its reward has come."""
    if task["id"] != "t1":
        code = post_with(None, float(task["id"][1:]) / 10)
        env = {**os.environ, **rollout.env}
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", code, env=env)
        await rollout.posted_reward()
        await child.wait()
        return
    await rollout.posted_reward()  # nobody posts it


async def test_an_agent_waits_for_a_reward_until_its_time_is_up(
    gateway: Gateway, codec: Codec
) -> None:
    played = await play(gateway, codec, handed_over, 3, timeout=3.0)
    assert [value(r) for r in played] == [0.0, 0.0, 0.2]
    causes = [r.last.failure and r.last.failure.cause for r in played]
    assert causes == [None, FailureCause.TIMEOUT, None]


async def test_parts_of_the_task_become_variables(gateway: Gateway, codec: Codec) -> None:
    mapped = {"QUESTION": "input.question", "ALL": "input", "SAID": "as it is"}
    code = "import os, json; print(json.dumps([os.environ[n] for n in ('QUESTION','ALL','SAID')]))"
    program = ExternalAgent([sys.executable, "-c", code], env_map=mapped)
    seen: list[Any] = []

    def graded(prediction: str) -> float:
        seen.append(json.loads(prediction))
        return 1.0

    from tutelage.rewards import reward

    (played,) = await play(gateway, codec, program, 1, reward=reward(graded))
    question, whole, text = seen[0]
    assert (question, text, json.loads(whole)["id"]) == ("q0", "as it is", "t0")
    wrong = ExternalAgent([sys.executable, "-c", code], env_map={"X": "input.steps.0"})
    (played,) = await play(gateway, codec, wrong, 1)
    assert played.last.failure is not None
    assert "'input.steps.0', but the task has only " in played.last.failure.message


# ---------------------------------------------------------------- another machine, a whole run


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


async def start_elsewhere(code: str, folder: Path, env: dict[str, str]) -> Any:
    """A process that shares nothing with this one but an address and a key."""
    return await asyncio.create_subprocess_exec(
        os.path.realpath(sys.executable), "-I", "-c", code, env=env, cwd=folder
    )


async def post_late(env: dict[str, str]) -> int:
    """The status of a reward for an attempt that has ended."""
    async with httpx2.AsyncClient() as http:
        body = {"event_type": "reward", "data": {"value": 9.0}}
        keys = {"authorization": f"Bearer {env['AGL_KEY']}"}
        return (await http.post(env["AGL_EVENT_URL"], json=body, headers=keys)).status_code


@pytest.mark.full
def test_agents_of_another_machine_train_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None
) -> None:
    port = free_port()
    monkeypatch.setenv("TUTELAGE_GATEWAY", f"0.0.0.0:{port}")
    monkeypatch.setenv("TUTELAGE_GATEWAY_URL", f"http://127.0.0.2:{port}")
    ended: list[dict[str, str]] = []
    late: list[int] = []

    @rollout
    async def elsewhere(task: Any, llm: LLM, rollout: Any) -> None:
        if rollout.step == 2 and not late:
            late.append(await post_late(ended[0]))
        own = {k: v for k, v in rollout.env.items() if k.startswith("AGL_")}
        assert all("127.0.0.2" in v for k, v in own.items() if k.endswith("_URL"))
        ended.append(own)
        own["AGL_TASK"] = json.dumps(task)
        child = await start_elsewhere(PROGRAM, Path("/"), own)
        emit_reward(await rollout.posted_reward(), "seen")
        assert await child.wait() == 0

    settings = {
        "lr": 1e-2, "steps": 2, "agent.num_chains": 2, "data.train_batch_size": 2,
        "agent.max_turns": 1, "agent.max_tokens_per_turn": 4, "rollout.max_len": 128,
    }  # fmt: skip
    trainer = Trainer(
        algorithm=RL(settings),
        train_dataset=[{"question": f"What is {i} + 1?"} for i in range(4)],
        policy=tiny_policy(),
        output_dir=tmp_path / "run",
    )
    result = trainer.fit(elsewhere)
    assert (result.status, result.failures) == ("finished", {})
    with open_store(tmp_path / "run" / "store.db") as store:
        (run,) = store.runs()
        played = list(store.rollouts(run.id))
        assert len(played) >= 8
        for one in played:
            assert one.reward is not None
            assert one.reward.parts == {"seen": one.reward.value}
            assert len(one.last.calls) == 1
        first = ended[0]["AGL_EVENT_URL"].split("/rollouts/")[1].split("/")[0]
        assert late == [410]
        counted = store.rollout(first).reward
        assert counted is not None
        assert counted.value in (0.0, 1.0)


def test_an_address_that_agents_cannot_reach_stops_before_any_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUTELAGE_GATEWAY", "0.0.0.0")
    trainer = Trainer(algorithm=RL({"steps": 1}), train_dataset=[{"question": "1"}])
    with pytest.raises(ConfigError, match="TUTELAGE_GATEWAY_URL"):
        trainer.fit(handed_over)
