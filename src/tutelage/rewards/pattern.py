"""Search for a pattern in a process that can be killed.

A regular expression that backtracks for hours blocks the interpreter: no timeout, Ctrl-C or other
thread can interrupt it. `worker.py` runs the process, which imports only this module.
"""

from __future__ import annotations

import pickle
import re

from tutelage.errors import AnswerError, GraderError
from tutelage.rewards.worker import POOL, RewardJob, RewardLocation
from tutelage.tools.execute import call_in_thread

SECONDS = 5.0
"""Timeout of one search; ordinary searches take milliseconds."""


def search(pattern: str, text: str) -> float:
    """Return 1.0 if a pattern matches in a text, else 0.0. `.` also matches newlines."""
    return float(re.search(pattern, text, re.DOTALL) is not None)


_SEARCH = RewardLocation.locate(search)
"""None on systems without worker processes."""


async def matches(pattern: str, text: str, *, blocking: bool = False) -> bool:
    """Return True if the pattern occurs in the text. `blocking` blocks the event loop, for loops
    with a simulated clock. Raises `GraderError` if the search times out or fails."""
    if _SEARCH is None:
        return search(pattern, text) == 1.0
    arguments = pickle.dumps({"pattern": pattern, "text": text})
    job = RewardJob(_SEARCH, arguments, "regex", "", SECONDS)
    try:
        result = POOL.grade(job) if blocking else await call_in_thread(lambda: POOL.grade(job))
        return result.value == 1.0
    except TimeoutError:
        raise GraderError(
            f"searching for the pattern {pattern!r:.60} took more than {SECONDS:g} s in "
            f"{len(text):,} characters; avoid nested quantifiers, such as (a+)+"
        ) from None
    except (ImportError, OSError) as error:
        raise GraderError(f"cannot start the search process: {error}") from error
    except AnswerError as error:
        raise GraderError(str(error)) from error
