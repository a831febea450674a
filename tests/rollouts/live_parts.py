"""A runner over the real gateway: a scripted engine behind it, and rollouts for any agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tutelage.agents.function import as_agent
from tutelage.gateway import Gateway
from tutelage.policy.codec import Codec
from tutelage.resources import LLM, NamedResources, Roles
from tutelage.rollouts.models import GatewayModelProvider, PolicySource, Remote
from tutelage.rollouts.runner import RolloutSpec, Runner, RunnerSettings
from tutelage.seeds import SeedTree
from tutelage.testing import ScriptedEngine
from tutelage.types import Mode, Rollout, Sampling, Task


def specs(
    count: int, *, mode: Mode = Mode.TRAIN, root: int = 0, members: int = 2
) -> list[RolloutSpec]:
    """Rollouts of tasks t0, t1, ... with question q0, q1, ..."""
    return [
        RolloutSpec(
            task=Task(f"t{i}", {"question": f"q{i}", "answer": f"a{i}"}),
            mode=mode,
            group=f"g{i // members}",
            index=i % members,
            seeds=SeedTree(root).child("rollout", i),
            step=1,
        )
        for i in range(count)
    ]


def echo(codec: Codec, **options: Any) -> ScriptedEngine:
    """Answers `a3` to question `q3`."""

    def answer(request: Any) -> str:
        text = codec.decode(request.prompt_ids)
        return "a" + text[text.rindex("q") + 1 :].split("<")[0]

    return ScriptedEngine(codec, answer, **options)


async def play(
    gateway: Gateway,
    codec: Codec,
    agent: Any,
    count: int = 4,
    *,
    engine: Any = None,
    engines: Mapping[str, Any] | None = None,
    resources: Mapping[str, Any] | None = None,
    endpoints: Mapping[str, str] | None = None,
    remote: Remote | None = None,
    chosen: Sequence[RolloutSpec] | None = None,
    reward: Any = None,
    on_spans: Any = None,
    temperature: float = 1.0,
    **settings: Any,
) -> list[Rollout]:
    """Play rollouts of `agent`; `engines` adds engines for further resources."""
    named = NamedResources(resources or {"main": LLM()})
    found = Roles.find(named, endpoints)
    behind = {**(engines or {})}
    main = found.main
    assert main is not None
    behind.setdefault(main, engine or echo(codec))
    sampling = Sampling(temperature=temperature)
    models = GatewayModelProvider(
        gateway=gateway,
        resources=named,
        roles=found,
        sources={
            name: PolicySource(behind[name], codec, sampling, found.policies.get(name))
            for name in [*found.policies, *found.frozen]
        },
        remote=remote,
        max_tokens=16,
        tokenizers={"tokenizer": codec.tokenizer},
    )
    limits = RunnerSettings("run", **{"backoff": 0.0, "timeout": 20.0, **settings})
    runner = Runner(
        as_agent(agent),
        models,
        limits,
        reward=reward,
        resources=named,
        policy=main,
        on_spans=on_spans,
    )
    return await runner.run(chosen or specs(count))
