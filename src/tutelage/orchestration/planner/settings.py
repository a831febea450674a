"""What a planner's run is asked for, and the two phases' keys.

The document writes the keys in YAML; our own stand beside them.

    training:
      phase1_supervised: {batch_size: 32, learning_rate: 1e-4, num_epochs: 50, ...}
      phase2_rl: {algorithm: "PPO", learning_rate: 3e-5, ...}

YAML 1.1 reads `3e-5` as text, so numbers are read by the schema, not by YAML. An unknown key is
refused with the nearest one, a word where a number belongs with both. `fit.py` uses the
first section, `routing/phase2.py` the second.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import Field, ValidationError

from tutelage.config.fields import (
    Count,
    CountOrZero,
    Loggers,
    NonNegative,
    Positive,
    PositiveShare,
    RunSettings,
    Section,
)
from tutelage.config.issues import ConfigIssue, raise_issues
from tutelage.config.keys import flatten, nest
from tutelage.errors import ConfigError
from tutelage.orchestration.data.rows import nearest, read_json, remedy_of
from tutelage.orchestration.routing.settings import Phase2Settings

RECIPE = "planner"
PROJECT = "orchestai"
"""The W&B project of the document."""


class Phase1Settings(Section):
    """Supervised pre-training."""

    batch_size: Count = 32
    """Workflows in one optimizer step."""
    learning_rate: Positive = 2e-3
    """Adam's rate: hashed features occur seldom and need larger steps than the document's 1e-4."""
    num_epochs: Count = 50
    """Maximum number of passes over the training set; early stopping ends before."""
    lambda_dag: NonNegative = 0.3
    """Weight of the DAG loss."""
    train_data_size: Count | None = None
    """Maximum number of workflows taken from the training file, by default all; without a file how
    many are made up, by default 300."""
    synthetic_augmentations: CountOrZero | None = None
    """Synthetic workflows over the catalog that are added to the training set; without it none to a
    training file, 1,000 where there is no file."""
    dag_loss: Literal["seed", "poly"] = "poly"
    """Which DAG loss."""
    validation_share: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Share of the training set that is held out to choose the epoch and the search weights."""
    plateau_patience: CountOrZero = 1
    """Epochs without a better validation before the rate is reduced."""
    plateau_factor: PositiveShare = 0.3
    """What the rate is multiplied with then."""
    early_stopping: Count = 4
    """Epochs without a better validation before training ends."""
    refit: bool = True
    """Go on from the best epoch with all of the training set, the held-out share included."""
    width: Count = 128
    """Size of the vectors."""
    beam: Count = 4
    """Plans kept while decoding."""
    max_nodes: Count | None = None
    """Maximum number of nodes of a plan; null allows half as many again as the longest in
    training."""


class PlannerTrainingSettings(Section):
    """A configuration file, below `training`: both phases and where metrics go."""

    phase1_supervised: Phase1Settings = Phase1Settings()
    """The planner."""
    phase2_rl: Phase2Settings = Phase2Settings()
    """The router (`routing/settings.py`)."""
    logger: Loggers = ("console", "jsonl")
    """Where metrics go: console, jsonl, tensorboard, wandb, mlflow."""
    project_name: str = PROJECT
    """The project of a W&B or MLflow run."""


