"""Law 1: rows hold what was sampled, merged only where the next prompt extends token for token."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tutelage.rollouts.rows import build_rows
from tutelage.types import Call, Message, Sampled, Sampling, StopReason


def call(
    index: int,
    prompt: tuple[int, ...],
    sampled: tuple[int, ...],
    *,
    agent: str = "main",
    version: int = 0,
    policy: str | None = "main",
) -> Call:
    logprobs = tuple(-(index + 1) - t / 1000 for t in sampled)
    return Call(
        id=f"call_{index}",
        agent=agent,
        index=index,
        messages=(),
        prompt_ids=prompt,
        sampled=Sampled(sampled, logprobs, logprobs, StopReason.STOP, version),
        reply=Message("assistant"),
        sampling=Sampling(),
        policy=policy,
    )


def test_a_prompt_that_extends_a_row_joins_it() -> None:
    first = call(0, (1, 2), (3, 4))
    second = call(1, (1, 2, 3, 4, 9, 9), (5,), version=2)
    (row,) = build_rows([first, second])
    assert row.ids == (1, 2, 3, 4, 9, 9, 5)
    assert row.mask == (0, 0, 1, 1, 0, 0, 1)
    assert row.logprobs == (0.0, 0.0, -1.003, -1.004, 0.0, 0.0, -2.005)
    assert (row.oldest_version, row.newest_version) == (0, 2)
    assert row.n_trained == 3


def test_a_row_knows_the_oldest_and_the_newest_version_of_its_tokens() -> None:
    first = call(0, (1, 2), (3, 4), version=1)
    changed = replace(first.sampled, versions=((1, 1), (3, 2)))
    (row,) = build_rows([replace(first, sampled=changed)])
    assert (row.oldest_version, row.newest_version) == (1, 3)
    (row,) = build_rows(
        [replace(first, sampled=changed), call(1, (1, 2, 3, 4, 9), (5,), version=2)]
    )
    assert (row.oldest_version, row.newest_version) == (1, 3)


def test_one_other_token_starts_a_new_row() -> None:
    rows = build_rows([call(0, (1, 2), (3, 4)), call(1, (1, 2, 3, 5, 9), (5,), version=2)])
    assert [r.ids for r in rows] == [(1, 2, 3, 4), (1, 2, 3, 5, 9, 5)]
    assert [r.mask for r in rows] == [(0, 0, 1, 1), (0, 0, 0, 0, 0, 1)]
    assert [(r.oldest_version, r.newest_version) for r in rows] == [(0, 0), (2, 2)]


def test_calls_are_taken_in_time_order_and_find_their_own_row() -> None:
    calls = [
        call(0, (1,), (2,)),
        call(1, (7,), (8,)),
        call(2, (1, 2, 3), (4,)),
        call(3, (7, 8), (9,)),
    ]
    rows = build_rows(reversed(calls))
    assert [r.ids for r in rows] == [(1, 2, 3, 4), (7, 8, 9)]


def test_calls_that_train_another_policy_or_none_make_no_rows() -> None:
    calls = [
        call(0, (1,), (2,)),
        call(1, (5,), (6,), agent="judge", policy="b"),
        call(2, (1, 2), (3,), agent="helper"),
        call(3, (7,), (8,), policy=None),
    ]
    assert [r.ids for r in build_rows(calls)] == [(1, 2, 3)]
    assert [r.ids for r in build_rows(calls, "b")] == [(5, 6)]


def test_a_call_that_is_not_trained_lies_in_a_row_without_a_mask() -> None:
    """What another agent sampled may be in a later prompt: it is observed there."""
    calls = [call(0, (1,), (2,), policy=None), call(1, (1, 2, 3), (4,))]
    (row,) = build_rows(calls)
    assert (row.ids, row.mask) == ((1, 2, 3, 4), (0, 0, 0, 1))


def test_a_call_without_tokens_makes_no_row() -> None:
    assert build_rows([call(0, (1, 2), ())]) == []
    assert build_rows([]) == []


ids = st.lists(st.integers(0, 3), min_size=1, max_size=5).map(tuple)


@given(
    st.lists(st.tuples(st.sampled_from(["extend", "same", "edit", "fresh"]), ids, ids), max_size=8)
)
@settings(max_examples=150, deadline=None)
def test_every_sampled_token_is_trained_once_in_its_own_context(
    story: list[tuple[str, tuple[int, ...], tuple[int, ...]]],
) -> None:
    calls: list[Call] = []
    known: tuple[int, ...] = ()
    for index, (how, more, sampled) in enumerate(story):
        prompt = {
            "extend": known + more,
            "same": known or more,
            "edit": known[:-1] + more,
            "fresh": more,
        }[how]
        calls.append(call(index, prompt, sampled))
        known = prompt + sampled
    rows = build_rows(calls)
    trained: dict[tuple[tuple[int, ...], float], int] = {}
    for row in rows:
        assert len(row.ids) == len(row.mask) == len(row.logprobs)
        for at, (token, mask, logp) in enumerate(zip(row.ids, row.mask, row.logprobs, strict=True)):
            assert mask or logp == 0.0
            if mask:
                key = ((*row.ids[:at], token), logp)
                trained[key] = trained.get(key, 0) + 1
    wanted: dict[tuple[tuple[int, ...], float], int] = {}
    for made in calls:
        for i, logp in enumerate(made.sampled.logprobs):
            key = (made.prompt_ids + made.sampled.token_ids[: i + 1], logp)
            wanted[key] = wanted.get(key, 0) + 1
    assert trained == wanted
