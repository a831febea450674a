"""Single values: text, JSON, packed tokens and floats."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tutelage.errors import StoreError
from tutelage.store.values import (
    ESCAPED,
    dump_json,
    escape,
    finite,
    load_json,
    pack,
    unescape,
    unpack,
)

from .samples import json_values, text


@given(text)
@example(ESCAPED)
@example(ESCAPED + "\\x41")
@example("\ud83d\ude00 is two halves, not 😀\\n\n")
def test_any_text_survives_and_any_database_can_hold_it(value: str) -> None:
    stored = escape(value)
    assert unescape(stored) == value
    stored.encode("utf-8")
    assert "\x00" not in stored


def test_plain_text_is_stored_as_it_is() -> None:
    for value in ("", "hello", "Zażółć gęślą jaźń 😀", "back\\slash\n"):
        assert escape(value) == value


@given(json_values)
@example([10**50, -0.0, 1, 1.0, True, "\ud83d", {"": {}}])
def test_json_survives(value: object) -> None:
    assert repr(load_json(dump_json(value, "it"))) == repr(value)


def test_json_refuses_what_it_would_change() -> None:
    with pytest.raises(StoreError, match=r"^it\['a'\]\[1\] is -inf"):
        dump_json({"a": [0, -math.inf]}, "it")
    with pytest.raises(StoreError, match="JSON keys must be strings: use 'None'"):
        dump_json({None: 1}, "it")
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(StoreError, match="cannot write it as JSON"):
        dump_json(deep, "it")
    with pytest.raises(StoreError, match="cannot write it as JSON"):
        dump_json(10**5000, "it")


@given(st.lists(st.floats()), st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_packed_numbers_come_back_bit_for_bit(floats: list[float], ints: list[int]) -> None:
    packed = pack("d", floats, "it")
    assert pack("d", unpack("d", packed), "it") == packed
    assert [f for f in unpack("d", packed) if f == f] == [f for f in floats if f == f]
    assert unpack("i", pack("i", ints, "it")) == tuple(ints)


def test_packing_is_little_endian_on_every_machine() -> None:
    assert pack("i", [1, -2], "it") == bytes([1, 0, 0, 0, 254, 255, 255, 255])
    assert pack("d", [1.0], "it") == bytes([0, 0, 0, 0, 0, 0, 240, 63])


def test_numbers_that_do_not_fit() -> None:
    with pytest.raises(StoreError, match="ids of call 3"):
        pack("i", [-(2**31) - 1], "ids of call 3")
    with pytest.raises(StoreError, match="logprobs"):
        pack("d", ["x"], "logprobs")  # pyright: ignore
    for bad in (math.nan, math.inf, 10**400, None, "x"):
        with pytest.raises(StoreError, match="not a finite number"):
            finite(bad, "reward")  # pyright: ignore
    assert math.copysign(1, finite(-0.0, "reward")) == 1
