"""The course of a training of weights, from its preparation through its phases to its result.

A checkpoint is written at the end of every phase, and by phases at some steps. Stopping at any
moment, also by SIGKILL, loses at most the steps since the last one, and resuming repeats those bit
for bit. `kinds.py` declares the run; `run.py` has the shared parts of the phases.
"""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tutelage import files
from tutelage.environments.start import write_demonstrations
from tutelage.errors import RunError, pluralize
from tutelage.policy import machine
from tutelage.policy.lora import save_adapter
from tutelage.resources import POLICY, SHIPPED
from tutelage.runs.figures import read_object
from tutelage.runs.findings import list_warnings
from tutelage.runs.folder import RunFolder, trim_lines, write_json, write_text
from tutelage.runs.kinds import Phase
from tutelage.runs.progress import Progress
from tutelage.runs.stored_evaluation import evaluation_keys
from tutelage.types import JSON
from tutelage.weights import checkpoint
from tutelage.weights.checkpoint import BEST, COLD, CONTROL, DROPPED, RL, SFT
from tutelage.weights.cold_start import run_cold_start
from tutelage.weights.config.extensions import has_critic
from tutelage.weights.config.resolve import CHECKPOINTS
from tutelage.weights.cost import describe_plan, estimate_time
from tutelage.weights.inputs import TrainingInputs, step_limit
from tutelage.weights.measure import run_measurement
from tutelage.weights.memory import Footprint, check_model_fits
from tutelage.weights.paths import find_checkpoint
from tutelage.weights.placement import check_workers, start_workers
from tutelage.weights.reference import check_models
from tutelage.weights.rl import ESTIMATOR, return_weights, run_control, run_rl
from tutelage.weights.run import TrainingRun
from tutelage.weights.sft import LEARNED, run_sft
from tutelage.weights.vllm_sampler import Servers

if TYPE_CHECKING:
    from tutelage.weights.kinds import WeightTraining

BEFORE, SHOWN, AFTER, AFTER_CONTROL = "before", "demonstrations", "after", "after_control"
EVALUATIONS = (
    "clean/greedy",
    *(f"{name}/{way}" for name in (BEFORE, SHOWN, AFTER) for way in ("sampled", "greedy")),
    "after/no_tools",
    "control/sampled",
    "control/greedy",
)
"""Labels of evaluations in the order of `result.json`."""
IMITATED = "demonstrations.jsonl"
"""File in the run folder with the episodes of an environment to imitate."""
STEPS = {RL: "rl_steps", COLD: "cold_start_steps", SFT: "sft_steps"}
"""The keys of `result.json` for the steps of a phase."""


def prepare(job: WeightTraining, folder: RunFolder, progress: Progress) -> TrainingRun:
    """Load the inputs of a run, from the last complete checkpoint if the run has begun.

    With `resume_path` a new run starts from a checkpoint of another run. Raises `TutelageError`s
    for inputs that are invalid or do not fit into memory.
    """
    config, trainer = job.resolved.config, job.resolved.config.trainer
    check_workers(config)
    if folder.config.is_file():
        ctx = _load_run(job, folder, progress)
    else:
        check_model_fits(config)
        start = trainer.resume_from_path if trainer.resume_mode == "resume_path" else None
        state, tensors = checkpoint.TrainingState(), dict[str, Any]()
        if start is not None:
            state, tensors = checkpoint.load(find_checkpoint(Path(start)))
            state.metrics_lines = 0
            state.results.pop(BEST, None)  # its checkpoint stays in the other run
        ctx = TrainingRun(job.resolved, job.make_inputs(), job.event_loop, state, tensors)
        limit, ended = step_limit(ctx.setting), {RL, SFT} & set(state.results.get("done", ()))
        if ended or (state.phase in (RL, SFT) and state.phase_step >= (limit or float("inf"))):
            raise RunError(
                f"trainer.resume_from_path={start!r} was saved after the last of "
                f"{limit or state.phase_step} steps, so nothing would be trained; use a checkpoint "
                "such as checkpoints/step_000040, or raise trainer.total_training_steps (--steps)"
            )
        check_models(ctx.setting.policy, config)
        footprint = Footprint.from_inputs(ctx.setting)
        footprint.check()
        # A checkpoint has the weights twice, AdamW's numbers of what is trained, and a critic.
        size = 8 * (footprint.parameters + footprint.trained)
        size += 12 * footprint.parameters * has_critic(config)
        kept = 2 + (trainer.max_actor_ckpt_to_keep or 1)  # the best, and one in the writing
        place = next(path for path in folder.path.absolute().parents if path.is_dir())
        way = "lower trainer.max_actor_ckpt_to_keep, or choose an --output on another disk"
        files.check_disk_space(place, kept * size, f"{kept} checkpoints need", way)
    ctx.pool = start_workers(ctx.setting)
    if config.rollout.name == "vllm":
        ctx.servers = Servers(ctx.setting, folder, progress)
    return ctx


