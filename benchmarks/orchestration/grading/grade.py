"""Was a request carried out? Judged by the end state: files, rows, and what the answer says.

`grade` takes a filled request, the state of its folder before and after, and the final answer, and
finds the request's grader: `changes.py` has those of requests that change the folder, `answers.py`
the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.orchestration.grading import answers, changes
from benchmarks.orchestration.grading.case import Case, CaseGrader
from benchmarks.orchestration.grading.requests import FilledRequest
from benchmarks.orchestration.grading.state import FolderState

GRADERS: Mapping[str, CaseGrader] = {**changes.GRADERS, **answers.GRADERS}
"""By the id of the request."""


@dataclass(frozen=True, slots=True)
class EndState:
    """Right or wrong, and why it is wrong."""

    right: bool
    fault: str = ""


def grade(
    filled: FilledRequest, before: FolderState, after: FolderState, answer: str = ""
) -> EndState:
    """Whether the end state is the one that was asked for."""
    case = Case(filled.folder, filled.names, before, after, answer, filled.sentence or "")
    fault = GRADERS[filled.request.id](case)
    return EndState(not fault, fault)
