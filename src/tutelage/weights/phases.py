"""What the training phases share: their names, when they end, and what happens after each step.

A phase is a loop over steps that can stop after any step and go on later: what it needs to know is
in `TrainingState.phase_step` and `TrainingState.phase_data`, and every draw is addressed by the
seed tree. The phases are `measure.py`, `cold_start.py`, `sft.py`, and `rl.py` with its control;
`training.py` puts them in order.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeVar

from tutelage.policy.machine import trim_memory
from tutelage.runs.folder import RunFolder
from tutelage.runs.progress import LATER
from tutelage.weights import checkpoint
from tutelage.weights.checkpoint import BEST, TrainingState
from tutelage.weights.context import TrainingContext
from tutelage.weights.inputs import TrainingInputs

if TYPE_CHECKING:
    from torch.distributed.checkpoint.stateful import Stateful

COLD, RL, CONTROL, SFT = "cold_start", "rl", "control", "sft"

T = TypeVar("T", bound="Stateful")


def step_limit(setting: TrainingInputs) -> int | None:
    """Training steps, where the configuration bounds them."""
    config = setting.config
    if config.epochs is None:
        return config.trainer.total_training_steps
    return max(1, math.ceil(config.epochs * setting.examples / config.data.train_batch_size))


def drawn(setting: TrainingInputs, steps: int) -> int:
    """Tasks, or rows of demonstrations, that the first `steps` steps draw. Where epochs end the
    training, the last step draws the rest."""
    config, count = setting.config, steps * setting.config.data.train_batch_size
    return count if config.epochs is None else min(count, config.epochs * setting.examples)


def seconds_left(ctx: TrainingContext) -> float | None:
    minutes = ctx.setting.config.trainer.minutes
    return None if minutes is None else max(0.0, 60 * minutes - ctx.clock.elapsed())


def ended(ctx: TrainingContext, phase: str, limit: int | None) -> bool:
    """Whether a phase is over; a decision by the clock is recorded, and honoured on resume."""
    return ctx.setting.group.agree(lambda: _ended(ctx, phase, limit))


def _ended(ctx: TrainingContext, phase: str, limit: int | None) -> bool:
    state = ctx.state
    if limit is not None and state.phase_step >= limit:
        return True
    if _solved(ctx.setting, state):
        return True
    decided = ctx.run.decided("phase_end", phase)
    if decided is not None:
        return state.phase_step >= decided["step"]
    left = seconds_left(ctx)
    if left is not None and left <= 0:
        ctx.run.event("phase_end", phase=phase, step=state.phase_step, reason="minutes")
        return True
    return False


def reason_to_end(setting: TrainingInputs, state: TrainingState, seconds: float) -> str | None:
    """The key that ends a training that is so far, None where it goes on."""
    trainer, limit = setting.config.trainer, step_limit(setting)
    if limit is not None and state.phase_step >= limit:
        steps = trainer.total_training_steps is not None
        key = "total_training_steps" if steps else "total_epochs"
    elif _solved(setting, state):
        key = "stop_at_success"
    elif trainer.minutes is not None and seconds >= 60 * trainer.minutes:
        key = "minutes"
    else:
        return None
    return f"trainer.{key}={getattr(trainer, key)}"


def resumed_from(setting: TrainingInputs, state: TrainingState, folder: RunFolder) -> str:
    """What the checkpoint has, and what was done since, which is repeated."""
    limit = step_limit(setting) if state.phase in (RL, SFT) else None
    message = (
        f"resumed after step {state.phase_step}{f'/{limit}' if limit else ''} of {state.phase}"
    )
    if state.phase in state.results.get("done", ()):
        message = f"resumed after the phase {state.phase}"
    elif not state.phase_step:
        message = f"resumed at the start{f' of {state.phase}' if state.phase else ''}"
    if later := folder.read_metrics()[state.metrics_lines :]:
        step = f"step {later[-1]['step']} of {later[-1]['phase']}"
        message += f"; what was done since, up to {step}, is repeated"
    return message


def _solved(setting: TrainingInputs, state: TrainingState) -> bool:
    """Whether validation has found the success that ends training."""
    solved, wanted = state.phase_data.get("solved"), setting.config.trainer.stop_at_success
    return solved is not None and wanted is not None and solved >= wanted


def restore(ctx: TrainingContext, trained: T) -> T:
    """Give what a phase trains the state of the checkpoint, when this phase was running."""
    saved = ctx.kept.pop("optimizer", None)
    if saved is not None and ctx.state.phase_step > 0:
        trained.load_state_dict(saved)
    return trained


def end_step(ctx: TrainingContext, phase: str, values: dict[str, float]) -> None:
    """Log a step, checkpoint when it is time, stop when asked."""
    trim_memory()
    values["time/elapsed"] = ctx.clock.elapsed()
    phases = list(ctx.expected)
    later = [ctx.expected[name] for name in phases[phases.index(phase) + 1 :]]
    if None not in later:
        values[LATER] = sum(filter(None, later))
    ctx.log(phase, ctx.state.phase_step, values)
    every = ctx.setting.config.trainer.save_freq
    best = ctx.state.results.get(BEST, {}).get("step") == ctx.state.phase_step
    if (every > 0 and ctx.state.phase_step % every == 0) or (best and phase in (RL, SFT)):
        ctx.save()
    ctx.check_stop()


def end_training(ctx: TrainingContext) -> None:
    """Checkpoint the last step, from where training goes on when it is given more steps."""
    last = checkpoint.place(ctx.run.folder, ctx.state)
    missing = ctx.setting.group.agree(lambda: last not in checkpoint.complete(ctx.run.folder))
    if ctx.state.phase_step > 0 and missing:
        ctx.save()


def note_best(ctx: TrainingContext, value: float) -> None:
    """Keep in mind the step that did best in validation; its checkpoint stays."""
    best = ctx.state.results.get(BEST)
    if best is None or value > best["value"]:
        ctx.state.results[BEST] = {"step": ctx.state.phase_step, "value": value}
