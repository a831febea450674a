"""Every key of a prompt search: its name, type, default and help, each written once.

A prompt search shares few keys with the training of weights, so it has a section of its own.
`resolve_prompt` reads flags and `KEY=VALUE` and refuses what it does not know with the nearest key.
Endpoints are no keys: they come from the environment (`engine/endpoint.py`), and their
secrets are never written down.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError
from pydantic_core import ErrorDetails

from tutelage.config.fields import (
    Count,
    CountOrZero,
    Names,
    NonNegative,
    Paths,
    Positive,
    RunSettings,
    SuccessRule,
    plain,
)
from tutelage.config.issues import ConfigIssue, raise_issues
from tutelage.config.keys import misfit_of, value_text
from tutelage.config.overrides import parse_overrides, read_keys
from tutelage.config.reference import ReferenceRow
from tutelage.errors import ConfigError

PROMPT_ALGORITHMS = ("apo", "gepa", "screen", "grips", "auto")
"""What `--algorithm` may say for a prompt search."""
PROMPT_RECIPE = "prompt"
KIND = "prompt"
"""Marks the `config.json` of a prompt search."""


class PromptConfig(RunSettings):
    """One prompt search, completely."""

    recipe: Literal["math", "prompt"] = "math"
    """`math` is the embedded task, `prompt` an agent of your own."""
    algorithm: Literal["apo", "gepa", "screen", "grips", "auto"] = "auto"
    """Search algorithm; `auto` chooses one and prints the reason."""
    agent: str | None = None
    """Your agent, as FILE.py or FILE.py:name."""
    train: Paths = ()
    """Training tasks, from which the optimiser learns."""
    val: Paths = ()
    """Validation tasks, which choose among prompts."""
    test: Paths = ()
    """Test tasks, sealed until the search is over."""
    train_size: Count | None = None
    """Maximum number of training tasks; null takes 20 generated ones, or all of a file."""
    val_size: Count | None = None
    """Maximum number of validation tasks; null takes 20 generated ones, or all of a file."""
    test_size: Count | None = None
    """Maximum number of test tasks; null takes 200 generated ones, or all of a file."""
    prompt: str | None = None
    """Seed prompt of the embedded task; null takes its own."""
    tools: Names = ()
    """Tools of the embedded task's agent; empty takes its own."""
    reward: str | None = None
    """Grader by name or as FILE.py:function; null takes the task's, or what the agent returns."""
    success: SuccessRule | None = None
    """What counts as right: a part of the reward (right), a bound (>=0.5), or both (right>=0.5).
    Null takes the part `exact`, else a reward of 1 where all are 0 or 1."""
    model: str | None = None
    """Folder of a Hugging Face model for the agent; null takes the endpoint's, or the embedded
    one."""
    components: Names = ()
    """Resources that are searched over; empty takes every prompt template."""
    tune_tools: bool = False
    """Search over the descriptions of the agent's tools as well."""
    demonstrations: Annotated[int, Field(ge=0, le=4)] = 0
    """Maximum number of examples, taken from exact training rollouts, that are shown to the
    agent."""
    hints: Paths = ()
    """Your own phrases for `screen` and `grips`, tried with those of the agent."""
    iterations: Count | None = None
    """Maximum number of rounds of the search; null runs until the budget is spent (10 for `apo` and
    `grips`)."""
    rollouts: Count = 600
    """Maximum number of rollouts of the search, not counting the sealed test."""
    budget_usd: NonNegative | None = None
    """Maximum US dollars, the sealed test included."""
    max_tokens_total: Count | None = None
    """Maximum tokens of all models, the sealed test included."""
    optimiser_calls: CountOrZero | None = None
    """Maximum number of calls to the optimiser LLM."""
    minutes: Positive | None = None
    """Maximum minutes of the search, over all its resumes."""
    runners: Count | None = None
    """Concurrent rollouts; null takes 8, and 64 for the embedded policy."""
    timeout: Positive = 60.0
    """Time limit of your own agent for a rollout, in seconds, not counting those in which its calls
    wait for a model or are sampled. The embedded agent is bounded by its turns and tokens alone."""
    failure_reward: float = 0.0
    """Reward of a failed rollout. Where rewards may be lower, set it to the lowest."""
    reward_timeout: Positive = 60.0
    """Time limit of your own reward for one rollout, in seconds, which is left out after that."""
    samples: Count = 1
    """Rollouts of each task; more than 1 makes sense where the agent samples."""
    temperature: NonNegative = 0.0
    """Temperature of the agent's model."""
    max_turns: Count | None = None
    """Maximum number of model calls of one rollout; null takes 4, and 16 for an agent of your
    own."""
    max_tokens: Count | None = None
    """Maximum tokens of one reply; null takes 256, and 2,000 for an agent of your own."""
    max_prompt_tokens: Count | None = None
    """Maximum tokens of one request, so that the worst case is known; a longer one is refused.
    Null takes 4,000, and 16,000 for an agent of your own."""
    optimiser_tokens: Count = 2000
    """Maximum tokens of one reply of the optimiser LLM."""
    optimiser_temperature: NonNegative = 1.0
    """Temperature of the optimiser LLM."""
    optimiser_concurrency: Count = 8
    """Requests to the optimiser LLM at once."""
    beam: Count | None = None
    """apo: prompts kept after each round; null takes 2."""
    branches: Count | None = None
    """apo: edits of each prompt a round; null takes 3."""
    minibatch: Count | None = None
    """apo, gepa: training tasks that a prompt is run on each round; null takes 6."""
    trials: CountOrZero | None = None
    """apo, gepa: rollouts a round that sort out the sentences of all edits; null takes 30."""
    selection: Literal["halving", "brute", "ucb"] | None = None
    """apo: how candidates are selected; null takes halving."""
    paraphrases: CountOrZero | None = None
    """apo: Monte-Carlo paraphrases of each edit; null takes 0."""
    prices: str | None = None
    """Price table, a TOML file; null takes TUTELAGE_PRICES, else prices.toml, else the built-in."""
    otlp: str | None = None
    """Collector for traces, by OTLP/HTTP; null takes OTEL_EXPORTER_OTLP_ENDPOINT, if it is set."""
    store: str | None = None
    """Database for rollouts, as postgresql://HOST/DATABASE; null makes a file in the run folder."""


