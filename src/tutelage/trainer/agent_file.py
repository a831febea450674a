"""Weight training of an agent in a file: `tutelage train AGENT.py`, and how to resume it.

Flags and keys of the command become arguments of a `Trainer`; the run folder stores the files of
the agent and of the tasks, so that a resume creates the same `Trainer`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from tutelage.agents.loading import load_agent
from tutelage.config import Resolved
from tutelage.config.aliases import canonical_key
from tutelage.config.keys import flatten
from tutelage.config.overrides import parse_overrides, read_keys
from tutelage.errors import ConfigError, RunError
from tutelage.runs.folder import RunFolder
from tutelage.runs.job_inputs import AGENT_REWARD
from tutelage.runs.progress import Progress
from tutelage.trainer.algorithm import RL
from tutelage.trainer.trainer import Trainer
from tutelage.types import JSON

_OBJECTS = ("train", "val", "test", "model", "reward", "output", "runners")
"""Flags that become arguments of the `Trainer`."""


def make_trainer(
    keys: RL, flags: Mapping[str, Any], output_dir: Path | None, progress: Progress
) -> Trainer:
    """Return the `Trainer` of a command. Raises `ConfigError` for unsupported flags."""
    if flags.get("tools"):
        raise ConfigError(
            f"--tools={flags['tools']!r} cannot be used here: a custom agent uses the tools of its "
            "file; remove it"
        )
    datasets = {f"{split}_dataset": flags.get(split) or None for split in ("train", "val", "test")}
    if not datasets["train_dataset"]:
        del datasets["train_dataset"]
    runners: Any = flags.get("runners")
    if isinstance(runners, str):
        if not runners.isdecimal():
            raise ConfigError(f"--runners={runners!r} must be a number of rollouts, such as 8")
        runners = int(runners)
    return Trainer(
        algorithm=keys,
        model=flags.get("model"),
        reward=flags.get("reward"),
        output_dir=output_dir,
        n_runners=runners,
        progress=progress,
        **cast("Any", datasets),
    )


def merge_file(flags: Mapping[str, Any], file: Path | None) -> dict[str, Any]:
    """Return the flags; missing tasks, model, reward and output come from a configuration file.

    Raises `ConfigError` for a file that cannot be read.
    """
    values = {} if file is None else dict(flatten(read_keys(file)))
    spellings = {name: (canonical_key(name, None), name) for name in _OBJECTS if name != "runners"}
    found = {n: values[key] for n, keys in spellings.items() for key in keys if key in values}
    return found | dict(flags)


def collect_keys(overrides: Sequence[str], flags: Mapping[str, Any], file: Path | None) -> RL:
    """Return the configuration keys of a command, from overrides, flags and a file."""
    parsed = parse_overrides(overrides)
    options = {name: value for name, value in flags.items() if name not in (*_OBJECTS, "tools")}
    in_file = {} if file is None else dict(flatten(read_keys(file)))
    keys = RL(in_file | {o.spelling: o.value for o in parsed} | options)
    keys.overrides, keys.flags, keys.file = parsed, options, file
    return keys


def resume_agent(folder: RunFolder, progress: Progress, *, allow_changes: bool = False) -> JSON:
    """Resume the training of an agent in a file, and return the content of `result.json`."""
    stored = json.loads(folder.agent.read_text(encoding="utf-8"))
    load_agent(stored["file"])  # which says so where the file is gone
    resolved = Resolved.from_json(folder.config.read_text(encoding="utf-8"))
    config = resolved.config.model_copy(update={"allow_changes": allow_changes})
    resolved = resolved.model_copy(update={"config": config})
    if not stored["tasks"].get("train") and folder.tasks("train").is_file():
        raise RunError(
            f"the run in {str(folder.path)!r} has no file of its training tasks; "
            "resume it with the program that started it"
        )
    reward = config.agent.reward_name
    flags = {**stored["tasks"], "model": config.model.path, "runners": stored["runners"]}
    flags["reward"] = None if reward in (None, AGENT_REWARD) else reward
    keys = RL()
    keys.stored = resolved
    trainer = make_trainer(keys, flags, folder.path, progress)
    trainer.environment = config.environment.name
    return trainer.fit(stored["file"]).details
