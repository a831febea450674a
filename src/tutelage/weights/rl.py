"""The phase of reinforcement learning: sample, reward, learn, until something ends it.

The step is `loop.py`'s; this is what happens around it: the clock, the metrics, the checkpoints,
the held-out tasks. `control.py` runs it again with another estimator; `phases.py` has what all
phases share.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from tutelage.config import RunConfig
from tutelage.runs.metrics import cut_off_warning, rollout_metrics
from tutelage.types import Rollout
from tutelage.weights.context import Context
from tutelage.weights.learner import make_learner
from tutelage.weights.learners import Learners
from tutelage.weights.loop import TrainingLoop
from tutelage.weights.measure import glance, glance_values
from tutelage.weights.phases import RL, end_step, ended, restore, seconds_left, step_limit
from tutelage.weights.recording import StepRecorder


def run_rl(ctx: Context) -> None:
    """The phase, from where the checkpoint left it."""
    limit = step_limit(ctx)
    ctx.run.progress.phase("reinforcement learning", steps=limit, seconds=seconds_left(ctx))
    run_steps(ctx, RL, ctx.setting.config, lambda: ended(ctx, RL, limit))


def run_steps(ctx: Context, phase: str, config: RunConfig, over: Callable[[], bool]) -> None:
    """Steps of the loop until it is `over`: of this phase, or of the control, whose `config` has
    another estimator (`control.py`)."""
    state, limit = ctx.state, step_limit(ctx)
    ctx.optimizer = learners = _learners(ctx, config)
    recorder = StepRecorder(
        ctx.run.store,
        ctx.run.writer,
        ctx.run.folder.name,
        tick=state.tick,
        limit=config.trainer.record_tokens,
    )
    loop = TrainingLoop(ctx, phase, config, learners, recorder, limit)
    while not over():
        state.tick += 1
        start = time.perf_counter()
        groups, values = loop.step(state.phase_step)
        seconds = time.perf_counter() - start
        state.phase_step += 1
        if phase == RL:
            state.max_dlogp = max(state.max_dlogp, values["max_dlogp"])
        values |= rollout_metrics(groups.played) | groups.metrics
        values |= {
            "time/update": seconds - values["time/rollout"],
            "tokens_per_second": values["rollout/tokens"] * len(groups.played) / seconds,
        }
        if phase == RL and state.phase_step == 1:
            _warn_if_cut_off(ctx, groups.played)
        _validate(ctx, phase, values)
        end_step(ctx, phase, values)


def _warn_if_cut_off(ctx: Context, played: Sequence[Rollout]) -> None:
    """After the first step, since the limits that are there by default are small."""
    config = ctx.setting.config
    limits = (
        f"agent.max_tokens_per_turn={config.agent.max_tokens_per_turn}, "
        f"rollout.response_length={config.response_tokens}, rollout.max_len="
        f"{config.rollout.max_len}"
    )
    warning = cut_off_warning(played, limits)
    if warning is not None:
        ctx.run.progress.note(f"Warning: {warning}")


def _learners(ctx: Context, config: RunConfig) -> Learners:
    """The learners, in the state of the checkpoint when the phase was under way."""
    setting, state = ctx.setting, ctx.state
    fresh, control = state.phase_step == 0, config.trainer.control != "none"
    own = config.ref.path is None and config.model.path is None
    if fresh and (control or (config.needs_reference and own)):
        ctx.kept["start"] = {n: t.detach().clone() for n, t in setting.policy.named()}
    learner = make_learner(
        setting.policy,
        config,
        setting.choice.numerics,
        fresh=fresh,
        start=ctx.kept.get("start"),
    )
    referred = config.needs_reference and config.ref.path is None
    if fresh and setting.others and (control or referred):
        ctx.kept["starts"] = {
            name: {n: t.detach().clone() for n, t in policy.named()}
            for name, policy in setting.others.items()
        }
    others = {
        name: make_learner(
            policy,
            config,
            setting.choice.numerics,
            fresh=fresh,
            start=ctx.kept.get("starts", {}).get(name),
            name=name,
        )
        for name, policy in setting.others.items()
    }
    return restore(ctx, Learners(learner, others))


def _validate(ctx: Context, phase: str, values: dict[str, float]) -> None:
    """Every `test_freq` steps: held-out success, sampled and greedy; the end when it is solved."""
    trainer, state = ctx.setting.config.trainer, ctx.state
    if trainer.test_freq <= 0 or state.phase_step % trainer.test_freq:
        return
    start, cpu = time.perf_counter(), time.process_time()
    tasks = ctx.setting.tasks.val
    warm = ctx.setting.config.rollout.temperature
    found = glance(ctx, tasks, f"{phase}/sampled", warm)
    greedy = glance(ctx, tasks, f"{phase}/greedy", 0.0)
    values |= glance_values(found, "sampled") | glance_values(greedy, "greedy")
    if found.mean_reward is not None:
        values["val/reward/mean"] = found.mean_reward
    values["time/validate"] = time.perf_counter() - start
    values["time/validate_cpu"] = time.process_time() - cpu
    if trainer.stop_at_success is None:
        return
    if found.success is not None and found.success >= trainer.stop_at_success:
        state.phase_data["solved"] = True
    elif not found.kind.has_success and "told" not in state.phase_data:
        state.phase_data["told"] = True
        ctx.run.progress.note(
            "trainer.stop_at_success waits for a success, and the reward is graded: say what "
            "succeeds with reward.success=PART or reward.success='\">=0.5\"'"
        )
