"""What an execution is asked for, and the workers, router and verifiers that it means.

The models are the options of the verbs of `tutelage orchestrate`, and `ExecutionConfig` is what
`config.json` of an execution holds. A pool of real servers is only used when it is asked for;
without it the embedded simulated workers do the work. `runs.py` executes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator

from tutelage.config.fields import (
    Count,
    CountOrZero,
    Names,
    Paths,
    Positive,
    RunSettings,
    Section,
    Share,
)
from tutelage.errors import ConfigError, DataError
from tutelage.orchestration.data.rows import read_json
from tutelage.orchestration.data.synthetic import builtin_graph
from tutelage.orchestration.evaluation.rewards import Preset
from tutelage.orchestration.execution.executor import ExecutorSettings, OnFailure
from tutelage.orchestration.execution.permission import Permit
from tutelage.orchestration.execution.pools.tools import ToolPool, described
from tutelage.orchestration.execution.stored import ExecutionLogger
from tutelage.orchestration.execution.system import OrchestrationSystem
from tutelage.orchestration.execution.verifiers import Verifiers, make_verifier
from tutelage.orchestration.execution.worker_files import KINDS, classic, read_workers, tool_kind
from tutelage.orchestration.execution.workers import WorkerPool
from tutelage.orchestration.plan.catalog import Catalog, read_catalog
from tutelage.orchestration.plan.dag import Plan
from tutelage.orchestration.routing import contract as routing
from tutelage.orchestration.routing.contract import Router
from tutelage.tools.loading import hint
from tutelage.tools.registry import resolve_tools
from tutelage.tools.tool import DEFAULT_TIMEOUT, Tool
from tutelage.types import JSON

_ROUTERS: dict[str, Callable[[], Router]] = {
    "cheapest": routing.cheapest,
    "accurate": routing.most_accurate,
}
"""Routers that need nothing but their name."""


_LIMITS = {*ExecutorSettings.model_fields} - {"retries", "backoff", "concurrency"}
"""Keys of an execution that are settings of its executor."""


_WholePath = Annotated[Path, AfterValidator(Path.absolute)]
"""A path that holds in the working directory of any resume."""


class PlanningConfig(Section):
    """Where workers stand, who plans, and with which tools."""

    pool: Literal["simulated", "openai"] | None = None
    """Where workers stand: simulated (the default), or openai: real servers, with keys from the
    environment."""
    workers: _WholePath | None = None
    """Workers as JSON or YAML; else the eight of the preset classic."""
    seed: CountOrZero = 0
    """Random seed."""
    checkpoint: _WholePath | None = None
    """The planner: a run of train planner, or its file."""
    catalog: _WholePath | None = None
    """Tools that plans may use; else the built-in."""

    def make_pool(self) -> WorkerPool:
        """Return the pool. Raises `ConfigError` for workers that cannot be used."""
        workers = classic() if self.workers is None else read_workers(self.workers)
        from tutelage.orchestration.execution.pools.openai import OpenAIPool
        from tutelage.orchestration.execution.pools.simulated import SimulatedPool

        return OpenAIPool(workers) if self.pool == "openai" else SimulatedPool(workers)

    def read_catalog(self) -> Catalog | None:
        """Return the catalog of the file, None for none."""
        return None if self.catalog is None else read_catalog(self.catalog)


class ToolsConfig(PlanningConfig):
    """Tools that plans may use, and that run."""

    tools: Names = ()
    """Tools that run: FILE.py (all of its @tool functions), FILE.py:name, or built-in ones."""
    mcp: Paths = ()
    """The tools of an MCP server: its command, URL or FILE.py:name; may be repeated."""
    planner: Literal["auto", "trained", "llm"] = "auto"
    """Who plans: trained, llm (a language model), or auto: the trained one where it is sure, else
    the language model that is given."""
    min_confidence: Share | None = None
    """The least confidence that the trained planner plans at; by default its own, which its
    checkpoint has."""
    endpoint: str | None = None
    """OpenAI-compatible server of the language model that plans."""
    model: str | None = None
    """Its name there; without a server a run of train, or a model's folder."""

    def load_tools(self) -> dict[str, Tool]:
        """The tools by their names. Raises `ConfigError` for what cannot be had."""
        servers = (f"mcp:{server.removeprefix('mcp:')}" for server in self.mcp)
        return resolve_tools((*self.tools, *servers))

    def read_catalog_with(self, tools: Mapping[str, Tool]) -> Catalog | None:
        """The catalog of these tools, or that of the file."""
        if not tools:
            return self.read_catalog()
        if self.catalog is not None:
            raise ConfigError("--catalog describes tools, --tools and --mcp run; keep one of them")
        return Catalog(described(tools))

    def make_pool_with(self, tools: Mapping[str, Tool], permit: Permit | None = None) -> WorkerPool:
        """The pool, with these tools beside its models where there are any."""
        if not tools:
            return self.make_pool()
        others = self.pool or self.workers
        return ToolPool(tools, self.make_pool() if others else None, permit)


