"""Whether a pattern is in a text, searched in a process that can be ended.

A regular expression that backtracks for hours lets go of nothing: no timeout, no Ctrl-C and no
other thread comes through. `worker.py` has the process, and imports this module alone for it.
"""

from __future__ import annotations

import pickle
import re

from tutelage.errors import AnswerError, GraderError
from tutelage.rewards.worker import POOL, RewardJob, RewardLocation
from tutelage.tools.execute import call_in_thread

SECONDS = 5.0
"""For one search; honest ones take milliseconds."""


def search(pattern: str, text: str) -> float:
    """1 where the pattern is found, dots and line ends included, else 0."""
    return float(re.search(pattern, text, re.DOTALL) is not None)


_SEARCH = RewardLocation.of(search)
"""None on a system where no process can be had."""


async def found(pattern: str, text: str, *, at_once: bool = False) -> bool:
    """Whether a pattern is found; `at_once` holds up the event loop meanwhile, as one whose clock
    jumps needs. Raises `GraderError` where it takes too long."""
    if _SEARCH is None:
        return search(pattern, text) == 1.0
    arguments = pickle.dumps({"pattern": pattern, "text": text})
    job = RewardJob(_SEARCH, arguments, "regex", "", SECONDS)
    try:
        graded = POOL.grade(job) if at_once else await call_in_thread(lambda: POOL.grade(job))
        return graded.value == 1.0
    except TimeoutError:
        raise GraderError(
            f"searching for the pattern {pattern!r:.60} took more than {SECONDS:g} s in "
            f"{len(text):,} characters; avoid nested quantifiers, such as (a+)+"
        ) from None
    except (ImportError, OSError) as error:
        raise GraderError(f"cannot start the search process: {error}") from error
    except AnswerError as error:
        raise GraderError(str(error)) from error
