"""What makes a planner's training fast changes no number; the DAG losses; how sure it is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tutelage.errors import DataError
from tutelage.orchestration.data.synthetic import builtin_graph, generate
from tutelage.orchestration.data.workflows import Workflow
from tutelage.orchestration.planner.confidence import KEEP, fit_confidence
from tutelage.orchestration.planner.fit import make_batches
from tutelage.orchestration.planner.model import PlannerModel
from tutelage.orchestration.planner.network import WINDOW, window_average
from tutelage.orchestration.planner.targets import (
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
    found = make_batches(sizes, batch, np.random.default_rng(seed))
    assert sorted(i for rows in found for i in rows) == list(range(len(sizes)))
    assert max(map(len, found)) <= batch
    assert found == make_batches(sizes, batch, np.random.default_rng(seed))


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


def test_graphs_of_many_sizes_are_scored_as_each_alone() -> None:
    torch.manual_seed(0)
    sizes = torch.tensor([3, 0, 1, 16, 17, 6, 20])
    graphs = torch.rand(len(sizes), 20, 20) * 0.2
    alone = [
        float(dag_loss(graphs[i : i + 1, :n, :n], sizes[i : i + 1])) if n else 0.0
        for i, n in enumerate(sizes.tolist())
    ]
    together = float(dag_loss(graphs, sizes))
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
    targets = PlanTargets.build([workflows[i] for i in chosen], model.vocabulary)
    one = model.compute_supervised_loss(model(prepared.rows(chosen)), targets)
    two = model.compute_supervised_loss(model([texts[i] for i in chosen]), targets)
    assert torch.equal(one["total_loss"], two["total_loss"])
    with pytest.raises(DataError, match="no instructions"):
        model.prepare([])


# ------------------------------------------------------------ the DAG losses


FOUR = torch.tensor([4])


def soft(seed: int = 0, size: int = 4) -> torch.Tensor:
    return torch.rand(1, size, size, generator=torch.Generator().manual_seed(seed))


def test_zero_on_triangular_graphs_and_above_zero_on_cyclic_ones() -> None:
    upper = torch.triu(soft(), diagonal=1)
    assert float(dag_loss(upper, FOUR)) == pytest.approx(0.0, abs=1e-5)
    assert float(dag_loss(soft(), FOUR)) > 0.01
    loop = torch.zeros(1, 4, 4)
    loop[0, 2, 2] = 0.9
    assert float(dag_loss(loop, FOUR)) > 0.01


def test_the_gradient_points_out_of_cycles_and_is_zero_on_triangular_graphs() -> None:
    cyclic = torch.zeros(1, 3, 3)
    cyclic[0, 0, 1] = cyclic[0, 1, 2] = cyclic[0, 2, 0] = 0.6
    cyclic.requires_grad_(True)
    dag_loss(cyclic, torch.tensor([3])).backward()
    assert cyclic.grad is not None
    assert float(cyclic.grad[0, 2, 0]) > 0
    upper = torch.triu(soft(), diagonal=1).requires_grad_(True)
    dag_loss(upper, FOUR).backward()
    assert upper.grad is not None
    forward = torch.triu(upper.grad[0], diagonal=1)
    assert float(forward.abs().max()) == pytest.approx(0.0, abs=1e-6)


def test_values_by_hand() -> None:
    loop = torch.full((1, 1, 1), 0.5)
    one = torch.tensor([1])
    assert float(dag_loss(loop, one)) == pytest.approx(0.25)


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


def drawn_signals() -> tuple[Tensor, list[bool]]:
    """Signals of 400 requests, of which the first tells what is right."""
    signals = torch.randn(400, 14, generator=torch.Generator().manual_seed(1))
    return signals, (signals[:, 0] > 0).tolist()


def test_it_tells_right_plans_from_wrong_ones_and_keeps_most_of_them() -> None:
    signals, right = drawn_signals()
    fitted = fit_confidence(signals, right, 400)
    assert fitted is not None
    sure = fitted.predict(signals) >= fitted.threshold
    kept = sure[torch.tensor(right)].double().mean()
    assert KEEP - 0.01 <= kept <= KEEP + 0.02
    assert (~sure)[~torch.tensor(right)].double().mean() > 0.9
    assert fitted == fit_confidence(signals, right, 400)
