"""Prompt search: better texts for an agent, from the rewards it earns, with an honest verdict.

Begin with `run.py` (`optimise`), then `search_state.py` and one algorithm: `apo.py`, `gepa.py`,
`screen.py`, `grips.py`. `contract.py` says what an agent and an optimiser LLM are here; no module
knows HTTP, an engine or the training code.
"""

from tutelage.engine.usage import Usage
from tutelage.prompts.apo import APO
from tutelage.prompts.budget import BudgetExceeded, Limits, SearchBudget, WorstCase
from tutelage.prompts.choice import Algorithm, choose
from tutelage.prompts.contract import (
    Ask,
    Components,
    Episode,
    OptimiserReply,
    Play,
    Settings,
    Splits,
)
from tutelage.prompts.gepa import GEPA
from tutelage.prompts.grips import GRIPS
from tutelage.prompts.holdout_test import HoldoutResult, Verdict
from tutelage.prompts.journal import SearchJournal
from tutelage.prompts.run import SearchResult, optimise
from tutelage.prompts.screen import Screen
from tutelage.runs.rounds import Spend

__all__ = [
    "APO",
    "GEPA",
    "GRIPS",
    "Algorithm",
    "Ask",
    "BudgetExceeded",
    "Components",
    "Episode",
    "HoldoutResult",
    "Limits",
    "OptimiserReply",
    "Play",
    "Screen",
    "SearchBudget",
    "SearchJournal",
    "SearchResult",
    "Settings",
    "Spend",
    "Splits",
    "Usage",
    "Verdict",
    "WorstCase",
    "choose",
    "optimise",
]
