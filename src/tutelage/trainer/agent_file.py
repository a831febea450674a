"""The weights of an agent in a file, trained by command: `tutelage train AGENT.py`, and continued.

A command says by flags and keys what a `Trainer` is given as objects; the run folder names the
agent's file and those of the tasks, so a resume makes the same `Trainer` again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tutelage.agents.loading import load_agent
from tutelage.config import Resolved
from tutelage.config.aliases import canonical
from tutelage.config.keys import flatten
from tutelage.config.overrides import parse_overrides, read_keys
from tutelage.errors import ConfigError, RunError
from tutelage.policy.machine import machine_facts
from tutelage.runs.folder import RunFolder
from tutelage.runs.job_inputs import AGENT_REWARD
from tutelage.runs.progress import Progress
from tutelage.trainer.algorithm import RL
from tutelage.trainer.trainer import Trainer
from tutelage.types import JSON
from tutelage.weights.config import resolve
from tutelage.weights.config.extensions import ESTIMATOR

_OBJECTS = ("train", "val", "test", "model", "reward", "output", "runners")
"""Flags that become arguments of the `Trainer`."""


class _CommandKeys(RL):
    """The keys of a command: overrides, flags and a file, each with its origin."""

    def __init__(
        self, overrides: Sequence[str], flags: Mapping[str, Any], file: Path | None
    ) -> None:
        parsed = parse_overrides(overrides)
        in_file = {} if file is None else dict(flatten(read_keys(file)))
        super().__init__(in_file | {o.spelling: o.value for o in parsed} | dict(flags))
        self._overrides, self._flags, self._file = parsed, dict(flags), file
        self.resolved: Resolved | None = None
        """What the last `resolve` made of them."""

    def resolve(self, recipe: str = "rl", *, own_agent: bool = False, **flags: Any) -> Resolved:
        """The full configuration of a run; `flags` are those of the `Trainer`."""
        given = {name: value for name, value in flags.items() if value is not None} | self._flags
        if not self.names_estimator():
            given[ESTIMATOR] = "grpo"
        self.resolved = resolve(
            recipe,
            self._overrides,
            machine=machine_facts(),
            flags=given,
            file=self._file,
            own_agent=own_agent,
        )
        return self.resolved


class _StoredKeys(RL):
    """The keys of a run that is continued."""

    def __init__(self, resolved: Resolved) -> None:
        super().__init__()
        self._resolved = resolved

    def resolve(self, recipe: str = "rl", *, own_agent: bool = False, **flags: Any) -> Resolved:
        """The configuration of the run."""
        return self._resolved


def trainer_of(
    keys: _CommandKeys, flags: Mapping[str, Any], place: Path | None, progress: Progress
) -> Trainer:
    """The trainer that a command asks for. Raises `ConfigError`."""
    if flags.get("tools"):
        raise ConfigError(
            f"--tools={flags['tools']!r} cannot be used here: a custom agent uses the tools of its "
            "file; remove it"
        )
    given: dict[str, Any] = {f"{split}_dataset": flags.get(split) for split in ("val", "test")}
    if flags.get("train"):
        given["train_dataset"] = flags["train"]
    if flags.get("runners") is not None:
        given["n_runners"] = _count(flags["runners"])
    return Trainer(
        algorithm=keys,
        model=flags.get("model"),
        reward=flags.get("reward"),
        output_dir=place,
        progress=progress,
        **given,
    )


def with_file(flags: Mapping[str, Any], file: Path | None) -> dict[str, Any]:
    """The flags, with what a file of keys says in their place of tasks, model, reward and output.
    Raises `ConfigError` for a file that cannot be read."""
    values = {} if file is None else dict(flatten(read_keys(file)))
    places = {name: (canonical(name, None), name) for name in _OBJECTS if name != "runners"}
    found = {n: values[key] for n, keys in places.items() for key in keys if key in values}
    return found | dict(flags)


def keys_of(overrides: Sequence[str], flags: Mapping[str, Any], file: Path | None) -> _CommandKeys:
    """The keys among what a command says."""
    own = {name: value for name, value in flags.items() if name not in (*_OBJECTS, "tools")}
    return _CommandKeys(overrides, own, file)


def trained_file(folder: RunFolder) -> str | None:
    """The file of the agent that a run trains; None where no file has it."""
    if not folder.agent.is_file():
        return None
    told = json.loads(folder.agent.read_text(encoding="utf-8"))
    return told.get("file")


def resume_agent(folder: RunFolder, progress: Progress, *, allow_changes: bool = False) -> JSON:
    """Continue the training of an agent in a file; returns what is in result.json."""
    told = json.loads(folder.agent.read_text(encoding="utf-8"))
    load_agent(told["file"])  # which says so where the file is gone
    resolved = Resolved.from_json(folder.config.read_text(encoding="utf-8"))
    config = resolved.config.model_copy(update={"allow_changes": allow_changes})
    resolved = resolved.model_copy(update={"config": config})
    given: dict[str, Any] = {}
    for split, files in told["tasks"].items():
        if not files and folder.tasks(split).is_file() and split == "train":
            raise RunError(f"the run in {str(folder.path)!r} has no path of its tasks")
        if files:
            given[f"{split}_dataset"] = files
    named = config.agent.reward_name
    return (
        Trainer(
            algorithm=_StoredKeys(resolved),
            model=config.model.path,
            reward=None if named in (None, AGENT_REWARD) else named,
            output_dir=folder.path,
            n_runners=told["runners"],
            environment=config.environment.name,
            progress=progress,
            **given,
        )
        .fit(told["file"])
        .details
    )


def _count(text: Any) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"--runners={text!r} must be a number of rollouts, such as 8") from None
