"""Jobs: start a training run, resume one, or try one out.

A job is a list of phases. It holds the run's lock, writes a checkpoint at every phase's end, and
leaves a result, a policy folder and a report. Stopping it at any moment, also with SIGKILL, loses
at most the steps since the last checkpoint, and resuming repeats those bit for bit. The command
line is a thin caller of `train`, `resume` and `dry_run`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from tutelage.config import Resolved, RunConfig
from tutelage.engine.driver import EngineDriver
from tutelage.errors import RunError, TutelageError
from tutelage.policy import machine
from tutelage.policy.lora import save_adapter
from tutelage.rollouts.runner import Runner, RunnerSettings, Spec
from tutelage.runs.folder import RunFolder, keep_lines, locked, write_json, write_text
from tutelage.runs.given import Given, check_python, record
from tutelage.runs.loggers import check_loggers, open_loggers
from tutelage.runs.measured import written
from tutelage.runs.progress import Progress
from tutelage.runs.report import write_report
from tutelage.runs.trust import remember
from tutelage.store import Listener, RunStatus, Store, StoreWriter, open_store
from tutelage.tools.registry import close_tools
from tutelage.types import Mode, Rollout
from tutelage.weights import checkpoint
from tutelage.weights.context import Clock, Context, StopSignal, recorded_after
from tutelage.weights.control import ESTIMATOR, give_back, run_control
from tutelage.weights.learner import check_models
from tutelage.weights.measure import measure_before_or_after
from tutelage.weights.phases import COLD, CONTROL, RL, SFT
from tutelage.weights.places import changed_sections, check_checkpoint, check_something_is_left
from tutelage.weights.rl import run_rl
from tutelage.weights.setting import Setting, prepare
from tutelage.weights.sft import Preview, prepare_sft, preview, run_sft
from tutelage.weights.supervised import run_cold_start

logger = logging.getLogger(__name__)
Phase = tuple[str, Callable[[Context], None]]

AFTER_CONTROL = "after_control"
STOPPING = "stopping after this step; Ctrl-C again stops at once"


def train(
    resolved: Resolved, folder: RunFolder, progress: Progress, given: Given | None = None
) -> dict[str, Any]:
    """Run a job in a run folder; returns what is in result.json. `given` is a Python agent to
    train, with its tasks.

    The folder is empty, or holds the same run and `trainer.resume_mode` is `auto`: then the job
    goes on from its latest checkpoint. With `resume_path` it goes on from a checkpoint of another
    run, which stays as it is.
    """
    trainer = resolved.config.trainer
    check_loggers(trainer.logger)
    if folder.config.is_file():
        _same_run(resolved, folder)
        return resume(folder, progress, given)
    state, tensors = checkpoint.State(), dict[str, Any]()
    if trainer.resume_mode == "resume_path" and trainer.resume_from_path is not None:
        start = Path(trainer.resume_from_path)
        check_checkpoint(start)
        state, tensors = checkpoint.load(start)
        check_something_is_left(start, state, (RL, SFT))
        state.metrics_lines = 0
    with locked(folder):
        # What is wrong with the input is found before anything is written.
        setting = _prepare(resolved.config, given=given)
        check_models(setting.policy, setting.config)
        if given is not None:
            record(folder, given, setting.tasks.splits)
        write_text(folder.config, resolved.to_json())
        remember(folder)
        write_json(folder.conditions, machine.conditions(setting.choice))
        if resolved.config.model.path is None:
            setting.policy.save(_initial(folder), replace=True)
        return _work(resolved, folder, progress, setting, state, tensors)


def resume(folder: RunFolder, progress: Progress, given: Given | None = None) -> dict[str, Any]:
    """Go on with a run from its last complete checkpoint."""
    if not folder.config.is_file():
        raise RunError(f"{str(folder.path)!r} is no run folder: it has no config.json")
    check_python(folder, given)
    with locked(folder):
        resolved = Resolved.from_json(folder.config.read_text())
        finished = folder.read_result()
        if finished is not None and finished.get("status") == "finished":
            progress.note("the run is finished; there is nothing to resume")
            if not folder.report.is_file():
                write_report(folder)  # it was killed between the two
            return finished
        initial = _initial(folder)
        setting = _prepare(resolved.config, initial if initial.is_dir() else None, given)
        if given is not None:
            record(folder, given, setting.tasks.splits)
        found = checkpoint.complete(folder)
        state, tensors = checkpoint.load(found[-1]) if found else (checkpoint.State(), {})
        if folder.conditions.is_file():
            before = json.loads(folder.conditions.read_text())
            for change in machine.differences(before, machine.conditions(setting.choice)):
                progress.note(f"not bit for bit from here: {change}")
        elif resolved.config.model.path is None:
            setting.policy.save(initial, replace=True)
        write_json(folder.conditions, machine.conditions(setting.choice))
        keep_lines(folder.metrics, state.metrics_lines)
        keep_lines(folder.events, len(_read_events(folder)))
        progress.note(f"resumed at step {state.phase_step} of {state.phase or 'the start'}")
        return _work(resolved, folder, progress, setting, state, tensors)


def _prepare(
    config: RunConfig, policy_folder: Path | None = None, given: Given | None = None
) -> Setting:
    if config.recipe == "sft":
        return prepare_sft(config, policy_folder, given)
    return prepare(config, policy_folder, given)


def dry_run(resolved: Resolved) -> Rollout | Preview:
    """Play one task end to end with the untrained policy, or show what would be learned; nothing
    is written."""
    trainer = resolved.config.trainer
    check_loggers(trainer.logger)
    if trainer.resume_mode == "resume_path" and trainer.resume_from_path is not None:
        check_checkpoint(Path(trainer.resume_from_path))
    setting = _prepare(resolved.config)
    if setting.lessons is not None:
        return preview(setting, setting.lessons)
    for note in setting.overlap.notes(drawn=setting.embedded_tasks):
        logger.warning(note)
    check_models(setting.policy, setting.config)
    engine = setting.engine(slots=1)
    spec = Spec(setting.tasks.train[0], Mode.VAL, "dry-run", 0, setting.seeds.child("dry-run"))
    settings = RunnerSettings(
        "dry-run",
        failure_reward=resolved.config.agent.failure_reward,
        reward_timeout=resolved.config.agent.reward_timeout,
    )

    async def play() -> list[Rollout]:
        runner = Runner(EngineDriver(engine), setting.policy.codec, setting.reward, settings)
        return await runner.run([spec], setting.agent(resolved.config.rollout.temperature))

    return asyncio.run(play())[0]


def _same_run(resolved: Resolved, folder: RunFolder) -> None:
    """Refuse to go on in the folder of a run with another configuration."""
    changed = changed_sections(resolved, folder)
    if changed or resolved.config.trainer.resume_mode != "auto":
        what = f"differs in {', '.join(changed)}" if changed else "exists already"
        raise RunError(
            f"the run in {str(folder.path)!r} {what}; choose another --output, or go on with it "
            f"as it is: tutelage resume {folder.path}"
        )


def _initial(folder: RunFolder) -> Path:
    """Where the embedded policy's first weights and tokenizer are kept."""
    return folder.checkpoints / "initial"


