"""Describe the policy versions that sampled a reply's tokens, as spans (version, end).

Nearly every reply has one version, given by `policy_version` alone. If an engine loads new weights
while a reply is sampled, `Sampled.versions` has a span for each version: the version, and the
number of the token before which it ends, as in vLLM. `policy_version` is the version of the first
span, which is the oldest. `thinking.py` truncates and joins replies; `rollouts/rows.py` reads the
oldest and the newest version of a row.
"""

from __future__ import annotations

from collections.abc import Iterable

from tutelage.types import Sampled

Spans = tuple[tuple[int, int], ...]


def version_spans(sampled: Sampled) -> Spans:
    """Return a reply's policy version spans: one span if a single version sampled all tokens."""
    return sampled.versions or ((sampled.policy_version, len(sampled.token_ids)),)


def newest_version(sampled: Sampled) -> int:
    """Return the newest policy version that sampled any of a reply's tokens."""
    return sampled.versions[-1][0] if sampled.versions else sampled.policy_version


def merge_spans(spans: Iterable[tuple[int, int]]) -> Spans | None:
    """Merge version spans for `Sampled.versions`, or return None if all have the same version.

    Empty spans are removed, and adjacent spans of one version are merged.
    """
    merged: list[tuple[int, int]] = []
    start = 0
    for version, end in spans:
        if end <= start:
            continue
        if merged and merged[-1][0] == version:
            merged.pop()
        merged.append((version, end))
        start = end
    return tuple(merged) if len(merged) > 1 else None


def truncate_spans(sampled: Sampled, count: int) -> Spans | None:
    """Return the policy version spans of a reply's first `count` tokens."""
    return merge_spans((version, min(end, count)) for version, end in version_spans(sampled))


def join_spans(first: Sampled, num_forced: int, rest: Sampled) -> Spans | None:
    """Join the version spans of two replies with `num_forced` unsampled tokens between them.

    The forced tokens count as part of the first reply.
    """
    spans, start = version_spans(first), len(first.token_ids) + num_forced
    before = (*spans[:-1], (spans[-1][0], start))
    return merge_spans([*before, *((version, start + end) for version, end in version_spans(rest))])
