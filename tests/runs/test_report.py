"""The report: complete and partial folders, hostile content, the same bytes, nothing from outside.

`report_folder.py` makes the folders.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.marks import long

from tutelage.runs.folder import RunFolder, write_json, write_text
from tutelage.runs.report import write_report
from tutelage.runs.report.formatting import cut, duration, percent, short, visible
from tutelage.runs.report.source import ReportSource, read_source
from tutelage.runs.report.transcripts import choose, outcomes, read_transcript
from tutelage.runs.report.view import make_view
from tutelage.store import open_store
from tutelage.tasks.arithmetic import demonstrations, make_tasks
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


def test_control_and_missing_tools_are_rows(page: str) -> None:
    words = plain(page)
    assert "Control the same training, steps and rollouts with raft 79 % 72.8 % to 84.1 %" in words
    assert "with grpo, and with raft for the control" in words
    assert "After, without tools out of the prompt, results withheld – 2 %" in words


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


def test_an_empty_folder_has_a_report(tmp_path: Path) -> None:
    words = plain(report(RunFolder(tmp_path)))
    assert "A run without an outcome yet" in words
    assert "This run has recorded no steps." in words
    assert "tutelage resume" in words


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe\x00nonsense", b"[1, 2]\n", b'{"a":\n', b"[" * 9999]
)
def test_damaged_files_leave_remarks(tmp_path: Path, content: bytes) -> None:
    folder = RunFolder(tmp_path)
    for file in (folder.config, folder.conditions, folder.metrics, folder.result):
        file.write_bytes(content)
    folder.store.write_bytes(content * 50)
    words = plain(report(folder))
    assert "config.json cannot be read" in words
    assert "result.json" in words
    assert "How to go on" in words


@pytest.mark.parametrize("value", [None, "many", [1], {"a": None}, True, 10**400, -3, 0.5])
def test_any_value_of_a_result_is_survived(tmp_path: Path, value: Any) -> None:
    for key in RESULT:
        view = make_view(
            ReportSource(tmp_path, result=RESULT | {key: value, f"{key}_interval": value})
        )
        assert view["commands"]
    folder = RunFolder(tmp_path)
    folder.result.write_text(json.dumps(dict.fromkeys(RESULT, value)), encoding="utf-8")
    assert "How to go on" in report(folder)


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


def test_metrics_that_are_cut_off_or_strange_are_left_out(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    lines = [
        '{"phase": "rl", "step": 1, "reward/mean": -2.5, "entropy": "high", "max_dlogp": 0.0}',
        '{"phase": "rl", "step": 2, "reward/mean": 7, "max_dlogp": NaN, "tools/$x$/y/calls": 0}',
        '{"phase": "rl", "step": null, "reward/mean": 0.1, "reward/<b>": 1}',
        "what?",
        '{"phase": "rl", "step": 3, "reward/me',
    ]
    folder.metrics.write_text("\n".join(lines), encoding="utf-8")
    page = report(folder)
    words = plain(page)
    assert "Left out: 1 broken line of metrics.jsonl." in words
    assert "Reward and held-out success" in words
    assert "Entropy" not in words
    assert page.count("<svg") == 2


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


@pytest.mark.parametrize(
    "text",
    ["nul\x00 esc\x1b[31m cr\r", *long("\ud83d lone", "\u202emirror\u2066", "é 漢字 😀 ẓ̴̓", " ")],
)
def test_strange_unicode_is_shown_and_encodes(tmp_path: Path, text: str) -> None:
    page = report(hostile_folder(tmp_path / "run", text))
    Tags(page)
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069]", page)
    assert visible(text.strip()) in page or not text.strip()


def test_huge_texts_and_long_episodes_are_cut_with_a_marker(tmp_path: Path) -> None:
    folder = hostile_folder(tmp_path / "run", "x" * 300_000)
    assert len(report(folder)) < 300_000
    assert "characters left out" in report(folder)
    task = make_tasks("default", "val", 1, 0)[0]
    said = [
        m for i in range(50) for m in (Message("assistant", f"turn {i}"), Message("user", "go"))
    ]
    steps = read_transcript(play(task, said[:-1])).steps
    texts = [s.text for s in steps]
    assert "turn 0" in texts
    assert texts[-1] == "turn 49"
    assert "38 turns left out" in texts
    assert len(texts) < 30


def test_an_episode_tells_what_the_model_saw() -> None:
    task = make_tasks("default", "val", 1, 0)[0]
    episode = read_transcript(play(task, broken_call(task)))
    assert [s.kind for s in episode.steps] == ["call", "error", "text"]
    assert "did you mean" in episode.steps[1].text
    assert episode.outcome == "wrong answer"
    last_turn_calls = read_transcript(play(task, broken_call(task)[:2]))
    assert [s.kind for s in last_turn_calls.steps] == ["call", "error"]
    assert last_turn_calls.outcome == "no answer: turn limit"


def test_shown_tasks_are_varied_and_honest() -> None:
    tasks = make_tasks("default", "val", 40, 0)
    rng = random.Random(0)
    wrong = [read_transcript(play(t, broken_call(t))) for t in tasks]
    right = [read_transcript(play(t, demonstrations(t, False, rng))) for t in tasks]
    before = [right[0], *wrong[1:]]
    after = [wrong[0], wrong[1], *right[2:]]
    pairs = choose(before, after)
    assert [p.verdict for p in pairs] == ["learned"] * 3 + ["worse", "unsolved"]
    assert {p.after.family for p in pairs[:3]} == {"arithmetic", "sum", "shopping"}
    assert all(p.before.task_id == p.after.task_id for p in pairs)
    assert [p.verdict for p in choose(right, right)] == ["kept"]
    assert choose(wrong, []) == []


def test_endings_count_every_rollout() -> None:
    tasks = make_tasks("default", "val", 30, 0)
    wrong = [read_transcript(play(t, broken_call(t))) for t in tasks]
    good = [read_transcript(play(t, demonstrations(t, False, random.Random(0)))) for t in tasks]
    mixed = {"before": [*wrong[:20], *good[20:]], "after": good}
    assert [(name, tuple(counts)) for name, counts in outcomes(mixed)] == [
        ("solved", (10, 30)),
        ("wrong answer", (20, 0)),
    ]


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


def test_a_rate_over_too_few_is_not_told(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "run", tasks=4)
    told = {k: v for k, v in RESULT.items() if not k.startswith("success_")}
    told |= {"graded": False, "success_before_sampled": 0.25, "success_after_sampled": None}
    told |= {"judged_before_sampled": counts(8, 8)}
    told |= {"judged_after_sampled": counts(8, 2, grader_error=6)}
    write_json(folder.result, told)
    folder.store.unlink()
    evaluated(folder, "before/sampled", [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    evaluated(folder, "after/sampled", [1.0, 1.0, None, None, None, None, None, None])
    page = report(folder)
    words = plain(page)
    assert "No result: only 2 of 8 held-out rollouts were judged" in words
    assert "after, sampled: 2 of 8 judged; 6 lost: 6 grader error (the judge is down)." in words
    assert "Where more than 1 % of the rollouts were lost there is no rate" in words
    view = make_view(read_source(folder))
    after = [after.value for _, _, _, after in view["families"][0][1] if after is not None]
    assert any("judged" in value for value in after)


@given(st.text(st.characters(), max_size=400), st.integers(10, 100))
def test_any_text_can_be_cut_shown_and_encoded(text: str, limit: int) -> None:
    visible(cut(text, limit)).encode()
    assert len(cut(text, limit)) <= limit + 60


def test_numbers_read_as_people_write_them() -> None:
    words = [percent(0.945), percent(0.31), percent(1)]
    words += [duration(9.96), duration(59.96), duration(281), duration(7261)]
    words += [percent(1.7e-18), percent(2e-4)]
    words += [short(3.2e-6), short(0.0419), short(12345), short(0)]
    assert [w.replace("\u202f", " ") for w in words] == [
        "94.5 %", "31 %", "100 %",
        "10 s", "1 min 0 s", "4 min 41 s", "2 h 1 min",
        "0 %", "0.02 %",
        "3.2e−6", "0.0419", "12 345", "0",
    ]  # fmt: skip
