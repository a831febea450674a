"""Calls to training rows, by exact prefix: law 1, train exactly what was sampled.

A call continues a row when its prompt begins with that row's ids, token for token; then the new
prompt tokens join with mask 0 and the sampled ones with mask 1. Otherwise a new row starts. Nothing
is decoded and encoded again. `train/step.py` turns rows into a loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass

from tutelage.types import Call


@dataclass(frozen=True, slots=True)
class Row:
    """One training sequence. Tuples have equal length; `logprobs` is 0 where `mask` is 0."""

    ids: tuple[int, ...]
    mask: tuple[int, ...]
    logprobs: tuple[float, ...]
    policy_version: int
    """The oldest version that sampled any of its tokens."""

    @property
    def trained(self) -> int:
        """Number of tokens with a loss."""
        return sum(self.mask)


def build_rows(calls: Iterable[Call], trainable: Set[str] = frozenset({"main"})) -> list[Row]:
    """Rows of one attempt, in time order; calls of agents not in `trainable` make none."""
    rows: list[Row] = []
    for call in sorted(calls, key=lambda c: c.index):
        if call.agent not in trainable or not call.sampled.token_ids:
            continue
        found = next(
            (i for i in reversed(range(len(rows))) if _extends(rows[i], call.prompt_ids)), None
        )
        if found is None:
            rows.append(_join(None, call))
        else:
            rows[found] = _join(rows[found], call)
    return rows


def _extends(row: Row, prompt: tuple[int, ...]) -> bool:
    return len(prompt) >= len(row.ids) and prompt[: len(row.ids)] == row.ids


def _join(row: Row | None, call: Call) -> Row:
    sampled = call.sampled
    ids, mask, logprobs, version = (
        ((), (), (), sampled.policy_version)
        if row is None
        else (row.ids, row.mask, row.logprobs, min(row.policy_version, sampled.policy_version))
    )
    observed = len(call.prompt_ids) - len(ids)
    return Row(
        ids=call.prompt_ids + sampled.token_ids,
        mask=mask + (0,) * observed + (1,) * len(sampled.token_ids),
        logprobs=logprobs + (0.0,) * observed + sampled.logprobs,
        policy_version=version,
    )
