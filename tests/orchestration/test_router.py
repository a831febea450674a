"""Routers: the trained one in the executor, the simulator, policy and loss."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from routing_world import RecordedVerifier, ReplayPool, as_plan, as_settings, result_of, world
from tests.marks import long

from tutelage.algorithms.rl.advantages.whiten import whiten
from tutelage.errors import ConfigError
from tutelage.orchestration.evaluation.rewards import References, RewardWeights, compute_reward
from tutelage.orchestration.execution.budget import Budget
from tutelage.orchestration.execution.executor import Executor
from tutelage.orchestration.execution.record import Execution
from tutelage.orchestration.execution.verifiers import Verifiers
from tutelage.orchestration.execution.virtual_time import run_virtual
from tutelage.orchestration.routing.policy import (
    SCALE,
    DecisionFeatures,
    ModelSelector,
    baselines,
    collect,
    compute_gae,
)
from tutelage.orchestration.routing.router import LearnedRouter
from tutelage.orchestration.routing.simulator import (
    Chooser,
    DecisionBatch,
    Scenario,
    WorkflowBatch,
    WorkflowSimulator,
    look_ahead,
    run_policy,
)
from tutelage.seeds import SeedTree

SCENARIOS = {
    "free": Scenario(budgets=0.0, deadlines=0.0),
    "deadlines": Scenario(budgets=0.0, deadlines=1.0, deadline_range=(0.6, 2.0)),
    "budgets": Scenario(budgets=1.0, deadlines=0.0, shapes=("chain",)),
    "budgets in parallel": Scenario(budgets=1.0, deadlines=0.0, budget_range=(2.0, 4.0)),
}


def shaken_model() -> ModelSelector:
    """A policy that is not the prior: its residual counts."""
    model = ModelSelector(3)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for layers in (model.point, model.settle):
            layers.second.copy_(0.05 * torch.randn(layers.second.shape, generator=generator))
    return model


def execute(flows: WorkflowBatch, b: int, scenario: Scenario, router: object) -> Execution:
    table = world(scenario).val.table
    plan, rows = as_plan(table, flows, b)
    executor = Executor(
        ReplayPool(table, rows),
        router,  # pyright: ignore[reportArgumentType]
        verifiers=Verifiers(RecordedVerifier(table)),
        settings=as_settings(scenario, flows, b),
    )
    limit = float(flows.budget_B[b])
    budget = Budget(limit) if np.isfinite(limit) else Budget()
    seeds = SeedTree(1).child("flow", b)
    return run_virtual(executor.run(plan, seeds=seeds, budget=budget))


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("trained", [*long(False), True])
def test_executor_and_environment_take_the_same_actions(name: str, trained: bool) -> None:
    scenario = SCENARIOS[name]
    here = world(scenario)
    flows = WorkflowBatch.draw(here.val, 40, SeedTree(2).child(name))
    model = shaken_model() if trained else None
    router = LearnedRouter(here.train.predictor, here.terms, model)
    simulator = WorkflowSimulator(here.val, flows, here.terms)
    taken: list[list[tuple[int, int]]] = [[] for _ in range(len(flows))]
    probabilities: list[list[float]] = [[] for _ in range(len(flows))]
    while len(rows := simulator.rows):
        at = simulator.observe(rows)
        logp_DA = router_log_probs(router, at)
        actions = logp_DA.argmax(axis=1)
        for d, b in enumerate(rows):
            taken[b].append((int(simulator.node_B[b]), int(actions[d])))
            probabilities[b].append(float(logp_DA[d, actions[d]]))
        simulator.step(rows, actions, at.chance_DW)
    decided = 0
    for b in range(len(flows)):
        try:
            ran = execute(flows, b, scenario, router)
        except ConfigError:
            assert taken[b] == []  # a budget that buys no first step
            continue
        steps = [(step.node, step.choice.action) for step in ran.steps]
        count = len(taken[b])
        assert steps[:count] == taken[b]
        # Nodes that were ready at the same moment as one that is given up are given up with it.
        assert all(action == len(here.val.columns) + 1 for _, action in steps[count:])
        assert [step.choice.log_prob for step in ran.steps[:count]] == pytest.approx(
            probabilities[b], abs=1e-4
        )
        result = replace(result_of(simulator, b), outputs={})
        assert ran.correct == result.success
        assert ran.total_cost == pytest.approx(result.total_cost)
        assert ran.total_latency_ms == pytest.approx(result.total_latency_ms)
        references = References(flows.cost_ref_B[b], flows.latency_ref_B[b])
        earned = compute_reward(
            replace(ran, success=bool(ran.correct)),
            "normalized", weights=here.terms.weights, references=references,
        )  # fmt: skip
        assert earned == pytest.approx(simulator.reward_B[b])
        decided += len(taken[b])
    assert decided > 60


def router_log_probs(router: LearnedRouter, at: DecisionBatch) -> np.ndarray:
    if router.model is None:
        utility = look_ahead(at, router.terms)
        best = np.full_like(utility, -np.inf)
        best[np.arange(len(utility)), utility.argmax(axis=1)] = 0.0
        return best
    with torch.no_grad():
        return router.model(DecisionFeatures.from_batch(at, router.terms))[0].numpy()


def test_a_step_carries_what_the_loss_takes() -> None:
    """The document's update, with the executions of a router as its data."""
    here = world(SCENARIOS["free"])
    flows = WorkflowBatch.draw(here.val, 12, SeedTree(4))
    model = ModelSelector(0)
    router = LearnedRouter(here.train.predictor, here.terms, model, sample=True)
    runs = [execute(flows, b, SCENARIOS["free"], router) for b in range(len(flows))]
    steps = [step for ran in runs for step in ran.steps if step.choice.features is not None]
    assert len(steps) > 12
    loss = model.compute_loss(
        states=[step.choice.features for step in steps],
        actions=[step.choice.action for step in steps],
        old_log_probs=[step.choice.log_prob for step in steps],
        advantages=[1.0] * len(steps),
        returns=[0.0] * len(steps),
    )
    assert loss["policy_loss"].item() == pytest.approx(-1.0, abs=1e-4)  # the ratios are 1
    assert loss["approx_kl"].item() == pytest.approx(0.0, abs=1e-6)
    loss["total_loss"].backward()


