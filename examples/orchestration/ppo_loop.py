"""`python examples/orchestration/ppo_loop.py [EPISODES]`: the document's PPO loop, by public parts.

A router that samples chooses the workers of each subtask, an `OrchestrationSystem` executes the
plan, `compute_reward` says what that earned, `compute_gae` what each decision added, and
`ModelSelector.compute_loss` what to change. The reward of a workflow stands at its last decision.
`train_phase2` does the same on a simulator that is many times faster than the executor.
"""

import sys
import tempfile

import torch

from tutelage.orchestration import (
    LearnedRouter,
    ModelSelector,
    Node,
    OrchestrationSystem,
    Plan,
    compute_gae,
    compute_reward,
    load_router,
    train_phase2,
)
from tutelage.orchestration.data.outcomes import simulate_outcomes
from tutelage.orchestration.routing.settings import NORMALIZED, Phase2Settings
from tutelage.seeds import SeedTree

WORKFLOWS = 8
"""Executed in one episode, each in its own order of draws."""


def main(episodes: int) -> list[float]:
    """Train, print the mean reward of each episode, and return these."""
    with tempfile.TemporaryDirectory() as folder:
        # What is known of the default workers: chances, costs and latencies; nothing is trained.
        few, table = Phase2Settings(val_workflows=50), simulate_outcomes(400, SeedTree(0))
        learned = train_phase2(folder, settings=few, table=table, evaluate=False)
        known = load_router(learned.checkpoint)
    model_selector = ModelSelector(seed=0)
    router = LearnedRouter(known.predictor, known.terms, model_selector, sample=True)
    plan = Plan(
        "Summarise the article and translate the summary",
        (Node("summarize_text"), Node("translate_text", after=(0,))),
    )
    orchestrator = OrchestrationSystem(planner=lambda instruction: plan, router=router)
    optimizer = torch.optim.Adam(model_selector.parameter_groups(learning_rate=3e-4))
    means: list[float] = []
    for _ in range(episodes):
        trajectory, advantages, returns, rewards = [], [], [], []
        for _ in range(WORKFLOWS):
            result = orchestrator.execute(plan.instruction)
            reward = compute_reward(result, "normalized", weights=NORMALIZED)
            steps = [step for step in result.steps if step.choice.features is not None]
            with torch.no_grad():
                values = torch.cat([model_selector(step.choice.features)[1] for step in steps])
            earned = [0.0] * (len(steps) - 1) + [reward / NORMALIZED.alpha]
            added = compute_gae(rewards=earned, values=values, gamma=0.99, lambda_gae=0.95)
            trajectory += steps
            advantages.append(added)
            returns.append(added + values)
            rewards.append(reward)
        advantages = torch.cat(advantages)
        for _ in range(4):
            loss = model_selector.compute_loss(
                states=[step.choice.features for step in trajectory],
                actions=[step.choice.action for step in trajectory],
                old_log_probs=[step.choice.log_prob for step in trajectory],
                advantages=(advantages - advantages.mean()) / (advantages.std() + 1e-6),
                returns=torch.cat(returns),
                clip_epsilon=0.2,
                value_coef=0.5,
                entropy_coef=0.01,
            )
            optimizer.zero_grad()
            loss["total_loss"].backward()
            optimizer.step()
        means.append(sum(rewards) / len(rewards))
        print(f"episode {len(means)}: mean reward {means[-1]:.2f}")
    return means


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
