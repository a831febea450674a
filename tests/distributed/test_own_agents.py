"""An agent of a user's own on several ranks: the first one plays it, all of them train."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tutelage.testing import tiny_policy
from tutelage.weights import checkpoint

from . import jobs, own_agents
from .ranks import started, together


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """Where plays note the rank that they were on, as a variable of the ranks."""
    return {own_agents.PLAYED: str(tmp_path / "played")}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One process, in tree order."""
    place = tmp_path_factory.mktemp("alone")
    env = {own_agents.PLAYED: str(place / "played")}
    together(1, place, own_agents.train, place / "run", "tree", **env)
    return place / "run"


def assert_same(out: Path, reference: Path) -> None:
    """Weights and metrics, bit for bit."""
    assert jobs.metrics(out) == jobs.metrics(reference)
    assert jobs.digest(out) == jobs.digest(reference)


@pytest.mark.full
@pytest.mark.parametrize("order", ["tree", pytest.param("tree shards", marks=pytest.mark.full)])
def test_two_ranks_have_the_weights_of_one_process_and_the_first_one_plays(
    alone: Path, tmp_path: Path, env: dict[str, str], order: str
) -> None:
    ranks = together(2, tmp_path / "two", own_agents.train, tmp_path / "run", order, **env)
    assert_same(tmp_path / "run", alone)
    assert set((tmp_path / "played").read_text()) == {"0"}
    assert ranks.said(1) + ranks.shown(1) == ""
    assert {p.name for p in (tmp_path / "run").iterdir()} == {p.name for p in alone.iterdir()}


@pytest.mark.full
def test_two_ranks_repeat(tmp_path: Path, env: dict[str, str]) -> None:
    for name in ("a", "b"):
        together(2, tmp_path / f"of_{name}", own_agents.train, tmp_path / name, "plain", **env)
    assert_same(tmp_path / "a", tmp_path / "b")


@pytest.mark.full
@pytest.mark.parametrize(
    ("killed", "resumed"),
    [(1, 2), *(pytest.param(*pair, marks=pytest.mark.full) for pair in ((0, 1), (1, 4)))],
)
def test_a_rank_is_killed_and_the_same_call_goes_on(
    alone: Path, tmp_path: Path, env: dict[str, str], killed: int, resumed: int
) -> None:
    out = tmp_path / "run"
    with started(2, tmp_path / "two", own_agents.train, out, "tree", **env) as ranks:
        ranks.until(lambda: (out / "checkpoints" / "step_000002" / checkpoint.SUMS).is_file())
        ranks.kill(killed)
        codes = ranks.end()
    assert codes[killed] == -9
    assert codes[1 - killed] == killed, "the first one says why"
    assert ("another rank has ended" in ranks.said(0)) is (killed == 1)
    together(resumed, tmp_path / "again", own_agents.train, out, "tree", **env)
    assert_same(out, alone)


@pytest.mark.full  # tests/distributed/test_ranks.py stops ranks too
def test_a_stop_is_asked_of_the_first_rank_and_ends_all(
    alone: Path, tmp_path: Path, env: dict[str, str]
) -> None:
    out = tmp_path / "run"
    with started(2, tmp_path / "two", own_agents.train, out, "tree", **env) as ranks:
        ranks.until(lambda: (out / "checkpoints" / "step_000001" / checkpoint.SUMS).is_file())
        for process in reversed(ranks.processes):
            os.kill(process.pid, signal.SIGINT)
        codes = ranks.end()
    assert codes == [1, 0]
    assert ranks.said(1) == ""
    assert json.loads((out / "result.json").read_text())["status"] == "stopped"
    together(2, tmp_path / "again", own_agents.train, out, "tree", **env)
    assert_same(out, alone)


@pytest.mark.full
def test_ranks_with_other_tasks_are_refused_by_the_first(tmp_path: Path) -> None:
    with started(2, tmp_path / "two", own_agents.train_on_other_tasks, tmp_path / "run") as ranks:
        assert ranks.end() == [1, 0]
    assert "rank 1 of 2: it differs from rank 0 in the training tasks" in ranks.said(0)
    assert ranks.said(1) == ""
    assert not (tmp_path / "run" / "config.json").exists()


def test_the_first_rank_alone_says_what_is_wrong_and_leaves_nothing(tmp_path: Path) -> None:
    with started(2, tmp_path / "two", own_agents.train_wrongly, tmp_path) as ranks:
        assert ranks.end() == [1, 0]
    assert "nobody" in ranks.said(0)
    assert ranks.said(1) == ""
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.full
def test_a_command_trains_the_agent_of_a_file_and_another_number_goes_on(
    alone: Path, tmp_path: Path, env: dict[str, str]
) -> None:
    tiny_policy(max_positions=256).save(tmp_path / "model")
    (tmp_path / "agent.py").write_text(own_agents.AGENT)
    for name, tasks in (("train", own_agents.TASKS[:8]), ("val", own_agents.TASKS[8:])):
        lines = "".join(json.dumps(task) + "\n" for task in tasks)
        (tmp_path / f"{name}.jsonl").write_text(lines)
    keys = [f"{key}={value}" for key, value in own_agents.KEYS.items() if key != "steps"]
    words = ["train", "agent.py", "--model", "model", "--train", "train.jsonl"]
    words += ["--val", "val.jsonl", "--runners", "1", "--steps", "3", *keys]
    for size in (1, 2):
        said = tmp_path / f"of_{size}"
        out = str(tmp_path / str(size))
        together(size, said, own_agents.command, tmp_path, "tree", *words, "--output", out, **env)
    assert_same(tmp_path / "2", tmp_path / "1")
    assert jobs.digest(tmp_path / "2") == jobs.digest(alone)
    place, again = tmp_path / "3", [*words, "--output", str(tmp_path / "3")]
    with started(2, tmp_path / "cut", own_agents.command, tmp_path, "tree", *again, **env) as ranks:
        ranks.until(lambda: (place / "checkpoints" / "step_000001" / checkpoint.SUMS).is_file())
        ranks.kill(1)
        ranks.end()
    together(
        1, tmp_path / "resumed", own_agents.command, tmp_path, "tree", "resume", str(place), **env
    )
    assert_same(place, tmp_path / "1")


def test_a_folder_that_is_no_run_is_told_once(tmp_path: Path) -> None:
    told = "no run 'nosuch'; 'runs' has no runs yet"
    together(2, tmp_path, own_agents.refused, tmp_path, told, "resume", "nosuch")
