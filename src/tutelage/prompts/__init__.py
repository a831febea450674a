"""Prompt search: better texts for an agent, from the rewards it earns, with an honest verdict.

Begin with `run.py` (`optimise`), then `workshop.py` and one algorithm: `apo.py`, `gepa.py`,
`screen.py`, `grips.py`. `contract.py` says what an agent and an optimiser LLM are here; no module
knows HTTP, an engine or the training code.
"""

from tutelage.engine.usage import Spend, Usage
from tutelage.prompts.apo import APO
from tutelage.prompts.budget import Budget, BudgetSpent, Limits, Worst
from tutelage.prompts.choice import Algorithm, choose
from tutelage.prompts.contract import Ask, Components, Episode, Play, Reply, Settings, Splits
from tutelage.prompts.gate import Sealed, Verdict
from tutelage.prompts.gepa import GEPA
from tutelage.prompts.grips import GRIPS
from tutelage.prompts.journal import Journal
from tutelage.prompts.run import Result, optimise
from tutelage.prompts.screen import Screen

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
]