def _phases(setting: Setting) -> list[Phase]:
    """What a configuration asks for, in order."""
    config = setting.config
    out: list[Phase] = []
    if setting.lessons is not None:
        tested = bool(setting.tasks.test)
        if tested and config.trainer.val_before_train:
            out.append(("before", lambda c: measure_before_or_after(c, "before")))
        out.append((SFT, run_sft))
        if tested:
            out.append(("after", lambda c: measure_before_or_after(c, "after")))
        return out
    own = config.model.path is None or config.algorithm.name == "sft"
    cold = own and bool(setting.tasks.shown) and config.sft.max_steps > 0
    if cold:
        out.append((COLD, run_cold_start))
    if config.algorithm.name == "sft":
        return [
            *out,
            ("after", lambda c: measure_before_or_after(c, "after", no_tools=True)),
        ]
    if config.trainer.val_before_train:
        out.append(("before", lambda c: measure_before_or_after(c, "before")))
    out.append((RL, run_rl))
    no_tools = setting.given is None
    out.append(("after", lambda c: measure_before_or_after(c, "after", no_tools=no_tools)))
    if config.trainer.control != "none":
        out.append((CONTROL, run_control))
        out.append((AFTER_CONTROL, lambda c: measure_before_or_after(c, "control")))
    return out


