"""examples/tau2: its tasks, rules of grading, dialogue and masks, and a short training."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tutelage.rollouts.rows import build_rows
from tutelage.store import open_store
from tutelage.types import Mode

HERE = Path(__file__).parents[2] / "examples" / "tau2"
sys.path.insert(0, str(HERE))

import make_start  # noqa: E402
import tau2_benchmark  # noqa: E402
import train_tau2_agent  # noqa: E402
from tau2_dialogue import GREETING, talk  # noqa: E402
from tau2_small import SmallWorld  # noqa: E402
from tau2_tasks import SMALL, SerializedTask, data_folder, load_dataset, load_rows  # noqa: E402

ROWS = load_rows(SMALL)
CHECKOUT = os.environ.get("TAU2_DATA_DIR")


def call(name: str, call_id: str = "c0", **arguments: Any) -> dict[str, Any]:
    """A tool call in the form of Chat Completions."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": call_id, "type": "function", "function": function}


def said(content: str | None, *calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **({"tool_calls": [*calls]} if calls else {})}


class Script:
    """A client that says what it is given, and keeps what it was asked."""

    def __init__(self, *replies: dict[str, Any]) -> None:
        self.replies, self.asked = list(replies), list[Any]()

    async def complete(self, messages: Sequence[Any], tools: Sequence[Any] = ()) -> dict[str, Any]:
        self.asked.append((list(messages), list(tools)))
        return self.replies.pop(0)


# ---------------------------------------------------------------- tasks


def test_the_small_airlines_files_are_what_the_script_writes(tmp_path: Path) -> None:
    script = [sys.executable, str(HERE / "make_small.py")]
    subprocess.run(script, cwd=tmp_path, check=True, timeout=60)
    files = sorted(p for p in SMALL.rglob("*") if p.is_file())
    assert len(files) == 4
    for path in files:
        assert (tmp_path / "small" / path.relative_to(SMALL)).read_text() == path.read_text()


@pytest.mark.parametrize("named", [None, "", "nowhere"])
def test_without_a_checkout_it_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, named: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TAU2_DATA_DIR", raising=False)
    if named is not None:
        monkeypatch.setenv("TAU2_DATA_DIR", named)
    assert train_tau2_agent.main(["--model", "m"]) == 1
    told = capsys.readouterr().err
    assert "git clone https://github.com/sierra-research/tau2-bench" in told
    assert "Do not `pip install tau2`" in told


# ---------------------------------------------------------------- grading


def play_gold(world: Any, row: SerializedTask) -> list[dict[str, Any]]:
    """A dialogue in which the task's own actions are done and its facts told."""
    criteria = json.loads(row["data"])["evaluation_criteria"]
    messages: list[dict[str, Any]] = [said(GREETING), {"role": "user", "content": "hello"}]
    for i, action in enumerate(criteria["actions"] or ()):
        messages.append(said(None, call(action["name"], f"c{i}", **action["arguments"])))
        text, _ = world.call(f"c{i}", action["name"], action["arguments"])
        messages.append({"role": "tool", "tool_call_id": f"c{i}", "content": text})
    facts = " and ".join(criteria.get("communicate_info") or ())
    return [*messages, said(f"It is {facts}."), {"role": "user", "content": "###STOP###"}]


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r["id"])
def test_the_tasks_own_actions_earn_1(row: SerializedTask) -> None:
    world = SmallWorld(row)
    assert world.evaluate(play_gold(world, row)) == {"reward": 1.0, "db": 1.0, "communicate": 1.0}


def test_the_database_decides_not_the_way_there() -> None:
    row = ROWS[2]  # Cancel KAT, which is insured.
    world = SmallWorld(row)
    assert world.evaluate([said("Done.")])["reward"] == 0.0
    world.call("c", "cancel_reservation", {"reservation_id": "KAT"})
    assert world.evaluate([said("Done.")])["reward"] == 1.0
    world.call("c", "cancel_reservation", {"reservation_id": "LUM"})
    assert world.evaluate([said("Done.")]) == {"reward": 0.0, "db": 0.0, "communicate": 1.0}
    assert SmallWorld(row).evaluate([])["db"] == 0.0, "each world has a database of its own"


