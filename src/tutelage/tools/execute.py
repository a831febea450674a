"""Run the tool calls of one assistant turn: in parallel, bounded in time, never an exception.

Whatever a model writes and whatever a tool does becomes a `ToolResult`: the text that the model
observes and, when it failed, a word for how. That keeps one broken call from ending a rollout, and
lets metrics tell a model's mistakes from a tool's. Synchronous tools run in threads of their own
(a shared pool would be used up by the first tools that hang, and would keep the process from
exiting). `tutelage.rewards` runs rewards the same way, with `outcome_of`.
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
"""How long a cancelled task may clean up before it is left behind."""
_LISTED_TOOLS = 8

ToolFailure = Literal["invalid_arguments", "raised", "timeout", "bad_result"]
"""How a call of a known tool failed."""
T = TypeVar("T")


class ToolOutcome(NamedTuple):
    """The result of one call of a known tool."""

    text: str
    """Its whole result, or the error."""
    failure: ToolFailure | None = None
    plain: bool = False
    """Whether it returned text, which is no JSON whatever it looks like."""
    late: bool = False
    """Whether it failed and its work may be done anyway."""


async def execute_tool_calls(
    calls: Sequence[ToolCall], tools: Mapping[str, Tool]
) -> list[ToolResult]:
    """Run all calls at once; results in the order of `calls`. Only cancellation is raised.

    A failed call has `error` set to unknown_tool, invalid_arguments, raised, timeout or bad_result,
    and a `text` that begins with "Error:" and says what was wrong.
    """
    return list(await asyncio.gather(*(_execute(call, tools) for call in calls)))


async def _execute(call: ToolCall, tools: Mapping[str, Tool]) -> ToolResult:
    started, start = time.time(), time.perf_counter()
    tool = tools.get(call.name)
    if tool is None:
        text, error, limit = _unknown(call.name, tools), "unknown_tool", DEFAULT_MAX_CHARS
    else:
        outcome = await run_tool(tool, call.arguments)
        text, error, limit = outcome.text, outcome.failure, tool.max_chars
    seconds = time.perf_counter() - start
    return ToolResult(
        call.id, call.name, call.arguments, _cut(text, limit), error, seconds, started
    )


async def run_tool(tool: Tool, text: str) -> ToolOutcome:
    """One call with arguments as JSON text: its whole result, or an error and a word for it.

    Only cancellation is raised, whatever the tool, its schema or its exceptions are like."""
    try:
        try:
            arguments = tool.signature.read(text)
        except ArgumentError as error:
            return ToolOutcome(f"Error: {tool.name}: {error}", "invalid_arguments")
        try:
            value, failure = await outcome_of(
                tool.fn, arguments, what="tool", inline=tool.inline, seconds=tool.timeout
            )
        except TimeoutError:
            told = f"Error: {tool.name} took longer than {tool.timeout:g} seconds"
            return ToolOutcome(told, "timeout", late=True)
        if failure is not None:
            kind = "timeout" if isinstance(failure, ToolTimeoutError) else "raised"
            late = isinstance(failure, ToolError) and failure.late
            return ToolOutcome(f"Error: {_reason(failure)}", kind, late=late)
        try:
            plain = type(value) is str  # servers send all of their results as text
            return ToolOutcome(_text_of(value, tool.fn), plain=plain)
        except (TypeError, ValueError, RecursionError) as error:
            told = f"Error: {tool.name} returned no usable result: {error}"
            return ToolOutcome(told, "bad_result")
    except Exception as error:
        return ToolOutcome(f"Error: {tool.name} failed with {type(error).__name__}", "raised")


async def outcome_of(
    fn: Callable[..., Any],
    arguments: Mapping[str, Any],
    *,
    what: str,
    inline: bool,
    seconds: float | None,
) -> tuple[Any, BaseException | None]:
    """What a user's function returned, or what it raised; `what` it is stands in messages.

    `inline` runs a synchronous one on the event loop, where nothing bounds its time. Raises
    `TimeoutError` when another did not end within `seconds`.
    """
    if inline and not inspect.iscoroutinefunction(fn):
        return await _held_back(fn, arguments, inline=True)
    work = asyncio.ensure_future(_held_back(fn, arguments, inline=False))
    late = True
    try:
        late = not (await asyncio.wait({work}, timeout=seconds))[0]
    finally:
        if late:  # or the caller is cancelled
            await cancelled(work)
    if late:
        raise TimeoutError
    if work.cancelled():
        return None, asyncio.CancelledError(f"the {what} cancelled itself")
    return work.result()


async def _held_back(
    fn: Callable[..., Any], arguments: Mapping[str, Any], *, inline: bool
) -> tuple[Any, BaseException | None]:
    """What the function returned or raised; another exception than `Exception` would end the event
    loop. Ctrl-C and a cancelled task are no result of the function."""
    try:
        if not inline:
            return await call(fn, **arguments), None
        value = fn(**arguments)
        return (await value if inspect.isawaitable(value) else value), None
    except (KeyboardInterrupt, GeneratorExit, asyncio.CancelledError):
        raise
    except BaseException as error:
        return None, error


async def cancelled(task: asyncio.Future[Any]) -> None:
    """Cancel and wait a little, so that a tool's, a reward's or an agent's own clean-up has run
    when this returns."""
    task.cancel()
    await asyncio.wait({task}, timeout=GRACE_SECONDS)
    # Its late end is of no interest, but asyncio would warn of an exception nobody looked at.
    task.add_done_callback(lambda t: t.cancelled() or t.exception())
    if not task.done() and isinstance(task, asyncio.Task):
        # It refuses to end, and the end of the loop would wait for it for ever.
        asyncio.tasks._unregister_task(task)  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
        task._log_destroy_pending = False  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]


async def call(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Await an async function; run another one in a thread of its own, with this context."""
    if inspect.iscoroutinefunction(fn):
        return await fn(*args, **kwargs)
    value = await call_in_thread(lambda: fn(*args, **kwargs))
    # A function may hand back a coroutine without being declared async.
    return await cast("Any", value) if inspect.isawaitable(value) else value


