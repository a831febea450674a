"""Prompts: inputs filled in, wherever and however often they are named."""

from __future__ import annotations

import json
import re

import pytest

from tutelage.orchestration import Node, Plan
from tutelage.orchestration.execution.prompts import NOTHING, node_prompt


def told(argument: object, outputs: dict[int, str]) -> str:
    """An argument as a worker reads it, which may name one of eight nodes."""
    plan = Plan("x", (*(Node("t") for _ in range(8)), Node("a", {"x": argument})))
    (line,) = re.findall(r"^- x: (.*)$", node_prompt(plan, 8, outputs), re.MULTILINE)
    return line


OUTPUTS = {0: '{"title": "Q1", "pages": [1, 2]}', 1: "plain", 2: '["first", {"x": 3}]'}


@pytest.mark.parametrize(
    ("given", "filled"),
    [
        ("<node-1>", "plain"),
        ("a <node-1> b <node-1>", "a plain b plain"),
        ("<node-0>.title of <node-1>", "Q1 of plain"),
        ("<node-0>.pages", "[1, 2]"),
        ("See <node-1>.Then go", "See plain.Then go"),
        ("<node-2>.1 and <node-2>[0]", '{"x": 3} and first'),
        ("<node-1>.50 and <node-1>[2]", "plain.50 and plain[2]"),
        ("<node-0>.missing", OUTPUTS[0] + ".missing"),
        ("<node-0>.pages[1]", "2"),
        ("<node-2>[1].x and <node-2>.1.x", "3 and 3"),
        ("<node-0>.title.Then <node-0>.pages.7", "Q1.Then [1, 2].7"),
        ("<node-7>", NOTHING),
        (["<node-1>", {"x": "<node-1>"}], ["plain", {"x": "plain"}]),
        (3, 3),
        (None, None),
    ],
)
def test_references_are_filled_in(given: object, filled: object) -> None:
    assert told(given, OUTPUTS) == (filled if isinstance(filled, str) else json.dumps(filled))


def test_an_output_is_never_read_as_a_reference_again() -> None:
    """What a worker says may look like a reference; it is data."""
    assert told("<node-0> <node-1>", {0: "<node-1>", 1: "secret"}) == "<node-1> secret"


def test_lists_and_objects_are_shown_as_json() -> None:
    plan = Plan("x", (Node("a", {"files": ["ä.txt", "b.txt"], "n": 3}),))
    text = node_prompt(plan, 0, {})
    assert '- files: ["ä.txt", "b.txt"]' in text
    assert "- n: 3" in text
