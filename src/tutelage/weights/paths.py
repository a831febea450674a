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
from tutelage.policy.sources import missing_folder
from tutelage.runs.folder import RunFolder, every, is_locked
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
    """Raise `ConfigError` for a model folder that does not exist, or that is the folder of
    a run."""
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
        if message := missing_folder(path):
            raise ConfigError(f"{key}: {message}")


def find_checkpoint(path: Path) -> Path:
    """Return the checkpoint at a path: itself, or the last training checkpoint of a run's folder.

    Raises `RunError` if there is none.
    """
    if (path / checkpoint.SUMS).is_file():
        return path
    if paths := checkpoint.of_training(RunFolder(path)):
        return paths[-1]
    raise RunError(
        f"trainer.resume_from_path={str(path)!r} is not a checkpoint folder, such as "
        f"runs/RUN/checkpoints/step_000040"
    )


def continued(resolved: Resolved) -> Path | None:
    """Find the newest unfinished or extended run with the same name and configuration, or return
    None.

    With `trainer.resume_mode=auto` a command that names its experiment continues that run when it
    is repeated, even without naming its folder.
    """
    trainer = resolved.config.trainer
    if trainer.experiment_name is None or trainer.resume_mode != "auto":
        return None
    for folder in every():
        try:
            changed = changed_keys(resolved, folder)
        except (OSError, ValueError, TutelageError):
            continue  # a run of another version, or being written
        ended = (folder.read_result() or {}).get("status") == "finished"
        if asks_for_more(changed) and (changed or not ended) and not is_locked(folder):
            return folder.path
    return None


def changed_keys(resolved: Resolved, folder: RunFolder) -> dict[str, tuple[Any, Any]]:
    """Return the keys in which a configuration differs from that of a run, with both values."""
    before = dict(flatten(Resolved.from_json(folder.config.read_text()).config.model_dump()))
    now = dict(flatten(resolved.config.model_dump()))
    names = (key for key in now if key not in ("output", "allow_changes"))
    return {key: (before[key], now[key]) for key in names if before[key] != now[key]}


def asks_for_more(changed: Mapping[str, tuple[Any, Any]]) -> bool:
    """Return True if the changed keys only make the run train longer, or keep more."""
    return all(
        key in _KEPT or (key in _ENDS and (was is None or now is None or now > was))
        for key, (was, now) in changed.items()
    )
