"""Start, continue or try out a training of weights.

The command line and `Trainer` call `train`, `resume` and `dry_run`. `kinds.py` declares the kinds
of run, and `training.py` has their phases.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from tutelage.config import Resolved
from tutelage.rollouts.runner import RolloutSpec
from tutelage.runs import lifecycle
from tutelage.runs.folder import RunFolder
from tutelage.runs.job_inputs import JobInputs
from tutelage.runs.kinds import kind_name
from tutelage.runs.loggers import check_loggers
from tutelage.runs.metrics import long_prompt_warning
from tutelage.runs.progress import Progress
from tutelage.types import JSON, Mode, Rollout
from tutelage.weights.following import launch_ranks, run_rank
from tutelage.weights.kinds import make_job
from tutelage.weights.memory import Footprint, check_model_fits
from tutelage.weights.paths import find_checkpoint
from tutelage.weights.placement import LocalPlacement, PlaySettings, check_workers
from tutelage.weights.reference import check_models
from tutelage.weights.sft import SFTPreview, preview

logger = logging.getLogger(__name__)


def train(
    resolved: Resolved, folder: RunFolder, progress: Progress, inputs: JobInputs | None = None
) -> JSON:
    """Run a training in a folder and return the content of result.json.

    `inputs` is a Python agent to train, with its tasks. The folder is empty, or has the same run
    and `trainer.resume_mode` is `auto`: then the run continues from its latest checkpoint. With
    `resume_path` a new run starts from a checkpoint of another run. If a launcher has started
    several ranks, all call this function: rank 0 writes the folder, and every rank gets the result.
    """
    check_loggers(resolved.config.trainer.logger)
    job = make_job(resolved, inputs)
    with launch_ranks(job, folder) as group:
        if group.size == 1:
            return lifecycle.start(job, folder, progress)
        return run_rank(job, folder, group, lambda: lifecycle.start(job, folder, progress))


def resume(
    folder: RunFolder,
    progress: Progress,
    inputs: JobInputs | None = None,
    *,
    allow_changes: bool = False,
) -> JSON:
    """Continue a run from its last complete checkpoint.

    Raises `RunError` if agent, reward, tools, model or tasks have changed, unless `allow_changes`
    is set.
    """
    kind_name(folder)  # raises where there is no run
    job = make_job(Resolved.from_json(folder.config.read_text()), inputs)

    def resume_run() -> JSON:
        return lifecycle.resume(type(job), folder, progress, job, allow_changes=allow_changes)

    with launch_ranks(job, folder) as group:
        return resume_run() if group.size == 1 else run_rank(job, folder, group, resume_run)


def dry_run(
    resolved: Resolved, log: Callable[[str], None] = lambda _: None
) -> Rollout | SFTPreview:
    """Play one task with the untrained policy, or describe the data of supervised training.

    The memory that a rank needs is reported to `log`.
    """
    config = resolved.config
    check_loggers(config.trainer.logger)
    if config.output is not None:
        lifecycle.check_folder(make_job(resolved), RunFolder(Path(config.output)))
    if (start := config.trainer.resume_from_path) is not None:
        find_checkpoint(Path(start))
    check_workers(config)
    check_model_fits(config)
    setting = make_job(resolved).make_inputs()
    footprint = Footprint.from_inputs(setting)
    footprint.check()
    log(f"memory: {footprint.describe()}")
    for warning in setting.notes():
        logger.warning(warning)
    if setting.sft_dataset is not None:
        return preview(setting, setting.sft_dataset)
    check_models(setting.policy, setting.config)
    placement = LocalPlacement(setting, lambda _: setting.policy)
    runner = placement.workers(PlaySettings("dry-run", Mode.VAL, config.rollout.temperature))
    task, seeds = setting.tasks.train[0], setting.seeds.child("dry-run")
    played = asyncio.run(runner.run([RolloutSpec(task, Mode.VAL, "dry-run", 0, seeds)]))
    if untried := long_prompt_warning(played, setting.context, setting.policy.max_positions):
        logger.warning(untried)
    return played[0]
