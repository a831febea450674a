"""Prompt search: better texts for an agent, from its rewards, judged on held-out tasks.

`search.py` (`optimise`) runs an algorithm: `apo.py`, `gepa.py`, `reflect.py`, `screen.py`; `run.py`
is a search as a run. `contract.py` has the interfaces of agent and optimiser LLM; the search is
independent of HTTP, engines and the training code.
"""

from tutelage.engine.usage import Usage as Usage
from tutelage.prompts.apo import APO as APO
from tutelage.prompts.budget import Limits as Limits
from tutelage.prompts.budget import WorstCase as WorstCase
from tutelage.prompts.contract import Ask as Ask
from tutelage.prompts.contract import Components as Components
from tutelage.prompts.contract import Episode as Episode
from tutelage.prompts.contract import OptimiserReply as OptimiserReply
from tutelage.prompts.contract import Play as Play
from tutelage.prompts.contract import Settings as Settings
from tutelage.prompts.contract import Splits as Splits
from tutelage.prompts.evaluator import SearchJournal as SearchJournal
from tutelage.prompts.gepa import GEPA as GEPA
from tutelage.prompts.holdout_test import Verdict as Verdict
from tutelage.prompts.reflect import Reflect as Reflect
from tutelage.prompts.screen import Screen as Screen
from tutelage.prompts.search import Algorithm as Algorithm
from tutelage.prompts.search import SearchResult as SearchResult
from tutelage.prompts.search import optimise as optimise
