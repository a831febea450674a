"""Which tests may be skipped: those whose reason stands in `skips.txt`, and no others.

A test that is skipped says nothing, so a new reason is red until somebody has written down why it
is fine. pytest's `-ra` prints what was skipped, with its reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

LIST = Path(__file__).with_name("skips.txt")


def unlisted(reasons: Iterable[str], listed: str) -> list[str]:
    """The reasons that no line of the list matches. A line is a regular expression for the whole
    reason; empty lines and those that begin with `#` are for the reader."""
    lines = [line for line in listed.splitlines() if line.strip() and not line.startswith("#")]
    known = re.compile("|".join(f"(?:{line})" for line in lines), re.DOTALL)
    return sorted({reason for reason in reasons if not known.fullmatch(reason)})


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Make the run red where a test was skipped for a reason that is not listed."""
    reporter: Any = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return
    reports = reporter.stats.get("skipped", [])
    reasons = [report.longrepr[2].removeprefix("Skipped: ") for report in reports]
    new = unlisted(reasons, LIST.read_text(encoding="utf-8"))
    for reason in new:
        reporter.write_line(f"\na skip that {LIST.name} does not list: {reason}", red=True)
    if new and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
