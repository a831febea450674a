"""Tutelage trains any LLM agent, its prompt, its weights or its orchestration, from its rewards.

This module is the public API. Each name is imported from its module at its first use, so that
`import tutelage` stays fast (no torch, no SQL, no sympy). `types.py` has the shared records,
`weights/` the training.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_MODULES = {
    "agents.external": "ExternalAgent",
    "agents.function": "rollout",
    "agents.lit_agent": "LitAgent",
    "agents.session": "Rollout emit_reward init",
    "errors": "TutelageError",
    "prompts.apo": "APO",
    "prompts.gepa": "GEPA",
    "prompts.reflect": "Reflect",
    "prompts.run": "PromptResult",
    "prompts.screen": "Screen",
    "resources": "LLM NamedResources PromptTemplate",
    "rewards.function": "reward",
    "runs.callbacks": "Callback",
    "runs.result": "TrainingResult",
    "statistics.outcome": "Evaluation",
    "tasks.dataset": "Dataset",
    "tools.tool": "Tool ToolError tool",
    "trainer.algorithm": "RL SFT VERL",
    "trainer.trainer": "Trainer",
    "types": "Message Reward Task",
}
_EXPORTS = {name: module for module, names in _MODULES.items() for name in names.split()}
__all__ = sorted(_EXPORTS)  # pyright: ignore[reportUnsupportedDunderAll]

if TYPE_CHECKING:
    from tutelage.agents.external import ExternalAgent as ExternalAgent
    from tutelage.agents.function import rollout as rollout
    from tutelage.agents.lit_agent import LitAgent as LitAgent
    from tutelage.agents.session import Rollout as Rollout
    from tutelage.agents.session import emit_reward as emit_reward
    from tutelage.agents.session import init as init
    from tutelage.errors import TutelageError as TutelageError
    from tutelage.prompts.apo import APO as APO
    from tutelage.prompts.gepa import GEPA as GEPA
    from tutelage.prompts.reflect import Reflect as Reflect
    from tutelage.prompts.run import PromptResult as PromptResult
    from tutelage.prompts.screen import Screen as Screen
    from tutelage.resources import LLM as LLM
    from tutelage.resources import NamedResources as NamedResources
    from tutelage.resources import PromptTemplate as PromptTemplate
    from tutelage.rewards.function import reward as reward
    from tutelage.runs.callbacks import Callback as Callback
    from tutelage.runs.result import TrainingResult as TrainingResult
    from tutelage.statistics.outcome import Evaluation as Evaluation
    from tutelage.tasks.dataset import Dataset as Dataset
    from tutelage.tools.tool import Tool as Tool
    from tutelage.tools.tool import ToolError as ToolError
    from tutelage.tools.tool import tool as tool
    from tutelage.trainer.algorithm import RL as RL
    from tutelage.trainer.algorithm import SFT as SFT
    from tutelage.trainer.algorithm import VERL as VERL
    from tutelage.trainer.trainer import Trainer as Trainer
    from tutelage.types import Message as Message
    from tutelage.types import Reward as Reward
    from tutelage.types import Task as Task


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        value = getattr(importlib.import_module(f"tutelage.{_EXPORTS[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'tutelage' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
