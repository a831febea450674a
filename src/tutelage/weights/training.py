"""What a training of weights does and keeps: its phases in order, their results, its outcome.

A checkpoint is written at every phase's end, and by the phases at their steps. Stopping at any
moment, also with SIGKILL, loses at most the steps since the last one, and resuming repeats those
bit for bit. `kinds.py` declares the run; it is made ready here: from scratch, from another run's
checkpoint, or continued.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tutelage.environments.start import write_demonstrations
from tutelage.errors import RunError, counted
from tutelage.policy import machine
from tutelage.policy.lora import save_adapter
from tutelage.policy.sources import artefact
from tutelage.resources import POLICY, SHIPPED
from tutelage.runs.figures import read_object
from tutelage.runs.findings import warnings_of
from tutelage.runs.folder import RunFolder, keep_lines, write_json, write_text
from tutelage.runs.lifecycle import Run
from tutelage.runs.progress import Progress
from tutelage.runs.signals import Clock
from tutelage.runs.stored_evaluation import evaluation_keys
from tutelage.types import JSON, Rollout
from tutelage.weights import checkpoint, memory
from tutelage.weights.checkpoint import BEST, DROPPED, TrainingState
from tutelage.weights.cold_start import run_cold_start
from tutelage.weights.config.extensions import has_critic
from tutelage.weights.config.resolve import CHECKPOINTS, WARMUP
from tutelage.weights.context import TrainingContext
from tutelage.weights.cost import planned, total_time
from tutelage.weights.following import share_start
from tutelage.weights.inputs import TrainingInputs
from tutelage.weights.measure import measure_before_or_after
from tutelage.weights.paths import find_checkpoint
from tutelage.weights.phases import COLD, CONTROL, RL, SFT, reason_to_end, resumed_from, step_limit
from tutelage.weights.reference import check_models
from tutelage.weights.rl import ESTIMATOR, return_weights, run_control, run_rl
from tutelage.weights.sft import LEARNED, learned, run_sft

if TYPE_CHECKING:
    from tutelage.weights.kinds import WeightTraining

BEFORE, SHOWN, AFTER, AFTER_CONTROL = "before", "demonstrations", "after", "after_control"
EVALUATIONS = {
    "clean/greedy": "clean_greedy",
    "before/sampled": "before_sampled",
    "before/greedy": "before_greedy",
    "demonstrations/sampled": "demonstrations_sampled",
    "demonstrations/greedy": "demonstrations_greedy",
    "after/sampled": "after_sampled",
    "after/greedy": "after_greedy",
    "after/no_tools": "no_tools_greedy",
    "control/sampled": "control_sampled",
    "control/greedy": "control_greedy",
}
"""Labels of evaluations, and what `result.json` calls them."""

STEPS = {RL: "rl_steps", COLD: "cold_start_steps", SFT: "sft_steps"}
"""What `result.json` calls the steps of a phase."""

Work = tuple[str, Callable[[TrainingContext], None]]


# ---------------------------------------------------------------- what it works with


def prepare_training(asked: WeightTraining, folder: RunFolder, progress: Progress) -> None:
    """Read what a run needs: tasks, tools, reward and policy. With `resume_path` a new run goes on
    from a checkpoint of another one, which stays as it is."""
    if folder.config.is_file():
        _go_on(asked, folder, progress)
        return
    config = asked.resolved.config
    asked.state, trainer = checkpoint.TrainingState(), config.trainer
    if trainer.resume_mode == "resume_path" and trainer.resume_from_path is not None:
        place = find_checkpoint(Path(trainer.resume_from_path))
        asked.state, asked.tensors = checkpoint.load(place)
        asked.state.metrics_lines = 0
        asked.state.results.pop(BEST, None)  # its checkpoint stays in the other run
    asked.setting = asked.make_setting()
    if asked.tensors:
        _check_something_is_left(str(trainer.resume_from_path), asked.setting, asked.state)
    check_models(asked.setting.policy, config)


def _imitated(folder: RunFolder) -> Path:
    """Return the file of episodes of an environment that a run learns before rewards."""
    return folder.path / "demonstrations.jsonl"


def _initial(folder: RunFolder) -> Path:
    """Where the embedded policy's first weights and tokenizer are kept."""
    return folder.checkpoints / "initial"


def record_start(setting: TrainingInputs, folder: RunFolder) -> None:
    """Keep the conditions of the machine, and the weights that an embedded policy has."""
    write_json(folder.conditions, machine.compute_conditions(setting.choice))
    if setting.imitated:
        write_demonstrations(_imitated(folder), setting.imitated)
    if setting.config.model.path in (None, SHIPPED):
        setting.policy.save(_initial(folder), replace=True)
        checkpoint.seal(_initial(folder))


