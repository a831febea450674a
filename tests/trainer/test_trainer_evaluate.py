"""`Trainer.evaluate`, the progress that is shown by default, and arguments that are refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tutelage import APO, LLM, RL, Evaluation, Trainer, TutelageError, rollout
from tutelage.errors import ConfigError, RunError
from tutelage.runs.folder import RunFolder
from tutelage.runs.progress import Progress
from tutelage.testing import tiny_policy

TASKS = [{"text": f"number {i}"} for i in range(6)]
KEYS = {
    "steps": 1,
    "data.train_batch_size": 4,
    "num_chains": 2,
    "rollout.max_len": 128,
    "agent.max_tokens_per_turn": 4,
}


@rollout
async def digits(task: Any, llm: LLM) -> float:
    said = (await llm.chat(task["text"], max_tokens=4)).reply.content or ""
    return sum(c.isdigit() for c in said) / 4


@rollout
async def long(task: Any, llm: LLM) -> float:
    return min(1.0, len((await llm.chat(task["text"], max_tokens=4)).reply.content or "") / 4)


def trainer(**options: Any) -> Trainer:
    return Trainer(**{"policy": tiny_policy(), "test_dataset": TASKS, **options})


def test_an_agent_is_evaluated_compared_and_kept(tmp_path: Path, one_thread: None) -> None:
    one = trainer().evaluate(digits, samples=2)
    assert isinstance(one, Evaluation)
    assert (one.rollouts, one.tasks, one.judged) == (12, 6, 12)
    assert one.reward_interval is not None
    assert one.cost.calls == 12
    assert one.cost.dollars == 0
    shown = repr(one)
    assert shown == str(one)
    assert "Evaluation of 12 rollouts on 6 tasks" in shown
    assert f"{one.mean_reward:.3f}" in shown
    assert len(shown) < 500
    other = trainer().evaluate(long, samples=2)
    gap = one.compare(other)
    assert one.mean_reward is not None
    assert other.mean_reward is not None
    assert gap.mean == pytest.approx(other.mean_reward - one.mean_reward)
    assert gap.low <= gap.mean <= gap.high
    place = tmp_path / "kept"
    kept = trainer().evaluate(digits, samples=2, output_dir=place)
    assert [r.reward for r in kept.played] == [r.reward for r in one.played]
    assert kept.cost == one.cost
    assert RunFolder(place).read_result()
    again = trainer().evaluate(digits, samples=2, output_dir=place)
    assert again.mean_reward == one.mean_reward
    with pytest.raises(RunError, match="started with another target"):
        trainer().evaluate(long, samples=2, output_dir=place)


def test_it_works_where_an_event_loop_runs(one_thread: None) -> None:
    async def notebook() -> Evaluation:
        return trainer(progress=Progress()).evaluate(digits)

    assert asyncio.run(notebook()).rollouts == 6


@pytest.mark.full
def test_progress_is_shown_unless_it_is_turned_off(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], one_thread: None
) -> None:
    given = {"algorithm": RL(KEYS), "train_dataset": TASKS}
    result = trainer(**given, output_dir=tmp_path / "a").fit(digits)
    said = capsys.readouterr().err
    assert "reinforcement learning" in said
    assert str(tmp_path / "a") in said
    trainer(**given, output_dir=tmp_path / "b", progress=Progress()).fit(digits)
    assert capsys.readouterr().err == ""
    trainer().evaluate(digits)
    assert "measuring eval: 6 of 6" in capsys.readouterr().err
    shown = repr(result)
    assert "finished" in shown.splitlines()[0]
    assert str(tmp_path / "a" / "policy") in shown
    assert 3 < len(shown.splitlines()) < 10
    report = trainer(**given).dev(digits, n=2)
    assert repr(report) == str(report)
    assert "reward" in repr(report)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"lr": 1e-4}, r"lr is a training key: algorithm=RL\(lr=0.0001\)"),
        ({"train_datasets": TASKS}, "did you mean 'train_dataset'"),
        ({"train_dataset": None}, "train_dataset=None is not supported"),
        ({"train_dataset": [5]}, "train_dataset must have rows"),
        ({"n_runners": "8"}, "n_runners='8' must be a number"),
        ({"policy": 5}, "policy='main' must be a Policy, got 5"),
        ({"algorithm": RL}, "use RL"),
        ({"algorithm": APO(), "search": 5}, "search=5 must be keys"),
    ],
)
def test_arguments_of_another_type_are_refused_in_words(given: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Trainer(**{"policy": None, **given}).fit(digits)


def test_an_agent_that_asks_nothing_is_told_so(tmp_path: Path, one_thread: None) -> None:
    @rollout
    def idle(task: Any, llm: LLM) -> float:
        return 1.0

    given = trainer(algorithm=RL(KEYS), train_dataset=TASKS, output_dir=tmp_path / "idle")
    with pytest.raises(TutelageError, match=r"your agent never called llm\.endpoint or llm\.chat"):
        given.fit(idle)
    assert "your agent never called llm.endpoint" in repr(given.dev(idle, n=1))
