"""Find the models, checkpoints and runs on the disk that a configuration refers to.

This is done before any model loads: otherwise a missing path would be taken for a name on the hub,
and fail late with a message about the network. `inputs.py`, `training.py` and the command line call
this first.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tutelage.config import Resolved, RunConfig
from tutelage.config.keys import flatten
from tutelage.errors import ConfigError, RunError, TutelageError
from tutelage.policy.sources import folder_error
from tutelage.runs.folder import RunFolder, is_locked, list_runs
from tutelage.weights import checkpoint
from tutelage.weights.config.extensions import has_critic

_ENDS = tuple(
    f"trainer.{key}"
    for key in ("total_training_steps", "total_epochs", "minutes", "stop_at_success")
)
"""Keys for the end of training."""
_KEPT = ("trainer.save_freq", "trainer.max_actor_ckpt_to_keep")
"""Keys that change which files a run keeps, but no results."""


def check_models_exist(config: RunConfig) -> None:
    """Raise `ConfigError` if a model folder does not exist or is a run folder."""
    named = {"model.path": config.model.path}
    named["critic.model.path"] = config.critic.model.path if has_critic(config) else None
    named["ref.path"] = config.ref.path if config.needs_reference else None
    for key, path in named.items():
        if path is None:
            continue
        place = Path(path).expanduser()
        if (place / "policy" / "config.json").is_file():
            raise ConfigError(
                f"{key}={path!r} is a run folder; use its policy, {key}={place / 'policy'}"
            )
        if message := folder_error(path):
            raise ConfigError(f"{key}: {message}")


def find_checkpoint(path: Path) -> Path:
    """Return the checkpoint folder at a path, or the last training checkpoint of a run folder.

    Raises `RunError` if there is no checkpoint.
    """
    if (path / checkpoint.SUMS).is_file():
        return path
    if paths := checkpoint.list_training(RunFolder(path)):
        return paths[-1]
    raise RunError(
        f"trainer.resume_from_path={str(path)!r} is not a checkpoint folder, such as "
        f"runs/RUN/checkpoints/step_000040"
    )


def find_resumable(resolved: Resolved) -> Path | None:
    """Return the newest unfinished or extended run with the same configuration, or None.

    With `trainer.resume_mode=auto` a command that names its experiment continues that run when it
    is repeated, even without naming its folder.
    """
    trainer = resolved.config.trainer
    if trainer.experiment_name is None or trainer.resume_mode != "auto":
        return None
    for folder in list_runs():
        try:
            changed = changed_keys(resolved, folder)
        except (OSError, ValueError, TutelageError):
            continue  # a run of another version, or being written
        ended = (folder.read_result() or {}).get("status") == "finished"
        if extends_training(changed) and (changed or not ended) and not is_locked(folder):
            return folder.path
    return None


def changed_keys(resolved: Resolved, folder: RunFolder) -> dict[str, tuple[Any, Any]]:
    """Return the keys whose values differ from the configuration of a run, with both values."""
    before = dict(flatten(Resolved.from_json(folder.config.read_text()).config.model_dump()))
    now = dict(flatten(resolved.config.model_dump()))
    names = (key for key in now if key not in ("output", "allow_changes"))
    return {key: (before[key], now[key]) for key in names if before[key] != now[key]}


def extends_training(changes: Mapping[str, tuple[Any, Any]]) -> bool:
    """Return True if the changes only extend the training or keep more checkpoints."""
    return all(
        key in _KEPT or (key in _ENDS and (was is None or now is None or now > was))
        for key, (was, now) in changes.items()
    )
