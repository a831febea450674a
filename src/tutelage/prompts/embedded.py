"""The embedded default of a search: agent, tasks and policy if the user names none.

`embedded` imports the recipe by name, so that the search does not depend on the tasks and the code
that trains their policy.
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
"""The module that defines `EMBEDDED`."""


@dataclass(frozen=True, slots=True)
class EmbeddedDefaults:
    """Prompt, tools and reward of the default agent, with its tasks and its policy."""

    prompt: str
    """First prompt of a search."""
    tools: tuple[str, ...]
    """Names of tools in the registry."""
    reward: str
    """Name of the reward in the registry."""
    tasks: Callable[[Split, int, int], Sequence[Task]]
    """Function that returns n tasks of a split, from a seed."""
    policy: Callable[[], Policy]
    """Function that loads the policy."""


def load_embedded_defaults() -> EmbeddedDefaults:
    """Import and return the embedded defaults."""
    return cast("EmbeddedDefaults", importlib.import_module(RECIPE).EMBEDDED)