_OF_WEIGHTS: Mapping[str, str] = {
    "steps": "Give --iterations N instead, or choose --algorithm rl or sft.",
    "level": "Leave --level out: the embedded task of a search has one difficulty.",
    "allow_unsandboxed": "Leave it out: a search runs such code in a sandbox.",
}
"""Options of `tutelage train` that no search has, and what to do about each."""
_APO_ONLY = ("beam", "branches", "selection", "paraphrases")
_AGENT_ONLY = ("agent",)
_MATH_ONLY = ("prompt", "tools")


def resolve_prompt(
    recipe: str,
    overrides: Sequence[str],
    flags: Mapping[str, Any],
    *,
    file: Path | None = None,
) -> PromptConfig:
    """The configuration from flags, a file, and `KEY=VALUE`, of which the last wins.

    For the recipe `prompt` the first of `overrides` may be the agent's file. Raises `ConfigError`
    with all findings.
    """
    names, values = list(overrides), dict[str, Any]()
    if recipe == PROMPT_RECIPE and names and "=" not in names[0]:
        values["agent"] = names.pop(0)
    if file is not None:
        values |= read_keys(file)
    values |= {key: value for key, value in flags.items() if value is not None}
    for override in parse_overrides(names):
        if override.delete:
            raise ConfigError(f"~{override.spelling} deletes nothing here; leave the key out")
        values[override.spelling.replace("-", "_")] = override.value
    for key in ("agent", "reward", "prices"):
        if isinstance(values.get(key), str):
            values[key] = _absolute(values[key])
    try:
        config = PromptConfig.model_validate({"recipe": recipe, **values})
    except ValidationError as error:
        raise_issues(_problem(found) for found in error.errors())
        raise
    raise_issues(_contradictions(config))
    return config


def prompt_rows() -> list[ReferenceRow]:
    """Every key with its type, default and meaning, in the order of the schema."""
    schema = PromptConfig.model_json_schema()["properties"]
    return [
        ReferenceRow(
            key=name,
            type=value_text(schema[name]),
            default=json.dumps(plain(field.default)),
            aliases=(),
            help=" ".join((field.description or "").split()),
        )
        for name, field in PromptConfig.model_fields.items()
    ]


def _absolute(reference: str) -> str:
    """A file's path that holds from any working directory, for a resume; a name stays a name."""
    file, colon, name = reference.rpartition(":")
    if not file.endswith(".py"):
        file, colon, name = reference, "", ""
    return f"{Path(file).resolve()}{colon}{name}" if Path(file).is_file() else reference


def _problem(error: ErrorDetails) -> ConfigIssue:
    key = str(error["loc"][0])
    if error["type"] != "extra_forbidden":
        return misfit_of(PromptConfig, error)
    if key in _OF_WEIGHTS:
        reason = "this is for the training of weights, and a prompt is searched for"
        return ConfigIssue(key, error["input"], reason, _OF_WEIGHTS[key])
    near = difflib.get_close_matches(key, PromptConfig.model_fields, n=1, cutoff=0.6)
    fix = f"Did you mean {near[0]}?" if near else "`tutelage config --prompts` lists the keys."
    return ConfigIssue(key, error["input"], "a prompt search has no such key", fix)


def _contradictions(config: PromptConfig) -> list[ConfigIssue]:
    config_issues: list[ConfigIssue] = []

    def refuse(key: str, reason: str, fix: str) -> None:
        config_issues.append(ConfigIssue(key, getattr(config, key), reason, fix))

    if config.recipe == PROMPT_RECIPE and config.agent is None:
        refuse("agent", "there is no agent to search for", "Write: tutelage train prompt AGENT.py")
    if config.recipe == PROMPT_RECIPE and not config.train:
        refuse("train", "an agent of your own needs tasks", "Give --train FILE.")
    if (config.val or config.test) and not config.train:
        refuse("val", "--val and --test need --train", "Give the training tasks as well.")
    if config.train and bool(config.val) != bool(config.test):
        missing = "test" if config.val else "val"
        refuse(
            missing,
            "--val and --test come together",
            "Give both, or neither: then the training tasks are split 40/20/40.",
        )
    return [*config_issues, *_unused(config)]


def _unused(config: PromptConfig) -> Iterator[ConfigIssue]:
    """Keys that were given, and that this recipe or this algorithm makes no use of."""
    own = config.recipe == PROMPT_RECIPE
    for key in _MATH_ONLY if own else _AGENT_ONLY:
        if key in config.model_fields_set and getattr(config, key):
            where = "of the embedded task" if own else "for own agents"
            yield ConfigIssue(key, getattr(config, key), f"this is a key {where}", "Leave it out.")
    users = {
        **dict.fromkeys(_APO_ONLY, (("apo", "auto"), "Leave it out, or use apo.")),
        **dict.fromkeys(("minibatch", "trials"), (("apo", "gepa", "auto"), "Leave it out.")),
    }
    for key, (algorithms, fix) in users.items():
        if getattr(config, key) is not None and config.algorithm not in algorithms:
            reason = f"{config.algorithm} does not use it"
            yield ConfigIssue(key, getattr(config, key), reason, fix)
