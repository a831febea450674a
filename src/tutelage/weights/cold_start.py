"""The cold start: supervised steps on demonstrations before reinforcement learning.

It has two parts. The first trains on clean demonstrations until measured greedy success shows the
skills (calling a tool, copying numbers into it, reading its result), and then cools down. The
second trains on demonstrations of mixed quality, as in real logs: a configured share of them
guesses an answer instead of calling its tools, so the policy at the start of reinforcement learning
mostly guesses, and has to learn what is rewarded. Each step depends only on seed and step number.
`run.py` has the shared parts of all phases; `sft.py` uses the supervised step.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from torch import Tensor

from tutelage.policy.model import Policy
from tutelage.policy.numerics import Numerics
from tutelage.policy.row import Row
from tutelage.runs.lifecycle import Run
from tutelage.seeds import SeedTree
from tutelage.tasks.arithmetic import demonstrations
from tutelage.types import Mode
from tutelage.weights.checkpoint import COLD
from tutelage.weights.inputs import TrainingInputs
from tutelage.weights.measure import measure, quick_eval
from tutelage.weights.optim import SUPERVISED, Optimizer, make_optimizer
from tutelage.weights.process_group import ONE_PROCESS, ProcessGroup
from tutelage.weights.run import TrainingRun
from tutelage.weights.sampling import epoch_indices

WARMUP = 20
"""Number of steps over which the learning rate rises."""

FLOOR = 0.05
"""Factor of the learning rate at the end of the cool-down, and in the mixed part."""

MIXED_EVERY = 10
"""Number of steps of the mixed part between two measurements of sampled success."""


def run_cold_start(ctx: TrainingRun, run: Run) -> None:
    """Run the cold start: clean demonstrations, a cool-down, and mixed demonstrations."""
    setting, state, config = ctx.setting, ctx.state, ctx.setting.config
    sft = config.sft
    named, group = setting.policy.named_tensors(), setting.group
    optim = SUPERVISED.model_copy(update={"lr": sft.lr})
    optimizer = ctx.restore(make_optimizer(named, optim, sft.optimizer, group))
    ctx.optimizer = optimizer
    warmup = WARMUP if setting.shown is None else min(WARMUP, max(1, sft.max_steps))
    name = "cold start" if setting.shown is None else "demonstrations"
    run.progress.phase(name, steps=sft.max_steps + sft.cooldown_steps + sft.mixed_steps)
    while "ended" not in state.phase_data:
        step, skilled = state.phase_step, state.phase_data.get("skilled")
        clean_until = None if skilled is None else skilled + sft.cooldown_steps
        mixed = clean_until is not None and step >= clean_until
        seeds = setting.seeds.child(COLD, step)
        rows = demonstration_rows(setting, seeds, sft.guess_share if mixed else 0.0, step)
        share = learning_rate(step, skilled, sft.cooldown_steps, warmup)
        at_once, numerics = config.actor.max_tokens_per_micro_batch, setting.choice.cold_start
        values = supervised_step(setting.policy, optimizer, rows, numerics, share, at_once, group)
        values |= {"lr": sft.lr * share}
        state.phase_step, state.tick = step + 1, state.tick + 1
        if clean_until is None or step + 1 <= clean_until:
            _finish_clean_step(ctx, values)
        else:
            _finish_mixed_step(ctx, step + 1 - clean_until, values)
        ctx.end_step(COLD, values)


def _finish_clean_step(ctx: TrainingRun, values: dict[str, float]) -> None:
    """Measure greedy success if due, and start the cool-down at the target success."""
    state, sft = ctx.state, ctx.setting.config.sft
    data, done = state.phase_data, state.phase_step
    last = "skilled" in data and done == data["skilled"] + sft.cooldown_steps
    due = last or ("skilled" not in data and done % sft.eval_every == 0)
    if due and ctx.setting.tasks.skill and ctx.setting.shown is None:
        evaluation = quick_eval(ctx, ctx.setting.tasks.skill, COLD, 0.0, values)
        if evaluation.solved >= sft.skill_target:
            data.setdefault("skilled", done)
    if done >= sft.max_steps:
        data.setdefault("skilled", done)
    if data.get("skilled", done + 1) + sft.cooldown_steps <= done:
        if sft.mixed_steps == 0:
            data["ended"] = done
        elif ctx.setting.given is None:
            # What the clean demonstrations alone came to, on the tasks of the table before and
            # after: the tasks that measure the skill may be easier ones.
            evaluation = measure(
                ctx, ctx.setting.tasks.test, "clean/greedy", temperature=0.0, mode=Mode.TEST
            )
            state.results["clean/greedy"] = evaluation.record()


def _finish_mixed_step(ctx: TrainingRun, mixed_steps: int, values: dict[str, float]) -> None:
    """Measure sampled success if due, and end the phase at the target or after all mixed steps."""
    state, sft = ctx.state, ctx.setting.config.sft
    if mixed_steps % MIXED_EVERY == 0:
        warm = ctx.setting.config.rollout.temperature
        evaluation = quick_eval(ctx, ctx.setting.tasks.val, f"{COLD}/sampled", warm, values)
        if evaluation.solved <= sft.mixed_success:
            state.phase_data["ended"] = state.phase_step
    if mixed_steps >= sft.mixed_steps:
        state.phase_data["ended"] = state.phase_step
    state.results["mixed_steps"] = mixed_steps


# ---------------------------------------------------------------- one step


def demonstration_rows(
    inputs: TrainingInputs, seeds: SeedTree, guess_share: float, step: int = 0
) -> list[Row]:
    """Return the rows of one batch of demonstrations, in order or sampled at random."""
    rng, shown, size = seeds.python(), inputs.tasks.shown, inputs.config.sft.batch_size
    if inputs.shown is not None:
        rows, order = inputs.shown.train, inputs.seeds.child(COLD, "order")
        return [rows[i] for i in epoch_indices(len(rows), step * size, size, order)]
    if inputs.tasks.in_order:
        tasks = [shown[i % len(shown)] for i in range(step * size, (step + 1) * size)]
    else:
        tasks = rng.sample(list(shown), size)
    specs = [tool.spec for tool in inputs.tools.values()]
    drawn: list[Row] = []
    for task in tasks:
        guess = rng.random() < guess_share
        messages = [*task.messages(), *demonstrations(task, guess, rng)]
        drawn.append(Row(*inputs.policy.codec.encode_demonstration(messages, specs)))
    return drawn


def learning_rate(
    step: int, cooldown_from: int | None, cooldown_steps: int, warmup: int = WARMUP
) -> float:
    """Return the learning-rate factor at a step.

    It rises in the warm-up, is constant until the skill is measured, falls linearly to `FLOOR` in
    the cool-down, and is constant again.
    """
    rise = min(1.0, (step + 1) / warmup)
    if cooldown_from is None or step < cooldown_from:
        return rise
    done = min(1.0, (step - cooldown_from + 1) / max(1, cooldown_steps))
    return rise * (1.0 - (1.0 - FLOOR) * done)


def supervised_step(
    policy: Policy,
    optimizer: Optimizer,
    rows: Sequence[Row],
    numerics: Numerics,
    rate: float,
    max_tokens: int,
    group: ProcessGroup = ONE_PROCESS,
) -> dict[str, float]:
    """Run one optimizer step on the mean negative log-likelihood of the rows' trained tokens."""
    start = time.perf_counter()
    total = sum(sum(r.mask) for r in rows)
    plan = policy.micro_batches(rows, max_tokens)

    def loss(indices: list[int]) -> tuple[Tensor, Tensor]:
        scores = policy.score([rows[i] for i in indices], dtype=numerics.dtype)
        value = -scores.logp_K.sum() / total
        return value, value.detach()

    parts = group.accumulate(policy.parameters(), plan, loss, threads=numerics.threads)
    norm = optimizer.step(rate)
    policy.version += 1
    seconds = time.perf_counter() - start
    return {
        "loss/sft": float(sum(parts)),
        "grad_norm": norm,
        "tokens_per_second": total / seconds,
        "time/step": seconds,
    }
