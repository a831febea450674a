"""A skip for a reason that nobody has written down makes a run red."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from tests.marks import long
from tests.skips import LIST, unlisted

TEST = "import pytest\ndef test_it():\n    pytest.skip({reason!r})\n"
LISTED = "long: set TUTELAGE_TEST_FULL=1"


@pytest.mark.full
def test_every_reason_that_a_test_gives_in_plain_text_is_listed() -> None:
    reasons = {
        keyword.value.value
        for path in LIST.parent.rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("mark.skipif")
        for keyword in node.keywords
        if keyword.arg == "reason" and isinstance(keyword.value, ast.Constant)
    }
    assert len(reasons) > 5
    assert unlisted(reasons, LIST.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(("reason", "code"), [("no time", 1), *long((LISTED, 0))])
def test_a_new_reason_is_red(tmp_path: Path, reason: str, code: int) -> None:
    (tmp_path / "test_one.py").write_text(TEST.format(reason=reason))
    words = ["-m", "pytest", "-p", "tests.skips", "-p", "no:cacheprovider", "-q"]
    done = subprocess.run(
        [sys.executable, *words, str(tmp_path)],
        cwd=LIST.parents[1],
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert (f"does not list: {reason}" in done.stdout) is bool(code)
