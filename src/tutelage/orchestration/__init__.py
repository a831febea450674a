"""Orchestration: an instruction becomes a DAG of subtasks, and an execution becomes a reward.

Read `plan.py` for the words and `catalog.py` for the tools; `workers.py`, `routing.py` and
`executor.py` for how a plan is run, `rewards.py` for what that earns, `system.py` for all of it
together. What needs torch is loaded when it is asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tutelage.orchestration.plan import Node, Plan, is_valid_dag
from tutelage.orchestration.rewards import ExecutionResult, compute_reward

if TYPE_CHECKING:
    from tutelage.orchestration.execution_log import ExecutionLogger
    from tutelage.orchestration.executor import Executor, ExecutorSettings
    from tutelage.orchestration.outcomes import read_outcomes
    from tutelage.orchestration.phase2 import train_phase2
    from tutelage.orchestration.planner.model import PlannerModel
    from tutelage.orchestration.planner.targets import WorkflowDataset
    from tutelage.orchestration.router import LearnedRouter, load_router
    from tutelage.orchestration.selector.policy import ModelSelector, compute_gae
    from tutelage.orchestration.system import OrchestrationSystem
    from tutelage.orchestration.worker_files import classic, read_workers
    from tutelage.orchestration.workers import Worker

_LAZY = {
    "ExecutionLogger": "execution_log",
    "Executor": "executor",
    "ExecutorSettings": "executor",
    "LearnedRouter": "router",
    "ModelSelector": "selector.policy",
    "OrchestrationSystem": "system",
    "PlannerModel": "planner.model",
    "Worker": "workers",
    "WorkflowDataset": "planner.targets",
    "classic": "worker_files",
    "compute_gae": "selector.policy",
    "load_router": "router",
    "read_outcomes": "outcomes",
    "read_workers": "worker_files",
    "train_phase2": "phase2",
}
"""Public names by the module that has them."""

__all__ = [
    "ExecutionLogger",
    "ExecutionResult",
    "Executor",
    "ExecutorSettings",
    "LearnedRouter",
    "ModelSelector",
    "Node",
    "OrchestrationSystem",
    "Plan",
    "PlannerModel",
    "Worker",
    "WorkflowDataset",
    "classic",
    "compute_gae",
    "compute_reward",
    "is_valid_dag",
    "load_router",
    "read_outcomes",
    "read_workers",
    "train_phase2",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
