"""Symbolic equality in a helper process that can be killed.

Sympy can be made to think for hours and to fill the memory by a line of text, and a thread cannot
be stopped; a process can. This module is both ends: `SymbolicWorker` starts the helper when it is
first asked, gives it a time limit for each question and starts it anew after it was killed; `main`
is the helper. Only there is sympy imported. Text becomes sympy nodes through the calculator's
parser and a closed list of functions: `parse_expr`, which runs Python, is never used.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from typing import Any

from tutelage.errors import GraderError
from tutelage.tools.expression import ExpressionError, parse

QUESTION_SECONDS = 0.7
START_SECONDS = 60.0
"""For importing sympy, once; not part of a question's time."""
MEMORY_BYTES = 1 << 30
ORPHAN_SECONDS = 30
_READY = "ready"
_TRIES = 2
_VERDICTS: Mapping[str | None, bool | None] = {"true": True, "false": False, "null": None}
_NOT_STARTED = (
    "the helper process for symbolic maths did not start; "
    "run `python -m tutelage.rewards.symbolic` to see why"
)


class SymbolicWorker:
    """Asks the helper whether two expressions are equal. Safe to use from several threads."""

    def __init__(self, seconds: float = QUESTION_SECONDS) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._owner = 0
        self._finalizer: weakref.finalize[..., SymbolicWorker] | None = None

    def equal(self, first: str, second: str) -> bool | None:
        """Whether the expressions are equal; None when time or memory ran out.

        Raises `GraderError` when the helper cannot be started.
        """
        with self._lock:
            for _ in range(_TRIES):
                reply, late = _exchange(self._started(), json.dumps([first, second]), self._seconds)
                if reply in _VERDICTS:
                    return _VERDICTS[reply]
                self._end()
                if late:
                    break  # else somebody else ended it, for memory say, and it is asked again
            return None

    def close(self) -> None:
        """End the helper; the next question starts another."""
        with self._lock:
            self._end()

    def _started(self) -> subprocess.Popen[str]:
        # A forked child must not read the answers to its parent's questions.
        if self._process is not None and self._owner == os.getpid():
            if self._process.poll() is None:
                return self._process
            self._end()
        one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tutelage.rewards.symbolic"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env={**os.environ, **one_thread},
            )
        except OSError as error:
            raise GraderError(f"{_NOT_STARTED}: {error}") from error
        self._process, self._owner = process, os.getpid()
        self._finalizer = weakref.finalize(self, _kill, process, self._owner)
        if _exchange(process, "", START_SECONDS)[0] != _READY:
            self._end()
            raise GraderError(_NOT_STARTED)
        return process

    def _end(self) -> None:
        if self._finalizer is not None:
            self._finalizer()
        self._process = self._finalizer = None


def _exchange(process: subprocess.Popen[str], line: str, seconds: float) -> tuple[str | None, bool]:
    """Send a line and read one; None when the helper died or had to be killed for its time, and
    whether that was so."""
    if process.stdin is None or process.stdout is None:
        return None, False
    late = threading.Event()

    def kill() -> None:
        late.set()
        process.kill()

    timer = threading.Timer(seconds, kill)
    timer.daemon = True
    timer.start()
    try:
        process.stdin.write(line + "\n")
        process.stdin.flush()
        reply = process.stdout.readline().strip()
    except OSError:
        reply = ""
    finally:
        timer.cancel()
        # Without this the timer could still kill the helper during the next question.
        timer.join()
    return (reply if reply and not late.is_set() else None), late.is_set()


def _kill(process: subprocess.Popen[str], owner: int) -> None:
    if os.getpid() != owner:
        return  # a forked child leaves its parent's helper alone
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except OSError:
                # Unsent bytes to a dead helper; there is nothing to save.
                continue


class SympyAlgebra:
    """Sympy nodes; letters are symbols, `pi` and `e` constants."""

    implicit_product = True

    def __init__(self) -> None:
        import sympy

        self._sympy: Any = sympy
        self._functions: dict[str, Any] = {
            "sqrt": sympy.sqrt,
            "exp": sympy.exp,
            "log": sympy.log,
            "ln": sympy.log,
            "abs": sympy.Abs,
            "sin": sympy.sin,
            "cos": sympy.cos,
            "tan": sympy.tan,
        }
        self.functions = frozenset(self._functions)

    def number(self, text: str) -> Any:
        """An exact rational."""
        return self._sympy.Rational(text)

    def name(self, name: str) -> Any:
        """A constant or a symbol."""
        constants = {"pi": self._sympy.pi, "e": self._sympy.E}
        return constants.get(name) or self._sympy.Symbol(name)

    def call(self, name: str, arguments: list[Any]) -> Any:
        """One of `functions`."""
        return self._functions[name](*arguments)

    def negative(self, value: Any) -> Any:
        """Minus `value`."""
        return -value

    def binary(self, operator: str, left: Any, right: Any) -> Any:
        """+ - * / and **."""
        match operator:
            case "+":
                return left + right
            case "-":
                return left - right
            case "*":
                return left * right
            case "/":
                return left / right
            case "**":
                return left**right
            case _:
                raise ExpressionError(f"{operator!r} has no meaning in an answer")

    def equal(self, first: str, second: str) -> bool:
        """Whether the difference of two expressions simplifies to zero."""
        difference = parse(first, self) - parse(second, self)
        return bool(self._sympy.simplify(difference) == 0)


def main() -> None:
    """The helper: a line with two expressions in, a line with true, false or null out."""
    algebra = SympyAlgebra()
    algebra.equal("(x + 1)^2", "x^2 + 2x + 1")  # loads what simplify loads when it first runs
    _limit_memory()
    # Ctrl-C is for the parent, which may still have answers to grade before it stops.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdin.readline()
    _say(_READY)
    for line in sys.stdin:
        # Should the parent be killed during a question, this process ends soon after.
        _alarm(ORPHAN_SECONDS)
        _say(json.dumps(_verdict(algebra, *json.loads(line))))
        _alarm(0)


def _verdict(algebra: SympyAlgebra, first: str, second: str) -> bool | None:
    try:
        return algebra.equal(first, second)
    except (ExpressionError, ArithmeticError, TypeError, ValueError, AttributeError):
        return False
    except Exception:  # no memory, too deep, or what sympy raises of its own
        return None


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _alarm(seconds: int) -> None:
    if sys.platform != "win32":
        signal.alarm(seconds)


def _limit_memory() -> None:
    if sys.platform != "win32":
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        soft = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


if __name__ == "__main__":
    main()
