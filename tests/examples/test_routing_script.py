"""examples/orchestration/scripts/train_phase2.py: the document's command for phase 2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parents[2] / "examples" / "orchestration"


def script(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "scripts/train_phase2.py", *args],
        cwd=HERE,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.full
def test_phase_2_as_written_and_carrying_phase_1_along(tmp_path: Path) -> None:
    first = {"epoch": 1, "model_state_dict": {}, "optimizer_state_dict": {}, "val_loss": 1.0}
    torch.save(first, tmp_path / "phase1_best.pth")
    done = script(
        "--config", "config.yaml", "--checkpoint", str(tmp_path / "phase1_best.pth"),
        "--output_dir", str(tmp_path), "--episodes", "1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "| one-step lookahead |" in done.stdout
    state = torch.load(tmp_path / "checkpoint_best.pth", weights_only=True)
    assert state["phase1"]["epoch"] == 1
    assert {"epoch", "model_state_dict", "optimizer_state_dict", "val_loss"} <= set(state)


@pytest.mark.full  # three seconds of imports
def test_a_wrong_checkpoint_is_told_without_a_traceback(tmp_path: Path) -> None:
    done = script("--checkpoint", "absent.pth", "--output_dir", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.startswith("error: cannot read the checkpoint 'absent.pth'")
