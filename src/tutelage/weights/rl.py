"""The phase of reinforcement learning: sample, reward, learn, until something ends it.

The step is `loop.py`'s; this is what happens around it: the clock, the metrics, the checkpoints,
the held-out tasks. `phases.py` has the shared parts of all phases.

The control is the same training again with another estimator, to compare with. Reinforcement
learning is worth what it earns above a simple use of the same rollouts. So the loop runs a second
time: from the same start, on the same tasks in the same order, with as many steps and rollouts, the
same optimizer, clip and mini-batches, and an estimator that imitates what did well (`raft`,
`best_of_n`, `advantage_filtered`) or any other that `trainer.control` names. What it leaves is
measured as the trained policy is, and is not kept.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from torch import Tensor

from tutelage.algorithms.extensions import ESTIMATORS
from tutelage.config import RunConfig
from tutelage.resources import POLICY
from tutelage.runs import findings, health
from tutelage.runs.job_inputs import grader_of
from tutelage.runs.metrics import reward_correlations, rollout_metrics
from tutelage.weights.asynchronous import GroupQueue
from tutelage.weights.context import TrainingContext
from tutelage.weights.cost import tell_cost
from tutelage.weights.learner import MultiPolicyLearner, make_learner
from tutelage.weights.loop import TrainingLoop
from tutelage.weights.measure import quick_eval
from tutelage.weights.phases import (
    COLD,
    CONTROL,
    RL,
    end_step,
    end_training,
    ended,
    note_best,
    restore,
    seconds_left,
    step_limit,
)
from tutelage.weights.recording import StepRecorder
from tutelage.weights.sampling import play_groups

ESTIMATOR = "control_estimator"
"""Where the result has the name of the estimator."""


def run_rl(ctx: TrainingContext) -> None:
    """The phase, from where the checkpoint left it."""
    limit = step_limit(ctx.setting)
    ctx.run.progress.phase("reinforcement learning", steps=limit, seconds=seconds_left(ctx))
    _run_steps(ctx, RL, ctx.setting.config, lambda: ended(ctx, RL, limit))
    end_training(ctx)


def _run_steps(
    ctx: TrainingContext, phase: str, config: RunConfig, over: Callable[[], bool]
) -> None:
    """Steps of the loop until it is `over`: of this phase, or of the control, whose `config` has
    another estimator."""
    state, limit, begun = ctx.state, step_limit(ctx.setting), ctx.state.phase_step
    ctx.optimizer = learners = _learners(ctx, config)
    recorder = StepRecorder(
        ctx.run.store,
        ctx.run.writer,
        ctx.run.id,
        tick=state.tick,
        limit=config.trainer.record_tokens,
    )
    queue = None
    if config.async_training.staleness_threshold:
        queue = GroupQueue(ctx, phase, config, limit)
    play = partial(play_groups, ctx, phase, config=config) if queue is None else queue.play_groups
    loop = TrainingLoop(ctx, phase, learners, recorder, limit, play)
    lines = ctx.run.folder.read_metrics() if state.phase_step else ()
    steps = [line for line in lines if line["phase"] == phase]
    while not over():
        state.tick += 1
        start = time.perf_counter()
        groups, values = loop.step(state.phase_step)
        seconds = time.perf_counter() - start
        state.phase_step += 1
        if phase == RL and "max_dlogp" in values:
            state.max_dlogp = max(state.max_dlogp or 0.0, values["max_dlogp"])
        values |= rollout_metrics(groups.played) | groups.metrics
        values |= reward_correlations(groups.played, ctx.success)
        values |= {} if ctx.servers is None else ctx.servers.metrics()
        values |= {
            "time/update": seconds - values["time/rollout"],
            "tokens_per_second": values["rollout/tokens"] * len(groups.played) / seconds,
        }
        _tell_rows(ctx, values.get("rollout/rows", 1.0))
        _validate(ctx, phase, values)
        if phase == RL:
            steps.append(values)
            _tell_health(ctx, steps)
            trained = any(name.endswith("ratio/max") for name in values)
            took = values["time/update"] if trained else None
            tell_cost(ctx, took, state.phase_step - begun)
        end_step(ctx, phase, values)
    if queue is not None:
        queue.close()
    if phase == RL and steps:
        _tell_health(ctx, steps, ended=True)


def _tell_health(
    ctx: TrainingContext, steps: Sequence[Mapping[str, float]], *, ended: bool = False
) -> None:
    """Say at once what is wrong with the training, and keep it for the result."""
    config = ctx.setting.config
    limits = (
        f"agent.max_tokens_per_turn={config.turn_tokens}, "
        f"rollout.response_length={config.response_tokens}, rollout.max_len={ctx.setting.context}"
    )
    grader = grader_of(ctx.setting.given, ctx.setting.reward)
    setup = health.Setup(
        groups=config.data.train_batch_size,
        compares=ESTIMATORS.find(config.algorithm.adv_estimator).groups,
        limits=limits,
        rate=config.actor.optim.lr,
        ended=ended,
        reward=f"the reward {grader.name!r}" if grader else "what the agent returns",
        failures=ctx.state.results["first_failures"],
    )
    kept = ctx.state.results.setdefault("health", [])
    number, run = ctx.state.phase_step, shlex.quote(str(ctx.run.folder.path))
    for finding in findings.keep(kept, steps, setup, number=number, run=run):
        ctx.warn(str(finding)) if finding.warning else ctx.run.progress.note(str(finding))


def _tell_rows(ctx: TrainingContext, rows: float) -> None:
    """Say once, and keep, which part of the chat template splits rollouts into rows."""
    thoughts = ctx.setting.policy.codec.thoughts
    warnings: list[str] = ctx.state.results.setdefault("warnings", [])
    told = any("training rows" in warning for warning in warnings)
    if rows <= 1 or told or thoughts.rewriting is None:
        return
    warnings.append(
        f"a rollout became {rows:.3g} training rows on average: the chat template "
        f"{thoughts.rewriting}, so the next prompt does not begin with what was sampled. The rows "
        "count as one rollout, and each is computed by itself, which takes longer"
    )
    ctx.warn(warnings[-1])


def _start_is_own(config: RunConfig, done: Collection[str]) -> bool:
    """Whether a KL is from a policy that only this run has: a fresh one, or one that was shown
    demonstrations first."""
    made_here = config.model.path is None or COLD in done
    return config.needs_reference and config.ref.path is None and made_here


def _learners(ctx: TrainingContext, config: RunConfig) -> MultiPolicyLearner:
    """The learners, in the state of the checkpoint when the phase was running."""
    setting, state = ctx.setting, ctx.state
    fresh, control = state.phase_step == 0, config.trainer.control != "none"
    if fresh and (control or _start_is_own(config, state.results.get("done", ()))):
        ctx.kept["start"] = setting.policy.snapshot()
    referred = config.needs_reference and config.ref.path is None
    if fresh and setting.others and (control or referred):
        ctx.kept["starts"] = {name: p.snapshot() for name, p in setting.others.items()}
    starts = {POLICY: ctx.kept.get("start"), **ctx.kept.get("starts", {})}
    numerics = setting.choice.numerics
    main, *others = (
        make_learner(
            policy,
            config,
            numerics,
            fresh=fresh,
            start=starts.get(name),
            name=name,
            group=setting.group,
        )
        for name, policy in {POLICY: setting.policy, **setting.others}.items()
    )
    return restore(ctx, MultiPolicyLearner(main, dict(zip(setting.others, others, strict=True))))


def _validate(ctx: TrainingContext, phase: str, values: dict[str, float]) -> None:
    """Every `test_freq` steps: held-out success, sampled and greedy; the end when it is solved."""
    trainer, state = ctx.setting.config.trainer, ctx.state
    if trainer.test_freq <= 0 or state.phase_step % trainer.test_freq:
        return
    start, cpu = time.perf_counter(), time.process_time()
    tasks = ctx.setting.tasks.val
    warm = ctx.setting.config.rollout.temperature
    evaluation = quick_eval(ctx, tasks, f"{phase}/sampled", warm, values)
    quick_eval(ctx, tasks, f"{phase}/greedy", 0.0, values)
    if evaluation.mean_reward is not None:
        values["val/reward/mean"] = evaluation.mean_reward
        if phase == RL:
            note_best(ctx, evaluation.mean_reward)
    values["time/validate"] = time.perf_counter() - start
    values["time/validate_cpu"] = time.process_time() - cpu
    if trainer.stop_at_success is None:
        return
    if evaluation.success is not None and evaluation.success >= trainer.stop_at_success:
        state.phase_data["solved"] = evaluation.success
    elif not evaluation.kind.has_success and "told" not in state.phase_data:
        state.phase_data["told"] = True
        ctx.run.progress.note(
            "trainer.stop_at_success needs a success rule for a graded reward; set "
            "reward.success=PART or reward.success='\">=0.5\"'"
        )


# ---------------------------------------------------------------- the control


def run_control(ctx: TrainingContext) -> None:
    """The phase, from where the checkpoint left it."""
    state, steps = ctx.state, ctx.state.results["rl_steps"]
    if "begun" not in state.phase_data:
        setting = ctx.setting
        estimator = setting.config.trainer.control
        if estimator == "auto":
            # The best of one is that one: without groups only a success can be imitated.
            grouped = setting.config.agent.num_chains > 1
            estimator = "best_of_n" if ctx.kind.graded and grouped else "raft"
        state.results[ESTIMATOR] = estimator
        if setting.given is not None and setting.given.policies:
            policies = {POLICY: setting.policy, **setting.others}
            ctx.kept["trained"] = {name: policy.snapshot() for name, policy in policies.items()}
        _load(ctx, ctx.kept["start"], ctx.kept.get("starts", {}))
        state.phase_data["begun"] = True
    name = state.results[ESTIMATOR]
    ctx.run.progress.phase(f"control: {name}", steps=steps)
    known = ctx.setting.config
    rule = known.algorithm.model_copy(update={"adv_estimator": name})
    config = known.model_copy(update={"algorithm": rule})
    _run_steps(ctx, CONTROL, config, lambda: state.phase_step >= steps)


def return_weights(ctx: TrainingContext) -> None:
    """Put the trained weights back into the objects that a caller passed."""
    if "trained" in ctx.kept:
        trained = ctx.kept.pop("trained")
        _load(ctx, trained[POLICY], trained)


def _load(
    ctx: TrainingContext, main: dict[str, Tensor], others: dict[str, dict[str, Tensor]]
) -> None:
    setting = ctx.setting
    setting.policy.load_tensors(main)
    setting.policy.version += 1
    for name, policy in setting.others.items():
        policy.load_tensors(others[name])
        policy.version += 1
