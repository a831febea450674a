"""A search put together from its configuration: agent, tasks, models, limits, algorithm.

Everything that can be wrong is found here, before a rollout or a request is paid for.
`agent_bundle` decides which model an agent plays with: the task endpoint, its own LLMs, or the
embedded policy if there is none. `job.py` runs a `SearchSetup`; `trainer/` makes one from Python
objects.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tutelage.agents.loading import load_agent, source_hash
from tutelage.engine.endpoint import Endpoint, read_endpoints
from tutelage.engine.meter import CallLimits
from tutelage.engine.prices import Price, find_price, load_prices
from tutelage.environments.loading import load_environment
from tutelage.environments.start import check_repeats
from tutelage.errors import ConfigError
from tutelage.prompts.agent import PROMPT, ToolAgent, components_of, tool_resources
from tutelage.prompts.agent_bundle import agent_bundle, call_limits, resources_of
from tutelage.prompts.apo import APO
from tutelage.prompts.bank import GENERIC, bank_of
from tutelage.prompts.budget import Limits, WorstCase
from tutelage.prompts.choice import Algorithm, choose, no_endpoint
from tutelage.prompts.config import PromptConfig
from tutelage.prompts.contract import Settings, Splits
from tutelage.prompts.embedded import embedded
from tutelage.prompts.optimiser_client import worst_call
from tutelage.prompts.play import SLOTS, AgentBundle, AgentSpec
from tutelage.prompts.run import plan
from tutelage.prompts.shots import DEMONSTRATIONS
from tutelage.prompts.tasks import make_splits
from tutelage.resources import LLM, NamedResources, PromptTemplate
from tutelage.rewards import check
from tutelage.rewards.registry import resolve_reward
from tutelage.runs.fingerprint import agent_sources, shown
from tutelage.runs.progress import Progress
from tutelage.tasks.overlap import Overlap, content, count_overlap
from tutelage.tools.registry import resolve_tools
from tutelage.tools.tool import Tool
from tutelage.tracing.export import endpoint as collector
from tutelage.types import Sampling

if TYPE_CHECKING:
    from tutelage.policy.model import Policy

ENVIRONMENT_PROMPT = "Act in the environment: answer each observation with your next action."
"""The built-in agent's prompt that a search in an environment begins with."""
ITERATIONS = 10
"""Rounds of apo and steps of grips where nobody asks for another number."""
EXPENSIVE = 2.0
"""US dollars for a million sampled tokens from which on `auto` spares rollouts."""
_SAMPLED = 4096
"""Numbers of each tensor that the mark of a policy is made of, about."""


@dataclass(frozen=True, slots=True)
class SearchSetup:
    """A search, ready to run."""

    config: PromptConfig
    algorithm: Algorithm
    reason: str
    """Why this algorithm, behind its `variant`."""
    bundle: AgentBundle
    components: Mapping[str, str]
    splits: Splits
    settings: Settings
    endpoints: Mapping[str, Endpoint]
    """Of the optimiser's roles; empty for a search without an LLM."""
    prices: Mapping[str, Price | None]
    """Of those roles."""
    facts: Mapping[str, str]
    """What is shown before it begins."""
    remarks: tuple[str, ...] = ()
    overlap: Overlap = field(default_factory=Overlap)
    """Tasks that stand in more than one split, or twice in one."""
    fields: frozenset[str] | None = None
    """The fields of a task that count beside its input when two are compared; None for all."""
    python: bool = False
    """Whether its agent is a Python object that no file has."""

    @property
    def variant(self) -> str:
        """What the algorithm is called in results: `gepa with trials` is not the paper's `gepa`."""
        return _variant(self.algorithm)

    def sources(self) -> dict[str, str]:
        """Marks of the agent, its grader, its resources and its tasks."""
        bundle, splits = self.bundle, self.splits
        tasks = {"training": splits.train, "validation": splits.val, "test": splits.test}
        make = None if bundle.environment is None else bundle.environment.make
        return agent_sources(bundle.agent, bundle.reward, bundle.resources, tasks, make)


