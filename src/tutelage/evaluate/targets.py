"""What a user names to evaluate or ask: an agent's file, a server's URL, a run, or a model.

A run brings its final policy, its agent, tools, reward and limits; a model or a server brings only
itself, and the built-in agent plays; a user's file brings an agent, whose model is named. A
task's result does not depend on the other tasks or on their order. `preparation.py`
makes an evaluation of it, and `evaluated_agent.py` plays.
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
from tutelage.config.api_keys import api_key_of
from tutelage.config.resolved import SUPERVISED, WEIGHTS
from tutelage.engine.endpoint import (
    Endpoint,
    check_url,
    environment,
    read_endpoints,
    served_models,
)
from tutelage.engine.factory import make_engine
from tutelage.environments.start import TURNS
from tutelage.errors import ConfigError, DataError, RunError
from tutelage.evaluate.config import AskConfig, EvaluationConfig
from tutelage.evaluate.evaluated_agent import (
    CPU_REPLY_TOKENS,
    EvaluatedAgent,
    answered,
    equipped,
    reply_limit,
)
from tutelage.policy.sources import SMOLLM2, is_gguf
from tutelage.resources import LLM, POLICY, SHIPPED, NamedResources
from tutelage.rewards import reward as reward_function
from tutelage.rollouts.runner import RolloutSpec, RunnerSettings
from tutelage.runs.folder import RUNS, RunFolder, find, is_run
from tutelage.runs.inputs import load_tools, offered_tools
from tutelage.runs.kinds import name_of
from tutelage.runs.progress import Progress
from tutelage.runs.trust import check_trusted
from tutelage.seeds import SeedTree
from tutelage.tools.loading import is_file_reference
from tutelage.tools.registry import resolve_tools
from tutelage.tools.tool import Tool
from tutelage.types import UNBOUNDED, Mode, Rollout, Sampling, Task

if TYPE_CHECKING:
    from tutelage.gateway.serving import ServedPolicy
    from tutelage.policy.model import Policy

UNKEPT = "evaluation"
"""The run that rollouts name which no run folder keeps."""
TargetKind = Literal["agent", "server", "run", "model"]
FoundRun = tuple[RunFolder, RunConfig]


def target_kind(target: str) -> TargetKind:
    """What a target is, by its form alone."""
    if target.startswith(("http://", "https://")):
        return "server"
    if is_file_reference(target):
        return "agent"
    path = Path(target)
    if target in (SHIPPED, SMOLLM2) or is_gguf(target):
        if is_run(RUNS / target):
            raise ConfigError(f"{target!r} is also a model; use {RUNS / target} for the run")
        return "model"
    # A misspelled run below a folder that is here is no hub name.
    here = path.exists() or path.parent.exists() or path.parent == RUNS
    if (path / "tokenizer_config.json").is_file() or (target.count("/") == 1 and not here):
        return "model"
    return "run"


# ---------------------------------------------------------------- runs


_POLICIES = (WEIGHTS, SUPERVISED)
"""The kinds of runs that leave a policy."""


def _leaves_policy(folder: RunFolder) -> bool:
    try:
        return name_of(folder) in _POLICIES
    except RunError:
        return False


def run_of(target: str, *, others: bool = False) -> FoundRun | None:
    """The run that `target` names, None for everything else. Raises `ConfigError` for a name of
    nothing; with `others` it says what else may be named."""
    if target_kind(target) != "run":
        return None
    try:
        folder = find(target, wanted=_leaves_policy)
    except RunError as error:
        if not others or Path(target).exists():
            raise
        raise ConfigError(
            f"{error}. A target is an agent's file (AGENT.py), a server's URL (http://...), a run, "
            "or a model, by folder or OWNER/NAME on huggingface.co"
        ) from error
    name = name_of(folder)
    if name not in _POLICIES:
        hint = f": tutelage prompts confirm {folder.path}" if name == "prompt" else ""
        raise ConfigError(
            f"the run in {str(folder.path)!r} is of the kind {name!r}, which has no policy; pass a "
            f"run that trained weights, or the agent's file{hint}"
        )
    return folder, Resolved.from_json(folder.config.read_text()).config


# ---------------------------------------------------------------- who plays


def server_of(url: str | None, asked: EvaluationConfig) -> Endpoint | None:
    """The server that is named, with its model. Raises `ConfigError` where nothing answers."""
    url = url or next(iter(asked.endpoint), None)
    if url is None:
        return None
    key = api_key_of(environment(), "OPENAI_API_KEY")
    server = Endpoint("task", check_url(url), next(iter(asked.model), ""), key)
    listed = served_models(server)
    if server.model:
        return server
    if len(listed) != 1:
        known = ", ".join(listed[:10]) or "no listed models"
        raise ConfigError(f"pass the model of {url!r} with --model NAME; it has {known}")
    return replace(server, model=listed[0])


def builtin_agent(
    target: str,
    run: FoundRun | None,
    tools: Sequence[str] | None,
    asked: EvaluationConfig | AskConfig,
    server: Endpoint | None = None,
    *,
    trust: bool = False,
) -> EvaluatedAgent:
    """A built-in agent: a run's, with its policy or another model, or the plain one of a model."""
    if run is not None and server is None:
        run[0].final_policy()
    chosen = resolve_tools(tools) if tools is not None else None
    if run is not None and chosen is None:
        check_trusted(run[0], run[1].agent.tools or (), trust=trust)
    config = RunConfig() if run is None else run[1]
    weights = target if run is None else str(run[0].policy)
    given: Mapping[str, Tool] = chosen or {}
    if run is not None and chosen is None:
        given = load_tools(config)
    kind = "hf" if run is None else config.agent.agent_type
    policy: Policy | None = None
    if server is None:
        from tutelage.policy.machine import sampling_device
        from tutelage.policy.model import load_policy

        named = chosen is not None or config.agent.tools
        tool_specs = template_tools(config, given) if named and given else []
        device = sampling_device(config.trainer.device)
        policy = load_policy(weights, device=device, tools=tool_specs)
        policy.codec.choose_thinking(config.agent.thinking, config.agent.max_thinking_tokens)
        if run is not None and not named:
            given = offered_tools(config, given, knows_tools=policy.codec.knows_tools)
    sampling, turns, limits = _limits(run, asked, server)
    main = LLM(POLICY, temperature=sampling.temperature)
    return EvaluatedAgent(
        agent=AGENTS.find(kind)(
            given,
            sampling,
            max_turns=turns,
            token_budget=1 << 30 if run is None or server else config.response_tokens,
            system_prompt=None if run is None else config.agent.system_prompt,
            tool_choice=config.agent.tool_choice if given else "none",
        ),
        sampling=sampling,
        resources=NamedResources() if server is None else NamedResources({POLICY: main}),
        policies={} if policy is None else {POLICY: policy},
        weights=weights,
        servers={} if server is None else {POLICY: server},
        server_tokens=sampling.max_tokens,
        tools=given,
        max_calls=turns,
        max_length=None if run is None else config.rollout.max_len,
        limits=limits,
    )


