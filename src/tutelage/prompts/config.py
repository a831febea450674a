"""The keys of a prompt search, with type, default and help.

A prompt search shares few keys with the training of weights, so it has a separate section.
`resolve_prompt` reads flags and `KEY=VALUE` and refuses unknown keys with the nearest one.
Endpoints are not keys: they come from the environment (`engine/endpoint.py`), and their secrets are
never written.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from tutelage.config.fields import (
    Arguments,
    Count,
    CountOrZero,
    Names,
    NonNegative,
    Paths,
    Positive,
    RunSettings,
    SuccessRule,
    tuples_to_lists,
)
from tutelage.config.issues import ConfigIssue, raise_issues
from tutelage.config.keys import field_issue, value_text
from tutelage.config.overrides import parse_overrides, read_keys
from tutelage.config.reference import ReferenceRow

PROMPT_ALGORITHMS = ("apo", "gepa", "reflect", "screen", "auto")
"""The values of `--algorithm` for a prompt search."""
PROMPT_RECIPE = "prompt"
KIND = "prompt"
"""The kind in the `config.json` of a prompt search."""


class PromptConfig(RunSettings):
    """Configuration of a prompt search."""

    recipe: Literal["math", "prompt"] = "math"
    """`math` is the embedded task, `prompt` a custom agent."""
    algorithm: Literal["apo", "gepa", "reflect", "screen", "auto"] = "auto"
    """Search algorithm: `apo`, `gepa` and `reflect` ask an LLM for edits; `screen` selects ready
    phrases and needs no LLM; `auto` is `reflect` with an endpoint and `screen` without."""
    agent: str | None = None
    """Your agent, as FILE.py or FILE.py:name."""
    environment: str | None = None
    """Environment that the agent acts in: a built-in one, SCHEME:ARGUMENT or FILE.py:NAME."""
    environment_kwargs: Arguments = "{}"
    """Arguments of the environment, as a JSON object."""
    train: Paths = ()
    """Training tasks, from which the optimiser learns."""
    val: Paths = ()
    """Validation tasks, for the selection of prompts."""
    test: Paths = ()
    """Held-out test tasks, for evaluation after the search."""
    train_size: Count | None = None
    """Maximum training tasks; null is 20 generated ones, or all of a file."""
    val_size: Count | None = None
    """Maximum validation tasks; null is 20 generated ones, or all of a file."""
    test_size: Count | None = None
    """Maximum test tasks; null is 200 generated ones, or all of a file."""
    prompt: str | None = None
    """Seed prompt of the embedded task; null uses its own."""
    tools: Names = ()
    """Tools of the embedded task's agent; empty uses its own."""
    reward: str | None = None
    """Reward by name or as FILE.py:function; null uses the task's, or the value that the agent
    returns."""
    success: SuccessRule | None = None
    """What counts as success: a part of the reward that is 1 (`right`), a least reward (`>=0.5`),
    or a least part (`right>=0.5`). Null uses the part `exact`, else a reward of 1 if all rewards
    are 0 or 1."""
    model: str | None = None
    """Folder of a Hugging Face model for the agent; null uses the endpoint's model, or the embedded
    policy."""
    components: Names = ()
    """Resources to optimise; empty is every prompt template."""
    hints: Paths = ()
    """Your own phrases for `screen`, in addition to those of the agent."""
    iterations: Count | None = None
    """Maximum rounds of a search, each of which tries new prompts; null is no limit but the budget
    (10 for `apo`)."""
    rollouts: Count = 600
    """Maximum rollouts of the search; the held-out test is not included."""
    budget_usd: NonNegative | None = None
    """Budget in US dollars, the held-out test included."""
    max_tokens_total: Count | None = None
    """Maximum tokens of all models, the held-out test included."""
    optimiser_calls: CountOrZero | None = None
    """Maximum calls to the optimiser LLM."""
    runners: Count | None = None
    """Rollouts that are played at the same time; null is 8, and 64 for the embedded policy."""
    timeout: Positive = 60.0
    """Time limit of a custom agent per rollout, in seconds; time spent in model calls does not
    count. The embedded agent is limited by turns and tokens only."""
    failure_reward: float = 0.0
    """Reward of a failed rollout. If rewards can be lower, set it to the lowest."""
    reward_timeout: Positive = 60.0
    """Time limit of a custom reward per rollout, in seconds; a rollout that exceeds it is
    dropped."""
    samples: Count = 1
    """Rollouts per task; more than 1 is useful if the agent samples."""
    temperature: NonNegative = 0.0
    """Sampling temperature of the agent's model."""
    max_turns: Count | None = None
    """Maximum model calls per rollout; null is 4, and 16 for a custom agent."""
    max_tokens: Count | None = None
    """Maximum tokens per reply; null is 256, and 2,000 for a custom agent."""
    max_prompt_tokens: Count | None = None
    """Maximum tokens per request, which bounds the worst-case cost; a longer one is refused. Null
    is 4,000, and 16,000 for a custom agent."""
    optimiser_tokens: Count = 2000
    """Maximum tokens per reply of the optimiser LLM."""
    optimiser_temperature: NonNegative = 1.0
    """Sampling temperature of the optimiser LLM."""
    beam: Count | None = None
    """apo: beam size, the prompts kept after each round; null is 2."""
    branches: Count | None = None
    """apo: edits per prompt and round; null is 3."""
    minibatch: Count | None = None
    """apo, gepa, reflect: training tasks per prompt and round; null is 6 (3 for `gepa`)."""
    trials: CountOrZero | None = None
    """apo, reflect: rollouts per round that estimate the effect of each edited sentence; null is
    30."""
    prices: str | None = None
    """Price table, a TOML file; null uses TUTELAGE_PRICES, else prices.toml, else the built-in
    table."""
    otlp: str | None = None
    """OTLP/HTTP endpoint for traces; null uses OTEL_EXPORTER_OTLP_ENDPOINT, if it is set."""
    store: str | None = None
    """Database for rollouts, as postgresql://HOST/DATABASE; null is a file in the run folder."""


