"""An agent that plans a request, runs the plan over the kit and is paid for what came of it.

tutelage train benchmarks/orchestration/training/agent.py --train TASKS ...     (its weights)
tutelage train benchmarks/orchestration/training/agent.py --algorithm apo ...   (its instructions)

A rollout is one plan, with one repair at most, by the planner that `--planner llm` has. Right is a
plan that leaves the folder as the task's own plan does and has its last result among its results;
for a request that no tool serves, to say so. The reward is `normalized`: success, less what the
calls and the longest chain cost, which is counted only where it succeeded, and a share for the
calls of the task's plan that it has.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.orchestration.grading.state import FolderState, read_state
from benchmarks.orchestration.kit import make_folder, make_tools, serve_pages

from tutelage import PromptTemplate, rollout
from tutelage.orchestration import Node, OrchestrationSystem, Plan
from tutelage.orchestration.evaluation.rewards import ExecutionResult, References, reward_parts
from tutelage.orchestration.execution.permission import Doubt
from tutelage.orchestration.execution.pools.tools import ToolPool
from tutelage.orchestration.plan.dag import critical_path
from tutelage.orchestration.planner.llm import SYSTEM, LLMPlanner, NoPlanError
from tutelage.tools.tool import Tool
from tutelage.types import Sampling

CALL, MOST = 0.001, 10
"""What a call counts for, in USD and seconds of one thousandth and one each, and how many calls
count as the dearest plan."""
MAX_TOKENS = 200
instructions = PromptTemplate(SYSTEM)


async def permitted(tool: Tool, arguments: str, doubt: Doubt) -> str:
    """Everything may run: the folder is of this rollout alone."""
    return ""


async def run(plan: Plan, tools: Mapping[str, Tool], place: Path) -> tuple[FolderState, list[str]]:
    """Run a plan; the state of the folder then, and what its nodes returned."""
    pool = ToolPool(tools, permit=permitted)
    done = await OrchestrationSystem(pool=pool).aexecute(plan.instruction, plan=plan)
    return read_state(place), [node.output or "" for node in done.nodes if node.is_ok]


@contextmanager
def folder(seed: int) -> Generator[tuple[dict[str, Tool], Path]]:
    """The kit's tools on a fresh folder of a seed, which is gone afterwards."""
    with TemporaryDirectory() as root:
        place = Path(root) / "kit"
        contents = make_folder(place, seed)
        with serve_pages(contents) as url:
            yield make_tools(place, url, contents.today), place


def end_of(plan: Plan, seed: int) -> tuple[FolderState, list[str]]:
    """What a plan brings about in the folder of a seed; call it in a thread of its own."""
    with folder(seed) as (tools, place):
        return asyncio.run(run(plan, tools, place))


def succeeds(nodes: Sequence[Mapping[str, Any]], seed: int) -> bool:
    """Whether all calls of a plan succeed in the folder of a seed."""
    plan = plan_of(nodes)
    return len(end_of(plan, seed)[1]) == len(plan.nodes)


@lru_cache(256)
def wanted_end(nodes: str, seed: int) -> tuple[FolderState, str]:
    """What a task's own plan brings about, and its last result; a group of rollouts shares it."""
    state, results = end_of(plan_of(json.loads(nodes)), seed)
    return state, results[-1]


def plan_of(nodes: Sequence[Mapping[str, Any]]) -> Plan:
    """A plan of the nodes of a task."""
    return Plan("", tuple(Node(**node) for node in nodes))


def paid(plan: Plan, right: bool, matched: float) -> float:
    """The preset's reward of a plan, from -0.02 to 1."""
    nodes = len(plan.nodes)
    latency, _ = critical_path(plan, [1.0] * nodes)
    outcome = ExecutionResult(
        success=right,
        total_cost=CALL * nodes,
        total_latency_ms=1000.0 * latency,
        verified_fraction=matched,
    )
    references = References(CALL * MOST, float(MOST))
    parts = reward_parts(outcome, preset="normalized", references=references)
    # Cost and latency count only where the plan is right.
    return (sum(parts.values()) if right else parts["shaped"]) / 10


def matched(plan: Plan, wanted: Sequence[Mapping[str, Any]]) -> float:
    """The share of the wanted calls that a plan has, less for calls beyond them."""
    has = Counter(repr((node.tool, dict(node.arguments))) for node in plan.nodes)
    wants = Counter(repr((node["tool"], node["arguments"])) for node in wanted)
    return (has & wants).total() / max(1, has.total(), wants.total())


@rollout
async def plan_and_run(
    task: dict[str, Any], llm: Any, instructions: PromptTemplate
) -> dict[str, float]:
    """The reward, whether the plan was right, and whether there was one."""
    wanted, seed = task["nodes"], int(task["seed"])
    # The tools are only shown here: those that run are on a folder of their own.
    shown = make_tools(Path(), "http://127.0.0.1", "2026-03-02")
    planner = LLMPlanner(
        lambda: llm.client, shown, Sampling(1.0, max_tokens=MAX_TOKENS), instructions.format()
    )
    try:
        plan = await planner.aplan(task["question"])
    except NoPlanError as refusal:
        declined = float(refusal.__cause__ is None and not wanted)
        return {"reward": paid(plan_of(wanted), bool(declined), declined), "right": declined}
    state, results = await asyncio.to_thread(end_of, plan, seed)
    right = False
    if wanted:
        end, last = await asyncio.to_thread(wanted_end, json.dumps(wanted), seed)
        right = state == end and last in results
    return {"reward": paid(plan, right, matched(plan, wanted)), "right": float(right)}
