"""Rollouts by hand, built in one place: each test names the fields that it is about."""

from __future__ import annotations

from typing import Any

from tutelage.types import (
    Attempt,
    Call,
    Message,
    Mode,
    Reward,
    Rollout,
    RolloutStatus,
    Sampled,
    Sampling,
    StopReason,
    Task,
)


def make_call(index: int = 0, **fields: Any) -> Call:
    """One call of the agent `main`, with two sampled tokens and the answer 2."""
    given: dict[str, Any] = {
        "id": f"chat_{index}",
        "agent": "main",
        "index": index,
        "messages": (Message("user", "What is 1 + 1?"),),
        "prompt_ids": (1, 2, 3),
        "sampled": Sampled((4, 5), (-0.1, -0.2), (-0.1, -0.2), StopReason.STOP, 0),
        "reply": Message("assistant", "2"),
        "sampling": Sampling(),
    }
    return Call(**given | fields)


def make_attempt(*calls: Call, index: int = 0, **fields: Any) -> Attempt:
    """A try with these calls: it earned 1.0, or with a `failure` it failed and earned nothing."""
    failed = fields.get("failure") is not None
    given: dict[str, Any] = {
        "id": f"att_{index}",
        "index": index,
        "status": RolloutStatus.FAILED if failed else RolloutStatus.SUCCEEDED,
        "calls": calls,
        "reward": None if failed else Reward(1.0),
        "stop": None if failed else "answer",
    }
    return Attempt(**given | fields)


def make_rollout(name: str, *attempts: Attempt, **fields: Any) -> Rollout:
    """A rollout of training with these attempts, or with one of no call."""
    given: dict[str, Any] = {
        "id": name,
        "run_id": "run",
        "task": Task("t0", {"question": "What is 1 + 1?"}),
        "mode": Mode.TRAIN,
        "step": 0,
        "group": "g0",
        "index": 0,
        "attempts": attempts or (make_attempt(),),
    }
    return Rollout(**given | fields)
