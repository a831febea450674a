"""Targets of an evaluation or a question: an agent's file, a server's URL, a run, or a model.

A run provides its final policy, agent, tools, reward and limits; a model or a server is played by
the built-in agent; a file provides an agent, whose model is an option. The result of a task does
not depend on other tasks or their order. `preparation.py` prepares an evaluation, and
`evaluated_agent.py` plays it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tutelage.agents.builtin import AGENTS, template_tools
from tutelage.agents.loading import load_agent
from tutelage.config import Resolved, RunConfig
from tutelage.config.api_keys import read_api_key
from tutelage.config.resolved import SUPERVISED, WEIGHTS
from tutelage.engine.endpoint import (
    Endpoint,
    check_url,
    list_models,
    read_endpoints,
    read_environment,
)
from tutelage.engine.factory import make_engine
from tutelage.environments.start import TURNS
from tutelage.errors import ConfigError
from tutelage.evaluate.config import AskConfig, EvaluationConfig
from tutelage.evaluate.evaluated_agent import (
    CPU_REPLY_TOKENS,
    EvaluatedAgent,
    build_agent,
)
from tutelage.policy.sources import SMOLLM2, is_gguf
from tutelage.resources import LLM, POLICY, SHIPPED, NamedResources
from tutelage.rewards import reward as reward_function
from tutelage.rollouts.runner import RolloutSpec, RunnerSettings
from tutelage.runs.folder import RUNS, RunFolder, find
from tutelage.runs.inputs import load_tools, select_tools
from tutelage.runs.kinds import kind_name
from tutelage.runs.progress import Progress
from tutelage.runs.trust import check_trusted
from tutelage.seeds import SeedTree
from tutelage.tools.loading import is_file_reference
from tutelage.tools.registry import resolve_tools
from tutelage.tools.tool import Tool
from tutelage.types import UNBOUNDED, Mode, Rollout, Sampling, Task, ToolSpec

if TYPE_CHECKING:
    from tutelage.gateway.serving import ServedPolicy
    from tutelage.policy.model import Policy

UNKEPT = "evaluation"
"""Run id of rollouts that are not kept in a run folder."""
TargetKind = Literal["agent", "server", "run", "model"]
FoundRun = tuple[RunFolder, RunConfig]


def target_kind(target: str) -> TargetKind:
    """Return the kind of a target: agent, server, run or model."""
    if target.startswith(("http://", "https://")):
        return "server"
    if is_file_reference(target):
        return "agent"
    path = Path(target)
    if target in (SHIPPED, SMOLLM2) or is_gguf(target):
        return "model"
    # A misspelled run below a folder that is here is no hub name.
    here = path.exists() or path.parent.exists() or path.parent == RUNS
    if (path / "tokenizer_config.json").is_file() or (target.count("/") == 1 and not here):
        return "model"
    return "run"


def find_run(target: str) -> FoundRun | None:
    """Return the run named by `target`, or None for another kind of target.

    Raises `RunError` for an unknown name, and `ConfigError` for a run without a policy.
    """
    if target_kind(target) != "run":
        return None
    folder = find(target)
    if (name := kind_name(folder)) not in (WEIGHTS, SUPERVISED):
        raise ConfigError(
            f"the run in {str(folder.path)!r} is of the kind {name!r}, which has no policy; pass a "
            "run that trained weights, or the agent's file"
        )
    return folder, Resolved.from_json(folder.config.read_text()).config


# ---------------------------------------------------------------- who plays


def find_server(url: str | None, options: EvaluationConfig) -> Endpoint | None:
    """Return the server at `url`, or the server of the options, with its model. Raises
    `ConfigError` if the server does not respond."""
    url = url or next(iter(options.endpoint), None)
    if url is None:
        return None
    key = read_api_key(read_environment(), "OPENAI_API_KEY")
    server = Endpoint("task", check_url(url), next(iter(options.model), ""), key)
    listed = list_models(server)
    if server.model:
        return server
    if len(listed) != 1:
        known = ", ".join(listed[:10]) or "no listed models"
        raise ConfigError(f"choose a model of {url!r} with --model NAME: {known}")
    return replace(server, model=listed[0])


def check_options(target: str, options: EvaluationConfig) -> TargetKind:
    """Return the kind of a target. Raises `ConfigError` for options that do not apply to it."""
    wrong, kind = list[tuple[str, str]](), target_kind(target)
    if kind == "agent" and options.tools is not None:
        wrong.append(("--tools", "a custom agent uses the tools of its file"))
    if kind == "server" and options.endpoint:
        wrong.append(("--endpoint", "the target is already a server"))
    if kind == "model" and (options.endpoint or options.model):
        wrong.append(("--endpoint" if options.endpoint else "--model", "the target is the model"))
    if kind == "run" and options.model and not options.endpoint:
        wrong.append(("--model", "a run has its own policy; use --endpoint URL for another model"))
    for option, reason in wrong:
        raise ConfigError(f"{option} cannot be used with {target!r}: {reason}; remove it")
    return kind


def resolve_agent(
    target: str,
    run: FoundRun | None,
    file: str | None,
    options: EvaluationConfig,
    *,
    trust: bool = False,
) -> EvaluatedAgent:
    """Return the agent of a target: the user's agent in `file`, else a built-in agent.

    Raises `ConfigError` for a target that cannot be read.
    """
    config = RunConfig() if run is None else run[1]
    if run is not None:
        code = [config.agent.agent_type, *([] if file is None else [file])]
        check_trusted(run[0], code, trust=trust)
    if file is not None:
        found = _load_own_agent(file, run, config, options)
    else:
        found = _make_builtin_agent(target, run, config, options, trust=trust)
    return replace(
        found,
        max_length=None if run is None else config.rollout.max_len,
        limits=RunnerSettings(
            "",
            timeout=options.timeout,
            failure_reward=config.agent.failure_reward,
            reward_timeout=config.agent.reward_timeout,
            pool_size=config.environment.pool_size,
            step_timeout=config.environment.step_timeout,
        ),
    )


def _make_builtin_agent(
    target: str, run: FoundRun | None, config: RunConfig, options: EvaluationConfig, *, trust: bool
) -> EvaluatedAgent:
    """Create a built-in agent: the agent of a run, with its policy or another model, or the default
    agent."""
    server = find_server(target if target_kind(target) == "server" else None, options)
    weights, kind, tools = target, "hf", dict[str, Tool]()
    turns, tokens = 4 if options.environment is None else TURNS, 256
    if run is not None:
        weights = str(run[0].policy if server else run[0].final_policy())
        kind = config.agent.agent_type
        turns = config.agent.max_turns if config.agent.use_agent else 1
        tokens = config.turn_tokens
        if options.tools is None:
            check_trusted(run[0], config.agent.tools or (), trust=trust)
            tools = dict(load_tools(config))
    if options.tools is not None:
        tools = dict(resolve_tools(options.tools))
    policies: dict[str, Policy] = {}
    if server is None:
        named = options.tools is not None or config.agent.tools
        policy = _load(weights, config, template_tools(config, tools) if named and tools else [])
        if run is not None and not named:
            tools = dict(select_tools(config, tools, supports_tools=policy.codec.supports_tools))
        policies = {POLICY: policy}
    turns = options.max_turns or turns
    tokens = options.max_tokens or (tokens if server is None else UNBOUNDED)
    sampling = Sampling(options.sampling_temperature, max_tokens=tokens)
    return EvaluatedAgent(
        agent=AGENTS.find(kind)(
            tools,
            sampling,
            max_turns=turns,
            token_budget=1 << 30 if run is None or server else config.response_tokens,
            system_prompt=None if run is None else config.agent.system_prompt,
            tool_choice=config.agent.tool_choice if tools else "none",
        ),
        sampling=sampling,
        resources=NamedResources({POLICY: LLM(POLICY, temperature=sampling.temperature)}),
        policies=policies,
        weights=weights,
        servers={} if server is None else {POLICY: server},
        server_tokens=tokens,
        tools=tools,
        max_calls=turns,
    )


def _load(weights: str, config: RunConfig, tools: Sequence[ToolSpec] = ()) -> Policy:
    """Load a policy for sampling; this imports torch."""
    from tutelage.policy.machine import sampling_device
    from tutelage.policy.model import load_policy

    policy = load_policy(weights, device=sampling_device(config.trainer.device), tools=tools)
    policy.codec.choose_thinking(config.agent.thinking, config.agent.max_thinking_tokens)
    return policy


def _load_own_agent(
    file: str, run: FoundRun | None, config: RunConfig, options: EvaluationConfig
) -> EvaluatedAgent:
    """Load a user's agent with the models of the options, or with the policy of its run."""
    agent, resources = load_agent(file)
    model = next(iter(options.model), None)
    named, known = find_server(None, options), read_endpoints(read_environment()).get("task")
    local: Path | None = None
    if named is None and run is not None:
        local = run[0].final_policy()
    elif named is None and model is not None:
        place = Path(model)
        if (place / "policy").is_dir():
            local = place / "policy"
        elif known is None or place.exists():  # else it is a model of the configured server
            local = place

    def load(resources: Mapping[str, Any], names: Sequence[str]) -> Mapping[str, Policy]:
        if local is None:
            raise ConfigError(
                f"no LLM is configured for {names[0]!r} of the agent {agent.name!r}; pass "
                "--endpoint URL with --model NAME for a server, or --model FOLDER for a local model"
            )
        return dict.fromkeys(names, _load(str(local), config))

    server = named if named or local else known
    model = model if server else None
    found = build_agent(agent, resources, options, load, urls={}, server=server, model=model)
    for place in {s.base_url: s for s in found.servers.values()}.values():
        if place.base_url != (named.base_url if named else None):
            list_models(place)
    return replace(found, weights=str(local or ""))


