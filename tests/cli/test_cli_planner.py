"""`tutelage train planner` and the verbs that use what it trained, end to end on a small set."""

from __future__ import annotations

import json
import re
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from tutelage.cli import build_app
from tutelage.cli.console import show_table
from tutelage.errors import TutelageError
from tutelage.orchestration.data.synthetic import builtin_graph, generate
from tutelage.orchestration.data.workflows import read_workflows
from tutelage.orchestration.evaluation.metrics import evaluate
from tutelage.orchestration.job import PlannerTraining
from tutelage.orchestration.planner.saving import load_planner
from tutelage.orchestration.planner.settings import PlannerConfig
from tutelage.runs import lifecycle
from tutelage.runs.figures import Table, TableRow
from tutelage.runs.folder import RunFolder
from tutelage.runs.kinds import name_of
from tutelage.runs.loggers import numbers
from tutelage.runs.progress import Progress
from tutelage.seeds import SeedTree
from tutelage.store import open_store
from tutelage.types import Mode

SMALL = ["num_epochs=2", "width=16", "beam=2"]


def invoke(*words: object, code: int = 0) -> str:
    result = CliRunner().invoke(build_app(), [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training set, a test set and their catalog, in the document's form."""
    place = tmp_path_factory.mktemp("files")
    catalog = builtin_graph().catalog
    made = generate(builtin_graph(), 90, SeedTree(2), max_nodes=3)
    rows = [w.to_row(catalog) for w in made[:60]]
    (place / "train.json").write_text(json.dumps(rows))
    lines = [{**w.to_row(catalog), "id": str(i)} for i, w in enumerate(made[60:])]
    (place / "test.json").write_text("\n".join(json.dumps(line) for line in lines))
    nodes = [
        {"id": t.name, "desc": t.description, "input-type": t.inputs, "output-type": t.outputs}
        for t in catalog.tools
    ]
    (place / "tools.json").write_text(json.dumps({"nodes": nodes}))
    return place


def request_of(files: Path) -> PlannerConfig:
    keys = {
        "training.phase1_supervised.num_epochs": 2,
        "training.phase1_supervised.width": 16,
        "training.phase1_supervised.beam": 2,
    }
    return PlannerConfig(
        phase="1",
        train=str(files / "train.json"),
        test=str(files / "test.json"),
        catalog=str(files / "tools.json"),
        keys=keys,
    )


@pytest.fixture(scope="module")
def run(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs") / "one"
    told = invoke(
        "train", "planner", "--phase", "1", "--train", files / "train.json", "--test",
        files / "test.json", "--catalog", files / "tools.json", "--output", place, *SMALL,
    )  # fmt: skip
    assert "nearest" in told
    assert "30 test workflows" in told
    return place


@pytest.mark.full
def test_a_run_leaves_what_the_document_says(run: Path) -> None:
    assert name_of(RunFolder(run)) == "planner"
    for name in ("phase1_best.pth", "checkpoint_best.pth"):
        found = torch.load(run / "checkpoints" / name, weights_only=True)
        fields = {"epoch", "model_state_dict", "optimizer_state_dict", "val_loss"}
        assert fields <= set(found)
    result = json.loads((run / "result.json").read_text())
    assert result["status"] == "finished"
    assert result["phase1"]["test"]["scores"]["planner"]["validity"] == 1.0
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert {"train_loss", "val_loss", "workflow_validity"} <= set(lines[0])


def test_the_plans_of_the_test_are_rollouts_that_show_and_compare_read(run: Path) -> None:
    with open_store(run / "store.db", create=False) as store:
        found = list(store.rollouts("one", label="phase1/planner"))
        metrics = store.metrics("one")
    assert len(found) == 30
    assert all(rollout.mode is Mode.TEST for rollout in found)
    result = json.loads((run / "result.json").read_text())
    scores = result["phase1"]["test"]["scores"]["planner"]
    for name in ("node_f1", "edge_f1", "exact_nodes", "exact"):
        mean = sum(r.reward.parts[name] for r in found if r.reward) / len(found)
        assert mean == pytest.approx(scores[name])
    assert "[0] " in (found[0].last.answer or "")
    assert "[0] " in found[0].task.fields["expected"]
    assert len(metrics) == len((run / "metrics.jsonl").read_text().splitlines())
    assert "30 rollouts match" in invoke("show", run, "--rollouts", "2")
    assert found[0].task.fields["instruction"] in invoke("show", found[0].id, "--run", run)
    (row,) = json.loads(invoke("compare", run, "--json"))["runs"]
    assert row["tasks"] == len({r.task.fields["instruction"] for r in found}) == len(found)
    mean = sum(r.reward.value for r in found if r.reward) / len(found)
    assert row["means"]["reward_after"] == pytest.approx(mean)
    assert row["means"]["exact_after"] == pytest.approx(scores["exact"])


@pytest.mark.parametrize(
    ("width", "lines"),
    [
        (80, ["nearest|+1.0 [-0.5, +2.5] ~|+10.0 [+9.0, +11.0]|+1.0 [-0.5, +2.5] ~"]),
        (60, ["nearest|+1.0 ~|+10.0|+1.0 ~", "[-0.5, +2.5]|[+9.0, +11.0]|[-0.5, +2.5]"]),
    ],
)
def test_intervals_stay_whole_where_a_table_is_too_wide(width: int, lines: list[str]) -> None:
    gain, sure = "+1.0 [-0.5, +2.5] ~", "+10.0 [+9.0, +11.0]"
    columns = ["over", "node F1", "edge F1", "arguments F1"]
    table = Table(columns, [TableRow(["nearest", gain, sure, gain])], range(1, 4), "Gain", "")
    console = Console(file=StringIO(), width=width)
    show_table(console, table)
    assert isinstance(console.file, StringIO)
    printed = console.file.getvalue().splitlines()
    shown = [re.sub(" {2,}", "|", line.strip()) for line in printed]
    assert shown[-len(lines) :] == lines


def test_what_is_next_names_no_tool_that_the_catalog_may_lack(run: Path) -> None:
    told = invoke("show", run).partition("Next")[2]
    assert 'tutelage orchestrate plan "..." --checkpoint' in told
    assert "French" not in told


def test_the_verbs_that_use_it(run: Path, files: Path, tmp_path: Path) -> None:
    picture = tmp_path / "drawn.txt"
    # What so few workflows have taught is sure of little.
    sure = ("--checkpoint", run, "--min-confidence", 0)
    told = invoke(
        "orchestrate", "plan", "Summarise the report", *sure, "--explain", "--out", picture
    )
    assert "latency" in told
    assert picture.read_text().startswith("level 0")
    for ending in ("txt", "json"):
        other = tmp_path / f"plan.{ending}"
        invoke("orchestrate", "plan", "Summarise it", *sure, "--out", other)
        assert other.read_text()
    model, catalog = load_planner(run), builtin_graph().catalog
    found, _ = evaluate(model, [], read_workflows(files / "test.json", catalog), SeedTree(0))
    result = json.loads((run / "result.json").read_text())
    assert found["scores"]["planner"] == result["phase1"]["test"]["scores"]["planner"]
    assert "gain over nearest" in invoke("show", run)
    assert "gain over nearest" in invoke("resume", run)


@pytest.mark.full  # test_phase2.py has it below the command
def test_a_run_that_was_killed_goes_on_bit_for_bit(
    run: Path, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = request_of(files)
    whole = RunFolder(tmp_path / "whole")
    whole.checkpoints.mkdir(parents=True)
    lifecycle.start(PlannerTraining(request), whole, Progress())
    folder = RunFolder(tmp_path / "cut")
    folder.checkpoints.mkdir(parents=True)

    class Killed(Exception):
        pass

    class Cutting(Progress):
        def step(self, done: int, values: object) -> None:
            raise Killed

    for _ in range(2):
        with pytest.raises(Killed):
            lifecycle.start(PlannerTraining(request), folder, Cutting())
    lifecycle.resume(PlannerTraining, folder, Progress())
    assert folder.metrics.read_bytes() == whole.metrics.read_bytes()
    assert (folder.path / "phase1.json").read_bytes() == (whole.path / "phase1.json").read_bytes()
    one, two = (
        torch.load(f.checkpoints / "phase1_best.pth", weights_only=True)["model_state_dict"]
        for f in (whole, folder)
    )
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.full
def test_phase_2_that_was_killed_has_the_same_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped between two checkpoints: no line is lost, and none stands twice."""
    monkeypatch.setattr("tutelage.orchestration.routing.phase2.SIMULATED", 160)
    keys = {
        f"training.phase2_rl.{name}": value
        for name, value in {
            "num_episodes": 6, "workflows_per_episode": 8, "episodes_per_update": 1,
            "validate_every": 2, "val_workflows": 20, "test_workflows": 20,
        }.items()
    }  # fmt: skip
    request = PlannerConfig(phase="2", keys=keys)
    whole, folder = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "cut")
    for place in (whole, folder):
        place.checkpoints.mkdir(parents=True)
    lifecycle.start(PlannerTraining(request), whole, Progress())

    class Stopping(Progress):
        def __init__(self, at: int) -> None:
            self._at = at

        def step(self, done: int, values: object) -> None:
            if done == self._at:
                raise KeyboardInterrupt

    for at in (3, 5):
        with pytest.raises(KeyboardInterrupt):
            lifecycle.start(PlannerTraining(request), folder, Stopping(at))
    lifecycle.resume(PlannerTraining, folder, Progress())
    assert folder.metrics.read_bytes() == whole.metrics.read_bytes()
    lines = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    assert [line["tick"] for line in lines] == list(range(7))
    # The document's keys, as a tracker gets them.
    published = {"train_loss", "val_loss", "success_rate", "avg_cost", "avg_latency",
                 "workflow_validity"}  # fmt: skip
    assert published <= set(numbers(lines[-1]))


@pytest.mark.full
def test_a_run_of_phase_2_names_only_what_it_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tutelage.orchestration.routing.phase2.SIMULATED", 160)
    told = invoke(
        "train", "planner", "--phase", "2", "--episodes", "2", "--output", tmp_path / "routing",
        "workflows_per_episode=8", "val_workflows=20", "test_workflows=20",
    )  # fmt: skip
    assert "phase1_best.pth" not in told
    assert "20 test workflows, run once by each router" in " ".join(told.split())
    result = json.loads((tmp_path / "routing" / "result.json").read_text())
    assert {row["workflows"] for row in result["phase2"]["evaluation"]["rows"]} == {20}
    assert "phase2/checkpoint_best.pth" in told
    assert (tmp_path / "routing" / "phase2" / "checkpoint_best.pth").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--phase", "3"], "--phase='3'"),
        (["--phase", "1", "num_epoch=1"], "num_epochs"),
        (["--phase", "1", "--epochs", "many"], "num_epochs='many'"),
        (["--phase", "1", "--train", "nowhere.json"], "nowhere.json"),
        (["--phase", "1", "--test", "x.json"], "needs --train"),
        (["--phase", "2", "--train", "x.json"], "--train 'x.json' cannot be used with --phase 2"),
        (
            ["--phase", "1", "--outcomes", "x.json"],
            "--outcomes 'x.json' cannot be used with --phase 1",
        ),
    ],
)
def test_bad_requests_are_refused_before_a_folder_is_left(
    words: list[str], message: str, tmp_path: Path
) -> None:
    place = tmp_path / "run"
    told = invoke("train", "planner", "--output", place, *words, code=2)
    assert message in " ".join(told.split())
    assert not place.exists()


def test_a_table_that_is_too_small_is_refused_without_a_resume_that_cannot_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    row = {"instruction": "Sort it", "task": "code", "scores": {"a": 0, "b": 1}}
    Path("outcomes.json").write_text(json.dumps([row, row]))
    price = {"input_price": 1, "output_price": 1}
    Path("models.json").write_text(json.dumps({"a": price, "b": price}))
    named = ("--outcomes", "outcomes.json", "--models", "models.json", "--output", "run")
    told = " ".join(invoke("train", "planner", "--phase", 2, *named, code=2).split())
    assert told.startswith("Error: too few queries in the table (2)")
    assert not Path("run").exists()
    assert "resume" not in told


def test_bad_data_names_file_and_row(files: Path, tmp_path: Path) -> None:
    rows = json.loads((files / "train.json").read_text())
    rows[3]["targets"]["dependencies"] = [[0] for _ in rows[3]["targets"]["task_types"]]
    bad = tmp_path / "bad.json"
    bad.write_text(json.dumps(rows))
    told = invoke(
        "train", "planner", "--phase", "1", "--train", bad, "--catalog", files / "tools.json",
        "--output", tmp_path / "run", code=2,
    )  # fmt: skip
    assert "row 3" in told
    assert "cycle" in told


def test_logs_become_a_training_set(tmp_path: Path) -> None:
    line = {
        "instruction": "Summarise it",
        "success": True,
        "cost": 0.01,
        "latency_ms": 5.0,
        "planner_outputs": {
            "task_types": ["summarize_text"],
            "model_selections": [0],
            "workflow_graph": {"adjacency": [[0]]},
        },
    }
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "executions.jsonl").write_text(json.dumps(line) + "\n")
    out = tmp_path / "training_data.json"
    invoke("orchestrate", "collect", "--logs", logs, "--prepare", out)
    rows = json.loads(out.read_text())
    place = builtin_graph().catalog.index("summarize_text")
    assert rows[0]["targets"] == {
        "task_types": [place], "dependencies": [[]], "model_selections": [0],
    }  # fmt: skip


def test_the_recipe_has_options_of_its_own() -> None:
    told = invoke("train", "planner", "--help")
    assert "--phase" in told
    assert "--catalog" in told
    for shown in ("--epochs N", "--batch-size N", "--episodes N"):
        assert f"{shown}  " in told
    for shown in ("--outcomes FILE", "--models FILE", "--checkpoint RUN"):
        assert f"{shown}  " in told


def test_an_older_planner_that_no_longer_loads_is_refused(run: Path, tmp_path: Path) -> None:
    found = torch.load(run / "checkpoints" / "phase1_best.pth", weights_only=True)
    found.update(format=1, arguments=[0.1])
    torch.save(found, tmp_path / "old.pth")
    with pytest.raises(TutelageError, match=r"(?s)old\.pth.*needs format 3"):
        load_planner(tmp_path / "old.pth")


def test_a_dry_run_says_where_settings_come_from_and_leaves_nothing(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("training: {phase1_supervised: {learning_rate: 3e-4, num_epochs: 7}}")
    monkeypatch.chdir(tmp_path)
    words = (
        "train", "planner", "--phase", "1", "--train", files / "train.json", "--test",
        files / "test.json", "--catalog", files / "tools.json", "--config", keys, "--batch-size", 8,
        "--output", tmp_path / "new", "--dry-run", *SMALL,
    )  # fmt: skip
    told, everything = invoke(*words), invoke(*words, "--all")
    assert f"learning_rate=0.0003   # file {keys}" in told
    assert "batch_size=8   # --batch-size" in told
    # What is typed wins over the file.
    assert "num_epochs=2   # command line" in told
    assert "lambda_dag=0.3   # default" in everything
    assert "lambda_dag" not in told
    assert "other settings have their defaults; --all prints them" in told
    assert "nothing was trained or written" in told
    assert [path.name for path in tmp_path.iterdir()] == ["keys.yaml"]


def test_a_dry_run_of_phase_2_checks_its_options(tmp_path: Path) -> None:
    told = invoke("train", "planner", "--phase", "2", "--dry-run", "--episodes", "5")
    assert "num_episodes=5   # --episodes" in told
    assert "phase1_supervised" not in told
    missing = invoke(
        "train", "planner", "--phase", "2", "--dry-run", "--outcomes", "x.json", code=2
    )
    assert "needs --models FILE" in " ".join(missing.split())
