"""Classify the exceptions of graders as faults of the answer or of the grader.

A model may write any text, so a grader that raises on it (`int("twelve")`, an unclosed bracket)
shows that the answer is wrong: `AnswerError`, which earns the failure reward and is counted. A
grader that could not run says nothing about the answer: `GraderError`, an infrastructure failure,
which is left out. The type of the exception decides, by `GRADER_ERRORS` below, unless the grader
raises one of the two itself. A third kind, `RewardError`, is a defect (a reward that is not a
number), which stops a training run.
"""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

from tutelage.errors import AnswerError, GraderError, RewardError, TutelageError

GRADER_ERRORS: tuple[type[BaseException], ...] = (TutelageError, ImportError, OSError)
"""Exceptions of a grader that could not run: an unreachable service or file (including timeouts), a
missing module, and the errors of this package. Exceptions raised from one of these, exceptions with
an HTTP status, and undefined names in the grader's own code count too. All others are caused by the
text of the model."""

_PACKAGE = str(Path(__file__).resolve().parents[1])
_LIBRARIES = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
MAX_ERROR_CHARS = 500
"""Longest text of an exception in a message, because it may quote the whole text of the model."""


def convert_error(error: BaseException, name: str, task_id: str) -> RewardError:
    """Convert an exception of a reward to a `RewardError` with the names of reward and task."""
    separator = " at " if _error_location(error) else ": "
    text = f"reward {name!r} failed on task {task_id!r}{separator}{exception_text(error)}"
    for error_type in (AnswerError, GraderError, RewardError):
        if isinstance(error, error_type):
            return error_type(text)
    causes: list[BaseException] = []  # the exception and its chain of `__cause__`
    current: BaseException | None = error
    while current is not None and not any(current is cause for cause in causes):
        causes.append(current)
        current = current.__cause__
    return (GraderError if any(map(_is_grader_fault, causes)) else AnswerError)(text)


def exception_text(error: BaseException) -> str:
    """Format an exception with its notes and its line in a user's file.

    Example: `agent.py:15: KeyError: 'question'`.
    """
    try:
        text = str(error)
    except Exception as problem:
        text = f"its message cannot be read ({type(problem).__name__})"
    text = text.encode("utf-8", "backslashreplace").decode()
    text = text if len(text) <= MAX_ERROR_CHARS else f"{text[:MAX_ERROR_CHARS]} [...]"
    message = f"{_error_location(error)}{type(error).__name__}: {text}"
    return "; ".join([message, *getattr(error, "__notes__", ())])


def _error_location(error: BaseException) -> str:
    """Return `FILE:LINE: ` of the last traceback frame in a user's file, or an empty text."""
    frames = traceback.extract_tb(error.__traceback__)
    frames = [f for f in frames if not f.filename.startswith(("<", _PACKAGE, *_LIBRARIES))]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}: " if frames else ""


def _is_grader_fault(error: BaseException) -> bool:
    response = getattr(error, "response", None)
    values = (getattr(error, "status_code", None), getattr(response, "status_code", None))
    # HTTP clients put a status on the exception of a failed response.
    if isinstance(error, GRADER_ERRORS) or any(isinstance(status, int) for status in values):
        return True
    current = error.__traceback__
    while current is not None and current.tb_next is not None:
        current = current.tb_next
    # A name in text that the grader evaluates is not an error in its own code.
    evaluated = current is not None and current.tb_frame.f_code.co_filename == "<string>"
    return isinstance(error, NameError) and not evaluated
