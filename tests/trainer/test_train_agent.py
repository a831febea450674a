"""`tutelage train AGENT.py`: the weights or the prompt of an agent of the user, by command."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tutelage import RL, PromptTemplate, Trainer
from tutelage.cli import build_app
from tutelage.runs.folder import RunFolder
from tutelage.testing import tiny_policy

AGENT = """
from tutelage import LLM, PromptTemplate, rollout

prompt_template = PromptTemplate("Say a digit.")


@rollout
async def digits(task, llm: LLM, prompt_template: PromptTemplate):
    said = (await llm.chat(f"{prompt_template.format()} {task['text']}", max_tokens=4)).reply
    return sum(c.isdigit() for c in said.content or "") / 4
"""
KEYS = (
    "lr=1e-2", "data.train_batch_size=4", "num_chains=4", "agent.max_tokens_per_turn=4",
    "rollout.max_len=128", "actor.use_kl_loss=false",
)  # fmt: skip


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None) -> Path:
    """A folder with an agent, its tasks and a model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    tiny_policy(max_positions=256).save(tmp_path / "model")
    (tmp_path / "agent.py").write_text(AGENT)
    rows = [json.dumps({"text": f"number {i}"}) + "\n" for i in range(16)]
    (tmp_path / "a.jsonl").write_text("".join(rows[:8]))
    (tmp_path / "b.jsonl").write_text("".join(rows[8:12]))
    (tmp_path / "c.jsonl").write_text("".join(rows[12:]))
    return tmp_path


def command(*words: object, code: int = 0) -> str:
    done = CliRunner().invoke(build_app(), [str(word) for word in words])
    assert done.exit_code == code, done.output
    return " ".join(done.output.split())


TRAIN = ("train", "agent.py", "--model", "model", "--train", "a.jsonl", "--train", "b.jsonl")


def test_its_weights_are_trained_resumed_and_evaluated(place: Path) -> None:
    said = command(*TRAIN, "--val", "c.jsonl", "--steps", "2", *KEYS, "--output", "runs/a")
    assert "step 2/2" in said or "2 steps" in said
    assert "reward what the agent returns" in said
    assert "tutelage ask agent.py --model runs/a/policy " in said
    assert "Your own: tutelage ask agent.py --model runs/a/policy QUESTION" in " ".join(
        command("ask", "a", "5").split()
    )
    folder = RunFolder(place / "runs" / "a")
    result = folder.read_result()
    assert result is not None
    assert (result["status"], result["rl_steps"]) == ("finished", 2)
    assert [r for r in (m.get("reward/mean") for m in folder.read_metrics()) if r is not None]
    told = json.loads(folder.agent.read_text())
    assert told["file"] == str(place / "agent.py")
    assert folder.policy.is_dir()
    evaluated = CliRunner().invoke(build_app(), ["eval", "a", "--test", "c.jsonl", "--json"])
    assert f"agent {place / 'agent.py'} " in " ".join(evaluated.stderr.split())
    assert evaluated.exit_code == 0, evaluated.output
    found = json.loads(evaluated.stdout)
    assert found["rollouts"] == 4
    assert found["graded"] or found["mean_reward"] in (0, 1)


def test_a_text_that_nothing_grades_stops_a_training(place: Path) -> None:
    (place / "agent.py").write_text(AGENT.replace("sum(", "str(").replace(" / 4", ""))
    said = command(*TRAIN, *KEYS, "--val", "c.jsonl", "--output", "runs/a", code=1)
    assert "agent 'digits' returned no reward on task " in said
    assert "(in Python Trainer(reward=...))" in said


@pytest.mark.full
def test_a_stopped_one_goes_on_by_command_to_the_same_numbers(place: Path) -> None:
    words = (*TRAIN, *KEYS, "--steps", "3", "--val", "c.jsonl")
    command(*words, "--output", "runs/whole")
    line = [sys.executable, "-c", STOPPING, *map(str, words), "--output", "runs/cut"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300)
    assert done.returncode == 130, done.stderr
    assert "tutelage resume runs/cut" in done.stderr
    assert "output_dir" not in done.stderr
    said = command("resume", "cut")
    assert (
        "resumed after the phase before; what was done since, up to step 1 of rl, is repeated"
        in said
    )
    whole, cut = (RunFolder(place / "runs" / name) for name in ("whole", "cut"))
    one, other = (f.read_result() for f in (whole, cut))
    assert one is not None
    assert other is not None
    for name in ("rl_steps", "rollouts", "tokens", "reward_after_sampled", "max_dlogp"):
        assert one[name] == other[name], name
    (place / "agent.py").write_text(AGENT.replace("/ 4", "/ 8"))
    refused = command(*words, "--output", "runs/cut", code=2)
    assert "the agent digits" in refused


