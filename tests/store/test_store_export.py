"""What other programs get from a run: whole records, and chat rows."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tutelage.store import Store, dump_json, export_rows, open_store
from tutelage.store.export import conversations
from tutelage.types import Call, Message, Mode, RolloutStatus, ToolCall, ToolSpec

from . import samples
from .samples import attempt, call, rollout


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "x.db") as store:
        store.put_run("run_a", **samples.RUN)
        yield store


def chat(*messages: Message, reply: Message, agent: str = "main") -> Call:
    return dataclasses.replace(call(), agent=agent, messages=messages, reply=reply)


def test_jsonl_has_all_that_was_recorded(store: Store) -> None:
    failed = attempt(0, RolloutStatus.FAILED)
    store.put_rollouts([rollout("r0", failed, attempt(1), label="x"), rollout("r1", reward=None)])
    rows = [json.loads(dump_json(row, "row")) for row in export_rows(store, "run_a", "jsonl")]
    assert [(r["id"], r["status"], r["reward"]) for r in rows] == [
        ("r1", "succeeded", None),
        ("r0", "succeeded", 1.0),
    ]
    first, second = rows[1]["attempts"]
    assert first["failure"] == {
        "cause": "timeout",
        "message": "too slow",
        "traceback": "Traceback ...",
    }
    assert first["reward"] is None
    assert second["reward"] == {"value": 1.0, "parts": {"b": 0.1, "a": 0.9}}
    assert second["tool_results"][0]["error"] == "invalid_arguments"
    recorded, exported = call(1), second["calls"][1]
    assert exported["logprobs"] == list(recorded.sampled.logprobs)
    assert exported["token_ids"] == list(recorded.sampled.token_ids)
    assert exported["prompt_ids"] == list(recorded.prompt_ids)
    assert exported["stop_reason"] == "length"
    assert exported["policy_version"] == 1
    assert exported["messages"] == [m.to_dict() for m in recorded.messages]
    assert exported["sampling"]["stop"] == ["</s>"]


def test_sft_rows_are_chats_with_tools(store: Store) -> None:
    store.put_rollouts([rollout("r0")])
    tool = ToolSpec("calculator", "Works out sums.", {"type": "object", "properties": {}})
    (row,) = export_rows(store, "run_a", "sft", tools=[tool])
    last = call(2)
    assert row["messages"] == [m.to_dict() for m in (*last.messages, last.reply)]
    assert row["messages"][1]["tool_calls"][0]["function"]["name"] == "calculator"
    assert [m["role"] for m in row["messages"]] == ["user", *["assistant", "tool"] * 2, "assistant"]
    assert row["tools"] == [tool.to_dict()]
    assert (row["task_id"], row["rollout_id"], row["agent"]) == ("t0", "r0", "main")


def test_sft_rows_keep_the_reasoning_that_a_server_sent(store: Store) -> None:
    extra = {"reasoning": "12 and 34", "logprobs": None, "reasoning_content": None}
    reply = Message("assistant", "46", extra=extra)
    done = dataclasses.replace(attempt(0), calls=(chat(Message("user", "a"), reply=reply),))
    store.put_rollouts([rollout("r0", done)])
    (row,) = export_rows(store, "run_a", "sft")
    assert row["messages"][-1] == {
        "role": "assistant", "content": "46", "reasoning": "12 and 34"
    }  # fmt: skip


def test_sft_rows_come_from_successful_training_rollouts(store: Store) -> None:
    store.put_rollouts(
        [
            rollout("good"),
            rollout("retried", attempt(0, RolloutStatus.FAILED), attempt(1), group="g1"),
            rollout("poor", reward=0.5),
            rollout("unrewarded", reward=None),
            rollout("failed", attempt(0, RolloutStatus.FAILED)),
            rollout("test", mode=Mode.TEST, label="after"),
        ]
    )

    def ids(mode: Mode | None = Mode.TRAIN) -> list[str]:
        return [row["rollout_id"] for row in export_rows(store, "run_a", "sft", mode=mode)]

    assert ids() == ["good", "retried"]
    assert ids(Mode.TEST) == ["test"]
    assert ids(None) == ["good", "retried", "test"]


def test_a_rewritten_context_starts_a_new_conversation() -> None:
    ask, one, more = Message("user", "a"), Message("assistant", "1"), Message("user", "b")
    short = Message("user", "summary")
    calls = [
        chat(ask, reply=one),
        chat(ask, one, more, reply=one),
        chat(short, reply=one),
        chat(short, one, more, reply=one),
    ]
    assert conversations(calls) == [
        ("main", (ask, one, more, one), ()),
        ("main", (short, one, more, one), ()),
    ]


def test_calls_with_other_tools_are_another_conversation(store: Store) -> None:
    tool = ToolSpec("f", "", {"type": "object", "properties": {}})
    ask, one = Message("user", "a"), Message("assistant", "1")
    first = dataclasses.replace(chat(ask, reply=one), tools=(tool,))
    done = dataclasses.replace(attempt(0), calls=(first, chat(ask, one, reply=one)))
    store.put_rollouts([rollout("r0", done)])
    rows = [*export_rows(store, "run_a", "sft", tools=None)]
    assert [(len(row["messages"]), row["tools"]) for row in rows] == [
        (2, [tool.to_dict()]),
        (3, []),
    ]


def test_agents_talk_apart() -> None:
    ask, one, two = Message("user", "a"), Message("assistant", "1"), Message("assistant", "2")
    calls = [chat(ask, reply=one), chat(ask, one, reply=two, agent="judge"), chat(ask, reply=two)]
    assert [agent for agent, _, _ in conversations(calls)] == ["main", "judge", "main"]


def test_a_turn_that_a_client_wrote_anew_stays_as_sampled() -> None:
    ask = Message("user", "a")
    sampled = Message("assistant", None, (ToolCall("call_1", "f", '{"x":1}'),))
    anew = Message("assistant", "", (ToolCall("call_1", "f", '{"x": 1}'),))
    seen, end = Message("tool", "2", tool_call_id="call_1"), Message("assistant", "done")
    calls = [chat(ask, reply=sampled), chat(ask, anew, seen, reply=end)]
    assert conversations(calls) == [("main", (ask, sampled, seen, end), ())]
