"""Failed rollouts: what they earn, that they are counted by cause, and a warning where they pay."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tutelage.runs.folder import RunFolder, create
from tutelage.store import open_store
from tutelage.types import Mode, Rollout
from tutelage.weights import jobs
from tutelage.weights.config import resolve

from .samples import LAPTOP
from .tiny_job import Notes, material, overrides

PARTS = '''
from tutelage.tools import tool


class Shop:
    """Opens for every other task."""

    def __init__(self, task):
        self.task = task

    async def __aenter__(self):
        if sum(map(ord, self.task.input)) % 2:
            raise RuntimeError("closed")
        return self

    async def __aexit__(self, *error):
        pass

    @tool
    def buy(self, n: int) -> str:
        """Buy something.

        Args:
            n: how many
        """
        return str(n)


def low(prediction, trajectory):
    """At most -0.5."""
    ids = [i for call in trajectory.calls for i in call.sampled.token_ids]
    return -0.5 - (sum(ids) % 3) / 2
'''


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = material(tmp_path_factory.mktemp("source"))
    (folder / "parts.py").write_text(PARTS)
    return folder


def trained(source: Path, out: Path, **keys: Any) -> tuple[RunFolder, list[Rollout], list[str]]:
    """A run in which some rollouts fail, with all its phases."""
    given = overrides(
        source,
        agent__tools=f"[{source / 'parts.py'}:Shop]",
        agent__reward_name=f"{source / 'parts.py'}:low",
        data__train_batch_size=6,
        trainer__total_training_steps=2,
        trainer__val_before_train="true",
        trainer__control="true",
        trainer__test_freq=1,
        **keys,
    )
    folder, notes = create(out), Notes()
    jobs.train(resolve("math", given, machine=LAPTOP), folder, notes)
    with open_store(folder.store, create=False) as store:
        return folder, list(store.rollouts(folder.name)), notes.notes


@pytest.mark.full
def test_failures_of_every_phase_are_counted_by_cause_and_a_warning_is_kept(
    source: Path, tmp_path: Path
) -> None:
    folder, played, notes = trained(source, tmp_path / "run")
    lost = [r for r in played if r.last.failure is not None]
    assert {r.reward.value for r in lost if r.reward is not None} == {0.0}
    causes = Counter(r.last.failure.cause.value for r in lost if r.last.failure is not None)
    result = json.loads(folder.result.read_text())
    assert result["failures"] == dict(causes) == {"agent_error": len(lost)}
    by_phase = result["failures_by_phase"]
    assert {"before", "rl", "after", "control", "after_control"} <= {*by_phase}
    assert sum((Counter(found) for found in by_phase.values()), Counter()) == causes
    steps = [line for line in folder.read_metrics() if line["phase"] in ("rl", "control")]
    assert {line["phase"] for line in steps} == {"rl", "control"}
    for line in steps:
        assert line["rollout/failed"] == line.get("rollout/agent_error", 0.0)
    assert any(line["rollout/failed"] > 0 for line in steps)

    first = min(r.step for r in played if r.mode is Mode.TRAIN)
    began = [r for r in played if r.mode is Mode.TRAIN and r.step == first]
    warning, short = result["warnings"]
    assert "less than the 0 of a failed one (agent.failure_reward)" in warning
    assert [n for n in notes if "agent.failure_reward" in n] == [f"Warning: {warning}"]
    cut = [r for r in began if r.last.stop in ("token_budget", "context")]
    told = f"Warning: {len(cut)} of {len(began)} rollouts were cut off before they had ended"
    assert 2 * len(cut) >= len(began)
    (said,) = [n for n in notes if "cut off" in n]
    assert short == said.replace("Warning: ", "step 1 to 2: ")
    assert said.startswith(told)
    assert "(agent.max_tokens_per_turn=10, rollout.response_length=20, " in said


@pytest.mark.full
def test_the_failure_reward_is_a_key_for_training_and_evaluation(
    source: Path, tmp_path: Path
) -> None:
    folder, played, notes = trained(source, tmp_path / "run", agent__failure_reward=-2.5)
    lost = [r for r in played if r.last.failure is not None]
    assert {r.mode.value for r in lost} == {"train", "val", "test"}
    assert {r.reward.value for r in lost if r.reward is not None} == {-2.5}
    warnings = json.loads(folder.result.read_text())["warnings"]
    assert not [n for n in [*notes, *warnings] if "failure_reward" in n]