def _work(
    resolved: Resolved,
    folder: RunFolder,
    progress: Progress,
    setting: Setting,
    state: checkpoint.State,
    tensors: dict[str, Any],
) -> dict[str, Any]:
    """Run all phases that are left, then write the result and the report."""
    config = setting.config
    store = open_store(config.trainer.store_url or folder.store)
    with (
        contextlib.ExitStack() as last,
        _tracing(config, progress) as traced,
        open_loggers(config, folder, progress) as loggers,
        store,
        StopSignal(lambda: progress.note(STOPPING)) as stop,
        StoreWriter(store, also=traced) as writer,
    ):
        last.callback(close_tools, setting.tools)
        _check_name_is_free(store, folder, config)
        store.put_run(
            folder.name,
            name=config.trainer.experiment_name or folder.name,
            recipe=config.recipe,
            algorithm=config.algorithm.name,
            config=json.loads(resolved.to_json()),
            seed=config.seed,
            folder=str(folder.path),
            status=RunStatus.RUNNING,
        )
        ctx = Context(
            folder=folder,
            setting=setting,
            state=state,
            store=store,
            writer=writer,
            progress=progress,
            clock=Clock(state.seconds.get("total", 0.0)),
            stop=stop,
            events=_read_events(folder),
            recorded=recorded_after(store, folder.name, state.tick),
            loggers=loggers,
        )
        _restore(ctx, tensors)
        progress.start(config.recipe, _facts(ctx))
        for warning in (*resolved.warnings, *setting.overlap.notes(drawn=setting.embedded_tasks)):
            progress.note(warning)
            if setting.given is not None:  # a Trainer shows no progress unless it is asked to
                logger.warning(warning)
        try:
            _run_phases(ctx)
        except KeyboardInterrupt:
            _end(ctx, RunStatus.CANCELLED, "stopped")
            raise
        except BaseException:
            # The disk may be what failed: whatever cannot be written now must not hide the reason.
            with contextlib.suppress(TutelageError):
                _end(ctx, RunStatus.FAILED, "failed")
            raise
        finally:
            progress.finish()
        result = _end(ctx, RunStatus.SUCCEEDED, "finished")
    write_report(folder)
    return result


@contextlib.contextmanager
def _tracing(config: RunConfig, progress: Progress) -> Generator[Listener | None]:
    """Sends rollouts to a collector when somebody asks for it; see `tracing/export.py`."""
    from tutelage.tracing.export import OtlpExporter, endpoint

    url = endpoint(config.trainer.otlp_endpoint)
    if url is None:
        yield None
        return
    content = config.trainer.otlp_content
    with OtlpExporter(url, warn=progress.note, content=content) as exporter:
        yield exporter.submit


def _check_name_is_free(store: Store, folder: RunFolder, config: RunConfig) -> None:
    """In a database of many runs a new folder may have the name of an old one."""
    if config.trainer.store_url is None or checkpoint.complete(folder):
        return
    if any(run.id == folder.name for run in store.runs()) and store.count(folder.name):
        raise RunError(
            f"the store {store.where!r} has another run of the name {folder.name!r}; choose "
            "another --output"
        )


def _end(ctx: Context, status: RunStatus, word: str) -> dict[str, Any]:
    """Write the result, in the folder and in the store."""
    result = _result(ctx, word)
    ctx.writer.flush()
    write_json(ctx.folder.result, result)
    ctx.store.set_run_status(ctx.folder.name, status, result)
    return result


