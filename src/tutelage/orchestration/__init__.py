"""Orchestration: an instruction becomes a DAG of subtasks, and an execution becomes a reward.

Read `plan.py` for the words, `catalog.py` for the tools, then `rewards.py` for what a workflow
earns.
"""

from tutelage.orchestration.plan import Node, Plan, is_valid_dag
from tutelage.orchestration.rewards import ExecutionResult, compute_reward

__all__ = ["ExecutionResult", "Node", "Plan", "compute_reward", "is_valid_dag"]