def setup_from(
    config: PromptConfig,
    env: Mapping[str, str],
    progress: Progress,
    *,
    agent_spec: AgentSpec | None = None,
    splits: Splits | None = None,
    algorithm: Algorithm | None = None,
    handed: Mapping[str, Endpoint] = MappingProxyType({}),
) -> SearchSetup:
    """Put a search together. `agent_spec`, `splits`, `algorithm` and `handed`, the endpoints of the
    optimiser's roles, are a Python caller's objects.

    Raises `ConfigError` for all that can be seen to be wrong.
    """
    endpoints = read_endpoints(env) | dict(handed)
    optimiser = {role: e for role, e in endpoints.items() if role in ("gradient", "edit")}
    python = agent_spec is not None
    prices = load_prices(config.prices, env)
    collector(config.otlp, env)  # refused now rather than when the first trace is sent
    task = endpoints.get("task")
    price = None if task is None else find_price(prices, task.model)
    # Refused before a model is built for it.
    chosen, reason = _choose(config, algorithm, bool(optimiser), price)
    agent_spec = agent_spec or _agent_spec(config)
    factory = agent_spec.environment
    if config.environment is not None:
        factory = load_environment(config.environment, json.loads(config.environment_kwargs))
        agent_spec = replace(agent_spec, environment=factory)
    _warn_of_timeout(agent_spec, config, progress)
    splits = splits or make_splits(config, factory)
    if factory is not None:
        check_repeats(factory, splits.train[0], config.seed)
    compared, overlap = _compared(agent_spec, splits)
    # Before a model is built or loaded for it, as all that follows up to `agent_bundle`.
    plan(chosen, splits, Settings("", Limits(rollouts=config.rollouts), samples=config.samples))
    resources = resources_of(agent_spec, config, task)
    components = components_of(resources, config.components, config.tune_tools)
    if not config.demonstrations:
        components.pop(DEMONSTRATIONS, None)
    agent_spec.agent.check([*resources])
    bundle = agent_bundle(agent_spec, resources, config, task, prices)
    if algorithm is None:
        tools = {v.name: v for v in bundle.resources.values() if isinstance(v, Tool)}
        chosen = _configured(chosen, config, bank_of(tools, bundle.reward, config.hints))
    if not chosen.needs_optimiser:
        optimiser = {}
    role_prices = {role: find_price(prices, e.model) for role, e in optimiser.items()}
    asked = worst_call([*role_prices.values()], config.optimiser_tokens) if optimiser else None
    worst = WorstCase(_worst_rollout(bundle), asked)
    return SearchSetup(
        config=config,
        algorithm=chosen,
        reason=f"{_variant(chosen)}: {reason}",
        bundle=bundle,
        components=components,
        splits=splits,
        settings=_settings(config, bundle, optimiser, worst),
        endpoints=optimiser,
        prices=role_prices,
        facts=_facts(config, bundle, optimiser),
        remarks=tuple(_unknown_prices(bundle, optimiser, role_prices, config)),
        fields=compared,
        overlap=overlap,
        python=python,
    )


def _variant(algorithm: Algorithm) -> str:
    return f"{algorithm.name} with trials" if getattr(algorithm, "trials", 0) else algorithm.name


def _warn_of_timeout(agent_spec: AgentSpec, config: PromptConfig, progress: Progress) -> None:
    """Say so where a timeout was given that bounds nothing."""
    usual = PromptConfig.model_fields["timeout"].default
    # A run folder has every key, so the default in it was not set by anybody.
    if isinstance(agent_spec.agent, ToolAgent) and config.timeout != usual:
        progress.note(
            "Warning: timeout has no effect: the embedded agent is limited by turns and tokens, "
            "and each tool by its own timeout"
        )


def _compared(agent_spec: AgentSpec, splits: Splits) -> tuple[frozenset[str] | None, Overlap]:
    """The fields of a task that count beside its input, and the tasks that stand in more than one
    split by them; the reward and the seal are checked."""
    parts = (splits.train, splits.val, splits.test)
    if agent_spec.reward is not None:
        check(agent_spec.reward, [task for part in parts for task in part])
    # An agent of one's own may read any field of a task, the built-in one reads its question.
    builtin = isinstance(agent_spec.agent, ToolAgent)
    read = agent_spec.reward.fields_read if builtin and agent_spec.reward else None
    splits.check_held_out(read)
    return read, count_overlap(*parts, lambda task: content(task, read))


def _choose(
    config: PromptConfig, algorithm: Algorithm | None, has_optimiser: bool, price: Price | None
) -> tuple[Algorithm, str]:
    """The algorithm and why, before its phrases are known."""
    if algorithm is not None:
        if algorithm.needs_optimiser and not has_optimiser:
            raise no_endpoint(algorithm.name, "algorithm=Screen()")
        return algorithm, "it was asked for"
    chosen, reason = choose(
        config.algorithm,
        has_optimiser=has_optimiser,
        rollouts=config.rollouts,
        expensive=price is not None and price.output > EXPENSIVE,
    )
    return _configured(chosen, config, GENERIC), reason


def _configured(algorithm: Algorithm, config: PromptConfig, bank: tuple[str, ...]) -> Algorithm:
    """The algorithm with what the configuration says of it."""
    said = config.model_dump() | {"bank": bank, "rounds": config.iterations}
    said["steps"] = config.iterations
    if isinstance(algorithm, APO):
        said["rounds"] = config.iterations or ITERATIONS
        if said["trials"] is None and (config.selection is not None or config.paraphrases):
            said["trials"] = 0  # the paper's search
    names = {field.name for field in fields(algorithm)}
    return replace(algorithm, **{k: v for k, v in said.items() if k in names and v is not None})