def _limits(
    run: FoundRun | None, asked: EvaluationConfig | AskConfig, server: Endpoint | None
) -> tuple[Sampling, int, RunnerSettings]:
    """How a built-in agent samples, its turns, and what bounds a rollout."""
    config = RunConfig() if run is None else run[1]
    turns, tokens, temperature = 4, 256, asked.temperature or 0.0
    if run is not None:
        turns = config.agent.max_turns if config.agent.use_agent else 1
        tokens = config.turn_tokens
    tokens = asked.max_tokens or (tokens if server is None else UNBOUNDED)
    if isinstance(asked, EvaluationConfig):
        turns = asked.max_turns or (TURNS if run is None and asked.environment else turns)
        temperature = asked.sampled_at
    limits = RunnerSettings(
        "",
        failure_reward=config.agent.failure_reward,
        reward_timeout=config.agent.reward_timeout,
        pool_size=config.environment.pool_size,
        step_timeout=config.environment.step_timeout,
    )
    return Sampling(temperature=temperature, max_tokens=tokens), turns, limits


def own_agent(file: str, run: FoundRun | None, asked: EvaluationConfig) -> EvaluatedAgent:
    """A user's agent, with the models that are named, or the policy of its run."""
    agent, resources = load_agent(file)
    model = next(iter(asked.model), None)
    named = server_of(None, asked)
    local = run[0].policy if run is not None and named is None else _folder(model, named)
    if run is not None and named is None:
        run[0].final_policy()
    server = named if named or local else read_endpoints(environment()).get("task")
    resources = equipped(agent, resources, asked.sampled_at, model if server else None)
    servers, here = answered(resources, {}, server, model if server else None)
    if local is None and here:
        raise ConfigError(
            f"no LLM is configured for {here[0]!r} of the agent {agent.name!r}; pass --endpoint "
            "URL with --model NAME for a server, or --model FOLDER for a local model"
        )
    for place in {s.base_url: s for s in servers.values()}.values():
        if place.base_url != (named.base_url if named else None):
            served_models(place)
    policies: dict[str, Policy] = {}
    config = RunConfig() if run is None else run[1]
    if here and local is not None:
        from tutelage.policy.machine import sampling_device
        from tutelage.policy.model import load_policy

        policy = load_policy(str(local), device=sampling_device(config.trainer.device))
        policy.codec.choose_thinking(config.agent.thinking, config.agent.max_thinking_tokens)
        policies = dict.fromkeys(here, policy)
    return EvaluatedAgent(
        agent=agent,
        sampling=Sampling(asked.sampled_at, max_tokens=reply_limit(asked.max_tokens, policies)),
        resources=resources,
        policies=policies,
        weights=str(local or ""),
        servers=servers,
        server_tokens=asked.max_tokens or UNBOUNDED,
        max_calls=asked.max_turns or 16,
        max_length=None if run is None else config.rollout.max_len,
        limits=RunnerSettings(
            "", timeout=asked.timeout, failure_reward=config.agent.failure_reward
        ),
    )


