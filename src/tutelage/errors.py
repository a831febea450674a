"""Every exception that Tutelage raises on purpose, in one tree that reads as a table of contents.

Two kinds of trouble are kept apart. A *user error* (`TutelageError` and below) is something the
person at the keyboard can fix: the command line prints its message without a traceback and exits
with its `exit_code`. Anything else is a bug and prints a traceback. What goes wrong inside one
rollout is neither: it is data, recorded with a `FailureCause` (see `types.py`), never raised
through the run.

    TutelageError                 anything a user can fix                        exit 2
    ├── ConfigError               a key, a value, or two keys that contradict
    │   └── ConstraintError       a reply that cannot be enforced: schema, tool choice
    ├── DataError                 a dataset row, with file, line and field
    ├── RewardError               a reward that is no number, or a task that it cannot grade
    │   ├── AnswerError           a grader that raised on what the model wrote: a wrong answer
    │   └── GraderError           a grader that could not run: no judge, no module (infrastructure)
    │       └── RewardTimeoutError  one that had not answered in time
    ├── EnvironmentFailedError  an environment that raised, hung or died          (infrastructure)
    ├── ToolDefinitionError       a tool whose signature or docstring gives no schema
    ├── ModelError                a model folder that cannot be loaded or has no usable template
    ├── StoreError                the store cannot be opened, written or read
    ├── RunError                  a run folder that is missing, incomplete or taken
    │   └── RunBusyError          one that another process is working on
    ├── MissingExtraError         a package that is not installed or cannot be had  exit 69
    ├── EngineError               the engine refused a request                    (infrastructure)
    │   ├── ContextOverflowError  prompt and answer do not fit the context
    │   ├── OutOfMemoryError      a prompt needs more memory than is free
    │   ├── RemoteError           a server answered a request with an error status
    │   ├── MalformedReplyError   a server answered with success, and what is no reply
    │   └── UnreachableError      no server answered: refused, not resolved, or too late
    ├── SyncError                 a server's weights are not those of the trainer  exit 1
    └── FailureBudgetError        nothing left to learn from: too many rollouts failed   exit 1
        └── ServersLostError      no server came back that samples (an EngineError too)  exit 1

To add one: subclass the nearest entry above, give it one sentence, keep it picklable (arguments in
`args`), add it to the tree here. Messages say what happened, show the value with `!r`, and end with
how to fix it: the exact flag, key or extra.
"""

from __future__ import annotations

from typing import Literal


class TutelageError(Exception):
    """Anything a user can fix; printed without a traceback."""

    exit_code = 2


class ConfigError(TutelageError, ValueError):
    """A key that does not exist, a value that does not fit, or keys that contradict each other."""


SCHEMA_FIELD = "response_format"
"""The field of a schema in OpenAI's words, in which engines speak of it."""


class ConstraintError(ConfigError):
    """A constraint on a reply that cannot be enforced; `field` is the request's field to fix."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message, field)
        self.field = field

    def __str__(self) -> str:
        return str(self.args[0])


class DataError(TutelageError, ValueError):
    """A dataset that cannot be read; the message names the file, the line and the field."""


class RewardError(TutelageError, ValueError):
    """A reward that is no number, or a reward function that cannot grade a task: both are defects,
    and a training run stops at them."""


class AnswerError(RewardError):
    """A grader that raised on what the model wrote; the answer counts as wrong."""


class GraderError(RewardError):
    """A grader that could not run: a judge that is down, a missing module, no sandbox. Inside a
    rollout this is an infrastructure failure: it has no reward and stays out of all statistics."""


class RewardTimeoutError(GraderError):
    """A reward that had not answered in time; it says nothing about the answer."""


class EnvironmentFailedError(TutelageError, RuntimeError):
    """An environment that raised, hung, died, or returned what cannot be used. Inside a rollout
    this is an infrastructure failure."""


class ToolDefinitionError(TutelageError, TypeError):
    """A tool from whose signature no JSON schema can be made."""


class ModelError(TutelageError, ValueError):
    """A model that cannot be loaded, saved or rendered for."""


class StoreError(TutelageError, OSError):
    """The store cannot be opened, written or read, or a model's folder written."""


class RunError(TutelageError, OSError):
    """A run folder that is missing, incomplete or taken."""


class RunBusyError(RunError):
    """A run that another process is working on; this process cannot continue it."""


class MissingExtraError(TutelageError, ImportError):
    """A package is not installed, or its download failed; the message names the extra or the way to
    get it. Its exit code is what `sysexits.h` has for that: `make train` goes on by it."""

    exit_code = 69


class EngineError(TutelageError, RuntimeError):
    """The engine refused or lost a request. Inside a rollout this is an infrastructure failure."""


class ContextOverflowError(EngineError):
    """Prompt and answer together do not fit the model's context."""


class OutOfMemoryError(EngineError):
    """A prompt needs more memory than is free."""


class RemoteError(EngineError):
    """A server answered a request with an error; `status` is its HTTP status."""

    def __init__(self, message: str, status: int = 500) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after: float | None = None
        """Seconds that the server asks to wait, where it said so."""
        self.final = False
        """Whether asking again was tried, or the server said that it is pointless."""
        self.param: str | None = None
        """The field that the server blames."""
        self.code: str | None = None
        """The server's own word for the error."""


class MalformedReplyError(EngineError):
    """A server answered a request with success, and with what is no reply."""


class UnreachableError(EngineError):
    """No server answered at an address, however often it was asked."""

    def __init__(
        self, message: str, reason: Literal["connect", "timeout", "broken"] = "broken"
    ) -> None:
        """`reason` is `connect` where no server has got the request."""
        super().__init__(message)
        self.reason = reason


class FailureBudgetError(TutelageError, RuntimeError):
    """Too many rollouts failed: nothing is left to learn from."""

    exit_code = 1


class SyncError(TutelageError, RuntimeError):
    """A server has other weights than the trainer after an update that it reported as done."""

    exit_code = 1


class ServersLostError(FailureBudgetError, EngineError):
    """No server that samples came back in time. It ends a run, which can be continued."""


def counted(number: int, noun: str) -> str:
    """`1 node`, `2,000 nodes`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
