"""The embedded default of a search: what is played where the user names neither agent nor tasks.

A search knows its parts and not where they come from: `embedded` finds the recipe by its name, so
that the room of the search needs neither the tasks nor the code that trains their policy.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from tutelage.tasks.arithmetic import Split
from tutelage.types import Task

if TYPE_CHECKING:
    from tutelage.policy.model import Policy

RECIPE = "tutelage.recipes.prompt_following"
"""The module whose `EMBEDDED` it is."""


@dataclass(frozen=True, slots=True)
class EmbeddedDefaults:
    """The default agent's prompt, tools and grader, its tasks, and the policy that answers it."""

    prompt: str
    """What a search begins with."""
    tools: tuple[str, ...]
    """By their names in the registry."""
    reward: str
    """By its name in the registry."""
    tasks: Callable[[Split, int, int], Sequence[Task]]
    """Tasks of a split, from a seed."""
    policy: Callable[[], Policy]
    """Loads the policy."""


def embedded() -> EmbeddedDefaults:
    """The default, which is loaded when a search asks for it first."""
    return cast("EmbeddedDefaults", importlib.import_module(RECIPE).EMBEDDED)
