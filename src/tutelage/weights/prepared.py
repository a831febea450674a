"""A training of weights made ready: anew, from another run's checkpoint, or gone on with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from tutelage.policy import machine
from tutelage.runs import lifecycle
from tutelage.runs.folder import RunFolder, keep_lines, write_json
from tutelage.runs.given import record
from tutelage.runs.progress import Progress
from tutelage.weights import checkpoint
from tutelage.weights.learner import check_models
from tutelage.weights.phases import RL, SFT
from tutelage.weights.places import check_checkpoint, check_something_is_left
from tutelage.weights.setting import Setting

if TYPE_CHECKING:
    from tutelage.weights.kinds import Weights


def initial(folder: RunFolder) -> Path:
    """Where the embedded policy's first weights and tokenizer are kept."""
    return folder.checkpoints / "initial"


def keep_start(setting: Setting, folder: RunFolder) -> None:
    """Keep the conditions of the machine, and the weights that an embedded policy has."""
    write_json(folder.conditions, machine.conditions(setting.choice))
    if setting.config.model.path is None:
        setting.policy.save(initial(folder), replace=True)


def new_training(asked: Weights, folder: RunFolder) -> None:
    """Read what a new run needs. With `resume_path` it goes on from a checkpoint of another run,
    which stays as it is."""
    config = asked.resolved.config
    asked.state, trainer = checkpoint.State(), config.trainer
    if trainer.resume_mode == "resume_path" and trainer.resume_from_path is not None:
        place = Path(trainer.resume_from_path)
        check_checkpoint(place)
        asked.state, asked.tensors = checkpoint.load(place)
        check_something_is_left(place, asked.state, (RL, SFT))
        asked.state.metrics_lines = 0
    asked.setting = asked.make_setting()
    check_models(asked.setting.policy, config)
    if asked.given is not None:
        record(folder, asked.given, asked.setting.tasks.splits)


def going_on(asked: Weights, folder: RunFolder, progress: Progress) -> None:
    """Read what a run has that was begun, from its last complete checkpoint."""
    first = initial(folder)
    asked.setting = setting = asked.make_setting(first if first.is_dir() else None)
    if asked.given is not None:
        record(folder, asked.given, setting.tasks.splits)
    asked.state = checkpoint.State()
    if found := checkpoint.complete(folder):
        asked.state, asked.tensors = checkpoint.load(found[-1])
    now = machine.conditions(setting.choice)
    if folder.conditions.is_file():
        before = json.loads(folder.conditions.read_text())
        for change in machine.differences(before, now):
            progress.note(f"not bit for bit from here: {change}")
        write_json(folder.conditions, now)
    else:
        keep_start(setting, folder)
    keep_lines(folder.metrics, asked.state.metrics_lines)
    keep_lines(folder.events, len(lifecycle.read_events(folder)))
    at = asked.state.phase or "the start"
    progress.note(f"resumed at step {asked.state.phase_step} of {at}")