def resolve_prompt(
    recipe: str,
    overrides: Sequence[str],
    flags: Mapping[str, Any],
    *,
    file: Path | None = None,
) -> PromptConfig:
    """Return the configuration from a file, flags and `KEY=VALUE` overrides; later sources take
    precedence.

    For the recipe `prompt` the first of `overrides` may be the agent's file. Raises `ConfigError`
    with all issues.
    """
    names, values = list(overrides), dict[str, Any]()
    if recipe == PROMPT_RECIPE and names and "=" not in names[0]:
        values["agent"] = names.pop(0)
    if file is not None:
        values |= read_keys(file)
    values |= {key: value for key, value in flags.items() if value is not None}
    for override in parse_overrides(names):
        values[override.spelling.replace("-", "_").replace(".", "_")] = override.value
    for key in ("agent", "reward", "prices", "environment"):
        if isinstance(values.get(key), str):
            values[key] = _resolve_reference(values[key])
    try:
        config = PromptConfig.model_validate({"recipe": recipe, **values})
    except ValidationError as error:
        raise_issues(_validation_issue(found) for found in error.errors())
        raise
    raise_issues(_find_contradictions(config))
    return config


def prompt_rows() -> list[ReferenceRow]:
    """Return all keys with their type, default and description, in schema order."""
    schema = PromptConfig.model_json_schema()["properties"]
    return [
        ReferenceRow(
            key=name,
            type=value_text(schema[name]),
            default=json.dumps(tuples_to_lists(field.default)),
            aliases=(),
            help=" ".join((field.description or "").split()),
        )
        for name, field in PromptConfig.model_fields.items()
    ]


def _resolve_reference(reference: str) -> str:
    """Return the absolute path of a file, as needed for a resume; return a name unchanged."""
    file, colon, name = reference.rpartition(":")
    if not file.endswith(".py"):
        file, colon, name = reference, "", ""
    return f"{Path(file).resolve()}{colon}{name}" if Path(file).is_file() else reference


def _validation_issue(error: ErrorDetails) -> ConfigIssue:
    """Convert a validation error to an issue; for an unknown key, suggest the nearest one."""
    key = str(error["loc"][0])
    if error["type"] != "extra_forbidden":
        return field_issue(PromptConfig, error)
    if key == "steps":
        near = ["iterations"]
    else:
        near = difflib.get_close_matches(key, PromptConfig.model_fields, n=1, cutoff=0.6)
    fix = f"Did you mean {near[0]}?" if near else "`tutelage config --prompts` lists the keys."
    return ConfigIssue(key, error["input"], "unknown key of a prompt search", fix)


def _find_contradictions(config: PromptConfig) -> Iterator[ConfigIssue]:
    """Yield issues for keys that contradict each other, and for keys that the recipe or algorithm
    does not use."""
    own = config.recipe == PROMPT_RECIPE
    missing = "test" if config.val else "val"
    both = "Pass both, or neither to split the training tasks 40/20/40."
    if own and config.agent is None:
        yield ConfigIssue("agent", None, "no agent is set", "Use: tutelage train prompt AGENT.py")
    if own and not config.train and config.environment is None:
        yield ConfigIssue("train", (), "a custom agent needs tasks", "Pass --train FILE.")
    if (config.val or config.test) and not config.train:
        reason = "--val and --test need --train"
        yield ConfigIssue("val", config.val, reason, "Pass training tasks as well.")
    if config.train and bool(config.val) != bool(config.test):
        yield ConfigIssue(missing, (), "--val and --test must be used together", both)
    for key in ("prompt", "tools") if own else ("agent",):
        if key in config.model_fields_set and getattr(config, key):
            where = "of the embedded task" if own else "for custom agents"
            yield ConfigIssue(key, getattr(config, key), f"this is a key {where}", "Leave it out.")
    users = {
        "beam": ("apo",),
        "branches": ("apo",),
        "minibatch": ("apo", "gepa", "reflect", "auto"),
        "trials": ("apo", "reflect", "auto"),
    }
    for key, algorithms in users.items():
        if getattr(config, key) is not None and config.algorithm not in algorithms:
            reason = f"{config.algorithm} does not use it"
            fix = f"Use {algorithms[0]}, or remove it."
            yield ConfigIssue(key, getattr(config, key), reason, fix)