def record_start(inputs: TrainingInputs, folder: RunFolder) -> None:
    """Record the compute conditions, and save the initial weights of an embedded policy."""
    write_json(folder.conditions, machine.compute_conditions(inputs.choice))
    if inputs.imitated:
        write_demonstrations(folder.path / IMITATED, inputs.imitated)
    if inputs.config.model.path in (None, SHIPPED):
        inputs.policy.save(folder.checkpoints / "initial", replace=True)
        checkpoint.write_checksums(folder.checkpoints / "initial")


def _load_run(job: WeightTraining, folder: RunFolder, progress: Progress) -> TrainingRun:
    """Load an existing run from its last checkpoint, and truncate its metrics and events."""
    first, kept = folder.checkpoints / "initial", checkpoint.list_complete(folder)
    if first.is_dir() or (kept and job.resolved.config.model.path in (None, SHIPPED)):
        checkpoint.verify_checksums(first)
    imitated = folder.path / IMITATED
    job.imitated = imitated if imitated.is_file() else None
    setting = job.make_inputs(first if first.is_dir() else None)
    ctx = job.ctx = TrainingRun(job.resolved, setting, job.event_loop)
    if job.given is not None:
        job.given.record(folder, setting.tasks.splits)
    more = job.extends(folder)
    if more:
        _rewind(ctx, folder, progress)
    if values := checkpoint.load_newest(folder, progress.note):
        ctx.state, ctx.tensors = values
    if more:
        job.record(folder)
    state = ctx.state
    if not kept and not folder.conditions.is_file():
        record_start(setting, folder)
    else:
        before, now = read_object(folder.conditions), machine.compute_conditions(setting.choice)
        for change in machine.changed_conditions(before, now) if before else ():
            progress.note(f"not bit-identical from here: {change}")
        write_json(folder.conditions, now)
    lines, limit = folder.read_metrics(), step_limit(setting) if state.phase in (RL, SFT) else None
    message = f"after step {state.phase_step}{f'/{limit}' if limit else ''} of {state.phase}"
    if state.phase in state.results.get("done", ()):
        message = f"after the phase {state.phase}"
    if later := lines[state.metrics_lines :]:
        until = f"step {later[-1]['step']} of {later[-1]['phase']}"
        message += f"; what was done since, up to {until}, is repeated"
    progress.note(f"resumed {message}")
    state.metrics_lines = min(len(lines), state.metrics_lines)
    trim_lines(folder.metrics, state.metrics_lines)
    trim_lines(folder.events, len(folder.read_events()))
    return ctx


def _rewind(ctx: TrainingRun, folder: RunFolder, progress: Progress) -> None:
    """Reset a finished run to its last training step, to train it longer.

    Raises `RunError` if its checkpoint is gone, or no more steps are requested. After a kill the
    run is still as it was before its last measurements.
    """
    config, trained = ctx.setting.config, checkpoint.list_training(folder)
    finished = folder.read_result() is not None
    if not trained and finished:
        raise RunError(
            f"the run in {str(folder.path)!r} has no checkpoint saved during training, so it "
            f"cannot be trained further; use its policy as the model: model.path={folder.policy}"
        )
    if trained:
        ctx.state, _ = checkpoint.load(trained[-1])
        steps, end_key = ctx.state.phase_step, ctx.reason_to_end()
        if finished and end_key is not None:
            raise RunError(
                f"the run in {str(folder.path)!r} was trained for {steps} steps and ended at "
                f"{end_key}; raise it to train further"
            )
        rates = [config.actor.optim, *([config.critic.optim] if has_critic(config) else ())]
        if steps and any(optim.lr_scheduler_type != "constant" for optim in rates):
            progress.note(
                f"not bit-identical to a longer run: lr_scheduler_type has set the learning rate "
                f"of the first {steps} steps by their number"
            )
    folder.result.unlink(missing_ok=True)
    for path in checkpoint.list_complete(folder) if trained else ():
        if path > trained[-1]:
            shutil.rmtree(path, ignore_errors=True)
    left = [e for e in folder.read_events() if e.get("event") != "phase_end"]
    if folder.events.is_file():
        write_text(folder.events, "".join(json.dumps(event) + "\n" for event in left))


