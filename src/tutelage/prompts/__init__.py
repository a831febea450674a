"""Prompt search: better texts for an agent, from its rewards, judged on held-out tasks.

`search.py` (`optimise`) runs an algorithm: `apo.py`, `gepa.py`, `reflect.py`, `screen.py`; `run.py`
is a search as a run. `contract.py` has the interfaces of agent and optimiser LLM; the search is
independent of HTTP, engines and the training code.
"""

from tutelage.engine.usage import Usage
from tutelage.prompts.apo import APO
from tutelage.prompts.budget import Limits, WorstCase
from tutelage.prompts.contract import (
    Ask,
    Components,
    Episode,
    OptimiserReply,
    Play,
    Settings,
    Splits,
)
from tutelage.prompts.evaluator import SearchJournal
from tutelage.prompts.gepa import GEPA
from tutelage.prompts.holdout_test import Verdict
from tutelage.prompts.reflect import Reflect
from tutelage.prompts.screen import Screen
from tutelage.prompts.search import Algorithm, SearchResult, optimise

__all__ = [
    "APO",
    "GEPA",
    "Algorithm",
    "Ask",
    "Components",
    "Episode",
    "Limits",
    "OptimiserReply",
    "Play",
    "Reflect",
    "Screen",
    "SearchJournal",
    "SearchResult",
    "Settings",
    "Splits",
    "Usage",
    "Verdict",
    "WorstCase",
    "optimise",
]
