"""The setup of a search from its configuration: agent, tasks, models, limits, algorithm.

All errors are raised here, before a rollout or a request costs anything. `agent_bundle.py` decides
which model an agent uses: the task endpoint, its own LLMs, or the embedded policy. `run.py` runs a
`SearchSetup`; `build_trainer_setup` creates one from a `Trainer`'s objects.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from tutelage.agents.loading import load_agent
from tutelage.config.api_keys import read_api_key
from tutelage.engine.endpoint import (
    DEFAULT_MODEL,
    Endpoint,
    check_url,
    read_endpoints,
    read_environment,
)
from tutelage.engine.meter import CallLimits
from tutelage.engine.prices import Price, find_price, load_prices
from tutelage.engine.usage import Usage
from tutelage.environments.loading import load_environment
from tutelage.environments.start import check_determinism
from tutelage.errors import ConfigError
from tutelage.prompts.agent import PROMPT, ToolAgent, read_components
from tutelage.prompts.agent_bundle import agent_resources, build_agent_bundle, call_limits
from tutelage.prompts.apo import APO
from tutelage.prompts.bank import build_bank
from tutelage.prompts.budget import Limits, WorstCase
from tutelage.prompts.config import PromptConfig, resolve_prompt
from tutelage.prompts.contract import Settings, Splits
from tutelage.prompts.embedded import load_embedded_defaults
from tutelage.prompts.gepa import GEPA
from tutelage.prompts.optimiser_client import max_call_usage
from tutelage.prompts.play import SLOTS, AgentBundle, AgentSpec
from tutelage.prompts.reflect import Reflect
from tutelage.prompts.screen import Screen
from tutelage.prompts.search import Algorithm, SearchPlan, plan
from tutelage.prompts.tasks import limit_splits, make_splits
from tutelage.resources import LLM, NamedResources, PromptTemplate
from tutelage.rewards import check
from tutelage.rewards.registry import resolve_reward
from tutelage.runs.fingerprint import agent_sources
from tutelage.tasks.overlap import Overlap, count_overlap, hash_task
from tutelage.tools.registry import resolve_tools
from tutelage.tools.tool import Tool
from tutelage.tracing.export import endpoint as collector
from tutelage.types import Sampling, Task

if TYPE_CHECKING:
    from tutelage.policy.model import Policy

PROMPT_ALGORITHMS = (APO, GEPA, Reflect, Screen)
"""Classes of `Trainer(algorithm=...)` for a prompt search."""
ENVIRONMENT_PROMPT = "Act in the environment: answer each observation with your next action."
"""Seed prompt of the built-in agent in an environment."""
ITERATIONS = 10
"""Default number of rounds of apo."""
_SAMPLED = 4096
"""Approximate number of values of each tensor in the hash of a policy."""


@dataclass(frozen=True, slots=True)
class SearchSetup:
    """Complete setup of a prompt search."""

    config: PromptConfig
    algorithm: Algorithm
    reason: str
    """Name of the algorithm, and the reason for it."""
    bundle: AgentBundle
    components: Mapping[str, str]
    splits: Splits
    settings: Settings
    plan: SearchPlan
    endpoints: Mapping[str, Endpoint]
    """Endpoints of the optimiser's roles; empty for a search without an LLM."""
    prices: Mapping[str, Price | None]
    """Prices of those roles."""
    facts: Mapping[str, str]
    """Models and grader, shown at the start."""
    remarks: tuple[str, ...] = ()
    """Sentences about models without a price."""
    overlap: Overlap = field(default_factory=Overlap)
    """Duplicate tasks between and within splits."""
    fields: frozenset[str] | None = None
    """Task fields that are compared in addition to the input; None for all."""
    python: bool = False
    """True if the agent is a Python object without a file."""

    def sources(self) -> dict[str, str]:
        """Return hashes of the agent, its grader, its resources and its tasks."""
        bundle, splits = self.bundle, self.splits
        tasks = {"training": splits.train, "validation": splits.val, "test": splits.test}
        spec = bundle.spec
        make = None if spec.environment is None else spec.environment.make
        return agent_sources(spec.agent, spec.reward, bundle.resources, tasks, make)


