"""The weights of an agent in a file, trained by command: `tutelage train AGENT.py`, and continued.

A command says by flags and keys what a `Trainer` is given as objects; the run folder names the
agent's file and those of the tasks, so a resume makes the same `Trainer` again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from tutelage.agents.loading import load_agent
from tutelage.config import Resolved
from tutelage.config.aliases import canonical
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


def trainer_of(
    keys: RL, flags: Mapping[str, Any], place: Path | None, progress: Progress
) -> Trainer:
    """The trainer that a command asks for. Raises `ConfigError`."""
    if flags.get("tools"):
        raise ConfigError(
            f"--tools={flags['tools']!r} cannot be used here: a custom agent uses the tools of its "
            "file; remove it"
        )
    given = {f"{split}_dataset": flags.get(split) or None for split in ("train", "val", "test")}
    if not given["train_dataset"]:
        del given["train_dataset"]
    runners: Any = flags.get("runners")
    if isinstance(runners, str):
        if not runners.isdecimal():
            raise ConfigError(f"--runners={runners!r} must be a number of rollouts, such as 8")
        runners = int(runners)
    return Trainer(
        algorithm=keys,
        model=flags.get("model"),
        reward=flags.get("reward"),
        output_dir=place,
        n_runners=runners,
        progress=progress,
        **cast("Any", given),
    )


def with_file(flags: Mapping[str, Any], file: Path | None) -> dict[str, Any]:
    """The flags, with what a file of keys says in their place of tasks, model, reward and output.
    Raises `ConfigError` for a file that cannot be read."""
    values = {} if file is None else dict(flatten(read_keys(file)))
    places = {name: (canonical(name, None), name) for name in _OBJECTS if name != "runners"}
    found = {n: values[key] for n, keys in places.items() for key in keys if key in values}
    return found | dict(flags)


def keys_of(overrides: Sequence[str], flags: Mapping[str, Any], file: Path | None) -> RL:
    """The keys of a command, each with its origin: overrides, flags and a file."""
    parsed = parse_overrides(overrides)
    own = {name: value for name, value in flags.items() if name not in (*_OBJECTS, "tools")}
    in_file = {} if file is None else dict(flatten(read_keys(file)))
    keys = RL(in_file | {o.spelling: o.value for o in parsed} | own)
    keys.overrides, keys.flags, keys.file = parsed, own, file
    return keys


def trained_file(folder: RunFolder) -> str | None:
    """The file of the agent that a run trains; None where no file has it."""
    there = folder.agent.is_file()
    return json.loads(folder.agent.read_text(encoding="utf-8")).get("file") if there else None


def resume_agent(folder: RunFolder, progress: Progress, *, allow_changes: bool = False) -> JSON:
    """Continue the training of an agent in a file; returns what is in result.json."""
    told = json.loads(folder.agent.read_text(encoding="utf-8"))
    load_agent(told["file"])  # which says so where the file is gone
    resolved = Resolved.from_json(folder.config.read_text(encoding="utf-8"))
    config = resolved.config.model_copy(update={"allow_changes": allow_changes})
    resolved = resolved.model_copy(update={"config": config})
    if not told["tasks"].get("train") and folder.tasks("train").is_file():
        raise RunError(f"the run in {str(folder.path)!r} has no path of its tasks")
    named = config.agent.reward_name
    flags = {**told["tasks"], "model": config.model.path, "runners": told["runners"]}
    flags["reward"] = None if named in (None, AGENT_REWARD) else named
    keys = RL()
    keys.stored = resolved
    trainer = trainer_of(keys, flags, folder.path, progress)
    trainer.environment = config.environment.name
    return trainer.fit(told["file"]).details
