"""An evaluation as a run: kept, killed and resumed it comes to the numbers of one that is not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.marks import long
from typer.testing import CliRunner

from tutelage.cli import build_app
from tutelage.config import Machine
from tutelage.evaluate.config import EvaluationConfig
from tutelage.evaluate.kind import PolicyEvaluation
from tutelage.runs import lifecycle
from tutelage.runs.fingerprint import fingerprint_file
from tutelage.runs.folder import RunFolder, create, write_json
from tutelage.runs.progress import Progress
from tutelage.store import open_store
from tutelage.testing import tiny_policy
from tutelage.types import Mode, Rollout
from tutelage.weights.config import resolve

REWARD = """
import itertools
import os
import signal

from tutelage import reward
from tutelage.errors import GraderError

calls = itertools.count(1)


@reward(isolation="none")
def vary(prediction, trajectory):
    if "NO_JUDGE" in os.environ:
        raise GraderError("the judge is down")
    if next(calls) == int(os.environ.get("KILL_AT", "0")):
        os.kill(os.getpid(), signal.SIGKILL)
    ids = [i for call in trajectory.calls for i in call.sampled.token_ids]
    return {"reward": (sum(ids) % 7) / 7, "exact": sum(ids) % 2}
"""
TASKS = [{"question": f"What is {i} + 34?", "answer": i + 34} for i in (12, 3, 7, 1)]
ROLLOUTS = 8


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None) -> Path:
    """A folder with a model, tasks that are not in the order of their ids, and a reward."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    tiny_policy(max_positions=256).save(tmp_path / "model")
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in TASKS))
    (tmp_path / "r.py").write_text(REWARD)
    return tmp_path


ASKED = ("eval", "model", "--test", "t.jsonl", "--reward", "r.py:vary", "--samples", "2")


def command(*words: object, code: int = 0) -> str:
    done = CliRunner().invoke(build_app(), [str(word) for word in words])
    assert done.exit_code == code, done.output
    return done.stdout if code == 0 else done.output


def rollouts(folder: RunFolder) -> list[Rollout]:
    with open_store(folder.store, create=False) as store:
        return list(store.rollouts(folder.name))


def told(folder: RunFolder) -> dict[str, Any]:
    """The result without what the clock says."""
    result = folder.read_result()
    assert result is not None
    return {name: value for name, value in result.items() if name != "wall_seconds"}


class Interrupt(Progress):
    """Presses Ctrl-C when that many rollouts have ended."""

    def __init__(self, at: int) -> None:
        self.at = at

    def evaluation(self, label: str, done: int, total: int) -> None:
        if done == self.at:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.full
def test_a_run_has_the_numbers_and_what_is_not_kept_leaves_nothing(place: Path) -> None:
    before = sorted(place.iterdir())
    unkept, shown = command(*ASKED, "--json"), command(*ASKED)
    assert [p for p in sorted(place.iterdir()) if p not in before and p.name != "__pycache__"] == []
    assert command(*ASKED, "--output", "runs/e", "--json") == unkept
    assert shown.partition("Next\n")[0].strip() in command("show", "e")
    folder = RunFolder(place / "runs" / "e")
    kept = rollouts(folder)
    assert len(kept) == ROLLOUTS
    assert {(r.mode, r.label, r.run_id) for r in kept} == {(Mode.TEST, "eval", "e")}
    assert all(r.last.calls and r.reward is not None for r in kept)
    (line,) = folder.read_metrics()
    mean = json.loads(unkept)["mean_reward"]
    assert line["reward/mean"] == pytest.approx(mean)
    assert told(folder)["reward_after_sampled"] == mean
    with open_store(folder.store, create=False) as store:
        (run,) = store.runs()
        assert (run.status.value, run.recipe, run.algorithm) == ("succeeded", "eval", "evaluation")
        assert len(store.metrics(run.id)) == 1


def test_the_verbs_work_on_it(place: Path) -> None:
    command(*ASKED, "--output", "runs/one")
    command(*ASKED, "--output", "runs/two", "--seed", "1")
    command(*ASKED[:6], "--output", "runs/greedy")
    listed = command("runs")
    assert listed.count("finished") == 3
    means = {told(RunFolder(place / "runs" / n))["reward_after_sampled"] for n in ("one", "two")}
    rows = {line.split()[0]: line.split() for line in listed.splitlines()[2:]}
    assert {rows[name][-6] for name in ("one", "two")} == {f"{mean:.2f}" for mean in means}
    assert [rows[name][-5] for name in ("one", "two", "greedy")] == ["8", "8", "4"]
    found = json.loads(command("compare", "one", "two", "--json"))
    assert [run["run"]["algorithm"] for run in found["runs"]] == ["evaluation"] * 2
    assert found["same_tasks"]
    (pair,) = found["pairs"]
    assert pair["tasks"] == len(TASKS)
    assert pair["caveats"] == []
    assert pair["reward"] is not None
    means = [told(RunFolder(place / "runs" / n))["reward_after_sampled"] for n in ("one", "two")]
    assert pair["reward"]["mean"] == pytest.approx(means[1] - means[0])
    assert "8 rollouts match" in command("show", "one", "--rollouts", "50")
    assert lifecycle.NOTHING_LEFT in CliRunner().invoke(build_app(), ["resume", "one"]).output
    again = command(*ASKED, "--output", "runs/one")
    assert again.partition("Next\n")[0].strip() in command("show", "one")
    other = command(*ASKED, "--output", "runs/one", "--seed", "1", code=2)
    assert "see its result: tutelage show runs/one" in " ".join(other.split())
    (place / "t.jsonl").write_text(json.dumps(TASKS[0]) + "\n")
    assert "t.jsonl (test) changed" in command(*ASKED, "--output", "runs/one", code=2)


