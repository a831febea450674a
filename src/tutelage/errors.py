"""The exceptions of Tutelage, as one tree.

A *user error* (`TutelageError` and its subclasses) can be fixed by the user: the command line
prints its message without a traceback and exits with its `exit_code`. Any other exception is a bug
and prints a traceback. A failure inside one rollout is neither: it is recorded as data with a
`FailureCause` (see `types.py`), and never raised through the run.

    TutelageError                 anything a user can fix                        exit 2
    ├── ConfigError               an invalid key or value, or contradictory keys
    │   └── ConstraintError       a reply that cannot be enforced: schema, tool choice
    ├── DataError                 a dataset row, with file, line and field
    ├── RewardError               a reward that is not a number, or cannot grade a task
    │   ├── AnswerError           a grader that raised on the model's output: a wrong answer
    │   └── GraderError           a grader that could not run: no judge, no module (infrastructure)
    │       └── RewardTimeoutError  a reward that did not return in time
    ├── EnvironmentFailedError  an environment that raised, hung or died          (infrastructure)
    ├── ToolDefinitionError       a tool whose signature or docstring gives no schema
    ├── ModelError                a model folder that cannot be loaded or has no usable template
    ├── StoreError                the store cannot be opened, written or read
    ├── RunError                  a run folder that is missing, incomplete or taken
    │   └── RunBusyError          a run in use by another process
    ├── MissingExtraError         a package that is not installed or available  exit 69
    ├── EngineError               the engine refused a request                    (infrastructure)
    │   ├── ContextOverflowError  prompt and answer do not fit the context
    │   ├── OutOfMemoryError      a prompt needs more memory than is free
    │   ├── RemoteError           a server answered a request with an error status
    │   ├── MalformedReplyError   a successful response that is not a valid reply
    │   └── UnreachableError      no server answered: refused, not resolved, or too late
    ├── SyncError                 a server's weights differ from the trainer's  exit 1
    └── FailureBudgetError        too many rollouts failed: nothing left to learn from   exit 1
        └── ServersLostError      all sampling servers are lost (an EngineError too)  exit 1

To add one: subclass the nearest entry above, give it a docstring of one sentence, keep it picklable
(arguments in `args`), and add it to this tree. Messages say what happened, show the value with
`!r`, and end with the fix: the exact flag, key or extra.
"""

from __future__ import annotations

from typing import Literal


class TutelageError(Exception):
    """Base class of errors that a user can fix; printed without a traceback."""

    exit_code = 2


class ConfigError(TutelageError, ValueError):
    """Raised for an unknown config key, an invalid value, or contradictory keys."""


SCHEMA_FIELD = "response_format"
"""Name of the request field of a schema in the OpenAI API."""


class ConstraintError(ConfigError):
    """Raised for a reply constraint that cannot be enforced; `field` is its request field."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class DataError(TutelageError, ValueError):
    """Raised for a dataset that cannot be read; the message has the file, line and field."""


class RewardError(TutelageError, ValueError):
    """Raised for a reward that is not a number, or a reward function that cannot grade a task. Ends
    a training run."""


class AnswerError(RewardError):
    """Raised if a grader fails on the model's output; the answer counts as wrong."""


class GraderError(RewardError):
    """Raised if a grader cannot run: an unreachable judge, a missing module, no sandbox. Inside
    a rollout this is an infrastructure failure: it has no reward and is excluded from all
    statistics."""


class RewardTimeoutError(GraderError):
    """Raised if a reward function does not return in time; it does not count against the answer."""


class EnvironmentFailedError(TutelageError, RuntimeError):
    """Raised if an environment raises, hangs, dies, or returns an invalid value. Inside a rollout
    this is an infrastructure failure."""


class ToolDefinitionError(TutelageError, TypeError):
    """Raised for a tool whose signature cannot be converted to a JSON schema."""


class ModelError(TutelageError, ValueError):
    """Raised for a model that cannot be loaded, saved, or used to render a prompt."""


class StoreError(TutelageError, OSError):
    """Raised for a store that cannot be opened, read or written, or an unwritable model folder."""


class RunError(TutelageError, OSError):
    """Raised for a run folder that is missing, incomplete or already in use."""


class RunBusyError(RunError):
    """Raised for a run that is in use by another process."""


class MissingExtraError(TutelageError, ImportError):
    """Raised for a package that is not installed, or a failed download; the message has the extra
    or the command to install it. The exit code is the one of `sysexits.h`, at which `make train`
    continues."""

    exit_code = 69


class EngineError(TutelageError, RuntimeError):
    """Raised for a request that the engine refused or lost. Inside a rollout this is an
    infrastructure failure."""


class ContextOverflowError(EngineError):
    """Raised if prompt and answer together exceed the model's context length."""


class OutOfMemoryError(EngineError):
    """Raised for a prompt that needs more memory than is free."""


class RemoteError(EngineError):
    """Raised for an error response of a server; `status` is its HTTP status."""

    def __init__(self, message: str, status: int = 500) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after: float | None = None
        """Seconds to wait before a retry, if the server states them."""
        self.final = False
        """True if retries failed, or the server stated that a retry is pointless."""
        self.param: str | None = None
        """The request field named in the server's error."""
        self.code: str | None = None
        """The error code of the server."""


class MalformedReplyError(EngineError):
    """Raised for a successful response of a server that is not a valid reply."""


class UnreachableError(EngineError):
    """Raised if no server answers at an address, after all retries."""

    def __init__(
        self, message: str, reason: Literal["connect", "timeout", "broken"] = "broken"
    ) -> None:
        """Create the error; `reason` is `connect` if no server received the request."""
        super().__init__(message)
        self.reason = reason


class FailureBudgetError(TutelageError, RuntimeError):
    """Raised if too many rollouts fail, so that no data is left to train on."""

    exit_code = 1


class SyncError(TutelageError, RuntimeError):
    """Raised if a server's weights differ from the trainer's after a completed update."""

    exit_code = 1


class ServersLostError(FailureBudgetError, EngineError):
    """Raised if all sampling servers are lost and none returns in time. The run ends and can be
    resumed."""


def pluralize(count: int, noun: str) -> str:
    """Format a number with its noun, such as `1 node` or `2,000 nodes`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
