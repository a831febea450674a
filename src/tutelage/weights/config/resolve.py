"""Resolve a recipe, flags, overrides and a file to one checked configuration.

There are four layers, each of which overrides the one before: the schema's defaults, the recipe's
preset, a file, and the command line (flags and overrides together). Two spellings of a key in one
layer must agree, whatever their order. Then values are derived, everything is checked before any
model loads, and keys without an effect are listed. The result is a `Resolved`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from tutelage.algorithms.extensions import (
    ESTIMATOR,
    ESTIMATORS,
    LOSS,
    LOSSES,
    METHOD_DEFAULTS,
    METHODS,
)
from tutelage.config.aliases import canonical_key, list_aliases
from tutelage.config.facts import Machine
from tutelage.config.fields import tuples_to_lists
from tutelage.config.issues import ConfigIssue, raise_issues
from tutelage.config.keys import (
    NO_NAMES,
    Names,
    defaults,
    flatten,
    get,
    leaf_fields,
    nest,
    value_issue,
)
from tutelage.config.overrides import Override, parse_overrides, read_keys
from tutelage.config.resolved import Resolved
from tutelage.config.rl import MICRO_BATCH, TOKENS_ON_GPU
from tutelage.config.schema import RunConfig
from tutelage.errors import ConfigError, pluralize
from tutelage.resources import SHIPPED
from tutelage.weights.config.checks import find_problems, unused_keys
from tutelage.weights.config.extensions import registered_names
from tutelage.weights.config.presets import (
    DEMONSTRATIONS,
    DEMONSTRATIONS_EMBEDDED,
    RECIPES,
    recipe_preset,
)

ALGORITHM = "algorithm.name"
CHECKPOINTS = "trainer.max_actor_ckpt_to_keep"
"""The key whose note is part of a run's plan."""
_NO_GRADIENT = (
    "has an expected gradient of zero as a loss, so it does not keep the policy near the "
    "reference; use low_var_kl or kl+"
)
_ENDS = ("trainer.total_training_steps", "trainer.total_epochs", "trainer.minutes")


@dataclass(frozen=True, slots=True)
class _Set:
    """One key with a typed value, its origin, and the user's spelling."""

    key: str
    value: Any
    origin: str
    spelling: str


Layer = dict[str, _Set]
_Given = tuple[str, Any, str]
"""A key as the user spelt it, its value, and its source."""


def resolve(
    recipe: str,
    overrides: Sequence[str | Override] = (),
    *,
    machine: Machine,
    flags: Mapping[str, Any] = MappingProxyType({}),
    file: Path | None = None,
    own_agent: bool = False,
) -> Resolved:
    """Return the checked configuration of `tutelage train RECIPE`.

    `flags` maps any spelling of a key to its value; None means that the flag is absent. `file` is a
    JSON or TOML file of keys, nested or dotted. With `own_agent` a Python agent plays instead of a
    built-in one. Raises `ConfigError` with all problems, and `MissingExtraError` if there are
    overrides and their parser is not installed.
    """
    if recipe not in RECIPES:
        raise ConfigError(f"unknown recipe {recipe!r}. Recipes: {', '.join(RECIPES)}.")
    first = _Set("recipe", recipe, f"train {recipe}", f"train {recipe}")
    parsed = parse_overrides(overrides)
    set_flags = {name: value for name, value in flags.items() if value is not None}
    pairs = [(k, v, f"flag --{k.replace('_', '-')}") for k, v in set_flags.items()]
    # Of overrides with one spelling the last counts, as in Hydra.
    last = {o.spelling: o.value for o in parsed}
    pairs += [(spelling, value, "override") for spelling, value in last.items()]
    in_file = [] if file is None else list(flatten(read_keys(file)))
    of_file = [(key, value, f"file {file and file.name}") for key, value in in_file]
    command, from_file = _build_layer(pairs, first), _build_layer(of_file, first)
    del from_file["recipe"]
    users = from_file | command
    from_preset = _preset_layer(recipe, users)
    methods = [name for key, value, _ in (*of_file, *pairs) if (name := _find_method(key, value))]
    for key, value in METHOD_DEFAULTS.get(methods[-1], {}).items() if methods else ():
        from_preset[key] = _Set(key, value, f"algorithm {methods[-1]}", key)
    kept = dict(from_preset)
    if any(_get(users, key) is not None for key in _ENDS):
        # A preset's end of the run gives way when the user says when to end.
        kept = {key: s for key, s in kept.items() if key not in _ENDS}
    if "trainer.val_tasks" in users:  # which say how many are tested too, unless that is said
        kept.pop("trainer.test_tasks", None)
    settings = kept | users
    derived: Layer = {}
    warnings = _resolve_engine(users, derived, machine)
    if _get(settings, "actor.use_kl_loss") and not _is_supervised(settings):
        kind = _get(settings, "actor.kl_loss_type")
        warnings += [f"actor.kl_loss_type={kind!r} {_NO_GRADIENT}"] * (kind in ("kl", "k1"))
    _resolve_device(settings, users, machine, derived)
    settings = _derive_algorithm(settings, from_preset, users, derived) | derived
    config = RunConfig.model_validate(nest({key: s.value for key, s in settings.items()}))
    origin = dict.fromkeys(leaf_fields(), "default")
    origin |= {key: s.origin for key, s in settings.items()}
    raise_issues(find_problems(config, machine, own_agent=own_agent), origin)
    set_keys = [key for key in leaf_fields() if key in users]
    return Resolved(
        config=config,
        origin=origin,
        unused=unused_keys(config, machine, set_keys, own_agent=own_agent),
        notes=_list_notes(config),
        warnings=tuple(warnings),
    )


