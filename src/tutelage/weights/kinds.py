"""The two kinds of run that train weights: `weights` from rewards, `supervised` from examples.

Both have the same configuration and phases (`training.py`) but different inputs. Modules that need
torch are imported when a run is prepared, so that listing and comparing runs does not need torch.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

from tutelage.config import Resolved, RunConfig
from tutelage.config.fields import RunSettings
from tutelage.config.resolved import SUPERVISED, WEIGHTS
from tutelage.resources import SHIPPED
from tutelage.runs.figures import MEASURES, Figures, Labels, RunFiles, folder_hash
from tutelage.runs.folder import RunFolder
from tutelage.runs.job_inputs import ENVIRONMENT_REWARD
from tutelage.runs.kinds import FINISHED, Phase, RunHeader, RunKind, register
from tutelage.runs.lifecycle import Run
from tutelage.runs.progress import Progress
from tutelage.runs.report import write_report
from tutelage.tasks.arithmetic import EMBEDDED_REWARD
from tutelage.tools.registry import close_tools
from tutelage.tracing.export import endpoint
from tutelage.types import JSON, ToolSpec

if TYPE_CHECKING:
    from tutelage.runs.job_inputs import JobInputs
    from tutelage.weights.inputs import TrainingInputs
    from tutelage.weights.run import TrainingRun


@register
@dataclass
class WeightTraining(RunKind):
    """Reinforcement learning, with an optional cold start before it and a control after it."""

    name: ClassVar[str] = WEIGHTS
    model: ClassVar[type[RunSettings]] = RunConfig
    finishes_step: ClassVar[bool] = True
    several_ranks: ClassVar[bool] = True

    resolved: Resolved
    given: JobInputs | None = None
    """A Python agent to train, with its tasks."""
    event_loop: asyncio.Runner = field(default_factory=asyncio.Runner)
    """The event loop of built-in agents and their engines, for the whole run."""
    imitated: Path | None = None
    """File with the imitated episodes of a resumed run's environment."""
    ctx: TrainingRun = field(init=False)
    """The training in this process, set by `prepare`."""

    @classmethod
    def read(cls, folder: RunFolder, progress: Progress) -> Self:
        """Load the run in a folder. Raises `RunError` for a run with a Python agent."""
        from tutelage.runs.job_inputs import reject_python_agent

        reject_python_agent(folder)
        return cls(Resolved.from_json(folder.config.read_text()))

    @classmethod
    def report(cls, folder: RunFolder) -> None:
        """Write the report page: curves, results before and after, and rollouts."""
        write_report(folder)

    @classmethod
    def figures(cls, files: RunFiles) -> Figures:
        """Return estimator, model and reward of a run for its report."""
        named = files.section("agent").get("reward_name")
        acts = files.section("environment").get("name")
        own = ENVIRONMENT_REWARD if acts else EMBEDDED_REWARD
        grader = str(files.agent.get("reward") or named or own)
        success = files.section("reward").get("success")
        remote = bool(files.agent.get("remote")) or grader == "llm_judge"
        model = files.section("model")
        path = model.get("path")
        base = str(path) if path else f"embedded {model.get('size', '')}".strip()
        if not path and files.agent and not files.section("sft").get("max_steps"):
            base = "passed in Python"
        made = path in (None, SHIPPED)
        mark = folder_hash(files.run.checkpoints / "initial" if made else Path(str(path)))
        counts = (files.count(f"{part}_steps") for part in ("sft", "rl", "cold_start"))
        steps = next(filter(None, counts), None)
        section = files.section("algorithm")
        rewarded = section.get("name") == "rl" and files.settings.get("recipe") != "sft"
        return Figures(
            trained="weights",
            algorithm=str(section.get("adv_estimator")) if rewarded else "sft",
            base=base,
            base_mark=mark or (f"model:{path}" if path else None),
            tested_mark=folder_hash(files.run.policy),
            agent=str(files.agent.get("file") or files.agent.get("agent") or Figures.BUILT_IN),
            agent_mark=files.agent_hash(),
            grader=grader,
            labels={name: Labels(f"before/{name}", f"after/{name}", name) for name in MEASURES},
            success=str(success) if success else None,
            dollars=None if remote else 0.0,
            updates="" if steps is None else f"{steps} steps",
            best=files.run.policy,
        )

    @classmethod
    def tools(cls, folder: RunFolder) -> tuple[ToolSpec, ...]:
        """Return the specs of the configured tools."""
        from tutelage.runs.inputs import load_tools

        config = Resolved.from_json(folder.config.read_text(encoding="utf-8")).config
        return tuple(tool.spec for tool in load_tools(config).values())

    def config(self) -> JSON:
        """Return the resolved configuration with the origins of its values."""
        return json.loads(self.resolved.to_json())

    def difference(self, folder: RunFolder) -> str | None:
        """Return the reason why the run in the folder cannot be continued, or None."""
        from tutelage.weights.paths import changed_keys, extends_training

        changed = changed_keys(self.resolved, folder)
        if not extends_training(changed):
            keys = [f"{key} ({was!r}, now {now!r})" for key, (was, now) in changed.items()]
            return f"differs in {', '.join(keys[:5])}"
        return None if self.resolved.config.trainer.resume_mode == "auto" else "exists already"

    def sources(self, folder: RunFolder) -> dict[str, str]:
        """Return the sources of the configuration and of the user's agent."""
        return super().sources(folder) | ({} if self.given is None else self.given.sources)

    def extends(self, folder: RunFolder) -> bool:
        """Return True if this run trains longer or keeps more than the run in the folder."""
        from tutelage.weights.paths import changed_keys

        return bool(changed_keys(self.resolved, folder))

    def reload(self, folder: RunFolder, progress: Progress) -> Self:
        """Return the run in the folder with the user's agent, or this run if it trains longer."""
        if self.extends(folder):
            return self
        if self.given is None:
            return type(self).read(folder, progress)
        return type(self)(Resolved.from_json(folder.config.read_text()), self.given)

    def prepare(self, folder: RunFolder, progress: Progress) -> None:
        """Load tasks, tools, reward and policy, from the last complete checkpoint if there
        is one."""
        from tutelage.weights.training import prepare

        self.ctx = prepare(self, folder, progress)

    def make_inputs(self, policy: Path | None = None) -> TrainingInputs:
        """Create the training inputs. `policy` is the folder of another initial policy."""
        from tutelage.weights.inputs import prepare_rl, prepare_sft
        from tutelage.weights.process_group import get_group

        config, given = self.resolved.config, self.given
        if config.recipe == "sft":
            setting = prepare_sft(config, policy, given)
        else:
            setting = prepare_rl(config, policy, given, self.imitated)
        return replace(setting, group=get_group())

    @property
    def head(self) -> RunHeader:
        """Return the metadata of the run for store, loggers and trace collector."""
        config = self.resolved.config
        trainer = config.trainer
        return RunHeader(
            recipe=config.recipe,
            algorithm=config.algorithm.name,
            settings=config,
            title=trainer.experiment_name,
            project=trainer.project_name,
            loggers=trainer.logger,
            store=trainer.store_url,
            collector=endpoint(trainer.otlp_endpoint),
            traced_content=trainer.otlp_content,
        )

    def record(self, folder: RunFolder) -> None:
        """Write the user's agent and tasks, then the configuration."""
        if self.given is not None:
            self.given.record(folder, self.ctx.setting.tasks.splits)
        super().record(folder)

    def begin(self, folder: RunFolder) -> None:
        """Record the compute conditions, and save the initial weights of an embedded policy."""
        from tutelage.weights.training import record_start

        record_start(self.ctx.setting, folder)

    def open(self, run: Run) -> None:
        """Load the checkpoint into the run, and show its settings and warnings."""
        from tutelage.weights.training import show_summary

        self.ctx.open(run)
        show_summary(self.ctx)
        remarks = () if self.ctx.pool is None else self.ctx.pool.warnings()
        for warning in (*self.resolved.warnings, *self.ctx.setting.notes(), *remarks):
            self.ctx.warn(warning)

    @property
    def done(self) -> Container[str]:
        """Return the phases completed by earlier processes."""
        return self.ctx.state.results.setdefault("done", [])

    def phases(self) -> Sequence[Phase]:
        """Return the phases of the configuration in order, after writing a first checkpoint."""
        from tutelage.weights import checkpoint
        from tutelage.weights.training import list_phases

        folder = self.ctx.run.folder
        if self.ctx.setting.group.broadcast(lambda: not checkpoint.list_complete(folder)):
            self.ctx.save()
        return list_phases(self.ctx)

    def enter(self, phase: str) -> None:
        """Begin or continue a phase."""
        ctx, state = self.ctx, self.ctx.state
        if state.phase != phase:
            state.phase, state.phase_step, state.phase_data = phase, 0, {}
        ctx.phase_began = ctx.elapsed() - state.seconds.get(phase, 0.0)

    def leave(self, phase: str) -> None:
        """Save the results of a phase, and write a checkpoint."""
        from tutelage.weights.training import finish_phase

        finish_phase(self.ctx, phase)

    def result(self, status: str) -> JSON:
        """Return the content of result.json."""
        from tutelage.weights.training import outcome

        self.ctx.finished = status == FINISHED
        return outcome(self.ctx, status)

    def close(self) -> None:
        """Close servers, workers, event loop and tools, and remove surplus checkpoints."""
        from tutelage.weights import checkpoint

        for opened in (self.ctx.servers, self.ctx.pool, self.ctx.event_loop):
            if opened is not None:
                opened.close()
        close_tools(self.ctx.setting.tools)
        if self.ctx.finished:
            checkpoint.remove_intermediate(self.ctx.run.folder)


@register
@dataclass
class _SupervisedTraining(WeightTraining):
    """Supervised training on the user's demonstrations, tested on tasks if there are any."""

    name: ClassVar[str] = SUPERVISED


def make_job(resolved: Resolved, inputs: JobInputs | None = None) -> WeightTraining:
    """Create the training job of a configuration. `inputs` has the Python agent to train."""
    kinds = {kind.name: kind for kind in (WeightTraining, _SupervisedTraining)}
    return kinds[resolved.kind](resolved, inputs)
