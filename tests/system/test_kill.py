"""Killed at any moment and resumed, a run equals one that was never stopped, bit for bit."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from typing import Any

import pytest

from tutelage.runs.folder import RunFolder
from tutelage.weights import checkpoint

from .command import Command, Running
from .outcome import assert_equal, outcome, stored
from .reference import Reference

Arguments = Callable[..., list[str]]
LONGEST = pytest.param("embedded", marks=pytest.mark.full)


def killed_when(job: Running, ready: Callable[[], bool]) -> bool:
    """Kill as soon as `ready()`; False when the job ended before."""
    caught = job.until(ready, pause=0)
    job.kill()
    return caught


@pytest.mark.full
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.full)])
@pytest.mark.parametrize("kind", [LONGEST, "with_tools"])
def test_killed_again_and_again_at_random_moments(
    references: dict[str, Reference], kind: str, seed: int, tutelage: Command
) -> None:
    reference, rng = references[kind], random.Random(seed)
    args, kills = reference.arguments, []
    for _ in range(5):
        job = tutelage.start(*args)
        delay = rng.uniform(0.05, 0.5) * reference.seconds
        job.process.join(delay)
        if not job.alive:
            break
        job.kill()
        kills.append(round(delay, 2))
        if (tutelage.cwd / "run" / "config.json").is_file():
            args = ["resume", "run"]
        else:
            shutil.rmtree(tutelage.cwd / "run", ignore_errors=True)
    print(f"killed after {kills} seconds")
    reference.check(tutelage)


@pytest.mark.parametrize("kind", [LONGEST, "with_tools"])
@pytest.mark.parametrize(
    "share",
    [0.5, *(pytest.param(share, marks=pytest.mark.full) for share in (0.15, 0.85))],
)
def test_killed_during_sampling(
    references: dict[str, Reference], kind: str, share: float, tutelage: Command
) -> None:
    """The kill comes from inside the run, at one rollout's reward, others of its step at work; and
    the folder is renamed before it is resumed."""
    reference = references[kind]
    total = len(reference.outcome["rollouts"])
    job = tutelage.start(*reference.arguments, KILL_AT=str(1 + int(share * total))).end()
    assert job.code == -9
    assert 0 < len(stored(tutelage.cwd / "run")) < total
    (tutelage.cwd / "run").rename(tutelage.cwd / "renamed")
    reference.check(tutelage, "renamed")


@pytest.mark.full
def test_killed_and_resumed_with_another_number_of_threads(
    references: dict[str, Reference], tutelage: Command
) -> None:
    """In processes of their own, in which OpenMP reads it."""
    reference, script = references["with_tools"], Command(tutelage.cwd, real=True)
    half = str(len(reference.outcome["rollouts"]) // 2)
    job = script.start(*reference.arguments, KILL_AT=half, OMP_NUM_THREADS="2").end()
    assert job.code == -9
    done = script("resume", "run", OMP_NUM_THREADS="1").check()
    assert "not bit-identical" not in done.err
    assert_equal(outcome(tutelage.cwd / "run"), reference.outcome)


@pytest.mark.full
@pytest.mark.parametrize("kind", [LONGEST, "with_tools"])
def test_killed_right_after_the_start(
    references: dict[str, Reference], kind: str, tutelage: Command
) -> None:
    run = tutelage.cwd / "run"
    job = tutelage.start(*references[kind].arguments)
    assert killed_when(job, (run / "config.json").is_file)
    assert not checkpoint.list_complete(RunFolder(run))
    references[kind].check(tutelage)


@pytest.mark.full
def test_killed_while_checkpoints_are_written(
    references: dict[str, Reference], tutelage: Command
) -> None:
    """Again and again, so that it is caught in several states of the folder."""
    reference, run = references["embedded"], tutelage.cwd / "run"
    caught, args = 0, reference.arguments
    for _ in range(8):
        seen = {p.name for p in run.glob("checkpoints/.step_*.tmp")}

        def writing(seen: set[str] = seen) -> bool:
            return any(p.name not in seen for p in run.glob("checkpoints/.step_*.tmp"))

        if not killed_when(tutelage.start(*args), writing):
            break
        caught += any(run.glob("checkpoints/.step_*.tmp"))
        args = ["resume", "run"]
    assert caught >= 2
    reference.check(tutelage)
    assert not any(run.glob("checkpoints/.*.tmp")), "what a kill left behind is cleared away"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(text, marks=pytest.mark.full)
        for text in ("control: best_of_n\n", "reinforcement learning")
    ],
)
def test_killed_as_a_phase_begins(
    references: dict[str, Reference], text: str, tutelage: Command
) -> None:
    reference = references["embedded"]
    job = tutelage.start(*reference.arguments)
    assert killed_when(job, lambda: job.says(text.strip()))
    reference.check(tutelage)


def test_killed_between_result_and_report(
    references: dict[str, Reference], tutelage: Command
) -> None:
    reference, run = references["with_tools"], tutelage.cwd / "run"
    shutil.copytree(reference.folder / "run", run)
    (run / "report.html").unlink()
    told = tutelage("resume", "run").check()
    assert "nothing to resume" in told.err
    assert (run / "report.html").is_file()
    assert_equal(outcome(run), reference.outcome)


def test_a_torn_line_and_a_torn_checkpoint_are_left_out(
    references: dict[str, Reference], tutelage: Command
) -> None:
    """What a power cut leaves: half a line of metrics, a checkpoint without its last file."""
    reference, run = references["with_tools"], tutelage.cwd / "run"
    job = tutelage.start(*reference.arguments)
    assert killed_when(job, lambda: len(RunFolder(run).read_metrics()) >= 3)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"phase": "rl", "st')
    last = checkpoint.list_complete(RunFolder(run))[-1]
    torn = run / "checkpoints" / "step_999999"
    shutil.copytree(last, torn)
    (torn / checkpoint.SUMS).unlink()
    reference.check(tutelage)


@pytest.mark.full
@pytest.mark.parametrize("name", ["tensors.pt", "state.json"])
def test_a_checkpoint_with_a_flipped_bit_is_said_and_the_one_before_is_used(
    references: dict[str, Reference], name: str, tutelage: Command
) -> None:
    reference, run = references["with_tools"], tutelage.cwd / "run"
    job = tutelage.start(*reference.arguments)
    assert killed_when(job, lambda: len(checkpoint.list_complete(RunFolder(run))) >= 2)
    *_, before, last = checkpoint.list_complete(RunFolder(run))
    content = (last / name).read_bytes()
    if name == "state.json":  # still JSON, of a phase that there is not
        content = content.replace(b'"phase": "', b'"phase": "x', 1)
    else:
        middle = len(content) // 2
        content = content[:middle] + bytes([content[middle] ^ 4]) + content[middle + 1 :]
    (last / name).write_bytes(content)
    told = tutelage("resume", "run").check().err
    assert f"{last.name}': {name} is damaged" in " ".join(told.split())
    assert f"continuing from the previous checkpoint, {before.name}" in " ".join(told.split())
    assert_equal(outcome(run), reference.outcome)


@pytest.mark.full
def test_records_that_are_missing_are_said(
    references: dict[str, Reference], tutelage: Command
) -> None:
    """What cannot be had again: the run goes on without, and ends with the same weights."""
    reference, run = references["with_tools"], tutelage.cwd / "run"
    job = tutelage.start(*reference.arguments)
    assert killed_when(job, lambda: len(RunFolder(run).read_metrics()) >= 4)
    for path in (*run.glob("store.db*"), run / "metrics.jsonl"):
        path.unlink()
    (run / "conditions.json").write_text("{")
    told = " ".join(tutelage("resume", "run").check().err.split())
    assert "Warning: store.db is missing" in told
    assert outcome(run)["policy"] == reference.outcome["policy"]


@pytest.mark.full
def test_a_damaged_line_is_named_with_the_way_out(
    references: dict[str, Reference], tutelage: Command
) -> None:
    reference, run = references["with_tools"], tutelage.cwd / "run"
    job = tutelage.start(*reference.arguments)
    assert killed_when(job, lambda: len(RunFolder(run).read_metrics()) >= 4)
    for name in ("metrics.jsonl", "events.jsonl"):
        kept = (run / name).read_bytes() if (run / name).is_file() else b""
        (run / name).write_bytes(b"{'no\n" + kept)
        told = tutelage("resume", "run").check(2).err
        assert f"'run/{name}' is damaged" in told
        assert "restore a copy, or remove line 1" in told
        (run / name).write_bytes(kept)
    reference.check(tutelage)


@pytest.mark.full
def test_changed_conditions_are_a_warning(
    references: dict[str, Reference], tutelage: Command
) -> None:
    run = tutelage.cwd / "run"
    job = tutelage.start(*references["with_tools"].arguments)
    assert killed_when(job, lambda: bool(checkpoint.list_complete(RunFolder(run))))
    conditions = json.loads((run / "conditions.json").read_text())
    (run / "conditions.json").write_text(json.dumps({**conditions, "torch": "1.0"}))
    told = tutelage("resume", "run").check()
    assert "not bit-identical from here: torch was '1.0'" in told.err


@pytest.mark.full
def test_the_clocks_decision_is_recorded_and_honoured(
    with_tools: Arguments, tutelage: Command
) -> None:
    """A run of `--minutes` killed right after the clock ended a phase stops there again."""
    keys = {"trainer.save_freq": 1, "trainer.test_freq": -1}
    events, run = tutelage.cwd / "run" / "events.jsonl", tutelage.cwd / "run"
    for minutes in ("0.04", "0.4", "4"):  # the clock runs on slow machines, too
        job = tutelage.start(*with_tools(keys, steps=None, minutes=minutes))
        assert killed_when(job, lambda: events.is_file() and events.read_text().endswith("\n"))
        (decided,) = [json.loads(line) for line in events.read_text().splitlines()]
        assert decided["event"] == "phase_end"
        assert (decided["phase"], decided["reason"]) == ("rl", "minutes")
        if decided["step"]:
            break
        shutil.rmtree(run)
    ended = decided["step"]
    assert ended >= 1
    before = {r.id: r for r in stored(run) if r.mode == "train"}
    found = checkpoint.list_complete(RunFolder(run))
    states = {p: json.loads((p / "state.json").read_text()) for p in found}
    for path, state in states.items():
        if state["phase_step"] >= ended or state["phase"] != "rl":
            shutil.rmtree(path)  # as if the kill had come before these
        else:
            state["seconds"]["total"] = 0.0
            (path / "state.json").write_text(json.dumps(state))
            checkpoint.write_checksums(path)
    tutelage("resume", "run").check()
    result = json.loads((run / "result.json").read_text())
    assert result["rl_steps"] == ended, "its clock has all the time left, and must not use it"
    assert {r.id: r for r in stored(run) if r.mode == "train"} == before
    assert len(events.read_text().splitlines()) == 1


@pytest.mark.full
def test_a_run_by_the_clock_goes_on_with_the_time_that_is_left(
    with_tools: Arguments, tutelage: Command
) -> None:
    keys = {"trainer.save_freq": 1, "trainer.test_freq": -1, "trainer.control": "true"}
    args = with_tools(keys, steps=None, minutes="0.06")
    run = tutelage.cwd / "run"
    job = tutelage.start(*args)
    assert killed_when(job, lambda: len(RunFolder(run).read_metrics()) >= 2)
    tutelage("resume", "run").check()
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    assert [(e["phase"], e["reason"]) for e in events] == [
        ("rl", "minutes"),
    ]
    result: dict[str, Any] = json.loads((run / "result.json").read_text())
    assert result["status"] == "finished"
    assert result["rl_steps"] == events[0]["step"] >= 2
    control = [m for m in RunFolder(run).read_metrics() if m["phase"] == "control"]
    assert len(control) == result["rl_steps"], "the control has as many steps, whatever the clock"
    assert result["wall_seconds"] >= 0.06 * 60


EVERY_STATE: dict[str, object] = {
    "algorithm.adv_estimator": "gae",
    "critic.optim.lr": 1e-2,
    "trainer.critic_warmup": 1,
    "algorithm.use_kl_in_reward": "true",
    "algorithm.kl_penalty": "low_var_kl",
    "algorithm.kl_ctrl.type": "adaptive",
    "algorithm.kl_ctrl.horizon": 50,
    "actor.use_kl_loss": "true",
    "actor.kl_loss_type": "full",
    "actor.entropy_coeff": 0.001,
    "trainer.logger": "[tensorboard]",
}


@pytest.mark.full
def test_killed_with_every_kind_of_state(
    with_tools: Arguments, tutelage: Command, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Critic, reference, adaptive coefficient and curriculum at once; each alone is tested in
    `tests/weights/test_resume_state.py`, without processes."""
    reference = Reference(with_tools(EVERY_STATE), tmp_path_factory.mktemp("every"))
    total = len(reference.outcome["rollouts"])
    job = tutelage.start(*reference.arguments, KILL_AT=str(1 + int(0.7 * total))).end()
    assert job.code == -9
    reference.check(tutelage)
