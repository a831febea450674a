"""A full disk: a clear message whatever file it hits, and a resume that lost nothing.

A limit to the size of every file (`RLIMIT_FSIZE`) hits the configuration, the store, the policy or
a checkpoint, depending on its height.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from .command import Command
from .reference import Reference

Arguments = Callable[..., list[str]]


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "limit", "told"),
    [
        ("with_tools", 20_000, "cannot open the store 'run/store.db'"),
        ("with_tools", 200_000, "cannot write 'run/checkpoints/step_000000_tick"),
        ("with_tools", 400_000, "cannot (store (rollouts|metrics|a checkpoint) in|write) 'run/"),
        ("embedded", 1_000_000, "cannot write the policy to 'run/checkpoints/initial'"),
    ],
)
def test_a_limit_to_the_size_of_files(
    references: dict[str, Reference], tutelage: Command, kind: str, limit: int, told: str
) -> None:
    job = tutelage.start(*references[kind].arguments, max_file=limit).end().check(2)
    assert re.search(told, job.err), job.err
    assert "free some space" in job.err.lower()
    assert "tutelage resume run\n" in job.err
    assert not list((tutelage.cwd / "run").rglob("*.tmp")), "what was half written is taken away"
    references[kind].check(tutelage)


def test_without_room_for_the_configuration_nothing_is_left(
    references: dict[str, Reference], tutelage: Command
) -> None:
    args = references["with_tools"].arguments
    job = tutelage.start(*args, max_file=2_000).end().check(2)
    assert "cannot write 'run/fingerprint.json': File too large. Free some space" in job.err
    assert "resume" not in job.err
    assert not (tutelage.cwd / "run").exists()
    tutelage(*args).check()
