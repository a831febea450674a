"""The phase of supervised training that may come first: the cold start on demonstrations.

It is a loop over steps that can stop after any step and go on later; `cold_start.py` makes the
demonstrations and steps them. `phases.py` has what all phases share.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from torch import Tensor

from tutelage.config.schema import SftConfig
from tutelage.types import Mode
from tutelage.weights import cold_start
from tutelage.weights.context import Context
from tutelage.weights.measure import glance, glance_values, measure
from tutelage.weights.optim import Optimizer, adamw, muon
from tutelage.weights.phases import COLD, end_step, restore

MIXED_EVERY = 10
"""Steps of the mixed part between two measurements of sampled success."""


def run_cold_start(ctx: Context) -> None:
    """Clean demonstrations until the skill is measured, a cool-down, then mixed ones."""
    setting, state = ctx.setting, ctx.state
    sft = setting.config.sft
    ctx.optimizer = restore(ctx, _cold_optimizer(setting.policy.named(), sft))
    ctx.run.progress.phase("cold start", steps=sft.max_steps + sft.cooldown_steps + sft.mixed_steps)
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
        if found.solved >= sft.skill_target:
            data.setdefault("skilled", done)
    if done >= sft.max_steps:
        data.setdefault("skilled", done)
    if data.get("skilled", done + 1) + sft.cooldown_steps <= done:
        if sft.mixed_steps == 0:
            data["ended"] = done
        elif ctx.setting.given is None:
            _measure_clean(ctx)


def _measure_clean(ctx: Context) -> None:
    """What the clean demonstrations alone came to, on the tasks of the table before and after: the
    tasks that measure the skill may be easier ones."""
    found = measure(ctx, ctx.setting.tasks.test, "clean/greedy", temperature=0.0, mode=Mode.TEST)
    ctx.state.results["clean/greedy"] = found.record()


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
