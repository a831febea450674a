"""The jumping clock: nobody waits, timers keep their order, other threads are still heard."""

from __future__ import annotations

import asyncio
import time

import pytest

from tutelage.orchestration.execution.virtual_time import run_virtual


def test_hours_pass_at_once_and_in_order() -> None:
    async def run() -> list[tuple[str, float]]:
        loop, told = asyncio.get_running_loop(), []

        async def wait(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            told.append((name, loop.time()))

        await asyncio.gather(wait("late", 7200.0), wait("early", 60.0), wait("now", 0.0))
        return told

    begun = time.monotonic()
    assert run_virtual(run()) == [("now", 0.0), ("early", 60.0), ("late", 7200.0)]
    assert time.monotonic() - begun < 60


def test_a_timeout_fires_when_it_is_due() -> None:
    async def run() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5.0):
                await asyncio.sleep(3600.0)
        return asyncio.get_running_loop().time()

    assert run_virtual(run()) == pytest.approx(5.0)


def test_a_thread_can_wake_it() -> None:
    async def run() -> str:
        return await asyncio.to_thread(lambda: "from a thread")

    assert run_virtual(run()) == "from a thread"
