"""A folder that holds a run: the same one is continued, longer where more is asked for; what has
changed since it began is refused with the way on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tutelage.policy.model import load_policy
from tutelage.runs.folder import RunFolder
from tutelage.weights import checkpoint

from .command import Command
from .outcome import assert_equal, outcome
from .reference import Reference

Arguments = Callable[..., list[str]]


def words(text: str) -> str:
    """Text without its line ends."""
    return " ".join(text.split())


@pytest.fixture
def finished(references: dict[str, Reference], tutelage: Command) -> Path:
    """A copy of a finished run of 5 steps."""
    shutil.copytree(references["with_tools"].folder / "run", tutelage.cwd / "run")
    return tutelage.cwd / "run"


@pytest.mark.full
def test_a_finished_run_is_trained_further_as_a_longer_run_would_have_been(
    with_tools: Arguments, tutelage: Command
) -> None:
    """With a constant rate; optimizer, validation and sampling go on where they were."""
    constant = {"actor.optim.lr_scheduler_type": "constant"}
    (tutelage.cwd / "longer").mkdir()
    other = Command(tutelage.cwd / "longer")
    other(*with_tools(constant, steps="7")).check()
    whole = outcome(other.cwd / "run")
    tutelage(*with_tools(constant)).check()
    start = {"trainer.resume_mode": "resume_path", "trainer.resume_from_path": "run"}
    tutelage(*with_tools(constant | start, steps="7", output="on")).check()
    found = outcome(tutelage.cwd / "on")
    assert found["policy"] == whole["policy"]
    assert_equal({"": found["tensors"]}, {"": whole["tensors"]})
    lines = [(line["phase"], line["step"]) for line in found["metrics"]]
    assert lines == [("rl", 6), ("rl", 7), ("after", 0)]
    done = tutelage(*with_tools(constant, steps="7")).check()
    assert "resumed after step 5/7 of rl" in done.err
    assert_equal(outcome(tutelage.cwd / "run"), whole)


def test_what_asks_for_nothing_more_or_for_something_else_is_refused(
    finished: Path, with_tools: Arguments, tutelage: Command
) -> None:
    before = outcome(finished)
    told = words(tutelage.here(*with_tools(steps="4")).check(2).err)
    assert "differs in trainer.total_training_steps (5, now 4)" in told
    told = words(tutelage.here(*with_tools(minutes="90")).check(2).err)
    assert "ended at trainer.total_training_steps=5; raise it to train further" in told
    assert outcome(finished) == before


def test_the_last_checkpoints_and_the_best_are_folders_of_a_model(
    finished: Path, tutelage: Command
) -> None:
    run = RunFolder(finished)
    result = run.read_result()
    assert result is not None
    names = {path.name for path in checkpoint.list_complete(run)}
    assert names == {"step_000004", "step_000005", f"step_{result['best_step']:06d}"}
    state, tensors = checkpoint.load(run.checkpoints / "step_000005")
    assert state.phase_step == 5
    policy = load_policy(str(run.checkpoints / "step_000005"))
    for name, tensor in policy.named_tensors():
        assert torch.equal(tensor, tensors["policy"][name])
    last = (run.checkpoints / "step_000005" / "model.safetensors").read_bytes()
    assert last == (run.policy / "model.safetensors").read_bytes()


@pytest.fixture
def own(material: Path, tutelage: Command) -> Path:
    """A copy of the material in the working directory, which a test may edit."""
    shutil.copytree(material, tutelage.cwd / "own")
    return tutelage.cwd / "own"


def begun_with(own: Path, with_tools: Arguments, **more: str) -> list[str]:
    tools = own / "tools.py"
    tools.write_text(
        "from tutelage import tool\nimport helper\n\n\n@tool\n"
        "def calculator(expression: str) -> str:\n"
        '    """Compute.\n\n    Args:\n        expression: What.\n    """\n'
        "    return str(helper.SIZE)\n"
    )
    (own / "helper.py").write_text("SIZE = 1\n")
    flags = {
        "model": "own/parrot",
        "tools": "own/tools.py:calculator",
        "train": "own/train.jsonl",
        "val": "own/val.jsonl",
        "reward": "own/rewards.py:vary",
        "steps": "1",
    }
    keys = {"trainer.val_before_train": "false", "trainer.test_freq": -1}
    return with_tools(keys, **(flags | more))


def append(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


EDITS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "reward": (
        "own/rewards.py:vary (agent.reward_name) changed",
        lambda own: append(
            own / "rewards.py", "\n\n@reward(isolation='none')\ndef vary(prediction): return 0.0\n"
        ),
    ),
    "what a tool imports": (
        "own/tools.py:calculator (agent.tools) changed",
        lambda own: append(own / "helper.py", "SIZE = 2\n"),
    ),
    "tasks": (
        "own/train.jsonl (data.train_files) changed",
        lambda own: append(own / "train.jsonl", '{"question": "1 + 1", "answer": "2"}\n'),
    ),
    "model": (
        "own/parrot (model.path) changed",
        lambda own: flip(own / "parrot" / "model.safetensors"),
    ),
}


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


def test_what_a_run_was_begun_with_has_to_be_the_same(
    own: Path, with_tools: Arguments, tutelage: Command
) -> None:
    """Of a run that has finished, and of one that was stopped."""
    args = begun_with(own, with_tools)
    tutelage(*args).check()
    result = tutelage.cwd / "run" / "result.json"
    kept = result.read_bytes()
    for told, edit in EDITS.values():
        backup = shutil.copytree(own, tutelage.cwd / "backup")
        edit(own)
        err = words(tutelage(*args).check(2).err)
        assert f"has finished with different sources: {told}; choose another" in err
        result.unlink()
        for again in (args, ["resume", "run"]):
            err = words(tutelage(*again).check(2).err)
            assert f"was started with different sources: {told}; restore them" in err
            assert "tutelage resume run --allow-changes" in err
        result.write_bytes(kept)
        shutil.rmtree(own)
        backup.rename(own)
    append(own / "rewards.py", "\n# a comment, and what nothing uses\nUNUSED = 1\n")
    assert "the run is finished" in words(tutelage(*args).check().err)


@pytest.mark.full
def test_a_change_may_be_allowed(own: Path, with_tools: Arguments, tutelage: Command) -> None:
    args = begun_with(own, with_tools)
    tutelage(*args).check()
    run = tutelage.cwd / "run"
    (run / "result.json").unlink()
    kept = (own / "train.jsonl").read_text()
    append(own / "train.jsonl", "{broken\n")
    tutelage("resume", "run", "--allow-changes").check(2)
    refused = words(tutelage.here("resume", "run").check(2).err)
    assert "was started with different sources: own/train.jsonl" in refused, "nothing has gone on"
    (own / "train.jsonl").write_text(kept)
    EDITS["reward"][1](own)
    told = words(tutelage("resume", "run", "--allow-changes").check().err)
    assert "Warning: continuing the run although own/rewards.py:vary (agent.reward_name)" in told
    assert "the run is finished" in words(tutelage(*args).check().err)


def test_an_edited_configuration_is_refused(finished: Path, tutelage: Command) -> None:
    (finished / "result.json").unlink()
    config = finished / "config.json"
    kept = config.read_text()
    config.write_text(kept.replace('"seed": 3', '"seed": 4'))
    told = words(tutelage.here("resume", "run", "--trust").check(2).err)
    assert "config.json was edited: seed was 3 and is 4; restore them" in told
    config.write_text(kept.replace('"use_kl_loss": false', '"use_kl_loss": true'))
    told = words(tutelage.here("resume", "run", "--trust").check(2).err)
    assert "config.json was edited: actor.use_kl_loss was False and is True; restore" in told
    (finished / "fingerprint.json").unlink()
    told = words(tutelage.here("resume", "run", "--trust").check(2).err)
    assert "Runs of earlier versions must be started again with another --output" in told


@pytest.mark.full
def test_a_checkpoint_of_another_run_is_a_start(
    one_thread: None,
    with_tools: Arguments,
    references: dict[str, Reference],
    tutelage: Command,
) -> None:
    """`trainer.resume_mode=resume_path` begins where that checkpoint was, in its own folder."""
    job = tutelage.start(*with_tools(output="cut"))
    assert job.until(lambda: job.says("reinforcement learning"))
    job.kill()
    begun = tutelage.cwd / "cut" / "checkpoints"
    first = sorted(p for p in begun.iterdir() if p.name.startswith("step_"))[-1]
    keys = {"trainer.resume_mode": "resume_path", "trainer.resume_from_path": str(first)}
    tutelage(*with_tools(keys)).check()
    result = RunFolder(tutelage.cwd / "run").read_result()
    assert result is not None
    assert (result["status"], result["rl_steps"]) == ("finished", 5)
    told = tutelage(*with_tools({**keys, "trainer.resume_from_path": "no/such"}, output="b"))
    assert "no/such" in told.check(2).err
    assert not (tutelage.cwd / "b").exists()
    # What was saved after the last step has nothing left to do unless more steps are asked for.
    done = references["with_tools"].folder / "run"
    for place in (done, done / "checkpoints" / "step_000005"):
        told = tutelage(*with_tools({**keys, "trainer.resume_from_path": str(place)}, output="b"))
        assert "nothing would be trained" in told.check(2).err
        assert "raise trainer.total_training_steps (--steps)" in told.err
    assert not (tutelage.cwd / "b").exists()
