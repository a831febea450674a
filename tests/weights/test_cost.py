"""What a training will cost is said before it starts, and comes true."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from tutelage.cli import build_app
from tutelage.runs.estimate import Pace
from tutelage.types import FailureCause
from tutelage.weights import context, cost, jobs
from tutelage.weights.config import resolve

from .samples import LAPTOP
from .tiny_job import material, overrides


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return material(tmp_path_factory.mktemp("source"))


@pytest.mark.parametrize("before", ["true", "false"])
def test_rollouts_and_tokens_are_told_before_a_training(
    source: Path, tmp_path: Path, before: str
) -> None:
    out = tmp_path / "run"
    keys = overrides(
        source,
        trainer__val_before_train=before,
        trainer__total_training_steps=3,
        trainer__test_freq=2,
        trainer__control="true",
    )
    done = CliRunner().invoke(
        build_app(), ["train", "math", "--output", str(out), *keys], env={"COLUMNS": "200"}
    )
    assert done.exit_code == 0, done.output
    told = re.search(
        r"plan +3 steps x 2 tasks x 3 = 18 rollouts twice, .* (\d+) to measure", done.output
    )
    assert told is not None, done.output
    assert re.search(r"rate +0\.01 after a warm-up \(optimizer steps: 5\)\n", done.output)
    kept = (
        "checkpoints every 2 steps and after the last step; the last 2 and the best in validation"
    )
    assert f"{kept} are kept\n" in done.output
    limits = "at most 10 a turn, 20 a rollout, context 256"
    assert re.search(rf"tokens +{limits}\n", done.output), done.output
    played = json.loads((out / "result.json").read_text())["rollouts"]
    assert played == 36 + int(told[1])
    (line,) = [line for line in done.output.splitlines() if "Cost from here" in line]
    numbers = re.search(r"([\d,]+) rollouts x ([\d,]+) tokens = ([\d,]+)", line)
    assert numbers is not None
    left, each, tokens = (int(found.replace(",", "")) for found in numbers.groups())
    tested = 2 * 2 * (before == "true")
    assert left == played - 2 * 6 - 2 * 2 - tested, "told after the second step and its look"
    assert tokens == pytest.approx(left * each, rel=0.1)
    assert " tokens/s " in line
    assert done.output.index("Cost") < done.output.index("measure after")


@pytest.mark.parametrize(("step", "made", "left"), [(2, 2, 8), (50, 2, 8), (50, 1, 0), (51, 3, 0)])
def test_what_is_left_is_told_after_the_second_step_of_each_process(
    step: int, made: int, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was stopped is asked about, too: its own steps are slow things."""
    monkeypatch.setattr(cost, "step_limit", lambda setting: step + 2)
    monkeypatch.setattr(cost, "seconds_left", lambda ctx: None)
    notes = list[str]()
    trainer = SimpleNamespace(control="none", test_freq=0)
    ahead = SimpleNamespace(staleness_threshold=0)
    config = SimpleNamespace(trainer=trainer, rollouts_per_batch=4, async_training=ahead)
    ctx: Any = SimpleNamespace(
        state=SimpleNamespace(phase_step=step),
        setting=SimpleNamespace(config=config, tasks=SimpleNamespace(val=(), test=()), given=0),
        pace=Pace(rollouts=4, tokens=40, seconds=1.0),
        run=SimpleNamespace(progress=SimpleNamespace(note=notes.append)),
    )
    cost.tell_cost(ctx, 1.0, made)
    assert [note[:26] for note in notes] == [f"Cost from here: {left} rollouts"] * bool(left)
    cost.tell_cost(ctx, None, made)
    flat = ", and 0:0" not in notes[-1] and "nothing to learn from" in notes[-1] if notes else True
    assert flat, "a step that trained nothing says nothing of what updates take"
    notes[1:] = []
    ahead.staleness_threshold = 1
    cost.tell_cost(ctx, 1.0, made)
    assert len(notes) == bool(left), "how fast it plays beside its updates was not measured"


def test_a_plan_of_one_is_counted_as_one() -> None:
    keys = ("trainer.total_training_steps=1", "data.train_batch_size=1", "agent.num_chains=2")
    config = resolve("word-problems", keys, machine=LAPTOP).config
    tasks = SimpleNamespace(val=(), test=())
    setting: Any = SimpleNamespace(
        config=config, tasks=tasks, given=None, shown=None, policy=SimpleNamespace()
    )
    assert cost._rollouts(setting).startswith("1 step x 1 task x 2 = 2 rollouts, ")


def test_a_pace_in_words() -> None:
    pace = Pace(rollouts=10, tokens=500, seconds=2.0, dollars=0.05)
    words = pace.words(1000, more=60.0, what="updates")
    assert words == (
        "1,000 rollouts x 50 tokens = 50,000 tokens, at 250 tokens/s 3:20, and 1:00 of updates: "
        "about 4:20, $5.00 (measured on 10 rollouts)"
    )
    assert Pace(2, 0, 1.0).words(4) == "4 rollouts x 0 tokens = 0 tokens (measured on 2 rollouts)"


def test_a_context_above_the_models_own_is_told_to_have_no_effect() -> None:
    for asked, said in ((9000, "rollout.max_len=9000 has no effect"), (256, "context 256")):
        config = resolve("math", [f"rollout.max_len={asked}"], machine=LAPTOP).config
        policy = SimpleNamespace(max_positions=256)
        setting: Any = SimpleNamespace(config=config, given=None, policy=policy, context=256)
        assert said in cost._tokens(setting)
        assert ("no effect" in cost._tokens(setting)) is (asked > 256)


def test_a_dry_run_tells_of_a_prompt_without_room(
    source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = overrides(source, rollout__max_len=21)
    jobs.dry_run(resolve("math", keys, machine=LAPTOP))
    assert "is longer than the context of 21 tokens" in caplog.text
    assert "raise `rollout.max_len`" in caplog.text


def test_a_reward_that_is_no_number_is_not_said_to_have_raised() -> None:
    told = context._GRADING[FailureCause.ANSWER_ERROR]
    assert told == "the reward raised or gave no finite number, which counts as wrong"
