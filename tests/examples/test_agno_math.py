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
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.collector import Collector
from tests.prompts.prompt_parts import WORDS, refusing_server, served, without_endpoint

from tutelage.errors import TutelageError
from tutelage.runs.rounds import Round, Spend
from tutelage.runs.stored_evaluation import TOO_MANY_LOST, StoredEvaluation
from tutelage.store import open_store
from tutelage.types import (
    Attempt,
    Failure,
    FailureCause,
    Mode,
    Reward,
    Rollout,
    RolloutStatus,
    Task,
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
        ("result: 5050", 5050, 1.0, 1.0),
        ("Result: 5,050", 5050, 1.0, 1.0),
        ("5050", 5050, 1.0, 1.0),
        ("I add them up. The answer is 5000.", 5050, 1 - 5 * 50 / 5050, 0.0),  # n*n/2
        ("The answer is 90", 100, 0.5, 0.0),
        ("The answer is 110", 100, 0.5, 0.0),
        ("The answer is 89", 100, 0.0, 0.0),
        ("The answer is -100", 100, 0.0, 0.0),
        ("It comes out somewhere about 5050, by my count.", 5050, 0.0, 0.0),
        ("The answer is 5050 or 5051", 5050, 0.0, 0.0),
        ("The answer is ٥٠٥٠", 5050, 0.0, 0.0),
        ("The answer is nan", 5050, 0.0, 0.0),
        ("9**9**9", 5050, 0.0, 0.0),
        ("", 5050, 0.0, 0.0),
    ],
)
def test_the_grader_reads_three_forms_and_gives_partial_credit_within_a_tenth(
    example: Any, reply: str, expected: int, reward: float, exact: float
) -> None:
    found = example("grader").grade(reply, expected)
    assert found.reward == pytest.approx(reward)
    assert found.exact == exact


def test_the_grader_says_what_is_wrong(example: Any) -> None:
    grade = example("grader").grade
    assert "should say: the answer is X" in grade("about 12", 12).feedback
    assert "within 10 %" in grade("The answer is 99", 100).feedback
    assert grade("The answer is 7", 100).feedback == "the answer is not 100"


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


def test_tools_answer_with_text_also_where_they_fail(example: Any) -> None:
    agent = example("agent")
    assert agent.sum_1_to_n(100) == "5050"
    assert agent.calculator("17*23+5") == "396"
    assert agent.calculator("1/0").startswith("error: ")
    assert agent.sum_1_to_n(-1).startswith("error: ")


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


def test_the_defaults_are_the_documents(example: Any) -> None:
    config = example("config")
    training, agent = config.configure(config.read_arguments([]))
    assert (training.algorithm, training.iterations) == ("apo", 10)
    assert (training.train_size, training.val_size, training.runners) == (20, 10, 8)
    assert training.test_size >= 200
    assert agent.prompt == "You are a helpful assistant. Solve math problems."


