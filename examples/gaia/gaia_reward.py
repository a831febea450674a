"""The reward: GAIA's scorer on the final text, and whether the attached file was read."""

from __future__ import annotations

from tutelage import reward
from tutelage.rewards.qa import gaia_scorer
from tutelage.types import Attempt

LONGEST = 2000
"""Characters; a longer text is no answer."""


@reward
def gaia_reward(prediction: str, trajectory: Attempt, answer: str) -> dict[str, float]:
    """1 where GAIA would count the answer. A text may end in `FINAL ANSWER: ...`; that counts then.

    Parts: `exact` is the same, `read` says whether the attached file was read.
    """
    given = prediction[-LONGEST:].rpartition("FINAL ANSWER:")[2].strip()
    exact = float(len(given) < LONGEST and gaia_scorer(given, answer))
    read = any(r.name == "read_file" and not r.error for r in trajectory.tool_results)
    return {"reward": exact, "exact": exact, "read": float(read)}
