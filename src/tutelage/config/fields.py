"""Types of configuration fields, and the base classes of sections and runs.

A value comes from a shell (text), from an override (numbers, lists) or from a JSON file. These
types accept the same value in each form (`calculator`, `a,b` and `[a, b]` are all lists of names)
and reject values that only look right (`true` for a number). The sections themselves are in
`schema.py` and `rl.py`; `keys.py` describes rejected values.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import isfinite, isnan, nan
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


class Section(BaseModel):
    """Frozen group of configuration keys; unknown keys and non-finite numbers are rejected."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        # `trainer.experiment_name=2026` is text that the override grammar reads as a number.
        coerce_numbers_to_str=True,
    )


def _reject_bool(value: Any) -> Any:
    # Python counts true as 1, so `--steps true` would train one step.
    if isinstance(value, bool):
        raise ValueError("expected a number, not true or false")
    return value


def _split_names(value: Any) -> Any:
    if isinstance(value, str):
        value = value[1:-1] if value[:1] + value[-1:] == "[]" else value  # as in `--tools []`
        return tuple(name.strip() for name in value.split(",") if name.strip())
    return _split_paths(value)


def _split_paths(value: Any) -> Any:
    if value is None or isinstance(value, str):  # a path may hold a comma: text is one path
        return (value,) if value else ()
    return tuple(cast("list[Any]", value)) if isinstance(value, list) else value


def parse_success(text: str) -> tuple[str | None, float | None]:
    """Parse a rule such as `right`, `>=0.5` or `right>=0.5` into a reward part and a minimum.

    Raises `ValueError` for any other text.
    """
    name, bounded, bound = (piece.strip() for piece in text.partition(">="))
    try:
        number = float(bound if bounded else name)
    except ValueError:
        number = nan
    if bounded and not isfinite(number):
        raise ValueError(f"{bound!r} after >= is not a number")
    if not bounded and not isnan(number):
        raise ValueError(f"write a minimum with >=, such as >={name}")
    if not name and not bounded:
        raise ValueError("expected a reward part or a minimum, such as right or >=0.5")
    return name or None, number if bounded else None


def _check_success(value: Any) -> Any:
    if value is not None:
        parse_success(value if isinstance(value, str) else "")
    return value


def _parse_json_object(value: Any) -> Any:
    value = json.loads(value) if isinstance(value, str) else value
    if not isinstance(value, dict):
        raise ValueError('expected a JSON object, such as {"size": 3}')
    return json.dumps(value, sort_keys=True)


_NUMBER = BeforeValidator(_reject_bool)

# Bounds stand before the validators, so that the JSON schema, and so every message, shows them.
Count = Annotated[int, Field(ge=1), _NUMBER]
CountOrZero = Annotated[int, Field(ge=0), _NUMBER]
Every = Annotated[int, Field(ge=-1), _NUMBER]
"""A period in steps; -1 and 0 mean never."""
# The guide's upstream writes -1 for "off".
_TOP_K_OFF = BeforeValidator(lambda value: 0 if value in (-1, "-1") else value)
TopK = Annotated[int, Field(ge=0), _TOP_K_OFF, _NUMBER]

Positive = Annotated[float, Field(gt=0), _NUMBER]
NonNegative = Annotated[float, Field(ge=0), _NUMBER]
Share = Annotated[float, Field(ge=0, le=1), _NUMBER]
PositiveShare = Annotated[float, Field(gt=0, le=1), _NUMBER]
AboveOne = Annotated[float, Field(gt=1), _NUMBER]
Beta = Annotated[float, Field(ge=0, lt=1), _NUMBER]

Names = Annotated[tuple[str, ...], BeforeValidator(_split_names)]
NamesOrNone = Annotated[
    tuple[str, ...] | None, BeforeValidator(lambda v: None if v is None else _split_names(v))
]
Paths = Annotated[tuple[str, ...], BeforeValidator(_split_paths)]


def _text_field(*examples: str, **bounds: Any) -> Any:
    """Return a text field with examples for error messages."""
    return Field(json_schema_extra={"examples": list(examples)}, **bounds)


SuccessRule = Annotated[str, _text_field("right", "'>=0.5'"), BeforeValidator(_check_success)]
"""Definition of success: a part of the reward, a minimum, or a part and its minimum."""

Url = Annotated[str, _text_field("http://localhost:4318", pattern="^https?://[^/]")]
ServerUrl = Annotated[str, _text_field("http://HOST:PORT", pattern="^https?://[^/]+/?$")]
ServerUrls = Annotated[tuple[ServerUrl, ...], BeforeValidator(_split_names)]
ClusterAddress = Annotated[str, _text_field("auto", "10.0.0.5:6379", pattern=r"^(auto|[^/]+:\d+)$")]

Arguments = Annotated[str, _text_field("'{\"size\": 3}'"), BeforeValidator(_parse_json_object)]
"""Arguments by name, as the text of a JSON object."""

Extension = Annotated[str, _text_field("a registered name", "FILE.py:name", min_length=1)]
"""Name of a registered extension, or FILE.py:name; see `extensions.py`."""

_VLLM_ALIASES = BeforeValidator(lambda v: "vllm" if v in ("async_verl", "async_vllm") else v)
EngineName = Annotated[Literal["native", "vllm", "openai"], _VLLM_ALIASES]
LoggerName = Literal["console", "jsonl", "wandb", "tensorboard", "mlflow"]
Loggers = Annotated[tuple[LoggerName, ...], BeforeValidator(_split_names)]
Measurement = Literal["before/greedy", "after/greedy", "after/no_tools"]
Measurements = Annotated[tuple[Measurement, ...], BeforeValidator(_split_names)]


class RunSettings(Section):
    """Settings that all runs share; each kind of run adds its own keys."""

    seed: CountOrZero = 0
    """Random seed of the run."""
    output: str | None = None
    """Folder of the run; null is a new one in `runs/`."""
    allow_changes: bool = False
    """Resume the run in the output folder even if its agent, reward, tools, model or tasks have
    changed."""


def tuples_to_lists(value: Any) -> Any:
    """Convert tuples in `value` to lists, as a round trip through JSON does."""
    if isinstance(value, (list, tuple)):
        return [tuples_to_lists(item) for item in cast("Sequence[Any]", value)]
    return value
