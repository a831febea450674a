"""The phase of reinforcement learning, and its control.

The step is in `loop.py`; this module has the clock, the metrics, the checkpoints and the held-out
tasks around it. `run.py` has the shared parts of all phases.

The control is a second training for comparison: reinforcement learning is only worth its gain over
a simple use of the same rollouts. It has the same start, the same tasks in the same order, as many
steps and rollouts, and the same optimizer, clip and mini-batches, but an estimator that imitates
good rollouts (`raft`, `best_of_n`, `advantage_filtered`), or any other in `trainer.control`. Its
policy is measured like the trained one, and is not kept.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from functools import partial

from torch import Tensor

from tutelage.algorithms.extensions import ESTIMATORS
from tutelage.config import RunConfig
from tutelage.resources import POLICY
from tutelage.runs import findings, health
from tutelage.runs.job_inputs import job_reward
from tutelage.runs.lifecycle import Run
from tutelage.runs.metrics import reward_correlations, rollout_metrics
from tutelage.weights.asynchronous import GroupQueue
from tutelage.weights.checkpoint import COLD, CONTROL, RL
from tutelage.weights.cost import measure_cost
from tutelage.weights.inputs import step_limit
from tutelage.weights.learner import Learner
from tutelage.weights.loop import TrainingLoop
from tutelage.weights.measure import quick_eval
from tutelage.weights.run import TrainingRun
from tutelage.weights.sampling import play_groups

ESTIMATOR = "control_estimator"
"""Key of the result for the name of the control's estimator."""


def run_rl(ctx: TrainingRun, run: Run, phase: str = RL, config: RunConfig | None = None) -> None:
    """Run reinforcement learning from its checkpoint; `config` overrides that of the run."""
    setting, state, begun = ctx.setting, ctx.state, ctx.state.phase_step
    config, limit = config or setting.config, step_limit(setting)
    control_steps = state.results.get("rl_steps", 0) if phase == CONTROL else None
    if phase == RL:
        run.progress.phase("reinforcement learning", steps=limit, seconds=ctx.seconds_left())
    learners = _make_learners(ctx, config)
    run.store.discard_training(run.id, state.tick)  # what it has of later steps is done again
    queue = None
    if config.async_training.staleness_threshold:
        queue = GroupQueue(ctx, phase, config, limit)
    play = partial(play_groups, ctx, phase, config) if queue is None else queue.play_groups
    loop = TrainingLoop(ctx, phase, learners, limit, play)
    ctx.optimizer = ctx.restore(loop)
    lines = run.folder.read_metrics() if state.phase_step else ()
    steps = [line for line in lines if line["phase"] == phase]
    while not (ctx.is_over(RL, limit) if phase == RL else state.phase_step >= (control_steps or 0)):
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
        rewriting = setting.policy.codec.thoughts.rewriting_notice
        if values.get("rollout/rows", 1.0) > 1 and rewriting:
            ctx.warn_once(f"a rollout has several training rows: the chat template {rewriting}")
        _validate(ctx, phase, values)
        if phase == RL:
            steps.append(values)
            _report_health(ctx, steps)
            trained = any(name.endswith("ratio/max") for name in values)
            took = values["time/update"] if trained else None
            measure_cost(ctx, took, state.phase_step - begun)
        ctx.end_step(phase, values)
    if queue is not None:
        queue.close()
    if phase == RL and steps:
        _report_health(ctx, steps, finished=True)
    if phase == RL:
        ctx.end_training()


