"""Phase 2 as a whole: it learns, it resumes bit for bit, and it leaves what it says."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from routing_world import SMALL, plain_utility, table, topical_outcomes
from tests.marks import long

from tutelage.errors import ConfigError, DataError, RunError
from tutelage.orchestration.data.outcomes import read_tables
from tutelage.orchestration.evaluation.rewards import RewardWeights
from tutelage.orchestration.evaluation.tables import NO_INTERVAL, routing_tables
from tutelage.orchestration.planner.settings import read_settings
from tutelage.orchestration.routing import policy
from tutelage.orchestration.routing.phase2 import (
    BEST,
    LAST,
    Phase2Data,
    Phase2Result,
    paired_difference,
    read_checkpoint,
    train_phase2,
)
from tutelage.orchestration.routing.policy import (
    LOOKAHEAD,
    POLICY,
    ModelSelector,
    policy_chooser,
)
from tutelage.orchestration.routing.router import load_router
from tutelage.orchestration.routing.settings import NORMALIZED, Phase2Settings
from tutelage.orchestration.routing.simulator import (
    QueryTable,
    Scenario,
    WorkflowBatch,
    run_chooser,
)
from tutelage.seeds import SeedTree
from tutelage.statistics.intervals import has_interval

KEYS = ("train_loss", "val_loss", "success_rate", "avg_cost", "avg_latency", "workflow_validity")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Phase2Result, list[dict[str, Any]]]:
    lines: list[dict[str, Any]] = []
    folder = tmp_path_factory.mktemp("phase2")
    result = train_phase2(
        folder, table=table(), settings=SMALL, log=lambda line: lines.append(dict(line))
    )
    return result, lines


@pytest.mark.full
def test_metrics_have_the_published_names(
    trained: tuple[Phase2Result, list[dict[str, Any]]],
) -> None:
    result, lines = trained
    assert [line["tick"] for line in lines] == list(range(7))
    assert set(KEYS) <= {key for line in lines for key in line}
    assert all(set(KEYS) - {"val_loss"} <= set(line) for line in lines[1:])
    assert lines[1]["workflow_validity"] == 1.0
    assert {line["train_workflows"] for line in lines[1:]} <= {
        SMALL.workflows_of(number) for number in range(SMALL.updates)
    }
    assert {line.get("val_workflows") for line in lines if "val_success" in line} == {
        SMALL.val_workflows
    }
    assert lines == result.history


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


@pytest.mark.full
def test_what_is_shipped_knows_all_rows_and_none_of_the_held_out_ones(tmp_path: Path) -> None:
    made = table()
    held, rest = made.take(range(60)), made.take(range(60, len(made)))
    result = train_phase2(tmp_path, table=rest, test_outcomes=held, settings=SMALL)
    known = load_router(result.checkpoint).predictor
    assert len(known.types) == len(rest)
    assert len(result.world.train.table) == round(0.8 * len(rest))
    own = train_phase2(tmp_path / "own", table=rest, settings=SMALL, evaluate=False)
    assert len(load_router(own.checkpoint).predictor.types) == len(rest)


def test_held_out_outcomes_are_of_the_workers_that_were_learned(tmp_path: Path) -> None:
    rows = [{"id": f"q{i}", "instruction": f"ask {i}", "scores": {"a": 1.0, "b": 0.0}}
            for i in range(40)]  # fmt: skip
    prices = {name: {"input_price": 1, "output_price": 1} for name in "abc"}
    files = {"table": rows, "less": [rows[0] | {"scores": {"a": 1.0}}], "models": prices}
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    files = (tmp_path / "table.json", tmp_path / "models.json")
    with pytest.raises(DataError, match="unknown worker 'b'"):
        read_tables(*files, tmp_path / "less.json", SeedTree(0))


def test_queries_that_stand_in_both_files_are_named(tmp_path: Path) -> None:
    made = table()
    rest = made.take(range(60, len(made)))
    leaky = made.take([3, 70, 4, 71])
    settings = Phase2Settings(val_workflows=64)
    with pytest.warns(UserWarning, match="2 of 4 test queries.*sim-70, sim-71"):
        result = train_phase2(
            tmp_path, table=rest, test_outcomes=leaky, settings=settings, evaluate=False
        )
    assert result.world.leaks == ["sim-70", "sim-71"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train_phase2(tmp_path, table=rest, settings=settings, evaluate=False)


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


@pytest.mark.parametrize("groups", [1, 2, 9])
def test_few_groups_of_queries_have_no_interval(groups: int) -> None:
    group_B = np.arange(1000) % groups
    found = paired_difference(np.zeros(1000), group_B.astype(np.float64), group_B)
    assert not has_interval(found.low, found.high)
    same = paired_difference(np.zeros(1000), np.full(1000, 0.1), np.arange(1000))
    assert not has_interval(same.low, same.high)


def test_what_has_no_interval_has_no_verdict(tmp_path: Path) -> None:
    tiny = Phase2Settings(val_workflows=20, test_workflows=18, algorithm="lookahead")
    few = table().take(list(range(40)))
    evaluation = train_phase2(tmp_path, table=few, settings=tiny).evaluation
    assert evaluation is not None
    phase2 = {"evaluation": evaluation.to_json()}
    for shown in routing_tables(phase2["evaluation"]):
        assert NO_INTERVAL in shown.lead
        assert not any("[" in cell for row in shown.rows for cell in row.cells)


def test_workflows_of_two_groups_share_no_query() -> None:
    board = Phase2Data.of(table(), Scenario(), SMALL, SeedTree(0)).train
    flows = WorkflowBatch.draw(board, 200, SeedTree(1), groups=5)
    assert set(flows.group_B.tolist()) == set(range(5))
    used = [set(flows.query_BN[flows.group_B == g].ravel().tolist()) - {-1} for g in range(5)]
    assert sum(map(len, used)) == len(set().union(*used))


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


def test_a_resume_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="cannot read the checkpoint"):
        train_phase2(tmp_path / "new", table=table(), settings=SMALL, resume=True)


@pytest.mark.full
def test_the_checkpoint_of_phase_1_travels_in_that_of_phase_2(tmp_path: Path) -> None:
    first = {"epoch": 3, "model_state_dict": {"w": torch.ones(2)}, "optimizer_state_dict": {},
             "val_loss": 0.5, "task_types": ["a", "b"]}  # fmt: skip
    torch.save(first, tmp_path / "phase1_best.pth")
    few = SMALL.model_copy(update={"num_episodes": 2})
    result = train_phase2(
        tmp_path / "one", table=table(), settings=few, checkpoint=tmp_path / "phase1_best.pth",
        evaluate=False,
    )  # fmt: skip
    kept = read_checkpoint(result.checkpoint)["phase1"]
    assert kept["task_types"] == ["a", "b"]
    assert torch.equal(kept["model_state_dict"]["w"], torch.ones(2))
    again = train_phase2(
        tmp_path / "two", table=table(), settings=few, checkpoint=result.checkpoint, evaluate=False
    )
    assert read_checkpoint(again.checkpoint)["phase1"]["epoch"] == 3
    torch.save({"epoch": 1}, tmp_path / "half.pth")
    with pytest.raises(RunError, match="has no 'model_state_dict'"):
        train_phase2(tmp_path / "x", table=table(), settings=few, checkpoint=tmp_path / "half.pth")
    with pytest.raises(RunError, match="has no router"):
        load_router(tmp_path / "phase1_best.pth")


@pytest.mark.full
def test_ppo_learns_what_a_greedy_router_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the plain utility of single nodes, which is what greedy routers go by."""
    monkeypatch.setattr(policy, "look_ahead", plain_utility)
    made = topical_outcomes(960, SeedTree(0).child("phase2"))
    scenario = Scenario(nodes=(4, 6), deadlines=0.0)
    settings = Phase2Settings(
        num_episodes=96, workflows_per_episode=64, episodes_per_update=8, learning_rate=1e-4,
        validate_every=4, val_workflows=600,
    )  # fmt: skip
    result = train_phase2(
        tmp_path, table=made, settings=settings, scenario=scenario, evaluate=False
    )
    world = result.world
    query_table = QueryTable.of(world.test, world.train.predictor, world.train.scenario)
    flows = WorkflowBatch.draw(query_table, 1500, SeedTree(3))
    greedy = run_chooser(
        query_table,
        flows,
        world.terms,
        lambda _, rows, at: plain_utility(at, world.terms).argmax(axis=1),
    ).reward_B
    learned = run_chooser(
        query_table, flows, world.terms, policy_chooser(result.model, world.terms)
    ).reward_B
    before = run_chooser(
        query_table, flows, world.terms, policy_chooser(ModelSelector(), world.terms)
    ).reward_B
    assert before == pytest.approx(greedy)  # training starts as the greedy router
    gap = learned - greedy
    assert gap.mean() > 4 * gap.std() / len(gap) ** 0.5


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
        ({"learning_rat": 1}, "Did you mean 'training.phase2_rl.learning_rate'"),
        ({"learning_rate": "fast"}, "learning_rate='fast'.*give a finite number"),
        ({"num_episodes": 1.5}, "num_episodes=1.5.*whole number"),
        ({"num_episodes": 0}, "num_episodes=0.*equal to 1"),
        ({"algorithm": "A2C"}, "algorithm='A2C'.*choose from 'lookahead' or 'PPO'"),
        ({"epsilon": 2}, "epsilon=2.*equal to 1"),
        ({"epsilon": -1}, "epsilon=-1.*equal to 0"),
        ({"gamma": True}, "gamma=True.*not true or false"),
    ):
        with pytest.raises(ConfigError, match=told):
            read(bad)


def test_a_reward_that_wants_something_else_warns(tmp_path: Path) -> None:
    few = SMALL.model_copy(update={"num_episodes": 1, "normalize": False})
    with pytest.warns(UserWarning, match=r"doing nothing \(0\); set normalize: true"):
        train_phase2(tmp_path, table=table(), settings=few, evaluate=False)
