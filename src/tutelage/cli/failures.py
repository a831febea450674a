"""Error messages, streams and exit codes of the command line.

A user's mistake is one line on the error stream without a traceback; a bug is a traceback with a
request to report it. Exit codes: 2 for an error of the user, 69 for a missing package (see
`errors.py`), 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP, 141 for a closed output pipe, 1 for a
bug. `app.py` wraps every verb in `report_errors`.
"""

from __future__ import annotations

import errno
import functools
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

import typer

from tutelage.cli.console import discard_stream, escape
from tutelage.errors import MissingExtraError, TutelageError
from tutelage.runs.launched import is_nonzero_rank
from tutelage.runs.signals import exit_code

PIPE_CLOSED = 141
"""Exit code after the reader of the output has closed it, as in shells."""
BUG = 1
"""Exit code of an error that a user cannot fix."""

PLAIN_TEXT: Mapping[str, Any] = {
    "add_completion": False,
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
}
"""Settings of typer: help and usage errors as plain text, and no formatting of exceptions."""

_EXTRA_TRAIN = frozenset(
    {"torch", "transformers", "tokenizers", "safetensors", "gguf", "llguidance", "matplotlib"}
)
_BARRED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENOTDIR})
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

P = ParamSpec("P")
R = TypeVar("R")


def report_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Wrap a command so that errors are printed and converted into exit codes."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            done = command(*args, **kwargs)
            sys.stdout.flush()  # here, a closed pipe or a full disk can still be told
            return done
        except (typer.Exit, typer.Abort, typer.BadParameter):
            raise
        except KeyboardInterrupt as stopped:
            notes = " ".join(getattr(stopped, "__notes__", ())) or "The same command begins again."
            reason = stop_reason(stopped)
            if reason or not is_nonzero_rank():
                warn(f"Stopped. {reason}{notes}")
            raise typer.Exit(exit_code(stopped)) from None
        except BrokenPipeError:
            discard_stream(sys.stdout)
            raise typer.Exit(PIPE_CLOSED) from None
        except Exception as error:
            message, code = format_error(error), getattr(error, "exit_code", 2)
            if message is None:  # the traceback carries the error's notes itself
                lines, code = "".join(traceback.format_exception(error)), BUG
                message = f"{lines}\nThis is a bug in Tutelage. Please report the lines above."
            elif isinstance(error, ModuleNotFoundError):
                code = MissingExtraError.exit_code
            if isinstance(error, OSError) and error.errno in _NO_ROOM:
                discard_stream(sys.stdout)
            warn(message)
            raise typer.Exit(code) from error

    return run


def stop_reason(interrupt: KeyboardInterrupt) -> str:
    """Return the reason for an interruption as a sentence; empty if the user caused it."""
    reason = getattr(interrupt, "reason", "")
    return f"{reason} " if reason else ""


def format_error(error: Exception) -> str | None:
    """Return the message of an error that a user can fix; None for a bug."""
    if isinstance(error, TutelageError):
        message = str(error)
    elif isinstance(error, ModuleNotFoundError):
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRA_TRAIN:
            return None
        message = f"this command needs {package}, which is not installed. Install it with: "
        message += "pip install 'tutelage[train]'"
    elif isinstance(error, OSError) and error.errno in _BARRED and error.filename is not None:
        message = f"cannot open {error.filename!r}: {error.strerror}. Make it accessible, or "
        message += "choose another path."
    elif isinstance(error, OSError) and error.errno in _NO_ROOM:
        target = "the output" if error.filename is None else repr(error.filename)
        message = f"cannot write {target}: {error.strerror}. Free some space and try again."
    else:
        return None
    return "\n".join([f"Error: {message}", *getattr(error, "__notes__", ())])


def warn(text: str) -> None:
    """Print a message to the error stream; ignore a closed stream."""
    try:
        typer.echo(escape(text), err=True)
    except OSError:
        discard_stream(sys.stderr)
