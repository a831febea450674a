"""Options of an execution, and the workers, router and verifiers built from them.

The models define the options of the verbs of `tutelage orchestrate`; `ExecutionConfig` is the
content of an execution's `config.json`. Real servers are used only if the option `pool` selects
them; the default is the built-in simulated workers. See `runs.py` for the execution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator

from tutelage.config.fields import (
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
from tutelage.orchestration.execution.executor import ExecutionLimits, ExecutorSettings
from tutelage.orchestration.execution.permission import Permit
from tutelage.orchestration.execution.pools.tools import ToolPool, describe_tools
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
    "cheapest": routing.cheapest_router,
    "accurate": routing.accurate_router,
}
"""Routers without parameters, by name."""


_WholePath = Annotated[Path, AfterValidator(Path.absolute)]
"""Absolute path, so that a resume can use any working directory."""


class PlanningConfig(Section):
    """Options for workers, planner and catalog."""

    pool: Literal["simulated", "openai"] | None = None
    """Kind of workers: simulated (default) or openai (real servers, API keys from the
    environment)."""
    workers: _WholePath | None = None
    """Workers as JSON or YAML; default: the eight workers of the preset classic."""
    seed: CountOrZero = 0
    """Random seed."""
    catalog: _WholePath | None = None
    """Catalog of the tools that plans may use; default: built-in."""

    def make_pool(self) -> WorkerPool:
        """Return the worker pool. Raises `ConfigError` if a worker is invalid or cannot be used."""
        workers = classic() if self.workers is None else read_workers(self.workers)
        from tutelage.orchestration.execution.pools.openai import OpenAIPool
        from tutelage.orchestration.execution.pools.simulated import SimulatedPool

        return OpenAIPool(workers) if self.pool == "openai" else SimulatedPool(workers)

    def read_catalog(self) -> Catalog | None:
        """Return the catalog from the configured file, or None if no file is set."""
        return None if self.catalog is None else read_catalog(self.catalog)


class ToolsConfig(PlanningConfig):
    """Options for executable tools and the planner that uses them."""

    tools: Names = ()
    """Tools to run: FILE.py (all of its @tool functions), FILE.py:name, or built-in tools."""
    mcp: Paths = ()
    """MCP server with tools: its command, URL or FILE.py:name; may be repeated."""
    planner: Literal["auto", "trained", "llm"] = "auto"
    """Planner: trained, llm (a language model), or auto: trained if it is confident enough, else
    the given language model."""
    checkpoint: _WholePath | None = None
    """Trained planner: a run of train planner, or its checkpoint file."""
    min_confidence: Share | None = None
    """Minimum confidence of the trained planner; default: the value in its checkpoint."""
    endpoint: str | None = None
    """OpenAI-compatible server of the language model that plans."""
    model: str | None = None
    """Model name on the server; without a server, a run of train or a model folder."""

    def load_tools(self) -> dict[str, Tool]:
        """Return the tools by name. Raises `ConfigError` if a tool cannot be loaded."""
        servers = (f"mcp:{server.removeprefix('mcp:')}" for server in self.mcp)
        return resolve_tools((*self.tools, *servers))

    def select_catalog(self, tools: Mapping[str, Tool]) -> Catalog | None:
        """Return a catalog of the given tools, or the configured catalog if there are no tools."""
        if not tools:
            return self.read_catalog()
        if self.catalog is not None:
            raise ConfigError("--catalog cannot be used with --tools or --mcp; remove one")
        return Catalog(describe_tools(tools))

    def select_pool(self, tools: Mapping[str, Tool], permit: Permit | None = None) -> WorkerPool:
        """Return a pool of the given tools, or the worker pool if there are no tools."""
        if not tools:
            return self.make_pool()
        if self.pool or self.workers:
            raise ConfigError("--pool and --workers cannot be used with --tools or --mcp")
        return ToolPool(tools, permit)


class WorkConfig(PlanningConfig):
    """Options for the router, the verifiers and the budget."""

    router: str = "cheapest"
    """Router: cheapest, accurate, cascade:NAME,NAME,... or the file of a router trained in phase
    2."""
    verifiers: _WholePath | None = None
    """Verifiers by type as JSON: {"default": {"kind": "present"}, "sum": {"kind": ...}}."""
    budget: float | None = None
    """Maximum cost of one execution in USD."""

    def make_system(
        self,
        pool: WorkerPool,
        catalog: Catalog | None,
        plans: Iterable[Plan],
        **more: Any,
    ) -> OrchestrationSystem:
        """Build the system that executes the plans. If `catalog` is None, the built-in catalog is
        used if it contains all tools of the plans. Raises `ConfigError` or `DataError` for invalid
        options or files."""
        own, types = builtin_graph().catalog, {node.tool for plan in plans for node in plan.nodes}
        verifiers = self.read_verifiers(pool)
        if verifiers is not None:
            # A verifier with a misspelt type would silently never be used.
            tools = catalog or own
            named = types | {*tools.names}
            known = named | {tool_kind(name, catalog=tools) for name in named} | {"tool", *KINDS}
            known = known.union(*((w.name, *w.capabilities, *w.skills) for w in pool.workers))
            if unknown := [name for name in verifiers.by_type if name not in known]:
                raise ConfigError(
                    f"{str(self.verifiers)!r}: {unknown[0]!r} is not a tool, a subtask type or a "
                    f"kind{hint(unknown[0], known)}"
                )
        name = self.router
        if name in _ROUTERS:
            router = _ROUTERS[name]()
        elif name.startswith("cascade:"):
            order = [part.strip() for part in name.removeprefix("cascade:").split(",")]
            workers = [worker.name for worker in pool.workers]
            if unknown := [worker for worker in order if worker not in workers]:
                raise ConfigError(f"unknown worker {unknown[0]!r} in --router; use {workers!r}")
            router = routing.cascade_router(order)
        elif Path(name).is_file():
            from tutelage.orchestration.routing.router import load_router

            router = load_router(name)
            router.check(pool.workers)
        else:
            choice = ", ".join([*_ROUTERS, "cascade:NAME,NAME,...", "a phase 2 checkpoint"])
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
        """Read the verifiers from the configured file; return None if no file is set. Raises
        `DataError` if the file format is wrong and `ConfigError` if a verifier is invalid."""
        path = self.verifiers
        if path is None:
            return None
        data: Any = read_json(path)
        if not isinstance(data, dict) or not all(isinstance(v, dict) for v in data.values()):
            raise DataError(f"{str(path)!r} must map subtask types or 'default' to verifiers")
        rows = cast("dict[str, JSON]", data)
        if not pool.mock and any(row.get("kind") == "known" for row in rows.values()):
            raise ConfigError(f"{str(path)!r}: the verifier 'known' requires --pool simulated")
        made = {kind: make_verifier(row, f"{path}: {kind!r}") for kind, row in rows.items()}
        default = made.pop("default", Verifiers.make_default(mock=pool.mock).default)
        return Verifiers(default, made)


class ExecutionConfig(ExecutionLimits, ToolsConfig, WorkConfig, RunSettings):
    """Options of the execution of one plan."""

    instruction: str | None = None
    """Instruction to plan and execute."""
    plan: _WholePath | None = None
    """Plan as JSON or YAML, used instead of a planner."""
    try_timeout: Positive | None = None
    """Maximum seconds of one request to a worker (default: 60), or of one call of a tool without
    its own timeout (default: 10)."""
    reward: Preset = "normalized"
    """Reward of an execution."""
    logs: _WholePath | None = None
    """Append the execution to this log too: a folder, or a file that ends in .jsonl."""
    yes: bool = False
    """Run the tools with side effects in the initial plan without asking."""

    def load_tools(self) -> dict[str, Tool]:
        """Return the tools by name. If `try_timeout` is set, it replaces their default timeout."""
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
        """Build the system that executes the plans, with the configured limits and log."""
        if self.logs is not None:
            more["execution_logger"] = ExecutionLogger(self.logs, workers=pool.workers)
        return super().make_system(
            pool,
            catalog,
            plans,
            settings=ExecutorSettings(
                **self.model_dump(include={*ExecutionLimits.model_fields}, exclude_none=True)
            ),
            realtime=True,
            **more,
        )