async def call_in_thread(fn: Callable[[], T]) -> T:
    """Run `fn` in a daemon thread of its own, with this task's context variables.

    When the caller is cancelled the thread goes on, and its result is dropped.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def settle(value: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(cast("T", value))
        else:
            future.set_exception(error)

    def work() -> None:
        value, error = None, None
        try:
            value = context.run(fn)
        except StopIteration as stop:
            # A future refuses StopIteration, which would leave the caller waiting for ever.
            error = RuntimeError(f"StopIteration: {stop}")
        except KeyboardInterrupt as own:
            # Ctrl-C comes to the main thread alone: here the function raised it itself.
            error = RuntimeError(f"KeyboardInterrupt: {own}" if str(own) else "KeyboardInterrupt")
        except BaseException as raised:
            error = raised
        # The loop is closed when the program ended while the thread was still at work.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=work, name="tutelage-call", daemon=True).start()
    return await future


def _cut(text: str, limit: int) -> str:
    """`text` of at most `limit` characters: head and tail, and how much is missing between."""
    # Lone surrogates can be neither stored nor sent.
    text = text.encode("utf-8", "backslashreplace").decode()
    if len(text) <= limit:
        return text
    room = limit - len(f"\n[{len(text)} characters cut]\n")
    head = (room + 1) // 2
    tail = room - head
    missing = len(text) - room
    return f"{text[:head]}\n[{missing} characters cut]\n{text[len(text) - tail :]}"


def _text_of(value: Any, fn: Callable[..., Any]) -> str:
    """The observation for a value that a function returned: texts, also those that dates, paths and
    the like are written as, else JSON. Raises TypeError or ValueError when there is none."""
    if isinstance(value, str):
        return value
    if value is None:
        # One that says so is done when it returns; another forgot its result.
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
    # NaN and infinity are no JSON: a ValueError here.
    return json.dumps(plain, ensure_ascii=False, allow_nan=False)


def _reason(error: BaseException) -> str:
    message = str(error)
    if isinstance(error, ToolError):
        return message or "the tool failed"
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _unknown(name: str, tools: Mapping[str, Tool]) -> str:
    if not tools:
        return f"Error: unknown tool {name!r}; there are no tools"
    near = hint(name, tools, " Did you mean {!r}?")
    shown = [*tools][:_LISTED_TOOLS] + ["..."] * (len(tools) > _LISTED_TOOLS)
    return f"Error: unknown tool {name!r}.{near} Tools: {', '.join(shown)}"
