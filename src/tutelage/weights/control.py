"""The control: the same training again with another estimator, to compare with.

Reinforcement learning is worth what it earns above a simple use of the same rollouts. So the loop
of `rl.py` runs a second time: from the same start, on the same tasks in the same order, with as
many steps and rollouts, the same optimizer, clip and mini-batches, and an estimator that imitates
what did well (`raft`, `best_of_n`, `advantage_filtered`) or any other that `trainer.control` names.
What it leaves is measured as the trained policy is, and is not kept.
"""

from __future__ import annotations

from torch import Tensor

from tutelage.config import RunConfig
from tutelage.policy.model import Policy
from tutelage.resources import POLICY
from tutelage.weights.context import Context
from tutelage.weights.phases import CONTROL
from tutelage.weights.rl import run_steps

ESTIMATOR = "control_estimator"
"""Where the result has the name of the estimator."""


def run_control(ctx: Context) -> None:
    """The phase, from where the checkpoint left it."""
    state, steps = ctx.state, ctx.state.results["rl_steps"]
    if "begun" not in state.phase_data:
        state.results[ESTIMATOR] = estimator_of(ctx.setting.config, graded=ctx.kind.graded)
        _keep_for_the_caller(ctx)
        _load(ctx, ctx.kept["start"], ctx.kept.get("starts", {}))
        state.phase_data["begun"] = True
    name = state.results[ESTIMATOR]
    ctx.run.progress.phase(f"control: {name}", steps=steps)
    config = with_estimator(ctx.setting.config, name)
    run_steps(ctx, CONTROL, config, lambda: state.phase_step >= steps)


def give_back(ctx: Context) -> None:
    """Put the trained weights back into the objects that a caller handed over."""
    if "trained" in ctx.kept:
        trained = ctx.kept.pop("trained")
        _load(ctx, trained[POLICY], trained)


def estimator_of(config: RunConfig, *, graded: bool) -> str:
    """The estimator that a control trains with, `graded` where rewards were not all 0 or 1."""
    if config.trainer.control != "auto":
        return config.trainer.control
    # The best of one is that one: without groups only a success can be imitated.
    return "best_of_n" if graded and config.agent.num_chains > 1 else "raft"


def with_estimator(config: RunConfig, name: str) -> RunConfig:
    """The same configuration with another estimator."""
    rule = config.algorithm.model_copy(update={"adv_estimator": name})
    return config.model_copy(update={"algorithm": rule})


def _keep_for_the_caller(ctx: Context) -> None:
    given = ctx.setting.given
    if given is not None and given.policies:
        policies = {POLICY: ctx.setting.policy, **ctx.setting.others}
        ctx.kept["trained"] = {name: _copied(policy) for name, policy in policies.items()}


def _copied(policy: Policy) -> dict[str, Tensor]:
    return {n: t.detach().clone() for n, t in policy.named()}


def _load(ctx: Context, main: dict[str, Tensor], others: dict[str, dict[str, Tensor]]) -> None:
    setting = ctx.setting
    setting.policy.load_tensors(main)
    setting.policy.version += 1
    for name, policy in setting.others.items():
        policy.load_tensors(others[name])
        policy.version += 1
