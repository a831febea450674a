"""Rewards that come by HTTP: a program on any machine posts what its rollout has earned.

`POST .../v1/rewards` takes the named numbers that an agent of this process returns, as in
`{"reward": 1, "format": 0.5}`. The key says whose they are. The last one of a name counts, as with
`emit_reward`; a repeat under its `idempotency-key` changes nothing. What comes after the attempt
has ended is answered with 410, kept as a span of the attempt, and never used. `POST .../v1/events`
takes a reward as agent-lightning's event. `app.py` has the endpoints, `rollouts/grading.py` reads
what came.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, cast

from tutelage.errors import RewardError
from tutelage.gateway.dialects.field_errors import shown
from tutelage.gateway.errors import NO_RETRY, ApiError, invalid
from tutelage.rewards.values import to_reward
from tutelage.tracing import names
from tutelage.tracing.records import Identity, SpanEvent, SpanRecord, make_span_id, make_trace_id
from tutelage.types import JSON

if TYPE_CHECKING:
    from tutelage.gateway.session import AttemptSession

LATE = "tutelage.reward.late"
"""Attribute of the span of a reward that came when its attempt was over."""

Rewards = Mapping[str, float]


class PostedRewards:
    """What was posted for one attempt, by name; the last one of a name counts.

    It is filled on the gateway's loop. `final` is done once a reward itself was posted.
    """

    def __init__(self) -> None:
        self.final: Future[float] = Future()
        self.final.set_running_or_notify_cancel()  # who no longer waits cannot take it back
        self._values: dict[str, float] = {}
        self._answers: dict[str, tuple[Rewards, JSON]] = {}

    @property
    def named(self) -> list[tuple[str, float]]:
        """Names and numbers, as `emit_reward` keeps them."""
        return list(self._values.items())

    def add(self, rewards: Rewards, key: str | None, answer: JSON) -> JSON:
        """Take rewards; returns the answer, the first one for a repeat. Raises `ApiError` for a
        key that came with others."""
        known = None if key is None else self._answers.get(key)
        if known is not None:
            if dict(known[0]) != dict(rewards):
                raise ApiError(
                    409,
                    f"the idempotency-key {key!r} was used with other rewards: {dict(known[0])!r}",
                    code="idempotency_key_reused",
                    headers=NO_RETRY,
                )
            return known[1]
        self._values |= rewards
        if key is not None:
            self._answers[key] = (rewards, answer)
        if "reward" in rewards and not self.final.done():
            self.final.set_result(rewards["reward"])
        return answer


ReadBody = Callable[[JSON, "AttemptSession | Identity"], tuple[Rewards, JSON]]
"""Reads the rewards in a body for an attempt, and what it is answered with. Raises `ApiError`."""


def read_rewards(body: JSON, attempt: AttemptSession | Identity) -> tuple[Rewards, JSON]:
    """`{"reward": 1.0, "format": 0.5}`: named numbers, as an agent returns them."""
    rewards = _checked(body)
    if not rewards:
        raise invalid('no rewards in the body: send e.g. {"reward": 1.0}', code="invalid_reward")
    return rewards, {"object": "reward", "attempt": attempt.attempt_id, **rewards}


def read_event(body: JSON, attempt: AttemptSession | Identity) -> tuple[Rewards, JSON]:
    """`{"event_type": "reward", "data": {"value": 1.0}}`: an event of agent-lightning 1.0.

    What else its data says of the reward, and events of other types, are accepted without effect.
    """
    kind, data = body.get("event_type"), body.get("data", {})
    if not isinstance(kind, str):
        raise invalid("missing event_type, such as 'reward'", "event_type")
    if not isinstance(data, dict):
        raise invalid("the data of an event must be a JSON object", "data")
    fields = cast("JSON", data)
    if kind == "reward" and "value" not in fields:
        raise invalid("reward events must have a data.value", "data.value", "invalid_reward")
    answer: JSON = {
        "event_type": kind,
        "rollout_id": attempt.rollout_id,
        "attempt_id": attempt.attempt_id,
        "timestamp": time.time(),
        "data": fields,
    }
    return _checked({"reward": fields["value"]}, "data.value") if kind == "reward" else {}, answer


def _checked(values: JSON, param: str | None = None) -> Rewards:
    """Finite numbers. Raises `ApiError` 400."""
    for name, value in values.items():
        if not isinstance(value, int | float):
            words = f"`{param or name}` = {shown(value)}: must be a number, true or false"
            raise invalid(words, param or name, "invalid_reward")
    try:
        reward = to_reward({"reward": 0.0, **values}, "of the request", "of the attempt")
    except RewardError as error:
        raise invalid(str(error), param, "invalid_reward") from None
    return {n: reward.value if n == "reward" else reward.parts[n] for n in values}


def late_span(rewards: Rewards, attempt: Identity) -> SpanRecord:
    """Return what is kept of rewards that came too late. The same ones again are the same span."""
    now, scores, trace = time.time_ns(), sorted(rewards.items()), make_trace_id(attempt)
    told = [{names.EVALUATION_NAME: name, names.SCORE: float(value)} for name, value in scores]
    return SpanRecord(
        trace_id=trace,
        span_id=make_span_id(trace, LATE, repr(scores)),
        parent_id=None,
        name="reward",
        start_ns=now,
        end_ns=now,
        attributes={LATE: True},
        events=tuple(SpanEvent(names.EVALUATION, now, each) for each in told),
        rollout_id=attempt.rollout_id,
        attempt_id=attempt.attempt_id,
    )
