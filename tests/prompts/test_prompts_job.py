"""A whole prompt search at an endpoint: better prompt, record, budget, kill and resume."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.prompts.prompt_parts import (
    KEY,
    Watched,
    configured,
    files_with,
    searched,
    served,
    set_up,
)

from tutelage.errors import ConfigError, RunError, StoreError
from tutelage.prompts.evaluator import EVENTS
from tutelage.prompts.lineage import read_lineage
from tutelage.prompts.run import confirm
from tutelage.prompts.setup import build_setup
from tutelage.prompts.tasks import read_tasks, write_tasks
from tutelage.runs.folder import RunFolder
from tutelage.runs.progress import Progress
from tutelage.store import open_store
from tutelage.types import Mode, Task

RUN = """
import signal
from tutelage.cli import main
# A background job of a shell ignores Ctrl-C, and what it starts inherits that.
signal.signal(signal.SIGINT, signal.default_int_handler)
main()
"""


@pytest.fixture(scope="module")
def env() -> Iterator[dict[str, str]]:
    with served() as (found, _):
        yield found


@pytest.fixture(scope="module")
def finished(env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("run") / "apo"
    searched(set_up(env, algorithm="apo"), place)
    return place


def test_it_finds_a_better_prompt_and_says_so(finished: Path) -> None:
    told = json.loads((finished / "result.json").read_text())
    assert told["verdict"] == "improved"
    assert told["exit_code"] == 0
    assert told["success_after_sampled"] > told["success_before_sampled"] + 0.3
    assert told["test"]["reward"]["low"] > 0
    assert told["test"]["looks"] == 1
    best = (finished / "best_prompt.txt").read_text()
    assert best == told["components"]["prompt"] != told["seed_components"]["prompt"]


def test_every_rollout_is_in_the_store_with_its_calls_tools_and_reward(finished: Path) -> None:
    told = json.loads((finished / "result.json").read_text())
    with open_store(finished / "store.db") as store:
        rollouts = list(store.rollouts("apo"))
        run = store.run("apo")
    assert len(rollouts) == told["rollouts"]
    assert {r.mode for r in rollouts} == {*Mode}
    assert all(r.reward is not None and r.last.calls for r in rollouts)
    after = [r for r in rollouts if r.label == "best"]
    assert any(r.last.tool_results for r in after), "the tools' results are not recorded"
    assert run.status.value == "succeeded"
    assert {r.label for r in rollouts if r.mode is Mode.TEST} == {"seed", "best"}


def test_the_lineage_holds_every_candidate_with_its_reason_and_no_time(finished: Path) -> None:
    entries = read_lineage(RunFolder(finished))
    assert entries[0]["operation"] == "seed"
    assert sum(e["decision"] == "winner" for e in entries) == 1
    assert all(e["reason"] and e["decision"] != "proposed" for e in entries)
    texts = [e for e in entries[1:] if e["decision"] not in ("rejected", "experiment")]
    assert all(e["diff"] and e["critique"] for e in texts)
    text = (finished / "lineage.jsonl").read_text()
    assert time.strftime("%Y") not in text


def test_the_key_is_written_nowhere(finished: Path) -> None:
    assert files_with(finished, KEY) == []


@pytest.mark.full
@pytest.mark.parametrize(
    "algorithm", ["reflect", *(pytest.param(n, marks=pytest.mark.full) for n in ("screen", "gepa"))]
)
def test_the_other_algorithms_run_at_an_endpoint(
    algorithm: str, env: dict[str, str], tmp_path: Path
) -> None:
    watched = Watched()
    told = searched(set_up(env, algorithm=algorithm, rollouts=150), tmp_path / "run", watched)
    assert told["spent"]["rollouts"] <= 150
    assert told["algorithm"] == algorithm
    assert watched.rounds
    assert (told["optimiser_calls"] > 0) == (algorithm != "screen")


@pytest.mark.full
def test_a_budget_in_dollars_holds_and_the_best_is_kept(
    env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prices = tmp_path / "prices.toml"
    lines = ["[models]"]
    lines += [f'"{m}" = {{ input = 1.0, output = 2.0 }}' for m in {env["OPENAI_MODEL"]}]
    lines += ['"simulator-optimiser" = { input = 1.0, output = 2.0 }']
    prices.write_text("\n".join(lines))
    keys: dict[str, Any] = {
        "algorithm": "apo",
        "prices": str(prices),
        "max_prompt_tokens": 600,
        "max_tokens": 64,
        "optimiser_tokens": 300,
        "iterations": 50,
    }
    with pytest.raises(ConfigError, match="held-out test alone"):
        searched(set_up(env, **keys, budget_usd=0.05), tmp_path / "poor")
    told = searched(set_up(env, **keys, budget_usd=0.6), tmp_path / "run")
    assert 0 < told["dollars"] <= 0.6
    assert told["components"]["prompt"]


def test_without_a_price_a_budget_in_dollars_is_refused(env: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"prices\.toml"):
        set_up(env, algorithm="apo", budget_usd=1.0)


@pytest.mark.parametrize(
    "how", [pytest.param(how, marks=pytest.mark.full) for how in (signal.SIGKILL, signal.SIGTERM)]
)
def test_killed_and_resumed_is_the_same_byte_for_byte(
    how: signal.Signals, finished: Path, tmp_path: Path
) -> None:
    """A signal to the public command, then `tutelage resume`."""
    with served(delay=0.04) as (env, server):
        place = tmp_path / "killed"
        words = "train math --algorithm apo --train-size 6 --val-size 8 --test-size 50"
        words += f" --iterations 2 --runners 2 --output {place}"
        run_env = {**os.environ, **env, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [sys.executable, "-c", RUN, *words.split()],
            env=run_env,
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            _wait_for_steps(place, 12)
            process.send_signal(how)
        finally:
            said = process.communicate(timeout=60)[1]
        assert not (place / "result.json").is_file(), "it was killed too late"
        if how != signal.SIGKILL:
            assert process.returncode == 143
            assert f"Continue with: tutelage resume {place.name}" in said
            assert "Traceback" not in said
        before = _steps(place)
        sent = server.counts[KEY]["rollouts"] if KEY in server.counts else None
        done = subprocess.run(
            [sys.executable, "-c", RUN, "resume", str(place)],
            env=run_env,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert before <= _steps(place)
        assert sent is None or server.counts[KEY]["rollouts"] > sent
    for name in ("lineage.jsonl", "best_prompt.txt"):
        assert (place / name).read_bytes() == (finished / name).read_bytes()
    assert _stored(place) == _stored(finished)
    one, two = (json.loads((p / "result.json").read_text()) for p in (place, finished))
    assert one["test"] == two["test"]
    assert one["spent"] == two["spent"]


def _stored(place: Path) -> dict[str, tuple[float | None, int]]:
    """Every rollout of the store with its reward and how many attempts came too late."""
    with open_store(place / "store.db") as store:
        return {
            r.id.removesuffix(f"_{place.name}"): (
                r.reward and r.reward.value,
                len(store.late_results(place.name, r.id)),
            )
            for r in store.rollouts(place.name)
        }


def _steps(place: Path) -> set[str]:
    with open_store(place / "store.db", create=False) as store:
        events = store.events(place.name, EVENTS)
    return {event["step"] for event in events if "step" in event}


def _wait_for_steps(place: Path, least: int) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        with suppress(StoreError):
            if len(_steps(place)) >= least:
                return
        time.sleep(0.05)
    raise AssertionError("the search did not get going")


@pytest.mark.full
def test_changed_tasks_are_refused_without_the_flag(env: dict[str, str], tmp_path: Path) -> None:
    place = tmp_path / "run"
    keys = {"algorithm": "screen", "rollouts": 80, "iterations": 1}
    searched(set_up(env, **keys), place)
    (place / "result.json").unlink()
    changed = set_up(env, **keys, reward="exact_number")
    with pytest.raises(RunError, match="allow-changes"):
        searched(changed, place)
    searched(set_up(env, **keys, reward="exact_number", allow_changes=True), place)


@pytest.mark.full  # five seconds
def test_a_look_at_fresh_tasks_is_counted(env: dict[str, str], tmp_path: Path) -> None:
    place = tmp_path / "run"
    searched(set_up(env, algorithm="apo"), place)
    folder = RunFolder(place)
    setup = build_setup(configured(algorithm="apo"), env)
    assert setup.splits.test
    before = dict(os.environ)
    os.environ.update(env)
    try:
        told = confirm(folder, Progress())
    finally:
        os.environ.clear()
        os.environ.update(before)
    assert told["looks"] == 2
    assert told["tasks"] == 50
    kept = json.loads(folder.result.read_text())["confirmations"]
    assert kept == [told]
    with open_store(place / "store.db") as store:
        tested = {r.task.id for r in store.rollouts("run", mode=Mode.TEST)}
    assert len(tested) == 100, "the fresh tasks are the old ones"


@pytest.mark.full  # the one above has it at an endpoint
def test_the_native_engine_gives_the_same_with_one_runner_and_eight(
    tmp_path: Path, fresh: Any
) -> None:
    """A model of one's own plays in process, without an endpoint; its rewards do not matter."""
    fresh("qwen2").save(tmp_path / "policy")
    keys: dict[str, Any] = {
        "algorithm": "screen",
        "model": str(tmp_path / "policy"),
        "train_size": 4,
        "val_size": 4,
        "test_size": 10,
        "max_tokens": 12,
        "max_turns": 2,
        "iterations": 2,
        "rollouts": 40,
        "reward": "exact_number",
    }
    texts = [
        searched(set_up({}, **keys, runners=n), tmp_path / str(n)) and _lineage(tmp_path / str(n))
        for n in (1, 8)
    ]
    assert texts[0] == texts[1]
    with open_store(tmp_path / "8" / "store.db") as store:
        played = list(store.rollouts("8"))
    assert all(c.sampled.token_ids for r in played for c in r.last.calls)


def _lineage(place: Path) -> bytes:
    return (place / "lineage.jsonl").read_bytes()


def test_tasks_come_back_as_they_were(env: dict[str, str], tmp_path: Path) -> None:
    """The order of fields too: the store knows a task by its text, and a rollout that is played
    again after a kill must be of the same task."""
    splits = set_up(env, algorithm="screen").splits
    pasted = Task("pasted", {"question": "First line\u2028second line\x85: 5 + 1?"})
    splits = replace(splits, train=[*splits.train, pasted])
    folder = RunFolder(tmp_path)
    write_tasks(folder, splits)
    again = read_tasks(folder)
    assert again is not None
    assert repr(again) == repr(splits)