def _folder(model: str | None, server: Endpoint | None) -> Path | None:
    """The folder, or the hub name, of a model that plays on this machine."""
    if model is None or server is not None:
        return None
    place = Path(model)
    if (place / "policy").is_dir():
        return place / "policy"
    asked_there = "task" in read_endpoints(environment())
    return None if asked_there and not place.exists() else place


# ---------------------------------------------------------------- one question, and serving


def ask(
    target: str,
    question: str,
    asked: AskConfig,
    fields: Mapping[str, Any] | None = None,
    *,
    trust: bool = False,
    progress: Progress | None = None,
) -> Rollout:
    """Play one question with a run's or a model's policy, a server, or an agent's file; `fields`
    are the others of its task, `trust` is as for `evaluate`. `progress` gets the limits,
    and the tokens as they are sampled."""
    progress, kind, run = progress or Progress(), target_kind(target), run_of(target)
    named = asked.endpoint or asked.model
    if kind in ("run", "model") and named:
        raise ConfigError(
            f"--endpoint and --model cannot be used with {target!r}, which is a model"
        )
    if kind in ("model", "server") and fields and not asked.tools:
        raise ConfigError(
            f"the field {next(iter(fields))!r} is not used: {target!r} has no tools; pass tools "
            "that read it, such as --tools calculator,price_list"
        )
    if kind == "agent" and asked.tools is not None:
        raise ConfigError(f"--tools cannot be used with {target!r}, which has its own tools")
    if run is not None:
        check_trusted(run[0], [run[1].agent.agent_type], trust=trust)
    settings = EvaluationConfig(
        test=(UNKEPT,),
        **asked.model_dump(include={"endpoint", "model", "temperature", "max_tokens"}),
    )
    if kind == "agent":
        evaluated_agent = own_agent(target, None, settings)
    else:
        server = server_of(target, settings) if kind == "server" else None
        evaluated_agent = builtin_agent(target, run, asked.tools, asked, server, trust=trust)
    task = Task("question", {**(fields or {}), "question": question})
    spec = RolloutSpec(task, Mode.TEST, task.id, 0, SeedTree(asked.seed).child("ask"), label="ask")
    progress.start("ask", {"tokens": evaluated_agent.tokens()})
    progress.evaluation("ask", 0, 1)
    played = evaluated_agent.play(
        [spec], _ungraded, UNKEPT, lambda rollout, cost: None, progress.sampled
    )
    rollout = asyncio.run(played)[0]
    if rollout.last.stop == "context" and not any(c.sampled.token_ids for c in rollout.last.calls):
        raise DataError(
            f"the question of {len(question)} characters does not fit into the context of "
            f"{target!r} with the system prompt and the tools; ask a shorter one"
        )
    return rollout


@reward_function(name="ungraded")
def _ungraded(task: Task) -> float:
    return 0.0


def served(target: str, *, slots: int, max_length: int | None, seed: int) -> ServedPolicy:
    """A run's or a model's policy as a chat client; use it on one event loop.

    `max_length` is the context in tokens; without it a run's, or the model's as far as memory goes.
    """
    from tutelage.gateway.serving import ServedPolicy

    kind = target_kind(target)
    if kind == "agent":
        raise ConfigError(
            f"{target!r} is an agent, but only models can be served; serve its run or its model, "
            f"then evaluate the agent: tutelage eval {target} --endpoint URL --test FILE"
        )
    if kind == "server":
        raise ConfigError(
            f"{target!r} is already a server; to forward requests to it, pass its model: tutelage "
            f"serve MODEL --upstream {target}"
        )
    try:
        run = run_of(target)
    except RunError as error:
        path = Path(target)
        if not path.exists() and path.name == target:
            raise
        file = "a file, and " if path.is_file() else ""
        raise ConfigError(
            f"{target!r} is {file}neither a run nor a model folder (with a tokenizer_config.json): "
            f"{error}"
        ) from error
    evaluated_agent = builtin_agent(target, run, (), AskConfig())
    policy = evaluated_agent.policy
    if max_length is not None and max_length > policy.max_positions:
        raise ConfigError(
            f"--max-length {max_length} is more than the {policy.max_positions} positions of "
            f"{target!r}; lower it"
        )
    wanted = max_length or evaluated_agent.max_length
    engine = make_engine(policy, slots=slots, max_length=wanted, schedule="free")
    most = CPU_REPLY_TOKENS if policy.device.type == "cpu" else UNBOUNDED
    return ServedPolicy(engine, policy.codec, SeedTree(seed).child("serve"), most, policy)
