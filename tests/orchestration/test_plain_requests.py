"""The fifteen plain requests of `docs/orchestration.md`, with the tools that a plan may use."""

from __future__ import annotations

import re
from pathlib import Path

from tutelage.orchestration.data.synthetic import builtin_graph

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
