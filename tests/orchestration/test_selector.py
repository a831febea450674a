"""The simulator, the policy and its loss, the baselines and the curves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from recorded import result_of
from routing_world import plain_utility, world

from tutelage.algorithms.rl.advantages.whiten import whiten
from tutelage.errors import ConfigError
from tutelage.orchestration.evaluation.rewards import (
    References,
    RewardWeights,
    compute_reward,
)
from tutelage.orchestration.routing.policy import (
    SCALE,
    DecisionFeatures,
    ModelSelector,
    baselines,
    collect,
    compute_gae,
    draw_actions,
)
from tutelage.orchestration.routing.simulator import (
    Chooser,
    DecisionBatch,
    QueryTable,
    Scenario,
    WorkflowBatch,
    WorkflowSimulator,
    look_ahead,
    run_chooser,
)
from tutelage.seeds import SeedTree


def flows_of(count: int = 60, scenario: Scenario | None = None) -> WorkflowBatch:
    return WorkflowBatch.draw(world(scenario).val, count, SeedTree(9).child("flows"))


def rules(seed: int = 0) -> dict[str, Chooser]:
    here = world()
    rng = SeedTree(seed).numpy()

    def random(simulator: WorkflowSimulator, rows: np.ndarray, at: DecisionBatch) -> np.ndarray:
        keys_DA = np.where(at.mask_DA, rng.random(at.mask_DA.shape), -1.0)
        keys_DA[:, -1] -= 1.0  # stops when nothing else is left
        return keys_DA.argmax(axis=1)

    def greedy(simulator: WorkflowSimulator, rows: np.ndarray, at: DecisionBatch) -> np.ndarray:
        return plain_utility(at, here.terms).argmax(axis=1)

    return {"random": random, "greedy": greedy, **baselines(here.train.table, here.terms)}


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


def test_budgets_and_tries_and_deadlines_hold() -> None:
    scenario = Scenario(budgets=1.0, deadlines=1.0, deadline_range=(0.5, 1.5))
    here, flows = world(scenario), flows_of(200, scenario)
    outcome = run_chooser(here.val, flows, here.terms, rules(2)["random"])
    assert (outcome.cost_B <= flows.budget_B + 1e-12).all()
    assert (outcome.now_B <= flows.deadline_B + 1e-9).all()
    late_B = outcome.now_B == flows.deadline_B
    assert late_B.any()
    assert not (late_B & outcome.success_B).any()
    assert (outcome.steps_B <= outcome.size_B * (scenario.max_tries + 1)).all()


def test_success_is_that_of_right_answers_whatever_the_verifier_said() -> None:
    scenario = Scenario(budgets=0.0, deadlines=0.0)
    here, flows = world(scenario), flows_of(200, scenario)
    outcome = run_chooser(here.val, flows, here.terms, rules()["most accurate"])
    verified_B = (outcome.passed_BN | ~outcome.exists_BN).all(axis=1)
    assert (outcome.success_B & ~verified_B).any()
    assert (~outcome.success_B & verified_B).any()


def test_a_workflow_longer_than_allowed_is_given_up() -> None:
    here, flows = world(), flows_of()
    terms = replace(here.terms, max_steps=2)
    outcome = run_chooser(here.val, flows, terms, rules()["random"])
    assert outcome.steps_B.max() == 2


def test_the_same_seed_draws_the_same_workflows_for_any_pool() -> None:
    here = world()
    fewer = QueryTable.of(
        here.val.table.only(here.val.table.names[:3]), here.train.predictor, here.train.scenario
    )
    mine, theirs = flows_of(), WorkflowBatch.draw(fewer, 60, SeedTree(9).child("flows"))
    assert np.array_equal(mine.query_BN, theirs.query_BN)
    assert np.array_equal(mine.parents_BNN, theirs.parents_BNN)


def test_a_query_that_nobody_can_do_is_refused() -> None:
    here = world()
    table = here.val.table
    able = tuple(replace(worker, capabilities=("code",)) for worker in table.workers)
    with pytest.raises(ConfigError, match="no worker supports query"):
        QueryTable.of(replace(table, workers=able), here.train.predictor, here.train.scenario)


def test_a_pool_that_is_free_still_has_a_reward() -> None:
    here = world()
    free = tuple(
        replace(worker, price_in=0.0, price_out=0.0) for worker in here.train.predictor.workers
    )
    table = replace(here.val.table, workers=free, costs_QW=0 * here.val.table.costs_QW)
    query_table = QueryTable.of(
        table, replace(here.train.predictor, workers=free), here.train.scenario
    )
    flows = WorkflowBatch.draw(query_table, 40, SeedTree(1))
    outcome = run_chooser(query_table, flows, here.terms, rules()["one-step lookahead"])
    assert np.isfinite(outcome.reward_B).all()
    assert (outcome.cost_B == 0).all()


# ------------------------------------------------------------------ the policy


def test_an_untrained_policy_is_the_soft_lookahead() -> None:
    _, at = first_situation()
    terms = world().terms
    states = DecisionFeatures.of(at, terms)
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


def test_what_the_mask_forbids_has_no_probability() -> None:
    _, at = first_situation()
    logp_DA, _ = ModelSelector(0)(DecisionFeatures.of(at, world().terms))
    assert (logp_DA.exp()[~torch.from_numpy(at.mask_DA)] == 0).all()
    drawn = draw_actions(logp_DA, np.linspace(0, 1, len(logp_DA)))
    assert at.mask_DA[np.arange(len(drawn)), drawn.numpy()].all()


def test_the_order_of_workers_does_not_matter() -> None:
    _, at = first_situation()
    model = ModelSelector(0)
    with torch.no_grad():
        model.point.second.normal_(0, 0.1, generator=torch.Generator().manual_seed(1))
        model.value.second.normal_(0, 0.1, generator=torch.Generator().manual_seed(2))
    states = DecisionFeatures.of(at, world().terms)
    workers = states.workers_DWF.shape[1]
    order = torch.randperm(workers, generator=torch.Generator().manual_seed(3))
    actions = torch.cat([order, torch.tensor([workers, workers + 1])])
    turned = DecisionFeatures(
        states.workers_DWF[:, order],
        states.context_DF,
        states.prior_DA[:, actions],
        states.mask_DA[:, actions],
        states.truth_DF,
    )
    mine, value = model(states)
    theirs, other = model(turned)
    assert torch.allclose(mine[:, actions], theirs, atol=1e-5)
    assert torch.allclose(value, other, atol=1e-5)


def test_the_policy_never_sees_what_the_critic_knows() -> None:
    here = world()
    batch = collect(here.train, flows_of(), here.terms, ModelSelector(0), SeedTree(0))
    assert batch.states.truth_DF.abs().sum() > 0
    model = ModelSelector(0)
    with torch.no_grad():
        model.value.second.normal_(0, 0.1, generator=torch.Generator().manual_seed(2))
    blind = replace(batch.states, truth_DF=torch.zeros_like(batch.states.truth_DF))
    seen, known = model(batch.states)
    unseen, guessed = model(blind)
    assert torch.equal(seen, unseen)
    assert not torch.allclose(known, guessed)


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
        logp_DA, _ = model(DecisionFeatures.of(at, here.terms))
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


def test_baselines_do_what_their_names_say() -> None:
    simulator, at = first_situation()
    rows = simulator.rows
    places = np.arange(len(rows))
    workers = at.chance_DW.shape[1]
    able_DW = at.mask_DA[:, :workers]

    def least(of_DW: np.ndarray) -> np.ndarray:
        return np.where(able_DW, of_DW, np.inf).argmin(axis=1)

    assert np.array_equal(rules()["cheapest"](simulator, rows, at), least(at.cost_DW))
    accurate = world().train.table.right_QW.mean(axis=0)
    wanted = least(-np.broadcast_to(accurate, able_DW.shape))
    assert np.array_equal(rules()["most accurate"](simulator, rows, at), wanted)
    chosen = rules(0)["random"](simulator, rows, at)
    assert at.mask_DA[places, chosen].all()
    assert (chosen < workers).all()


def test_the_lookahead_is_above_greedy_and_greedy_above_random() -> None:
    here, flows = world(), flows_of(600)
    rewards = {
        name: run_chooser(here.val, flows, here.terms, choose).reward_B.mean()
        for name, choose in rules().items()
    }
    assert rewards["one-step lookahead"] > rewards["greedy"] > rewards["random"]