def _run_phases(ctx: Context) -> None:
    state = ctx.state
    if not checkpoint.complete(ctx.folder):
        ctx.save()
    done: list[str] = state.results.setdefault("done", [])
    for name, run in _phases(ctx.setting):
        if name in done:
            continue
        if state.phase != name:
            state.phase, state.phase_step, state.phase_data = name, 0, {}
        begun = ctx.clock.elapsed() - state.seconds.get(name, 0.0)
        run(ctx)
        state.seconds[name] = ctx.clock.elapsed() - begun
        ctx.optimizer = None
        _end_phase(ctx, name)
        done.append(name)
        ctx.save()


def _end_phase(ctx: Context, name: str) -> None:
    """Keep what later phases and the user need of a phase."""
    state, policy = ctx.state, ctx.setting.policy
    if name == RL:
        state.results["rl_steps"] = state.phase_step
    if name == COLD:
        state.results["cold_start_steps"] = state.phase_step
    if name == SFT:
        state.results["sft_steps"] = state.phase_step
    if name == AFTER_CONTROL:
        give_back(ctx)
    if name in ("after", SFT):
        policy.save(ctx.folder.policy, replace=True)
        if ctx.setting.config.model.path is not None:
            save_adapter(policy, ctx.folder.path / "adapter", base=ctx.setting.config.model.path)
        for name, other in ctx.setting.others.items():
            other.save(ctx.folder.path / "policies" / name, replace=True)


def _restore(ctx: Context, tensors: dict[str, Any]) -> None:
    """Put a checkpoint's tensors back where they were."""
    if not tensors:
        ctx.bind_others()
        return
    policy = ctx.setting.policy
    policy.load_tensors(tensors["policy"])
    policy.version = ctx.state.policy_version
    ctx.kept = dict(tensors["kept"])
    ctx.bind_others()
    if "optimizer" in tensors:
        ctx.kept["optimizer"] = tensors["optimizer"]


def _read_events(folder: RunFolder) -> list[dict[str, Any]]:
    if not folder.events.is_file():
        return []
    lines = folder.events.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _facts(ctx: Context) -> dict[str, str]:
    setting = ctx.setting
    source = setting.config.model.path or f"embedded {setting.config.model.size}"
    return {
        "device": setting.choice.reason,
        "policy": f"{source}, {setting.policy.count() / 1e6:.2f} M parameters",
        "tools": ", ".join(setting.tools) or "none",
        "run": str(ctx.folder.path),
    }


def _result(ctx: Context, status: str) -> dict[str, Any]:
    """The outcome in numbers, as in result.json."""
    state, config = ctx.state, ctx.setting.config
    out: dict[str, Any] = {
        "status": status,
        "recipe": config.recipe,
        "algorithm": config.algorithm.name,
        "level": config.data.level if not config.data.train_files else None,
        "seed": config.seed,
        "wall_seconds": round(ctx.clock.elapsed(), 3),
        "rl_steps": state.results.get("rl_steps", 0),
        "cold_start_steps": state.results.get("cold_start_steps", 0),
        "rollouts": state.rollouts,
        "tokens": state.tokens,
        "policy": str(ctx.folder.policy),
        "max_dlogp": state.max_dlogp,
        "test_tasks": len(ctx.setting.tasks.test),
        "overlap": ctx.setting.overlap.record(),
        "guess_share": config.sft.guess_share,
        "failures": state.results.get("failures", {}),
        "failures_by_phase": state.results.get("failures_by_phase", {}),
        "first_failures": state.results.get("first_failures", {}),
        "warnings": state.results.get("warnings", []),
        "mixed_steps": state.results.get("mixed_steps", 0),
        "phases": {k: round(v, 3) for k, v in state.seconds.items() if k != "total"},
    }
    told = (ESTIMATOR, "sft_steps", "val_loss_before", "val_loss_after")
    out |= {name: state.results[name] for name in told if name in state.results}
    names = {
        "clean/greedy": "clean_greedy",
        "before/sampled": "before_sampled",
        "before/greedy": "before_greedy",
        "after/sampled": "after_sampled",
        "after/greedy": "after_greedy",
        "after/no_tools": "no_tools_greedy",
        "control/sampled": "control_sampled",
        "control/greedy": "control_greedy",
    }
    out["graded"] = ctx.kind.graded
    for label, name in names.items():
        out |= written(name, state.results.get(label), ctx.kind)
    return out