# ------------------------------------------------------------ simulator, policy and loss


def flows_of(count: int = 60, scenario: Scenario | None = None) -> WorkflowBatch:
    return WorkflowBatch.draw(world(scenario).val, count, SeedTree(9).child("flows"))


def rules(seed: int = 0) -> dict[str, Chooser]:
    here = world()
    rng = SeedTree(seed).numpy()

    def random(simulator: WorkflowSimulator, rows: np.ndarray, at: DecisionBatch) -> np.ndarray:
        keys_DA = np.where(at.mask_DA, rng.random(at.mask_DA.shape), -1.0)
        keys_DA[:, -1] -= 1.0  # stops when nothing else is left
        return keys_DA.argmax(axis=1)

    return {"random": random, **baselines(here.train.table, here.terms)}


def first_situation(count: int = 60) -> tuple[WorkflowSimulator, DecisionBatch]:
    here = world()
    simulator = WorkflowSimulator(here.val, flows_of(count), here.terms)
    return simulator, simulator.observe(simulator.rows)


# ------------------------------------------------------------------ the environment


@pytest.mark.parametrize("preset", ["seed", "normalized"])
def test_rewards_of_decisions_add_up_to_the_reward_of_the_result(preset: str) -> None:
    here = world()
    weights = RewardWeights(7.0, 0.5, 0.3, 0.2)
    terms = replace(here.terms, preset=preset, weights=weights)  # pyright: ignore[reportArgumentType]
    flows = flows_of(200)
    simulator = WorkflowSimulator(here.val, flows, terms)
    choose = rules(1)["random"]
    total = np.zeros(len(flows))
    begun = simulator.reward_B.copy()
    while len(rows := simulator.rows):
        at = simulator.observe(rows)
        total[rows] += simulator.step(rows, choose(simulator, rows, at), at.chance_DW)
    assert total + begun == pytest.approx(simulator.reward_B)
    for b in range(len(flows)):
        wanted = compute_reward(
            result_of(simulator, b),
            preset,  # pyright: ignore[reportArgumentType]
            weights=terms.weights,
            references=References(flows.cost_ref_B[b], flows.latency_ref_B[b]),
        )
        assert simulator.reward_B[b] == pytest.approx(wanted)


# ------------------------------------------------------------------ the policy


def test_an_untrained_policy_is_the_soft_lookahead() -> None:
    _, at = first_situation()
    terms = world().terms
    states = DecisionFeatures.from_batch(at, terms)
    logp_DA, _ = ModelSelector(4)(states)
    utility_DA = look_ahead(at, terms)
    assert np.array_equal(logp_DA.argmax(dim=1).numpy(), utility_DA.argmax(axis=1))
    gap_DA = np.maximum(utility_DA - utility_DA.max(axis=1, keepdims=True), -20.0)
    wanted = torch.log_softmax(
        torch.from_numpy(SCALE * gap_DA / terms.weights.alpha).masked_fill(
            ~states.mask_DA, -torch.inf
        ),
        dim=1,
    )
    assert torch.allclose(logp_DA.double(), wanted, atol=1e-3)


