"""The sandbox interface: run code and return its output, without raising the code's exceptions.

A `Sandbox` is one interpreter with its state, for one rollout. It starts when code first runs, and
restarts after code that timed out or ended the process, as the output reports. `server.py` is the
process that starts interpreters, one per client process, launched on first use. `confine.py`
confines them; the strongest tier that works is detected here.
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
from tutelage.tools.sandbox.channel import HEADER, encode
from tutelage.tools.sandbox.limits import MAX_VALUE, TIERS, SandboxLimits, Tier
from tutelage.tools.sandbox.spawn import OPEN_SECONDS, SandboxError, get_server

_CLOSE_SECONDS = 5.0
_ENDED = ("timeout", "died")
_STARTS = 3
"""Attempts to start an interpreter if the sandbox server ends meanwhile."""
_PAUSE = 0.05
_DEEPEST = 2
"""Maximum nesting of a reply: one object of strings."""
_ESCAPED = 12
"""Maximum bytes of JSON per character."""
_ROOM = 4096
"""Maximum characters of a reply in addition to its output and value."""


@dataclass(frozen=True, slots=True)
class CodeResult:
    """The result of running code in a sandbox."""

    output: str
    """The printed output, with the traceback of an uncaught exception."""
    error: str | None = None
    """None, the name of the exception, `timeout`, or `died` if the process ended."""
    value: str | None = None
    """The value of `Sandbox.evaluate` as a Python literal; None unless it is plain data."""

    @property
    def ended(self) -> bool:
        """Return True if the interpreter ended and its state is lost."""
        return self.error in _ENDED

    def plain_value(self) -> Any:
        """Return the value computed by `Sandbox.evaluate`. Raises `ValueError` if there is none."""
        if self.value is None:
            raise ValueError("no result value")
        if self.value == "set()":
            return set()
        try:
            return ast.literal_eval(self.value)
        except (SyntaxError, MemoryError, RecursionError, TypeError) as error:
            raise ValueError(f"the result is not a Python literal: {error}") from error


class Sandbox:
    """Isolated Python interpreter with persistent state, ended by `close` or `async with`."""

    def __init__(self, limits: SandboxLimits | None = None, *, tier: Tier | None = None) -> None:
        """Create a sandbox without starting it.

        `tier` defaults to the strongest tier that works. Raises `ConfigError` if none works:
        `tier="none"` must be passed explicitly.
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
        """Run code in the current state and return its output and the value of a final expression.

        Concurrent calls run one after another, in the order of the calls. Raises `SandboxError` if
        no interpreter can be started.
        """
        return await self._execute({"code": code, "op": "cell"})

    async def run_program(
        self, code: str, *, stdin: str = "", name: str = "__main__"
    ) -> CodeResult:
        """Run code as a new module called `name`, without the state of earlier calls."""
        return await self._execute({"code": code, "op": "program", "stdin": stdin, "fresh": name})

    async def evaluate(self, expression: str) -> CodeResult:
        """Evaluate an expression to plain data: numbers, strings, and containers of them."""
        return await self._execute({"code": expression, "op": "value"})

    async def close(self) -> None:
        """End the interpreter and all processes that it started, and wait for them."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _execute(self, message: dict[str, Any]) -> CodeResult:
        async with self._lock:
            if self._session is None:
                self._session = await _Session.open(self.tier, self.limits)
            session = self._session
            try:
                reply = await asyncio.wait_for(session.request(message), self.limits.seconds)
            except TimeoutError:
                await self.close()
                text = f"Error: it ran longer than {self.limits.seconds:g} seconds and was stopped"
                return CodeResult(f"{text}; all variables are lost\n", "timeout")
            except ValueError as error:
                return CodeResult(f"Error: {error}\n", "ValueError")
            except BaseException:
                # Cancelled: the reply will not be read.
                await self.close()
                raise
            if reply is None:
                await self.close()
                text = "Error: the interpreter ended (out of memory or disk, or stopped by the code"
                return CodeResult(f"{text}); all variables are lost\n", "died")
            return _read_reply(reply, self.limits)


def _to_string(value: object) -> str:
    """Return `value` if it is a string, else "", since code in the sandbox may forge replies."""
    return value if isinstance(value, str) else ""


def _read_reply(reply: dict[str, Any], limits: SandboxLimits) -> CodeResult:
    """Convert an untrusted reply of the sandbox to a result with strings of bounded length.

    Lone surrogates, which cannot be stored or tokenised, are escaped. An exception that is called
    `timeout` or `died` is renamed, so that it is not taken for the end of the interpreter.
    """
    output, error, value = (reply.get(key) for key in ("output", "error", "value"))
    bound = limits.output + 200
    name = None if error is None else _escape_surrogates(_to_string(error)[:100]) or "Exception"
    return CodeResult(
        _escape_surrogates(_to_string(output)[:bound]),
        f"{name}Exception" if name in _ENDED else name,
        value if isinstance(value, str) and len(value) <= MAX_VALUE else None,
    )


def _escape_surrogates(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


# ---------------------------------------------------------------- one interpreter


@dataclass(frozen=True, slots=True)
class _Session:
    """One running interpreter, with its message channel and the socket that keeps it alive."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    lifeline: socket.socket
    longest: int

    @classmethod
    async def open(cls, tier: Tier, limits: SandboxLimits) -> _Session:
        """Start an interpreter, with a new sandbox server if necessary. Raises `SandboxError`."""
        for _ in range(_STARTS):
            if (session := await cls._open(tier, limits)) is not None:
                return session
            await asyncio.sleep(_PAUSE)  # until the end of the server is visible
        raise SandboxError("the sandbox server ended, or interpreters end during startup")

    @classmethod
    async def _open(cls, tier: Tier, limits: SandboxLimits) -> _Session | None:
        """Start an interpreter, or return None if the server has ended and must be restarted."""
        server = await asyncio.to_thread(get_server, os.getpid())
        channel, server_channel = socket.socketpair()
        lifeline, server_lifeline = socket.socketpair()
        try:
            server.start({"tier": tier, "limits": asdict(limits)}, server_channel, server_lifeline)
        except OSError:
            for end in (channel, lifeline):
                end.close()
            return None
        finally:
            server_channel.close()
            server_lifeline.close()
        lifeline.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=channel)
        # The longest valid reply: output and value, all as JSON escapes.
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
            # The server or the interpreter was killed; the next attempt checks the server.
            await session.close()
            return None
        if "ready" not in first:
            await session.close()
            raise SandboxError(str(first.get("failed", "the interpreter ended during startup")))
        return session

    async def request(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """Send a message to the interpreter and return its reply, or None if it ended."""
        data = encode(message)
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
            reply = parse_json(await self.reader.readexactly(size), max_depth=_DEEPEST)
        except (asyncio.IncompleteReadError, ConnectionError, ValueError):
            return None
        return reply if isinstance(reply, dict) else None

    async def close(self) -> None:
        """Close the lifeline socket and wait until the watcher has ended all processes."""
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
    """Test each sandbox tier once, and return its error message or None, by tier."""
    values: dict[Tier, str | None] = {}

    def work() -> None:
        for tier in TIERS[:2]:
            values[tier] = asyncio.run(_test_tier(tier))

    # In a new thread, since the caller may be inside an event loop.
    thread = threading.Thread(target=work, name="tutelage-sandbox-probe")
    thread.start()
    thread.join()
    return {**values, "none": None}


async def _test_tier(tier: Tier) -> str | None:
    if sys.platform != "linux":
        return "requires Linux"
    try:
        async with Sandbox(replace(SandboxLimits(), seconds=10.0), tier=tier) as sandbox:
            result = await sandbox.run("6 * 7")
    except (SandboxError, OSError) as error:
        return str(error)
    return None if result.output == "42\n" else f"unexpected test output: {result.output!r}"


def usable_tier(*, allow_unsandboxed: bool = False) -> Tier:
    """Return the strongest sandbox tier that works on this machine.

    Raises `ConfigError` if only `none` does, unless `allow_unsandboxed` is set.
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
