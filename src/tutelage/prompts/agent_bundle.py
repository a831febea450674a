"""An agent with its models and the limits of a rollout.

The LLMs of an agent are served by the task endpoint or by their own servers, else sampled from a
policy in this process: one passed by the caller, the one at `model`, or the embedded
prompt-following one of this package. `setup.py` makes a search of it, `play.py` plays it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tutelage.agents.function import needs_model
from tutelage.engine.endpoint import Endpoint
from tutelage.engine.meter import CallLimits
from tutelage.engine.prices import Price, find_price
from tutelage.errors import ConfigError
from tutelage.policy.sources import check_llm_name, model_folder
from tutelage.prompts.agent import ToolAgent
from tutelage.prompts.config import PromptConfig
from tutelage.prompts.embedded import load_embedded_defaults
from tutelage.prompts.play import AgentBundle, AgentSpec
from tutelage.resources import LLM, POLICY, NamedResources, Roles
from tutelage.rollouts.runner import RunnerSettings
from tutelage.statistics.outcome import Success
from tutelage.types import Sampling


def agent_resources(
    agent_spec: AgentSpec, config: PromptConfig, task: Endpoint | None
) -> NamedResources:
    """Return the agent's resources; an LLM is added if the agent needs one and has none.

    Raises `ConfigError` for a key that this agent does not use.
    """
    agent = agent_spec.agent
    values = {**agent.own_resources(), **agent_spec.resources}
    if not any(isinstance(v, LLM) for v in values.values()) and needs_model(agent, values):
        named = POLICY if task is None or _has_own_model(agent_spec, config) else task.model
        values = {POLICY: LLM(named, temperature=config.temperature), **values}
    return NamedResources(values)


def build_agent_bundle(
    agent_spec: AgentSpec,
    resources: NamedResources,
    config: PromptConfig,
    task: Endpoint | None,
    prices: Mapping[str, Price],
) -> AgentBundle:
    """Combine an agent with its models, one of which may be loaded in this process."""
    own, urls = _has_own_model(agent_spec, config), agent_spec.urls
    llms = {n: v for n, v in resources.items() if isinstance(v, LLM) and not v.tokenizer_only}
    endpoints: dict[str, Endpoint] = {}
    for name, llm in llms.items():
        url, model = llm.endpoint or urls.get(name) or urls.get(llm.name), llm.model or llm.name
        if url is not None:
            endpoints[name] = Endpoint(name, url, model or name, llm.api_key)
        elif task is not None and not own and not llm.trainable:
            endpoints[name] = replace(task, role=name, model=model or task.model)
    local = [name for name in llms if name not in endpoints]
    policy = agent_spec.policy if local else None
    if local and policy is None:
        from tutelage.policy.model import load_policy

        folder = config.model or model_folder(resources[local[0]])
        if folder is None:
            for name in local:
                check_llm_name(name, llms[name])
            if agent_spec.environment is not None:
                raise ConfigError(
                    f"the embedded model cannot act in the environment "
                    f"{agent_spec.environment.name!r}; pass --model NAME, or a server (OPENAI_API_"
                    "KEY, OPENAI_BASE_URL and OPENAI_MODEL in .env)"
                )
        policy = load_embedded_defaults().policy() if folder is None else load_policy(folder)
    remote = {name: e.base_url for name, e in endpoints.items()}
    caps = call_limits(config, isinstance(agent_spec.agent, ToolAgent))
    sampling = Sampling(temperature=config.temperature, max_tokens=caps.reply_tokens)
    return AgentBundle(
        spec=agent_spec,
        resources=resources,
        policy=policy,
        roles=Roles(dict.fromkeys(local, POLICY), (), remote),
        caps=caps,
        sampling=sampling,
        endpoints=endpoints,
        prices={name: find_price(prices, e.model) for name, e in endpoints.items()},
        success=Success.parse(config.success),
        limits=RunnerSettings(
            "",
            timeout=config.timeout,
            attempts=1,
            failure_reward=config.failure_reward,
            reward_timeout=config.reward_timeout,
        ),
    )


def call_limits(config: PromptConfig, builtin: bool) -> CallLimits:
    """Return the limits of the model calls per rollout; custom agents have higher limits."""
    short = builtin and config.environment is None
    usual = CallLimits(4, 4_000, 256) if short else CallLimits(16, 16_000, 2_000)
    return CallLimits(
        config.max_turns or usual.calls,
        config.max_prompt_tokens or usual.prompt_tokens,
        config.max_tokens or usual.reply_tokens,
    )


def _has_own_model(agent_spec: AgentSpec, config: PromptConfig) -> bool:
    """Return True if a model was passed or named; it then replaces the endpoint's model."""
    return agent_spec.policy is not None or config.model is not None