class WorkConfig(PlanningConfig):
    """Who plans, chooses workers, works and judges."""

    router: str = "cheapest"
    """Who chooses workers: cheapest, accurate, cascade:NAME,NAME,... or
    the file of a router that phase 2 trained."""
    verifiers: _WholePath | None = None
    """Verifiers by type as JSON: {"default": {"kind": "present"}, "sum": {"kind": ...}}."""
    budget: float | None = None
    """Maximum US dollars of one execution."""

    def make_system(
        self,
        pool: WorkerPool,
        catalog: Catalog | None,
        plans: Iterable[Plan],
        **more: Any,
    ) -> OrchestrationSystem:
        """Return what executes such plans. Without a catalog the built-in one tells the kinds of
        tools, where it has them all. Raises `ConfigError` and `DataError` for what cannot be."""
        own, types = builtin_graph().catalog, {node.tool for plan in plans for node in plan.nodes}
        verifiers = self.read_verifiers(pool)
        if verifiers is not None:
            # One of a misspelt name would judge nothing without a word.
            tools = catalog or own
            named = types | {*tools.names}
            known = named | {tool_kind(name, catalog=tools) for name in named} | {"tool", *KINDS}
            known = known.union(*((w.name, *w.capabilities, *w.skills) for w in pool.workers))
            if lost := [name for name in verifiers.by_type if name not in known]:
                raise ConfigError(
                    f"{str(self.verifiers)!r}: no tool and no type of subtask is named "
                    f"{lost[0]!r}{hint(lost[0], known)}; name a tool, a type or a kind"
                )
        name = self.router
        if name in _ROUTERS:
            router = _ROUTERS[name]()
        elif name.startswith("cascade:"):
            order = [part.strip() for part in name.removeprefix("cascade:").split(",")]
            workers = [worker.name for worker in pool.workers]
            if lost := [worker for worker in order if worker not in workers]:
                raise ConfigError(f"--router names {lost[0]!r}; the workers are {workers!r}")
            router = routing.cascade(order)
        elif Path(name).is_file():
            from tutelage.orchestration.routing.router import load_router

            router = load_router(name)
            router.check(pool.workers)
        else:
            choice = ", ".join([*_ROUTERS, "cascade:NAME,NAME,...", "the checkpoint of phase 2"])
            raise ConfigError(f"unknown router {name!r}; choose from {choice}")
        return OrchestrationSystem(
            pool=pool,
            router=router,
            verifiers=verifiers,
            catalog=catalog or (own if all(name in own for name in types) else None),
            seed=self.seed,
            **more,
        )

    def read_verifiers(self, pool: WorkerPool) -> Verifiers | None:
        """Return the verifiers of the file; None: those that the pool has by itself. Raises
        `DataError` for another file, `ConfigError` for verifiers that cannot judge."""
        path = self.verifiers
        if path is None:
            return None
        data: Any = read_json(path)
        if not isinstance(data, dict) or not all(isinstance(v, dict) for v in data.values()):
            raise DataError(f"{str(path)!r} needs an object: a verifier by type, and 'default'")
        rows = cast("dict[str, JSON]", data)
        if not pool.mock and any(row.get("kind") == "known" for row in rows.values()):
            raise ConfigError(f"{str(path)!r}: only simulated workers can be judged by 'known'")
        made = {kind: make_verifier(row, f"{path}: {kind!r}") for kind, row in rows.items()}
        default = made.pop("default", Verifiers.of_pool(mock=pool.mock).default)
        return Verifiers(default, made)


class ExecutionConfig(ToolsConfig, WorkConfig, RunSettings):
    """The execution of one plan."""

    instruction: str | None = None
    """What is to be done."""
    plan: _WholePath | None = None
    """A plan as JSON or YAML, instead of the planner's."""
    deadline: Positive | None = None
    """Stop after this many seconds."""
    node_timeout: Positive | None = None
    """Seconds for one subtask with all its tries."""
    try_timeout: Positive | None = None
    """Seconds for one request to a worker (60), or one call of a tool (10) that says no time
    itself."""
    on_failure: OnFailure = "skip_dependents"
    """What happens to the others when a subtask fails."""
    max_tries: Count = 3
    """Workers asked at one subtask."""
    max_tokens: Count = 512
    """Tokens of one answer."""
    reward: Preset = "normalized"
    """What an execution earns."""
    logs: _WholePath | None = None
    """Append the execution to this log too: a folder, or a file that ends in .jsonl."""
    max_replans: CountOrZero = 2
    """Further plans when a subtask failed, of a planner that is a language model."""
    yes: bool = False
    """Run tools with side effects of the plan as it is begun without asking."""

    def load_tools(self) -> dict[str, Tool]:
        """The tools; those that say no time of their own have that of a try, where it is given."""
        tools, seconds = super().load_tools(), self.try_timeout
        if seconds is None:
            return tools
        return {
            name: replace(tool, timeout=seconds) if tool.timeout == DEFAULT_TIMEOUT else tool
            for name, tool in tools.items()
        }

    def make_system(
        self, pool: WorkerPool, catalog: Catalog | None, plans: Iterable[Plan], **more: Any
    ) -> OrchestrationSystem:
        """What executes, within the limits of an execution."""
        if self.logs is not None:
            logger = ExecutionLogger(self.logs, workers=pool.workers, catalog=catalog)
            more["execution_logger"] = logger
        return super().make_system(
            pool,
            catalog,
            plans,
            settings=ExecutorSettings(**self.model_dump(include=_LIMITS, exclude_none=True)),
            realtime=True,
            **more,
        )
