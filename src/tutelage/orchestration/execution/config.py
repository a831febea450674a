"""What an execution is asked for, and the workers, router and verifiers that it means.

The models are the options of the verbs of `tutelage orchestrate`, and `ExecutionConfig` is what
`config.json` of an execution holds. A pool of real servers is only used when it is asked for;
without it the embedded simulated workers do the work. `runs.py` executes.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator

from tutelage.config.fields import Count, CountOrZero, Names, Paths, RunSettings, Section, Share
from tutelage.errors import ConfigError, DataError
from tutelage.orchestration.data.rows import read_json
from tutelage.orchestration.data.synthetic import builtin_graph
from tutelage.orchestration.evaluation.rewards import Preset
from tutelage.orchestration.execution.budget import BudgetMode
from tutelage.orchestration.execution.executor import ExecutorSettings, OnFailure
from tutelage.orchestration.execution.permission import Permission, Permit
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
from tutelage.tools.loading import hint, is_file_reference
from tutelage.tools.registry import resolve_tools
from tutelage.tools.tool import DEFAULT_TIMEOUT, Tool

Warn = Callable[[str], None]
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_ROUTERS: dict[str, Callable[[], Router]] = {
    "cheapest": routing.cheapest,
    "accurate": routing.most_accurate,
}
"""Routers that need nothing but their name."""


_LIMITS = {*ExecutorSettings.model_fields} - {"retries", "backoff", "backoff_max", "concurrency"}
"""Keys of an execution that are settings of its executor."""


def _seconds(value: Any) -> Any:
    """`20s`, `500ms`, `2m` or a number of seconds. Raises `ValueError`."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|min|h)?\s*", value)
    time = 0.0 if match is None else float(match[1]) * _UNITS[match[2] or "s"]
    if time <= 0:
        raise ValueError("give a time above 0, such as 20s, 500ms or 2m")
    return time


_Seconds = Annotated[float, BeforeValidator(_seconds)]
_WholePath = Annotated[Path, AfterValidator(Path.absolute)]
"""A path that holds in the working directory of any resume."""


class PoolConfig(Section):
    """Where workers stand."""

    pool: Literal["simulated", "replay", "openai"] | None = None
    """Where workers stand: simulated (the default), replay (needs --outcomes), or openai: real
    servers, with keys from the environment."""
    workers: _WholePath | None = None
    """Workers as JSON or YAML; else the eight of the preset classic."""
    outcomes: _WholePath | None = None
    """Of the replay pool: recorded outcomes."""
    models: _WholePath | None = None
    """Of the replay pool: prices of its workers."""
    seed: CountOrZero = 0
    """Where all draws come from."""

    def make_pool(self) -> WorkerPool:
        """The pool. Raises `ConfigError` for options that contradict."""
        name = self.pool or ("simulated" if self.outcomes is None else "replay")
        if name == "replay":
            from tutelage.orchestration.data.outcomes import read_outcomes
            from tutelage.orchestration.execution.pools.replay import ReplayPool

            if self.outcomes is None or self.models is None:
                raise ConfigError("--pool replay needs --outcomes FILE and --models FILE")
            if self.workers is not None:
                raise ConfigError(
                    "the replay pool has the workers of --models; leave out --workers"
                )
            return ReplayPool(read_outcomes(self.outcomes, self.models))
        if self.outcomes is not None or self.models is not None:
            raise ConfigError(
                f"--outcomes and --models are for the replay pool, not for {name!r}; "
                "leave them out, or choose --pool replay"
            )
        workers = classic() if self.workers is None else read_workers(self.workers)
        from tutelage.orchestration.execution.pools.openai import OpenAIPool
        from tutelage.orchestration.execution.pools.simulated import SimulatedPool

        return SimulatedPool(workers) if name == "simulated" else OpenAIPool(workers)


class PlanningConfig(PoolConfig):
    """Who plans, with which tools, for which workers."""

    checkpoint: _WholePath | None = None
    """The planner: a run of train planner, or its file."""
    catalog: _WholePath | None = None
    """Tools that plans may use; else the built-in."""

    def read_catalog(self) -> Catalog | None:
        """The catalog of the file, None for none."""
        return None if self.catalog is None else read_catalog(self.catalog)


def _whole_reference(reference: str) -> str:
    """`FILE.py` and `FILE.py:name` hold in the working directory of any resume."""
    file, colon, name = reference.partition(".py")
    if " " in reference or not is_file_reference(reference):
        return reference
    return f"{Path(file + colon).expanduser().absolute()}{name}"


