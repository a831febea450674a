"""Selection of the planner for an instruction: `trained`, `llm` or `auto`.

`trained` plans over the catalog that it was trained on. It is a planner from `train planner`, or
the planner of the package. `llm` is a local or remote language model. It plans over any tools and
writes their arguments. `auto` uses the trained planner if its confidence is high enough, and
otherwise the language model if there is one. Executable tools take arguments and therefore need a
language model.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tutelage.errors import ConfigError, MissingExtraError
from tutelage.orchestration.data.synthetic import builtin_graph
from tutelage.orchestration.execution.budget import Budget
from tutelage.orchestration.execution.system import wait_for_plan
from tutelage.orchestration.plan.catalog import Catalog
from tutelage.orchestration.plan.dag import NoPlanError, Plan
from tutelage.orchestration.planner import check_torch
from tutelage.orchestration.planner.llm import LLMPlanner
from tutelage.tools.schema import Signature
from tutelage.tools.tool import Tool

if TYPE_CHECKING:
    from tutelage.orchestration.execution.config import ExecutionConfig
    from tutelage.orchestration.planner.model import PlannerModel

_WAYS = (
    "Pass a planning model (--endpoint URL --model NAME, or --model RUN), or your own plan (--plan "
    "FILE)"
)


@dataclass(frozen=True, slots=True)
class ChosenPlan:
    """Plan with a description of its source, and the planner that replans failed executions."""

    plan: Plan
    source: str
    llm: LLMPlanner | None = None
    confidence: float | None = None
    """None if the planner computes no confidence."""
    min_confidence: float | None = None


def choose_plan(
    config: ExecutionConfig,
    instruction: str,
    catalog: Catalog | None,
    tools: Mapping[str, Tool],
    llm: LLMPlanner | None,
) -> ChosenPlan:
    """Generate a plan with the executable `tools`, or with the tools of `catalog` (default: the
    built-in catalog) if `tools` is empty. `llm` is the result of `llm_planner`.

    Raises `ConfigError` if the requested planner is not available, `DataError` if no planner has a
    plan.
    """
    if config.planner == "llm" and llm is None:
        raise ConfigError(f"--planner llm needs a language model. {_WAYS}")
    if tools and (llm is None or config.planner == "trained"):
        raise ConfigError(f"custom tools need a language model as planner. {_WAYS}")
    if not tools and config.planner != "llm":
        try:
            model, source = trained_planner(config.checkpoint, catalog)
            made = model.plan_all([instruction])[0]
            plan = made.accept(config.min_confidence)
        except (NoPlanError, MissingExtraError) as error:
            if llm is None:
                raise type(error)(f"{error}. {_WAYS}") from error
        else:
            least = made.least if config.min_confidence is None else config.min_confidence
            return ChosenPlan(plan, source, llm, made.confidence, least)
    assert llm is not None
    request = llm.aplan(instruction, Budget(config.budget))
    plan = asyncio.run(wait_for_plan(config.deadline, request))
    source = f"of the language model {config.model}"
    source += f" at {config.endpoint}" if config.endpoint else ""
    source += (
        "" if llm.priced else "; its price is not known, so what planning costs is not counted"
    )
    return ChosenPlan(plan, source, llm)


def trained_planner(
    checkpoint: str | Path | None = None, catalog: Catalog | None = None
) -> tuple[PlannerModel, str]:
    """Load the trained planner; return it with a description of its source.

    Without `checkpoint`, loads the newest planner checkpoint below the working directory, or the
    planner of the package if there is none. Raises `MissingExtraError` without torch, `ModelError`
    if the checkpoint cannot be read, and `NoPlanError` if the planner of the package is used with
    another catalog.
    """
    check_torch()
    from tutelage.orchestration.planner.saving import PHASE1, builtin_planner, load_planner
    from tutelage.runs.folder import RUNS

    if checkpoint is None:
        places = [Path("checkpoints") / PHASE1, *RUNS.glob(f"*/{PHASE1}")]
        places += RUNS.glob(f"*/checkpoints/{PHASE1}")
        there = [place for place in places if place.is_file()]
        checkpoint = max(there, key=lambda place: place.stat().st_mtime, default=None)
    if checkpoint is None:
        return builtin_planner(catalog), (
            "of the EMBEDDED planner: it learned from synthetic workflows, not from your data; to "
            "train on it: tutelage train planner --train FILE, then --checkpoint"
        )
    model = load_planner(checkpoint)
    if catalog is not None:
        model.use_catalog(catalog)
    return model, f"of the planner {checkpoint}"


def llm_planner(
    config: ExecutionConfig, tools: Mapping[str, Tool], catalog: Catalog | None = None
) -> LLMPlanner | None:
    """Create the language model planner for `tools`, or for the catalog if `tools` is empty. Return
    None if the configuration has no model. Raises `ConfigError` if the model is not available or
    its price is unknown but needed for the budget."""
    if config.endpoint is None and config.model is None:
        return None
    if config.planner == "trained":
        raise ConfigError("--planner trained cannot be used with --endpoint or --model")
    tools = tools or catalog_tools(catalog or builtin_graph().catalog)
    if config.endpoint is None:
        from tutelage.evaluate.targets import load_chat_client

        assert config.model is not None
        policy = load_chat_client(config.model, slots=1, max_length=None, seed=config.seed)
        return LLMPlanner(lambda: policy, tools)
    from tutelage.engine.prices import find_price, load_prices
    from tutelage.engine.remote import RemoteChatClient
    from tutelage.evaluate.config import EvaluationConfig
    from tutelage.evaluate.targets import find_server

    known = EvaluationConfig(test=(), model=() if config.model is None else (config.model,))
    server = find_server(config.endpoint, known)
    assert server is not None
    price = find_price(load_prices(), server.model, local=server.is_local)
    if price is None and config.budget is not None:
        raise ConfigError(
            f"--budget includes the cost of planning, but the price of {server.model!r} is "
            "unknown; add it to prices.toml, or remove --budget"
        )
    llm = LLMPlanner(
        lambda: RemoteChatClient(server.base_url, server.api_key, server.model, name="planner"),
        tools,
        priced=price is not None,
    )
    if price is not None:
        llm.price = price.cost
    return llm


def catalog_tools(catalog: Catalog) -> dict[str, Tool]:
    """Convert a catalog to tools for a language model planner. The tools cannot be called, because
    workers execute them. A tool without a schema has one text parameter, `input`."""
    plain: dict[str, Any] = {"type": "object", "properties": {"input": {"type": "string"}}}

    def raise_error(**arguments: object) -> object:
        raise ConfigError("this tool has no function to call; a worker executes it")

    return {
        tool.name: Tool(
            tool.name,
            tool.description,
            raise_error,
            Signature(dict(tool.schema) or plain, json.loads),
        )
        for tool in catalog.tools
    }