# ---------------------------------------------------------------- one question, and serving


def ask(
    target: str,
    question: str,
    config: AskConfig,
    fields: Mapping[str, Any] | None = None,
    *,
    trust: bool = False,
    progress: Progress | None = None,
) -> Rollout:
    """Answer one question with a run, a model, a server or an agent file, and return the rollout.

    `fields` are further fields of its task, `trust` is as for `evaluate`. `progress` receives the
    limits, and the tokens as they are sampled.
    """
    settings = EvaluationConfig(test=(UNKEPT,), **config.model_dump())
    progress, kind, run = progress or Progress(), check_options(target, settings), find_run(target)
    if kind in ("model", "server") and fields and not config.tools:
        raise ConfigError(
            f"the field {next(iter(fields))!r} is not used: {target!r} has no tools; pass tools "
            "that read it, such as --tools calculator,price_list"
        )
    own = target if kind == "agent" else None
    evaluated_agent = resolve_agent(target, run, own, settings, trust=trust)
    task = Task("question", {**(fields or {}), "question": question})
    spec = RolloutSpec(task, Mode.TEST, task.id, 0, SeedTree(config.seed).child("ask"), label="ask")
    progress.start("ask", {"tokens": evaluated_agent.describe_limits()})
    progress.evaluation("ask", 0, 1)
    played = list[Rollout]()
    work = evaluated_agent.play([spec], _no_reward, UNKEPT, lambda r, cost: played.append(r))
    asyncio.run(work)
    return played[0]


@reward_function(name="ungraded")
def _no_reward(task: Task) -> float:
    return 0.0


def load_chat_client(target: str, *, slots: int, max_length: int | None, seed: int) -> ServedPolicy:
    """Load the policy of a run or a model as a chat client, for use in one event loop.

    `max_length` is the context length in tokens; default: the run's, or the model's, bounded by
    memory.
    """
    from tutelage.gateway.serving import ServedPolicy

    if target_kind(target) in ("agent", "server"):
        raise ConfigError(
            f"{target!r} cannot be served; pass a run, or a model (a folder or a name on "
            "huggingface.co), or use --upstream URL for a server"
        )
    options = EvaluationConfig(test=(UNKEPT,), tools=())
    evaluated_agent = resolve_agent(target, find_run(target), None, options)
    policy = evaluated_agent.policy
    wanted = max_length or evaluated_agent.max_length
    engine = make_engine(policy, slots=slots, max_length=wanted, schedule="free")
    most = CPU_REPLY_TOKENS if policy.device.type == "cpu" else UNBOUNDED
    return ServedPolicy(engine, policy.codec, SeedTree(seed).child("serve"), most, policy)
