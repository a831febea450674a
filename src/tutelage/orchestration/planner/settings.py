"""Settings of a planner's training run, and the keys of its two phases.

The keys of the configuration file, in YAML:

    training:
      phase1_supervised: {batch_size: 32, learning_rate: 1e-4, num_epochs: 50, ...}
      phase2_rl: {algorithm: "PPO", learning_rate: 3e-5, ...}

YAML 1.1 reads `3e-5` as text, so the schema parses numbers. Unknown keys and invalid values raise
an error, which suggests the most similar key or states the default. `fit.py` uses the first
section, `routing/phase2.py` the second.
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
from tutelage.orchestration.data.rows import find_remedy, read_json
from tutelage.orchestration.routing.settings import Phase2Settings
from tutelage.tools.loading import hint

RECIPE = "planner"
PROJECT = "orchestai"
"""Default name of the W&B project."""


class Phase1Settings(Section):
    """Settings of supervised pre-training."""

    batch_size: Count = 32
    """Workflows per optimizer step."""
    learning_rate: Positive = 2e-3
    """Learning rate of Adam. Hashed features are rare and need larger steps than 1e-4."""
    num_epochs: Count = 50
    """Maximum number of epochs; early stopping may end the training before."""
    lambda_dag: NonNegative = 0.3
    """Weight of the DAG loss."""
    train_data_size: Count | None = None
    """Maximum number of workflows used from the training file (default: all). Without a file:
    number of synthetic workflows (default: 300)."""
    synthetic_augmentations: CountOrZero | None = None
    """Synthetic workflows added for training. Default: 0 with a training file, otherwise 1,000."""
    validation_share: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Share of the training set held out to choose the epoch and the search weights."""
    plateau_patience: CountOrZero = 1
    """Epochs without improvement before the learning rate is reduced."""
    plateau_factor: PositiveShare = 0.3
    """Factor by which the learning rate is multiplied on a plateau."""
    early_stopping: Count = 4
    """Epochs without improvement before training stops."""
    refit: bool = True
    """Continue from the best epoch with the whole training set, including the held-out share."""
    width: Count = 128
    """Size of the hidden vectors."""
    beam: Count = 4
    """Beam size of the search."""
    max_nodes: Count | None = None
    """Maximum number of nodes in a plan. Default: 1.5 times the longest training plan."""


class PlannerTrainingSettings(Section):
    """Section `training` of a configuration file: settings of both phases, and loggers."""

    phase1_supervised: Phase1Settings = Phase1Settings()
    """Settings of the planner."""
    phase2_rl: Phase2Settings = Phase2Settings()
    """Settings of the router (`routing/settings.py`)."""
    logger: Loggers = ("console", "jsonl")
    """Loggers for metrics: console, jsonl, tensorboard, wandb, mlflow."""
    project_name: str = PROJECT
    """Project name in W&B or MLflow."""


class PlannerConfig(RunSettings):
    """Request of a planner's training run, as stored in `config.json` for a resume."""

    phase: Literal["1", "2", "all"] = "all"
    """1: train the planner; 2: train the router that selects workers; all: both."""
    train: str | None = None
    """Training workflows. Default: synthetic workflows over the built-in tools."""
    test: str | None = None
    """Test workflows, used only after training."""
    catalog: str | None = None
    """Catalog of the tools that plans may use."""
    outcomes: str | None = None
    """Phase 2: table of outcomes, with the scores of the workers' answers by query."""
    models: str | None = None
    """Phase 2: prices of the workers in `outcomes`."""
    test_outcomes: str | None = None
    """Phase 2: held-out outcomes, used only to evaluate the router."""
    checkpoint: str | None = None
    """Phase 2 only: checkpoint of the phase 1 planner."""
    keys: dict[str, Any] = Field(default_factory=dict)
    """Configuration keys that were set, by full dotted name."""

    def settings(self) -> PlannerTrainingSettings:
        """Return the training settings, with `keys` applied. Raises `ConfigError`."""
        return read_settings(None, self.keys)

    def check_options(self) -> PlannerTrainingSettings:
        """Return the training settings. Raises `ConfigError` if the options are inconsistent."""
        given = {name: value for name, value in self if value is not None}
        for name, value in given.items():
            option = f"--{name.replace('_', '-')} {value!r}"
            if name in _MISPLACED[self.phase]:
                use = f"cannot be used with --phase {self.phase}"
                raise ConfigError(f"{option} {use}; remove it, or choose another --phase")
            if name in _NEEDS and _NEEDS[name] not in given:
                raise ConfigError(f"{option} needs --{_NEEDS[name]} FILE")
        return self.settings()


_NEEDS = {
    "outcomes": "models",
    "models": "outcomes",
    "test_outcomes": "outcomes",
    "test": "train",
}
"""Options that require another option."""
_MISPLACED = {
    "all": ("checkpoint",),
    "1": ("outcomes", "models", "test_outcomes", "checkpoint"),
    "2": ("train", "test", "catalog"),
}
"""Options that a phase does not use."""


def read_settings(
    path: str | Path | None = None, overrides: Mapping[str, Any] | None = None
) -> PlannerTrainingSettings:
    """Read settings: defaults, updated by a YAML or JSON file, then by `overrides` (dotted keys).

    Raises `ConfigError` with all unknown keys, or with the first invalid value.
    """
    values = {} if path is None else read_keys(path)
    origins = dict.fromkeys(values, f"file {path}")
    fields = {full_key(key): value for key, value in (overrides or {}).items()}
    values |= fields
    origins |= dict.fromkeys(fields, "given")
    known = _known_keys()
    words = sorted({name.rsplit(".", 1)[-1] for name in known})
    issues: list[ConfigIssue] = []
    for key, value in values.items():
        if key not in known:
            near = hint(key, known if "." in key else words, "Did you mean {!r}?")
            fix = near or "train planner --dry-run --all shows all keys."
            issues.append(ConfigIssue(key, value, "unknown key", fix))
    raise_issues(issues, origins)
    try:
        return PlannerTrainingSettings.model_validate(nest(values).get("training", {}))
    except ValidationError as error:
        found = error.errors(include_url=False)[0]
        place = ".".join(["training", *map(str, found["loc"])])
        key = next((name for name in known if f"{place}.".startswith(f"{name}.")), place)
        fix = f"Its default is {known.get(key)!r}."
        issue = ConfigIssue(key, found["input"], find_remedy(found), fix)
        raise ConfigError(str(issue.with_origin(origins.get(key, "")))) from error


def read_keys(path: str | Path) -> dict[str, Any]:
    """Read a YAML or JSON file as a dict with dotted keys. Raises `ConfigError` if the file is
    invalid. Unknown keys are not checked."""
    data = read_json(path, ConfigError)
    if not isinstance(data, dict):
        raise ConfigError(f"{str(path)!r} must contain keys, such as 'training:', got {data!r:.60}")
    # A section without keys sets nothing.
    pairs = flatten(cast("dict[str, Any]", data))
    return {key: value for key, value in pairs if value or key != "training"}


def _known_keys() -> dict[str, Any]:
    """Return the default value of each dotted key."""
    return dict(flatten({"training": PlannerTrainingSettings().model_dump()}))


def full_key(key: str) -> str:
    """Return the full dotted name of a key such as `learning_rate`, in the first section with this
    key. Unknown keys are returned unchanged."""
    known = _known_keys()
    return next((name for name in known if name == key or name.endswith(f".{key}")), key)
