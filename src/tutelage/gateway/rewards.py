"""Rewards posted over HTTP: a program on any machine reports the reward of its rollout.

`POST .../v1/rewards` accepts the same named numbers that a local agent returns, such as `{"reward":
1, "format": 0.5}`. The key identifies the attempt. The last value of each name counts, as with
`emit_reward`; a retry with the same `idempotency-key` has no effect. Rewards after the end of the
attempt get 410. `POST .../v1/events` accepts a reward as an event of agent-lightning. `app.py` has
the endpoints, `rollouts/runner.py` reads the rewards.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, cast

from tutelage.errors import RewardError
from tutelage.gateway.dialects.field_errors import format_value
from tutelage.gateway.errors import NO_RETRY, ApiError, bad_request
from tutelage.rewards.values import to_reward
from tutelage.types import JSON

if TYPE_CHECKING:
    from tutelage.gateway.session import AttemptSession

Rewards = Mapping[str, float]


class PostedRewards:
    """Rewards posted for one attempt, by name; the last value of each name counts.

    Filled on the gateway's loop. `final` is done once the value of `reward` was posted.
    """

    def __init__(self) -> None:
        self.final: Future[float] = Future()
        self.final.set_running_or_notify_cancel()  # a waiter that gives up cannot cancel it
        self._values: dict[str, float] = {}
        self._answers: dict[str, tuple[Rewards, JSON]] = {}

    @property
    def named_values(self) -> list[tuple[str, float]]:
        """Return the posted rewards as names and values, in the format of `emit_reward`."""
        return list(self._values.items())

    def add(self, rewards: Rewards, key: str | None, answer: JSON) -> JSON:
        """Add posted rewards and return the answer. A retry gets the answer of the first request.

        Raises `ApiError` for a key that was used with other rewards.
        """
        first = None if key is None else self._answers.get(key)
        if first is not None:
            if dict(first[0]) != dict(rewards):
                raise ApiError(
                    409,
                    f"the idempotency-key {key!r} was used with other rewards: {dict(first[0])!r}",
                    code="idempotency_key_reused",
                    headers=NO_RETRY,
                )
            return first[1]
        self._values |= rewards
        if key is not None:
            self._answers[key] = (rewards, answer)
        if "reward" in rewards and not self.final.done():
            self.final.set_result(rewards["reward"])
        return answer


ReadBody = Callable[[JSON, "AttemptSession"], tuple[Rewards, JSON]]
"""Parses the rewards in a body for an attempt, and builds the answer. Raises `ApiError`."""


def read_rewards(body: JSON, attempt: AttemptSession) -> tuple[Rewards, JSON]:
    """Parse a body of named numbers such as `{"reward": 1.0, "format": 0.5}`. Raises `ApiError`."""
    rewards = _validate(body)
    if not rewards:
        raise bad_request('no rewards in body: send e.g. {"reward": 1.0}', code="invalid_reward")
    return rewards, {"object": "reward", "attempt": attempt.attempt_id, **rewards}


def read_event(body: JSON, attempt: AttemptSession) -> tuple[Rewards, JSON]:
    """Parse an event of agent-lightning 1.0: `{"event_type": "reward", "data": {"value": 1.0}}`.

    Other fields of its data and events of other types are accepted without effect.
    """
    kind, data = body.get("event_type"), body.get("data", {})
    if not isinstance(kind, str):
        raise bad_request("`event_type` is missing: send for example 'reward'", "event_type")
    if not isinstance(data, dict):
        raise bad_request("the data of an event must be a JSON object", "data")
    fields = cast("JSON", data)
    if kind == "reward" and "value" not in fields:
        raise bad_request("a reward event needs a `data.value`", "data.value", "invalid_reward")
    answer: JSON = {
        "event_type": kind,
        "rollout_id": attempt.rollout_id,
        "attempt_id": attempt.attempt_id,
        "timestamp": time.time(),
        "data": fields,
    }
    return _validate({"reward": fields["value"]}, "data.value") if kind == "reward" else {}, answer


def _validate(values: JSON, param: str | None = None) -> Rewards:
    """Convert posted reward values to finite numbers. Raises `ApiError` 400."""
    for name, value in values.items():
        if not isinstance(value, int | float):
            message = f"`{param or name}` = {format_value(value)}: must be a number, true or false"
            raise bad_request(message, param or name, "invalid_reward")
    try:
        reward = to_reward({"reward": 0.0, **values}, "of the request", "of the attempt")
    except RewardError as error:
        raise bad_request(str(error), param, "invalid_reward") from None
    return {n: reward.value if n == "reward" else reward.parts[n] for n in values}
