"""The two phases of supervised training: the cold start before, and the control after.

Each is a loop over steps that can stop after any step and go on later. The cold start learns from
demonstrations (`cold_start.py` makes and steps them), the control from the policy's own successes.
`phases.py` has what all phases share.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from torch import Tensor

from tutelage.config.schema import SftConfig
from tutelage.evaluate.outcome import succeeded
from tutelage.policy.packing import TokenRow
from tutelage.rollouts.rows import build_rows
from tutelage.train import cold_start
from tutelage.train.context import Context
from tutelage.train.measure import glance, glance_values
from tutelage.train.metrics import failure_metrics, rollout_metrics
from tutelage.train.optim import Optimizer, adamw, adamw_of, learning_rate_share, muon
from tutelage.train.phases import COLD, CONTROL, RL, end_step, restore, step_limit
from tutelage.train.sampling import sample_plain

MIXED_EVERY = 10
"""Steps of the mixed part between two measurements of sampled success."""

CONTROL_SHARE = 1.25
"""Steps of the control for each step of reinforcement learning: a step costs about the same, but
the control does not validate in between. So it gets about the same time, free of any clock."""


def run_cold_start(ctx: Context) -> None:
    """Clean demonstrations until the skill is measured, a cool-down, then mixed ones."""
    setting, state = ctx.setting, ctx.state
    sft = setting.config.sft
    ctx.optimizer = restore(ctx, _cold_optimizer(setting.policy.named(), sft))
    ctx.progress.phase("cold start", steps=sft.max_steps + sft.cooldown_steps + sft.mixed_steps)
    while "ended" not in state.phase_data:
        start = time.perf_counter()
        step, skilled = state.phase_step, state.phase_data.get("skilled")
        clean_until = None if skilled is None else skilled + sft.cooldown_steps
        mixed = clean_until is not None and step >= clean_until
        rows = cold_start.demonstration_rows(
            setting, setting.seeds.child(COLD, step), sft.guess_share if mixed else 0.0
        )
        share = cold_start.rate(step, skilled, sft.cooldown_steps)
        values = cold_start.supervised_step(
            setting, ctx.optimizer, rows, setting.choice.cold_start, share
        )
        tokens = values.pop("tokens")
        state.phase_step, state.tick = step + 1, state.tick + 1
        seconds = time.perf_counter() - start
        values |= {
            "lr": sft.lr * share,
            "tokens_per_second": tokens / seconds,
            "time/step": seconds,
        }
        if clean_until is None or step + 1 <= clean_until:
            _clean_step_ended(ctx, values)
        else:
            _mixed_step_ended(ctx, step + 1 - clean_until, values)
        end_step(ctx, COLD, values)


def _cold_optimizer(named: Sequence[tuple[str, Tensor]], sft: SftConfig) -> Optimizer:
    if sft.optimizer == "muon":
        return muon(named, lr=sft.lr)
    return adamw(named, lr=sft.lr, betas=(0.9, 0.98), weight_decay=0.01, clip_grad=1.0)


def _clean_step_ended(ctx: Context, values: dict[str, float]) -> None:
    """Measure greedy success when it is time; it decides when the cool-down begins."""
    state, sft = ctx.state, ctx.setting.config.sft
    data, done = state.phase_data, state.phase_step
    last = "skilled" in data and done == data["skilled"] + sft.cooldown_steps
    if last or ("skilled" not in data and done % sft.eval_every == 0):
        found = glance(ctx, ctx.setting.tasks.skill, COLD, 0.0)
        values |= glance_values(found, "greedy")
        state.results["skill_greedy"] = found.success
        if found.solved >= sft.skill_target:
            data.setdefault("skilled", done)
    if done >= sft.max_steps:
        data.setdefault("skilled", done)
    if sft.mixed_steps == 0 and data.get("skilled", done + 1) + sft.cooldown_steps <= done:
        data["ended"] = done


def _mixed_step_ended(ctx: Context, mixed: int, values: dict[str, float]) -> None:
    """Measure sampled success when it is time, `mixed` steps into that part; it decides the end."""
    state, sft = ctx.state, ctx.setting.config.sft
    if mixed % MIXED_EVERY == 0:
        warm = ctx.setting.config.rollout.temperature
        found = glance(ctx, ctx.setting.tasks.val, f"{COLD}/sampled", warm)
        values |= glance_values(found, "sampled")
        if found.solved <= sft.mixed_success:
            state.phase_data["ended"] = state.phase_step
    if mixed >= sft.mixed_steps:
        state.phase_data["ended"] = state.phase_step
    state.results["mixed_steps"] = mixed


def run_control(ctx: Context) -> None:
    """The honest control: from the same start, supervised training on the policy's own successful
    rollouts (rejection sampling) instead of reinforcement learning.

    It has about the same minutes: where steps bound the run, `CONTROL_SHARE` times as many.
    """
    setting, state = ctx.setting, ctx.state
    if "weights" not in state.phase_data:
        setting.policy.load_tensors(ctx.kept["start"])
        setting.policy.version += 1
        state.phase_data["weights"] = "start"
    ctx.optimizer = restore(ctx, adamw_of(setting.policy.named(), setting.config.actor.optim))
    limit = None
    if step_limit(ctx) is not None:
        limit = math.ceil(CONTROL_SHARE * state.results["rl_steps"])
    budget = state.seconds.get(RL, 0.0)
    ctx.progress.phase("control: rejection sampling", steps=limit, seconds=budget)
    begun = ctx.clock.elapsed() - state.seconds.get(CONTROL, 0.0)
    while not _control_ended(ctx, limit, budget, begun):
        step = state.phase_step
        state.tick += 1
        start = time.perf_counter()
        rollouts = sample_plain(ctx, CONTROL, step)
        rows = [
            TokenRow(row.ids, row.mask, row.narrowed)
            for r in rollouts
            if succeeded(r)
            for row in build_rows(r.last.calls)
        ]
        values = {k: v for k, v in rollout_metrics(rollouts).items() if k == "reward/mean"}
        values |= failure_metrics(rollouts)
        if rows:
            rate = learning_rate_share(step, limit, setting.config.actor.optim)
            values |= cold_start.supervised_step(
                setting, ctx.optimizer, rows, setting.choice.numerics, rate
            )
            values.pop("tokens")
        state.phase_step = step + 1
        values["time/step"] = time.perf_counter() - start
        state.seconds[CONTROL] = ctx.clock.elapsed() - begun
        end_step(ctx, CONTROL, values)


def _control_ended(ctx: Context, limit: int | None, budget: float, begun: float) -> bool:
    state = ctx.state
    if limit is not None:
        return state.phase_step >= limit
    decided = ctx.decided("phase_end", CONTROL)
    if decided is not None:
        return state.phase_step >= decided["step"]
    if ctx.clock.elapsed() - begun >= budget:
        ctx.event("phase_end", phase=CONTROL, step=state.phase_step, reason="same time as rl")
        return True
    return False
