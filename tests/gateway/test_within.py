"""A time limit that begins where a coroutine first has to wait."""

from __future__ import annotations

import asyncio

import pytest

from tutelage.gateway.http import within


async def test_what_need_not_wait_has_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ready() -> int:
        return 3

    monkeypatch.setattr(asyncio, "timeout", None)
    assert await within(9, ready()) == 3


async def test_what_waits_ends_with_its_result_or_its_error() -> None:
    gate = asyncio.Event()

    async def work(fail: bool) -> int:
        await gate.wait()
        await asyncio.sleep(0)
        if fail:
            raise KeyError("x")
        return 4

    asyncio.get_running_loop().call_soon(gate.set)
    assert await within(9, work(False)) == 4
    gate.clear()
    asyncio.get_running_loop().call_soon(gate.set)
    with pytest.raises(KeyError):
        await within(9, work(True))


async def test_time_that_is_over_ends_it_and_it_may_clean_up() -> None:
    seen: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            seen.append("cleaned")

    with pytest.raises(TimeoutError):
        await within(0, work())
    assert seen == ["cleaned"]


async def test_a_task_that_is_cancelled_is_cancelled_inside_too() -> None:
    seen: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    task = asyncio.ensure_future(within(9, work()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled"]
