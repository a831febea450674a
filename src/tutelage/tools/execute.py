"""Run the tool calls of one assistant turn in parallel, with a time limit and without raising.

Every call becomes a `ToolResult`: the text that the model observes and, after a failure, its kind.
So one broken call cannot end a rollout, and metrics can separate a model's mistakes from a tool's.
Each synchronous tool runs in a new thread (a shared pool would be exhausted by tools that hang, and
would keep the process from exiting). `tutelage.rewards` runs rewards with `call_safely` too.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar, cast

from pydantic_core import PydanticSerializationError, to_jsonable_python

from tutelage.tools.loading import hint
from tutelage.tools.schema import ArgumentError
from tutelage.tools.tool import DEFAULT_MAX_CHARS, Tool, ToolError, ToolTimeoutError
from tutelage.types import ToolCall, ToolResult

GRACE_SECONDS = 1.0
"""Seconds that a cancelled task may take to clean up before it is abandoned."""
_LISTED_TOOLS = 8

ToolFailure = Literal["invalid_arguments", "raised", "timeout", "bad_result"]
"""Kinds of failure of a call to an existing tool."""
T = TypeVar("T")


class ToolOutcome(NamedTuple):
    """The result of one call to a known tool."""

    text: str
    """The full result, or the error message."""
    failure: ToolFailure | None = None
    late: bool = False
    """True if the call failed but its work may still have been done."""


async def execute_tool_calls(
    calls: Sequence[ToolCall], tools: Mapping[str, Tool]
) -> list[ToolResult]:
    """Run all tool calls concurrently and return their results in the order of `calls`.

    A failed call has `error` set to unknown_tool, invalid_arguments, raised, timeout or bad_result,
    and a `text` that begins with "Error:". Raises nothing but `asyncio.CancelledError`.
    """
    return list(await asyncio.gather(*(_execute(call, tools) for call in calls)))


async def _execute(call: ToolCall, tools: Mapping[str, Tool]) -> ToolResult:
    started, start = time.time(), time.perf_counter()
    tool = tools.get(call.name)
    if tool is None:
        text, error, limit = _unknown_tool(call.name, tools), "unknown_tool", DEFAULT_MAX_CHARS
    else:
        outcome = await run_tool(tool, call.arguments)
        text, error, limit = outcome.text, outcome.failure, tool.max_chars
    seconds = time.perf_counter() - start
    return ToolResult(
        call.id, call.name, call.arguments, _truncate(text, limit), error, seconds, started
    )


async def run_tool(tool: Tool, text: str) -> ToolOutcome:
    """Call a tool with JSON arguments and return its full result, or an error and its kind.

    Raises nothing but `asyncio.CancelledError`, whatever the tool or its schema does.
    """
    try:
        try:
            arguments = tool.signature.read(text)
        except ArgumentError as error:
            return ToolOutcome(f"Error: {tool.name}: {error}", "invalid_arguments")
        try:
            value, failure = await call_safely(
                tool.fn, arguments, label="tool", inline=tool.inline, timeout=tool.timeout
            )
        except TimeoutError:
            message = f"Error: {tool.name} took longer than {tool.timeout:g} seconds"
            return ToolOutcome(message, "timeout", late=True)
        if failure is not None:
            kind = "timeout" if isinstance(failure, ToolTimeoutError) else "raised"
            late = isinstance(failure, ToolError) and failure.late
            return ToolOutcome(f"Error: {_error_text(failure)}", kind, late=late)
        try:
            return ToolOutcome(_to_text(value, tool.fn))
        except (TypeError, ValueError, RecursionError) as error:
            message = f"Error: {tool.name} returned no usable result: {error}"
            return ToolOutcome(message, "bad_result")
    except Exception as error:
        return ToolOutcome(f"Error: {tool.name} failed with {type(error).__name__}", "raised")


async def call_safely(
    fn: Callable[..., Any],
    arguments: Mapping[str, Any],
    *,
    label: str,
    inline: bool,
    timeout: float | None,
) -> tuple[Any, BaseException | None]:
    """Call a user's function and return (value, exception), one of which is None.

    `label` names the function in messages. `inline` runs a synchronous function on the event loop,
    without a time limit. Others raise `TimeoutError` after `timeout` seconds.
    """
    if inline and not inspect.iscoroutinefunction(fn):
        return await _call_catching(fn, arguments, inline=True)
    work = asyncio.ensure_future(_call_catching(fn, arguments, inline=False))
    late = True
    try:
        late = not (await asyncio.wait({work}, timeout=timeout))[0]
    finally:
        if late:  # or the caller is cancelled
            await cancel_and_wait(work)
    if late:
        raise TimeoutError
    if work.cancelled():
        return None, asyncio.CancelledError(f"the {label} cancelled itself")
    return work.result()


async def _call_catching(
    fn: Callable[..., Any], arguments: Mapping[str, Any], *, inline: bool
) -> tuple[Any, BaseException | None]:
    """Call a function and return (value, exception), one of which is None.

    Also catches `BaseException`s, which would end the event loop, but not Ctrl-C and cancellation.
    """
    try:
        if not inline:
            return await call(fn, **arguments), None
        value = fn(**arguments)
        return (await value if inspect.isawaitable(value) else value), None
    except (KeyboardInterrupt, GeneratorExit, asyncio.CancelledError):
        raise
    except BaseException as error:
        return None, error


async def cancel_and_wait(task: asyncio.Future[Any]) -> None:
    """Cancel a task and wait up to `GRACE_SECONDS` for its clean-up."""
    task.cancel()
    await asyncio.wait({task}, timeout=GRACE_SECONDS)
    # Retrieve a later exception, or asyncio warns that it was never retrieved.
    task.add_done_callback(lambda t: t.cancelled() or t.exception())
    if not task.done() and isinstance(task, asyncio.Task):
        # The task ignores cancellation, and closing the loop would wait for it forever.
        asyncio.tasks._unregister_task(task)  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
        task._log_destroy_pending = False  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]


async def call(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Await an async function, or run a sync one in a new thread with the current context."""
    if inspect.iscoroutinefunction(fn):
        return await fn(*args, **kwargs)
    value = await call_in_thread(lambda: fn(*args, **kwargs))
    # A function may return a coroutine without being declared async.
    return await cast("Any", value) if inspect.isawaitable(value) else value