def _report_health(
    ctx: TrainingRun, steps: Sequence[Mapping[str, float]], *, finished: bool = False
) -> None:
    """Show problems of the training, and store them for the result."""
    config = ctx.setting.config
    limits = (
        f"agent.max_tokens_per_turn={config.turn_tokens}, "
        f"rollout.response_length={config.response_tokens}, rollout.max_len={ctx.setting.context}"
    )
    grader = job_reward(ctx.setting.given, ctx.setting.reward)
    setup = health.Setup(
        groups=config.data.train_batch_size,
        compares=ESTIMATORS.find(config.algorithm.adv_estimator).groups,
        limits=limits,
        rate=config.actor.optim.lr,
        ended=finished,
        reward=f"the reward {grader.name!r}" if grader else "what the agent returns",
        failures=ctx.state.results["first_failures"],
    )
    kept = ctx.state.results.setdefault("health", [])
    number, path = ctx.state.phase_step, shlex.quote(str(ctx.run.folder.path))
    for finding in findings.add_findings(kept, steps, setup, number=number, run=path):
        ctx.warn(str(finding)) if finding.warning else ctx.run.progress.note(str(finding))


def _make_learners(ctx: TrainingRun, config: RunConfig) -> dict[str, Learner]:
    """Create a learner for each trained policy."""
    setting, state = ctx.setting, ctx.state
    fresh, control = state.phase_step == 0, config.trainer.control != "none"
    referred = config.needs_reference and config.ref.path is None
    # A policy that only this run has: a fresh one, or one that was shown demonstrations first.
    made_here = config.model.path is None or COLD in state.results.get("done", ())
    if fresh and (control or (referred and made_here)):
        ctx.kept["start"] = setting.policy.snapshot()
    if fresh and setting.others and (control or referred):
        ctx.kept["starts"] = {name: p.snapshot() for name, p in setting.others.items()}
    starts = {POLICY: ctx.kept.get("start"), **ctx.kept.get("starts", {})}
    return {
        name: Learner(
            policy,
            config,
            setting.choice.numerics,
            fresh=fresh,
            initial_weights=starts.get(name),
            name=name,
            group=setting.group,
        )
        for name, policy in ctx.policies.items()
    }


def _validate(ctx: TrainingRun, phase: str, values: dict[str, float]) -> None:
    """Measure the validation tasks every `test_freq` steps, sampled and greedy."""
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
            ctx.note_best(evaluation.mean_reward)
    values["time/validate"] = time.perf_counter() - start
    values["time/validate_cpu"] = time.process_time() - cpu
    if trainer.stop_at_success is None:
        return
    if evaluation.success is not None and evaluation.success >= trainer.stop_at_success:
        state.phase_data["solved"] = evaluation.success
    elif not evaluation.kind.has_success:
        ctx.warn_once(
            "trainer.stop_at_success needs a success rule for a graded reward; set "
            "reward.success=PART or reward.success='\">=0.5\"'"
        )


def run_control(ctx: TrainingRun, run: Run) -> None:
    """Run the control training from its checkpoint."""
    setting, state = ctx.setting, ctx.state
    if "begun" not in state.phase_data:
        estimator = setting.config.trainer.control
        if estimator == "auto":
            # The best of one is that one: without groups only a success can be imitated.
            grouped = setting.config.agent.num_chains > 1
            estimator = "best_of_n" if ctx.kind.graded and grouped else "raft"
        state.results[ESTIMATOR] = estimator
        if setting.given is not None and setting.given.policies:
            ctx.kept["trained"] = {name: p.snapshot() for name, p in ctx.policies.items()}
        _load_weights(ctx, {POLICY: ctx.kept["start"], **ctx.kept.get("starts", {})})
        state.phase_data["begun"] = True
    name = state.results[ESTIMATOR]
    run.progress.phase(f"control: {name}", steps=state.results.get("rl_steps", 0))
    rule = setting.config.algorithm.model_copy(update={"adv_estimator": name})
    run_rl(ctx, run, CONTROL, setting.config.model_copy(update={"algorithm": rule}))


def return_weights(ctx: TrainingRun) -> None:
    """Copy the trained weights back to the policies passed by the caller."""
    if "trained" in ctx.kept:
        _load_weights(ctx, ctx.kept.pop("trained"))


def _load_weights(ctx: TrainingRun, weights: Mapping[str, dict[str, Tensor]]) -> None:
    for name, policy in ctx.policies.items():
        policy.load_tensors(weights[name])
        policy.version += 1
