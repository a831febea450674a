"""Same seed, same run: bit for bit, whatever the number of gradient threads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .command import Command
from .outcome import assert_equal, outcome

Arguments = Callable[..., list[str]]


def played(folder: Path, arguments: list[str], *, real: bool = False) -> dict[str, Any]:
    """The outcome of a run that goes through without a stop."""
    folder.mkdir()
    Command(folder, real=real)(*arguments).check()
    return outcome(folder / "run")


@pytest.fixture(scope="module")
def first(embedded: Arguments, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One embedded run."""
    return played(tmp_path_factory.mktemp("first") / "a", embedded({"trainer.threads": 1}))


@pytest.mark.full
def test_the_run_moves_the_weights_and_measures_all(first: dict[str, Any]) -> None:
    """Else the comparisons below would compare nothing."""
    measured = {"before", "after", "after_control"}
    phases = {line["phase"] for line in first["metrics"]}
    assert phases == {"cold_start", "rl", "control", *measured}
    steps = [line for line in first["metrics"] if line["phase"] == "rl"]
    assert len(steps) == 4
    assert all(line["grad_norm"] > 0 for line in steps)
    assert all(line["max_dlogp"] < 1e-4 for line in steps)
    assert any("val/reward_sampled" in line for line in steps)
    assert any(line["grad_norm"] > 0 for line in first["metrics"] if line["phase"] == "control")
    labels = {r["label"] for r in first["rollouts"].values()}
    assert {"before/sampled", "after/greedy", "after/no_tools", "control/sampled"} <= labels
    assert first["status"] == "succeeded"
    assert first["result"]["rollouts"] == len(first["rollouts"])
    assert first["result"]["tokens"] == sum(
        len(c["sampled"]["token_ids"])
        for r in first["rollouts"].values()
        for a in r["attempts"]
        for c in a["calls"]
    )


@pytest.mark.full
def test_two_runs_are_equal_whatever_the_threads(
    first: dict[str, Any], embedded: Arguments, tmp_path: Path
) -> None:
    """The second one also runs as the installed script."""
    second = played(tmp_path / "b", embedded({"trainer.threads": 2}), real=True)
    assert_equal(second, first)


@pytest.mark.full
def test_runs_with_tools_and_several_updates_are_equal(
    with_tools: Arguments, tmp_path: Path
) -> None:
    runs = [
        played(tmp_path / name, with_tools({"trainer.threads": threads}))
        for name, threads in (("a", 1), ("b", 2))
    ]
    assert_equal(*runs)
    results = [t for r in runs[0]["rollouts"].values() for t in r["attempts"][0]["tool_results"]]
    assert len(results) > 20
    assert {t["text"] for t in results} >= {"42"}
    steps = [line for line in runs[0]["metrics"] if line["phase"] == "rl"]
    assert all(line["grad_norm"] > 0 and line["max_dlogp"] < 1e-4 for line in steps)