def _check_something_is_left(path: str, setting: TrainingInputs, state: TrainingState) -> None:
    """Raise `RunError` where the training of a checkpoint has ended, so that only measurements
    would follow."""
    limit, trained = step_limit(setting), state.phase in checkpoint.TRAINED
    if {RL, SFT} & set(state.results.get("done", ())):
        raise RunError(
            f"trainer.resume_from_path={path!r} was saved after training, so nothing would be "
            "trained; use one saved during training, such as checkpoints/step_000040"
        )
    if trained and limit is not None and state.phase_step >= limit:
        raise RunError(
            f"trainer.resume_from_path={path!r} was saved after {state.phase_step} steps, and "
            f"{limit} are requested, so nothing would be trained; raise "
            "trainer.total_training_steps (--steps)"
        )


def _go_on(asked: WeightTraining, folder: RunFolder, progress: Progress) -> None:
    """Read what a run has that was begun, from its last complete checkpoint."""
    first, kept = _initial(folder), checkpoint.complete(folder)
    if first.is_dir():
        try:
            checkpoint.check_seal(first)
        except RunError as error:
            raise RunError(
                f"cannot read the initial policy {str(first)!r} of the run: {error}; restore a "
                "copy, or start with another --output"
            ) from error
    elif kept and asked.resolved.config.model.path in (None, SHIPPED):
        raise RunError(
            f"the initial policy {str(first)!r} of the run is missing; restore it, or start with "
            "another --output"
        )
    asked.imitated = _imitated(folder) if _imitated(folder).is_file() else None
    asked.setting = setting = asked.make_setting(first if first.is_dir() else None)
    if asked.given is not None:
        asked.given.record(folder, setting.tasks.splits)
    asked.state = checkpoint.TrainingState()
    more = asked.extends(folder)
    if more:
        _rewind(asked, folder, progress)
    if values := checkpoint.load_newest(folder, progress.note):
        asked.state, asked.tensors = values
    if more:
        asked.record(folder)
    known = {"", COLD, SFT, BEFORE, SHOWN, RL, AFTER, CONTROL, AFTER_CONTROL}
    if unknown := {asked.state.phase, *asked.state.results.get("done", ())} - known:
        raise RunError(
            f"the checkpoint has the unknown phase {min(unknown)!r} (known: "
            f"{', '.join(sorted(known - {''}))}); start again with another --output"
        )
    if kept or folder.conditions.is_file():
        _compare_conditions(folder, machine.compute_conditions(setting.choice), progress)
    else:
        record_start(setting, folder)
    progress.note(resumed_from(setting, asked.state, folder))
    _cut_records(asked.state, folder, progress)


def _rewind(asked: WeightTraining, folder: RunFolder, progress: Progress) -> None:
    """Go back to the last step of training, from where a run that has ended is trained further.

    Raises `RunError` where its checkpoint is gone, or nothing more is asked for. A kill in between
    leaves the run as it was asked for first, before its last measurements.
    """
    setting, trained = asked.setting, checkpoint.of_training(folder)
    after = [path for path in checkpoint.complete(folder) if not trained or path > trained[-1]]
    finished = folder.read_result() is not None
    if not trained and finished:
        raise RunError(
            f"the run in {str(folder.path)!r} has no checkpoint saved during training, so it "
            f"cannot be trained further; use its policy as the model: model.path={folder.policy}"
        )
    if trained:
        state, _ = checkpoint.load(trained[-1])
        over = reason_to_end(setting, state, state.seconds.get("total", 0.0))
        if finished and over is not None:
            raise RunError(
                f"the run in {str(folder.path)!r} was trained for {state.phase_step} steps and "
                f"ended at {over}; raise it to train further"
            )
        _say_schedule(setting, state, progress)
    folder.result.unlink(missing_ok=True)
    for path in after if trained else ():
        shutil.rmtree(path, ignore_errors=True)
    left = [e for e in folder.read_events() if e.get("event") != "phase_end"]
    if folder.events.is_file():
        write_text(folder.events, "".join(json.dumps(event) + "\n" for event in left))


def _say_schedule(setting: TrainingInputs, state: TrainingState, progress: Progress) -> None:
    """Say where a learning rate that fell towards the first end is not that of a longer run."""
    config = setting.config
    rates = {"actor.optim": config.actor.optim, "critic.optim": config.critic.optim}
    falling = [
        f"{key}.lr_scheduler_type={optim.lr_scheduler_type}"
        for key, optim in rates.items()
        if optim.lr_scheduler_type != "constant" and (key == "actor.optim" or has_critic(config))
    ]
    if falling and state.phase_step:
        progress.note(
            f"not bit-identical to a longer run: the learning rate of the first {state.phase_step} "
            f"steps was scheduled for their number ({', '.join(falling)})"
        )