def build_setup(
    config: PromptConfig,
    env: Mapping[str, str],
    *,
    agent_spec: AgentSpec | None = None,
    splits: Splits | None = None,
    algorithm: Algorithm | None = None,
    optimisers: Mapping[str, Endpoint] = MappingProxyType({}),
) -> SearchSetup:
    """Build the setup of a search. A Python caller passes `agent_spec`, `splits`, `algorithm` and
    `optimisers` (endpoints of the optimiser roles) as objects. Raises `ConfigError`."""
    endpoints = read_endpoints(env) | dict(optimisers)
    optimiser = {role: e for role, e in endpoints.items() if role in ("gradient", "edit")}
    python = agent_spec is not None
    prices = load_prices(config.prices, env)
    collector(config.otlp, env)  # refused now rather than when the first trace is sent
    task = endpoints.get("task")
    # All of this is refused before a model is built or loaded.
    name = config.algorithm if algorithm is None else algorithm.name
    name, reason = choose_algorithm(name, has_optimiser=bool(optimiser))
    chosen = algorithm or _make_algorithm(name, config)
    agent_spec = agent_spec or _load_agent_spec(config)
    factory = agent_spec.environment
    if config.environment is not None:
        factory = load_environment(config.environment, json.loads(config.environment_kwargs))
        agent_spec = replace(agent_spec, environment=factory)
    builtin = isinstance(agent_spec.agent, ToolAgent)
    splits = splits or make_splits(config, factory)
    if factory is not None:
        check_determinism(factory, splits.train[0], config.seed)
    parts = (splits.train, splits.val, splits.test)
    if agent_spec.reward is not None:
        check(agent_spec.reward, [task for part in parts for task in part])
    # An agent of one's own may read any field of a task, the built-in one reads its question.
    read = agent_spec.reward.task_fields if builtin and agent_spec.reward else None
    splits.check_held_out(read)
    plan(chosen, splits, Settings("", Limits(rollouts=config.rollouts), samples=config.samples))
    resources = agent_resources(agent_spec, config, task)
    components = read_components(resources, config.components)
    agent_spec.agent.check([*resources])
    bundle = build_agent_bundle(agent_spec, resources, config, task, prices)
    if algorithm is None and isinstance(chosen, Screen):
        tools = {v.name: v for v in resources.values() if isinstance(v, Tool)}
        chosen = replace(chosen, bank=build_bank(tools, agent_spec.reward, config.hints))
    if not chosen.needs_optimiser:
        optimiser = {}
    role_prices = {role: find_price(prices, e.model) for role, e in optimiser.items()}
    asked = max_call_usage([*role_prices.values()], config.optimiser_tokens) if optimiser else None
    unknown = [bundle.endpoints[n].model for n, p in bundle.prices.items() if p is None]
    unknown += [optimiser[role].model for role, p in role_prices.items() if p is None]
    settings = _make_settings(config, bundle, WorstCase(_max_rollout_usage(bundle), asked))
    facts = {"agent": agent_spec.agent.name}
    if factory is not None:
        facts["environment"] = factory.name
    if bundle.policy is not None:
        model = config.model or "embedded, trained to follow prompts"
        facts["task model"] = f"{model}, {bundle.policy.count() / 1e6:.2f} M parameters"
    alone = len(bundle.endpoints) == 1
    remote = {"task model" if alone else f"model {n}": e for n, e in bundle.endpoints.items()}
    remote |= {f"{role} model": e for role, e in optimiser.items()}
    facts |= {n: "{model} at {base_url}".format(**e.to_public_dict()) for n, e in remote.items()}
    if agent_spec.reward is not None:
        facts["grader"] = agent_spec.reward.name
    return SearchSetup(
        config=config,
        algorithm=chosen,
        reason=f"{name}: {reason}",
        bundle=bundle,
        components=components,
        splits=splits,
        settings=settings,
        plan=plan(chosen, splits, settings),
        endpoints=optimiser,
        prices=role_prices,
        facts=facts,
        remarks=_check_prices(unknown, config),
        fields=read,
        overlap=count_overlap(*parts, lambda task: hash_task(task, read)),
        python=python,
    )


def build_trainer_setup(
    algorithm: Algorithm,
    agent_spec: AgentSpec,
    splits: tuple[Sequence[Task] | None, Sequence[Task] | None, Sequence[Task] | None],
    keys: Mapping[str, Any],
    optimiser: LLM | None,
) -> SearchSetup:
    """Build the setup of a search for a `Trainer`. `keys` are the keys of a prompt search, `splits`
    the training, validation and test tasks. Raises `ConfigError`."""
    # Agent and tasks are objects here, so no key names their files.
    config = resolve_prompt("math", (), {**keys, "algorithm": algorithm.name})
    optimisers: dict[str, Endpoint] = {}
    env = read_environment()
    if optimiser is not None:
        if optimiser.endpoint is None:
            raise ConfigError(
                "optimiser= needs an endpoint: LLM('gpt-4o', endpoint='https://...', api_key='...')"
            )
        url = check_url(optimiser.endpoint)
        model = optimiser.model or optimiser.name or env.get("OPENAI_MODEL") or DEFAULT_MODEL
        key = optimiser.api_key or read_api_key(env, "OPENAI_API_KEY")
        optimisers = {role: Endpoint(role, url, model, key) for role in ("gradient", "edit")}
    train, val, test = splits
    if (val is None) != (test is None) or (train is None and val is not None):
        raise ConfigError(
            "a prompt search needs train_dataset, val_dataset and test_dataset; or pass only "
            "train_dataset, which is then split 40/20/40"
        )
    given = None if train is None else limit_splits(train, val, test, config)
    return build_setup(
        config, env, agent_spec=agent_spec, splits=given, algorithm=algorithm, optimisers=optimisers
    )