def _find_method(name: str, value: Any) -> str | None:
    """Return the method named by `algorithm=NAME`, or None for other keys and values."""
    named = name == ALGORITHM or name in list_aliases(ALGORITHM)
    return value if named and isinstance(value, str) and value in METHODS else None


def _build_layer(entries: Iterable[_Given], recipe: _Set) -> Layer:
    """Build a layer of typed values by key; the name of a method is replaced by its keys.

    Raises an error for unknown keys, invalid values and contradicting spellings.
    """
    layer: Layer = {recipe.key: recipe}
    problems: list[ConfigIssue] = []
    names = registered_names()
    pairs: list[_Given] = []
    for spelling, value, source in entries:
        name = _find_method(spelling, value)
        keys = {spelling: value} if name is None else {ALGORITHM: "rl", **METHODS[name]}
        pairs += [(key, fit, source) for key, fit in keys.items()]
    for spelling, value, source in pairs:
        # An origin shows the user's own spelling: a flag already does.
        origin = source if source.startswith("flag ") else f"{source} {spelling}"
        try:
            key = canonical_key(spelling, value)
            fit = _parse(key, value, names)
        except ConfigIssue as problem:
            problems.append(problem.with_origin(source if problem.key == spelling else origin))
            continue
        origin = source if key == spelling else origin
        other = layer.setdefault(key, _Set(key, fit, origin, spelling))
        if other.value != fit:
            both = ((other.spelling, other.value), (spelling, fit))
            said = ", ".join(f"{tuples_to_lists(text)!r} ({name})" for name, text in both)
            reason = f"set twice, to different values: {said}"
            problems.append(ConfigIssue(key, fit, reason, "Keep one of them.", origin))
    raise_issues(problems)
    return layer


def _preset_layer(recipe: str, user: Layer) -> Layer:
    """Return the preset of a recipe, selected by model, tasks and demonstrations."""
    algorithm = "sft" if recipe == "sft" and ALGORITHM not in user else _get(user, ALGORITHM)
    own, shown = _get(user, "model.path") not in (None, SHIPPED), "data.demonstrations" in user
    made = ("model.size", "model.layout") if shown else ("sft.", "model.size", "model.layout")
    try:
        name, values = recipe_preset(
            recipe,
            level=_get(user, "data.level"),
            algorithm=algorithm,
            own_model=own,
            own_tasks=bool(_get(user, "data.train_files")),
            own_start=any(key.startswith(made) for key in user),
            environment=_get(user, "environment.name") is not None,
        )
    except ConfigIssue as problem:
        by = user.get(problem.key)
        raise ConfigError(str(problem.with_origin("" if by is None else by.origin))) from problem
    if shown and recipe != "sft":
        own = own or values.get("model.path") not in (None, SHIPPED)
        values |= DEMONSTRATIONS | ({} if own else DEMONSTRATIONS_EMBEDDED)
    return {key: _Set(key, _parse(key, v), f"preset {name}", key) for key, v in values.items()}