class ToolsConfig(PlanningConfig):
    """Tools that plans may use, and that run."""

    tools: Annotated[Names, AfterValidator(lambda v: tuple(map(_whole_reference, v)))] = ()
    """Tools that run: FILE.py (all of its @tool functions), FILE.py:name, or built-in ones."""
    mcp: Annotated[
        Paths,
        AfterValidator(
            lambda v: tuple(f"mcp:{_whole_reference(x.removeprefix('mcp:'))}" for x in v)
        ),
    ] = ()
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
        return resolve_tools((*self.tools, *self.mcp))

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
        others = self.pool or self.workers or self.outcomes
        return ToolPool(tools, self.make_pool() if others else None, permit or Permission())


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
        *,
        warn: Warn = warnings.warn,
        **more: Any,
    ) -> OrchestrationSystem:
        """What executes such plans. Without a catalog the built-in one tells the kinds of tools,
        where it has them all. `warn` is called where workers are chosen, or outcomes taken, by
        something else than it seems. Raises `ConfigError` and `DataError` for what cannot be."""
        own, plans = builtin_graph().catalog, tuple(plans)
        unrelated = getattr(pool, "unrelated", None)  # of the replay pool
        if unrelated is not None and (others := sum(map(unrelated, plans))):
            number = sum(len(plan.nodes) for plan in plans)
            warn(
                f"{others} of {number} subtasks are no query of the table of outcomes and get the "
                "outcome of another query: what is replayed says nothing about this instruction"
            )
        verifiers = self.read_verifiers(pool, warn)
        types = {node.tool for plan in plans for node in plan.nodes}
        if verifiers is not None:
            # One of a misspelt name would judge nothing without a word.
            tools = catalog or own
            types |= {*tools.names}
            known = types | {tool_kind(name, catalog=tools) for name in types} | {"tool", *KINDS}
            for worker in pool.workers:
                known |= {worker.name, *worker.capabilities, *worker.skills}
            if lost := [name for name in verifiers.by_type if name not in known]:
                raise ConfigError(
                    f"{str(self.verifiers)!r}: no tool and no type of subtask is named "
                    f"{lost[0]!r}{hint(lost[0], known)}; name a tool, a type or a kind"
                )
        builtin = all(node.tool in own for plan in plans for node in plan.nodes)
        return OrchestrationSystem(
            pool=pool,
            router=self._router(pool, warn),
            verifiers=verifiers,
            catalog=catalog or (own if builtin else None),
            seed=self.seed,
            **more,
        )

    def _router(self, pool: WorkerPool, warn: Warn) -> Router:
        """The router. Raises `ConfigError` with those that exist."""
        name, known = self.router, {worker.name for worker in pool.workers}
        models = [worker for worker in pool.workers if not worker.tool]
        if name.startswith("cascade:"):
            order = [part.strip() for part in name.removeprefix("cascade:").split(",")]
            order = [part for part in order if part]
            if lost := [worker for worker in order if worker not in known]:
                raise ConfigError(f"--router names {lost[0]!r}; the workers are {sorted(known)!r}")
            return routing.cascade(order)
        if name == "accurate" and not any(worker.skills for worker in models):
            warn(
                f"the router {name!r} goes by the skills that workers declare, and none of them "
                "does: the cheapest worker is asked first"
            )
            name = "cheapest"
        if name in _ROUTERS:
            return _ROUTERS[name]()
        if Path(name).is_file():
            from tutelage.orchestration.routing.router import load_router

            router = load_router(name)
            router.check(pool.workers)
            return router
        choice = ", ".join([*_ROUTERS, "cascade:NAME,NAME,...", "the checkpoint of phase 2"])
        raise ConfigError(f"unknown router {name!r}; choose from {choice}")

    def read_verifiers(self, pool: WorkerPool, warn: Warn = warnings.warn) -> Verifiers | None:
        """Verifiers from the file; None: those that the pool has by itself. `warn` is called with
        one that judges no tool, where nothing but tools works."""
        path = self.verifiers
        if path is None:
            return None
        data = read_json(path)
        if not isinstance(data, dict) or not all(isinstance(v, dict) for v in data.values()):
            raise DataError(f"{str(path)!r} needs an object: a verifier by type, and 'default'")
        made = {kind: make_verifier(row, f"{path}: {kind!r}") for kind, row in data.items()}
        judged = {"tool", *(worker.name for worker in pool.workers)}
        if all(worker.tool for worker in pool.workers) and (idle := sorted({*made} - judged)):
            warn(
                f"{str(path)!r}: the verifier {idle[0]!r} judges nothing here: what tools give is "
                "judged by verifiers of their names, or of 'tool' for all of them"
            )
        default = made.pop("default", Verifiers.of_pool(mock=pool.mock).default)
        return Verifiers(default, made)


class ExecutionConfig(ToolsConfig, WorkConfig, RunSettings):
    """The execution of one plan."""

    instruction: str | None = None
    """What is to be done."""
    plan: _WholePath | None = None
    """A plan as JSON or YAML, instead of the planner's."""
    budget_mode: BudgetMode = "enforce"
    """Enforce the budget, or only audit it."""
    deadline: _Seconds | None = None
    """Stop after this long: 20s, 500ms, 2m."""
    node_timeout: _Seconds | None = None
    """For one subtask with all its tries."""
    try_timeout: _Seconds | None = None
    """For one request to a worker (60 s), or one call of a tool (10 s) that says no time itself."""
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
        logger = (
            None
            if self.logs is None
            else ExecutionLogger(self.logs, workers=pool.workers, catalog=catalog)
        )
        return super().make_system(
            pool,
            catalog,
            plans,
            settings=ExecutorSettings(**self.model_dump(include=_LIMITS, exclude_none=True)),
            budget_mode=self.budget_mode,
            execution_logger=logger,
            realtime=True,
            **more,
        )
