"""The fifteen plain requests of `docs/orchestration.md`, with the tools that a plan may use."""

from __future__ import annotations

import json
import re
from pathlib import Path

from benchmarks.house.planner_recipe import EVERYDAY

from tutelage.orchestration.data import synthetic
from tutelage.orchestration.data.synthetic import builtin_graph
from tutelage.orchestration.planner.saving import shipped_planner

PAGE = Path(__file__).parents[2] / "docs/orchestration.md"


def acceptable() -> dict[str, set[str]]:
    """The table of the page: tools by request."""
    section = PAGE.read_text(encoding="utf-8").partition("### Fifteen plain requests")[2]
    rows = re.findall(r"^\| ([^|]+?) \|([^|]*)\|$", section.partition("\n## ")[0], re.MULTILINE)
    return {request: set(re.findall(r"`(\w+)`", tools)) for request, tools in rows[1:]}


def test_the_page_has_fifteen_requests_with_tools_that_exist() -> None:
    requests = acceptable()
    assert len(requests) == 15
    assert {tool for tools in requests.values() for tool in tools} <= {
        *builtin_graph().catalog.names
    }
    assert sum(bool(tools) for tools in requests.values()) >= 8


def fives(text: str) -> set[tuple[str, ...]]:
    """Every five words in a row."""
    words = re.findall(r"[a-z0-9]+", text.lower())
    return {tuple(words[i : i + 5]) for i in range(len(words) - 4)}


def learned() -> set[tuple[str, ...]]:
    """Every five words in a row of the training text."""
    data = Path(synthetic.__file__).parent
    names = [EVERYDAY, data / "other_requests.json", data / "builtin_tools.json"]
    lists = [json.loads(name.read_text(encoding="utf-8")) for name in names]
    return set[tuple[str, ...]]().union(*(fives(text) for text in texts_of(lists)))


def requests_of(*files: str) -> list[str]:
    """The requests of files in `benchmarks/orchestration`."""
    folder = PAGE.parents[1] / "benchmarks/orchestration"
    return [
        json.loads(line)["request"]
        for name in files
        for line in (folder / name).read_text(encoding="utf-8").splitlines()
    ]


def test_training_text_has_no_five_words_in_a_row_of_the_requests() -> None:
    rows = requests_of("requests/kit.jsonl", "requests/off_catalog.jsonl")
    assert len(rows) == 130
    shared = {five for row in [*rows, *acceptable()] for five in fives(row)} & learned()
    assert len(shared) == 0


def texts_of(value: object) -> list[str]:
    """All texts of a JSON value."""
    match value:
        case str() as text:
            return [text]
        case list() as listed:
            return [text for each in listed for text in texts_of(each)]
        case dict() as named:
            return [text for each in named.values() for text in texts_of(each)]
        case _:
            return []


def test_each_is_planned_with_its_tools_or_declined() -> None:
    model = shipped_planner()
    assert model.confidence is not None
    # The first command of the documentation.
    first = model.plan("Summarise the article and translate it to French")
    assert [node.tool for node in first.nodes] == ["summarize_text", "translate_text"]
    planned = 0
    for request, tools in acceptable().items():
        (made,) = model.plan_all([request])
        assert made.confidence is not None
        if made.confidence >= model.confidence.threshold:
            assert {node.tool for node in made.plan.nodes} <= tools, request
            planned += 1
    assert planned >= 8
