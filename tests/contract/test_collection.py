"""The check of test names sees names made of the time and of hash order, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest
from collection import differences

MODULE = """
import time
import pytest

@pytest.mark.parametrize("value", {values})
def test_one(value):
    assert value
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("values", "steady"),
    [
        pytest.param("[1, 'two']", True, marks=pytest.mark.full),
        pytest.param("[time.time_ns()]", False, marks=pytest.mark.full),
        ("{*map(str, range(50))}", False),
    ],
    ids=["fixed", "time", "hash order"],
)
def test_names_that_differ_between_processes_are_found(
    tmp_path: Path, values: str, steady: bool
) -> None:
    (tmp_path / "test_it.py").write_text(MODULE.format(values=values))
    count, lines = differences(tmp_path, apart=0.0)
    assert count > 0
    assert (lines == []) is steady
