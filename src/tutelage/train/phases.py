"""The phases of a training job: cold start, reinforcement learning, control, and measurements.

Each phase is a loop over steps that can stop after any step and go on later: what it needs to know
is in `State.phase_step` and `State.phase_data`, and every draw is addressed by the seed tree. They
work on a `Context`; `jobs.py` puts them in order.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from tutelage.config.rl import OptimizerConfig
from tutelage.evaluate.outcome import Evaluation, succeeded, summarise
from tutelage.policy.packing import TokenRow
from tutelage.rollouts.rows import build_rows
from tutelage.rollouts.runner import Spec
from tutelage.seeds import SeedTree
from tutelage.train import cold_start
from tutelage.train.batch import make_batch
from tutelage.train.context import Context
from tutelage.train.machine import trim_memory
from tutelage.train.optim import Optimizer, adamw, muon
from tutelage.train.update import update_policy
from tutelage.types import Mode, Rollout, Task

COLD, RL, CONTROL = "cold_start", "rl", "control"


# ---------------------------------------------------------------- measuring


def measure(
    ctx: Context,
    tasks: Sequence[Task],
    label: str,
    *,
    temperature: float,
    mode: Mode,
    with_tools: bool = True,
    invariant: bool = True,
) -> Evaluation:
    """Play held-out tasks once each. With `invariant` a task's samples do not depend on the other
    tasks, bit for bit, at some cost."""
    state = ctx.state
    seeds = ctx.setting.seeds.child("evaluation", label, state.tick)
    specs = [
        Spec(task, mode, task.id, 0, seeds.child(i), state.tick, label)
        for i, task in enumerate(tasks)
    ]
    done = 0

    def count(_: Rollout) -> None:
        nonlocal done
        done += 1
        ctx.progress.evaluation(label, done, len(specs))

    agent = ctx.setting.agent(temperature, with_tools=with_tools)
    return summarise(ctx.play(specs, agent, invariant=invariant, on_done=count))


def _glance(ctx: Context, tasks: Sequence[Task], label: str, temperature: float) -> Evaluation:
    """A quick measurement on validation tasks, within a phase."""
    return measure(ctx, tasks, label, temperature=temperature, mode=Mode.VAL, invariant=False)


def measure_before_or_after(ctx: Context, name: str, *, no_tools: bool = False) -> None:
    """The phase that measures test tasks, sampled and greedy, and keeps what it found."""
    kinds = [("sampled", ctx.setting.config.rollout.temperature, True), ("greedy", 0.0, True)]
    if no_tools:
        kinds.append(("no_tools", 0.0, False))
    ctx.progress.phase(f"measure {name}")
    for kind, temperature, with_tools in kinds:
        label = f"{name}/{kind}"
        if label in ctx.state.results:
            continue
        ctx.state.tick += 1
        found = measure(
            ctx,
            ctx.setting.tasks.test,
            label,
            temperature=temperature,
            mode=Mode.TEST,
            with_tools=with_tools,
        )
        ctx.state.results[label] = {
            "success": found.success,
            "interval": list(found.interval),
            "mean_reward": found.mean_reward,
            "by_family": {f: list(v) for f, v in found.by_family.items()},
        }
        ctx.save()
        ctx.check_stop()


# ---------------------------------------------------------------- cold start


def run_cold_start(ctx: Context) -> None:
    """Clean demonstrations until the skill is measured, a cool-down, then mixed ones."""
    setting, state = ctx.setting, ctx.state
    sft = setting.config.sft
    ctx.optimizer = _restore(ctx, muon(setting.policy.named(), lr=sft.lr))
    after = sft.cooldown_steps + sft.mixed_steps
    ctx.progress.phase("cold start", steps=sft.max_steps + after)
    tasks = setting.tasks.val[: min(100, len(setting.tasks.val))]
    while (
        "skilled" not in state.phase_data or state.phase_step < state.phase_data["skilled"] + after
    ):
        start = time.perf_counter()
        step, skilled = state.phase_step, state.phase_data.get("skilled")
        mixed = skilled is not None and step >= skilled + sft.cooldown_steps
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
        last_clean = skilled is not None and step + 1 == skilled + sft.cooldown_steps
        if last_clean or (skilled is None and (step + 1) % sft.eval_every == 0):
            found = _glance(ctx, tasks, COLD, 0.0)
            values["val/success_greedy"] = found.success
            state.results["skill_greedy"] = found.success
            if skilled is None and found.success >= sft.skill_target:
                state.phase_data["skilled"] = step + 1
        if skilled is None and step + 1 >= sft.max_steps:
            state.phase_data.setdefault("skilled", step + 1)
        _end_step(ctx, COLD, values)


# ---------------------------------------------------------------- reinforcement learning


def run_rl(ctx: Context) -> None:
    """Sample, reward, update, until steps, minutes or success end it."""
    setting, state = ctx.setting, ctx.state
    optim = setting.config.actor.optim
    if state.phase_step == 0 and setting.config.trainer.control:
        ctx.kept["start"] = {n: t.detach().clone() for n, t in setting.policy.named()}
    ctx.optimizer = _restore(ctx, _adamw(ctx))
    limit = step_limit(ctx)
    ctx.progress.phase("reinforcement learning", steps=limit, seconds=_seconds_left(ctx))
    while not _ended(ctx, RL, limit):
        step = state.phase_step
        state.tick += 1
        start = time.perf_counter()
        rollouts = _sample(ctx, RL, step)
        sampled = time.perf_counter()
        batch = make_batch(rollouts, setting.config)
        rate = learning_rate_share(step, limit, optim)
        values = update_policy(
            setting.policy,
            ctx.optimizer,
            batch,
            setting.config,
            setting.choice.numerics,
            seeds=setting.seeds.child(RL, step, "update"),
            rate=rate,
        )
        end = time.perf_counter()
        state.phase_step = step + 1
        state.max_dlogp = max(state.max_dlogp, values["max_dlogp"])
        values |= rollout_metrics(rollouts)
        values |= {
            "lr": optim.lr * rate,
            "time/rollout": sampled - start,
            "time/update": end - sampled,
            "tokens_per_second": values["rollout/tokens"] * len(rollouts) / (end - start),
        }
        _validate(ctx, values)
        _end_step(ctx, RL, values)


def learning_rate_share(step: int, limit: int | None, optim: OptimizerConfig) -> float:
    """Share of the learning rate at a step: warm-up, then constant or linear to zero at `limit`."""
    rate = min(1.0, (step + 1) / optim.warmup_steps) if optim.warmup_steps else 1.0
    if optim.lr_scheduler_type == "linear" and limit is not None:
        rate *= 1.0 - step / limit
    return rate


def _sample(ctx: Context, phase: str, step: int) -> list[Rollout]:
    """The rollouts of one training step: so many tasks, so many rollouts each."""
    setting, state = ctx.setting, ctx.state
    config = setting.config
    tasks = tasks_of_step(
        setting.tasks.train, config.data.train_batch_size, step, setting.seeds.child(phase, "order")
    )
    specs = [
        Spec(
            task,
            Mode.TRAIN,
            f"{phase}/{step}/{place}",
            index,
            setting.seeds.child(phase, step, place, index),
            state.tick,
            "" if phase == RL else phase,
        )
        for place, task in enumerate(tasks)
        for index in range(config.agent.num_chains)
    ]
    return ctx.play(specs, setting.agent(config.rollout.temperature))


def tasks_of_step(tasks: Sequence[Task], size: int, step: int, seeds: SeedTree) -> list[Task]:
    """The tasks of a step: epochs over a shuffled order, each epoch with its own shuffle."""
    out: list[Task] = []
    order: list[int] = []
    known = -1
    for place in range(step * size, (step + 1) * size):
        epoch, at = divmod(place, len(tasks))
        if epoch != known:
            order, known = list(range(len(tasks))), epoch
            seeds.child(epoch).python().shuffle(order)
        out.append(tasks[order[at]])
    return out


def step_limit(ctx: Context) -> int | None:
    """Steps of reinforcement learning, when the configuration bounds them."""
    trainer = ctx.setting.config.trainer
    if trainer.total_training_steps is not None:
        return trainer.total_training_steps
    if trainer.total_epochs is not None:
        size = ctx.setting.config.data.train_batch_size
        return max(1, trainer.total_epochs * len(ctx.setting.tasks.train) // size)
    return None


def _seconds_left(ctx: Context) -> float | None:
    minutes = ctx.setting.config.trainer.minutes
    return None if minutes is None else max(0.0, 60 * minutes - ctx.clock.elapsed())


def _ended(ctx: Context, phase: str, limit: int | None) -> bool:
    """Whether a phase is over; a decision by the clock is recorded, and honoured on resume."""
    state = ctx.state
    if limit is not None and state.phase_step >= limit:
        return True
    if state.phase_data.get("solved"):
        return True
    decided = ctx.decided("phase_end", phase)
    if decided is not None:
        return state.phase_step >= decided["step"]
    left = _seconds_left(ctx)
    if left is not None and left <= 0:
        ctx.event("phase_end", phase=phase, step=state.phase_step, reason="minutes")
        return True
    return False


def _validate(ctx: Context, values: dict[str, float]) -> None:
    """Every `test_freq` steps: held-out success, sampled and greedy; the end when it is solved."""
    trainer, state = ctx.setting.config.trainer, ctx.state
    if trainer.test_freq <= 0 or state.phase_step % trainer.test_freq:
        return
    start, cpu = time.perf_counter(), time.process_time()
    tasks = ctx.setting.tasks.val
    warm = ctx.setting.config.rollout.temperature
    sampled = _glance(ctx, tasks, f"{RL}/sampled", warm).success
    greedy = _glance(ctx, tasks, f"{RL}/greedy", 0.0).success
    values |= {"val/success_sampled": sampled, "val/success_greedy": greedy}
    values["time/validate"] = time.perf_counter() - start
    values["time/validate_cpu"] = time.process_time() - cpu
    if trainer.stop_at_success is not None and sampled >= trainer.stop_at_success:
        state.phase_data["solved"] = True


def rollout_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Rewards, turns, tokens, failures and tool use of a step, averaged."""
    total = len(rollouts)
    rewards = [r.reward.value for r in rollouts if r.reward is not None]
    mean = sum(rewards) / max(1, len(rewards))
    variance = sum((x - mean) ** 2 for x in rewards) / max(1, len(rewards))
    out = {
        "reward/mean": mean,
        "reward/std": variance**0.5,
        "reward/min": min(rewards, default=0.0),
        "reward/max": max(rewards, default=0.0),
        "rollout/turns": sum(len(r.last.calls) for r in rollouts) / total,
        "rollout/tokens": sum(
            len(c.sampled.token_ids) for r in rollouts for c in r.last.calls
        ) / total,
        "rollout/truncated": sum(r.last.stop in ("token_budget", "context") for r in rollouts)
        / total,
        "rollout/failed": sum(r.last.failure is not None for r in rollouts) / total,
    }  # fmt: skip
    parts: dict[str, list[float]] = {}
    for rollout in rollouts:
        for name, value in (rollout.reward.parts if rollout.reward is not None else {}).items():
            parts.setdefault(name, []).append(value)
    out |= {f"reward/{n}": sum(v) / len(v) for n, v in sorted(parts.items())}
    calls: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    for result in (t for r in rollouts for t in r.last.tool_results):
        name = result.name if result.error != "unknown_tool" else "unknown"
        calls[name] += 1
        errors[name] += result.error is not None
    for name in sorted(calls):
        out[f"tools/{name}/calls"] = calls[name] / total
        out[f"tools/{name}/errors"] = errors[name] / calls[name]
    return out


