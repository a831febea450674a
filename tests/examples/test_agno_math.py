"""examples/agno_math: the parts, then the document's commands in their folder, all three ways.

`apo` runs against the labelled simulator over HTTP; `sft` and `rl` train a policy that is far too
small and short to learn, so what is tested of them is the way, not the gain.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.collector import Collector
from tests.prompts.prompt_parts import served, without_endpoint

from tutelage.store import open_store
from tutelage.types import (
    Mode,
)

EXAMPLES = Path(__file__).parents[2] / "examples"
HERE = EXAMPLES / "agno_math"
TABLES = (
    "agno_sessions.json",
    "agno_runs.json",
    "agno_traces.json",
    "agno_spans.json",
    "agno_eval_runs.json",
)
pytest.importorskip("agno", reason="agno is not installed: examples/frameworks/requirements.txt")


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, one_thread: None) -> Any:
    """`example("grader")`: a module of the example."""
    monkeypatch.syspath_prepend(str(HERE))
    return lambda name: importlib.import_module(f"training.{name}")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the example's folder, somewhere else: it needs nothing beside it."""
    to = tmp_path_factory.mktemp("examples") / "agno_math"
    leave = shutil.ignore_patterns("runs", "agno_memory_training.db", ".env", "__pycache__")
    shutil.copytree(EXAMPLES / "agno_math", to, ignore=leave)
    return to


@pytest.fixture(scope="module")
def simulator() -> Iterator[SimpleNamespace]:
    """The simulator's environment, and its server."""
    with served() as (env, server):
        yield SimpleNamespace(env=env, server=server)


