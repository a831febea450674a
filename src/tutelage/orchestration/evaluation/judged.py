"""How many workflows and executions a rate is of, and what became of the others.

`statistics/outcome.py` adds up; here is what a workflow tells it. Needs no torch, so that tables of
a stored result are shown without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

DEADLINE = "deadline"
"""Why a workflow or an execution failed that its deadline ended."""
UNSERVED = "unserved"
"""Why an execution was lost: at some subtask no worker's server gave an answer."""
WRONG_PLAN = "wrong_plan"
"""Why an execution failed all of whose nodes succeeded: it was not what was asked for."""


def workflow_words(rows: Sequence[Mapping[str, Any]]) -> str:
    """How many workflows each row of a table of routers is of; `late` is one of its columns."""
    sizes = {row.get("workflows") for row in rows}
    size = sizes.pop() if len(sizes) == 1 else None
    if size is None:
        return "Test workflows, run once."  # results of older versions do not tell
    late = "; late: ended by their deadline" if any(row["late"] for row in rows) else ""
    return f"{size} test workflows, run once by each router, all judged{late}."
