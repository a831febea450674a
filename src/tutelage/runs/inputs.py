"""Tasks, tools and reward of a run's configuration, loaded and checked.

`weights/inputs.py` builds the rest of a job from them, and an evaluation reads the training tasks
of a run from here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tutelage.agents.builtin import AGENTS, template_tools
from tutelage.config import RunConfig
from tutelage.engine.usage import Cost
from tutelage.environments.loading import load_environment
from tutelage.environments.protocol import EnvironmentFactory
from tutelage.environments.start import environment_tasks
from tutelage.errors import ConfigError, DataError, RunError, pluralize
from tutelage.rewards import RewardFunction, resolve_reward
from tutelage.runs.figures import read_object
from tutelage.runs.folder import RunFolder, find
from tutelage.runs.resume_hint import resume_command
from tutelage.runs.stored import open_run
from tutelage.seeds import SeedTree
from tutelage.statistics.outcome import Success, is_success
from tutelage.tasks.arithmetic import EMBEDDED_REWARD, make_tasks
from tutelage.tasks.dataset import Dataset
from tutelage.tasks.demonstrations import Demonstration, load_demonstrations, read_demonstration
from tutelage.tasks.overlap import hold_out
from tutelage.tasks.readers import READERS, RawRow
from tutelage.tasks.word_problems import DEMONSTRATED, LEVELS, make_word_problems
from tutelage.tools.options import ToolOptions
from tutelage.tools.registry import resolve_tools
from tutelage.tools.tool import Tool
from tutelage.types import Task

EMBEDDED_TOOLS = ("calculator", "sum_1_to_n", "lookup")
WORD_PROBLEM_TOOLS = ("calculator", "price_list")
TRAIN_TASKS = 8192
"""Number of training tasks that the embedded job generates."""
DEMONSTRATIONS = {"default": 40, "full": 200}
"""Number of demonstrated word problems, by level; the cold start of `full` shows the first 64, that
of `default` all, once."""
TEST_SEED = 1
"""Seed of the word problems of the test, which are the same for every run."""
_DRAWN_TASKS = 200
"""Default number of validation tasks that are generated or held out."""


@dataclass(frozen=True, slots=True)
class Tasks:
    """Training, validation, test and cold-start tasks of a run."""

    train: Sequence[Task]
    val: Sequence[Task]
    test: Sequence[Task]
    shown: Sequence[Task] = ()
    """Training tasks whose reference calls are demonstrated."""
    skill: Sequence[Task] = ()
    """Held-out tasks like `shown`, on which the cold start is evaluated."""
    in_order: bool = False
    """True if `shown` is used in order, without random sampling."""

    @property
    def splits(self) -> Mapping[str, Sequence[Task]]:
        """Training, validation and test tasks by split name."""
        return {"train": self.train, "val": self.val, "test": self.test}


@dataclass(frozen=True, slots=True)
class DemonstrationRows:
    """Demonstrations for supervised training before reinforcement learning."""

    rows: Sequence[Demonstration]
    solved: Sequence[Task]
    """Tasks of the rollouts among the rows."""
    origin: str
    """Text on the source of the rows and their cost."""


def load_demonstration_rows(config: RunConfig) -> DemonstrationRows:
    """Load the demonstrations from the files and runs in `data.demonstrations`.

    Raises `DataError` for an invalid row of a file, with line and field, and `RunError` for a run
    that is not a finished evaluation or has no successful rollout.
    """
    rows: list[Demonstration] = []
    solved: list[Task] = []
    origins: list[str] = []
    for name in config.data.demonstrations:
        if Path(name).is_file() or Path(name).suffix.lower() in READERS:
            read = load_demonstrations([name])
            origins.append(name)
        else:
            read, tasks, origin = _read_successes(find(name), config.reward.success)
            solved += tasks
            origins.append(origin)
        rows += read
    return DemonstrationRows(rows, solved, "; ".join(origins))


def _read_successes(
    folder: RunFolder, success: str | None
) -> tuple[list[Demonstration], list[Task], str]:
    """Read the successful rollouts of an evaluation as demonstrations, with their tasks and a
    summary of their cost."""
    from tutelage.store.export import chat_rows

    path, fields, result = str(folder.path), read_object(folder.config), folder.read_result()
    if fields.get("kind") != "evaluation":
        raise RunError(
            f"data.demonstrations={path!r} is not a run of `tutelage eval`; use such a run, or a "
            f"file of rows, such as exported from a training run: tutelage export {path} --format "
            "sft --out FILE.jsonl"
        )
    if result is None:
        raise RunError(
            f"data.demonstrations={path!r} has not finished; finish it first: "
            f"{resume_command(folder.path)}"
        )
    rule = Success.parse(success or fields["success"])
    with open_run(folder) as (store, run_id):
        solved = [rollout for rollout in store.rollouts(run_id) if is_success(rollout, rule)]
    rows: list[Demonstration] = []
    refused: list[str] = []
    for rollout in solved:
        for row in chat_rows(rollout):
            try:
                rows.append(read_demonstration(RawRow(f"{path} {rollout.id}", row), path))
            except DataError as error:
                refused.append(str(error))
    skipped = f"; {len(refused)} conversations were skipped: {refused[0]}" if refused else ""
    if not rows:
        raise RunError(
            f"data.demonstrations={path!r} has no demonstrations: {len(solved)} of its "
            f"{pluralize(result['rollouts'], 'rollout')} succeeded{skipped}. Evaluate a stronger "
            "model, or change what counts as success: --success '>=0.5'"
        )
    calls = sum(len(rollout.last.calls) for rollout in solved)
    origin = (
        f"{len(solved)} of {pluralize(result['rollouts'], 'rollout')} ({pluralize(calls, 'call')})"
        f" of {path}, which cost {Cost(**result['cost'])}{skipped}"
    )
    return rows, [rollout.task for rollout in solved], origin


def environment_of(config: RunConfig) -> EnvironmentFactory | None:
    """Load the configured environment, or return None if there is none. Raises `ConfigError`."""
    name, kwargs = config.environment.name, config.environment.kwargs
    return None if name is None else load_environment(name, json.loads(kwargs))


def reward_of(config: RunConfig) -> RewardFunction | None:
    """Load the configured reward, or return None if the environment provides rewards."""
    if config.environment.name is not None and config.agent.reward_name is None:
        return None
    return resolve_reward(config.agent.reward_name or EMBEDDED_REWARD, _tool_options(config))


def load_tools(config: RunConfig) -> dict[str, Tool]:
    """Load the agent's tools, or return an empty dict without an agent or tool calls."""
    if not config.agent.use_agent or config.agent.tool_choice == "none":
        return {}
    usual = WORD_PROBLEM_TOOLS if config.recipe == "word-problems" else EMBEDDED_TOOLS
    usual = () if config.environment.name is not None else usual
    own = AGENTS.find(config.agent.agent_type).own_tools or usual
    asked = config.agent.tools
    return resolve_tools(own if asked is None else asked, _tool_options(config))