# ---------------------------------------------------------------- control


def run_control(ctx: Context) -> None:
    """The honest control: from the same start and with the same effort, supervised training on the
    policy's own successful rollouts (rejection sampling) instead of reinforcement learning."""
    setting, state = ctx.setting, ctx.state
    if "weights" not in state.phase_data:
        setting.policy.load_tensors(ctx.kept["start"])
        setting.policy.version += 1
        state.phase_data["weights"] = "start"
    ctx.optimizer = _restore(ctx, _adamw(ctx))
    limit = state.results["rl_steps"] if step_limit(ctx) is not None else None
    budget = state.seconds.get(RL, 0.0)
    ctx.progress.phase("control: rejection sampling", steps=limit, seconds=budget)
    begun = ctx.clock.elapsed() - state.seconds.get(CONTROL, 0.0)
    while not _control_ended(ctx, limit, budget, begun):
        step = state.phase_step
        state.tick += 1
        start = time.perf_counter()
        rollouts = _sample(ctx, CONTROL, step)
        rows = [
            TokenRow(row.ids, row.mask)
            for r in rollouts
            if succeeded(r)
            for row in build_rows(r.last.calls)
        ]
        values: dict[str, float] = {"reward/mean": rollout_metrics(rollouts)["reward/mean"]}
        if rows:
            rate = learning_rate_share(step, limit, setting.config.actor.optim)
            values |= cold_start.supervised_step(
                setting, ctx.optimizer, rows, setting.choice.numerics, rate
            )
            values.pop("tokens")
        state.phase_step = step + 1
        values["time/step"] = time.perf_counter() - start
        state.seconds[CONTROL] = ctx.clock.elapsed() - begun
        _end_step(ctx, CONTROL, values)


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


# ---------------------------------------------------------------- shared


def _adamw(ctx: Context) -> Optimizer:
    optim = ctx.setting.config.actor.optim
    return adamw(
        ctx.setting.policy.named(),
        lr=optim.lr,
        betas=optim.betas,
        weight_decay=optim.weight_decay,
        clip_grad=optim.clip_grad,
    )


def _restore(ctx: Context, optimizer: Optimizer) -> Optimizer:
    """Give a fresh optimizer the state of the checkpoint, when this phase was under way."""
    saved = ctx.kept.pop("optimizer", None)
    if saved is not None and ctx.state.phase_step > 0:
        optimizer.load_state_dict(saved)
    return optimizer


def _end_step(ctx: Context, phase: str, values: dict[str, float]) -> None:
    """Log a step, checkpoint when it is time, stop when asked."""
    trim_memory()
    values["time/elapsed"] = ctx.clock.elapsed()
    ctx.log(phase, ctx.state.phase_step, values)
    every = ctx.setting.config.trainer.save_freq
    if every > 0 and ctx.state.phase_step % every == 0:
        ctx.save()
    ctx.check_stop()
