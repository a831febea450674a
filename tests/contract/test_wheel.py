"""A wheel built from this tree, installed in an environment of its own, with nothing in caches."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
QUICK = (
    "train math --steps 1 sft.max_steps=2 sft.cooldown_steps=1 sft.mixed_steps=1 data.train_tasks=8"
    " trainer.test_tasks=2 trainer.val_tasks=2 data.train_batch_size=2 agent.num_chains=2"
    " trainer.control=false"
)
SEARCH = "train math --algorithm screen --train-size 8 --val-size 8 --test-size 8 --rollouts 200"
PLAN = 'orchestrate plan "Summarise the article and translate the summary to French"'
LONG = (pytest.mark.full, pytest.mark.timeout(3600))


def done(*words: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command with no variable that points at this tree."""
    known = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(
        [*map(str, words)], cwd=cwd, env=known | environment, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree."""
    place = tmp_path_factory.mktemp("wheel")
    words = ("wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index", "-w", place, ROOT)
    built = done(sys.executable, "-m", "pip", *words, cwd=place)
    assert built.returncode == 0, built.stderr
    (found,) = place.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command in an environment that has the wheel, and of this one all but the package."""
    place = tmp_path_factory.mktemp("fresh")
    venv.create(place, symlinks=True)
    (site,) = place.glob("lib/python*/site-packages")
    # Files .pth there, of which one leads to this tree, are not read: it is no site folder.
    (site / "others.pth").write_text(sysconfig.get_paths()["purelib"])
    words = ("--python", place / "bin" / "python", "install", "-q", "--no-deps", "--no-index")
    done(sys.executable, "-m", "pip", *words, wheel, cwd=place).check_returncode()
    return place / "bin" / "tutelage"


def test_the_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    held = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("tutelage/")}
    there = (path for path in (ROOT / "src" / "tutelage").rglob("*") if path.is_file())
    wanted = {str(p.relative_to(ROOT / "src")) for p in there if p.suffix != ".pyc"}
    assert held == wanted


@pytest.mark.parametrize(
    ("command", "codes"),
    [
        pytest.param(QUICK, (0,), marks=LONG, id="train math"),
        pytest.param(SEARCH, (0, 3, 4), marks=LONG, id="a prompt search"),  # the verdict's
        pytest.param(PLAN, (0,), marks=LONG, id="a plan"),
    ],
)
def test_the_wheel_works_without_this_tree(
    command: str, codes: tuple[int, ...], installed: Path, tmp_path: Path
) -> None:
    place = {"HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    ended = done(installed, *shlex.split(command), cwd=tmp_path, **place)
    assert ended.returncode in codes, ended.stdout + ended.stderr
    asked = (installed.with_name("python"), "-c", "import tutelage; print(tutelage.__file__)")
    where = done(*asked, cwd=tmp_path, **place).stdout.strip()
    assert Path(where).is_relative_to(installed.parents[1])