def _resolve_engine(user: Layer, derived: Layer, machine: Machine) -> list[str]:
    """Fall back to the native engine if vLLM is not available, and return the warnings."""
    key, places = "rollout.name", ("rollout.servers", "rollout.vllm_python")
    there = machine.vllm or any(_get(user, place) for place in places)
    if there or _get(user, key) != "vllm":
        return []
    wanted = user[key]
    derived[key] = _Set(key, "native", f"{wanted.origin} ({key}=vllm)", key)
    return [
        f"{wanted.spelling}=vllm: vLLM is not available, so the native engine is used; set "
        "rollout.servers, or rollout.vllm_python, the Python of an environment with vLLM"
    ]


def _resolve_device(settings: Layer, user: Layer, machine: Machine, derived: Layer) -> None:
    """Derive the number of GPUs, the token budget and the number format from the device.

    On a CPU a preset's bfloat16 becomes float32, since word problems failed to learn a kind of task
    in it. Where sampler and trainer differ, by bfloat16 or in asynchronous training, a correction
    is turned on unless a key sets it.
    """

    def derive(key: str, value: Any, source: str) -> None:
        derived[key] = _Set(key, value, f"derived from {source}", key)

    names = ("trainer.device", "trainer.n_gpus_per_node", "model.dtype")
    device, _, dtype = (_get(settings, k) for k in names)
    on_gpu = machine.cuda_devices and device != "cpu"
    taken = {names[1]: machine.ranks, "trainer.nnodes": machine.nodes, MICRO_BATCH: TOKENS_ON_GPU}
    for key, value in taken.items() if on_gpu else ():
        if value != defaults()[key] and (key not in settings or settings[key].value is None):
            derive(key, value, "trainer.device")
    if dtype == "bfloat16" and names[2] not in user and not on_gpu:
        dtype = "float32"
        derive(names[2], dtype, "trainer.device")
    if _is_supervised(settings):
        return
    key, ahead = "rollout.correction", "async_training.staleness_threshold"
    if key not in settings and (dtype == "bfloat16" or (on_gpu and dtype == "auto")):
        derive(key, "token_tis", names[2])
    if _get(settings, ahead):
        for name, value in (("rollout.schedule", "free"), (key, "token_tis")):
            if name not in settings:
                derive(name, value, ahead)


def _derive_algorithm(settings: Layer, preset: Layer, user: Layer, derived: Layer) -> Layer:
    """Add the default values of estimator and loss to `derived`.

    Returns the settings without preset values for another estimator or loss.
    """
    out = dict(settings)
    for key, registry in ((ESTIMATOR, ESTIMATORS), (LOSS, LOSSES)):
        made_for, name = _get(preset, key), _get(settings, key)
        rule, before = registry.load_or_none(name), registry.load_or_none(made_for)
        own = {} if rule is None else dict(rule.defaults)
        if name != made_for:
            others = {*own, *(() if before is None else before.defaults)}
            out = {k: s for k, s in out.items() if k not in others or k in user}
        if key == LOSS and _is_supervised(settings):
            continue
        both_clips = "actor.clip_ratio" in out  # it stands for its two distances
        for target, value in own.items():
            if target not in out and not (both_clips and target.startswith("actor.clip_ratio_")):
                derived[target] = _Set(target, value, f"derived from {key}", target)
    return out


def _is_supervised(settings: Layer) -> bool:
    return _get(settings, ALGORITHM) == "sft"


def _get(layer: Layer, key: str) -> Any:
    """Return the value of a key in a layer, or its default."""
    return layer[key].value if key in layer else defaults()[key]


def _list_notes(config: RunConfig) -> dict[str, str]:
    """Return notes on derived settings by key: kept checkpoints, and updates per batch."""
    trainer = config.trainer
    every, keep = f"every {trainer.save_freq} steps and ", trainer.max_actor_ckpt_to_keep
    kept = "all" if keep is None else f"the last {keep} and the best in validation"
    every *= trainer.save_freq > 0
    notes = {CHECKPOINTS: f"checkpoints {every}after the last step; {kept} are kept"}
    if config.algorithm.name == "rl":
        updates = config.updates_per_batch
        later = "on-policy" if updates == 1 else f"all but the first off-policy ({updates - 1})"
        notes["actor.ppo_mini_batch_size"] = (
            f"{config.rollouts_per_update} rollouts an update: "
            f"{pluralize(updates, 'optimizer step')} per batch, {later}"
        )
    return notes


def _parse(key: str, value: Any, names: Names = NO_NAMES) -> Any:
    """Convert a value to the type of its key. Raises `ConfigIssue` for an invalid value.

    `names` are the allowed names, as in `value_issue`.
    """
    try:
        config = RunConfig.model_validate(nest({key: value}))
    except ValidationError as error:
        raise value_issue(key, value, names) from error
    return get(config, key)
