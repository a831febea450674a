"""Tool arguments that go out in pieces are a JSON object at their end, whatever came."""

from __future__ import annotations

import json

import pytest

from tutelage.gateway.dialects.unfinished import begins_an_object, ending

from .test_gateway_passing import event
from .test_gateway_passing_streams import END, messages, part, served

WHOLE = (
    '{"a": [1, -2.5e+3, true, {"b\\u00e9": "x\\\\\\"y", "c": null, "d": []}], '
    '"e": "f", "g": {}, "h": 12}'
)


@pytest.mark.parametrize("size", range(1, len(WHOLE)))
def test_any_beginning_of_an_object_has_an_ending(size: int) -> None:
    told = WHOLE[:size]
    assert begins_an_object(told)
    made = json.loads(told + ending(told, {"arguments": "x"}))
    assert made["arguments"] == "x"
    assert len(made) > 1 or "a" not in made


@pytest.mark.parametrize(
    "text", ["", "[1", '"a"', "{bad", '{"a": 1, bad', '{"a": "x\ny"}', "{} {}"]
)
def test_what_can_be_no_object_waits(text: str) -> None:
    assert not begins_an_object(text)


@pytest.mark.parametrize(
    ("pieces", "made"),
    [
        (["{bad"], {"arguments": "{bad"}),
        (["{", "bad"], {"arguments": "{bad"}),
        (['{"a": 1', ", b", "ad}"], {"a": 1, "arguments": '{"a": 1, bad}'}),
        (['{"a": "x', "\n", '"}'], {"a": "x", "arguments": '{"a": "x\n"}'}),
        (["{} {}"], {"arguments": "{} {}"}),
        (['{"a": ["', "x"], {"a": ["x"], "arguments": '{"a": ["x'}),
        (['{"a": "', *["x" * 10] * 600, '"}'], {"a": "x" * 6000}),
        (['{"a": 1e400}'], {"arguments": '{"a": 1e400}'}),
        (['{"a": 1', "e400", "}"], {"a": 1, "arguments": '{"a": 1e400}'}),
        (['{"a": [', "9" * 30, "]}"], {"a": [], "arguments": '{"a": [' + "9" * 30 + "]}"}),
    ],
)
def test_a_stream_of_messages_has_a_call_that_can_be_read(
    pieces: list[str], made: dict[str, object]
) -> None:
    chunks = [event(part(0, "c0", "f", "")), *(event(part(0, None, None, p)) for p in pieces), *END]
    with served(chunks) as (session, _), messages(session) as stream:
        (block,) = stream.get_final_message().content
    assert block.input == made
