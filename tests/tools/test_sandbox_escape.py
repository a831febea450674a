"""Attacks on every tier that claims to stop them, as root and as a plain user."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import venv
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sandbox_attacks import ATTACKS

import tutelage
from tutelage.tools.sandbox import tier_problems

SOURCE = Path(tutelage.__file__).parents[1]
NOBODY = 65534
USERS = ("root", "nobody") if os.geteuid() == 0 else ("me",)
"""Who attacks: everyone that this user can be."""
TIERS = ("namespaces", "rlimit")
"""The tiers that claim to stop an attack."""
ENDINGS = (
    "no connection arrived",
    "nothing is left running",
    "no folder is left",
    "the server lives",
)


@functools.cache
def interpreter_for_nobody() -> str | None:
    """A Python 3.11+ that a user without rights can run, found by running it as one."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        return None
    for candidate in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        # It must be able to start itself again, as the sandbox does.
        inner = "import asyncio, sys; assert sys.version_info >= (3, 11)"
        code = f"import os, sys; os.execv(sys.executable, [sys.executable, '-c', {inner!r}])"
        tried = subprocess.run([*as_nobody(), candidate, "-c", code], capture_output=True)
        if tried.returncode == 0:
            return candidate
    return None


def as_nobody() -> list[str]:
    return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]


@functools.cache
def outcomes() -> dict[tuple[str, str], Future[dict[str, Any]]]:
    """All attacks on each tier that works here, by each user, at once: most of it is waiting."""
    work = [tier for tier in TIERS if tier_problems()[tier] is None]
    pairs = [(tier, user) for tier in work for user in USERS]
    pool = ThreadPoolExecutor(max(1, len(pairs)))
    return {pair: pool.submit(outcome, *pair) for pair in pairs}


def outcome(tier: str, user: str) -> dict[str, Any]:
    """All attacks on a tier as a user, in a process of its own."""
    command = [sys.executable]
    if user == "nobody":
        python = interpreter_for_nobody()
        if python is None:
            pytest.skip("no way to become a plain user, or no Python that one can run")
        command = [*as_nobody(), python]
    done = subprocess.run(
        [*command, str(Path(__file__).with_name("sandbox_attacks.py")), str(SOURCE), tier],
        capture_output=True,
        text=True,
        timeout=280,
        env={"PATH": os.environ["PATH"], "OPENAI_API_KEY": "sk-tutelage-secret-93712"},
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("attack", [*ATTACKS, *ENDINGS])
@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("tier", TIERS)
def test_the_attack_fails(tier: str, user: str, attack: str) -> None:
    problem = tier_problems()[tier]  # pyright: ignore[reportArgumentType]
    if problem is not None:
        pytest.skip(f"the tier {tier!r} does not work here: {problem}")
    held, seen = outcomes()[tier, user].result()[attack]
    assert held, seen


EDITABLE = """
import asyncio, json, os, sys, types
for name in ("tutelage", "tutelage.tools", "tutelage.tools.sandbox"):
    module = types.ModuleType(name)
    module.__path__ = [os.path.join(sys.argv[1], *name.split("."))]
    sys.modules[name] = module
from tutelage.tools.sandbox.client import Sandbox


async def main():
    async with Sandbox(tier=sys.argv[2]) as sandbox:
        print(json.dumps([(await sandbox.run(code)).output for code in json.loads(sys.argv[3])]))


asyncio.run(main())
"""
TRY = "try:\n    print({})\nexcept BaseException as error:\n    print(type(error).__name__)"


@pytest.mark.parametrize("tier", TIERS)
def test_a_project_that_is_installed_as_editable_stays_closed(tier: str, tmp_path: Path) -> None:
    """Its answers and keys lie beside the package, which stands on `sys.path`."""
    problem = tier_problems()[tier]  # pyright: ignore[reportArgumentType]
    if problem is not None:
        pytest.skip(f"the tier {tier!r} does not work here: {problem}")
    venv.create(tmp_path / "venv", symlinks=True)
    packages = next((tmp_path / "venv" / "lib").glob("python*/site-packages"))
    project = tmp_path / "project"
    (project / "answers").mkdir(parents=True)
    (packages / "__editable__.project.pth").write_text(f"{project}\n")
    (packages / "unlisted.py").write_text("x = 1")
    (packages / "six.py").write_text("x = 66")
    (packages / "sympy").mkdir()
    (packages / "sympy" / "__init__.py").write_text("from sympy.core import x")
    (packages / "sympy" / "core.py").write_text("x = 77")
    (project / "networkx.py").write_text("x = 'a file of the project by a listed name'")
    places = [project / "answers" / "test.jsonl", project / ".env", packages / "unlisted.py"]
    for place in places[:2]:
        place.write_text("the answer is 42")
        place.chmod(0o600)
    code = [TRY.format(f"open({str(place)!r}).read()") for place in places]
    code += [TRY.format(f"__import__({name!r}).x") for name in ("networkx", "unlisted")]
    code += [TRY.format(f"__import__('os').listdir({str(project)!r})")]
    code += [f"import {name}; {name}.x" for name in ("six", "sympy")]
    done = subprocess.run(
        [tmp_path / "venv" / "bin" / "python", "-c", EDITABLE, SOURCE, tier, json.dumps(code)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=project,
    )
    assert done.returncode == 0, done.stderr
    *closed, six, sympy = json.loads(done.stdout)
    refused = {"PermissionError", "FileNotFoundError"}
    assert {said.strip() for said in (*closed[:3], closed[5])} <= refused
    assert [said.strip() for said in closed[3:5]] == ["ModuleNotFoundError"] * 2
    assert [six, sympy] == ["66\n", "77\n"]
