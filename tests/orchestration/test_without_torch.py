"""`tutelage orchestrate` where torch is not installed: plans are copied from the nearest known."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tutelage.orchestration.data.neighbours import NearestTexts, hashed
from tutelage.orchestration.data.synthetic import builtin_graph, generate
from tutelage.seeds import SeedTree

WITHOUT = """
import sys

sys.modules["torch"] = None  # importing it fails, and it is not found
from tutelage.cli import main

main()
"""


@pytest.mark.parametrize("verb", [pytest.param("plan", marks=pytest.mark.full), "run"])
def test_an_instruction_is_planned_and_run_without_torch(verb: str, tmp_path: Path) -> None:
    asked = [verb, "Summarise the report and translate it", *(["--json"] * (verb == "run"))]
    command = [sys.executable, "-c", WITHOUT, "orchestrate", *asked]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert "Traceback" not in done.stderr
    assert "for want of torch" in done.stderr
    if verb == "run":
        assert json.loads(done.stdout)["plan"]["nodes"]
    else:
        assert done.returncode == 0, done.stderr
        assert done.stdout


def test_the_closest_is_the_nearest_of_the_matrix() -> None:
    flows = generate(builtin_graph(), 60, SeedTree(3))
    known = [flow.instruction for flow in flows[:40]]
    found = NearestTexts.of(known)
    for flow in flows:
        places, cosines = found.nearest([hashed(flow.instruction)], 2)
        if cosines[0, 0] - cosines[0, 1] > 1e-5:
            assert found.closest(hashed(flow.instruction)) == places[0, 0]
    assert [found.closest(hashed(text)) for text in known] == [known.index(t) for t in known]
