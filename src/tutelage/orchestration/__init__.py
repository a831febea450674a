"""Orchestration: plans an instruction as a DAG of subtasks, executes it and computes a reward.

`plan/dag.py` defines plans and `plan/catalog.py` tools. `execution/workers.py`,
`routing/contract.py` and `execution/executor.py` execute plans, `evaluation/rewards.py` computes
rewards, and `execution/system.py` combines all parts. Modules that need torch are imported on first
access.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tutelage.orchestration.evaluation.rewards import ExecutionResult as ExecutionResult
from tutelage.orchestration.evaluation.rewards import compute_reward as compute_reward
from tutelage.orchestration.plan.dag import Node as Node
from tutelage.orchestration.plan.dag import NoPlanError as NoPlanError
from tutelage.orchestration.plan.dag import Plan as Plan
from tutelage.orchestration.plan.dag import is_valid_dag as is_valid_dag

if TYPE_CHECKING:
    from tutelage.orchestration.data.outcomes import read_outcomes as read_outcomes
    from tutelage.orchestration.execution.executor import Executor as Executor
    from tutelage.orchestration.execution.executor import ExecutorSettings as ExecutorSettings
    from tutelage.orchestration.execution.stored import ExecutionLogger as ExecutionLogger
    from tutelage.orchestration.execution.system import OrchestrationSystem as OrchestrationSystem
    from tutelage.orchestration.execution.worker_files import classic as classic
    from tutelage.orchestration.execution.worker_files import read_workers as read_workers
    from tutelage.orchestration.execution.workers import Worker as Worker
    from tutelage.orchestration.planner.model import PlannerModel as PlannerModel
    from tutelage.orchestration.planner.targets import WorkflowDataset as WorkflowDataset
    from tutelage.orchestration.routing.phase2 import train_phase2 as train_phase2
    from tutelage.orchestration.routing.policy import ModelSelector as ModelSelector
    from tutelage.orchestration.routing.policy import compute_gae as compute_gae
    from tutelage.orchestration.routing.router import LearnedRouter as LearnedRouter
    from tutelage.orchestration.routing.router import load_router as load_router

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

_EAGER = ("ExecutionResult", "NoPlanError", "Node", "Plan", "compute_reward", "is_valid_dag")
__all__ = sorted((*_LAZY, *_EAGER))  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
