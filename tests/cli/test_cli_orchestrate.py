"""`tutelage orchestrate run|collect`: what they print, store, refuse, and continue."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.orchestration.executing import stored_events
from typer.testing import CliRunner

from tutelage.cli import build_app
from tutelage.engine.script import ScriptedReply
from tutelage.gateway import Gateway, ScriptedClient
from tutelage.store import open_store

PLAN = {
    "instruction": "Say it",
    "nodes": [
        {"tool": "write_article"},
        {"tool": "read_aloud", "arguments": {"text": "<node-0>"}},
    ],
}
FAST = {
    "price_in": 1.0,
    "price_out": 1.0,
    "latency": 0.0,
    "skills": {"*": 1.0},
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a plan and one worker that is always right, at once."""
    monkeypatch.chdir(tmp_path)
    for name in ("OPENAI_API_KEY", "OTEL_EXPORTER_OTLP_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "plan.json").write_text(json.dumps(PLAN))
    (tmp_path / "workers.json").write_text(json.dumps([{"name": "sure", **FAST}]))
    return tmp_path


def call(*args: str) -> Any:
    return CliRunner().invoke(build_app(), ["orchestrate", *args], prog_name="tutelage")


def run(*args: str) -> Any:
    return call("run", "--plan", "plan.json", "--workers", "workers.json", *args)


def test_a_run_prints_stores_and_can_be_shown(here: Path) -> None:
    done = run("--budget", "0.05", "--deadline", "20", "--output", "runs/one", "--seed", "1")
    assert done.exit_code == 0, done.output
    assert "SIMULATED: no model is asked" in done.stderr
    assert "execution  succeeded (a mock: no model was asked)" in done.stdout
    assert "write_article -> read_aloud" in done.stdout
    shown = CliRunner().invoke(build_app(), ["show", "runs/one"])
    assert shown.exit_code == 0, shown.output
    for part in ("invoke_workflow Say it", "plan", "execute_tool read_aloud", "chat sure"):
        assert part in shown.stdout
    with open_store(here / "runs/one/store.db", create=False) as store:
        (rollout,) = store.rollouts("one")
        assert store.run("one").status.value == "succeeded"
        assert rollout.last.answer == "[simulated read_aloud #1: done]"
        assert [call.agent for call in rollout.last.calls] == ["write_article #0", "read_aloud #1"]
    listed = CliRunner().invoke(build_app(), ["runs"])
    assert "succeeded" in listed.stdout


def test_without_a_planner_the_shipped_one_plans_and_is_said(here: Path) -> None:
    done = call("run", "Summarise the article and translate it to French", "--json", "--seed", "3")
    assert "of the EMBEDDED planner: it learned from synthetic workflows" in done.stderr
    row = json.loads(done.stdout)
    assert row["plan"]["instruction"] == "Summarise the article and translate it to French"
    assert row["mock"] is True
    assert row["total_cost"] == pytest.approx(sum(step["cost"] for step in row["steps"]))
    assert done.exit_code == (0 if row["success"] else 1)
    again = call("plan", "Summarise the article and translate it to French")
    assert again.exit_code == 0, again.output
    assert all(node["tool"] in again.stdout for node in row["plan"]["nodes"])


def test_a_plan_is_drawn_with_types_workers_cost_and_latency(here: Path) -> None:
    for name in ("p.txt", "p.json"):
        done = call("plan", "Summarise the report", "--explain", "--out", name)
        assert done.exit_code == 0, done.output
        assert "USD expected" in done.stdout
        assert "summarize" in (here / name).read_text()
    assert call("run", "--plan", "p.json").exit_code in (0, 1), "it can be run"
    mine = (here / "mine.txt", "what a person wrote")
    mine[0].write_text(mine[1])
    refused = call("plan", "Summarise the report", "--out", "mine.txt")
    assert refused.exit_code == 2
    assert "'mine.txt' already exists with other content" in refused.stderr
    assert "use another --out" in refused.stderr
    assert mine[0].read_text() == mine[1]
    again = call("plan", "Summarise the report", "--explain", "--out", "p.txt")
    assert again.exit_code == 0, "the same again is no loss"
    refused = call("plan", "x", "--out", "p.png")
    assert "must end in .json or .txt" in refused.stderr


def test_a_failed_execution_exits_with_1(here: Path) -> None:
    hopeless = [{"name": "never", **FAST, "skills": {"*": 0.0}}]
    (here / "workers.json").write_text(json.dumps(hopeless))
    done = run()
    assert done.exit_code == 1
    assert "failed: no worker is left: wrong" in done.stdout


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--budget", "0"], "cheapest first step"),
        (["--budget", "nan"], "--budget='nan': expected a number"),
        (["--pool", "cloud"], "--pool='cloud': expected 'simulated' or"),
        (["--pool", "openai"], "OPENAI_API_KEY is not set"),
        (["--router", "magic"], "unknown router 'magic'"),
        (["--router", "cascade:ghost"], "unknown worker 'ghost' in --router"),
        (["--reward", "gold"], "--reward='gold': expected 'seed' or"),
        (["--checkpoint", "x.pth"], "--plan and --checkpoint cannot be combined"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(here: Path, args: list[str], told: str) -> None:
    done = run(*args)
    assert done.exit_code == 2, done.output
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert not (here / "runs").exists(), "what is refused leaves no run behind"


def test_real_workers_behind_our_gateway_with_verifiers(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = [
        ScriptedReply("hello world", match="Your part: write_article"),
        ScriptedReply('{"audio": "la"}', match="- text: hello world"),
    ]
    verifiers = {
        "default": {"kind": "present"},
        "read_aloud": {"kind": "schema", "schema": {"required": ["audio"]}},
    }
    (here / "verifiers.json").write_text(json.dumps(verifiers))
    with Gateway() as gateway:
        attempt_session = gateway.open("flow", "att", ScriptedClient(script), model="m")
        monkeypatch.setenv("MY_KEY", attempt_session.api_key)
        worker = {"name": "real", **FAST, "endpoint": attempt_session.base_url, "key_env": "MY_KEY"}
        (here / "workers.json").write_text(json.dumps([worker]))
        done = run("--pool", "openai", "--verifiers", "verifiers.json")
    assert done.exit_code == 0, done.output
    assert "real, over HTTP" in done.stderr
    assert "succeeded, unchecked" in done.stdout
    assert '{"audio": "la"}' in done.stdout
    assert "a mock" not in done.stdout


@pytest.mark.system
def test_a_run_killed_half_way_goes_on_by_resume(here: Path) -> None:
    """Three nodes of which each takes a second; killed after the first has ended."""
    chain = [{"tool": "write_article", "after": [i - 1] if i else []} for i in range(3)]
    (here / "plan.json").write_text(json.dumps({"instruction": "x", "nodes": chain}))
    slow = [{"name": "slow", **FAST, "latency": 1.0}]
    (here / "workers.json").write_text(json.dumps(slow))
    tutelage = [sys.executable, "-c", "from tutelage.cli import main; main()"]
    options = ["--plan", "plan.json", "--workers", "workers.json", "--output", "runs/one"]
    command = [*tutelage, "orchestrate", "run", *options, "--seed", "5"]
    store = here / "runs" / "one" / "store.db"
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while time.monotonic() < until and process.poll() is None:
        if any(event["event"] == "node" for event in stored_events(store)):
            break
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    stopped = CliRunner().invoke(build_app(), ["show", "runs/one"])
    assert "It was stopped. Continue with: tutelage resume" in stopped.stdout
    done = CliRunner().invoke(build_app(), ["resume", "runs/one"])
    assert done.exit_code == 0, done.output
    assert re.search(r"resumed +(1 node|[23] nodes) done before", done.stdout)
    asked = [e["node"] for e in stored_events(store) if e["event"] == "answer"]
    assert asked.count(0) == 1


# ------------------------------------------------------------ collect


def show(*args: str) -> str:
    done = CliRunner().invoke(build_app(), ["show", *args])
    assert done.exit_code == 0, done.output
    return done.stdout


def stored(run: str) -> list[Any]:
    with open_store(Path(run) / "store.db", create=False) as store:
        assert store.run(Path(run).name).status.value == "succeeded"
        assert store.metrics(Path(run).name)
        return list(store.rollouts(Path(run).name))


def test_each_execution_of_a_collection_is_a_rollout(here: Path) -> None:
    told = json.loads(call("collect", "--num-executions", "12", "--seed", "2", "--json").stdout)
    found = stored(told["run"])
    rows = [json.loads(x) for x in (here / told["log"]).read_text().splitlines()]
    assert len(found) == len(rows) == 12
    by_task = {rollout.task.id: rollout for rollout in found}
    for row in rows:
        rollout = by_task[row["id"].rpartition("_")[0]]
        assert rollout.label == "collect"
        assert (rollout.last.failure is None) == row["success"]
        answered = [node for node in row["nodes"] if node["worker"] is not None]
        assert len(rollout.last.calls) >= len(answered) > 0
        assert rollout.reward is not None
        assert rollout.task.fields["instruction"] == row["instruction"]
    assert "12 rollouts match" in show(told["run"], "--rollouts", "2")
    shown = show(told["run"])
    assert "12 rollouts" in shown
    assert "mean_latency" in shown
    one = show(found[0].id, "--run", told["run"])
    assert "invoke_workflow" in one
    assert "execute_tool" in one
    again = CliRunner().invoke(build_app(), ["resume", told["run"]])
    assert again.exit_code == 2
    assert "has finished" in again.stderr


def test_a_collection_that_was_stopped_keeps_what_ended(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tutelage.orchestration.execution.stored import ExecutionLogger

    def stop(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ExecutionLogger, "log_execution", stop)
    done = call("collect", "--num-executions", "3")
    assert done.exit_code == 130, done.output
    (run,) = (here / "runs").iterdir()
    with open_store(run / "store.db", create=False) as store:
        assert store.run(run.name).status.value == "cancelled"
        assert store.count(run.name) == 3
    again = CliRunner().invoke(build_app(), ["resume", str(run)])
    assert again.exit_code == 2
    assert "tutelage orchestrate collect" in again.stderr


def test_collect_takes_the_documents_flags_and_can_be_read(here: Path) -> None:
    done = call("collect", "--num_executions", "5", "--output_dir", "execution_logs/")
    assert done.exit_code == 0, done.output
    assert "SIMULATED" in done.stderr
    assert re.search(r"succeeded +\d of 5\n", done.stdout)
    assert "collect --logs execution_logs --prepare training_data.json" in done.stdout
