"""The embedded planner: trained once for a catalog, kept, and the same for everybody."""

from __future__ import annotations

from pathlib import Path

import pytest

from tutelage.orchestration.data.synthetic import builtin_graph
from tutelage.orchestration.plan.catalog import Catalog, CatalogTool
from tutelage.orchestration.planner.embedded import (
    PlannerRecipe,
    embedded_planner,
)

QUICK = PlannerRecipe(workflows=40, held_out=8, epochs=1, width=16)
CATALOG = Catalog(
    tuple(
        CatalogTool(f"{verb}_{noun}", f"{verb} the {noun}", ("text",), ("text",))
        for verb in ("read", "fold", "cut")
        for noun in ("letter", "map")
    )
)

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_first_use_trains_and_the_next_reads(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    first = embedded_planner(
        cache=tmp_path, recipe=QUICK, watch=lambda done, of: seen.append((done, of))
    )
    assert (first.fresh, first.unkept, seen) == (True, "", [(0, 1), (1, 1)])
    assert [entry.name for entry in tmp_path.iterdir()] == [first.path.name]
    again = embedded_planner(cache=tmp_path, recipe=QUICK, watch=lambda *_: seen.append((9, 9)))
    assert not again.fresh
    assert len(seen) == 2
    text = "Summarise the report and read it aloud"
    assert first.model.plan(text, 0) == again.model.plan(text, 0)
    assert all(node.tool in builtin_graph().catalog for node in again.model.plan(text, 0).nodes)


def test_each_catalog_and_recipe_has_its_own_and_progress_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert QUICK.fingerprint(None) != QUICK.fingerprint(CATALOG)
    assert QUICK.fingerprint(None) != PlannerRecipe(40, 8, 2, 16).fingerprint(None)
    assert QUICK.fingerprint(CATALOG) == QUICK.fingerprint(CATALOG)
    found = embedded_planner(CATALOG, tmp_path, recipe=QUICK)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert "One is trained now, once" in lines[0]
    assert "epoch 1 of 1" in lines[1]
    assert all(node.tool in CATALOG for node in found.model.plan("Read the letter", 0).nodes)


def test_a_damaged_file_is_made_again(tmp_path: Path) -> None:
    path = embedded_planner(CATALOG, tmp_path, recipe=QUICK).path
    path.write_bytes(b"torn")
    assert embedded_planner(CATALOG, tmp_path, recipe=QUICK).fresh


def test_a_cache_that_cannot_be_written_is_said_and_no_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = embedded_planner(CATALOG, tmp_path / "file" / "cache", recipe=QUICK)
    assert found.unkept
    assert found.model.plan("Read the letter", 0).nodes
