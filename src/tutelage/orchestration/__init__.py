"""Orchestration: plans an instruction as a DAG of subtasks, executes it and computes a reward.

`plan/dag.py` defines plans and `plan/catalog.py` tools. `execution/workers.py`,
`routing/contract.py` and `execution/executor.py` execute plans, `evaluation/rewards.py` computes
rewards, and `execution/system.py` combines all parts. Modules that need torch are imported on first
access.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tutelage.orchestration.evaluation.rewards import ExecutionResult, compute_reward
from tutelage.orchestration.plan.dag import Node, NoPlanError, Plan, is_valid_dag

if TYPE_CHECKING:
    from tutelage.orchestration.data.outcomes import read_outcomes
    from tutelage.orchestration.execution.executor import Executor, ExecutorSettings
    from tutelage.orchestration.execution.stored import ExecutionLogger
    from tutelage.orchestration.execution.system import OrchestrationSystem
    from tutelage.orchestration.execution.worker_files import classic, read_workers
    from tutelage.orchestration.execution.workers import Worker
    from tutelage.orchestration.planner.model import PlannerModel
    from tutelage.orchestration.planner.targets import WorkflowDataset
    from tutelage.orchestration.routing.phase2 import train_phase2
    from tutelage.orchestration.routing.policy import ModelSelector, compute_gae
    from tutelage.orchestration.routing.router import LearnedRouter, load_router

_LAZY = {
    "ExecutionLogger": "execution.stored",
    "Executor": "execution.executor",
    "ExecutorSettings": "execution.executor",
    "LearnedRouter": "routing.router",
    "ModelSelector": "routing.policy",
    "OrchestrationSystem": "execution.system",
    "PlannerModel": "planner.model",
    "Worker": "execution.workers",
    "WorkflowDataset": "planner.targets",
    "classic": "execution.worker_files",
    "compute_gae": "routing.policy",
    "load_router": "routing.router",
    "read_outcomes": "data.outcomes",
    "read_workers": "execution.worker_files",
    "train_phase2": "routing.phase2",
}
"""Module of each public name that is imported on first access."""

__all__ = [
    "ExecutionLogger",
    "ExecutionResult",
    "Executor",
    "ExecutorSettings",
    "LearnedRouter",
    "ModelSelector",
    "NoPlanError",
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
