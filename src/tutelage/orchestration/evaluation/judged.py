"""How many workflows and executions a rate is of, and what became of the others.

`statistics/outcome.py` adds up; here is what a workflow tells it. Needs no torch, so that tables of
a stored result are shown without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tutelage.statistics.intervals import LEAST, has_interval

DEADLINE = "deadline"
"""Why a workflow or an execution failed that its deadline ended."""
UNSERVED = "unserved"
"""Why an execution was lost: at some subtask no worker's server gave an answer."""
WRONG_PLAN = "wrong_plan"
"""Why an execution failed all of whose nodes succeeded: it was not what was asked for."""


NO_INTERVAL = (
    f"Where fewer than {LEAST} independent queries, or groups of them, were tested, or all values "
    "are equal, there is no interval and no verdict."
)


def interval_note(rows: Iterable[Mapping[str, Any]], *keys: str) -> str:
    """What to say of rows whose intervals, from `keylow` to `keyhigh`, some lack; else nothing."""
    ends = ((row[f"{key}low"], row[f"{key}high"]) for row in rows for key in keys)
    return "" if all(has_interval(*each) for each in ends) else NO_INTERVAL


def workflow_words(rows: Sequence[Mapping[str, Any]]) -> str:
    """How many workflows each row of a table of routers is of; `late` is one of its columns."""
    sizes = {row.get("workflows") for row in rows}
    size = sizes.pop() if len(sizes) == 1 else None
    if size is None:
        return "Test workflows, run once."  # results of older versions do not tell
    late = "; late: ended by their deadline" if any(row["late"] for row in rows) else ""
    return f"{size} test workflows, run once by each router, all judged{late}."
