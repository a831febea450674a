"""Whether a router, and a table of outcomes, fit the workers and plans that they are used for.

A router that goes by skills which nobody declares, one that was trained on other models, and
outcomes of other queries all give an answer that looks like one. Each is said in words here, or
refused where nothing of it would be right. `config.py` asks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tutelage.errors import ConfigError
from tutelage.orchestration.execution.workers import DEFAULT_SKILL, Worker, WorkerPool
from tutelage.orchestration.plan.dag import Plan
from tutelage.orchestration.routing.contract import Router
from tutelage.tasks.overlap import listed

Warn = Callable[[str], None]
_BY_SKILL = ("accurate", "greedy")
"""Routers that go by the skills that workers declare."""


class _Lacking(NamedTuple):
    told: str
    all: bool
    """Whether no worker declares any."""


def skills_lacking(router: str, workers: Sequence[Worker], *, chosen: bool) -> _Lacking | None:
    """What a router that goes by skills does not know of these workers; None if nothing is lacking.

    Raises `ConfigError` where no worker declares any and the router was `chosen`, not the default.
    """
    models = [worker for worker in workers if not worker.tool]
    silent = [worker.name for worker in models if not worker.skills]
    if router not in _BY_SKILL or not silent:
        return None
    if len(silent) < len(models):
        told = f"the router {router!r} goes by declared skills, and some workers declare none"
        return _Lacking(f"{told} ({DEFAULT_SKILL} is assumed): {listed(silent)}", all=False)
    told = f"the router {router!r} goes by the skills that workers declare, and none of them does"
    if chosen:
        raise ConfigError(
            f"{told}; give them 'skills' in --workers FILE, choose --router cheapest, or a router "
            "that phase 2 trained"
        )
    return _Lacking(f"{told}: the cheapest worker is asked first", all=True)


def trained_router(path: str, workers: Sequence[Worker]) -> Router:
    """The router of a checkpoint. Raises `ConfigError` for workers that it was not trained on."""
    from tutelage.orchestration.routing.router import load_router

    router = load_router(path)
    router.check(workers)
    return router


def replayed_words(pool: WorkerPool, plans: Sequence[Plan]) -> str | None:
    """Which subtasks of these plans get the outcomes of other queries; None where none does, or
    where nothing is replayed."""
    unrelated = getattr(pool, "unrelated", None)  # of the replay pool
    if unrelated is None:
        return None
    nodes = [node for plan in plans for node in range(len(plan.nodes))]
    of_type, of_any = (sum(found) for found in zip(*map(unrelated, plans), strict=True))
    if not of_type + of_any:
        return None
    told = f"{of_type + of_any} of {len(nodes)} subtasks are no query of the table of outcomes"
    parts = [f"{of_type} get the outcome of another query of their type"] if of_type else []
    if of_any:
        parts.append(f"{of_any} that of any query, since no query has their type")
    return f"{told}: {', '.join(parts)}. What is replayed says nothing about this instruction"