def _compare_conditions(folder: RunFolder, now: JSON, progress: Progress) -> None:
    """Say what is not as it was on the machine that the run was begun on."""
    remarks: list[str] = []
    before = read_object(folder.conditions, remarks)
    if not before:
        message = remarks[0] if remarks else f"{folder.conditions.name} is missing"
        progress.note(f"Warning: {message}, so changes of the machine cannot be detected")
    for change in machine.changed_conditions(before, now) if before else ():
        progress.note(f"not bit-identical from here: {change}")
    write_json(folder.conditions, now)


def _cut_records(state: TrainingState, folder: RunFolder, progress: Progress) -> None:
    """Cut metrics and events to what the checkpoint knows of; say what is missing of it."""
    there, counted = len(folder.read_metrics()), state.metrics_lines
    if there < counted:
        progress.note(
            f"Warning: {folder.metrics.name} has {there} of the {counted} lines that were written "
            "until the checkpoint; the others are lost"
        )
    state.metrics_lines = min(there, counted)
    keep_lines(folder.metrics, state.metrics_lines)
    keep_lines(folder.events, len(folder.read_events()))


def begin_context(asked: WeightTraining, run: Run) -> TrainingContext:
    """What the phases share, with a checkpoint's tensors back where they were; says what begins."""
    setting, state, tensors = share_start(asked)
    clock = Clock(state.seconds.get("total", 0.0))
    recorded: dict[Any, dict[str, Rollout]] = {}
    for rollout in run.store.rollouts(run.id, after=state.tick):
        key = (rollout.step, rollout.mode.value, rollout.label)
        recorded.setdefault(key, {})[rollout.id] = rollout
    ctx = TrainingContext(
        run, setting, state, asked.loop, clock, recorded, pool=asked.pool, servers=asked.servers
    )
    if tensors:
        setting.policy.load_tensors(tensors["policy"])
        setting.policy.version = state.policy_version
        ctx.kept = dict(tensors["kept"])
    if setting.shown is not None:
        state.results.setdefault("demonstrations_from", setting.shown.origin)
    ctx.bind_others()
    if "optimizer" in tensors:
        ctx.kept["optimizer"] = tensors["optimizer"]
    ctx.expected = dict.fromkeys(name for name, _ in phases_of(setting))
    recipe = "environment" if setting.environment else setting.config.recipe
    name = setting.given.agent.name if setting.given else recipe
    run.progress.start(name, _facts(asked, ctx))
    return ctx


def _start(path: str | None) -> str:
    """Say what an embedded policy has learned before, by the record of its training."""
    if path is None:
        return "random weights"
    made = read_object(artefact("math") / "artefact.json")
    return (
        f"shipped; trained from random weights in {made['minutes']:.0f} minutes (`--from-scratch` "
        f"does it again): right in {made['clean_success']:.0%} after clean demonstrations, then "
        f"shown logs of which {made['guess_share']:.0%} guess. RL makes it call its tools again."
    ).replace("%", " %")


def _facts(asked: WeightTraining, ctx: TrainingContext) -> dict[str, str]:
    """A few words before it begins."""
    setting = ctx.setting
    job_inputs, model, size = setting.given, setting.config.model, setting.policy.count() / 1e6
    own = "passed in Python" if job_inputs is not None and POLICY in job_inputs.policies else ""
    notes, named = asked.resolved.notes, {"rate": WARMUP, "saves": CHECKPOINTS}
    tools = ", ".join(setting.tools) or "none" if job_inputs is None else "the agent's own"
    return {
        "device": setting.choice.reason,
        "policy": f"{own or model.path or f'embedded {model.size}'}, {size:.2f} M parameters",
        **({"start": _start(model.path)} if model.path in (None, SHIPPED) and not own else {}),
        **({"environment": setting.environment.name} if setting.environment else {}),
        **memory.fact(setting),
        **_shown(setting),
        **(planned(setting, ctx.expected) if setting.config.algorithm.name == "rl" else {}),
        **total_time(ctx),
        **{name: notes[key] for name, key in named.items() if key in notes},
        **({} if setting.environment else {"tools": tools}),
        "run": str(ctx.run.folder.path),
    }


def _shown(setting: TrainingInputs) -> dict[str, str]:
    """The demonstrations that are learned first, in words."""
    if setting.shown is None:
        return {}
    rows, sft = setting.shown.train, setting.config.sft
    words = f"{counted(len(rows), 'row')}, {sum(len(row.ids) for row in rows):,} tokens"
    steps = f"{sft.max_steps + sft.cooldown_steps} steps of {sft.batch_size}"
    return {"demonstrations": f"{setting.shown.origin}; {words}, in {steps}"}


