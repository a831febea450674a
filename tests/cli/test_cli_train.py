"""`train` and `resume`: what reaches the job, and every way a job can end."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tutelage.config import Resolved
from tutelage.runs.folder import RunFolder
from tutelage.runs.progress import Progress

from .conftest import Fake, Tutelage
from .sample_run import RESULT, rollout, success


@pytest.fixture
def seen(fake: Fake, laptop: None) -> dict[str, Any]:
    """Fake jobs that keep what they were given."""
    kept: dict[str, Any] = {}

    def train(resolved: Resolved, folder: RunFolder, progress: Progress) -> dict[str, Any]:
        kept.update(resolved=resolved, folder=folder)
        folder.config.write_text(resolved.to_json())
        progress.start("math", {"device": "cpu"})
        progress.phase("rewarded", steps=1)
        progress.step(1, {"reward/mean": 0.5})
        folder.policy.mkdir()
        folder.report.write_text("<html>")
        return RESULT

    def dry_run(resolved: Resolved, note: Callable[[str], None]) -> Any:
        note("each rank would hold 1 MB")
        return rollout("roll_dry", success())

    fake("tutelage.weights.jobs", train=train, dry_run=dry_run)
    return kept


def test_flags_files_and_overrides_reach_the_job(
    tutelage: Tutelage, seen: dict[str, Any], tmp_path: Path
) -> None:
    tmp_path.joinpath("keys.json").write_text('{"agent": {"num_chains": 4}}')
    for name in ("a.jsonl", "b.jsonl", "c.jsonl"):
        tmp_path.joinpath(name).write_text('{"question": "?", "answer": "1"}\n')
    args = "train math --level hard --seed 5 --steps 7 --output out --config keys.json lr=0.002"
    files = "--train a.jsonl --train b.jsonl --val c.jsonl --tools calculator,lookup --reward math"
    result = tutelage(*args.split(), *files.split())
    assert result.exit_code == 0, result.output
    config = seen["resolved"].config
    assert seen["folder"].path == Path("out")
    assert (config.seed, config.data.level, config.trainer.total_training_steps) == (5, "hard", 7)
    assert config.agent.num_chains == 4
    assert config.actor.optim.lr == 0.002
    assert config.data.train_files == ("a.jsonl", "b.jsonl")
    assert config.data.val_files == ("c.jsonl",)
    assert config.agent.tools == ("calculator", "lookup")
    assert config.agent.reward_name == "math"


def test_the_end_of_a_training(tutelage: Tutelage, seen: dict[str, Any]) -> None:
    result = tutelage("train", "math", "--output", "out")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    table = [line.split() for line in lines]
    assert "held-out success, 200 tasks  before   after  change" in result.stdout
    assert ["sampled", "31.0", "%", "94.5", "%", "+63.5"] in table
    assert ["greedy", "42.0", "%", "98.5", "%", "+56.5"] in table
    assert ["greedy,", "no", "tools", "2.0", "%"] in table
    assert "control" not in result.stdout, "what was not measured has no column"
    for part in ("policy  out/policy", "report  out/report.html", "12,345 tokens", "4:44 wall"):
        assert part in result.stdout
    for verb in ("ask out QUESTION", "show out", "eval out --test FILE.jsonl"):
        assert f"  tutelage {verb}" in lines
    assert "  tutelage runs" in lines
    assert "rewarded: 1 step in 0:00" in result.stderr
    assert "rewarded" not in result.stdout, "a pipe gets results, not progress"


def test_a_name_is_that_of_the_folder_and_goes_on_or_is_numbered(
    tutelage: Tutelage, seen: dict[str, Any]
) -> None:
    """Unfinished and the same, it is continued; else a run beside it is begun, which is said."""
    named = ("train", "math", "trainer.experiment_name=mine", "--seed", "3")
    assert tutelage(*named).exit_code == 0
    first = Path("runs", "mine")
    assert [*Path("runs").iterdir()] == [first]
    assert f"Continuing {first}" in tutelage(*named).stderr
    beside = "There is a run of the name 'mine' already, so this is runs/mine-"
    assert f"{beside}2" in tutelage(*named, "lr=0.5").stderr
    (first / "result.json").write_text('{"status": "finished"}')
    assert f"Continuing {first}" in tutelage(*named, "--steps", "100").stderr, "it trains longer"
    assert f"{beside}3" in tutelage(*named).stderr
    assert "mine-4" in tutelage(*named, "trainer.resume_mode=disable").stderr
    assert tutelage(*named, "--output", "elsewhere").exit_code == 0


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("maths",), "did you mean 'math'?"),
        (("math", "--algorithm", "rll"), "did you mean 'rl'?"),
        (("math", "--minutes", "nan"), "flag --minutes"),
        (("math", "--config", "nope.json"), "cannot read the configuration file 'nope.json'"),
    ],
)
def test_mistakes_stop_before_the_job(
    tutelage: Tutelage, seen: dict[str, Any], tmp_path: Path, args: tuple[str, ...], told: str
) -> None:
    before = sorted(tmp_path.rglob("*"))
    result = tutelage("train", *args)
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: ")
    assert told in result.stderr
    assert "Traceback" not in result.output
    assert seen == {}
    assert sorted(tmp_path.rglob("*")) == before


def test_sizes_mean_the_same_for_weights_as_for_prompts(
    tutelage: Tutelage, seen: dict[str, Any]
) -> None:
    sizes = "--iterations 3 --train-size 5 --val-size 6 --test-size 7"
    assert tutelage("train", "math", "--algorithm", "rl", *sizes.split()).exit_code == 0
    config = seen["resolved"].config
    assert config.trainer.total_training_steps == 3
    assert config.data.train_tasks == 5
    assert (config.trainer.val_tasks, config.trainer.test_tasks) == (6, 7)
    refused = tutelage("train", "math", "--algorithm", "rl", "--budget-usd", "1")
    assert refused.exit_code == 2
    assert "--budget-usd='1' is an option of prompt searches" in refused.stderr


def test_a_dry_run_shows_the_keys_that_differ_and_one_task(
    tutelage: Tutelage, seen: dict[str, Any], tmp_path: Path
) -> None:
    result = tutelage("train", "math", "--dry-run", "--seed", "5", "lr=0.002")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert "seed=5   # flag --seed" in lines
    assert any(line.startswith("actor.optim.lr=0.002   # override lr") for line in lines)
    assert any(line.startswith("critic.optim.lr=0.001 ") for line in lines)
    assert any("preset math/default" in line for line in lines)
    assert "actor.entropy_coeff=0.0   # preset math/default" in lines
    assert not [line for line in lines if line.startswith("algorithm.gamma=")]
    everything = tutelage("train", "math", "--dry-run", "--all").stdout.splitlines()
    assert [line for line in everything if line.startswith("algorithm.gamma=")]
    left = sum("=" in line for line in everything) - sum("=" in line for line in lines)
    assert f"{left} other keys have their defaults; --all prints them" in lines
    refused = tutelage("train", "math", "--all")
    assert (refused.exit_code, "--dry-run" in refused.stderr) == (2, True)
    assert "17 * 23 + 5" in result.stdout
    assert "each rank would hold 1 MB" in result.stdout
    assert seen == {}
    assert list(tmp_path.iterdir()) == [], "a dry run writes nothing"
