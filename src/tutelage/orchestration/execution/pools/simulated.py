"""Simulated workers with answers, errors and latencies drawn from the seed tree.

The simulation keeps the properties that make routing difficult. Each subtask has its own
difficulty, drawn once for its place in the workflow, so workers tend to fail on the same subtasks.
Each worker has a skill per type, wrong inputs cause wrong outputs, latency is lognormal, and
servers are sometimes busy. The same worker always returns the same answer for the same subtask.
`execute` sleeps on the running loop, which takes no time on a virtual clock (`virtual_time.py`).
All answers are marked as mocks.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist

from tutelage.orchestration.execution.workers import (
    ErrorKind,
    Subtask,
    Worker,
    WorkerAnswer,
    WorkerError,
    WorkerEstimate,
    check_workers,
    prompt_tokens,
)

_NORMAL = NormalDist()
_BUSY: tuple[ErrorKind, ...] = ("rate_limited", "unavailable", "network")
_WRONG = "wrong"
_SPREAD = 0.4
"""Standard deviation of the logarithm of the answer length."""


class SimulatedPool:
    """Worker pool of simulated workers."""

    name = "simulated"
    mock = True

    def __init__(
        self,
        workers: Sequence[Worker],
        *,
        correlation: float = 0.6,
        errors: float = 0.03,
        tokens: float = 150.0,
    ) -> None:
        """Create a pool. `correlation` is the share of the variance that is common to all workers
        on a subtask, `errors` the probability that a request fails because the server is busy or
        unavailable, and `tokens` the median answer length."""
        self.workers = check_workers(workers)
        self._correlation, self._errors, self._median = correlation, errors, tokens

    async def execute(self, worker: Worker, work: Subtask) -> WorkerAnswer:
        """Draw a random answer and sleep for its latency."""
        answer = self.draw(worker, work)
        await asyncio.sleep(answer.seconds)
        return answer

    def draw(self, worker: Worker, work: Subtask) -> WorkerAnswer:
        """Return the random answer of a worker without waiting."""
        once = work.seeds.child("try", worker.name, work.attempt).python()
        busy = once.random() < self._errors
        kind = once.choice(_BUSY)
        pace = math.exp(worker.latency.spread * once.gauss(0.0, 1.0))
        drawn = work.seeds.child("tokens").python().gauss(0.0, 1.0)
        wanted = max(1, round(self._median * math.exp(_SPREAD * drawn)))
        tokens_in = prompt_tokens(work.prompt)
        tokens_out = min(wanted, work.max_tokens)
        seconds = worker.latency.seconds * pace
        if busy:
            error = WorkerError(kind, "simulated: the server is busy")
            return WorkerAnswer(seconds=0.2 * seconds, error=error, mock=True)
        correct = self.is_correct(worker, work)
        answer = WorkerAnswer(
            output=f"[simulated {work.type} #{work.node}: {'done' if correct else _WRONG}]",
            cost=worker.cost(tokens_in, tokens_out),
            seconds=seconds + worker.latency.per_token * tokens_out,
            tokens_in=tokens_in,
            tokens_out=tokens_out,
            mock=True,
            correct=correct,
        )
        if wanted > work.max_tokens:
            cut = WorkerError("truncated", f"simulated: {wanted} tokens, {work.max_tokens} allowed")
            answer = replace(answer, error=cut, correct=False)
        return answer

    def is_correct(self, worker: Worker, work: Subtask) -> bool:
        """Return True if the worker answers the subtask correctly; the result is determined by the
        seeds of the subtask.

        It uses a Gaussian copula: P(right) is the worker's skill, and the difficulty is shared by
        all workers.
        """
        if any(text.endswith(f": {_WRONG}]") for text in work.inputs.values()):
            return False
        shared = work.seeds.child("difficulty").python().gauss(0.0, 1.0)
        own = work.seeds.child("worker", worker.name).python().gauss(0.0, 1.0)
        common = self._correlation
        drawn = math.sqrt(common) * shared + math.sqrt(1.0 - common) * own
        return _NORMAL.cdf(drawn) < worker.skill(*work.labels)

    def estimate(self, worker: Worker, work: Subtask) -> WorkerEstimate:
        """Return the expected cost and latency; the bound is the cost of the longest answer."""
        tokens_in = prompt_tokens(work.prompt)
        mean = self._median * math.exp(_SPREAD**2 / 2)
        tokens_out = min(mean, work.max_tokens)
        slow = worker.latency.seconds * math.exp(worker.latency.spread**2 / 2)
        return WorkerEstimate(
            cost=worker.cost(tokens_in, tokens_out),
            seconds=slow + worker.latency.per_token * tokens_out,
            bound=worker.cost(tokens_in, work.max_tokens),
        )

    async def close(self) -> None:
        """Do nothing, because a simulated pool has no connections."""
