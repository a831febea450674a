"""Pools: simulated, replayed, and real HTTP workers against servers that misbehave."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from statistics import fmean
from typing import Any

import pytest
from tests.loopback import replying

from tutelage.errors import ConfigError
from tutelage.orchestration.execution.pools.openai import OpenAIPool
from tutelage.orchestration.execution.pools.simulated import SimulatedPool
from tutelage.orchestration.execution.workers import Latency, Subtask, Worker, WorkerAnswer
from tutelage.seeds import SeedTree


def works(count: int, **fields: Any) -> list[Subtask]:
    return [
        Subtask(0, "sum", "text", seeds=SeedTree(0, ("node", i)), **fields) for i in range(count)
    ]


# ------------------------------------------------------------ simulated


def test_the_same_work_has_the_same_answer_whoever_was_asked_before() -> None:
    pool = SimulatedPool([Worker("a", price_out=1.0, latency=Latency(1.0, 0.5)), Worker("b")])
    first, second = (pool.draw(pool.workers[0], works(1)[0]) for _ in range(2))
    assert first == second
    assert first.mock


def test_workers_are_right_as_often_as_their_skill_says() -> None:
    worker = Worker("a", skills={"sum": 0.7})
    pool = SimulatedPool([worker], errors=0.0)
    share = fmean(pool.is_correct(worker, work) for work in works(4000))
    assert share == pytest.approx(0.7, abs=0.03)


def test_what_is_hard_is_hard_for_all_by_the_correlation() -> None:
    a, b = Worker("a", skills={"*": 0.5}), Worker("b", skills={"*": 0.5})

    def agreement(correlation: float) -> float:
        pool = SimulatedPool([a, b], correlation=correlation)
        return fmean(pool.is_correct(a, work) == pool.is_correct(b, work) for work in works(2000))

    assert agreement(0.0) == pytest.approx(0.5, abs=0.05)
    # Two Gaussians that share this much of their variance agree in sign with P = 1/2 + asin(r)/pi.
    assert agreement(0.6) == pytest.approx(0.5 + math.asin(0.6) / math.pi, abs=0.05)
    assert agreement(1.0) == 1.0


def test_estimates_are_unbiased_and_bounds_hold() -> None:
    worker = Worker("a", price_in=1.0, price_out=3.0, latency=Latency(1.0, 0.3, 0.01))
    pool = SimulatedPool([worker], errors=0.0)
    sample = works(3000, prompt="x" * 400, max_tokens=10_000)
    estimate = pool.estimate(worker, sample[0])
    answers = [pool.draw(worker, work) for work in sample]
    assert fmean(a.cost for a in answers) == pytest.approx(estimate.cost, rel=0.05)
    assert fmean(a.seconds for a in answers) == pytest.approx(estimate.seconds, rel=0.05)
    assert max(a.cost for a in answers) <= estimate.bound


# ------------------------------------------------------------ real HTTP

Reply = Callable[[dict[str, Any]], Any]


@contextmanager
def server(reply: Reply) -> Generator[str]:
    """A server on the loopback that answers chat completions with what `reply` gives.

    It gives (status, JSON or text), with headers as a third member, or sleeps by itself.
    """

    with replying(
        lambda asked, body: reply(body | {"authorization": asked.headers["authorization"]})
    ) as url:
        yield f"{url}/v1"


def completion(content: str | None, reason: str = "stop", usage: Any = (10, 5)) -> dict[str, Any]:
    message = {"role": "assistant", "content": content}
    data: dict[str, Any] = {"choices": [{"message": message, "finish_reason": reason}]}
    if usage is not None:
        data["usage"] = {"prompt_tokens": usage[0], "completion_tokens": usage[1]}
    return data


def at(url: str, name: str = "a", **fields: Any) -> Worker:
    given = {"price_in": 1e6, "price_out": 2e6, "endpoint": url, **fields}
    return Worker(name, **given)


def ask(url: str, work: Subtask | None = None, **pool: Any) -> WorkerAnswer:
    worker = at(url)

    async def run() -> WorkerAnswer:
        asked = OpenAIPool([worker], **pool)
        try:
            return await asked.execute(worker, work or Subtask(0, "x", prompt="Say hello."))
        finally:
            await asked.close()

    return asyncio.run(run())


def test_the_cost_is_what_the_server_says_was_used() -> None:
    seen: list[dict[str, Any]] = []

    def reply(body: dict[str, Any]) -> Any:
        seen.append(body)
        return 200, completion("hello")

    with server(reply) as url:
        answer = ask(url, Subtask(0, "x", prompt="Say hello.", max_tokens=7))
    assert (answer.output, answer.tokens_in, answer.tokens_out) == ("hello", 10, 5)
    assert answer.cost == 10 * 1.0 + 5 * 2.0
    assert answer.error is None
    assert not answer.mock
    assert not answer.estimated
    assert answer.correct is None
    assert (seen[0]["model"], seen[0]["max_tokens"]) == ("a", 7)
    assert seen[0]["messages"][-1] == {"role": "user", "content": "Say hello."}
    assert seen[0]["authorization"] is None


@pytest.mark.parametrize(
    ("answered", "kind", "paid"),
    [
        ((429, {"error": {"message": "slow down"}}, {"retry-after": "3"}), "rate_limited", "no"),
        ((503, b"busy"), "unavailable", "no"),
        ((401, {"error": {"message": "no key"}}), "unauthorized", "no"),
        ((400, {"error": {"message": "bad"}}), "refused", "no"),
        ((200, completion("cut", "length")), "truncated", "usage"),
        ((200, completion(None)), "empty", "usage"),
        ((200, {"choices": []}), "malformed", "bound"),
        ((200, completion("hi", usage=None)), None, "bound"),
    ],
)
def test_every_failure_is_typed_and_paid_for_as_it_is(
    answered: Any, kind: str | None, paid: str
) -> None:
    with server(lambda body: answered) as url:
        answer = ask(url)
    work = Subtask(0, "x", prompt="Say hello.")
    bound = OpenAIPool([at(url)]).estimate(at(url), work).bound
    assert (answer.error.kind if answer.error else None) == kind
    assert answer.cost == {"no": 0.0, "usage": 20.0, "bound": bound}[paid]
    assert answer.estimated is (paid == "bound")
    if kind == "rate_limited":
        assert answer.error is not None
        assert answer.error.retry_after == 3.0


def test_a_server_that_is_away_and_one_that_is_slow() -> None:
    with server(lambda body: (200, completion("x"))) as url:
        pass
    away = ask(url)
    assert away.error is not None
    assert away.error.kind == "network"
    assert away.cost == 0.0

    def slow(body: dict[str, Any]) -> Any:
        time.sleep(1.0)
        return 200, completion("late")

    with server(slow) as url:
        late = ask(url, timeout=0.2)
    assert late.error is not None
    assert late.error.kind == "timeout"
    assert late.estimated
    assert late.cost > 0


def test_keys_come_from_the_environment_and_go_to_their_own_server_only() -> None:
    seen: list[Any] = []

    def reply(body: dict[str, Any]) -> Any:
        seen.append(body["authorization"])
        return 200, completion("x")

    environ = {"MY_KEY": "secret-1", "OPENAI_API_KEY": "secret-2"}
    with server(reply) as url:
        workers = [at(url, "mine", key_env="MY_KEY"), at(url, "open")]

        async def run() -> None:
            pool = OpenAIPool(workers, environ=environ)
            for worker in workers:
                await pool.execute(worker, Subtask(0, "x", prompt="y"))
            await pool.close()

        asyncio.run(run())
    assert seen == ["Bearer secret-1", None]


def test_a_worker_without_its_key_or_with_a_bad_address_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="MY_KEY is not set"):
        OpenAIPool([at("http://h/v1", key_env="MY_KEY")], environ={})
    with pytest.raises(ConfigError, match="OPENAI_API_KEY is not set"):
        OpenAIPool([Worker("gpt")], environ={})
    with pytest.raises(ConfigError, match="'localhost' is not a valid base URL"):
        OpenAIPool([at("localhost")], environ={})


def test_the_bound_holds_for_text_of_any_language() -> None:
    """A token is at least one byte, so bytes bound tokens where characters would not."""
    worker = at("http://h/v1")
    estimate = OpenAIPool([worker]).estimate(
        worker, Subtask(0, "x", prompt="漢字" * 100, max_tokens=10)
    )
    assert estimate.bound >= worker.cost(600, 10)
    assert estimate.cost < estimate.bound
