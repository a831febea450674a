"""A sandbox as the rest of the package sees it: run code, get its output, never an exception.

`Sandbox` is one interpreter with its state, for one rollout: it starts when code first runs, and
after code that ran too long or ended the process it starts again, which the output says. The
process that starts interpreters is `server.py`, one for each of our processes, started when first
needed. What confines them is `confine.py`; the tier is chosen here, by trying.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import functools
import os
import socket
import sys
import threading
from dataclasses import asdict, dataclass, replace
from typing import Any

from tutelage.bounded import parse_json
from tutelage.errors import ConfigError
from tutelage.tools.sandbox.channel import HEADER, packed
from tutelage.tools.sandbox.limits import MAX_VALUE, TIERS, SandboxLimits, Tier
from tutelage.tools.sandbox.spawn import OPEN_SECONDS, SandboxError, running_server

_CLOSE_SECONDS = 5.0
_ENDED = ("timeout", "died")
_STARTS = 3
"""How often an interpreter is started where the server of sandboxes is lost at it."""
_PAUSE = 0.05
_DEEPEST = 2
"""Of a reply, which is one object of texts."""
_ESCAPED = 12
"""Bytes of JSON for a character, at most."""
_ROOM = 4096
"""Characters of a reply beside its output and its value."""


class _ServerGoneError(SandboxError):
    """The process that starts sandboxes was lost; another one may start them."""


@dataclass(frozen=True, slots=True)
class CodeResult:
    """The result of one piece of code."""

    output: str
    """What it printed, with its traceback where it raised."""
    error: str | None = None
    """None; the name of the exception; `timeout`; or `died` when it ended the process."""
    value: str | None = None
    """The value of `Sandbox.evaluate` as Python writes it; None when it is no plain data."""

    @property
    def ended(self) -> bool:
        """Whether the interpreter, and its state, are gone."""
        return self.error in _ENDED

    def plain_value(self) -> Any:
        """The value that `Sandbox.evaluate` found. Raises `ValueError` when there is none."""
        if self.value is None:
            raise ValueError("no result value")
        if self.value == "set()":
            return set()
        try:
            return ast.literal_eval(self.value)
        except (SyntaxError, MemoryError, RecursionError, TypeError) as error:
            raise ValueError(f"the result is not a Python literal: {error}") from error


class Sandbox:
    """An interpreter with state; an async context manager that always ends it."""

    def __init__(self, limits: SandboxLimits | None = None, *, tier: Tier | None = None) -> None:
        """Nothing starts yet. Without `tier`, the strongest that works here.

        Raises `ConfigError` when that would be no protection: `tier="none"` must be asked for.
        """
        self.limits = limits or SandboxLimits()
        self.tier: Tier = tier if tier is not None else usable_tier()
        self._lock = asyncio.Lock()
        self._session: _Session | None = None

    async def __aenter__(self) -> Sandbox:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def run(self, code: str) -> CodeResult:
        """Run code after what ran before; the value of a last line that is one is shown.

        Calls at the same time take turns, in the order in which they were made. Raises
        `SandboxError` when no interpreter can be started.
        """
        return await self._ask({"code": code, "op": "cell"})

    async def run_program(
        self, code: str, *, stdin: str = "", name: str = "__main__"
    ) -> CodeResult:
        """Run code as a module of that name, without what ran before."""
        return await self._ask({"code": code, "op": "program", "stdin": stdin, "fresh": name})

    async def evaluate(self, expression: str) -> CodeResult:
        """The value of an expression, if it is plain data: numbers, text, containers of them."""
        return await self._ask({"code": expression, "op": "value"})

    async def close(self) -> None:
        """End the interpreter and every process that it started; returns when they are gone."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _ask(self, message: dict[str, Any]) -> CodeResult:
        async with self._lock:
            if self._session is None:
                self._session = await _Session.open(self.tier, self.limits)
            session = self._session
            try:
                reply = await asyncio.wait_for(session.ask(message), self.limits.seconds)
            except TimeoutError:
                await self.close()
                text = f"Error: it ran longer than {self.limits.seconds:g} seconds and was stopped"
                return CodeResult(f"{text}; all variables are lost\n", "timeout")
            except ValueError as error:
                return CodeResult(f"Error: {error}\n", "ValueError")
            except BaseException:
                # Cancelled halfway: nobody will read the answer.
                await self.close()
                raise
            if reply is None:
                await self.close()
                text = "Error: the interpreter ended (out of memory or disk, or stopped by the code"
                return CodeResult(f"{text}); all variables are lost\n", "died")
            return _read(reply, self.limits)


def _text(value: object) -> str:
    """Text, and nothing else: what the code forged may be anything."""
    return value if isinstance(value, str) else ""


