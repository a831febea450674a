"""Estimate the cost of a training: the number of rollouts and the time.

The number of rollouts follows from the configuration (`describe_plan`). Their time is estimated
from forward passes of the policy on this machine (`estimate_time`), until rollouts and updates have
been measured. `runs/estimate.py` formats both.
"""

from __future__ import annotations

import timeit
from collections.abc import Iterable
from functools import partial

import torch

from tutelage.errors import pluralize
from tutelage.policy.machine import parallel_map
from tutelage.policy.row import Row
from tutelage.runs.estimate import duration
from tutelage.runs.job_inputs import job_reward
from tutelage.weights.checkpoint import COLD, CONTROL, RL
from tutelage.weights.config.presets import UNKNOWN, WORK
from tutelage.weights.inputs import TrainingInputs, count_drawn, step_limit
from tutelage.weights.measure import list_measurements
from tutelage.weights.run import TrainingRun


def describe_plan(inputs: TrainingInputs, phases: Iterable[str]) -> dict[str, str]:
    """Return the planned rollouts of a run, their token limit and their reward, as text."""
    config, limit, own = inputs.config, step_limit(inputs), inputs.policy.max_positions
    size, chains = config.data.train_batch_size, config.agent.num_chains
    plan = f"{size * chains:,} rollouts a step, until the time is over"
    if limit is not None:
        measuring = sum(_count_work(inputs, phase)[2] for phase in phases)
        plan = (
            f"{pluralize(limit, 'step')} x {pluralize(size, 'task')} x {chains:,} = "
            f"{pluralize(count_drawn(inputs, limit) * chains, 'rollout')}"
            f"{' twice, with the control' * (CONTROL in phases)}, {measuring:,} to measure"
        )
    bound = "" if inputs.context == own else f" (the model: {own:,})"
    tokens = f"at most {config.turn_tokens:,} a turn, {config.response_tokens:,} a rollout, "
    grader = job_reward(inputs.given, inputs.reward)
    graded = f"what {'the agent' if inputs.environment is None else 'the environment'} returns"
    if grader is not None:
        sees = "grades" if grader.uses_attempt else "has no parameter 'prediction' to see"
        graded = f"{grader.name}, which {sees} the reply"
    return {"plan": plan, "tokens": f"{tokens}context {inputs.context:,}{bound}", "reward": graded}


# ---------------------------------------------------------------- time


def _count_work(inputs: TrainingInputs, phase: str, done: int = 0) -> tuple[int, int, int]:
    """Return the remaining demonstrations, training rollouts and test rollouts of a phase."""
    config, limit = inputs.config, step_limit(inputs) or done
    sft, every = config.sft, config.trainer.test_freq
    if phase == COLD:
        steps = sft.max_steps + sft.cooldown_steps + sft.mixed_steps
        return (steps - done) * sft.batch_size, 0, 0
    if phase in (RL, CONTROL):
        looks = limit // every - done // every if every > 0 else 0
        return 0, (limit - done) * config.rollouts_per_batch, 2 * looks * len(inputs.tasks.val)
    return 0, 0, len(list_measurements(inputs, phase)) * len(inputs.tasks.test)


def _estimate_phases(ctx: TrainingRun, demonstration: float, rollout: float, update: float) -> str:
    """Store the expected seconds of each phase, and return the total time as text.

    The arguments are the seconds of a demonstration, of a rollout, and of the update on a rollout.
    """
    state, setting, total = ctx.state, ctx.setting, ctx.elapsed()
    for phase in ctx.expected:
        shown, trained, measured = _count_work(
            setting, phase, state.phase_step if phase == state.phase else 0
        )
        seconds = shown * demonstration + trained * (rollout + update)
        seconds += measured * rollout * WORK.get(setting.config.recipe, UNKNOWN)[3]
        if phase == RL and step_limit(setting) is None:
            seconds = max(0.0, 60 * (setting.config.trainer.minutes or 0.0) - total)
        ctx.expected[phase] = 0.0 if phase in state.results.get("done", ()) else seconds
        total += ctx.expected[phase] or 0.0
    words = f"{total / 60:,.0f}" if total >= 600 else duration(total)
    return f"about {words} minutes"


def estimate_time(ctx: TrainingRun) -> dict[str, str]:
    """Estimate the total time of a run from forward passes of the policy, as text.

    Only recipes in `WORK` have an estimate before the first step.
    """
    setting, rewarded = ctx.setting, RL in ctx.expected
    passes, on_cpu = WORK.get(setting.config.recipe), setting.choice.device.type == "cpu"
    if passes is None or setting.given is not None or not on_cpu or setting.group.size > 1:
        return {"total": "measured after the first step"} if rewarded else {}
    numerics, rows = setting.choice.numerics, [Row((*range(128),), (0,) + (1,) * 127)] * 2

    @torch.no_grad()
    def score(row: Row) -> None:
        setting.policy.score([row], dtype=numerics.dtype)

    times = timeit.repeat(partial(parallel_map, score, rows, numerics.threads), repeat=3, number=1)
    total = _estimate_phases(ctx, *(count * sorted(times)[1] for count in passes[:3]))
    again = "; measured again after the first step" * rewarded
    return {"total": f"{total} (estimated{again})"}


def measure_cost(ctx: TrainingRun, update: float | None, step_count: int) -> None:
    """Update the expected seconds from the measured speed, and show them after the first step.

    `update` is the time of the step's update in seconds, or None if no rollout had an advantage.
    """
    pace, setting = ctx.pace, ctx.setting
    if pace is None or setting.config.async_training.staleness_threshold > 0:
        return  # its pace beside the updates was not measured
    first = ctx.state.phase_step == 1 and setting.given is None
    later = WORK.get(setting.config.recipe, UNKNOWN)[-1] if first else 1.0
    each = later * (update or 0.0) / setting.config.rollouts_per_batch
    total = _estimate_phases(ctx, 0.0, later * pace.seconds / pace.rollouts, each)
    learned = "nothing to learn from" if update is None else f"{duration(update)} to learn from"
    if step_count == 1:
        took = f"{pace.rollouts:,} rollouts took {duration(pace.seconds)}, and {learned}"
        ctx.run.progress.note(f"The whole run: {total} ({took})")
