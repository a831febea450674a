"""The simulator server: an OpenAI-compatible endpoint whose replies are a function of requests."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from benchmarks.prompt.formats import read
from benchmarks.prompt.server import Faults, simulator
from benchmarks.prompt.worlds import WORLDS, world

from tutelage.prompts import requests
from tutelage.types import Message

ROOT = Path(__file__).parents[2]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "A tool.",
            "parameters": {"type": "object", "properties": {argument: {"type": "string"}}},
        },
    }
    for name, argument in (("sum_1_to_n", "n"), ("calculator", "expression"))
]
TOLD = "Always call sum_1_to_n to add up 1 to n. Use the calculator for every calculation."


@pytest.fixture(scope="module")
def maths() -> Iterator[str]:
    with simulator("math") as url:
        yield url


def chat(url: str, key: str = "me", **body: Any) -> Any:
    headers = {"authorization": f"Bearer {key}"}
    reply = httpx2.post(f"{url}/chat/completions", json=body, headers=headers)
    assert reply.status_code == 200, reply.text
    return reply.json()


def counts(url: str) -> Any:
    return httpx2.get(url.removesuffix("/v1") + "/counts").json()["clients"]


def ask(system: str, question: str) -> list[dict[str, Any]]:
    return [{"role": "system", "content": system}, {"role": "user", "content": question}]


def said(reply: Any) -> str:
    return reply["choices"][0]["message"]["content"]


def test_it_says_that_it_is_a_simulator_and_lists_its_models(maths: str) -> None:
    reply = chat(maths, model="gpt-4o-mini", messages=ask("Help.", "What is 2 + 2?"))
    assert reply["system_fingerprint"] == "tutelage-simulator:math"
    assert reply["usage"]["total_tokens"] == sum(
        reply["usage"][name] for name in ("prompt_tokens", "completion_tokens")
    )
    listed = httpx2.get(f"{maths}/models").json()
    assert [m["id"] for m in listed["data"]] == ["simulator-task", "simulator-optimiser"]


def test_equal_requests_get_equal_replies(maths: str) -> None:
    body = {"model": "m", "messages": ask("Help.", "What is 17 * 23?"), "n": 2}
    assert chat(maths, **body) == chat(maths, **body)


def test_told_to_it_calls_the_tool_and_answers_with_the_result(maths: str) -> None:
    messages = ask(TOLD, "What is the sum of 1 to 100?")
    first = chat(maths, model="m", messages=messages, tools=TOOLS)["choices"][0]
    (call,) = first["message"]["tool_calls"]
    assert first["finish_reason"] == "tool_calls"
    assert call["function"] == {"name": "sum_1_to_n", "arguments": json.dumps({"n": 100})}
    result = {"role": "tool", "tool_call_id": call["id"], "content": "5050"}
    last = chat(maths, model="m", messages=[*messages, first["message"], result], tools=TOOLS)
    assert "5050" in said(last)


def test_it_counts_rollouts_as_conversations_and_by_client() -> None:
    with simulator("math") as url:
        messages = ask(TOLD, "Add up 1 to 9.")
        first = chat(url, "a", model="m", messages=messages, tools=TOOLS)["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": "x", "content": "45"}
        chat(url, "a", model="m", messages=[*messages, first, result], tools=TOOLS)
        chat(url, "b", model="m", messages=messages)
        critique = requests.critique("prompt", "Be kind.", [])
        chat(url, "b", model="m", messages=[m.to_dict() for m in critique])
        used = counts(url)
    assert (used["a"]["rollouts"], used["a"]["task_calls"]) == (1, 2)
    assert (used["b"]["rollouts"], used["b"]["optimiser_calls"]) == (1, 1)


def test_faults_come_once_and_are_not_counted_as_rollouts() -> None:
    with simulator("clerk", faults=Faults(1.0, ("429", "500"))) as url:
        body = {"model": "simulator-task", "messages": ask("x", "Request t-0 for the clerk")}
        first = httpx2.post(f"{url}/chat/completions", json=body)
        assert first.status_code in (429, 500)
        assert httpx2.post(f"{url}/chat/completions", json=body).status_code == 200
        assert counts(url)["nobody"]["rollouts"] == 1
    with simulator("clerk", faults=Faults(1.0, ("truncated",))) as url:
        short, whole = (chat(url, **body)["choices"][0] for _ in range(2))
        assert short["finish_reason"] == "length"
        assert whole["message"]["content"].startswith(short["message"]["content"])


@pytest.mark.parametrize("name", WORLDS)
def test_a_world_rewards_the_right_prompt_and_its_optimiser_finds_sentences(name: str) -> None:
    here = world(name)
    tasks = [here.task("t", i) for i in range(200)]

    def reward(prompt: str) -> float:
        grades = [
            here.grade(
                t,
                here.reply(prompt, [{"role": "user", "content": t["question"]}], TOOLS, 0).content,
            ).reward
            for t in tasks
        ]
        return sum(grades) / len(grades)

    assert reward(here.seed_prompt) < 0.45
    if name in ("clerk", "desk"):
        right = here.phrases[:7]
        assert reward("\n".join([here.seed_prompt, *right])) > 0.75


def _other(text: str) -> str:
    asked = read(text)
    assert asked is not None
    assert asked.current == "Be kind."
    return asked.wrap("NEW")


def test_it_reads_the_requests_of_other_optimisers() -> None:
    gepa = "I provided an assistant with the following instructions to perform a task for me:\n"
    assert "```\nNEW\n```" in _other(gepa + "```\nBe kind.\n```\n\nThe following are examples")
    edit = "ONE critique point\n### PROMPT\n\nBe kind.\n\n### CRITIQUE\n\n- too long"
    assert _other(edit) == "NEW"
    assert _other("# Prompt Template\n\nBe kind.\n\n# Critique\n\n- too long") == "NEW"
    fields = (
        "Your output fields are:\n1. `new_instruction` (str): it\n"
        "All interactions will be structured in the following way\n{}\n"
        "[[ ## current_instruction ## ]]\nBe kind.\n\n[[ ## examples ## ]]\nx"
    )
    assert json.loads(_other(fields.format("JSON"))) == {"new_instruction": "NEW"}
    assert "[[ ## new_instruction ## ]]\nNEW" in _other(fields.format(""))
    assert read("What is 2 + 2?") is None
    ours = [*requests.reflect("prompt", "Be kind.", []), Message("user", "again")]
    assert "<prompt>\nNEW\n</prompt>" in _other("\n".join(m.content or "" for m in ours))


def test_the_command_prints_its_base_url_and_serves() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.prompt.server", "--world", "math", "--port", "0"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            for _ in range(100):
                try:
                    assert httpx2.get(f"{url}/models").status_code == 200
                    break
                except httpx2.ConnectError:
                    continue
        finally:
            process.terminate()
    assert url.startswith("http://127.0.0.1:")
