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
from tests.loopback import listening
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


@pytest.mark.parametrize("name", ["data.json", "data.catalog.json"])
def test_a_training_set_is_written_over_no_file_of_another(here: Path, name: str) -> None:
    """Neither of its two files is written where one of them is something else."""
    assert call("collect", "--num-executions", "5", "--output-dir", "logs").exit_code == 0
    (here / name).write_text("what a person wrote")
    refused = call("collect", "--logs", "logs", "--prepare", "data.json")
    assert refused.exit_code == 2
    assert f"'{name}' already exists with other content" in refused.stderr
    assert "use another output file" in refused.stderr
    assert [p.read_text() for p in here.glob("data*.json")] == ["what a person wrote"]
    (here / name).write_text("")  # such as `mktemp` makes
    assert call("collect", "--logs", "logs", "--prepare", "data.json").exit_code == 0
    assert call("collect", "--logs", "logs", "--prepare", "data.json").exit_code == 0
    assert json.loads((here / "data.json").read_text())


def test_help_says_what_each_option_takes() -> None:
    helped = {verb: call(verb, "--help").stdout for verb in ("plan", "run", "collect")}
    assert "(False)" not in helped["plan"]
    assert re.search(r"--output DIR +Folder of the run", helped["run"])
    assert "--prepare FILE" in helped["collect"]


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
        (["--budget", "-1"], "the budget must be a finite number"),
        (["--budget", "nan"], "--budget='nan': expected a number"),
        (["--deadline", "soon"], "--deadline='soon': expected"),
        (["--pool", "cloud"], "--pool='cloud': expected 'simulated' or"),
        (["--pool", "openai"], "OPENAI_API_KEY is not set"),
        (["--router", "magic"], "unknown router 'magic'"),
        (["--router", "cascade:ghost"], "unknown worker 'ghost' in --router"),
        (["--on-failure", "shrug"], "--on-failure='shrug': expected"),
        (["--reward", "gold"], "--reward='gold': expected 'seed' or"),
        (["--verifiers", "missing.json"], "No such file"),
        (["--checkpoint", "x.pth"], "--plan and --checkpoint cannot be combined"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(here: Path, args: list[str], told: str) -> None:
    done = run(*args)
    assert done.exit_code == 2, done.output
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert not (here / "runs").exists(), "what is refused leaves no run behind"


def test_a_refused_budget_names_only_options_that_the_command_has(here: Path) -> None:
    for verb, *more in (("run", "--plan", "plan.json"), ("collect", "--num-executions", "2")):
        done = call(verb, *more, "--budget", "0")
        assert done.exit_code == 2, done.output
        named = set(re.findall(r"--[a-z-]+", done.stderr.partition("cheapest first step")[2]))
        assert named, done.stderr
        assert named <= set(re.findall(r"--[a-z-]+", call(verb, "--help").stdout)), verb


@pytest.mark.parametrize(
    ("plan", "told"),
    [
        ({"instruction": "x", "nodes": []}, "the plan has no nodes"),
        ({"instruction": "x", "nodes": [{"tool": "a", "after": [0]}]}, "plan.json': "),
        ({"instruction": "x", "nodes": [{"tool": "a", "after": [7]}]}, "plan.json': node 0"),
        ({"nodes": [{"tool": "a"}]}, "plan.json': this is no plan"),
    ],
)
def test_a_plan_that_is_none_is_refused_with_its_file(here: Path, plan: Any, told: str) -> None:
    (here / "plan.json").write_text(json.dumps(plan))
    done = run()
    assert done.exit_code == 2, done.output
    assert told in done.stderr


def test_workers_and_catalogs_in_yaml_with_numbers_as_text(here: Path) -> None:
    (here / "workers.yaml").write_text(
        "workers:\n  - {name: sure, price_in: '30', price_out: 3e-5, latency: '0.5'}\n"
    )
    (here / "catalog.yml").write_text("nodes:\n  - {id: write_article}\n  - {id: read_aloud}\n")
    done = call(
        "run", "--plan", "plan.json", "--workers", "workers.yaml", "--catalog", "catalog.yml",
        "--seed", "4",
    )  # fmt: skip
    assert done.exit_code in (0, 1), done.output
    assert "sure" in done.stdout
    (here / "workers.yaml").write_text("workers: [{name: sure, price_in: dear, price_out: 1}]")
    done = call("run", "--plan", "plan.json", "--workers", "workers.yaml")
    assert done.exit_code == 2
    assert "'latency'" in done.stderr or "'price_in' is 'dear'" in done.stderr
    (here / "workers.yaml").write_text("workers: [")
    done = call("run", "--plan", "plan.json", "--workers", "workers.yaml")
    assert "workers.yaml': while parsing" in done.stderr


def test_an_instruction_is_needed(here: Path) -> None:
    done = call("run")
    assert done.exit_code == 2
    assert "must be a non-empty string" in done.stderr


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


def test_the_trace_goes_to_a_collector(here: Path) -> None:
    import gzip
    from http.server import BaseHTTPRequestHandler

    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    names: list[str] = []
    texts: list[str] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            request = ExportTraceServiceRequest.FromString(gzip.decompress(body))
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    names.extend(span.name for span in scope.spans)
                    texts.extend(str(span) for span in scope.spans)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with listening(Collector) as url:
        done = run("--otlp", url)
    assert done.exit_code == 0, done.output
    wanted = {"invoke_workflow rollout", "plan", "execute_tool read_aloud", "chat sure"}
    assert wanted <= set(names)
    assert any(name.startswith("invoke_workflow ") for name in names)
    # What workers were asked for and said stays here.
    assert not any("[simulated" in text or "Say it" in text for text in texts)


def test_a_run_that_has_ended_is_not_run_again(here: Path) -> None:
    assert run("--output", "runs/one").exit_code == 0
    again = CliRunner().invoke(build_app(), ["resume", "runs/one"])
    assert again.exit_code == 2
    assert "has finished; see it" in again.stderr


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


ENDED_WHILE_CLOSING = """
import os, signal, sys
from sqlalchemy.engine.default import DefaultDialect
from tutelage.cli import main

close, name = DefaultDialect.do_close, sys.argv.pop()

def closed(self, connection):
    os.kill(os.getpid(), getattr(signal, name))
    for _ in range(1000):
        pass  # the signal is heard here, in the middle
    close(self, connection)
    DefaultDialect.do_close = close

DefaultDialect.do_close = closed
main()
"""


@pytest.mark.parametrize("name", ["SIGTERM", pytest.param("SIGINT", marks=pytest.mark.full)])
def test_a_signal_while_the_store_closes_is_told_in_one_line(here: Path, name: str) -> None:
    options = ["--plan", "plan.json", "--workers", "workers.json", "--output", "runs/one"]
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    command = [sys.executable, "-c", heard + ENDED_WHILE_CLOSING, "orchestrate", "run", *options]
    done = subprocess.run(
        [*command, name], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 128 + getattr(signal, name), done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("Stopped. ")


@pytest.mark.full
@pytest.mark.system
def test_an_interrupted_run_says_how_to_go_on_and_does(here: Path) -> None:
    chain = [{"tool": "write_article", "after": [i - 1] if i else []} for i in range(3)]
    (here / "plan.json").write_text(json.dumps({"instruction": "x", "nodes": chain}))
    (here / "workers.json").write_text(json.dumps([{"name": "slow", **FAST, "latency": 50.0}]))
    # A shell's background job ignores the interruption, and its children do.
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    program = f"{heard}; from tutelage.cli import main; main()"
    command = [sys.executable, "-c", program, "orchestrate", "run"]
    options = ["--plan", "plan.json", "--workers", "workers.json", "--output", "runs/one"]
    process = subprocess.Popen(
        [*command, *options], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    path = here / "runs" / "one" / "store.db"
    until = time.monotonic() + 120
    while time.monotonic() < until and process.poll() is None:
        if any(event["event"] == "request" for event in stored_events(path)):
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGHUP)
    _, told = process.communicate(timeout=120)
    assert process.returncode == 129
    assert "Stopped." in told
    assert "tutelage resume runs/one" in told
    assert "Traceback" not in told
    (here / "workers.json").write_text(json.dumps([{"name": "slow", **FAST}]))
    done = CliRunner().invoke(build_app(), ["resume", "runs/one", "--allow-changes"])
    assert done.exit_code == 0, done.output
    # A request that was given up counts at its bound: the sum of the log is the cost.
    answers = [e["answer"] for e in stored_events(path) if e["event"] == "answer"]
    assert [answer.get("estimated", False) for answer in answers] == [True, False, False, False]
    spent = sum(answer["cost"] for answer in answers)
    with open_store(here / "runs/one/store.db", create=False) as store:
        result = store.run("one").result
    assert result is not None
    assert result["cost"] == pytest.approx(spent)


# ------------------------------------------------------------ collect


def test_collect_writes_a_log_and_its_totals(here: Path) -> None:
    done = call("collect", "--num-executions", "30", "--output-dir", "logs", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["executions"] == 30
    assert 0 < told["succeeded"] <= 30
    assert (told["lost"], told["refused"]) == (0, 0)
    lines = (here / "logs" / "executions.jsonl").read_text().splitlines()
    assert len(lines) == 30


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


def test_runs_of_one_seed_are_lines_with_identifiers_of_their_own(here: Path) -> None:
    for name in ("one", "two"):
        assert run("--logs", "all.jsonl", "--output", f"runs/{name}").exit_code == 0
    rows = [json.loads(line) for line in (here / "all.jsonl").read_text().splitlines()]
    assert [row["run_id"] for row in rows] == ["one", "two"]
    assert len({row["id"] for row in rows}) == 2


def test_collections_of_one_seed_are_runs_of_their_own_in_a_log(here: Path) -> None:
    given = ("--num-executions", "3", "--output-dir", "logs")
    for name in ("one", "two"):
        assert call("collect", *given, "--output", name).exit_code == 0
    text = (here / "logs" / "executions.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    assert [row["run_id"] for row in rows] == ["one"] * 3 + ["two"] * 3
    assert len({row["id"] for row in rows}) == 6


def test_preparing_a_log_executes_nothing(here: Path) -> None:
    assert call("collect", "--num-executions", "5", "--output-dir", "logs").exit_code == 0
    before = sorted((here / "runs").iterdir())
    given = ("--logs", "logs", "--prepare", "data.json", "--json")
    assert "run" not in json.loads(call("collect", *given).stdout)
    assert sorted((here / "runs").iterdir()) == before
    assert "--prepare FILE" in call("collect", "--logs", "logs").stderr


def test_a_collection_that_was_stopped_says_how_it_begins_again(here: Path) -> None:
    assert call("collect", "--num-executions", "1", "--output", "made").exit_code == 0
    (here / "made" / "result.json").unlink()
    refused = CliRunner().invoke(build_app(), ["resume", "made"])
    assert refused.exit_code != 0
    assert "start again with another --output: tutelage orchestrate collect" in " ".join(
        refused.stderr.split()
    )


def test_collect_takes_the_documents_flags_and_can_be_read(here: Path) -> None:
    done = call("collect", "--num_executions", "5", "--output_dir", "execution_logs/")
    assert done.exit_code == 0, done.output
    assert "SIMULATED" in done.stderr
    assert re.search(r"succeeded +\d of 5\n", done.stdout)
    assert "collect --logs execution_logs --prepare training_data.json" in done.stdout
