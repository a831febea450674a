"""The guide's three commands train to the end: its keys, smaller numbers, local model and data."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.guide.commands import COMMANDS, swapped
from config.test_guide_commands import LAPTOP
from system.outcome import stored

from tutelage.policy.model import load_codec
from tutelage.runs.folder import create
from tutelage.testing import tiny_policy
from tutelage.tools import corpus
from tutelage.types import Call
from tutelage.weights import jobs
from tutelage.weights.config import resolve

from .tiny_job import Notes

SMALLER = {
    "data.train_batch_size": 2,
    "agent.num_chains": 2,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 2,
    "actor_rollout_ref.rollout.response_length": 24,
    "trainer.total_training_steps": 2,
    "trainer.test_freq": 1,
    "trainer.save_freq": 1,
}
"""What makes a command small; everything else of it stays."""

ROWS: dict[str, list[dict[str, Any]]] = {
    "math": [{"question": f"What is {i} + 1?", "answer": str(i + 1)} for i in range(4)],
    "react": [{"question": f"Who wrote book {i}?", "answer": f"author {i}"} for i in range(4)],
    "code": [
        {
            "question": f"Write a function add{i} of two numbers.",
            "answer": "",
            "tests": [f"assert add{i}(1, 2) == 3"],
        }
        for i in range(4)
    ],
}


@pytest.fixture(scope="module")
def model(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    tiny_policy("qwen2", 2, max_positions=1024).save(folder)
    return folder


def command(name: str, model: Path, folder: Path, *more: str) -> list[str]:
    """The guide's command with local paths and smaller numbers."""
    tasks = folder / "tasks.json"
    tasks.write_text(json.dumps(ROWS[name]))
    out: list[str] = []
    for word in swapped(name, str(model), str(tasks), str(tasks)):
        key, _, value = word.partition("=")
        if key in SMALLER and (key, name) != ("agent.num_chains", "react"):
            value = str(SMALLER[key])
        out.append(f"{key}={value}")
    return [*out, "trainer.device=cpu", "trainer.threads=1", *more]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a corpus that is searched, on a machine without a login to wandb. It is gone
    after the test: checkpoints of the real model's vocabulary are large."""
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    (tmp_path / "notes.txt").write_text("Book 1 was written by author 1.")
    corpus.build([tmp_path / "notes.txt"], tmp_path / "corpus.db")
    monkeypatch.setenv("TUTELAGE_SEARCH_INDEX", str(tmp_path / "corpus.db"))
    yield tmp_path
    shutil.rmtree(tmp_path)


def train(name: str, model: Path, folder: Path, *more: str) -> list[Call]:
    """Train by a command, check what every run of it leaves, and return its calls."""
    notes = Notes()
    resolved = resolve("rl", command(name, model, folder, *more), machine=LAPTOP)
    made = create(folder / "run")
    jobs.train(resolved, made, notes)
    result = made.read_result()
    assert result is not None
    assert result["status"] == "finished"
    lines = [line for line in made.read_metrics() if line["phase"] == "rl"]
    assert len(lines) == 2
    assert all({"loss/policy", "loss/kl", "loss/entropy", "kl/ref"} <= set(x) for x in lines)
    assert all("val/reward/mean" in x for x in lines), "trainer.test_freq"
    assert sum("vLLM is not available" in note for note in notes.notes) == 1
    assert sum(note.startswith("wandb: no login") for note in notes.notes) == 1
    assert list(made.path.glob("wandb/offline-run-*"))
    assert (made.policy / "model.safetensors").is_file()
    assert resolved.unused["critic.model.path"]
    return [c for r in stored(made.path) for c in r.last.calls]


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n == "react" else pytest.mark.full) for n in COMMANDS],
)
def test_it_trains_to_the_end(model: Path, place: Path, name: str) -> None:
    calls = train(name, model, place, "agent.max_tokens_per_turn=16")
    system = {c.messages[0].content for c in calls if c.messages[0].role == "system"}
    if name == "react":
        assert any("google_search" in (text or "") for text in system)
    if name == "code":
        assert any("```python" in (text or "") for text in system)
    if name == "math":
        text = tiny_policy("qwen2", 2).codec.decode(calls[0].prompt_ids)
        assert "You are Qwen, created by Alibaba Cloud." in text, "agent.template"
        assert "calculator" in text


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", COMMANDS)
def test_it_trains_the_real_model_as_the_guide_has_it(
    one_thread: None, small_real_model: Path, place: Path, name: str
) -> None:
    """No limit of a turn is named, so that a turn may take all of the rollout's tokens."""
    calls = train(name, small_real_model, place, "trainer.max_actor_ckpt_to_keep=1")
    assert max(len(call.sampled.token_ids) for call in calls) == 24
    assert all(call.sampling.max_tokens <= 24 for call in calls)
    codec = load_codec(str(small_real_model))[1]
    mark = {"math": "calculator", "react": "google_search", "code": "```python"}[name]
    assert mark in codec.decode(calls[0].prompt_ids)
