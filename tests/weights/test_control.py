"""The control: the same loop from the same start, with an estimator that imitates."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from system.outcome import assert_equal, outcome

from tutelage.config.facts import Machine
from tutelage.errors import ConfigError
from tutelage.runs.folder import RunFolder, create
from tutelage.runs.progress import Progress
from tutelage.store import open_store
from tutelage.types import Mode, Rollout
from tutelage.weights import jobs
from tutelage.weights.config import resolve

from .tiny_job import Killed, material, overrides, run

LAPTOP = Machine(cuda_devices=0, cores=2)
REMAX = "algorithm.adv_estimator=remax"
COIN = '''
def coin(prediction, trajectory):
    """0 or 1, and different within a group whatever the policy says."""
    ids = [i for call in trajectory.calls for i in call.sampled.token_ids]
    return float(sum(ids) % 2)


def thirds(prediction, trajectory):
    """Graded, and nobody earns 1."""
    ids = [i for call in trajectory.calls for i in call.sampled.token_ids]
    return (sum(ids) % 3) / 3
'''
KEYS: dict[str, object] = {
    "trainer__control": "true",
    "trainer__total_training_steps": 3,
    "trainer__save_freq": 2,
    "trainer__test_freq": 2,
    "actor__use_kl_loss": "true",
    "actor__kl_loss_coef": 0.001,
}


@pytest.fixture(scope="module")
def source(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = material(tmp_path_factory.mktemp("source"))
    with (folder / "rewards.py").open("a") as file:
        file.write(COIN)
    return folder


@pytest.fixture(scope="module")
def graded(source: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run whose rewards are 0, 1/2 and 1, with its control."""
    return run(source, tmp_path_factory.mktemp("graded") / "run", **KEYS)


def lines(folder: RunFolder, phase: str) -> list[dict[str, Any]]:
    return [line for line in folder.read_metrics() if line["phase"] == phase]


def sampled(folder: RunFolder, label: str) -> list[Rollout]:
    """The training rollouts of a label, in the order of their steps."""
    with open_store(folder.store, create=False) as store:
        found = store.rollouts(folder.name, label=label)
        return sorted((r for r in found if r.mode is Mode.TRAIN), key=lambda r: r.step)


def result(folder: RunFolder) -> Mapping[str, Any]:
    found = folder.read_result()
    assert found is not None
    return found


@pytest.mark.full
def test_it_has_as_many_steps_and_rollouts_of_the_same_tasks(graded: RunFolder) -> None:
    rl, control = lines(graded, "rl"), lines(graded, "control")
    assert [line["step"] for line in control] == [line["step"] for line in rl] == [1, 2, 3]
    assert {*control[1]} == {*rl[1]}, "it is the same loop, validations included"
    assert [line["lr"] for line in control] == [line["lr"] for line in rl]
    first, second = sampled(graded, ""), sampled(graded, "control")
    assert len(first) == len(second) == 3 * 2 * 3
    assert [r.task.id for r in first] == [r.task.id for r in second]
    assert not {r.id for r in first} & {r.id for r in second}, "with draws of its own"


def test_it_begins_at_the_same_start_and_learns(graded: RunFolder) -> None:
    """The reference of both is the policy before training."""
    for phase in ("rl", "control"):
        steps = lines(graded, phase)
        assert steps[0]["kl/ref"] == pytest.approx(0, abs=1e-6)
        assert steps[-1]["kl/ref"] > 1e-6
        assert any(line["grad_norm"] > 0 for line in steps)


@pytest.mark.full
@pytest.mark.parametrize(
    ("control", "reward", "chains", "trained"),
    [
        ("auto", "coin", 3, "raft"),
        ("advantage_filtered", "vary", 3, "advantage_filtered"),
        ("raft", "vary", 3, "raft"),
    ],
)
def test_which_estimator_it_has(
    source: Path, tmp_path: Path, control: str, reward: str, chains: int, trained: str
) -> None:
    keys = {**KEYS, "trainer__control": control, "trainer__test_freq": -1}
    keys |= {"trainer__total_training_steps": 1, "agent__num_chains": chains}
    keys["agent__reward_name"] = f"{source / 'rewards.py'}:{reward}"
    folder = run(source, tmp_path / "run", **keys)
    assert result(folder)["control_estimator"] == trained
    assert len(lines(folder, "control")) == 1


@pytest.mark.full
def test_it_learns_where_the_best_rewards_are_below_one(source: Path, tmp_path: Path) -> None:
    keys = {**KEYS, "trainer__test_freq": -1, "trainer__total_training_steps": 2}
    keys["agent__reward_name"] = f"{source / 'rewards.py'}:thirds"
    steps = lines(run(source, tmp_path / "run", **keys), "control")
    assert any(line.get("grad_norm", 0) > 0 for line in steps), "it was never updated"


def test_a_run_of_ones_own_is_not_doubled_by_one_unless_asked(source: Path, tmp_path: Path) -> None:
    keys = {"trainer__control": None, "trainer__total_training_steps": 1}
    folder = run(source, tmp_path / "run", **keys)
    assert lines(folder, "control") == []
    assert result(folder).get("success_control_sampled") is None
    assert len(sampled(folder, "")) == 2 * 3


class KillIn(Progress):
    """A progress that ends the process in one phase: when it begins, or after some steps of it."""

    def __init__(self, phase: str, after: int | None) -> None:
        self._phase, self._after, self._now = phase, after, ""

    def phase(self, name: str, *, steps: int | None = None, seconds: float | None = None) -> None:
        """Take its name."""
        self._now = name
        if self._after is None and name.startswith(self._phase):
            raise Killed

    def step(self, done: int, values: Mapping[str, float]) -> None:
        """End it."""
        if self._now.startswith(self._phase) and done == self._after:
            raise Killed


@pytest.mark.full
@pytest.mark.parametrize(
    ("phase", "after"),
    [("control", None), pytest.param("control", 1, marks=pytest.mark.full)],
)
def test_killed_in_it_and_resumed_it_equals_one_that_was_not(
    source: Path, graded: RunFolder, tmp_path: Path, phase: str, after: int | None
) -> None:
    folder = create(tmp_path / "run")
    resolved = resolve("math", overrides(source, **KEYS), machine=LAPTOP)
    with pytest.raises(Killed):
        jobs.train(resolved, folder, KillIn(phase, after))
    folder.result.unlink(missing_ok=True)
    jobs.resume(folder, Progress())
    broken, whole = outcome(folder.path), outcome(graded.path)
    for found in (broken, whole):
        del found["result"]["policy"]
    assert_equal(broken, whole)


def config(*words: str, **flags: Any) -> Any:
    return resolve("math", words, machine=LAPTOP, flags=flags).config


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("trainer.control=remax",), "a greedy rollout of each task"),
        (("trainer.control=gae",), "it would need a critic"),
        (("trainer.control=best_of_n", "agent.num_chains=1", REMAX), "more rollouts of one"),
        (("trainer.control=rafts",), "raft"),
    ],
)
def test_what_would_be_no_comparison_is_refused(words: tuple[str, ...], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        config(*words)


@pytest.mark.parametrize(
    ("word", "value"),
    [("true", "auto"), ("false", "none"), ("null", "none"), ("none", "none"), ("rloo", "rloo")],
)
def test_its_spellings(word: str, value: str) -> None:
    assert config(f"trainer.control={word}").trainer.control == value