def _tool_options(config: RunConfig) -> ToolOptions:
    return ToolOptions(
        search_index=config.tools.search_index,
        judge_base_url=config.judge.base_url,
        judge_model=config.judge.model,
        allow_unsandboxed=config.tools.allow_unsandboxed,
    )


def select_tools(
    config: RunConfig, tools: Mapping[str, Tool], *, supports_tools: bool
) -> Mapping[str, Tool]:
    """Return the agent's tools, or none if they are defaults that the chat template ignores.

    Tools that the configuration names are rejected there instead.
    """
    unasked = not config.agent.tools and not supports_tools
    return {} if unasked and template_tools(config, tools) else tools


def load_tasks(config: RunConfig, environment: EnvironmentFactory | None = None) -> Tasks:
    """Load and check the tasks from the configured files or the environment, or generate the
    embedded tasks."""
    data, limit, tested = config.data, max_val_tasks(config), max_test_tasks(config)
    if environment is not None and not data.train_files:
        sizes = {"train": data.train_tasks or TRAIN_TASKS, "val": limit, "test": tested or limit}
        found = environment_tasks(environment, sizes, config.seed)
        return Tasks(found["train"], found["val"], found["test"])
    if not data.train_files:
        if data.val_files or data.test_files:
            raise ConfigError("--val and --test need --train; pass training tasks as well")
        if config.recipe == "word-problems":
            return _load_word_problems(config, limit, tested)
        level = data.level
        return Tasks(
            train=make_tasks(level, "train", data.train_tasks or TRAIN_TASKS, config.seed),
            val=make_tasks(level, "val", limit, config.seed),
            test=make_tasks(level, "test", tested or limit, config.seed),
            shown=_demonstration_tasks(level, config),
            skill=make_tasks("default", "val", min(100, limit), config.seed),
        )
    asked = environment is None  # an environment may ask the question itself
    train = _load_files(data.train_files, asked)[: data.train_tasks]
    if data.val_files:
        val = _load_files(data.val_files, asked)
    else:
        train, val = split_tasks(train, limit, "--val")
    test = _load_files(data.test_files, asked) if data.test_files else val
    return Tasks(train, val[: config.trainer.val_tasks], test[:tested])


