"""The two phases' keys, as the document writes them in YAML, with our own beside them.

    training:
      phase1_supervised: {batch_size: 32, learning_rate: 1e-4, num_epochs: 50, ...}
      phase2_rl: {algorithm: "PPO", learning_rate: 3e-5, ...}

YAML 1.1 reads `3e-5` as text, so numbers are read by the schema, not by YAML. An unknown key is
refused with the nearest one, a word where a number belongs with both. `fit.py` uses the
first section, `routing/phase2.py` the second.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import BeforeValidator, Field, ValidationError

from tutelage.config.fields import (
    Count,
    CountOrZero,
    LoggerName,
    NonNegative,
    Positive,
    PositiveShare,
    Section,
)
from tutelage.config.problems import Problem, fail_on
from tutelage.errors import ConfigError, MissingExtraError
from tutelage.orchestration.routing.settings import Phase2Settings
from tutelage.orchestration.routing.settings import read_settings as read_phase2

PHASE2 = "training.phase2_rl."
PROJECT = "orchestai"
"""The W&B project of the document."""


def _names(value: Any) -> Any:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return tuple(cast("list[Any]", value)) if isinstance(value, list) else value


class Phase1(Section):
    """Supervised pre-training."""

    batch_size: Count = 32
    """Workflows in one optimizer step."""
    learning_rate: Positive = 1e-4
    """Adam's rate; `rate_scale` multiplies it."""
    num_epochs: Count = 50
    """Passes over the training set at most; early stopping ends before."""
    lambda_dag: NonNegative = 0.3
    """Weight of the DAG loss."""
    train_data_size: Count | None = None
    """Workflows taken from the training file at most; null takes all."""
    synthetic_augmentations: CountOrZero = 0
    """Synthetic workflows over the catalog that are added to the training set."""
    dag_loss: Literal["seed", "notears", "poly", "dagma"] = "poly"
    """Which DAG loss."""
    rate_scale: Positive = 20.0
    """The rate times this is what Adam uses: hashed features occur seldom and need larger steps."""
    max_grad_norm: Positive = 1.0
    """Gradients are clipped to this norm."""
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
    """Nodes of a plan at most; null allows half as many again as the longest in training."""


class Training(Section):
    """Both phases and where metrics go."""

    phase1_supervised: Phase1 = Phase1()
    """The planner."""
    phase2_rl: Phase2Settings = Phase2Settings()
    """The router (`routing/settings.py`)."""
    logger: Annotated[tuple[LoggerName, ...], BeforeValidator(_names)] = ("console", "jsonl")
    """Where metrics go: console, jsonl, tensorboard, wandb, mlflow."""
    project_name: str = PROJECT
    """The project of a W&B or MLflow run."""


class Settings(Section):
    """A configuration file."""

    training: Training = Training()
    """Both phases."""


def read_settings(
    path: str | Path | None = None, overrides: Mapping[str, Any] | None = None
) -> Settings:
    """The defaults, a YAML (or JSON) file over them, and `overrides` by dotted key over both.

    Raises `ConfigError` naming every key that is unknown or does not fit.
    """
    tree = {} if path is None else _read(path)
    origin = "" if path is None else f"file {path}"
    origins = {key: origin for key, _ in flatten(tree)}
    for key, value in (overrides or {}).items():
        full = full_key(key)
        _put(tree, full, value)
        origins[full] = "given"
    problems = [_unknown(key, value) for key, value in flatten(tree) if key not in known_keys()]
    fail_on(problems, origins)
    second = {k.removeprefix(PHASE2): v for k, v in flatten(tree) if k.startswith(PHASE2)}
    if second:
        tree["training"]["phase2_rl"] = read_phase2(second)
    try:
        return Settings.model_validate(tree)
    except ValidationError as error:
        fail_on([_misfit(found) for found in error.errors()], origins)
        raise AssertionError("a validation error has at least one finding") from error


def keys_of(path: str | Path) -> dict[str, Any]:
    """The dotted keys that a YAML (or JSON) file sets. Raises `ConfigError` for a file that is
    none; whether the keys exist is for `read_settings`."""
    return dict(flatten(_read(path)))


def known_keys() -> dict[str, Any]:
    """Every dotted key with its default."""
    plain = Settings().model_dump()
    plain["training"]["phase2_rl"] = asdict(Phase2Settings())
    return dict(flatten(plain))


def full_key(key: str) -> str:
    """`learning_rate` in full: the first section that has it; others unchanged."""
    if key in known_keys():
        return key
    full = [known for known in known_keys() if known.endswith(f".{key}")]
    return full[0] if full else key


def flatten(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """The leaves of nested mappings as dotted keys."""
    found: list[tuple[str, Any]] = []
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            found += flatten(cast("Mapping[str, Any]", value), f"{key}.")
        else:
            found.append((key, value))
    return found


def parse_overrides(pairs: Sequence[str]) -> dict[str, Any]:
    """`KEY=VALUE` texts as a mapping; values are read as YAML. Raises `ConfigError`."""
    found: dict[str, Any] = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or not key:
            raise ConfigError(f"{pair!r} is no KEY=VALUE; write for example lambda_dag=0.1")
        found[key.strip()] = _yaml().safe_load(value)
    return found


def _read(path: str | Path) -> dict[str, Any]:
    yaml = _yaml()
    try:
        data = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{str(path)!r} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        where = str(error).replace("\n", " ")
        raise ConfigError(f"{str(path)!r} is no YAML: {where}") from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"{str(path)!r} holds {data!r:.60}; it needs keys, such as 'training:'")
    tree = cast("dict[str, Any]", data)
    empty = [key for key in ("training",) if tree.get(key, {}) is None]
    return {key: value for key, value in tree.items() if key not in empty}


def _yaml() -> Any:
    try:
        import yaml
    except ImportError as error:
        raise MissingExtraError(
            "a configuration in YAML needs PyYAML: pip install 'tutelage[train]'"
        ) from error
    return yaml


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    for parent in parents:
        inner = tree.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{parent!r} is {inner!r}, so {key!r} cannot be set below it")
        tree = cast("dict[str, Any]", inner)
    tree[last] = value


def _unknown(key: str, value: Any) -> Problem:
    known = list(known_keys())
    last = key.rsplit(".", 1)[-1]
    by_word = {name.rsplit(".", 1)[-1]: name for name in reversed(known)}
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.75)
    word = [] if near else difflib.get_close_matches(last, list(by_word), n=1, cutoff=0.6)
    guess = near[0] if near else by_word[word[0]] if word else None
    fix = f"Did you mean {guess!r}?" if guess else f"The keys are {', '.join(sorted(by_word))}."
    return Problem(key, value, "unknown key", fix)


def _misfit(found: Mapping[str, Any]) -> Problem:
    parts = [str(part) for part in found["loc"]]
    known = known_keys()
    key = next(
        (".".join(parts[:n]) for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in known),
        ".".join(parts),
    )
    default = known.get(key)
    fix = "" if default is None else f"Write for example {key.rsplit('.', 1)[-1]}: {default}."
    return Problem(key, found["input"], str(found["msg"]).lower(), fix)
