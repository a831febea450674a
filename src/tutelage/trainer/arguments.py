"""Arguments of a `Trainer`, checked and converted for the job: agent, tasks, roles, servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tutelage.agents.agent import Agent
from tutelage.agents.loading import load_agent
from tutelage.config.aliases import all_spellings
from tutelage.environments.loading import as_factory
from tutelage.environments.protocol import EnvironmentFactory
from tutelage.errors import ConfigError
from tutelage.resources import LLM, POLICY, NamedResources, Roles
from tutelage.rewards import RewardFunction
from tutelage.rewards import reward as reward_function
from tutelage.rewards.registry import resolve_reward
from tutelage.rollouts.runner import RolloutSpec
from tutelage.runs.callbacks import Callback
from tutelage.runs.job_inputs import JobInputs
from tutelage.runs.progress import Progress
from tutelage.tasks.dataset import Dataset
from tutelage.tools.loading import hint
from tutelage.types import Mode, Rollout, Task

if TYPE_CHECKING:
    from tutelage.config import RunConfig
    from tutelage.engine.remote import RemoteServers
    from tutelage.policy.model import Policy
    from tutelage.weights.inputs import TrainingInputs


Tasks = Dataset[Any] | Sequence[Mapping[str, Any] | Task | str | Path] | str | Path
"""Tasks as a Dataset, as rows, or as files."""


_PATH, _MAPPING = (str, Path), (Mapping,)
_TYPES: Mapping[str, tuple[tuple[type, ...], str]] = {
    **{
        f"{split}_dataset": ((str, Path, Sequence, Dataset), "rows, a Dataset, or files of tasks")
        for split in ("train", "val", "test")
    },
    "resources": (_MAPPING, "resources by name, as {'main': LLM()}"),
    "output_dir": (_PATH, "a path"),
    "n_runners": ((int,), "a number of rollouts, such as 8"),
    "model": (_PATH, "a folder or the hub name of a model"),
    "endpoints": (_MAPPING, "base URLs by resource or model, as {'judge': 'http://...'}"),
    "callbacks": ((Sequence,), "a list of Callback objects"),
    "progress": ((Progress,), "a Progress, such as Progress() to show nothing"),
    "optimiser": ((LLM,), "an LLM, such as LLM('gpt-4o', endpoint='https://...')"),
    "search": (_MAPPING, "keys of a prompt search, as {'rollouts': 300}"),
    "timeout": ((int, float), "seconds, such as 60"),
}
"""Types of each argument, and their description."""


def check_arguments(arguments: Mapping[str, object], unknown: Mapping[str, object]) -> None:
    """Raise `ConfigError` for unknown arguments of a `Trainer` and for values of a wrong type."""
    for name, value in unknown.items():
        key = name in all_spellings()
        advice = f"; {name} is a training key: algorithm=RL({name}={value!r})" if key else ""
        raise ConfigError(f"Trainer has no argument {name!r}{advice or hint(name, arguments)}")
    wrong: list[str] = []
    for name, (kinds, expected) in _TYPES.items():
        value = arguments[name]
        of_kind = isinstance(value, kinds) and not isinstance(value, bool)
        if not (value is None or value is ... or of_kind):
            wrong.append(f"{name}={value!r} must be {expected}")
    for callback in cast("Sequence[object]", arguments.get("callbacks") or ()) if not wrong else ():
        if not isinstance(callback, Callback):
            wrong.append(f"callbacks must be Callback objects, got {callback!r}")
    if wrong:
        raise ConfigError("; ".join(wrong))


def resolve_agent(
    source: Any, resources: Mapping[str, Any]
) -> tuple[Agent, Mapping[str, Any], str | None]:
    """Load an agent from an object, AGENT.py or AGENT.py:name. Return the agent, the resources of
    its module updated with `resources`, and the file reference or None."""
    agent, merged = load_agent(source, resources)
    if not isinstance(source, (str, Path)):
        return agent, merged, None
    file, _, name = str(source).rpartition(".py")
    return agent, merged, f"{Path(file + '.py').resolve()}{name}"


def resolve_policies(policy: Policy | Mapping[str, Policy] | None) -> dict[str, Policy]:
    """Return policies by name; a single policy gets the name of the main policy."""
    if policy is None:
        return {}
    from tutelage.policy.model import Policy

    policies = dict(policy) if isinstance(policy, Mapping) else {POLICY: policy}
    for name, value in policies.items():
        if not isinstance(cast("object", value), Policy):
            raise ConfigError(f"policy={name!r} must be a Policy, got {value!r}")
    return policies


def as_reward(reward: RewardFunction | Callable[..., Any] | str | None) -> RewardFunction | None:
    """Convert a plain function or a registered name into a reward function."""
    if reward is None or isinstance(reward, RewardFunction):
        return reward
    if isinstance(reward, str):
        return resolve_reward(reward)
    if not callable(reward):
        raise ConfigError(
            f"reward={reward!r} must be a function, a name such as 'math', or 'FILE.py:name'; omit "
            "it if the agent returns its reward"
        )
    return reward_function(reward)


def task_files(tasks: Tasks | None) -> list[str]:
    """Return the absolute paths of task files; empty if the tasks are rows."""
    rows = [tasks] if isinstance(tasks, (str, Path)) else tasks or ()
    return [str(Path(row).resolve()) for row in rows if isinstance(row, (str, Path))]


def to_dataset(tasks: Tasks | None, name: str) -> Sequence[Task] | None:
    """Return tasks as a dataset, or None if `tasks` is None."""
    if tasks is None or isinstance(tasks, Dataset):
        return tasks
    rows = [tasks] if isinstance(tasks, (str, Path)) else list(tasks)
    items: list[Any] = []
    for row in rows:
        if isinstance(row, (str, Path)):
            items += Dataset[Any].recorded(row)
        elif isinstance(cast("object", row), (Mapping, Task)):
            items.append(row)
        else:
            raise ConfigError(
                f"{name}_dataset must have rows such as {{'question': ...}}, got {row!r}"
            )
    return Dataset(items, name=f"{name}_dataset", input_required=False)


def resolve_roles(
    resources: NamedResources, endpoints: Mapping[str, str], policies: Mapping[str, Policy]
) -> Roles:
    """Return the roles of the LLMs in a training run. Raises `ConfigError` if no LLM is trained, or
    if a policy has no LLM."""
    roles = Roles.find(resources, endpoints)
    if roles.main is None:
        raise ConfigError(
            "nothing to train: every LLM of this run has an endpoint or is frozen; set "
            "LLM(trainable=True) for one"
        )
    # The first policy is the main one, whatever it was called, unless another one is.
    main, by_llm = roles.policies[roles.main], dict(roles.policies)
    if POLICY in by_llm.values():
        by_llm = dict(sorted(by_llm.items(), key=lambda item: item[1] != POLICY))
    else:
        by_llm = {r: POLICY if name == main else name for r, name in by_llm.items()}
    roles = replace(roles, policies=by_llm)
    unknown = sorted({*policies} - {*roles.policies.values()})
    if unknown:
        raise ConfigError(
            f"policy={unknown[0]!r} is not trained by any LLM of this run; set LLM(trainable=True, "
            f"policy={unknown[0]!r})"
        )
    return roles


def resolve_environment(environment: Any) -> EnvironmentFactory | None:
    """Convert an environment class, function or factory into a factory; None for a name, which is
    stored in the configuration. Raises `ConfigError` for any other object."""
    return None if environment is None or isinstance(environment, str) else as_factory(environment)


def play_once(inputs: TrainingInputs, job_inputs: JobInputs, n: int) -> list[Rollout]:
    """Run one rollout for each of the first `n` tasks, and return the rollouts."""
    from tutelage.weights.placement import FROZEN, LocalPlacement, PlaySettings

    policies = {POLICY: inputs.policy, FROZEN: inputs.policy, **inputs.others}
    placement = LocalPlacement(inputs, policies.__getitem__)
    play = PlaySettings("dev", Mode.TRAIN, inputs.config.rollout.temperature, own_agent=True)
    specs = [
        RolloutSpec(task, Mode.TRAIN, "dev", i, inputs.seeds.child("dev", i), label="dev")
        for i, task in enumerate(inputs.tasks.train[:n])
    ]
    # What takes spans has the agents named that are marked.
    runner = placement.workers(play, lambda rollout, spans: None)
    return job_inputs.manager.play(runner, specs)


def to_servers(resources: NamedResources, roles: Roles, config: RunConfig) -> RemoteServers | None:
    """Return clients of the LLMs on remote servers; None if all LLMs are local.

    Raises `ConfigError` for a trained LLM whose server cannot return valid log-probabilities.
    """
    if not roles.remote:
        return None
    from tutelage.engine.endpoint import Endpoint
    from tutelage.engine.remote import RemoteServers

    servers: dict[str, Endpoint] = {}
    agent, warm = config.agent, config.rollout.temperature
    for name, url in roles.remote.items():
        llm: LLM = resources[name]
        trained = name in roles.policies
        if trained and (warm != 1.0 or agent.thinking or agent.max_thinking_tokens):
            raise ConfigError(
                f"LLM {name!r} is trained on samples from {url!r}: that server returns "
                f"log-probabilities at temperature 1 and applies its own chat template; set "
                f"rollout.temperature=1, not {warm:g}, and remove agent.thinking and "
                "agent.max_thinking_tokens"
            )
        servers[name] = Endpoint(name, url, llm.model or llm.name or name, llm.api_key, trained)
    return RemoteServers(servers)