def _load_word_problems(config: RunConfig, val: int, test: int | None) -> Tasks:
    """Generate word problems. Training and validation tasks depend on the run's seed;
    demonstrations and test tasks are fixed."""
    level, seed, kinds = config.data.level, config.seed, LEVELS[config.data.level]
    count = config.data.train_tasks or TRAIN_TASKS
    return Tasks(
        train=make_word_problems("train", count, seed, kinds),
        val=make_word_problems("val", val, seed, kinds),
        test=make_word_problems("test", test or val, TEST_SEED, kinds),
        shown=make_word_problems("train", DEMONSTRATIONS[level], 0, DEMONSTRATED[level]),
        in_order=True,
    )


def split_tasks(
    tasks: Sequence[Task], limit: int, option: str
) -> tuple[Sequence[Task], Sequence[Task]]:
    """Split tasks into training tasks and held-out tasks, at most a tenth and at most `limit`.
    Raises `ConfigError` if no training task remains."""
    kept, held = hold_out(tasks, min(limit, max(1, len(tasks) // 10)))
    if not kept:
        count = "one training task" if len(tasks) == 1 else f"{len(tasks)} identical training tasks"
        raise ConfigError(f"cannot split {count}; add tasks or pass {option}")
    return kept, held


def load_training_tasks(config: RunConfig) -> Sequence[Task]:
    """Load the training tasks of a configuration. Raises `DataError` if a file is missing."""
    return load_tasks(config, environment_of(config)).train


def load_test_tasks(config: RunConfig) -> Sequence[Task]:
    """Load the test tasks from the configured files, or return an empty tuple without files."""
    files = config.data.test_files
    return _load_files(files)[: max_test_tasks(config)] if files else ()


def max_val_tasks(config: RunConfig) -> int:
    """Return the maximum number of generated or held-out validation tasks."""
    return config.trainer.val_tasks or _DRAWN_TASKS


def max_test_tasks(config: RunConfig) -> int | None:
    """Return the maximum number of test tasks, or None for no limit."""
    return config.trainer.test_tasks or config.trainer.val_tasks


def _demonstration_tasks(level: str, config: RunConfig) -> list[Task]:
    """Generate tasks of the default level, mixed with harder ones by `sft.hard_share`."""
    easy = make_tasks("default", "train", TRAIN_TASKS, config.seed)
    if level == "default":
        return easy
    rng = SeedTree(config.seed).child("shown").python()
    hard = make_tasks(level, "train", TRAIN_TASKS, config.seed)
    share = config.sft.hard_share
    return [h if rng.random() < share else e for h, e in zip(hard, easy, strict=True)]


def _load_files(paths: Sequence[str], input_required: bool = True) -> Sequence[Task]:
    read = Dataset[Any].load if input_required else Dataset[Any].recorded
    if len(paths) == 1:
        return read(paths[0])
    tasks = [task for path in paths for task in read(path)]
    return Dataset(tasks, input_required=input_required)
