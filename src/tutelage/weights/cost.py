"""What a training will cost: how much is played, said before it starts, and how long that takes.

How many rollouts there will be is known from the configuration (`planned`). What one takes, and its
update, is measured in the second step. `runs/estimate.py` puts both into words.
"""

from __future__ import annotations

from tutelage.rewards import RewardFunction
from tutelage.runs.estimate import duration
from tutelage.runs.job_inputs import grader_of
from tutelage.weights.context import TrainingContext
from tutelage.weights.inputs import TrainingInputs
from tutelage.weights.phases import drawn, seconds_left, step_limit


def planned(setting: TrainingInputs) -> dict[str, str]:
    """How many rollouts a training by rewards will play, how many tokens they may have, and what
    grades them."""
    plan = {"plan": _rollouts(setting), "tokens": _tokens(setting)}
    return plan | {"reward": _graded_by(grader_of(setting.given, setting.reward))}


def _rollouts(setting: TrainingInputs) -> str:
    config, limit = setting.config, step_limit(setting)
    size, chains = config.data.train_batch_size, config.agent.num_chains
    if limit is None:
        return f"{size * chains:,} rollouts a step, until the time is over"
    training, measuring = _left(setting, limit)
    before = config.trainer.val_before_train * (1 + (setting.shown is not None))
    measuring += 2 * len(setting.tasks.test) * before
    tasks = drawn(setting, limit)
    last = f", {tasks % size} tasks in the last one," * (tasks < limit * size)
    return (
        f"{_counted(limit, 'step')} x {_counted(size, 'task')} x {chains:,}{last} = "
        f"{_counted(tasks * chains, 'rollout')}"
        f"{' twice, with the control' * (training > limit * size * chains)}, {measuring:,} to "
        "measure"
    )


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _tokens(setting: TrainingInputs) -> str:
    config, own = setting.config, setting.policy.max_positions
    most = f"at most {config.turn_tokens:,} a turn, {config.response_tokens:,} a rollout"
    if setting.given is not None and config.rollout.response_length is None:
        most = f"at most {config.turn_tokens:,} a call for which the agent names no limit"
    bound, asked = (
        "" if setting.context == own else f" (the model: {own:,})",
        config.rollout.max_len,
    )
    if asked is not None and asked > own:
        bound = f" (all that the model has: rollout.max_len={asked} has no effect)"
    return f"{most}, context {setting.context:,}{bound}"


def _graded_by(grader: RewardFunction | None) -> str:
    if grader is None:
        return "what the agent returns"
    if not grader.sees_attempt:
        return f"{grader.name}, which never sees the reply: it has no parameter 'prediction'"
    fields = ", ".join(map(repr, sorted(grader.fields_read or ())))
    return f"{grader.name}, which grades the reply" + f" by the task's {fields}" * bool(fields)


def _left(setting: TrainingInputs, limit: int, done: int = 0) -> tuple[int, int]:
    """Rollouts to train on after `done` of `limit` steps, those of the control too, and to measure
    with."""
    config, every = setting.config, setting.config.trainer.test_freq
    control = config.trainer.control != "none"
    steps = limit - done + control * limit
    looks = (1 + control) * (limit // every) - done // every if every > 0 else 0
    kinds = 2 * (1 + control) + (setting.given is None)
    measuring = 2 * looks * len(setting.tasks.val) + kinds * len(setting.tasks.test)
    return steps * config.rollouts_per_batch, measuring


def tell_cost(ctx: TrainingContext, update: float | None, made: int) -> None:
    """Say what is left of a training, once, after the second step that this process made: the first
    has work that is done once. `update` is what the step's update took, in seconds; None where no
    rollout of it had an advantage."""
    state, setting, pace = ctx.state, ctx.setting, ctx.pace
    ahead = setting.config.async_training.staleness_threshold > 0
    if pace is None or made != 2 or ahead:  # its pace beside the updates was not measured
        return
    each = (update or 0.0) / setting.config.rollouts_per_batch
    limit, left = step_limit(setting), seconds_left(ctx)
    words: list[str] = []
    if limit is not None and limit > state.phase_step:
        training, measuring = _left(setting, limit, state.phase_step)
        what = "" if update is None else "updates"
        words.append(pace.words(training + measuring, more=training * each, what=what))
    if left is not None:
        fit = int(left / (pace.seconds / pace.rollouts + each))
        words.append(f"{duration(left)} are left, in which about {fit:,} rollouts fit")
    if words and update is None:
        words.append(
            "the time of updates is not included: in this step there was nothing to learn from"
        )
    if words:
        ctx.run.progress.note(f"Cost from here: {'; '.join(words)}")
