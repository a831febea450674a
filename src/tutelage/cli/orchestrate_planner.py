"""Which planner plans an instruction that `tutelage orchestrate` was given: `--planner`.

`trained` is a planner of `train planner`, or the embedded one. `llm` is a language model, behind a
server or of this machine. `auto` takes the trained planner where it is sure of a plan, has all of
its arguments and reads the request (`plan/consent.py`), then the language model where one is given,
and says else what would help.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from tutelage.cli.failures import tell
from tutelage.cli.orchestrate_parts import ChosenPlanner, make_planner
from tutelage.errors import ConfigError, DataError, MissingExtraError, TutelageError
from tutelage.orchestration.execution.budget import Budget
from tutelage.orchestration.execution.system import planned_within
from tutelage.orchestration.plan.arguments import check_arguments
from tutelage.orchestration.plan.consent import check_consent
from tutelage.orchestration.plan.dag import NoPlanError, check_length

if TYPE_CHECKING:
    from tutelage.orchestration.execution.config import ExecutionConfig
    from tutelage.orchestration.plan.catalog import Catalog
    from tutelage.orchestration.plan.dag import Plan
    from tutelage.orchestration.planner.llm import LLMPlanner
    from tutelage.tools.tool import Tool

_WAYS = (
    "Give a language model that plans (--endpoint URL --model NAME, or --model RUN), or a plan of "
    "your own (--plan FILE)"
)
_OWN = "Give a plan of your own (--plan FILE)"
_OTHERS = "Say it in other words, or give a plan of your own (--plan FILE)"


class Sure(NamedTuple):
    """How sure a planner was of its plan, and the least that it plans at."""

    confidence: float
    least: float


class ChosenPlan(NamedTuple):
    """A plan, whose it is in words, and the language model that plans further where it fails."""

    plan: Plan
    source: str
    llm: LLMPlanner | None
    sure: Sure | None = None
    """None for plans of planners that do not tell."""


def choose_plan(
    asked: ExecutionConfig, instruction: str, catalog: Catalog | None, tools: Mapping[str, Tool]
) -> ChosenPlan:
    """The plan of an instruction. Raises `ConfigError` for planners that are not there, `DataError`
    where none has a plan that can run."""
    llm = llm_planner(asked, tools)
    if asked.planner == "llm" and llm is None:
        raise ConfigError(f"--planner llm needs a language model. {_WAYS}")
    if llm is not None and not tools:
        raise ConfigError("a language model plans over tools that run; give --tools or --mcp")
    if llm is not None and asked.planner == "llm":
        return _asked(llm, asked, instruction)
    try:
        check_length(instruction)
        planner = make_planner(asked.checkpoint, catalog)
        plan, sure = _judged(planner, instruction, asked.min_confidence)
        check_consent(plan, tools)
        check_arguments(plan, tools)
    except (DataError, MissingExtraError) as error:
        if llm is not None:
            return _asked(llm, asked, instruction)
        if isinstance(error, MissingExtraError):
            raise MissingExtraError(f"{error}. Or g{(_WAYS if tools else _OWN)[1:]}") from error
        told = (
            "" if isinstance(error, NoPlanError) else "the trained planner has no plan that runs: "
        )
        raise DataError(f"{told}{error}. {_WAYS if tools else _OTHERS}") from error
    return ChosenPlan(plan, planner.source, llm, sure)


def _judged(
    planner: ChosenPlanner, instruction: str, least: float | None
) -> tuple[Plan, Sure | None]:
    """The best plan, and how sure the planner is of it. Raises `NoPlanError`."""
    if planner.judge is None:
        return planner.plan(instruction), None
    made = planner.judge(instruction)
    plan = made.sure(least)
    if made.confidence is None:
        return plan, None
    return plan, Sure(made.confidence, made.least if least is None else least)


def _asked(llm: LLMPlanner, asked: ExecutionConfig, instruction: str) -> ChosenPlan:
    try:
        made = llm.aplan(instruction, Budget(asked.budget, asked.budget_mode))
        plan = asyncio.run(planned_within(asked.deadline, made))
    except (TutelageError, KeyboardInterrupt) as error:
        error.calls = tuple(llm.calls)  # pyright: ignore[reportAttributeAccessIssue]
        if llm.calls:
            tell(spent_words(llm))
        raise
    place = f" at {asked.endpoint}" if asked.endpoint else ""
    tries = len(llm.calls)
    again = f", at its {'second' if tries == 2 else str(tries) + 'th'} try" if tries > 1 else ""
    free = "" if llm.priced else "; its price is not known, so what planning costs is not counted"
    return ChosenPlan(plan, f"of the language model {asked.model}{place}{again}{free}", llm)


def spent_words(llm: LLMPlanner) -> str:
    """What a model was asked for nothing that could run, in words."""
    from tutelage.errors import counted

    read, written = sum(c.tokens_in for c in llm.calls), sum(c.tokens_out for c in llm.calls)
    cost = f"{math.fsum(call.cost for call in llm.calls):.6f} USD" if llm.priced else "unknown"
    asked = counted(len(llm.calls), "request")
    bound = [c for c in llm.calls if not c.tokens_in and not c.tokens_out and c.cost]
    left = f", {len(bound)} without an answer, at its bound" if bound else ""
    return f"Planning made {asked}{left}: {read} tokens read, {written} written, cost {cost}."


def llm_planner(asked: ExecutionConfig, tools: Mapping[str, Tool]) -> LLMPlanner | None:
    """The language model that plans, None where none is named."""
    if asked.endpoint is None and asked.model is None:
        return None
    if asked.planner == "trained":
        raise ConfigError("--planner trained asks no language model; leave out --endpoint, --model")
    from tutelage.engine.prices import load_prices, price_of
    from tutelage.engine.remote import RemoteChatClient
    from tutelage.orchestration.planner.llm import LLMPlanner

    if asked.endpoint is None:
        from tutelage.cli.console import fetch, waiting

        assert asked.model is not None
        fetch(asked.model)
        with waiting("loading the model that plans ..."):
            from tutelage.evaluate.targets import served

            policy = served(asked.model, slots=1, max_length=None, seed=asked.seed)
        return LLMPlanner(lambda: policy, tools)
    from tutelage.evaluate.config import EvaluationConfig
    from tutelage.evaluate.targets import server_of

    known = EvaluationConfig(test=(), model=() if asked.model is None else (asked.model,))
    server = server_of(asked.endpoint, known)
    assert server is not None
    price = price_of(load_prices(), server.model, local=server.on_loopback)
    if price is None and asked.budget is not None:
        raise ConfigError(
            f"--budget counts what planning costs, and the price of {server.model!r} is not known; "
            "write it into prices.toml, or leave out --budget"
        )
    llm = LLMPlanner(
        lambda: RemoteChatClient(server.base_url, server.api_key, server.model, name="planner"),
        tools,
        priced=price is not None,
    )
    if price is not None:
        llm.price = price.of
    return llm