def test_env_fills_the_agents_configuration_and_flags_the_trainings(
    example: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = example("config")
    monkeypatch.chdir(tmp_path)
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_MODEL"):
        monkeypatch.setenv(name, "x")  # so that what .env sets is taken back after the test
        monkeypatch.delenv(name)
    assert config.configure(config.read_arguments([]))[1].model == "gpt-4o-mini"
    write_env(tmp_path, OPENAI_BASE_URL="http://here/v1", OPENAI_MODEL="m", OPENAI_API_KEY="k")
    monkeypatch.setenv("OPENAI_MODEL", "set already")
    given = ["--iterations", "3", "--train-size", "5", "--algorithm", "rl", "--seed", "4"]
    training, agent = config.configure(config.read_arguments(given))
    assert (training.iterations, training.train_size, training.seed) == (3, 5, 4)
    assert (agent.base_url, agent.model) == ("http://here/v1", "set already")
    assert "k" not in vars(agent).values()


@pytest.mark.parametrize("bad", [["--iterations", "0"], ["--algorithm", "ppo"], ["--iteration=x"]])
def test_a_bad_flag_is_refused(example: Any, bad: list[str], capsys: Any) -> None:
    with pytest.raises(SystemExit) as refused:
        example("config").read_arguments(bad)
    assert refused.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_an_iteration_is_printed_as_the_document_prints_it(example: Any) -> None:
    printout = example("printout")
    said: list[str] = []
    rewards = (0.2, 0.4, 0.6, 0.3, 0.5)
    text = "You are a helpful assistant. Solve math problems."
    round_ = Round(1, {"p": text}, "train", rewards, (), "c", {"p": text}, Spend())
    printout.Printout(said.append).on_round_end(round_)
    assert said == [
        "### Iteration 1\n"
        'Prompt: "You are a helpful assistant. Solve math problems."\n'
        "Tasks: 5 math problems\n"
        "Rewards: [0.2, 0.4, 0.6, 0.3, 0.5]\n"
        "Average: 0.40 (5 of 5 judged)\n"
    ]
    lost = Round(1, {"p": text}, "train", rewards, (), "c", {"p": text}, Spend(), lost=1)
    printout.Printout(said.append).on_round_end(lost)
    assert "Tasks: 6 math problems\n" in said[-1]
    assert said[-1].endswith("Average: none (5 of 6 judged)\n")
    some = Round(1, {"p": text}, "train", rewards, (), "c", {"p": text}, Spend(), available=20)
    printout.Printout(said.append).on_round_end(some)
    assert "Tasks: 5 of 20 math problems (a minibatch)\n" in said[-1]
    assert printout.improvement(0.40, 0.98) == "Improvement: 0.40 -> 0.98 (145% increase)"
    assert printout.improvement(0.5, 0.4) == "Change: 0.50 -> 0.40 (20% decrease)"
    assert printout.improvement(0.0, 0.4) == "Improvement: 0.00 -> 0.40"


def test_a_step_says_of_how_many_rollouts_its_average_is(example: Any) -> None:
    said: list[str] = []
    told = example("printout").Printout(said.append, train_size=20)
    down = Failure(FailureCause.ENGINE_ERROR, "the server is down")
    for n, (task, reward) in enumerate((("a", 1.0), ("a", 0.0), ("b", 0.5), ("c", None))):
        status = RolloutStatus.FAILED if reward is None else RolloutStatus.SUCCEEDED
        kept, failure = (None, down) if reward is None else (Reward(reward), None)
        last = Attempt(f"{n}", 0, status, reward=kept, failure=failure)
        told.on_rollout_end(Rollout(f"{n}", "r", Task(task, {}), Mode.TRAIN, 1, task, n, (last,)))
    told.on_step_end(1, {})
    assert said == [
        "### Iteration 1\n"
        "Tasks: 3 of 20 math problems (a minibatch)\n"
        "Rewards: [0.5, 0.5]\n"
        "Average: none (3 of 4 judged; 1 lost: 1 engine error (the server is down))\n"
    ]


def test_the_outcome_says_how_many_were_judged_and_no_mean_of_too_few(example: Any) -> None:
    outcome = example("printout").outcome
    before = StoredEvaluation(success=0.065, reward=0.34, rollouts=200, judged=200)
    after = StoredEvaluation(
        success=0.905, reward=0.98, rollouts=200, judged=199, lost={"timeout": 1}
    )
    assert [*outcome(before, after)] == [
        "Improvement: 0.34 -> 0.98 (188% increase)",
        "Exact answers: 6.5% -> 90.5%",
        "Before: 200 of 200 judged",
        "After: 199 of 200 judged; 1 lost: 1 timeout",
    ]
    few = StoredEvaluation(rollouts=200, judged=190, lost={"engine_error": 10}, reason="down")
    assert [*outcome(before, few)] == [
        "Before: 200 of 200 judged",
        "After: 190 of 200 judged; 10 lost: 10 engine error (down)",
        TOO_MANY_LOST,
    ]


def test_eight_writers_lose_nothing_and_agno_reads_the_files(example: Any, tmp_path: Path) -> None:
    from agno.db.json import JsonDb
    from agno.run.agent import RunOutput

    database = example("database").TrainingDb(tmp_path / "db")

    def write(first: int) -> None:
        for i in range(first, first + 10):
            run = RunOutput(run_id=f"run{i}", session_id=f"s{i}", content="5")
            database.upsert_run(run, session_id=f"s{i}", run_index=0)

    threads = [threading.Thread(target=write, args=(10 * i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    database.save()
    assert {path.name for path in (tmp_path / "db").iterdir()} >= {*TABLES}
    assert len(JsonDb(db_path=str(tmp_path / "db")).get_runs()) == 80


# ---------------------------------------------------------------- apo


@pytest.mark.full  # three seconds
def test_the_dry_run_plays_one_task_and_trains_nothing(
    place: Path, simulator: SimpleNamespace
) -> None:
    write_env(place, **simulator.env)
    done = command(place, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "TrainingConfig(algorithm='apo', iterations=10, train_size=20" in done.stdout
    assert "AgentConfig(prompt='You are a helpful assistant." in done.stdout
    assert re.search(r"Task: .+\n  model: .+\nAnswer: .+, reward \d", done.stdout)
    assert "nothing was trained" in done.stdout
    assert simulator.env["OPENAI_API_KEY"] not in done.stdout
    assert not (place / "runs").exists()


@pytest.mark.full  # three seconds of imports
def test_without_an_endpoint_it_says_both_ways_out(place: Path) -> None:
    (place / ".env").unlink(missing_ok=True)
    done = command(place, "--iterations", "3")
    assert done.returncode == 2
    assert "OPENAI_BASE_URL" in done.stderr
    assert "Traceback" not in done.stderr
    named = set(re.findall(r"--algorithm[ =](\w+)", done.stderr))
    assert named == {"sft", "rl"}  # what this command takes and needs no endpoint


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


@pytest.mark.full
def test_a_collector_that_is_down_is_one_warning(place: Path, simulator: SimpleNamespace) -> None:
    write_env(place, **simulator.env)
    flags = ["--iterations", "1", "--train-size", "2", "--val-size", "2", "--test-size", "4"]
    done = command(place, *flags, "--otlp", "http://127.0.0.1:9/v1/traces", "--output", "runs/down")
    assert done.returncode in (0, 3), done.stderr
    assert done.stderr.count("cannot send traces") == 1
    assert "Iterations: 1 of 1" in done.stdout
    assert (place / "runs" / "down" / "result.json").is_file()


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
    # Of calls to an endpoint: its model and its usage, the tools that Agno ran, and the reward.
    named = {
        kind: [s for s in spans if s.name.startswith(kind)] for kind in ("chat", "execute_tool")
    }
    assert {s.attributes["gen_ai.request.model"] for s in named["chat"]} == {"simulator-task"}
    assert all(s.attributes["gen_ai.response.model"] for s in named["chat"])
    for key in ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"):
        assert all(s.attributes[key] > 0 for s in named["chat"])
    assert {s.attributes["gen_ai.tool.name"] for s in named["execute_tool"]} <= {
        "sum_1_to_n",
        "calculator",
    }
    assert named["execute_tool"]
    roots = [span for span in spans if span.parent_id is None]
    assert all(root.events[0].name == "gen_ai.evaluation.result" for root in roots)
    rows = json.loads(Path("agno_memory_training.db/agno_spans.json").read_text())
    (root,) = (row for row in rows if row["span_id"] == roots[0].span_id)
    kept, sent = root["attributes"]["events"][0]["attributes"], roots[0].events[0].attributes
    assert kept == sent
    assert kept["gen_ai.evaluation.name"] == "reward"


@pytest.mark.full
def test_where_no_collector_listens_one_warning_says_so(
    example: Any, here: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(example("config"), "COLLECTOR", "http://127.0.0.1:9/v1/traces", False)
    assert here(["--iterations", "1", *TINY, "--output", "runs/untraced"]) in (0, 3, 4)
    said = capsys.readouterr().err
    assert said.count("Note: no collector listens at http://127.0.0.1:9/v1/traces") == 1
    assert said.count("traces") == 2  # the address and the warning: nothing else speaks of them
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    config = example("config")
    assert config.configure(config.read_arguments([]))[0].otlp is None


@pytest.mark.full  # three seconds
def test_fewer_iterations_than_asked_for_are_explained(here: Any, capsys: Any) -> None:
    few = ["--iterations", "20", "--rollouts", "100", *TINY]
    assert here([*few, "--output", "runs/twenty"]) in (0, 3, 4)
    (line,) = (x for x in capsys.readouterr().out.splitlines() if x.startswith("Iterations: "))
    done, reason = re.fullmatch(r"Iterations: (\d+) of 20(; .+)?", line).groups()  # pyright: ignore
    told = json.loads(Path("runs/twenty/result.json").read_text())
    assert int(done) == len(Path("runs/twenty/metrics.jsonl").read_text().splitlines())
    assert int(done) == 20 or reason == f"; {told['ended']}"


def test_more_iterations_have_more_rollouts(example: Any) -> None:
    config = example("config")

    def rollouts(*flags: str) -> int:
        return config.configure(config.read_arguments([*flags]))[0].rollouts

    assert (rollouts(), rollouts("--iterations", "3")) == (600, 600)
    assert rollouts("--iterations", "20") == 1200
    assert rollouts("--iterations", "20", "--rollouts", "50") == 50


@pytest.fixture
def refusing() -> Iterator[str]:
    """The address of a server that refuses every request."""
    with refusing_server() as url:
        yield url


def test_a_dead_endpoint_is_an_error_and_not_a_wrong_answer(
    here: Any, refusing: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Agno makes an error of the model the agent's answer."""
    monkeypatch.setenv("OPENAI_BASE_URL", refusing)
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert here(["--dry-run"]) == 1
    assert WORDS in capsys.readouterr().err
    assert here(["--iterations", "1", *TINY, "--output", "runs/dead"]) == 2
    assert WORDS in capsys.readouterr().err
    assert not Path("runs/dead/result.json").exists()


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


def test_a_base_folder_of_the_users_is_left_alone(example: Any, place: Path) -> None:
    """A model and notes without `cold_start.json` are no policy that this example made."""
    mine = place / "my-model"
    mine.mkdir()
    for name in ("model.safetensors", "config.json", "notes.md"):
        (mine / name).write_text("mine")
    make = example("policy").base_policy
    small = importlib.import_module("cold_start").Recipe(
        tasks=40, held_out=4, corpus=24, batch=8, clean_steps=6, cooldown_steps=2, mixed_steps=2
    )
    with suppress(TutelageError):
        asyncio.run(make(mine, recipe=small, say=lambda _: None))
    found = {p.name: p.read_bytes() for p in mine.iterdir()}
    assert found == dict.fromkeys(("model.safetensors", "config.json", "notes.md"), b"mine")


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


@pytest.mark.full
@pytest.mark.parametrize("algorithm", ["sft", "rl"])
def test_the_users_own_model_is_trained(
    base: Path, here: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any, algorithm: str
) -> None:
    """A Hugging Face folder that this example did not make, and leaves as it is."""
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    own = base.with_name(f"own-model-{algorithm}")
    shutil.copytree(base, own, ignore=shutil.ignore_patterns("cold_start.json"))
    before = {path.name: path.read_bytes() for path in own.iterdir()}
    flags = ["--algorithm", algorithm, "--iterations", "1", *TINY, "--model", str(own)]
    assert here([*flags, "--output", f"runs/own-{algorithm}"]) == 0
    assert "Iterations: 1 of 1\n" in capsys.readouterr().out
    run = Path(f"runs/own-{algorithm}")
    assert json.loads((run / "config.json").read_text())["config"]["model"]["path"] == str(own)
    trained = (run / "policy" / "model.safetensors").read_bytes()
    # A policy that knows nothing earns nothing, so rl alone has nothing to move it by.
    assert algorithm == "rl" or trained != before["model.safetensors"]
    assert {path.name: path.read_bytes() for path in own.iterdir()} == before


def test_a_model_and_a_base_are_not_both_given(here: Any) -> None:
    with pytest.raises(SystemExit):
        here(["--model", "runs/own-model", "--base", "runs/base"])
