"""A runner for the command, fakes for the modules below it, and an empty working directory."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tutelage.cli import build_app
from tutelage.config import Machine

Tutelage = Callable[..., Any]
Fake = Callable[..., None]


@pytest.fixture
def tutelage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tutelage:
    """Runs the command in an empty directory, at 80 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def run(*args: str, typed: str | None = None) -> Any:
        return CliRunner().invoke(build_app(), args, input=typed, prog_name="tutelage")

    return run


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Puts a module of fakes in the place of a real one."""

    def put(name: str, **members: Any) -> None:
        module = types.ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
        parent, _, last = name.rpartition(".")
        monkeypatch.setattr(importlib.import_module(parent), last, module, raising=False)

    return put


@pytest.fixture
def laptop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of two cores, whatever this one has."""
    from tutelage.policy import machine

    monkeypatch.setattr(machine, "detect_machine", lambda: Machine(cuda_devices=0, cores=2))