# ---------------------------------------------------------------- the phases


def phases_of(setting: TrainingInputs) -> list[Work]:
    """Return what a configuration asks for, in order: training on the user's demonstrations, else a
    cold start where there is something to show, then learning from rewards. Where there are
    `data.demonstrations`, tasks are measured before and after these."""
    if setting.sft_dataset is not None:
        if not setting.tasks.test:
            return [(SFT, run_sft)]
        before = setting.config.trainer.val_before_train
        first = [(BEFORE, partial(measure_before_or_after, name="before"))] if before else []
        return [*first, (SFT, run_sft), (AFTER, partial(measure_before_or_after, name="after"))]
    config, shown = setting.config, setting.shown is not None
    out: list[Work] = []
    supervised = config.algorithm.name == "sft"
    own = config.model.path is None or supervised or setting.tasks.in_order
    if shown and config.trainer.val_before_train:
        out.append((BEFORE, partial(measure_before_or_after, name="before")))
    if shown or (own and bool(setting.tasks.shown) and config.sft.max_steps > 0):
        out.append((COLD, run_cold_start))
    if supervised:
        return [*out, (AFTER, partial(measure_before_or_after, name="after"))]
    if config.trainer.val_before_train:
        name = SHOWN if shown else BEFORE
        out.append((name, partial(measure_before_or_after, name=name)))
    out.append((RL, run_rl))
    out.append((AFTER, partial(measure_before_or_after, name="after")))
    if config.trainer.control != "none":
        out.append((CONTROL, run_control))
        out.append((AFTER_CONTROL, partial(measure_before_or_after, name="control")))
    return out


def record_phase(ctx: TrainingContext, name: str) -> None:
    """Keep what later phases and the user need of a phase."""
    state = ctx.state
    if name in STEPS:
        state.results[STEPS[name]] = state.phase_step
    state.results |= learned(state) if name == SFT else {}
    if name == AFTER_CONTROL:
        return_weights(ctx)
    if name in (AFTER, SFT) and ctx.setting.group.rank == 0:
        folder, setting = ctx.run.folder, ctx.setting
        setting.policy.save(folder.policy, replace=True)
        if (source := setting.config.model.path) is not None:
            save_adapter(setting.policy, folder.path / "adapter", base=source)
        for other_name, other in setting.others.items():
            other.save(folder.path / "policies" / other_name, replace=True)


# ---------------------------------------------------------------- the end


def outcome(ctx: TrainingContext, status: str) -> JSON:
    """The outcome in numbers, as in result.json."""
    state, setting = ctx.state, ctx.setting
    config, values = setting.config, dict(state.results)
    policy = ctx.run.folder.policy
    if state.phase in STEPS:  # it was stopped within the phase
        values.setdefault(STEPS[state.phase], state.phase_step)
    if state.phase == SFT:
        values = learned(state) | values
    out: JSON = {
        "status": status,
        "recipe": config.recipe,
        "algorithm": config.algorithm.name,
        "level": None if config.data.train_files or setting.environment else config.data.level,
        "seed": config.seed,
        "wall_seconds": round(ctx.clock.elapsed(), 3),
        "rl_steps": values.get("rl_steps", 0),
        "cold_start_steps": values.get("cold_start_steps", 0),
        "best_step": values.get(BEST, {}).get("step"),
        "rollouts": state.rollouts,
        "tokens": state.tokens,
        "policy": str(policy) if policy.is_dir() else None,
        "max_dlogp": state.max_dlogp,
        "test_tasks": len(setting.tasks.test),
        "overlap": setting.overlap.record(),
        "guess_share": config.sft.guess_share,
        "failures": values.get("failures", {}),
        "failures_by_phase": values.get("failures_by_phase", {}),
        "first_failures": values.get("first_failures", {}),
        "warnings": [*values.get("warnings", []), *warnings_of(values.get("health", []))],
        "health": values.get("health", []),
        "mixed_steps": values.get("mixed_steps", 0),
        "phases": {k: round(v, 3) for k, v in state.seconds.items() if k != "total"},
    }
    if setting.sft_dataset is not None:
        out["examples"] = len(setting.sft_dataset.train)
    if setting.shown is not None:
        out["demonstrations"] = len(setting.shown.train)
        out["demonstrations_from"] = values["demonstrations_from"]
    fields = (ESTIMATOR, "sft_steps", *LEARNED, "val_loss_before", "val_loss_after", DROPPED)
    out |= {name: values[name] for name in fields if name in values}
    out["graded"] = ctx.kind.graded
    for label, name in EVALUATIONS.items():
        out |= evaluation_keys(name, values.get(label), ctx.kind)
    return out
