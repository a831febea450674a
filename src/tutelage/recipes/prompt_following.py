"""The embedded prompt search: its tasks, and a policy that follows its prompt.

`prompted.py` has the tasks; `benchmarks/house/prompt_recipe.py` trained the policy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tutelage.prompts.embedded import EmbeddedDefaults
from tutelage.recipes.prompted import PROMPTED_TOOLS, SEED_PROMPT, prompted_tasks
from tutelage.tasks.arithmetic import PROMPTED_REWARD

if TYPE_CHECKING:
    from tutelage.policy.model import Policy


def _load_embedded_policy() -> Policy:
    """Load the embedded policy, and set torch to one thread."""
    import torch

    from tutelage.policy.model import load_policy
    from tutelage.policy.sources import artefact

    policy = load_policy(str(artefact("prompts")))
    torch.set_num_threads(1)  # it is so small that threads cost more than they give
    return policy


EMBEDDED = EmbeddedDefaults(
    prompt=SEED_PROMPT,
    tools=PROMPTED_TOOLS,
    reward=PROMPTED_REWARD,
    tasks=prompted_tasks,
    policy=_load_embedded_policy,
)