async def call_in_thread(fn: Callable[[], T]) -> T:
    """Run `fn` in a new daemon thread with this task's context variables and return its result.

    If the caller is cancelled, the thread continues and its result is dropped.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def set_result(value: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(cast("T", value))
        else:
            future.set_exception(error)

    def run() -> None:
        value, error = None, None
        try:
            value = context.run(fn)
        except StopIteration as stop:
            # A future rejects StopIteration, and the caller would wait forever.
            error = RuntimeError(f"StopIteration: {stop}")
        except KeyboardInterrupt as own:
            # Only the main thread receives Ctrl-C, so the function itself raised this.
            error = RuntimeError(f"KeyboardInterrupt: {own}" if str(own) else "KeyboardInterrupt")
        except BaseException as failure:
            error = failure
        # The loop is closed if the program ended while the thread was running.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(set_result, value, error)

    threading.Thread(target=run, name="tutelage-call", daemon=True).start()
    return await future


def _truncate(text: str, limit: int) -> str:
    """Shorten text to `limit` characters by replacing its middle with a note."""
    # Escape lone surrogates, which cannot be stored or sent.
    text = text.encode("utf-8", "backslashreplace").decode()
    if len(text) <= limit:
        return text
    room = limit - len(f"\n[{len(text)} characters cut]\n")
    head = (room + 1) // 2
    tail = room - head
    missing = len(text) - room
    return f"{text[:head]}\n[{missing} characters cut]\n{text[len(text) - tail :]}"


def _to_text(value: Any, fn: Callable[..., Any]) -> str:
    """Convert a tool's return value to text: strings, dates and paths unchanged, other values as
    JSON. Raises `TypeError` or `ValueError` for a value that JSON cannot represent."""
    if isinstance(value, str):
        return value
    if value is None:
        # None is a result only for a function annotated `-> None`; others forgot to return.
        if getattr(fn, "__annotations__", {}).get("return", "") in (None, "None"):
            return "null"
        raise TypeError("it returned None; a tool returns text or a JSON value")
    if isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError(f"it returned {type(value).__name__}; decode it to text first")
    try:
        plain = to_jsonable_python(value)
    except PydanticSerializationError as error:
        raise TypeError(f"it returned an instance of {type(value).__name__}: {error}") from error
    if isinstance(plain, str):
        return plain
    # NaN and infinity are not JSON and raise ValueError.
    return json.dumps(plain, ensure_ascii=False, allow_nan=False)


def _error_text(error: BaseException) -> str:
    message = str(error)
    if isinstance(error, ToolError):
        return message or "the tool failed"
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _unknown_tool(name: str, tools: Mapping[str, Tool]) -> str:
    if not tools:
        return f"Error: unknown tool {name!r}; there are no tools"
    near = hint(name, tools, " Did you mean {!r}?")
    names = [*tools][:_LISTED_TOOLS] + ["..."] * (len(tools) > _LISTED_TOOLS)
    return f"Error: unknown tool {name!r}.{near} Tools: {', '.join(names)}"