def choose_algorithm(name: str, *, has_optimiser: bool) -> tuple[str, str]:
    """Return the name of the algorithm and the reason for the choice. Raises `ConfigError` if it
    needs an optimiser LLM and none is configured."""
    if name == "auto" and has_optimiser:
        return "reflect", "it makes the most of few rollouts and few optimiser calls"
    if name == "auto":
        return "screen", "there is no optimiser endpoint, and it needs none"
    if name != "screen" and not has_optimiser:
        torch = importlib.util.find_spec("torch") is not None
        needs = "" if torch else ", on this machine after pip install 'tutelage[train]'"
        raise ConfigError(
            f"{name} needs an optimiser LLM, but no endpoint is set. Either set OPENAI_BASE_URL or "
            "OPENAI_API_KEY in .env or the environment (any OpenAI-compatible server: OpenAI, "
            f"vLLM, Ollama), or search without an LLM: --algorithm screen{needs}"
        )
    return name, "chosen by the user"


def _make_algorithm(name: str, config: PromptConfig) -> Algorithm:
    """Create the algorithm with its settings from the configuration."""
    rounds = config.iterations or (ITERATIONS if name == APO.name else None)
    values = config.model_dump() | {"rounds": rounds}
    algorithm = cast("Any", {made.name: made for made in PROMPT_ALGORITHMS}[name])
    names = {field.name for field in fields(algorithm)}
    return algorithm(**{k: v for k, v in values.items() if k in names and v is not None})


def _load_agent_spec(config: PromptConfig) -> AgentSpec:
    """Load the agent of the configured file, or the embedded agent by default."""
    reward = None if config.reward is None else resolve_reward(config.reward)
    if config.agent is not None:
        return AgentSpec(*load_agent(config.agent), reward)
    acts = config.environment is not None
    prompt = PromptTemplate(
        config.prompt or (ENVIRONMENT_PROMPT if acts else load_embedded_defaults().prompt)
    )
    if prompt.placeholders:
        raise ConfigError(
            "the embedded agent does not fill placeholders, but the prompt has "
            f"{prompt.placeholders!r}; write {{{{name}}}} for a literal {{name}}"
        )
    caps = call_limits(config, True)
    tools = resolve_tools(config.tools or (() if acts else load_embedded_defaults().tools))
    named = {f"tool_{name.replace('-', '_')}": tool for name, tool in tools.items()}
    sampling = Sampling(temperature=config.temperature, max_tokens=caps.reply_tokens)
    reward = reward or (None if acts else resolve_reward(load_embedded_defaults().reward))
    resources = NamedResources({PROMPT: prompt, **named})
    return AgentSpec(ToolAgent(sampling, caps.calls), resources, reward)


def _make_settings(config: PromptConfig, bundle: AgentBundle, worst: WorstCase) -> Settings:
    """Create the settings of a search, with the fingerprint of its agent."""
    spec = bundle.spec
    fingerprint = (
        agent_sources(spec.agent, spec.reward, bundle.resources, {}),
        {name: e.to_public_dict() for name, e in bundle.endpoints.items()},
        bundle.sampling,
        bundle.caps,
        bundle.policy is None or _hash_weights(bundle.policy),
    )
    return Settings(
        fingerprint=repr(fingerprint),
        limits=Limits(
            rollouts=config.rollouts,
            optimiser_calls=config.optimiser_calls,
            tokens=config.max_tokens_total,
            dollars=config.budget_usd,
        ),
        worst=worst,
        seed=config.seed,
        runners=config.runners or (8 if bundle.policy is None else SLOTS),
        failure_reward=config.failure_reward,
        samples=config.samples,
    )


def _hash_weights(policy: Policy) -> str:
    """Return a hash of a policy's chat template and of sampled values of every tensor."""
    digest = hashlib.blake2b(str(policy.codec.tokenizer.chat_template).encode(), digest_size=16)
    for _, tensor in sorted(policy.network.state().items()):
        flat = tensor.detach().reshape(-1)
        digest.update(flat[:: max(1, flat.numel() // _SAMPLED)].cpu().float().numpy().tobytes())
    return digest.hexdigest()


def _max_rollout_usage(bundle: AgentBundle) -> Usage | None:
    """Return the maximum usage of a rollout, or None if it is unknown."""
    if bundle.roles.remote:
        known = [p for p in bundle.prices.values() if p is not None]
        dearest = max(known, key=lambda p: p.cost(bundle.caps.prompt_tokens, 1), default=None)
        return bundle.caps.worst_case(dearest)
    if bundle.policy is not None:
        return CallLimits(bundle.caps.calls, bundle.policy.max_positions, 0).worst_case(None)
    return None


def _check_prices(models: Iterable[str], config: PromptConfig) -> tuple[str, ...]:
    """Return a remark about models without a price. Raises `ConfigError` if there is a dollar
    budget."""
    names = ", ".join(sorted({repr(model) for model in models}))
    if names and config.budget_usd is not None:
        raise ConfigError(
            f"--budget-usd needs the price of {names}, which is unknown; add it to prices.toml "
            '([models] "NAME" = { input = 0.15, output = 0.60 }, USD per million tokens), or limit '
            "--rollouts"
        )
    known = f"the price of {names} is unknown: tokens are counted, dollars are not"
    return (known,) if names else ()
