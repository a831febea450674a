"""Episodes with workers: their table, their budget, and a kill that repeats nothing."""

from __future__ import annotations

import json
import runpy
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from executing import ScriptedPool, failed, right, wrong

from tutelage.errors import ConfigError
from tutelage.orchestration import Node, Plan, Worker
from tutelage.orchestration.data.outcomes import read_outcomes
from tutelage.orchestration.data.workflows import Workflow
from tutelage.orchestration.execution.workers import Latency

EXAMPLE = Path(__file__).parents[2] / "examples" / "orchestration" / "collect_outcomes.py"
collect_episodes = runpy.run_path(str(EXAMPLE))["collect_episodes"]
WORKERS = [Worker(n, price_out=p, latency=Latency(1.0)) for n, p in (("good", 0.2), ("bad", 0.1))]


def behave(worker: Worker, work: Any) -> Any:
    if worker.name == "bad" and work.type == "hard":
        return wrong(cost=0.01)
    return right(cost=0.02)(worker, work)


def workflows(count: int) -> list[Workflow]:
    nodes = (Node("easy"), Node("hard", after=(0,), description="the hard part"))
    return [Workflow(Plan(f"Do {k}", nodes), name=f"w{k}") for k in range(count)]


def test_every_worker_is_seen_at_every_subtask(tmp_path: Path) -> None:
    pool = ScriptedPool(WORKERS, behave)
    found = collect_episodes(tmp_path, workflows(3), pool, budget=None, seed=0)
    assert (found["played"], found["planned"]) == (6, 6)
    table = read_outcomes(tmp_path / "outcomes.json", tmp_path / "models.json")
    assert len(table) == 6
    assert set(table.names) == {"good", "bad"}
    rows = {(i, w.name): s for i, row in zip(table.ids, table.scores_QW, strict=True)
            for w, s in zip(table.workers, row, strict=True)}  # fmt: skip
    assert rows["w0/0", "bad"] == rows["w0/1", "good"] == 1.0
    assert rows["w0/1", "bad"] == 0.0
    assert table.instructions[:2] == ("Do 0", "the hard part")
    assert found["cost"] == pytest.approx(sum(e for e in spent(tmp_path)))


def spent(folder: Path) -> list[float]:
    with closing(sqlite3.connect(folder / "episodes.db")) as conn:
        events = [json.loads(data) for (data,) in conn.execute("select data from events")]
    return [event["answer"]["cost"] for event in events if event["event"] == "answer"]


def test_a_kill_repeats_no_acknowledged_call(tmp_path: Path) -> None:
    whole = ScriptedPool(WORKERS, behave)
    collect_episodes(tmp_path / "whole", workflows(6), whole, budget=None, seed=0)

    class Dying(ScriptedPool):
        async def execute(self, worker: Worker, work: Any) -> Any:
            if len(self.asked) == 17:
                raise KeyboardInterrupt
            return await super().execute(worker, work)

    cut = Dying(WORKERS, behave)
    with pytest.raises(KeyboardInterrupt):
        collect_episodes(tmp_path / "cut", workflows(6), cut, budget=None, seed=0)
    before = len(spent(tmp_path / "cut"))
    assert 0 < before < len(whole.asked)
    again = ScriptedPool(WORKERS, behave)
    collect_episodes(tmp_path / "cut", workflows(6), again, budget=None, seed=0)
    assert len(spent(tmp_path / "cut")) == before + len(again.asked)
    one, two = (
        Counter((r["id"], n, s) for r in json.loads((tmp_path / name / "outcomes.json").read_text())
                for n, s in r["scores"].items())
        for name in ("whole", "cut")
    )  # fmt: skip
    assert one == two
    third = ScriptedPool(WORKERS, behave)
    collect_episodes(tmp_path / "cut", workflows(6), third, budget=None, seed=0)
    assert third.asked == []


def test_the_budget_ends_the_episodes(tmp_path: Path) -> None:
    pool = ScriptedPool(WORKERS, behave)
    found = collect_episodes(tmp_path, workflows(40), pool, budget=1.0, seed=0)
    assert found["played"] < found["planned"]
    assert 0.5 < found["cost"] <= 1.0
    assert found["cost"] == pytest.approx(sum(spent(tmp_path)))


def test_what_no_server_answered_is_no_outcome(tmp_path: Path) -> None:
    pool = ScriptedPool(WORKERS, lambda w, k: failed("unavailable"))
    with pytest.raises(ConfigError, match="no episode has a verified outcome"):
        collect_episodes(tmp_path, workflows(1), pool, budget=None, seed=0)
