"""What the built-in rewards make of sentences is what their page says."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from tutelage.rewards import resolve_reward

PAGE = Path(__file__).parents[2] / "docs" / "rewards.md"


def table() -> list[tuple[str, str, float]]:
    """Reward, final text and what it earns, of each cell of the page's table."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| final text |"))
    names = [cell.strip(" `") for cell in lines[start].strip("|").split("|")[1:]]
    found: list[tuple[str, str, float]] = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        text, *earned = (cell.strip(" `") for cell in line.strip("|").split("|"))
        found += [(name, text, float(e)) for name, e in zip(names, earned, strict=True)]
    return found


def test_the_table_is_there() -> None:
    assert len(table()) == 27
    assert {earned for _, _, earned in table()} == {0.0, 1.0}


@pytest.mark.parametrize(("name", "text", "earned"), table())
async def test_a_sentence_earns_what_the_page_says(name: str, text: str, earned: float) -> None:
    found = resolve_reward(name).fn(prediction=text, answer="46")
    grade = await found if inspect.isawaitable(found) else found
    assert (grade["reward"] if isinstance(grade, dict) else grade) == earned
