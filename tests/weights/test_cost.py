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
from tutelage.weights import cost, jobs, kinds, run, training
from tutelage.weights.config import resolve

from .samples import LAPTOP
from .tiny_job import material, overrides


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return material(tmp_path_factory.mktemp("source"))


@pytest.mark.full
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
    kept = "checkpoints every 2 steps and after the last step; the last 2 and the best in"
    assert f"{kept} validation are kept\n" in done.output
    limits = "at most 10 a turn, 20 a rollout, context 256"
    assert re.search(rf"tokens +{limits}\n", done.output), done.output
    played = json.loads((out / "result.json").read_text())["rollouts"]
    assert played == 36 + int(told[1])
    (line,) = [line for line in done.output.splitlines() if "The whole run" in line]
    minutes = r"about \d+:\d\d minutes"
    learned = r"(\d+:\d\d|nothing) to learn from"
    assert re.search(
        rf"The whole run: {minutes} \(6 rollouts took \d+:\d\d, and {learned}\)$", line
    )
    assert re.search(
        rf"total +{minutes} \(estimated; measured again after the first step\)\n", done.output
    )
    assert done.output.index("The whole run") < done.output.index("measure after")


@pytest.mark.parametrize(
    ("step", "made", "recipe", "minutes"),
    # 52 steps of 1 + 2 seconds, and 8 rollouts of 2 x 0.25 after; the last one of a recipe whose
    # steps are known to take half of the first one.
    [(2, 1, "rl", "3:34"), (50, 1, "rl", "1:10"), (50, 2, "rl", None), (1, 1, "halves", "2:18")],
)
def test_the_whole_time_is_told_after_the_first_step_of_each_process(
    step: int, made: int, recipe: str, minutes: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was stopped is asked about, too: its own steps are slow things."""
    monkeypatch.setattr(cost, "step_limit", lambda setting: 52)
    monkeypatch.setitem(cost.WORK, "halves", (0.0, 0.0, 0.0, 2.0, 0.5))
    notes = list[str]()
    ahead = SimpleNamespace(staleness_threshold=0)
    config = SimpleNamespace(
        trainer=SimpleNamespace(test_freq=0, skip_measurements=()),
        recipe=recipe,
        rollouts_per_batch=4,
        async_training=ahead,
        sft=None,
        rollout=SimpleNamespace(temperature=1.0),
    )
    ctx: Any = SimpleNamespace(
        state=SimpleNamespace(phase="rl", phase_step=step, results={"done": ["before"]}),
        setting=SimpleNamespace(
            config=config, tasks=SimpleNamespace(val=(), test=range(4)), given=None, tools={}
        ),
        pace=Pace(rollouts=4, tokens=40, seconds=1.0),
        elapsed=lambda: 60.0,
        expected={"before": 5.0, "rl": None, "after": None},
        run=SimpleNamespace(progress=SimpleNamespace(note=notes.append)),
    )
    cost.measure_cost(ctx, 2.0, made)
    took = "4 rollouts took 0:01, and 0:02 to learn from"
    told = [] if minutes is None else [f"The whole run: about {minutes} minutes ({took})"]
    assert notes == told
    assert ctx.expected["after"] == (2.0 if recipe == "halves" else 4.0)
    cost.measure_cost(ctx, None, made)
    assert all(note.endswith("and nothing to learn from)") for note in notes[1:])
    before = list(notes)
    ahead.staleness_threshold = 1
    cost.measure_cost(ctx, 1.0, made)
    assert notes == before, "how fast it plays beside its updates was not measured"


@pytest.mark.parametrize("keys", [(), ("trainer.control=true", "trainer.test_freq=2")])
def test_the_time_of_a_run_is_estimated_before_it_begins_and_kept_by_phase(
    source: Path, keys: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From what a pass of the policy takes here: twice the steps are expected to take twice as
    long."""
    monkeypatch.setattr(cost.timeit, "repeat", lambda *_, **__: [0.5, 0.01, 0.02])
    expected: list[dict[str, float | None]] = []
    for steps in (4, 8):
        words = [*overrides(source, trainer__total_training_steps=steps), *keys]
        job = kinds.make_job(resolve("math", words, machine=LAPTOP))
        work = run.TrainingRun(job.resolved, job.make_inputs(), job.event_loop)
        ctx: Any = SimpleNamespace(
            state=SimpleNamespace(phase="", phase_step=0, results={}),
            setting=work.setting,
            elapsed=lambda: 0.0,
            expected=dict.fromkeys(name for name, _ in training.list_phases(work)),
        )
        told = cost.estimate_time(ctx)["total"]
        assert re.fullmatch(r"about \d+:\d\d minutes \(estimated; measured again .*\)", told), told
        expected.append(ctx.expected)
    once, twice = expected
    assert list(once) == ["rl", "after", *(["control", "after_control"] if keys else [])]
    for phase, seconds in once.items():
        assert seconds
        assert twice[phase] == pytest.approx(seconds * (1 if "after" in phase else 2))


def test_the_plan_counts_one_as_one_and_tells_the_context() -> None:
    keys = ("trainer.total_training_steps=1", "data.train_batch_size=1", "agent.num_chains=2")
    config = resolve("word-problems", keys, machine=LAPTOP).config
    setting: Any = SimpleNamespace(
        config=config,
        tasks=SimpleNamespace(val=(), test=()),
        given=None,
        reward=None,
        environment=None,
        context=256,
        policy=SimpleNamespace(max_positions=512),
    )
    told = cost.describe_plan(setting, ["rl"])
    assert told["plan"].startswith("1 step x 1 task x 2 = 2 rollouts, ")
    assert told["tokens"].endswith("context 256 (the model: 512)")
    assert told["reward"] == "what the agent returns"


def test_a_pace_in_words() -> None:
    pace = Pace(rollouts=10, tokens=500, seconds=2.0, dollars=0.05)
    assert pace.format_estimate(1000) == (
        "1,000 rollouts x 50 tokens = 50,000 tokens, at 250 tokens/s 3:20, $5.00 (measured on 10 "
        "rollouts)"
    )
    assert (
        Pace(2, 0, 1.0).format_estimate(4)
        == "4 rollouts x 0 tokens = 0 tokens (measured on 2 rollouts)"
    )


def test_a_dry_run_tells_of_a_prompt_without_room(
    source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = overrides(source, rollout__max_len=21)
    jobs.dry_run(resolve("math", keys, machine=LAPTOP))
    assert "is longer than the context of 21 tokens" in caplog.text
    assert "raise `rollout.max_len`" in caplog.text
