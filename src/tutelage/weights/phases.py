"""What the training phases share: their names, when they end, and what happens after each step.

A phase is a loop over steps that can stop after any step and go on later: what it needs to know is
in `State.phase_step` and `State.phase_data`, and every draw is addressed by the seed tree. The
phases are `measure.py`, `cold_start.py`, `sft.py`, and `rl.py` with its control; `training.py` puts
them in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from tutelage.policy.machine import trim_memory
from tutelage.weights.context import Context

if TYPE_CHECKING:
    from torch.distributed.checkpoint.stateful import Stateful

COLD, RL, CONTROL, SFT = "cold_start", "rl", "control", "sft"

T = TypeVar("T", bound="Stateful")


def seconds_left(ctx: Context) -> float | None:
    minutes = ctx.setting.config.trainer.minutes
    return None if minutes is None else max(0.0, 60 * minutes - ctx.clock.elapsed())


def ended(ctx: Context, phase: str, limit: int | None) -> bool:
    """Whether a phase is over; a decision by the clock is recorded, and honoured on resume."""
    state = ctx.state
    if limit is not None and state.phase_step >= limit:
        return True
    if state.phase_data.get("solved"):
        return True
    decided = ctx.run.decided("phase_end", phase)
    if decided is not None:
        return state.phase_step >= decided["step"]
    left = seconds_left(ctx)
    if left is not None and left <= 0:
        ctx.run.event("phase_end", phase=phase, step=state.phase_step, reason="minutes")
        return True
    return False


def restore(ctx: Context, trained: T) -> T:
    """Give what a phase trains the state of the checkpoint, when this phase was under way."""
    saved = ctx.kept.pop("optimizer", None)
    if saved is not None and ctx.state.phase_step > 0:
        trained.load_state_dict(saved)
    return trained


def end_step(ctx: Context, phase: str, values: dict[str, float]) -> None:
    """Log a step, checkpoint when it is time, stop when asked."""
    trim_memory()
    values["time/elapsed"] = ctx.clock.elapsed()
    ctx.log(phase, ctx.state.phase_step, values)
    every = ctx.setting.config.trainer.save_freq
    if every > 0 and ctx.state.phase_step % every == 0:
        ctx.save()
    ctx.check_stop()
