"""Attacks on every tier that claims to stop them, as root and as a plain user."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
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
def outcome(tier: str, user: str) -> dict[str, Any]:
    """All attacks on a tier as a user; made once, in a process of its own."""
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


@pytest.mark.skipif(os.geteuid() == 0, reason="this user is root, and attacks as root")
def test_attacks_as_root_need_root() -> None:
    pytest.skip("not root: the attacks run as this user alone")


@pytest.mark.parametrize("attack", [*ATTACKS, *ENDINGS])
@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("tier", ["namespaces", "rlimit"])
def test_the_attack_fails(tier: str, user: str, attack: str) -> None:
    problem = tier_problems()[tier]  # pyright: ignore[reportArgumentType]
    if problem is not None:
        pytest.skip(f"the tier {tier!r} does not work here: {problem}")
    held, seen = outcome(tier, user)[attack]
    assert held, seen


@pytest.mark.parametrize("user", USERS)
def test_several_processes_are_bounded_and_end_with_the_sandbox(user: str) -> None:
    problem = tier_problems()["namespaces"]
    if problem is not None:
        pytest.skip(f"the tier 'namespaces' does not work here: {problem}")
    held, seen = outcome("namespaces", user)["many processes"]
    assert held, seen