def show_summary(ctx: TrainingRun) -> None:
    """Show device, policy, planned rollouts and updates, and the run folder."""
    setting, notes = ctx.setting, ctx.resolved.notes
    ctx.expected = dict.fromkeys(name for name, _ in list_phases(ctx))
    given, model, size = setting.given, setting.config.model, setting.policy.count() / 1e6
    own = "passed in Python" if given is not None and POLICY in given.policies else ""
    facts = {
        "device": setting.choice.reason,
        "policy": f"{own or model.path or f'embedded {model.size}'}, {size:.2f} M parameters",
    }
    if model.path == SHIPPED and not own:
        facts["start"] = "shipped, it mostly guesses (`--from-scratch`: from random weights)"
    if setting.environment is not None:
        facts["environment"] = setting.environment.name
    footprint = Footprint.from_inputs(setting)
    if setting.group.size > 1 or footprint.parameters >= machine.SMALL_MODEL:
        facts["memory"] = footprint.describe()
    if setting.shown is not None:
        ctx.state.results.setdefault("demonstrations_from", setting.shown.origin)
        count, sft = pluralize(len(setting.shown.train), "row"), setting.config.sft
        steps = f"in {sft.max_steps + sft.cooldown_steps} steps of {sft.batch_size}"
        facts["demonstrations"] = f"{setting.shown.origin}; {count}, {steps}"
    if setting.config.algorithm.name == "rl":
        facts |= describe_plan(setting, ctx.expected)
    facts |= estimate_time(ctx)
    facts |= {"saves": notes[CHECKPOINTS]}
    if setting.environment is None:
        facts["tools"] = ", ".join(setting.tools) or "none" if given is None else "the agent's own"
    facts["run"] = str(ctx.run.folder.path)
    recipe = "environment" if setting.environment else setting.config.recipe
    ctx.run.progress.start(given.agent.name if given else recipe, facts)


def list_phases(ctx: TrainingRun) -> list[Phase]:
    """Return the phases of a configuration in order.

    The phases are training on the user's demonstrations or a cold start, if there are any, then
    learning from rewards. With `data.demonstrations`, tasks are measured before and after these.
    """
    setting, config = ctx.setting, ctx.setting.config

    def measurement(phase: str, name: str) -> Phase:
        return phase, partial(run_measurement, ctx, name)

    first = [measurement(BEFORE, BEFORE)] if config.trainer.val_before_train else []
    if setting.sft_dataset is not None:
        sft: Phase = (SFT, partial(run_sft, ctx))
        return [*first, sft, measurement(AFTER, AFTER)] if setting.tasks.test else [sft]
    shown, supervised = setting.shown is not None, config.algorithm.name == "sft"
    own = config.model.path is None or supervised or setting.tasks.in_order
    out = first if shown else []
    if shown or (own and bool(setting.tasks.shown) and config.sft.max_steps > 0):
        out = [*out, (COLD, partial(run_cold_start, ctx))]
    if not supervised:
        name = SHOWN if shown else BEFORE
        out += [measurement(name, name)] if config.trainer.val_before_train else []
        out.append((RL, partial(run_rl, ctx)))
    out.append(measurement(AFTER, AFTER))
    if not supervised and config.trainer.control != "none":
        out += [(CONTROL, partial(run_control, ctx)), measurement(AFTER_CONTROL, "control")]
    return out


def finish_phase(ctx: TrainingRun, phase: str) -> None:
    """Save the results of a finished phase, and write a checkpoint."""
    state, setting, folder = ctx.state, ctx.setting, ctx.run.folder
    state.seconds[phase] = ctx.elapsed() - ctx.phase_began
    ctx.optimizer = None
    if phase in STEPS:
        state.results[STEPS[phase]] = state.phase_step
    if phase == AFTER_CONTROL:
        return_weights(ctx)
    if phase in (AFTER, SFT) and setting.group.rank == 0:
        setting.policy.save(folder.policy, replace=True)
        if (source := setting.config.model.path) is not None:
            save_adapter(setting.policy, folder.path / "adapter", base=source)
        for name, other in setting.others.items():
            other.save(folder.path / "policies" / name, replace=True)
    state.results.setdefault("done", []).append(phase)
    ctx.save()


def outcome(ctx: TrainingRun, status: str) -> JSON:
    """Return the content of result.json."""
    state, setting = ctx.state, ctx.setting
    config, values = setting.config, dict(state.results)
    policy = ctx.run.folder.policy
    if state.phase in STEPS:  # it was stopped within the phase
        values.setdefault(STEPS[state.phase], state.phase_step)
    out: JSON = {
        "status": status,
        "recipe": config.recipe,
        "algorithm": config.algorithm.name,
        "level": None if config.data.train_files or setting.environment else config.data.level,
        "seed": config.seed,
        "wall_seconds": round(ctx.elapsed(), 3),
        **{k: values.get(k, 0) for k in ("rl_steps", "cold_start_steps", "mixed_steps")},
        "best_step": values.get(BEST, {}).get("step"),
        "rollouts": state.rollouts,
        "tokens": state.tokens,
        "policy": str(policy) if policy.is_dir() else None,
        "max_dlogp": state.max_dlogp,
        "test_tasks": len(setting.tasks.test),
        "overlap": setting.overlap.record(),
        "guess_share": config.sft.guess_share,
        **{k: values.get(k, {}) for k in ("failures", "failures_by_phase", "first_failures")},
        "warnings": [*values.get("warnings", []), *list_warnings(values.get("health", []))],
        "health": values.get("health", []),
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
    for label in EVALUATIONS:
        name = "no_tools_greedy" if label == "after/no_tools" else label.replace("/", "_")
        out |= evaluation_keys(name, values.get(label), ctx.kind)
    return out