@pytest.mark.full
def test_killed_and_resumed_it_has_the_same_numbers(place: Path) -> None:
    command(*ASKED, "--output", "whole")
    start = "from tutelage.cli import main; main()"
    line = [sys.executable, "-c", start, *ASKED, "--output", "killed"]
    done = subprocess.run(line, env=os.environ | {"KILL_AT": "6"}, capture_output=True, timeout=300)
    assert done.returncode == -signal.SIGKILL, done.stderr
    whole, cut = RunFolder(place / "whole"), RunFolder(place / "killed")
    assert cut.read_result() is None
    assert "tutelage resume" in command("show", "killed")
    resumed, shown = command("resume", "killed"), command("show", "whole")
    assert resumed.replace("killed", "whole").split() == shown.split()
    assert told(cut) == told(whole)
    assert [(r.id.removesuffix("_killed"), r.reward, r.last.answer) for r in rollouts(cut)] == [
        (r.id.removesuffix("_whole"), r.reward, r.last.answer) for r in rollouts(whole)
    ]


@pytest.mark.full
def test_what_was_played_before_a_stop_is_not_played_again(place: Path) -> None:
    asked = EvaluationConfig(test=("t.jsonl",), reward="r.py:vary", samples=2)
    command(*ASKED, "--output", "whole")
    folder = create(place / "run")
    with pytest.raises(KeyboardInterrupt):
        lifecycle.start(PolicyEvaluation("model", asked), folder, Interrupt(3))
    first = {r.id: r.last.started for r in rollouts(folder)}
    assert 3 <= len(first) < ROLLOUTS
    lifecycle.resume(PolicyEvaluation, folder, Progress())
    after = {r.id: r.last.started for r in rollouts(folder)}
    assert len(after) == ROLLOUTS
    assert {id: after[id] for id in first} == first
    assert told(folder) == told(RunFolder(place / "whole"))


@pytest.mark.full
def test_what_no_judge_saw_is_played_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_JUDGE", "1")
    said = " ".join(command(*ASKED, "--output", "run", code=1).split())
    assert "no rollout could be graded: " in said
    assert "tutelage resume" in said
    monkeypatch.delenv("NO_JUDGE")
    command("resume", "run")
    command(*ASKED, "--output", "whole")
    assert told(RunFolder(place / "run")) == told(RunFolder(place / "whole"))


@pytest.mark.parametrize(
    ("changed", "said"),
    [("model", "model (target) changed"), *long(("tasks", "t.jsonl (test) changed"))],
)
def test_it_goes_on_with_what_it_began_with_alone(place: Path, changed: str, said: str) -> None:
    asked = EvaluationConfig(test=("t.jsonl",), reward="r.py:vary", samples=2)
    with pytest.raises(KeyboardInterrupt):
        lifecycle.start(PolicyEvaluation("model", asked), create(place / "run"), Interrupt(1))
    if changed == "model":
        tiny_policy(seed=1, max_positions=256).save(place / "model", replace=True)
    else:
        (place / "t.jsonl").write_text(json.dumps(TASKS[0]) + "\n")
    refused = " ".join(command("resume", "run", code=2).split())
    assert said in refused
    assert "is saved" not in refused


@pytest.mark.full
def test_code_of_the_run_that_is_evaluated_is_asked_about(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resume asks about all code that the folder names; what it hides is refused."""
    theirs = create(place / "theirs")
    keys = ["agent.reward_name=r.py:vary", "agent.max_tokens_per_turn=4"]
    resolved = resolve("math", keys, machine=Machine(0, 2))
    write_json(theirs.config, {"kind": "weights", **json.loads(resolved.to_json())})
    tiny_policy(max_positions=256).save(theirs.policy)
    asked = EvaluationConfig(test=("t.jsonl",), samples=2)
    refused = "it was not started on this machine"
    eval_theirs = ("eval", "theirs", "--test", "t.jsonl", "--output", "refused")
    assert refused in " ".join(command(*eval_theirs, code=2).split())
    assert not (place / "refused").exists()
    folder = create(place / "run")
    with pytest.raises(KeyboardInterrupt):
        lifecycle.start(PolicyEvaluation("theirs", asked, trust=True), folder, Interrupt(1))
    state = place / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(state))  # another user's
    assert refused in " ".join(command("resume", "run", code=2).split())
    told = folder.config.read_text()
    hidden = json.loads(told) | {"code": [], "reward": "math"}
    write_json(folder.config, hidden)
    assert "config.json was edited" in " ".join(command("resume", "run", code=2).split())
    kept = json.loads(fingerprint_file(folder).read_text())
    write_json(fingerprint_file(folder), kept | {"config": hidden})
    assert refused in " ".join(command("resume", "run", code=2).split())
    folder.config.write_text(told)
    write_json(fingerprint_file(folder), kept)
    command("resume", "run", "--trust")
    assert folder.read_result() is not None
