"""Phase 2 as a whole: it learns, it resumes bit for bit, and it leaves what it says."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from routing_world import SMALL, table
from tests.marks import long

from tutelage.errors import ConfigError
from tutelage.orchestration.evaluation.rewards import RewardWeights
from tutelage.orchestration.evaluation.tables import routing_tables
from tutelage.orchestration.execution.config import ExecutionConfig
from tutelage.orchestration.execution.pools.simulated import SimulatedPool
from tutelage.orchestration.execution.worker_files import classic, read_workers
from tutelage.orchestration.execution.workers import Worker
from tutelage.orchestration.planner.settings import read_settings
from tutelage.orchestration.routing.phase2 import (
    BEST,
    LAST,
    Phase2Result,
    paired_difference,
    read_checkpoint,
    train_phase2,
)
from tutelage.orchestration.routing.policy import LOOKAHEAD, POLICY
from tutelage.orchestration.routing.router import load_router
from tutelage.orchestration.routing.settings import NORMALIZED, Phase2Settings


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Phase2Result, list[dict[str, Any]]]:
    lines: list[dict[str, Any]] = []
    folder = tmp_path_factory.mktemp("phase2")
    result = train_phase2(
        folder, table=table(), settings=SMALL, log=lambda line: lines.append(dict(line))
    )
    return result, lines


def test_a_checkpoint_has_the_published_fields_and_reads_without_code(
    trained: tuple[Phase2Result, list[dict[str, Any]]],
) -> None:
    result, lines = trained
    state = torch.load(result.checkpoint, weights_only=True)
    assert {"epoch", "model_state_dict", "optimizer_state_dict", "val_loss"} <= set(state)
    assert state["epoch"] == result.best_update
    best = max(line["val_reward"] for line in lines if "val_reward" in line)
    assert -state["val_loss"] == best == result.val_reward
    router = load_router(result.checkpoint)
    assert router.predictor.workers == table().workers
    assert router.terms == result.world.terms


def test_the_evaluation_has_every_router(
    trained: tuple[Phase2Result, list[dict[str, Any]]],
) -> None:
    result, _ = trained
    assert result.evaluation is not None
    found = json.loads(json.dumps(result.evaluation.to_json(), allow_nan=False))
    names = [row["name"] for row in found["rows"]]
    plain = ("cheapest", "most accurate")
    assert set(names) == {*plain, LOOKAHEAD, POLICY}
    assert set(found["differences"]) == set(names) - {POLICY}
    for row in found["rows"]:
        assert row["workflows"] == SMALL.test_workflows
        assert row["reward_low"] <= row["reward"] <= row["reward_high"]
    (routing,) = routing_tables(found)
    assert f"{SMALL.test_workflows} test workflows, run once by each router" in routing.lead
    assert [row.cells[0] for row in routing.rows] == names


def test_the_workers_next_to_a_router_are_those_it_was_trained_on(
    trained: tuple[Phase2Result, list[dict[str, Any]]],
) -> None:
    checkpoint, made = trained[0].checkpoint, table()

    def router_of(workers: Sequence[Worker]) -> Any:
        config = ExecutionConfig(router=str(checkpoint))
        return config.make_system(SimulatedPool(workers), None, []).executor.router

    own = read_workers(checkpoint.with_name("workers.json"))
    router_of(own).check(made.workers)
    assert own[0].skills["*"] == pytest.approx(made.right_QW[:, 0].mean(), abs=1e-3)
    assert set(own[0].skills) == {"*", *made.types}
    with pytest.raises(ConfigError, match=r"not trained on gpt-4.*only on sim-120b.*workers\.json"):
        router_of(classic())


def test_no_key_of_ppo_means_the_lookahead(tmp_path: Path) -> None:
    sizes = {"val_workflows": 64, "test_workflows": 96}
    settings = Phase2Settings.model_validate(sizes)
    assert (settings.algorithm, settings.updates) == ("lookahead", 0)
    result = train_phase2(tmp_path, table=table(), settings=settings)
    router = load_router(result.checkpoint)
    assert (router.name, router.model) == ("lookahead", None)
    evaluation = result.evaluation
    assert evaluation is not None
    assert evaluation.router == LOOKAHEAD
    assert POLICY not in evaluation.outcomes
    assert Phase2Settings(num_episodes=3).algorithm == "PPO"
    with pytest.raises(ConfigError, match="gamma is a PPO key"):
        read({"algorithm": "lookahead", "gamma": 0.9})


def test_intervals_count_the_queries_that_workflows_share() -> None:
    """Workflows of one group are alike here: a thousand of them are as good as their groups."""
    group_B = np.arange(1000) % 10
    mine_B = group_B.astype(np.float64)
    found = paired_difference(np.zeros(1000), mine_B, group_B)
    assert found.mean == pytest.approx(4.5)
    assert found.high - found.low > 3
    alone = paired_difference(np.zeros(1000), mine_B, np.arange(1000))
    assert alone.high - alone.low < 0.5


class Killed(Exception):
    """Stands for a kill at a moment that the test chooses."""


@pytest.mark.parametrize("at", [3, *long(1, 5)])
def test_a_killed_run_goes_on_bit_for_bit(
    at: int, tmp_path: Path, trained: tuple[Phase2Result, list[dict[str, Any]]]
) -> None:
    def kill(line: Any) -> None:
        if line["step"] == at:
            raise Killed

    with pytest.raises(Killed):
        train_phase2(tmp_path, table=table(), settings=SMALL, log=kill)
    result = train_phase2(tmp_path, table=table(), settings=SMALL, resume=True, evaluate=False)
    whole, _ = trained
    assert result.history == whole.history
    assert (result.best_update, result.val_reward) == (whole.best_update, whole.val_reward)
    for name in (BEST, LAST):
        mine = read_checkpoint(tmp_path / name)
        theirs = read_checkpoint(whole.checkpoint.parent / name)
        for key, tensor in theirs["model_state_dict"].items():
            assert torch.equal(mine["model_state_dict"][key], tensor)
        for number, state in theirs["optimizer_state_dict"]["state"].items():
            for key, value in state.items():
                assert torch.equal(mine["optimizer_state_dict"]["state"][number][key], value)


def read(keys: Mapping[str, object]) -> Phase2Settings:
    """Settings from the keys under `training.phase2_rl`."""
    given = {f"training.phase2_rl.{key}": value for key, value in keys.items()}
    return read_settings(None, given).phase2_rl


def test_settings_take_numbers_written_as_text_and_refuse_the_rest() -> None:
    found = read(
        {"algorithm": "PPO", "learning_rate": "3e-5", "num_episodes": "1000",
         "max_steps_per_episode": 50, "gamma": 0.99, "epsilon": 0.2, "alpha": 10.0, "beta": 0.1,
         "gamma_latency": 0.01, "shaped_reward": 0.1}
    )  # fmt: skip
    assert found.learning_rate == 3e-5
    assert found.num_episodes == 1000
    assert found.weights == RewardWeights()
    assert Phase2Settings().weights == NORMALIZED
    assert Phase2Settings(normalize=False).weights == RewardWeights()
    assert found.reward == "seed", "the document's weights are for its formula"
    assert Phase2Settings(beta=1.0).reward == "seed"
    shares = Phase2Settings(beta=1.0, normalize=True)
    assert (shares.reward, shares.weights) == ("normalized", replace(NORMALIZED, beta=1.0))
    assert read({"normalize": "true", "beta": 0.1, "alpha": 10}).reward == "normalized"
    assert read({"normalize": "false"}).weights == RewardWeights()
    for bad, told in (
        ({"num_episodes": 1.5}, "num_episodes=1.5.*whole number"),
        ({"algorithm": "A2C"}, "algorithm='A2C'.*choose from 'lookahead' or 'PPO'"),
    ):
        with pytest.raises(ConfigError, match=told):
            read(bad)
