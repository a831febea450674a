"""What makes a planner's training fast changes no number; the DAG losses; how sure it is."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from benchmarks.house.planner_recipe import PlannerRecipe, train
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tutelage.errors import DataError
from tutelage.orchestration.data.synthetic import builtin_graph, generate
from tutelage.orchestration.data.workflows import Workflow
from tutelage.orchestration.planner import fit, saving
from tutelage.orchestration.planner.confidence import (
    KEEP,
    LOWEST,
    fit_confidence,
    floor_of,
    same_tools,
)
from tutelage.orchestration.planner.fit import PlannerTrainer, drawn
from tutelage.orchestration.planner.model import PlannerModel
from tutelage.orchestration.planner.network import WINDOW, window_average
from tutelage.orchestration.planner.settings import Phase1Settings
from tutelage.orchestration.planner.targets import (
    DagLoss,
    PlanTargets,
    dag_loss,
    edge_loss,
    set_loss,
    type_loss,
)
from tutelage.seeds import SeedTree

SEEDS = SeedTree(3)


def small(workflows: list[Workflow]) -> PlannerModel:
    torch.manual_seed(0)
    return PlannerModel.of(workflows, builtin_graph().catalog, 16)


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=300),
    st.integers(1, 40),
    st.integers(0, 1000),
)
def test_every_workflow_stands_in_one_batch(sizes: list[int], batch: int, seed: int) -> None:
    found = drawn(sizes, batch, np.random.default_rng(seed))
    assert sorted(i for rows in found for i in rows) == list(range(len(sizes)))
    assert max(map(len, found)) <= batch
    assert found == drawn(sizes, batch, np.random.default_rng(seed))


@pytest.mark.parametrize("words", [1, 3, 9])
def test_surroundings_are_the_weighed_neighbours(words: int) -> None:
    torch.manual_seed(0)
    text = torch.randn(2, words, 3, dtype=torch.float64, requires_grad=True)
    around = torch.randn(2 * WINDOW, 3, dtype=torch.float64, requires_grad=True)
    made = window_average(text, around)
    for place in range(words):
        slow = text[:, place].clone()
        for step in range(1, WINDOW + 1):
            if place - step >= 0:
                slow = slow + around[step - 1] * text[:, place - step]
            if place + step < words:
                slow = slow + around[-step] * text[:, place + step]
        assert torch.allclose(made[:, place], slow)
    assert torch.autograd.gradcheck(window_average, (text, around))


@pytest.mark.parametrize("kind", ["seed", "poly"])
def test_graphs_of_many_sizes_are_scored_as_each_alone(kind: DagLoss) -> None:
    torch.manual_seed(0)
    sizes = torch.tensor([3, 0, 1, 16, 17, 6, 20])
    graphs = torch.rand(len(sizes), 20, 20) * 0.2
    alone = [
        float(dag_loss(graphs[i : i + 1, :n, :n], sizes[i : i + 1], kind)) if n else 0.0
        for i, n in enumerate(sizes.tolist())
    ]
    together = float(dag_loss(graphs, sizes, kind))
    assert together == pytest.approx(sum(alone) / len(sizes), rel=1e-4)


def test_the_power_of_a_polynomial_is_that_of_each_graph() -> None:
    torch.manual_seed(0)
    for size in (1, 2, 5, 7):
        graph = torch.rand(1, size, size)
        slow = torch.linalg.matrix_power(torch.eye(size) + graph**2 / size, size)
        wanted = float(slow[0].diagonal().sum()) - size
        assert float(dag_loss(graph, torch.tensor([size]))) == pytest.approx(wanted, rel=1e-4)


def test_prepared_instructions_are_planned_and_scored_alike() -> None:
    workflows = generate(builtin_graph(), 12, SEEDS)
    model = small(workflows).eval()
    texts = [w.instruction for w in workflows]
    prepared = model.prepare(texts)
    assert model.plan_all(prepared) == model.plan_all(texts)
    chosen = [5, 2, 9]
    targets = PlanTargets.of([workflows[i] for i in chosen], model.vocabulary)
    one = model.compute_supervised_loss(model(prepared.rows(chosen)), targets)
    two = model.compute_supervised_loss(model([texts[i] for i in chosen]), targets)
    assert torch.equal(one["total_loss"], two["total_loss"])
    with pytest.raises(DataError, match="no instructions"):
        model.prepare([])


def test_the_held_out_share_is_learned_at_the_best_rate_and_then_at_a_reduced_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fit, "_REFIT", 2.0)
    workflows = generate(builtin_graph(), 60, SEEDS, max_nodes=3)
    settings = Phase1Settings(num_epochs=1, width=16, beam=1)
    fitting = PlannerTrainer(
        workflows[:45], workflows[45:], builtin_graph().catalog, settings, SEEDS
    )
    first = fitting.epoch()["learning_rate"]
    assert fitting.epochs_left == 2
    rates = [fitting.epoch()["learning_rate"] for _ in range(2)]
    assert fitting.done
    assert rates == pytest.approx([first, first * settings.plateau_factor])


# ------------------------------------------------------------ the DAG losses


KINDS = get_args(DagLoss)
FOUR = torch.tensor([4])


def soft(seed: int = 0, size: int = 4) -> torch.Tensor:
    return torch.rand(1, size, size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", KINDS)
def test_zero_on_triangular_graphs_and_above_zero_on_cyclic_ones(kind: DagLoss) -> None:
    upper = torch.triu(soft(), diagonal=1)
    assert float(dag_loss(upper, FOUR, kind)) == pytest.approx(0.0, abs=1e-5)
    assert float(dag_loss(soft(), FOUR, kind)) > 0.01
    loop = torch.zeros(1, 4, 4)
    loop[0, 2, 2] = 0.9
    assert float(dag_loss(loop, FOUR, kind)) > 0.01


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_points_out_of_cycles_and_is_zero_on_triangular_graphs(kind: DagLoss) -> None:
    cyclic = torch.zeros(1, 3, 3)
    cyclic[0, 0, 1] = cyclic[0, 1, 2] = cyclic[0, 2, 0] = 0.6
    cyclic.requires_grad_(True)
    dag_loss(cyclic, torch.tensor([3]), kind).backward()
    assert cyclic.grad is not None
    assert float(cyclic.grad[0, 2, 0]) > 0
    upper = torch.triu(soft(), diagonal=1).requires_grad_(True)
    dag_loss(upper, FOUR, kind).backward()
    assert upper.grad is not None
    forward = torch.triu(upper.grad[0], diagonal=1)
    assert float(forward.abs().max()) == pytest.approx(0.0, abs=1e-6)


def test_values_by_hand() -> None:
    loop = torch.full((1, 1, 1), 0.5)
    one = torch.tensor([1])
    assert float(dag_loss(loop, one, "seed")) == pytest.approx(0.5)
    assert float(dag_loss(loop, one, "poly")) == pytest.approx(0.25)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_nothing(kind: DagLoss) -> None:
    graphs = soft(size=3)
    padded = torch.nn.functional.pad(graphs, (0, 4, 0, 4), value=0.7)
    three = torch.tensor([3])
    assert float(dag_loss(padded, three, kind)) == pytest.approx(
        float(dag_loss(graphs, three, kind)), rel=1e-5
    )


def test_edges_are_scored_forward_and_within_the_plan_only() -> None:
    logits = torch.zeros(1, 3, 3)
    gold = torch.zeros(1, 3, 3)
    base = edge_loss(logits, gold, torch.tensor([2]))
    changed = logits.clone()
    changed[0, 1, 0] = changed[0, 0, 0] = changed[0, 0, 2] = 50.0
    assert edge_loss(changed, gold, torch.tensor([2])) == base == torch.log(torch.tensor(2.0))
    assert float(edge_loss(logits, gold, torch.tensor([1]))) == 0.0


def test_cross_entropies_by_hand() -> None:
    targets = torch.tensor([[0, 2, -100]])
    uniform = torch.zeros(1, 3, 3)
    assert float(type_loss(uniform, targets)) == pytest.approx(1.0986123)
    assert float(set_loss(torch.zeros(1, 2), targets)) == pytest.approx(2 * 0.6931472)


# ------------------------------------------------------------ how sure a planner is


SURE_SEEDS = SeedTree(3)


def drawn_signals() -> tuple[Tensor, list[bool]]:
    """Signals of 400 requests, of which the first tells what is right."""
    signals = torch.randn(400, 14, generator=torch.Generator().manual_seed(1))
    return signals, (signals[:, 0] > 0).tolist()


def test_it_tells_right_plans_from_wrong_ones_and_keeps_most_of_them() -> None:
    signals, right = drawn_signals()
    fitted = fit_confidence(signals, right, 400)
    assert fitted is not None
    sure = fitted.of(signals) >= fitted.threshold
    kept = sure[torch.tensor(right)].double().mean()
    assert KEEP - 0.01 <= kept <= KEEP + 0.02
    assert (~sure)[~torch.tensor(right)].double().mean() > 0.9
    assert fitted == fit_confidence(signals, right, 400)


def test_signals_that_tell_nothing_make_it_unsure_of_everything() -> None:
    signals, _ = drawn_signals()
    right = [i % 2 == 0 for i in range(400)]
    fitted = fit_confidence(signals, right, 400)
    assert fitted is not None
    assert ((fitted.of(signals) - 0.5).abs() < 0.35).all()


def test_few_held_out_plans_allow_no_low_threshold() -> None:
    signals = torch.zeros(22, 14)
    signals[:2, 0] = torch.tensor([2.0, 2.2])
    right = [True] * 2 + [False] * 20
    by_count = {n: fit_confidence(signals, right, n) for n in (5, 400)}
    few, many = by_count[5], by_count[400]
    assert few is not None
    assert many is not None
    assert few.weights == many.weights
    assert few.threshold == floor_of(5) > many.threshold
    floors = [floor_of(n) for n in (1, 2, 4, 8, 20, 100, 400)]
    assert floors == sorted(floors, reverse=True)
    assert (floors[0], floors[-1]) == (0.5, LOWEST)
    # Of plans of which such a share is wrong, 20 show none with the chance of one in twenty.
    assert (1 - floor_of(20)) ** 20 == pytest.approx(0.05)


@pytest.mark.full
@pytest.mark.usefixtures("one_thread")
def test_it_is_in_the_checkpoint(tmp_path: Path) -> None:
    model = train(PlannerRecipe(workflows=150, held_out=60, epochs=2, width=16)).model
    saving.write(tmp_path / saving.PHASE1, saving.checkpoint(model, {}, 1, 0.0))
    again = saving.load_planner(tmp_path)
    assert model.confidence is not None
    assert again.confidence == model.confidence
    (planned,) = model.plan_all(["Translate the letter into French"])
    assert planned.confidence is not None
    assert 0 <= planned.confidence <= 1
    assert same_tools(planned.plan, planned.plan)
