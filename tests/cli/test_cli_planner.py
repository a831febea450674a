"""`tutelage train planner` and the verbs that use what it trained, end to end on a small set."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tutelage.cli import build_app
from tutelage.orchestration.data.synthetic import builtin_graph, generate
from tutelage.orchestration.data.workflows import read_workflows
from tutelage.orchestration.evaluation.metrics import evaluate
from tutelage.orchestration.planner.saving import load_planner
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
    assert "lambda_dag=0.3\n" in everything
    assert "lambda_dag" not in told
    assert "other keys have their defaults; --all prints them" in told
    assert "nothing was trained or written" in told
    assert [path.name for path in tmp_path.iterdir()] == ["keys.yaml"]
