"""The DAG losses: values by hand, zero on DAGs, and a gradient where there is a cycle."""

from __future__ import annotations

import pytest
import torch

from tutelage.orchestration.planner.targets import (
    dag_loss,
    edge_loss,
    set_loss,
    type_loss,
)

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


def test_padding_changes_nothing() -> None:
    graphs = soft(size=3)
    padded = torch.nn.functional.pad(graphs, (0, 4, 0, 4), value=0.7)
    three = torch.tensor([3])
    assert float(dag_loss(padded, three)) == pytest.approx(float(dag_loss(graphs, three)), rel=1e-5)


def test_graphs_of_200_nodes_stay_finite() -> None:
    big = torch.full((1, 200, 200), 0.047)
    assert torch.isfinite(dag_loss(big, torch.tensor([200])))


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