def test_facts_count_where_the_assistant_said_them() -> None:
    world = SmallWorld(ROWS[0])  # KAT cost 120.
    assert world.evaluate([{"role": "user", "content": "120?"}])["reward"] == 0.0
    assert world.evaluate([said("No."), said("It cost $1,20.")])["reward"] == 1.0


# ---------------------------------------------------------------- the dialogue


async def test_each_side_sees_the_talk_as_its_own() -> None:
    world = SmallWorld(ROWS[2])
    cancel = call("cancel_reservation", reservation_id="KAT")
    assistant = Script(said(None, cancel), said("Done."))
    user = Script(said("Cancel KAT."), said("Thanks ###STOP###"))
    dialogue = await talk(world, assistant, user)  # pyright: ignore[reportArgumentType]
    assert dialogue.stop == "user_stop"
    assert world.evaluate(dialogue.messages)["reward"] == 1.0
    roles = [m["role"] for m in dialogue.messages]
    assert roles == ["assistant", "user", "assistant", "tool", "assistant", "user"]
    seen, tools = user.asked[-1]
    assert [(m["role"], m["content"]) for m in seen[1:]] == [
        ("user", GREETING),
        ("assistant", "Cancel KAT."),
        ("user", "Done."),
    ]
    assert tools == []
    seen, tools = assistant.asked[-1]
    assert [m["role"] for m in seen] == ["system", "assistant", "user", "assistant", "tool"]
    assert seen[-1]["content"] == "cancelled"
    assert len(tools) == 3


# ---------------------------------------------------------------- training


@pytest.mark.full
def test_the_commands_of_the_readme_train_the_assistant_alone(
    one_thread: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Through the gateway, with the frozen policy as the customer; the reward rises."""
    make_start.make(ROWS, bad_share=0.6).save(tmp_path / "start")
    readme = (HERE / "README.md").read_text().replace("\\\n", " ").splitlines()
    words = shlex.split(next(line for line in readme if "--small --model" in line))
    places = {
        "runs/tau2-start": str(tmp_path / "start"),
        "runs/tau2-small": str(tmp_path / "run"),
        "steps=12": "steps=5",
    }
    assert train_tau2_agent.main([places.get(word, word) for word in words[2:]]) == 0
    assert "failures {}" in capsys.readouterr().out
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    rewards = [line["reward/mean"] for line in metrics if line["phase"] == "rl"]
    assert len(rewards) == 5
    assert sum(rewards[-2:]) / 2 > rewards[0] + 0.1, rewards

    with open_store(tmp_path / "run" / "store.db") as store:
        (run,) = store.runs()
        played = list(store.rollouts(run.id, mode=Mode.TRAIN))
    train, _ = load_dataset(SMALL)
    assert {r.task.id for r in played} <= {t.id for t in train}
    for rollout in played:
        calls = rollout.last.calls
        mine = [c for c in calls if c.agent == "assistant"]
        theirs = [c for c in calls if c.agent == "user"]
        assert len(mine) + len(theirs) == len(calls)
        assert {c.policy for c in mine} <= {"main"}
        assert {c.policy for c in theirs} == {None}
        assert {c.sampled.policy_version for c in theirs} == {0}
        rows = build_rows(calls)
        trained = [i for r in rows for i, m in zip(r.ids, r.mask, strict=True) if m]
        assert sorted(trained) == sorted(i for c in mine for i in c.sampled.token_ids)
    assert max(c.sampled.policy_version for r in played for c in r.last.calls) > 0


# ---------------------------------------------------------------- the benchmark itself


@pytest.mark.skipif(CHECKOUT is None, reason="TAU2_DATA_DIR names no checkout of tau2-bench")
def test_the_benchmark_grades_its_own_actions_with_1() -> None:
    tau2_benchmark.import_benchmark()
    rows = {row["id"]: row for row in load_rows(data_folder())}
    for name in ("1", "3", "7"):
        world = tau2_benchmark.BenchmarkWorld(rows[name])
        assert "<policy>" in world.assistant_prompt
        assert "<scenario>" in world.user_prompt
        assert {t["function"]["name"] for t in world.tools} >= {
            "cancel_reservation",
            "book_reservation",
        }
        assert world.evaluate(play_gold(world, rows[name]))["reward"] == 1.0
    idle = tau2_benchmark.BenchmarkWorld(rows["7"])
    ended = [said(GREETING), {"role": "user", "content": "###STOP###"}]
    assert idle.evaluate(ended)["reward"] == 0.0