def _read(reply: dict[str, Any], limits: SandboxLimits) -> CodeResult:
    """A reply, which the code may have forged: only text of bounded length comes through.

    What is no character (half a surrogate pair) could be neither stored nor tokenised, so it comes
    out as Python would write it. An exception cannot pass for an interpreter that ended.
    """
    output, error, value = (reply.get(key) for key in ("output", "error", "value"))
    bound = limits.output + 200
    name = None if error is None else _characters(_text(error)[:100]) or "Exception"
    return CodeResult(
        _characters(_text(output)[:bound]),
        f"{name}Exception" if name in _ENDED else name,
        value if isinstance(value, str) and len(value) <= MAX_VALUE else None,
    )


def _characters(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


# ---------------------------------------------------------------- one interpreter


@dataclass(frozen=True, slots=True)
class _Session:
    """One running interpreter: its channel, and the line that keeps it alive."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    lifeline: socket.socket
    longest: int

    @classmethod
    async def open(cls, tier: Tier, limits: SandboxLimits) -> _Session:
        """Start an interpreter; once more where the server that starts them was killed."""
        for left in reversed(range(_STARTS)):
            try:
                return await cls._open(tier, limits)
            except _ServerGoneError:
                if not left:
                    raise
                await asyncio.sleep(_PAUSE)  # until its end can be seen
        raise AssertionError("unreachable: the last attempt returns or raises")

    @classmethod
    async def _open(cls, tier: Tier, limits: SandboxLimits) -> _Session:
        server = await asyncio.to_thread(running_server, os.getpid())
        channel, theirs = socket.socketpair()
        lifeline, its_end = socket.socketpair()
        try:
            server.start({"tier": tier, "limits": asdict(limits)}, theirs, its_end)
        except OSError as error:
            for end in (channel, lifeline):
                end.close()
            raise _ServerGoneError(f"the server of sandboxes is gone: {error}") from error
        finally:
            theirs.close()
            its_end.close()
        lifeline.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=channel)
        # The longest reply that an interpreter sends: output and value, as JSON escapes.
        longest = _ESCAPED * (2 * limits.output + MAX_VALUE + _ROOM)
        session = cls(reader, writer, lifeline, longest)
        try:
            first = await asyncio.wait_for(session._receive(), OPEN_SECONDS)
        except TimeoutError:
            await session.close()
            message = f"an interpreter did not start within {OPEN_SECONDS:g} seconds"
            raise SandboxError(message) from None
        except BaseException:
            await session.close()
            raise
        if first is None:
            # Whoever forked it was killed, or it was itself; the server knows its own end by now.
            await session.close()
            raise _ServerGoneError("it ended while it started")
        if "ready" not in first:
            await session.close()
            raise SandboxError(str(first.get("failed", "it ended while it started")))
        return session

    async def ask(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """The reply to a message; None when the interpreter ended."""
        data = packed(message)
        try:
            self.writer.write(data)
            await self.writer.drain()
        except ConnectionError:
            return None
        return await self._receive()

    async def _receive(self) -> dict[str, Any] | None:
        try:
            size = HEADER.unpack(await self.reader.readexactly(HEADER.size))[0]
            if size > self.longest:
                return None
            found = parse_json(await self.reader.readexactly(size), deepest=_DEEPEST)
        except (asyncio.IncompleteReadError, ConnectionError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    async def close(self) -> None:
        """Let go of the line, and wait until the watcher has ended everything."""
        self.writer.close()
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            self.lifeline.shutdown(socket.SHUT_WR)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(loop.sock_recv(self.lifeline, 1), _CLOSE_SECONDS)
        self.lifeline.close()


# ---------------------------------------------------------------- tiers


@functools.cache
def tier_problems() -> dict[Tier, str | None]:
    """Each tier with None when it works here, else with the reason; found by trying, once."""
    values: dict[Tier, str | None] = {}

    def work() -> None:
        for tier in TIERS[:2]:
            values[tier] = asyncio.run(_try(tier))

    # In a thread of its own: whoever asks may be inside an event loop.
    thread = threading.Thread(target=work, name="tutelage-sandbox-probe")
    thread.start()
    thread.join()
    return {**values, "none": None}


async def _try(tier: Tier) -> str | None:
    if sys.platform != "linux":
        return "requires Linux"
    try:
        async with Sandbox(replace(SandboxLimits(), seconds=10.0), tier=tier) as sandbox:
            done = await sandbox.run("6 * 7")
    except (SandboxError, OSError) as error:
        return str(error)
    return None if done.output == "42\n" else f"unexpected output of a test run: {done.output!r}"


def usable_tier(*, allow_unsandboxed: bool = False) -> Tier:
    """The strongest tier that works here.

    Raises `ConfigError` when only `none` is left, unless that is allowed.
    """
    problems = tier_problems()
    for tier in TIERS[:2]:
        if problems[tier] is None:
            return tier
    if allow_unsandboxed:
        return "none"
    reasons = "; ".join(f"{tier}: {problems[tier]}" for tier in TIERS[:2])
    raise ConfigError(
        f"no sandbox works on this machine ({reasons}), so model-written code cannot be run. Use "
        "a machine that allows user namespaces, or accept the risk with "
        "tools.allow_unsandboxed=true (--allow-unsandboxed)"
    )
