"""The report: complete and partial folders, hostile content, the same bytes, nothing from outside.

`report_folder.py` makes the folders.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.marks import long

from tutelage.runs.folder import RunFolder, write_json, write_text
from tutelage.runs.report import write_report
from tutelage.runs.report.transcripts import read_transcript
from tutelage.store import open_store
from tutelage.tasks.arithmetic import make_tasks
from tutelage.types import Failure, FailureCause, Message, Reward, Rollout, Task, ToolCall

from .report_folder import RESULT, broken_call, make_folder, play, put_run


def report(folder: RunFolder) -> str:
    assert write_report(folder) == folder.report
    return folder.report.read_text(encoding="utf-8")


def plain(page: str) -> str:
    """The words of a page, without tags, with single spaces."""
    body = re.sub(r"<(style|svg)\b.*?</\1>", " ", page, flags=re.S)
    return " ".join(re.sub(r"<[^>]*>", " ", body).replace("\u202f", " ").split())


class Tags(HTMLParser):
    """Tags of a page with their attributes, and proof that they nest."""

    VOID = frozenset(("meta", "br", "hr", "img", "link", "input"))

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.stack: list[str] = []
        self.feed(page)
        assert not self.stack

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return make_folder(tmp_path_factory.mktemp("runs") / "math-20260102-030405")


@pytest.fixture(scope="module")
def page(complete: RunFolder) -> str:
    return report(complete)


def test_the_result_stands_at_the_top(page: str) -> None:
    words = plain(page)
    assert "From 31 % to 94.5 % of held-out tasks solved" in words
    assert "25 % to 37.7 %" in words
    assert (
        "in the last 60 steps, 70 % of the demonstrations, drawn at random, guess an answer"
        in words
    )
    assert "33 rollouts in 84 steps, 8 for each task" in words


def test_all_parts_are_there(page: str) -> None:
    words = plain(page)
    for part in (
        "Reward and held-out success", "Nats for each token", "Success in the cold start",
        "The same start, two ways to learn", "Entropy",
        "Clip fraction", "Max |Δ log p|", "Groups without variance", "Turns", "Tool errors",
        "shopping", "expected", "3 stopped at the time limit it was stopped after 60 seconds",
        "Of 33 training rollouts", "measuring before 4.1 s", "cpu.flags", "avx512f",
        "algorithm.adv_estimator", "preset math/default", "tutelage ask", "tutelage eval",
        "Warning. rollout.name=vllm is not here",
    ):  # fmt: skip
        assert part in words, part
    assert "tutelage resume" not in words
    assert page.count("<svg") == 12


def test_the_page_is_well_formed_and_loads_nothing(page: str) -> None:
    tags = Tags(page)
    names = {name for name, _ in tags.found}
    assert not names & {"script", "link", "img", "iframe", "object", "image", "base", "form"}
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)", page)
    assert all(
        (value or "").startswith("#")
        for _, attributes in tags.found
        for key, value in attributes.items()
        if key in ("href", "src", "xlink:href")
    )
    assert "default-src 'none'" in page
    ids = [attributes["id"] for _, attributes in tags.found if "id" in attributes]
    assert len(ids) == len(set(ids))
    used = {a["href"] for name, a in tags.found if name == "use"}
    assert used <= {f"#{i}" for i in ids}


def test_same_folder_same_bytes(complete: RunFolder, page: str) -> None:
    first = complete.report.read_bytes()
    assert write_report(complete).read_bytes() == first


@pytest.mark.parametrize("lost", ["metrics", "store", *long("config", "conditions", "result")])
def test_one_missing_file_leaves_the_rest(tmp_path: Path, lost: str) -> None:
    folder = make_folder(tmp_path / "run", tasks=6)
    getattr(folder, lost).unlink()
    words = plain(report(folder))
    remark = {
        "config": "There is no config.json.",
        "conditions": "The conditions of this run were not recorded.",
        "metrics": "There is no metrics.jsonl.",
        "result": "The run has not ended",
        "store": "There is no store.db",
    }[lost]
    assert remark in words
    assert ("Reward and held-out success" in words) == (lost != "metrics")
    assert ("From 31 % to" in words) == (lost != "result")
    assert ("tutelage resume" in words) == (lost == "result")
    assert ("expected" in words) == (lost != "store")


def test_only_what_was_measured_has_a_row(tmp_path: Path) -> None:
    """A result has the keys of what was not measured all the same, as null."""
    folder = RunFolder(tmp_path)
    off = ("control", "no_tools", "success_before")
    kept = {k: v for k, v in RESULT.items() if not any(name in k for name in off)}
    gone = {f"success_{name}": None for name in ("control_sampled", "no_tools_greedy")}
    write_json(folder.result, {**kept, **gone, "success_before_sampled": None, "graded": False})
    words = plain(report(folder))
    assert "It learned from rewards alone" in words
    for word in ("Control", "tools", "By family"):
        assert word not in words


HOSTILE = (
    "</script></code><script>alert(1)</script><img src=x onerror=alert(2)> ]]> {{ 7*7 }} & \"'"
)


def hostile_rollouts(text: str) -> list[Rollout]:
    task = Task(f"t{text}", {"question": text, "answer": "1", "family": text})
    call = ToolCall("call_0", text, text)
    said = [
        Message("assistant", text, (call,)),
        Message("tool", text, tool_call_id="call_0", name=text),
        Message("assistant", text),
    ]
    bad = Failure(FailureCause.AGENT_ERROR, text, text)
    right = [*said[:2], Message("assistant", "1")]
    return [
        play(task, said, label="before/greedy", failure=bad),
        play(task, right, label="after/greedy"),
        play(task, said, failure=bad),
    ]


def hostile_folder(path: Path, text: str) -> RunFolder:
    path.mkdir()
    folder = RunFolder(path)
    keys = ("status", "level", "policy")
    result = RESULT | dict.fromkeys(keys, text) | {"phases": {text: 1.0}, "warnings": [text]}
    write_json(folder.result, result)
    write_json(folder.conditions, {text: {text: [text]}})
    line = {"phase": "rl", "step": 1, f"reward/{text}": 1.0, f"tools/{text}/calls": 2}
    write_text(folder.metrics, json.dumps(line) + "\n")
    with open_store(folder.store) as store:
        put_run(store)
        store.put_rollouts(hostile_rollouts(text))
    return folder


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    folder = hostile_folder(tmp_path / HOSTILE.replace("/", "_"), HOSTILE)
    page = report(folder)
    names = {name for name, _ in Tags(page).found}
    assert not names & {"script", "img"}
    assert not any(key.startswith("on") for _, attrs in Tags(page).found for key in attrs)
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 10
    assert "{{ 7*7 }}" in page


def test_an_episode_tells_what_the_model_saw() -> None:
    task = make_tasks("default", "val", 1, 0)[0]
    episode = read_transcript(play(task, broken_call(task)))
    assert [s.kind for s in episode.steps] == ["call", "error", "text"]
    assert "did you mean" in episode.steps[1].text
    assert episode.outcome == "wrong answer"
    last_turn_calls = read_transcript(play(task, broken_call(task)[:2]))
    assert [s.kind for s in last_turn_calls.steps] == ["call", "error"]
    assert last_turn_calls.outcome == "no answer: turn limit"


def evaluated(folder: RunFolder, label: str, values: Sequence[float | None]) -> None:
    """A test evaluation with these rewards, None for a rollout that was lost."""
    tasks = make_tasks("default", "val", len(values), 0)
    gone = Failure(FailureCause.GRADER_ERROR, "the judge is down")
    with open_store(folder.store) as store:
        put_run(store)
        for task, value in zip(tasks, values, strict=True):
            made = play(task, [Message("assistant", "4")], label=label)
            reward = None if value is None else Reward(value)
            attempt = replace(made.last, reward=reward, failure=gone if value is None else None)
            store.put_rollouts([replace(made, attempts=(attempt,))])


def counts(rollouts: int, judged: int, **lost: int) -> dict[str, Any]:
    reason = "the judge is down" if lost else ""
    return {
        "rollouts": rollouts, "judged": judged, "lost": lost, "failed": {}, "reason": reason,
    }  # fmt: skip


def graded_folder(path: Path) -> RunFolder:
    """A run whose reward is graded: its mean rose, and fewer rewards are full."""
    folder = make_folder(path, tasks=4)
    told = {k: v for k, v in RESULT.items() if not k.startswith("success_")}
    told |= {f"success_{when}_sampled": None for when in ("before", "after")}
    told |= {
        "graded": True,
        "test_tasks": 8,
        "reward_before_sampled": 0.55,
        "reward_before_sampled_interval": [0.48, 0.62],
        "judged_before_sampled": counts(8, 8),
        "reward_after_sampled": 0.82,
        "reward_after_sampled_interval": [0.79, 0.85],
        "judged_after_sampled": counts(8, 8),
    }
    write_json(folder.result, told)
    folder.store.unlink()
    evaluated(folder, "before/sampled", [1.0, 1.0, 1.0, 1.0, 0.1, 0.1, 0.1, 0.1])
    evaluated(folder, "after/sampled", [0.8, 0.8, 0.8, 0.8, 0.8, 0.9, 0.9, 0.76])
    return folder


def test_a_graded_reward_is_told_in_its_mean(tmp_path: Path) -> None:
    """The mean rose from 0.55 to 0.82 while rewards of 1 went from half to none: success fell."""
    words = plain(report(graded_folder(tmp_path / "run")))
    assert "Mean reward from 0.55 to 0.82 on held-out tasks" in words
    assert "0.48 to 0.62" in words
    assert "0.79 to 0.85" in words
    assert "judged: 8 of 8 rollouts in each cell, none failed." in words
    assert "Mean reward by family" in words
    assert "earned more" in words
    assert "of held-out tasks solved" not in words
    assert "Success by family" not in words