def _agent_spec(config: PromptConfig) -> AgentSpec:
    reward = None if config.reward is None else resolve_reward(config.reward)
    if config.agent is not None:
        agent, resources = load_agent(config.agent)
        return AgentSpec(agent, resources, reward)
    acts = config.environment is not None
    tools = resolve_tools(config.tools or (() if acts else embedded().tools))
    caps = call_limits(config, True)
    sampling = Sampling(temperature=config.temperature, max_tokens=caps.reply_tokens)
    usual = ENVIRONMENT_PROMPT if acts else embedded().prompt
    prompt = PromptTemplate(config.prompt or usual)
    if prompt.placeholders:
        raise ConfigError(
            "the embedded agent does not fill placeholders, but the prompt has "
            f"{prompt.placeholders!r}; write {{{{name}}}} for a literal {{name}}"
        )
    values: dict[str, Any] = {PROMPT: prompt}
    values |= tool_resources(tools)
    return AgentSpec(
        ToolAgent(sampling, caps.calls),
        NamedResources(values),
        reward or (None if acts else resolve_reward(embedded().reward)),
    )


def _settings(
    config: PromptConfig, bundle: AgentBundle, optimiser: Mapping[str, Endpoint], worst: WorstCase
) -> Settings:
    models = {name: e.to_public_dict() for name, e in bundle.endpoints.items()}
    graders = [] if bundle.reward is None else [bundle.reward]
    tools = [v.fn for v in bundle.resources.values() if isinstance(v, Tool)]
    mark = source_hash(bundle.agent, *graders, *tools)
    passed = {n: shown(v) for n, v in bundle.resources.items() if not isinstance(v, LLM)}
    values = (
        mark,
        sorted(passed.items()),
        models,
        bundle.sampling,
        bundle.caps,
        bundle.policy is None or _weights_mark(bundle.policy),
    )
    return Settings(
        fingerprint=repr(values),
        limits=Limits(
            rollouts=config.rollouts,
            optimiser_calls=config.optimiser_calls,
            tokens=config.max_tokens_total,
            dollars=config.budget_usd,
            seconds=None if config.minutes is None else 60 * config.minutes,
        ),
        worst=worst,
        seed=config.seed,
        runners=config.runners or (8 if bundle.policy is None else SLOTS),
        timeout=None,  # a rollout's own deadline knows what waiting for a model is
        failure_reward=config.failure_reward,
        samples=config.samples,
        accept_changes=config.allow_changes,
        demonstrations=config.demonstrations,
        asked_at_once=config.optimiser_concurrency,
    )


def _weights_mark(policy: Policy) -> str:
    """A hash of what a policy answers by: its tokenizer and a sample of every tensor."""
    tokenizer = policy.codec.tokenizer
    words = (sorted(tokenizer.get_vocab().items()), str(tokenizer.chat_template))
    digest = hashlib.blake2b(repr(words).encode(), digest_size=16)
    for name, tensor in sorted(policy.network.state().items()):
        flat = tensor.detach().reshape(-1)
        some = flat[:: max(1, flat.numel() // _SAMPLED)].cpu().float()
        digest.update(f"{name} {tuple(tensor.shape)}".encode() + some.numpy().tobytes())
    return digest.hexdigest()


def _worst_rollout(bundle: AgentBundle) -> Any:
    if bundle.roles.remote:
        known = [p for p in bundle.prices.values() if p is not None]
        dearest = max(known, key=lambda p: p.cost(bundle.caps.prompt_tokens, 1), default=None)
        return bundle.caps.worst(dearest)
    if bundle.policy is not None:
        width = bundle.policy.max_positions
        return CallLimits(bundle.caps.calls, width, 0).worst(None)
    return None


def _unknown_prices(
    bundle: AgentBundle,
    optimiser: Mapping[str, Endpoint],
    prices: Mapping[str, Price | None],
    config: PromptConfig,
) -> list[str]:
    """Models without a price: stated, and refused under a budget in dollars."""
    unknown = {bundle.endpoints[n].model for n, p in bundle.prices.items() if p is None}
    unknown |= {optimiser[role].model for role, p in prices.items() if p is None}
    if not unknown:
        return []
    names = ", ".join(sorted(map(repr, unknown)))
    if config.budget_usd is not None:
        raise ConfigError(
            f"--budget-usd needs the price of {names}, which is unknown; add it to prices.toml "
            '([models] "NAME" = { input = 0.15, output = 0.60 }, USD per million tokens), or limit '
            "--rollouts"
        )
    return [f"the price of {names} is unknown: tokens are counted, dollars are not"]


def _facts(
    config: PromptConfig, bundle: AgentBundle, optimiser: Mapping[str, Endpoint]
) -> dict[str, str]:
    facts = {"agent": bundle.agent.name}
    if bundle.environment is not None:
        facts["environment"] = bundle.environment.name
    if bundle.policy is not None:
        name = config.model or "embedded, trained to follow prompts"
        facts["task model"] = f"{name}, {bundle.policy.count() / 1e6:.2f} M parameters"
    alone = len(bundle.endpoints) == 1
    asked = {"task model" if alone else f"model {n}": e for n, e in bundle.endpoints.items()}
    asked |= {f"{role} model": endpoint for role, endpoint in optimiser.items()}
    shown = {key: endpoint.to_public_dict() for key, endpoint in asked.items()}
    facts |= {key: f"{one['model']} at {one['base_url']}" for key, one in shown.items()}
    if bundle.reward is not None:
        facts["grader"] = bundle.reward.name
    return facts
