"""What one execution of a plan was: every decision, every request, every node, and their sum.

`NodeStep`s stand in the order of dispatch and hold the choice that ran, so what is credited is what
ran. The cost of the whole is the sum over requests, each counted once; its latency is the longest
chain of nodes, waiting in queues left out, and what a model that plans took. `plan_run.py` makes
these, `journal.py` keeps them on disk and reads them back, `stored.py` puts them in the store.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self

from tutelage.errors import counted
from tutelage.orchestration.evaluation.rewards import (
    ExecutionResult,
    Preset,
    References,
    RewardWeights,
    reward_parts,
)
from tutelage.orchestration.execution.workers import Verification, WorkerAnswer
from tutelage.orchestration.plan.dag import Plan, critical_path
from tutelage.orchestration.routing.contract import Choice
from tutelage.seeds import SeedTree
from tutelage.types import JSON, Reward

NodeStatus = Literal["succeeded", "accepted", "failed", "skipped", "cancelled"]
Action = Literal["worker", "accept", "stop"]


@dataclass(slots=True)
class NodeStep:
    """One decision at one node, and its result so far. Times in seconds from the start."""

    index: int
    """Place in the order of dispatch."""
    node: int
    attempt: int
    """Which decision at this node it was, from 0."""
    action: Action
    worker: str | None
    choice: Choice
    requests: tuple[WorkerAnswer, ...] = ()
    """What the worker answered, the requests that met a busy server first."""
    verdict: Verification | None = None
    started: float = 0.0
    ended: float = 0.0
    queued: float = 0.0
    """Seconds of those that it waited for a free place at the worker."""

    @property
    def answer(self) -> WorkerAnswer | None:
        """The last answer, None for a decision that asked nobody."""
        return self.requests[-1] if self.requests else None

    @property
    def costs(self) -> tuple[float, ...]:
        """USD of each request, and of the verdict where a judge was paid for it."""
        judged = 0.0 if self.verdict is None else self.verdict.cost
        return (*(answer.cost for answer in self.requests), judged)

    @property
    def cost(self) -> float:
        """USD of all of it."""
        return math.fsum(self.costs)

    @property
    def seconds(self) -> float:
        """From its first request to its verdict, pauses between requests included."""
        return max(0.0, self.ended - self.started - self.queued)

    @property
    def passed(self) -> bool:
        """Whether the verifier passed the answer."""
        return self.verdict is not None and self.verdict.passed

    @property
    def refused(self) -> WorkerAnswer | None:
        """The answer, where it is that side effects were not permitted."""
        answer = self.answer
        if answer is None or answer.error is None or answer.arguments is None:
            return None
        return answer if answer.error.kind == "refused" else None

    def to_json(self) -> JSON:
        """What logs hold; `log_prob` and `mask` are those of the decision that ran."""
        verdict = None if self.verdict is None else asdict(self.verdict)
        if verdict is not None and not verdict["cost"]:
            del verdict["cost"]
        first = ("index", "node", "attempt", "action", "worker")
        return {
            **{name: getattr(self, name) for name in first},
            "choice": self.choice.action,
            "log_prob": self.choice.log_prob,
            "mask": [int(m) for m in self.choice.mask],
            "cost": self.cost,
            "latency": self.seconds,
            "requests": [answer.to_json() for answer in self.requests],
            "verdict": verdict,
            **{name: getattr(self, name) for name in ("started", "ended", "queued")},
        }


def steps_by_node(steps: Iterable[NodeStep]) -> dict[int, list[NodeStep]]:
    """The steps of each node that has some, in their order."""
    found: dict[int, list[NodeStep]] = {}
    for step in steps:
        found.setdefault(step.node, []).append(step)
    return found


@dataclass(frozen=True, slots=True)
class NodeResult:
    """What became of a node. `seconds` are those of its steps."""

    node: int
    status: NodeStatus
    output: str | None = None
    worker: str | None = None
    """Whose answer was kept."""
    reason: str = ""
    seconds: float = 0.0
    started: float = 0.0
    ended: float = 0.0
    checked: bool = True
    """False where the verifier only saw that there was an answer."""
    correct: bool | None = None
    """The truth about the kept answer, where the pool knows it."""

    @property
    def kept(self) -> bool:
        """Whether there is an output for the nodes that wait for it."""
        return self.status in ("succeeded", "accepted")


def used_up(replans: int) -> str:
    """Why there is no further plan after as many as may be made; nothing where none may."""
    made = counted(replans, "further plan")
    return f"{made} made, all that --max-replans permits; raise it for more" if replans else ""


def only_refused(
    nodes: Iterable[int], steps: Iterable[NodeStep], results: Mapping[int, NodeResult]
) -> bool:
    """Whether side effects that were not permitted are all that these nodes failed by."""
    refused = {step.node for step in steps if step.refused}
    waiting = {k for k, n in results.items() if n.status == "skipped"}
    return bool(refused.intersection(nodes)) and refused.union(waiting).issuperset(nodes)


@dataclass(frozen=True, slots=True)
class Execution(ExecutionResult):
    """An `ExecutionResult` with everything that led to it.

    `success` means that every node's verifier passed, or that an answer which was accepted without
    that is known to be right.
    """

    id: str = ""
    plan: Plan = field(default_factory=lambda: Plan("", ()))
    nodes: tuple[NodeResult, ...] = ()
    steps: tuple[NodeStep, ...] = ()
    reason: str = ""
    """Why it ended early: `deadline`, `failed`, `budget`; empty otherwise."""
    wall_seconds: float = 0.0
    """From start to end, queues included."""
    path: tuple[int, ...] = ()
    """The nodes of the longest chain."""
    pool: str = ""
    router: str = ""
    mock: bool = False
    seeds: SeedTree = field(default_factory=lambda: SeedTree(0))
    """Where its draws came from; node k's from `child("node", k)`."""
    references: References | None = None
    """What `normalized` and `gated` rewards measure against."""
    resumed: int = 0
    """Nodes that were taken over from the log of an earlier process."""
    abandoned: tuple[int, ...] = ()
    """Nodes that failed and for which a further plan was made: what it did counts instead."""
    unplanned: str = ""
    """Why a planner that was asked for a further plan had none."""
    overspent: str = ""
    """Whose server said that it had used more than a request can."""

    @classmethod
    def of(
        cls, plan: Plan, nodes: Sequence[NodeResult], steps: Sequence[NodeStep], **fields: Any
    ) -> Self:
        """The execution that these nodes and steps come to."""
        latency, path = critical_path(plan, [node.seconds for node in nodes])
        counted = [node for node in nodes if node.node not in fields.get("abandoned", ())]
        good = [n.status == "succeeded" or (n.status == "accepted" and n.correct) for n in counted]
        passed = sum(node.status == "succeeded" for node in nodes)
        return cls(
            success=bool(counted) and all(good),
            outputs={str(node.node): node.output for node in nodes if node.output is not None},
            total_cost=math.fsum((plan.cost, *(cost for step in steps for cost in step.costs))),
            total_latency_ms=1000.0 * (plan.seconds + latency),
            verified_fraction=passed / len(nodes) if nodes else 0.0,
            plan=plan,
            nodes=tuple(nodes),
            steps=tuple(steps),
            path=path,
            **fields,
        )

    @property
    def answers(self) -> dict[int, str]:
        """What the last nodes gave, those that nobody waits for."""
        leaves = set(range(len(self.nodes))) - {before for before, _ in self.plan.edges}
        known = self.outputs
        return {node: str(known[str(node)]) for node in sorted(leaves) if str(node) in known}

    def earned(self, preset: Preset = "normalized", weights: RewardWeights | None = None) -> Reward:
        """The reward, with its parts."""
        parts = reward_parts(self, preset=preset, weights=weights)
        return Reward(sum(parts.values()), parts)

    @property
    def rollout(self) -> str:
        """The identifier of the rollout that it is stored as."""
        return self.seeds.id("roll")

    @property
    def seed(self) -> int:
        """Of the run that it belongs to."""
        return self.seeds.seed

    @property
    def correct(self) -> bool | None:
        """Whether all kept outputs are right; None where a pool does not know. Nodes that a further
        plan took the place of do not count."""
        counted = [node for node in self.nodes if node.node not in self.abandoned]
        known = [node.correct for node in counted]
        if any(not node.kept for node in counted):
            return False
        return None if None in known else all(known)
