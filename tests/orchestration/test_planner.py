"""The planner: the document's calls, decoding, checkpoints and resume."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from tutelage.errors import ModelError
from tutelage.orchestration.data.synthetic import builtin_graph, generate
from tutelage.orchestration.data.workflows import Workflow
from tutelage.orchestration.plan.catalog import Catalog
from tutelage.orchestration.plan.dag import adjacency, is_valid_dag
from tutelage.orchestration.planner import saving
from tutelage.orchestration.planner.fit import PlannerTrainer
from tutelage.orchestration.planner.model import PlannerModel
from tutelage.orchestration.planner.settings import Phase1Settings
from tutelage.orchestration.planner.targets import PlanTargets, WorkflowDataset
from tutelage.policy.sources import artefact
from tutelage.seeds import SeedTree

SEEDS = SeedTree(1)


@pytest.fixture(scope="module")
def sets() -> tuple[list[Workflow], list[Workflow], list[Workflow]]:
    made = generate(builtin_graph(), 460, SEEDS.child("data"), max_nodes=4)
    return made[:320], made[320:400], made[400:]


@pytest.fixture(scope="module")
def trained(sets: tuple[list[Workflow], list[Workflow], list[Workflow]]) -> PlannerTrainer:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    settings = Phase1Settings(num_epochs=12, width=64, refit=False)
    fitting = PlannerTrainer(
        sets[0], sets[1], builtin_graph().catalog, settings, SEEDS.child("fit")
    )
    while not fitting.done:
        fitting.train_epoch()
    torch.set_num_threads(before)
    return fitting


def small(workflows: list[Workflow], catalog: Catalog | None = None) -> PlannerModel:
    torch.manual_seed(0)
    return PlannerModel.of(workflows, catalog or builtin_graph().catalog, 32)


# ------------------------------------------------------------ the document's API


def test_the_documents_training_loop_runs_as_written() -> None:
    dataset = WorkflowDataset(
        instructions=["Read it and say it", "Read it", "Say it"],
        subtask_sequences=[["read", "say"], ["read"], ["say"]],
        task_types=[["read", "say"], ["read"], ["say"]],
        dependencies=[[[], [0]], [[]], [[]]],
        model_selections=[[1, 0], [1], [0]],
    )
    torch.manual_seed(0)
    planner = PlannerModel.of(dataset.workflows, dataset.vocabulary.catalog, 16)
    optimizer = torch.optim.Adam(planner.parameters(), lr=1e-2)
    losses: list[float] = []
    for _ in range(20):
        for batch in DataLoader(dataset, batch_size=3, shuffle=True):
            outputs = planner(batch["instruction"])
            loss = planner.compute_supervised_loss(outputs, batch, lambda_dag=0.3)
            expected = loss["ce_loss"] + 0.3 * loss["dag_loss"]
            assert torch.allclose(loss["total_loss"], expected)
            optimizer.zero_grad()
            loss["total_loss"].backward()
            torch.nn.utils.clip_grad_norm_(planner.parameters(), max_norm=1.0)
            optimizer.step()
            losses.append(float(loss["total_loss"].detach()))
    assert losses[-1] < 0.5 * losses[0]


def test_the_loss_of_a_plan_does_not_depend_on_its_batch() -> None:
    workflows = generate(builtin_graph(), 6, SEEDS)
    model = small(workflows).eval()

    def types(rows: list[Workflow]) -> float:
        found = model.compute_supervised_loss(
            model([w.instruction for w in rows]), PlanTargets.build(rows, model.vocabulary)
        )
        return float(found["set_loss"].detach()) * len(rows)

    assert types(workflows) == pytest.approx(sum(types([w]) for w in workflows), rel=1e-4)


# ------------------------------------------------------------ learning and decoding


def test_every_plan_is_a_dag_of_known_tools_whatever_the_weights(
    sets: tuple[list[Workflow], ...],
) -> None:
    model = small(sets[0])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))
    for planned in model.plan_all([w.instruction for w in sets[2]]):
        assert is_valid_dag(adjacency(planned.plan))
        assert planned.plan.nodes
        assert all(node.tool in model.catalog for node in planned.plan.nodes)


@pytest.mark.full
def test_a_plan_does_not_depend_on_its_batch(
    trained: PlannerTrainer, sets: tuple[list[Workflow], ...]
) -> None:
    texts = [w.instruction for w in sets[2][:9]]
    together = [p.plan for p in trained.model.plan_all(texts)]
    assert together == [trained.model.plan(text, 0) for text in texts]


# ------------------------------------------------------------ the loop


def test_the_rate_falls_on_a_plateau_and_the_best_epoch_is_kept(trained: PlannerTrainer) -> None:
    at = trained.at
    assert at.best_epoch <= len(at.rates)
    assert at.rates == sorted(at.rates, reverse=True)
    assert at.best_metrics["val_loss"] == at.best_loss


@pytest.mark.full
def test_a_restored_fit_goes_on_bit_for_bit(
    sets: tuple[list[Workflow], ...], tmp_path: Path
) -> None:
    torch.set_num_threads(1)
    settings = Phase1Settings(num_epochs=2, width=16, beam=2)

    def fresh() -> PlannerTrainer:
        return PlannerTrainer(sets[0][:60], sets[1][:20], builtin_graph().catalog, settings, SEEDS)

    whole = fresh()
    lines: list[dict[str, float]] = []
    states: list[Path] = []
    while not whole.done:
        lines.append(whole.train_epoch())
        states.append(tmp_path / f"{len(states)}.pth")
        saving.write(states[-1], {"fit": whole.get_state()})
    for place, state in enumerate(states):
        again = fresh()
        again.restore(saving.read(state)["fit"])
        rest: list[dict[str, float]] = []
        while not again.done:
            rest.append(again.train_epoch())
        assert rest == lines[place + 1 :]
        for one, two in zip(whole.model.parameters(), again.model.parameters(), strict=True):
            assert torch.equal(one, two)
        assert again.model.settings == whole.model.settings


def test_a_checkpoint_holds_the_documents_fields_and_plans_alike(
    trained: PlannerTrainer, sets: tuple[list[Workflow], ...], tmp_path: Path
) -> None:
    path = tmp_path / saving.PHASE1
    at = trained.at
    content = saving.make_checkpoint(
        trained.model, trained.optimizer.state_dict(), at.best_epoch, at.best_loss
    )
    saving.write(path, content)
    raw = torch.load(path, weights_only=True)
    assert {"epoch", "model_state_dict", "optimizer_state_dict", "val_loss"} <= set(raw)
    assert raw["vocabulary"]["task_types"][0]["name"] == trained.model.catalog.names[0]
    again = saving.load_planner(tmp_path)
    texts = [w.instruction for w in sets[2][:20]]
    assert again.plan_all(texts) == trained.model.plan_all(texts)


def test_files_that_are_no_checkpoint_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    path.write_bytes(b"nonsense")
    with pytest.raises(ModelError, match="cannot read the checkpoint"):
        saving.load_planner(path)
    torch.save({"epoch": 1}, path)
    with pytest.raises(ModelError, match="planner format"):
        saving.load_planner(path)
    with pytest.raises(ModelError, match="phase1_best"):
        saving.load_planner(tmp_path)
    shipped = artefact("planner") / saving.SHIPPED
    path.write_bytes(shipped.read_bytes()[:10_000])
    with pytest.raises(ModelError, match=r"is damaged.*reinstall tutelage"):
        saving.load_shipped(path)
