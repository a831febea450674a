"""What makes the training of a planner fast changes no number, and the batches of an epoch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tutelage.errors import DataError
from tutelage.orchestration.data.synthetic import builtin_graph, generate
from tutelage.orchestration.data.workflows import Workflow
from tutelage.orchestration.planner import fit
from tutelage.orchestration.planner.fit import PlannerTrainer, drawn, tune
from tutelage.orchestration.planner.model import PlannerModel
from tutelage.orchestration.planner.network import WINDOW, window_average
from tutelage.orchestration.planner.settings import Phase1Settings
from tutelage.orchestration.planner.targets import PlanTargets, dag_loss
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


def test_texts_of_a_batch_are_alike_in_length() -> None:
    sizes = np.random.default_rng(0).integers(5, 80, 640).tolist()

    def padded(batches: list[list[int]]) -> int:
        return sum(len(rows) * max(sizes[i] for i in rows) for rows in batches)

    plain = np.random.default_rng(1).permutation(640).reshape(-1, 32).tolist()
    assert padded(drawn(sizes, 32, np.random.default_rng(1))) < 0.7 * padded(plain)


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


def test_mentions_are_distributions_over_the_words() -> None:
    workflows = generate(builtin_graph(), 5, SEEDS)
    model = small(workflows).eval()
    text = model([w.instruction for w in workflows]).text
    end = len(model.catalog)
    tools = torch.tensor([[0, 7, end, end + 1]] * 5)
    found = text.mentions(tools)
    assert torch.allclose(found.words_BNP.sum(-1), torch.tensor([1.0, 1.0, 0.0, 0.0]).expand(5, 4))
    assert not bool((found.words_BNP * ~text.real_BP[:, None]).any())
    assert found.centre_BN[:, 2:].tolist() == [[0.0, -1.0]] * 5


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
    targets = PlanTargets.of([workflows[i] for i in chosen], model.vocabulary)
    one = model.compute_supervised_loss(model(prepared.rows(chosen)), targets)
    two = model.compute_supervised_loss(model([texts[i] for i in chosen]), targets)
    assert torch.equal(one["total_loss"], two["total_loss"])
    with pytest.raises(DataError, match="no instructions"):
        model.prepare([])


@pytest.mark.full  # four seconds
def test_choices_after_the_search_search_once(monkeypatch: pytest.MonkeyPatch) -> None:
    workflows = generate(builtin_graph(), 60, SEEDS, max_nodes=3)
    model = small(workflows)
    model.remember(workflows[:40])
    search = model.settings
    with_reuse = tune(model, workflows[40:], search)
    monkeypatch.setattr(fit, "_AFTER_SEARCH", ())
    assert tune(model, workflows[40:], search) == with_reuse


@pytest.mark.full
def test_training_goes_on_with_the_held_out_share_too() -> None:
    workflows = generate(builtin_graph(), 120, SEEDS, max_nodes=3)
    settings = Phase1Settings(num_epochs=3, width=16, beam=1)
    fitting = PlannerTrainer(
        workflows[:90], workflows[90:], builtin_graph().catalog, settings, SEEDS
    )
    stages: list[str] = []
    while not fitting.done:
        stages.append(fitting.at.stage)
        fitting.epoch()
    assert fitting.best is not None
    searched = fitting.best["model"]["network.table"]
    assert stages.count("refit") == 1
    assert not torch.equal(fitting.model.state_dict()["network.table"], searched)
    assert fitting.remembered == workflows
    assert fitting.model.memory is not None
    assert len(fitting.model.memory.plans_MN) == len(workflows)


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
