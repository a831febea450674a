"""Which versions of a policy sampled the tokens of a reply, as spans (version, end).

Nearly every reply is of one version, and says so by `policy_version` alone. Where an engine takes
over new weights while a reply is sampled, `Sampled.versions` has a span for each: the version, and
the number of the token before which it ends, as vLLM gives them. `policy_version` is the version of
the first span, which is the oldest. `thinking.py` cuts and joins replies; `rollouts/rows.py` asks
for the oldest and the newest of a row.
"""

from __future__ import annotations

from collections.abc import Iterable

from tutelage.types import Sampled

Spans = tuple[tuple[int, int], ...]


def spans_of(sampled: Sampled) -> Spans:
    """The spans of a reply: one where it is of one version."""
    return sampled.versions or ((sampled.policy_version, len(sampled.token_ids)),)


def newest_version(sampled: Sampled) -> int:
    """The newest version that sampled any of the tokens."""
    return sampled.versions[-1][0] if sampled.versions else sampled.policy_version


def merged(spans: Iterable[tuple[int, int]]) -> Spans | None:
    """Spans as `Sampled.versions` has them: without empty ones, neighbours of one version as one,
    None where that leaves one version."""
    out: list[tuple[int, int]] = []
    start = 0
    for version, end in spans:
        if end <= start:
            continue
        if out and out[-1][0] == version:
            out.pop()
        out.append((version, end))
        start = end
    return tuple(out) if len(out) > 1 else None


def cut(sampled: Sampled, count: int) -> Spans | None:
    """The versions of the first `count` tokens."""
    return merged((version, min(end, count)) for version, end in spans_of(sampled))


def joined(first: Sampled, forced: int, rest: Sampled) -> Spans | None:
    """The versions of two replies with `forced` tokens between them, which nothing sampled: they
    count as the first's."""
    known, start = spans_of(first), len(first.token_ids) + forced
    before = (*known[:-1], (known[-1][0], start))
    return merged([*before, *((version, start + end) for version, end in spans_of(rest))])
