"""Build training rows of calls by exact prefix, so that training uses exactly the sampled tokens.

A call extends a row if its prompt begins with that row's ids, token for token; the new prompt
tokens get mask 0 and the sampled ones mask 1. Otherwise a new row starts. Nothing is decoded and
encoded again. A token forced by a grammar or as the end of a thought has mask 0; if a grammar only
narrowed the choice, the row holds the data to apply the same constraint in training.
`weights/batch.py` makes batches of rows.
"""

from __future__ import annotations

from collections.abc import Iterable

from tutelage.engine.versions import newest_version
from tutelage.policy.grammar import ConstrainedSpan
from tutelage.policy.row import Row
from tutelage.resources import POLICY
from tutelage.types import Call


def build_rows(calls: Iterable[Call], policy: str = POLICY) -> list[Row]:
    """Return the training rows of one attempt, in time order, from its calls to `policy`.

    Calls of other models and of untrained agents (`Call.policy`) give no rows, nor do calls whose
    grammar allows a single reply.
    """
    rows: list[Row] = []
    for call in sorted(calls, key=lambda c: c.index):
        if call.policy != policy or not call.sampled.token_ids:
            continue
        places = reversed(range(len(rows)))
        prompt = call.prompt_ids
        number = next((i for i in places if prompt[: len(rows[i].ids)] == rows[i].ids), None)
        if number is None:
            rows.append(_extend_row(None, call))
        else:
            rows[number] = _extend_row(rows[number], call)
    return [row for row in rows if row.n_trained]


def _extend_row(row: Row | None, call: Call) -> Row:
    """Return the row extended by a call, or a new row."""
    sampled = call.sampled
    oldest, newest = sampled.policy_version, newest_version(sampled)
    row = row or Row((), (), oldest_version=oldest, newest_version=newest)
    narrowed = row.narrowed
    trained = tuple(int(count != 1) for count in sampled.allowed) or (1,) * len(sampled.token_ids)
    if max(sampled.allowed, default=0) > 1 and call.constraint is not None:
        start = len(call.prompt_ids)
        narrowed += (ConstrainedSpan(start, sampled.allowed, call.tools, call.constraint),)
    observed = len(call.prompt_ids) - len(row.ids)
    rewards, mask = row.rewards, row.mask + (0,) * observed + trained
    if call.reward is not None and any(mask):
        rewards += ((max(i for i, each in enumerate(mask) if each), call.reward),)
    return Row(
        ids=call.prompt_ids + sampled.token_ids,
        mask=mask,
        logprobs=row.logprobs + (0.0,) * observed + sampled.logprobs,
        oldest_version=min(row.oldest_version, oldest),
        newest_version=max(row.newest_version, newest),
        narrowed=narrowed,
        rewards=rewards,
    )