def command(place: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """`python -m training.train ...` in the example's folder, with nothing but `.env` set."""
    return subprocess.run(
        [sys.executable, "-m", "training.train", *arguments],
        cwd=place,
        env={**without_endpoint(), "OMP_NUM_THREADS": "1", "OTEL_SDK_DISABLED": "true", **env},
        capture_output=True,
        text=True,
        timeout=250,
    )


def write_env(place: Path, **values: str) -> None:
    (place / ".env").write_text("".join(f"{name}={value}\n" for name, value in values.items()))


# ---------------------------------------------------------------- the parts


@pytest.mark.parametrize(
    ("reply", "expected", "reward", "exact"),
    [
        ("The answer is 5050.", 5050, 1.0, 1.0),
        ("Result: 5,050", 5050, 1.0, 1.0),
        ("5050", 5050, 1.0, 1.0),
        ("I add them up. The answer is 5000.", 5050, 1 - 5 * 50 / 5050, 0.0),  # n*n/2
        ("The answer is 90", 100, 0.5, 0.0),
        ("The answer is 89", 100, 0.0, 0.0),
        ("It comes out somewhere about 5050, by my count.", 5050, 0.0, 0.0),
        ("The answer is 5050 or 5051", 5050, 0.0, 0.0),
        ("", 5050, 0.0, 0.0),
    ],
)
def test_the_grader_reads_three_forms_and_gives_partial_credit_within_a_tenth(
    example: Any, reply: str, expected: int, reward: float, exact: float
) -> None:
    found = example("grader").grade(reply, expected)
    assert found.reward == pytest.approx(reward)
    assert found.exact == exact


def test_a_prompt_becomes_a_list_of_instructions(example: Any) -> None:
    parse = example("agent").parse_instructions
    assert parse("You are a helpful assistant. Solve math problems.") == [
        "You are a helpful assistant.",
        "Solve math problems.",
    ]
    assert parse("- Add up 1 to n.\n\n2. Use the tool sum_1_to_n. Verify.\n") == [
        "Add up 1 to n.",
        "Use the tool sum_1_to_n.",
        "Verify.",
    ]
    assert parse("") == []


def test_the_dataset_repeats_is_disjoint_and_right(example: Any) -> None:
    dataset, agent = example("dataset"), example("agent")
    made = {split: dataset.generate(split, 60) for split in ("train", "val", "test")}
    assert dataset.generate("train", 60) == made["train"]
    assert dataset.generate("train", 5) == made["train"][:5]
    assert dataset.generate("train", 60, seed=1) != made["train"]
    keys = {
        split: {(t.tool, json.dumps(t.arguments)) for t in tasks} for split, tasks in made.items()
    }
    assert all(len(found) == 60 for found in keys.values())
    assert not keys["train"] & keys["test"]
    assert not keys["val"] & (keys["test"] | keys["train"])
    assert {t.tool for t in made["test"]} == {"sum_1_to_n", "calculator"}
    for task in made["test"]:
        assert getattr(agent, task.tool)(**task.arguments) == str(task.expected_answer)
        assert [*task.as_task().fields] == ["question", "expected_answer"]


# ---------------------------------------------------------------- apo


@pytest.mark.full
def test_the_documents_command_finds_a_better_prompt(
    place: Path, simulator: SimpleNamespace
) -> None:
    with Collector() as collector:
        endpoint = f"{collector.url}/v1/traces"
        write_env(
            place,
            **simulator.env,
            OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=endpoint,
        )
        flags = ("--iterations", "3", "--train-size", "5", "--test-size", "60")
        done = command(place, *flags, "--output", "runs/apo", OTEL_SDK_DISABLED="")
        spans = list(collector.spans)
    assert done.returncode == 0, done.stderr + done.stdout
    said = done.stdout
    assert "is in no model call" not in said + done.stderr
    # The iterations, in the document's form.
    rounds = re.findall(
        r'### Iteration (\d)\nPrompt: "(.+?)"\nTasks: (\d+) math problems\n'
        r"Rewards: \[(.+?)\]\nAverage: (\d\.\d\d) \(5 of 5 judged\)\n",
        said,
        re.DOTALL,
    )
    assert [number for number, *_ in rounds] == ["1", "2", "3"]
    assert rounds[0][1] == "You are a helpful assistant. Solve math problems."
    assert rounds[0][2] == "5"
    assert rounds[-1][1] != rounds[0][1]
    for _, _, tasks, rewards, average in rounds:
        values = [float(value) for value in rewards.split(", ")]
        assert len(values) == int(tasks)
        assert sum(values) / len(values) == pytest.approx(float(average), abs=0.02)
    assert re.search(r"Iterations: 3 of 3\n.+\nImprovement: 0\.\d\d -> [01]\.\d\d", said)
    assert "\nBefore: 60 of 60 judged\nAfter: 60 of 60 judged\nVerdict: improved" in said
    # What it leaves behind.
    run = place / "runs" / "apo"
    result = json.loads((run / "result.json").read_text())
    assert result["success_after_sampled"] > result["success_before_sampled"] + 0.3
    best = (run / "best_prompt.txt").read_text().strip().splitlines()
    assert "\n  ".join(["Best prompt:", *best]) in said
    assert simulator.env["OPENAI_API_KEY"] not in (run / "config.json").read_text()
    with open_store(run / "store.db", create=False) as store:
        (row,) = store.runs()
        assert store.count(row.id) == result["rollouts"]
        (first, *_) = store.rollouts(row.id, mode=Mode.TEST, label="seed")
        assert first.last.answer is not None
        assert {"sum_1_to_n", "calculator"} == {t.name for t in first.last.calls[0].tools}
        assert first.reward is not None
        assert "exact" in first.reward.parts
    # Traces at the collector, one a rollout.
    assert len({span.trace_id for span in spans}) == result["rollouts"]
    assert any(span.name.startswith("chat") for span in spans)
    # Agno's files, with the traces in them.
    tables = {name: json.loads((place / "agno_memory_training.db" / name).read_text())
              for name in TABLES}  # fmt: skip
    assert len(tables["agno_runs.json"]) >= result["rollouts"]
    assert len(tables["agno_traces.json"]) == result["rollouts"]
    kept = {row["trace_id"] for row in tables["agno_spans.json"]}
    assert kept == {span.trace_id for span in spans}
    # The reward of each, as Agno keeps evaluations.
    rewards = [row["eval_data"]["reward"] for row in tables["agno_eval_runs.json"]]
    assert len(rewards) == result["rollouts"]
    tested = [
        row["eval_data"]
        for row in tables["agno_eval_runs.json"]
        if row["eval_data"]["mode"] == "test" and row["eval_data"]["label"] == "seed"
    ]
    mean = sum(row["reward"] for row in tested) / len(tested)
    assert mean == pytest.approx(result["reward_before_sampled"])
    assert {"exact"} <= {*tested[0]["parts"]}


TINY = ("--train-size", "2", "--val-size", "2", "--test-size", "4")


@pytest.fixture
def here(
    example: Any, place: Path, simulator: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """The command in this process, in the example's folder, at the simulator."""
    monkeypatch.chdir(place)
    for name, value in simulator.env.items():
        monkeypatch.setenv(name, value)
    for name in ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OTEL_SDK_DISABLED", "")
    (place / ".env").unlink(missing_ok=True)
    return example("train").main


def test_traces_go_to_the_default_collector(
    example: Any, here: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """As the document says, without a word about it on the command line."""
    config = example("config")
    given = config.configure(config.read_arguments([]))[0]
    assert given.otlp == "http://localhost:4318/v1/traces"
    with Collector() as collector:
        monkeypatch.setattr(config, "COLLECTOR", f"{collector.url}/v1/traces")
        assert here(["--iterations", "1", *TINY, "--output", "runs/traced"]) in (0, 3, 4)
        spans = list(collector.spans)
    result = json.loads(Path("runs/traced/result.json").read_text())
    assert len({span.trace_id for span in spans}) == result["rollouts"]
    assert "collector" not in capsys.readouterr().err


# ---------------------------------------------------------------- sft and rl


@pytest.fixture
def base(example: Any, place: Path) -> Path:
    """A first policy that has seen a few requests and knows nothing yet."""
    make = example("policy").base_policy
    cold_start = importlib.import_module("cold_start")  # the example found its folder
    recipe = cold_start.Recipe(
        tasks=40,
        held_out=4,
        corpus=24,
        batch=8,
        clean_steps=6,
        cooldown_steps=2,
        mixed_steps=2,
    )
    said: list[str] = []
    where = place / "runs" / "base"
    known = where.is_dir()
    told = asyncio.run(make(where, recipe=recipe, say=said.append))
    assert told["prompt_tokens"] > 100
    assert known or said
    assert asyncio.run(make(where, recipe=recipe, say=pytest.fail)) == told
    return where


@pytest.mark.full
def test_sft_and_rl_train_the_same_policy_and_compare_sets_them_side_by_side(
    example: Any, base: Path, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    from typer.testing import CliRunner

    from tutelage.cli import build_app

    train = example("train")
    monkeypatch.chdir(place)
    small = ["--train-size", "8", "--test-size", "6", "--val-size", "2", "--runners", "8"]
    for algorithm, iterations in (("sft", "2"), ("rl", "1")):
        flags = ["--algorithm", algorithm, "--iterations", iterations, *small]
        assert train.main([*flags, "--output", f"runs/{algorithm}"]) == 0
        said = capsys.readouterr().out
        assert "Result on 6 held-out tasks" in said
        assert "\nBefore: 6 of 6 judged\nAfter: 6 of 6 judged\n" in said
        run = place / "runs" / algorithm
        result = json.loads((run / "result.json").read_text())
        assert result["status"] == "finished"
        assert result["failures"] == {}
        assert (run / "policy" / "model.safetensors").is_file()
    assert "### Iteration 1\nTasks: 8 math problems\nRewards: [" in said
    assert re.search(r"\nAverage: \d\.\d\d \(64 of 64 judged\)\n", said)
    shown = Path("runs/sft.demonstrations.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in shown]
    assert [m["role"] for m in rows[0]["messages"]] == [
        "system", "user", "assistant", "tool", "assistant",
    ]  # fmt: skip
    assert {t["function"]["name"] for t in rows[0]["tools"]} == {"sum_1_to_n", "calculator"}
    done = CliRunner().invoke(build_app(), ["compare", "sft", "rl", "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["same_tasks"] is True
    assert told["shared_tasks"] == 6
    (pair,) = told["pairs"]
    assert pair["caveats"] == []  # one grader, one base policy, one set of tasks
    assert [run["run"]["algorithm"] for run in told["runs"]] == ["sft", "grpo"]
