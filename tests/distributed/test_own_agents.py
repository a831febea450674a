"""An agent of a user's own on several ranks: the first one plays it, all of them train."""

from __future__ import annotations

from pathlib import Path

import pytest

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


def test_the_first_rank_alone_says_what_is_wrong_and_leaves_nothing(tmp_path: Path) -> None:
    with started(2, tmp_path / "two", own_agents.train_wrongly, tmp_path) as ranks:
        assert ranks.end() == [1, 0]
    assert "nobody" in ranks.said(0)
    assert ranks.said(1) == ""
    assert list((tmp_path / "runs").iterdir()) == []
