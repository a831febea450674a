"""Whose fault it is that a grader raised: the answer's, or the grader's own.

A model writes what it likes, so a grader that raises on its text (`int("twelve")`, a bracket that
is never closed) says that the answer is wrong: `AnswerError`, which earns the failure reward and is
counted. A grader that could not do its work at all says nothing about the answer: `GraderError`,
an infrastructure failure, which is left out. What tells them apart is the exception: `OWN_TROUBLE`
below is the whole rule, and a grader that knows better raises one of the two itself. A third kind,
`RewardError`, is a defect (a reward that is no number): a training run stops at it.
"""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

from tutelage.errors import AnswerError, GraderError, RewardError, TutelageError

OWN_TROUBLE: tuple[type[BaseException], ...] = (TutelageError, ImportError, OSError)
"""Exceptions that say that the grader could not run: a service or file that cannot be reached (time
outs among them), a module that is missing, and what this package refuses. Also what was raised from
one of them, what carries the status of a server's answer, and a name that the grader's own code
does not have. Everything else is about the text."""

_PACKAGE = str(Path(__file__).resolve().parents[1])
_LIBRARIES = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
LONGEST = 500
"""Characters of an exception that a message shows: it may quote all that the model wrote."""


def failure_of(error: BaseException, name: str, task_id: str) -> RewardError:
    """What a reward's exception means for its rollout, naming reward and task."""
    before = " at " if _place(error) else ": "
    text = f"reward {name!r} failed on task {task_id!r}{before}{exception_text(error)}"
    for told_so in (AnswerError, GraderError, RewardError):
        if isinstance(error, told_so):
            return told_so(text)
    causes: list[BaseException] = []  # the exception and those that it was raised from
    at: BaseException | None = error
    while at is not None and not any(at is known for known in causes):
        causes.append(at)
        at = at.__cause__
    return (GraderError if any(map(_own_trouble, causes)) else AnswerError)(text)


def exception_text(error: BaseException) -> str:
    """`agent.py:15: KeyError: 'question'`: its place in a user's file, its words and notes."""
    try:
        text = str(error)
    except Exception as problem:
        text = f"its message cannot be read ({type(problem).__name__})"
    text = text.encode("utf-8", "backslashreplace").decode()
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]} [...]"
    told = f"{_place(error)}{type(error).__name__}: {text}"
    return "; ".join([told, *getattr(error, "__notes__", ())])


def _place(error: BaseException) -> str:
    """`FILE:LINE: `, the last line of a user's file on the way to the exception."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith(("<", _PACKAGE, *_LIBRARIES))]
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}: " if own else ""


def _own_trouble(error: BaseException) -> bool:
    response = getattr(error, "response", None)
    values = (getattr(error, "status_code", None), getattr(response, "status_code", None))
    # A status is an HTTP client's word for an answer that was no success.
    if isinstance(error, OWN_TROUBLE) or any(isinstance(status, int) for status in values):
        return True
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    # Text that a grader evaluates is not its own code.
    evaluated = at is not None and at.tb_frame.f_code.co_filename == "<string>"
    return isinstance(error, NameError) and not evaluated
