"""Objects that a Python caller passes to a job besides its configuration: agent, resources, tasks.

A configuration is text and can be stored; objects cannot. `trainer/trainer.py` collects them,
`weights/inputs.py` and `weights/run.py` use them; what can be written is in the run folder
(`agent.json`, `tasks/`), so that a resumed run is the same run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tutelage.agents.agent import Agent
from tutelage.environments.protocol import EnvironmentFactory
from tutelage.errors import RunError
from tutelage.resources import NamedResources, PromptTemplate, Roles
from tutelage.rewards import RewardFunction
from tutelage.runs.fingerprint import agent_sources
from tutelage.runs.folder import RunFolder, write_json, write_text
from tutelage.types import Rollout, Task

if TYPE_CHECKING:
    from tutelage.policy.model import Policy
    from tutelage.rollouts.manager import RolloutManager

ENVIRONMENT_REWARD = "environment"
"""Name of the reward if the environment gives it."""
AGENT_REWARD = "agent"
"""Name of the reward in the configuration if the agent returns it."""


@dataclass(frozen=True, slots=True)
class JobInputs:
    """Python objects of a training job: agent, resources, tasks and reward."""

    agent: Agent
    resources: NamedResources
    roles: Roles
    manager: RolloutManager
    train: Sequence[Task] | None
    """None uses the tasks of the configuration."""
    val: Sequence[Task] | None
    test: Sequence[Task] | None
    reward: RewardFunction | None
    """Grades rollouts whose agent returns no reward."""
    policies: Mapping[str, Policy]
    """Policies passed as objects, by name."""
    on_rollout: Callable[[Rollout], None] | None = None
    file: str | None = None
    """File of the agent, from which a command resumes the run."""
    files: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    """Files of the tasks, by split."""
    environment: EnvironmentFactory | None = None
    """Environment that was passed as an object."""
    environment_source: object = None
    """Class, function or factory of the environment."""

    @property
    def has_own_tasks(self) -> bool:
        """True if the caller passed tasks instead of using those of the configuration."""
        return self.train is not None or self.test is not None

    @property
    def sources(self) -> dict[str, str]:
        """Hashes of the agent, its reward, its resources and its tasks, by name."""
        splits = {"training": self.train, "validation": self.val, "test": self.test}
        environment = self.environment_source
        return agent_sources(self.agent, self.reward, self.resources, splits, environment)

    def record(self, folder: RunFolder, splits: Mapping[str, Sequence[Task]]) -> None:
        """Write the agent and the tasks to the run folder. Tasks from the configuration are not
        written."""
        for split, tasks in splits.items() if self.has_own_tasks else ():
            if self.train is not None or split == "test":
                folder.tasks(split).unlink(missing_ok=True)
                write_tasks(folder.tasks(split), tasks)
        resources: dict[str, Any] = {}
        for name, value in self.resources.items():
            text = value.template if isinstance(value, PromptTemplate) else repr(value)
            resources[name] = {"kind": type(value).__name__, "value": text}
        fields = {
            "agent": self.agent.name,
            "kind": type(self.agent).__name__,
            "resources": resources,
            "policies": dict(self.roles.policies),
            "frozen": list(self.roles.frozen),
            "remote": dict(self.roles.remote),
            "reward": None if self.reward is None else self.reward.name,
            "file": self.file,
            "tasks": {split: list(files) for split, files in self.files.items()},
            "runners": self.manager.n_runners,
        }
        write_json(folder.agent, fields)


def write_tasks(path: Path, tasks: Sequence[Task]) -> None:
    """Write the tasks of a run. Raises `RunError` if the file exists with different tasks."""
    lines = [json.dumps({**t.fields, "id": t.id}, ensure_ascii=False) + "\n" for t in tasks]
    text = "".join(lines)
    if not path.is_file():
        path.parent.mkdir(exist_ok=True)
        write_text(path, text)
    elif path.read_text(encoding="utf-8") != text:
        raise RunError(
            f"the tasks differ from the original tasks of the run ({str(path)!r}); pass the same "
            "tasks, or another output_dir"
        )


def reject_python_agent(folder: RunFolder) -> None:
    """Raise `RunError` if the run trains a Python agent, which cannot be resumed by a command."""
    path = folder.agent
    if path.is_file():
        name = json.loads(path.read_text()).get("agent")
        raise RunError(
            f"the run in {str(folder.path)!r} trains the Python agent {name!r}; resume it in "
            f"its Python program with Trainer(output_dir={str(folder.path)!r}, ...)"
        )


def job_reward(inputs: JobInputs | None, reward: RewardFunction | None) -> RewardFunction | None:
    """Return the reward function of a job: that of `inputs` if it contains tasks, else `reward`."""
    return inputs.reward if inputs is not None and inputs.has_own_tasks else reward