def test_trajectories_hold_what_was_executed() -> None:
    here, flows, model = world(), flows_of(), ModelSelector(2)
    batch = collect(here.val, flows, here.terms, model, SeedTree(5))
    again = WorkflowSimulator(here.val, flows, here.terms)
    (row_D, time_D), time = batch.places, 0
    rewards = torch.zeros_like(batch.rewards_BT)
    while len(rows := again.rows):
        mine = time_D == time
        assert row_D[mine].tolist() == rows.tolist()
        at = again.observe(rows)
        logp_DA, _ = model(DecisionFeatures.from_batch(at, here.terms))
        actions = batch.actions_D[mine]
        assert torch.allclose(
            logp_DA.gather(1, actions[:, None])[:, 0], batch.log_probs_D[mine], atol=1e-6
        )
        earned = again.step(rows, actions.numpy(), at.chance_DW) / 10
        rewards[rows, time] = torch.from_numpy(earned).float()
        time += 1
    assert torch.allclose(rewards, batch.rewards_BT, atol=1e-5)
    assert batch.outcome.reward_B == pytest.approx(again.reward_B)
    assert int(batch.mask_BT.sum()) == len(batch.actions_D)


def test_gae_by_hand() -> None:
    rewards, values = torch.tensor([1.0, 0.0, 2.0]), torch.tensor([0.5, 0.2, 1.0])
    last = 2.0 - 1.0
    middle = 0.0 + 0.9 * 1.0 - 0.2 + 0.9 * 0.8 * last
    first = 1.0 + 0.9 * 0.2 - 0.5 + 0.9 * 0.8 * middle
    found = compute_gae(rewards=rewards, values=values, gamma=0.9, lambda_gae=0.8)
    assert found.tolist() == pytest.approx([first, middle, last])
    both = compute_gae(
        rewards=torch.stack([rewards, rewards]), values=torch.stack([values, values]),
        gamma=0.9, lambda_gae=0.8,
    )  # fmt: skip
    assert torch.allclose(both, found.expand(2, 3))


def test_the_loss_is_the_documents_formula() -> None:
    here, model = world(), ModelSelector(0)
    batch = collect(here.val, flows_of(), here.terms, model, SeedTree(5))
    count = len(batch.actions_D)
    generator = torch.Generator().manual_seed(0)
    old = batch.log_probs_D + 0.3 * torch.randn(count, generator=generator)
    advantages = whiten(torch.randn(1, count, generator=generator), torch.ones(1, count))[0]
    returns = torch.randn(count, generator=generator)
    loss = model.compute_loss(
        states=batch.states, actions=batch.actions_D, old_log_probs=old, advantages=advantages,
        returns=returns, clip_epsilon=0.2, value_coef=0.5, entropy_coef=0.01,
    )  # fmt: skip
    logp_DA, values = model(batch.states)
    logp = logp_DA.gather(1, batch.actions_D[:, None])[:, 0]
    ratio = (logp - old).exp()
    low = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    # algorithms/rl bounds the loss of a bad action whose ratio ran away (the dual clip).
    surrogate = -torch.where(advantages < 0, torch.maximum(low, 3 * advantages), low).mean()
    spread = torch.distributions.Categorical(logits=logp_DA).entropy().mean()
    error = torch.nn.functional.mse_loss(values, returns)
    assert loss["policy_loss"].item() == pytest.approx(surrogate.item(), abs=1e-5)
    assert loss["value_loss"].item() == pytest.approx(error.item(), abs=1e-5)
    assert loss["entropy"].item() == pytest.approx(spread.item(), abs=1e-5)
    total = surrogate + 0.5 * error - 0.01 * spread
    assert loss["total_loss"].item() == pytest.approx(total.item(), abs=1e-5)
    loss["total_loss"].backward()
    assert model.point.second.grad is not None
    assert model.point.second.grad.abs().sum() > 0


# ------------------------------------------------------------------ baselines and curves


def test_the_lookahead_is_above_random() -> None:
    here, flows = world(), flows_of(600)
    rewards = {
        name: run_policy(here.val, flows, here.terms, choose).reward_B.mean()
        for name, choose in rules().items()
    }
    assert rewards["one-step lookahead"] > rewards["random"]