class PlannerConfig(RunSettings):
    """A planner's run: what `config.json` holds, and all that a resume needs."""

    phase: Literal["1", "2", "all"] = "all"
    """1: learn to plan; 2: learn to choose workers; all: both."""
    train: str | None = None
    """Workflows to learn from; without it synthetic ones over the built-in tools."""
    test: str | None = None
    """Workflows seen only after training."""
    catalog: str | None = None
    """The tools that plans may use."""
    outcomes: str | None = None
    """Phase 2: which worker answered what right."""
    models: str | None = None
    """Phase 2: prices of those workers."""
    test_outcomes: str | None = None
    """Phase 2: outcomes that no fit sees; the shipped router is measured on them."""
    workers: str | None = None
    """Phase 2: workers that execute its episodes, instead of a table of outcomes; needs --budget
    and --verifiers."""
    tasks: str | None = None
    """Phase 2 with --workers: workflows to execute, instead of synthetic ones."""
    num_tasks: Count = 40
    """Phase 2 with --workers: workflows to execute at most, each once for each worker."""
    verifiers: str | None = None
    """Phase 2 with --workers: verifiers by type, as of orchestrate run."""
    budget: NonNegative | None = None
    """Phase 2 with --workers: maximum US dollars of all episodes."""
    pool: Literal["openai", "simulated"] = "openai"
    """Phase 2 with --workers: real servers, or simulated workers of that file."""
    checkpoint: str | None = None
    """Phase 2 alone: the planner of phase 1 that it goes on from."""
    keys: dict[str, Any] = Field(default_factory=dict)
    """Keys that were set, in full, with their values."""

    def settings(self) -> PlannerTrainingSettings:
        """The keys with their defaults. Raises `ConfigError`."""
        return read_settings(None, self.keys)

    def checked(self) -> PlannerTrainingSettings:
        """Return the settings of a request that can be run. Raises `ConfigError` for one that
        cannot."""
        given = {name: value for name, value in self if value is not None}
        for name, value in given.items():
            option = f"--{name.replace('_', '-')} {value!r}"
            if name in _MISPLACED[self.phase]:
                use = f"has no use with --phase {self.phase}"
                raise ConfigError(f"{option} {use}; leave it out, or choose another --phase")
            if name in _NEEDS and _NEEDS[name] not in given:
                raise ConfigError(f"{option} needs --{_NEEDS[name]} FILE")
        if self.workers is not None and self.outcomes is not None:
            raise ConfigError("--workers makes the table that --outcomes has; leave out one")
        real = self.workers is not None and self.pool == "openai"
        if real and not {"budget", "verifiers"} <= given.keys():
            raise ConfigError(
                "--workers asks real servers: give --budget, the most that all episodes may cost "
                "in US dollars, and --verifiers, which say what answers are right"
            )
        return self.settings()


_NEEDS = {
    "outcomes": "models",
    "models": "outcomes",
    "test_outcomes": "outcomes",
    "test": "train",
    **dict.fromkeys(("tasks", "verifiers", "budget"), "workers"),
}
"""Options that need another one."""
_MISPLACED = {
    "all": ("checkpoint",),
    "1": ("outcomes", "models", "test_outcomes", "workers", "checkpoint"),
    "2": ("train", "test", "catalog"),
}
"""Options that a phase has no use for."""


def read_settings(
    path: str | Path | None = None, overrides: Mapping[str, Any] | None = None
) -> PlannerTrainingSettings:
    """Return the defaults, a YAML (or JSON) file over them, and `overrides` by dotted key over
    both.

    Raises `ConfigError` naming every unknown key, or the first that does not fit.
    """
    values = {} if path is None else keys_of(path)
    origins = dict.fromkeys(values, f"file {path}")
    fields = {full_key(key): value for key, value in (overrides or {}).items()}
    values |= fields
    origins |= dict.fromkeys(fields, "given")
    known = _known_keys()
    words = sorted({name.rsplit(".", 1)[-1] for name in known})
    issues: list[ConfigIssue] = []
    for key, value in values.items():
        if key not in known:
            hint = nearest(key, known if "." in key else words)
            issues.append(ConfigIssue(key, value, "unknown key", hint[0].upper() + hint[1:]))
    raise_issues(issues, origins)
    try:
        return PlannerTrainingSettings.model_validate(nest(values).get("training", {}))
    except ValidationError as error:
        found = error.errors(include_url=False)[0]
        place = ".".join(["training", *map(str, found["loc"])])
        key = next((name for name in known if f"{place}.".startswith(f"{name}.")), place)
        fix = f"Its default is {known.get(key)!r}."
        issue = ConfigIssue(key, found["input"], remedy_of(found), fix)
        raise ConfigError(str(issue.located(origins.get(key, "")))) from error


def keys_of(path: str | Path) -> dict[str, Any]:
    """Return the dotted keys that a YAML (or JSON) file sets. Raises `ConfigError` if the file is
    not valid; whether the keys exist is for `read_settings`."""
    data = read_json(path, ConfigError)
    if not isinstance(data, dict):
        raise ConfigError(f"{str(path)!r} holds {data!r:.60}; it needs keys, such as 'training:'")
    # A section without keys sets nothing.
    pairs = flatten(cast("dict[str, Any]", data))
    return {key: value for key, value in pairs if value or key != "training"}


def _known_keys() -> dict[str, Any]:
    """Return every dotted key with its default."""
    return dict(flatten({"training": PlannerTrainingSettings().model_dump()}))


def full_key(key: str) -> str:
    """Return `learning_rate` in full: the first section that has it; others unchanged."""
    known = _known_keys()
    return next((name for name in known if name == key or name.endswith(f".{key}")), key)