STOPPING = """
import os, signal, sys
from tutelage.cli import main
from tutelage.runs.lifecycle import Run

log = Run.log

def stopping(run, line):
    log(run, line)
    if line["phase"] == "rl" and line["step"] == 1:
        os.kill(os.getpid(), signal.SIGINT)

Run.log = stopping
main()
"""


def test_a_dry_run_plays_one_task_and_writes_nothing(place: Path) -> None:
    before = sorted(place.iterdir())
    said = command(*TRAIN, *KEYS, "--algorithm", "rloo", "--dry-run")
    assert 'algorithm.adv_estimator="rloo"' in said
    assert "number" in said
    assert "nothing was trained or written" in said
    assert [p for p in sorted(place.iterdir()) if p.name not in ("__pycache__",)] == before
    (place / "model" / "model.safetensors").unlink()
    said = command(*TRAIN, *KEYS, "--dry-run", code=2)


def test_a_module_has_resources_for_a_file_and_for_an_object_alike(place: Path) -> None:
    """Those of the caller win, and who gives a template has named the one that is meant."""
    spec = importlib.util.spec_from_file_location("digits_agent", "agent.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def asked(agent: Any, **resources: Any) -> str:
        trainer = Trainer(
            model="model",
            train_dataset="a.jsonl",
            resources=resources,
            algorithm=RL({"rollout.max_len": 128, "agent.max_tokens_per_turn": 4}),
        )
        (rollout,) = trainer.dev(agent, n=1).rollouts
        (call,) = rollout.last.calls
        return str(call.messages[-1].content).partition(" number")[0]

    assert asked(module.digits) == asked("agent.py") == "Say a digit."
    own = {"prompt_template": PromptTemplate("Count.")}
    assert asked(module.digits, **own) == asked("agent.py", **own) == "Count."


@pytest.mark.parametrize("search", [(), ("--algorithm", "screen", "--rollouts", "60")])
def test_a_template_that_the_agent_never_uses_is_told_of(
    place: Path, search: tuple[str, ...]
) -> None:
    unused = AGENT.replace("@rollout", 'style = PromptTemplate("Be {mood} now.")\n\n\n@rollout')
    (place / "agent.py").write_text(unused)
    bounds = ("--iterations", "1") if search else ("--steps", "1", "trainer.test_freq=-1", *KEYS)
    words = (*TRAIN, *bounds, *search, "--output", "runs/a")
    done = CliRunner().invoke(build_app(), list(words))
    assert done.exit_code in (0, 3), done.output
    said = " ".join(done.output.split())
    assert said.count("Warning: the prompt template 'style' is in no model call") == 1
    assert "the prompt template 'prompt_template'" not in said
    result = RunFolder(place / "runs" / "a").read_result()
    assert result is not None
    assert any("'style' is in no model call" in warning for warning in result["warnings"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("train", "none.py"), "agent file not found: 'none.py'"),
        (("train", "plain.py"), "has no agent"),
        ((*TRAIN, "--tools", "calculator"), "uses the tools of its file"),
        ((*TRAIN, "lerning_rate=1"), "Did you mean 'learning_rate'?"),
        ((*TRAIN[:4], "--val", "c.jsonl"), "need a train_dataset"),
        ((*TRAIN, "--runners", "many"), "--runners='many'"),
        ((*TRAIN, "--reward", "nosuch"), "nosuch"),
        ((*TRAIN, "--budget-usd", "1"), "is an option of prompt searches"),
    ],
)
def test_what_is_wrong_is_said_in_words(place: Path, words: tuple[str, ...], said: str) -> None:
    (place / "plain.py").write_text("x = 1\n")
    before = sorted(place.iterdir())
    assert said in command(*words, code=2)
    assert [p for p in sorted(place.iterdir()) if p.name not in ("__pycache__", "runs")] == before


@pytest.mark.full
def test_rollouts_without_a_model_call_fail_in_training_unless_they_are_allowed(
    place: Path,
) -> None:
    """The even tasks are answered without the model."""
    asks = "    if int(task['text'].split()[-1]) % 2 == 0:\n        return 1.0\n    said ="
    (place / "agent.py").write_text(AGENT.replace("    said =", asks))
    words = (*TRAIN, "--val", "c.jsonl", "--steps", "1", *KEYS)
    found: dict[str, Any] = {}
    for output, keys in (("no", ()), ("yes", ("agent.allow_no_calls=true",))):
        said = command(*words, *keys, "--output", f"runs/{output}")
        result = RunFolder(place / "runs" / output).read_result() or {}
        found[output] = result["failures"].get("no_calls", 0)
        assert result["judged_after_sampled"]["no_calls"] == 2
        assert "warning: 2 made no model call and count as graded" in said
        warned = [text for text in result["warnings"] if "never called" in text]
        assert len(warned) == (output == "no")
        assert ("allowed by agent.allow_no_calls=true" in said) == (output == "no")
    assert found["no"] > 0
    assert found["no"] % 4 == 0
    assert found["yes"] == 0
