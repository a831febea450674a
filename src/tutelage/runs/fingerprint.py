"""Fingerprint of a run: its configuration, and hashes of the files and code that it names.

`fingerprint.json` in a run folder has the content of `config.json` and a hash of each source:
agent, reward, tools, files of tasks, model. Starting or resuming a run in the folder reports what
has changed since. `lifecycle.py` compares.
"""

from __future__ import annotations

import hashlib
import json
import pprint
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tutelage.agents.agent import Agent
from tutelage.agents.loading import source_hash
from tutelage.config.keys import flatten
from tutelage.errors import RunError
from tutelage.resources import LLM
from tutelage.rewards import RewardFunction
from tutelage.runs.figures import folder_hash, read_object
from tutelage.runs.folder import RunFolder, write_json
from tutelage.runs.trust import iter_texts
from tutelage.tools.loading import is_file_reference
from tutelage.tools.source import hash_source
from tutelage.tools.tool import Tool
from tutelage.types import JSON, Task

_NOT_CONTENT = ("output", "store", "store_url", "resume_from_path")
"""Last words of keys that name an output or a former location."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""Memory address in a repr, which is removed from hashes."""


def fingerprint_file(folder: RunFolder) -> Path:
    """Return the path of a run's fingerprint file."""
    return folder.path / "fingerprint.json"


def write_fingerprint(folder: RunFolder, config: JSON, sources: Mapping[str, str]) -> None:
    """Write the fingerprint of a run. The current `config.json` remains valid in case the process
    stops before it is replaced."""
    before = _hash_json(read_object(folder.config))
    content = {"config": config, "before": before, "sources": dict(sources)}
    write_json(fingerprint_file(folder), content)


def config_edits(folder: RunFolder) -> list[str]:
    """Describe how `config.json` was edited after the start of the run.

    Raises `RunError` for a folder without a fingerprint.
    """
    kept, now = _read_fingerprint(folder), read_object(folder.config)
    if _hash_json(now) == kept["before"] or now == kept["config"]:
        return []
    was, now = dict(flatten(kept["config"])), dict(flatten(now))
    odd = [key for key in {**was, **now} if was.get(key) != now.get(key)]
    lines = [f"{k.removeprefix('config.')} was {was.get(k)!r} and is {now.get(k)!r}" for k in odd]
    return [f"{folder.config.name} was edited: {', '.join(lines[:5])}"]


def source_changes(folder: RunFolder, sources: Mapping[str, str]) -> list[str]:
    """Describe the sources that have changed since the start of the run."""
    before: dict[str, str] = _read_fingerprint(folder)["sources"]
    here = f", seen from {str(Path.cwd())!r}"
    far = {name for name in before if "/" in name and name[0] not in "/~"}
    gone = [f"{n} is missing{here * (n in far)}" for n in before if n not in sources]
    new = [f"{name} is new" for name in sources if name not in before]
    changed = [n for n in sources if n in before and sources[n] != before[n]]
    return [*(f"{name} changed" for name in changed), *gone, *new]


def settings_sources(settings: JSON, folder: RunFolder) -> dict[str, str]:
    """Hash the files, model folders and code that the values of a configuration refer to."""
    values: dict[str, str] = {}
    for key, value in flatten(settings):
        if key.rpartition(".")[2] in _NOT_CONTENT:
            continue
        for text in iter_texts(value):
            mark = _hash_reference(text, folder)
            if mark is not None:
                values[f"{text} ({key})"] = mark
    return values


def agent_sources(
    agent: Agent,
    reward: RewardFunction | None,
    resources: Mapping[str, Any],
    splits: Mapping[str, Sequence[Task] | None],
    environment: object = None,
) -> dict[str, str]:
    """Hash an agent, its reward, resources and tasks, and the class of its environment."""
    values = {f"the agent {agent.name}": source_hash(agent)}
    if reward is not None:
        values[f"the reward {reward.name}"] = source_hash(reward)
    if environment is not None:
        values["the environment"] = source_hash(environment)
    for name, value in resources.items():
        if isinstance(value, Tool):
            values[f"the tool {name}"] = f"{_hash_json(stable_repr(value))} {source_hash(value.fn)}"
        elif not isinstance(value, LLM):
            values[f"the resource {name}"] = _hash_json(stable_repr(value))
    for name, tasks in splits.items():
        if tasks is not None:
            rows = [{**task.fields, "id": task.id} for task in tasks]
            values[f"the {name} tasks"] = _hash_json(rows)
    return values


def stable_repr(value: object) -> str:
    """Format a value reproducibly, without memory addresses and with sorted sets.

    `pprint` sorts only what it breaks into lines, so it has to break everything.
    """
    return _ADDRESS.sub("", pprint.pformat(value, width=1))


def _hash_reference(text: str, folder: RunFolder) -> str | None:
    """Hash the user's file or folder that a value refers to, or return None if there is none."""
    file, _, name = text.rpartition(":")
    path = Path(file if file.endswith(".py") else text).expanduser()
    try:
        if not path.suffix and not path.is_dir():
            return None
        if path.resolve().is_relative_to(folder.path.resolve()):
            return None  # the run's own
        if path.is_dir():
            return folder_hash(path)
        if not path.is_file():
            return None
        if is_file_reference(text):
            return hash_source(path, name if file.endswith(".py") else "")
        with path.open("rb") as content:
            return hashlib.file_digest(content, "blake2b").hexdigest()[:32]
    except OSError:
        return None  # who reads it says so


def _read_fingerprint(folder: RunFolder) -> JSON:
    remarks: list[str] = []
    values = read_object(fingerprint_file(folder), remarks)
    if {"config", "before", "sources"} <= set(values):
        return values
    message = remarks[0] if remarks else "it has no fingerprint.json"
    raise RunError(
        f"the run in {str(folder.path)!r} cannot be resumed: {message}. Runs of earlier versions "
        "must be started again with another --output"
    )


def _hash_json(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=repr)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
