"""Spans of versions are cut and joined as a list with the version of each token would be."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tutelage.engine.versions import (
    join_spans,
    merge_spans,
    newest_version,
    truncate_spans,
    version_spans,
)
from tutelage.types import Sampled, StopReason


def reply(versions: list[int]) -> Sampled:
    """A reply whose tokens these versions sampled, in order."""
    count = len(versions)
    spans = merge_spans((version, i + 1) for i, version in enumerate(versions))
    return Sampled(
        tuple(range(count)),
        (0.0,) * count,
        (0.0,) * count,
        StopReason.STOP,
        versions[0],
        versions=spans,
    )


def by_token(spans: tuple[tuple[int, int], ...] | None, count: int, version: int) -> list[int]:
    """The slow twin: the version of each token."""
    out: list[int] = []
    for span, end in spans or ((version, count),):
        out += [span] * (end - len(out))
    return out


rising = st.lists(st.integers(0, 3), min_size=1, max_size=12).map(sorted)


@settings(max_examples=100, deadline=None)
@given(rising, st.integers(1, 12))
def test_cutting(versions: list[int], count: int) -> None:
    count = min(count, len(versions))
    found = truncate_spans(reply(versions), count)
    assert by_token(found, count, versions[0]) == versions[:count]
    assert (found is None) == (len(set(versions[:count])) == 1)


@settings(max_examples=100, deadline=None)
@given(rising, st.integers(0, 3), rising)
def test_joining_gives_the_tokens_in_between_to_the_first(
    first: list[int], forced: int, later: list[int]
) -> None:
    rest = [version + first[-1] for version in later]
    whole = first + [first[-1]] * forced + rest
    found = join_spans(reply(first), forced, reply(rest))
    assert by_token(found, len(whole), first[0]) == whole


def test_a_reply_of_one_version_has_one_span_and_no_record_of_it() -> None:
    single = reply([4, 4, 4])
    assert single.versions is None
    assert version_spans(single) == ((4, 3),)
    assert newest_version(single) == 4
    assert newest_version(reply([4, 5, 5])) == 5
    assert reply([4, 5, 5]).versions == ((4, 1), (5, 3))
