"""Simulated workers: answers, errors and latencies drawn from the seed tree, and nothing else.

What makes routing a problem is kept. A subtask has a difficulty of its own, drawn once for its
place in the workflow, so workers fail together where it is hard; each has a skill for each type; a
wrong input makes a wrong output; latency is lognormal; servers are sometimes busy. The same work
given to the same worker always gets the same answer. `execute` waits on the running loop, which
costs no time on a clock that jumps (`virtual_time.py`). Every answer is stamped as a mock.
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
"""Standard deviation of the logarithm of an answer's length."""


class SimulatedPool:
    """A `WorkerPool` of workers that are only drawn."""

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
        """`correlation` is the share of the variance that all workers have in common at one
        subtask, `errors` the chance that one request finds a busy or absent server, `tokens` the
        median length of an answer.
        """
        self.workers = check_workers(workers)
        self._correlation, self._errors, self._median = correlation, errors, tokens

    async def execute(self, worker: Worker, work: Subtask) -> WorkerAnswer:
        """Draw the answer and take as long as it would."""
        answer = self.draw(worker, work)
        await asyncio.sleep(answer.seconds)
        return answer

    def draw(self, worker: Worker, work: Subtask) -> WorkerAnswer:
        """The answer at once, without waiting."""
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
        correct = self.knows(worker, work)
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

    def knows(self, worker: Worker, work: Subtask) -> bool:
        """Whether this worker's answer is right: fixed by the place of the work.

        A Gaussian copula: P(right) is the worker's skill, and what is hard is hard for all.
        """
        if any(text.endswith(f": {_WRONG}]") for text in work.inputs.values()):
            return False
        shared = work.seeds.child("difficulty").python().gauss(0.0, 1.0)
        own = work.seeds.child("worker", worker.name).python().gauss(0.0, 1.0)
        common = self._correlation
        drawn = math.sqrt(common) * shared + math.sqrt(1.0 - common) * own
        return _NORMAL.cdf(drawn) < worker.skill(*work.labels)

    def estimate(self, worker: Worker, work: Subtask) -> WorkerEstimate:
        """Expected cost and seconds; the bound is the cost of the longest answer allowed."""
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
        """Nothing is open."""
