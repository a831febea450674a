"""Prompt search: better texts for an agent, from the rewards it earns, with an honest verdict.

Begin with `run.py` (`optimise`), then `workshop.py` and one algorithm: `apo.py`, `gepa.py`,
`screen.py`, `grips.py`. `contract.py` says what an agent and an optimiser LLM are here; no module
knows HTTP, an engine or the training code.
"""

from tutelage.algorithms.prompt.apo import APO
from tutelage.algorithms.prompt.budget import Budget, BudgetSpent, Limits, Worst
from tutelage.algorithms.prompt.choice import Algorithm, choose
from tutelage.algorithms.prompt.contract import Ask, Components, Episode, Play, Reply
from tutelage.algorithms.prompt.gate import Sealed, Verdict
from tutelage.algorithms.prompt.gepa import GEPA
from tutelage.algorithms.prompt.grips import GRIPS
from tutelage.algorithms.prompt.journal import Journal
from tutelage.algorithms.prompt.run import Result, Settings, Splits, optimise, save
from tutelage.algorithms.prompt.screen import Screen
from tutelage.engine.usage import Spend, Usage

__all__ = [
    "APO",
    "GEPA",
    "GRIPS",
    "Algorithm",
    "Ask",
    "Budget",
    "BudgetSpent",
    "Components",
    "Episode",
    "Journal",
    "Limits",
    "Play",
    "Reply",
    "Result",
    "Screen",
    "Sealed",
    "Settings",
    "Spend",
    "Splits",
    "Usage",
    "Verdict",
    "Worst",
    "choose",
    "optimise",
    "save",
]
