"""`show` of a run and of a rollout, and `runs`."""

import fcntl
import re
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from tutelage.store import TrainingRow, open_store

from .conftest import Tutelage
from .sample_run import (
    add_span,
    failure,
    make_run,
    rollout,
    success,
)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder of one run, named `sums`."""
    make_run(tmp_path / "runs" / "sums")
    return tmp_path / "runs"


def test_a_run(tutelage: Tutelage, runs: Path) -> None:
    result = tutelage("show", "sums")
    assert result.exit_code == 0, result.output
    shown = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "Run sums" in shown
    assert "recipe math, grpo, seed 3" in shown
    for key in ("seed=3", "data.level=hard", "actor.optim.lr=0.001"):
        assert f"set {key}" in shown
    assert not any("preset" in line for line in shown)
    assert "rl 2 0.25 -> 0.75 -0.5 -> -0.5 2e-06" in shown
    assert "cold_start 1 2.5 -> 2.5" in shown
    assert "sampled 31.0 % 94.5 % +63.5" in shown
    assert "stored 4 rollouts" in shown
    assert "failed 1 agent error" in shown
    assert "roll_ddddddddd reward 1 answer step 9 after/greedy" in shown
    assert "roll_aaaaaabbb reward 0 agent error step 1 train" in shown
    assert "What is 17 * 23 + 5? -> 396" in shown


def test_a_run_at_60_columns(
    tutelage: Tutelage, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    result = tutelage("show", "sums")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    # Commands and sentences are left to the terminal to wrap.
    whole = ("no tools", "done")
    drawn = [line for line in lines if "tutelage" not in line and not line.startswith(whole)]
    assert len(drawn) > 20
    assert max(map(len, drawn)) <= 60


def test_rollouts_of_a_run_can_be_listed(tutelage: Tutelage, runs: Path) -> None:
    every = tutelage("show", "sums", "--rollouts", "3").stdout
    assert every.count("roll_") == 3 + 1
    assert re.search(r"One turn by turn: tutelage show roll_\w+ --run runs/sums$", every, re.M)
    assert "4 rollouts match" in every
    failed = tutelage("show", "sums", "--failed").stdout
    assert failed.count("roll_") == 1 + 1
    assert "1 rollout matches" in failed
    assert "roll_aaaaaabbb" in failed
    second = tutelage("show", "sums", "--step", "2").stdout
    assert second.count("roll_") == 1 + 1
    assert "roll_ccccccccc" in second


def test_a_run_that_was_stopped(tutelage: Tutelage, tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "cut", result=False, store=False)
    result = tutelage("show", "cut")
    assert result.exit_code == 0
    assert "tutelage resume" in result.stdout


def test_a_rollout_turn_by_turn(tutelage: Tutelage, runs: Path) -> None:
    result = tutelage("show", "roll_aaaaaaaaaa")
    assert result.exit_code == 0, result.output
    order = [
        "Rollout roll_aaaaaaaaaaaaaaaaaaaaaaaa",
        "task    t-17",
        "mode    train",
        "status  finished",
        "reward  1 (exact 1)",
        "wanted  396",
        "user",
        "What is 17 * 23 + 5?",
        "turn 1  2 tokens, stop",
        "Let me see.",
        'calls calculator {"expression": "17 * 23 + 5"}',
        "-> calculator gives 396",
        "turn 2  2 tokens, stop",
        "answer  396",
        "end     answer, after 0.50 s",
    ]
    at = -1
    for part in order:
        found = result.stdout.find(part, at + 1)
        assert found > at, f"{part!r} is missing or out of order in:\n{result.stdout}"
        at = found
    assert "logprob" not in result.stdout
    assert result.stdout.count("gives 396") == 1


def test_the_trace_of_a_rollout(tutelage: Tutelage, runs: Path) -> None:
    add_span(runs)
    shown = tutelage("show", "roll_aaaaaaaaaa").stdout
    tree = shown[shown.index("Trace ") :].splitlines()
    assert [line.split("  ")[1] if "  " in line else line for line in tree[1:2]] == [
        "invoke_agent main"
    ]
    assert any("reward = 1" in line for line in tree)
    assert any("├ chat policy" in line and "tokens" in line for line in tree)
    assert any("├ execute_tool" in line for line in tree)
    assert any("my step" in line for line in tree)
    assert "gen_ai.input.messages" not in shown
    more = tutelage("show", "roll_aaaaaaaaaa", "--content").stdout
    assert "gen_ai.input.messages = " in more
    assert "n = 1" in more


def test_tokens_of_a_rollout(tutelage: Tutelage, runs: Path) -> None:
    shown = tutelage("show", "roll_aaaaaaaaaa", "--tokens").stdout
    assert "7:-0.250 8:-0.750" in shown
    assert "4 prompt tokens; policy version 5; temperature 1" in shown
    assert "logprob mean -0.5000, lowest -0.7500, sum -1.0000" in shown


def test_what_training_made_of_a_rollout(tutelage: Tutelage, runs: Path) -> None:
    assert "advantage" not in tutelage("show", "roll_aaaaaaaaaa").stdout
    with open_store(runs / "sums" / "store.db") as store:
        found = store.find_rollout("roll_aaaaaaaaaa", "sums")
        plain = TrainingRow(1, "main", 0, found.id, tokens=4, advantage=0.75)
        told = replace(
            plain,
            policy="b",
            tokens=2,
            advantages=struct.pack("<2f", 1.0, 0.5),
            logprobs=struct.pack("<2f", -0.5, -1.5),
            entropies=struct.pack("<2e", 0.25, 0.75),
            importance_weights=struct.pack("<2e", 0.5, 2.0),
        )
        store.put_rollouts([], None, {"sums": [plain, told]})
    shown = tutelage("show", "roll_aaaaaaaaaa").stdout
    assert "0.75 (4 trained tokens)" in shown
    assert "0.75 on average (2 trained tokens, policy b)" in shown
    assert "trainer:" not in shown
    shown = tutelage("show", "roll_aaaaaaaaaa", "--tokens").stdout
    assert "trainer: logprob mean -1.0000, lowest -1.5000; entropy mean 0.5000" in shown
    assert "importance weight 0.500 to 2.000" in shown


def test_a_failed_rollout_says_why(tutelage: Tutelage, runs: Path) -> None:
    shown = tutelage("show", "roll_aaaaaabbb").stdout
    assert "status  failed, agent error" in shown
    assert "unreadable: half a call" in shown
    assert "-> calculator failed, raised: Error: division by zero" in shown
    assert "failed, agent error: ValueError: no\\x1b[31m" in shown
    assert "  Traceback (most ..." in shown
    assert "\x1b" not in shown


def test_earlier_attempts_are_shown_by_how_they_failed(tutelage: Tutelage, runs: Path) -> None:
    from dataclasses import replace

    tried = rollout("roll_eeee", failure(), run_id="sums", index=7)
    tried = replace(tried, attempts=(*tried.attempts, replace(success(), id="att_2", index=1)))
    with open_store(runs / "sums" / "store.db") as store:
        store.put_rollouts([tried])
    shown = tutelage("show", "roll_eeee").stdout
    assert "attempt 0: failed" in shown
    assert shown.index("agent error: ValueError") < shown.index("turn 1")
    assert shown.count("turn 1") == 1


def test_a_prefix_of_several_rollouts_lists_them(tutelage: Tutelage, runs: Path) -> None:
    result = tutelage("show", "roll_aaaa")
    assert result.exit_code == 2
    assert "matches several rollouts" in result.stderr
    assert "roll_aaaaaabbbbbbbbbbbbbbbbbb" in result.stderr


def test_of_several_runs_with_such_an_id_the_newest_is_first(
    tutelage: Tutelage, runs: Path
) -> None:
    make_run(runs / "again")
    result = tutelage("show", "roll_cccc")
    assert result.exit_code == 0
    assert "run     again" in result.stdout
    chosen = tutelage("show", "roll_cccc", "--run", "sums").stdout
    assert "run     sums" in chosen


def test_a_run_can_be_shown_after_its_folder_was_renamed(tutelage: Tutelage, runs: Path) -> None:
    runs.joinpath("sums").rename(runs / "other")
    assert "stored  4 rollouts" in tutelage("show", "other").stdout
    assert tutelage("show", "roll_cccc").exit_code == 0


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nothing", "no run 'nothing'"),
        ("roll_zzz", "no rollout ID starts with 'roll_zzz'"),
    ],
)
def test_a_name_that_nothing_has(tutelage: Tutelage, runs: Path, name: str, told: str) -> None:
    make_run(runs / "again")
    result = tutelage("show", name)
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: ")
    assert told in result.stderr


def test_a_damaged_store_is_no_bug(tutelage: Tutelage, runs: Path) -> None:
    runs.joinpath("sums", "store.db").write_bytes(b"no database" * 100)
    result = tutelage("show", "sums")
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_runs_lists_each_run_on_a_line(tutelage: Tutelage, runs: Path) -> None:
    make_run(runs / "cut", result=False, store=False)
    make_run(runs / "bad", store=False).result.write_text("{")
    lines = [line.split() for line in tutelage("runs").stdout.splitlines()]
    heads = [
        "run",
        "status",
        "phase",
        "seed",
        "steps",
        "success",
        "reward",
        "tested",
        "disk",
        "age",
    ]
    assert lines[0] == heads
    by_name = {line[0]: line[1:] for line in lines[2:]}
    assert by_name["sums"][:7] == ["finished", "3", "2", "31", "->", "94", "%"]
    assert by_name["cut"][:4] == ["stopped", "rl", "3", "2/300"]
    assert by_name["bad"][:4] == ["stopped", "rl", "3", "2/300"]
    (runs / "cut" / "big").write_bytes(b"x" * 7_000_000)
    (line,) = (line for line in tutelage("runs").stdout.splitlines() if line.startswith("cut"))
    assert " 7.0 MB " in line


def test_rm_deletes_a_run_that_no_process_works_on_after_asking(
    tutelage: Tutelage, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_run(runs / "old", store=False)
    (runs / "mine").mkdir()
    (runs / "mine" / "notes.txt").touch()
    for name in ("mine", "runs/mine", "nothing"):
        assert tutelage("rm", name, "--yes").exit_code == 2
    with (folder.path / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        busy = tutelage("rm", "old", "--yes")
    assert (busy.exit_code, "another process" in busy.stderr) == (2, True)
    with monkeypatch.context() as inside:
        inside.chdir(folder.path)
        assert tutelage("rm", ".", "--yes").exit_code == 2
    asked = tutelage("rm", "old", typed="n\n")
    assert asked.exit_code == 1
    assert "Delete runs/old (0.0 MB: .lock, checkpoints, config.json, " in asked.output
    assert folder.config.is_file()
    assert tutelage("rm", "old", typed="y\n").exit_code == 0
    assert not folder.path.exists()
    assert tutelage("rm", "sums", "--yes").exit_code == 0
    assert [path.name for path in runs.iterdir()] == ["mine"]


def test_runs_elsewhere_or_nowhere(tutelage: Tutelage, runs: Path) -> None:
    runs.rename(runs.parent / "kept")
    assert "No runs below 'runs' yet. Start with: tutelage train math" in tutelage("runs").stdout
    assert "sums" in tutelage("runs", "--below", "kept").stdout
