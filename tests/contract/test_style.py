"""What every error promises, that skips are listed, and that the public surface is pinned."""

from __future__ import annotations

import ast
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
from public import PINNED, surface
from source_tree import ROOT, modules
from tests.in_one_item import in_one_item
from tests.marks import long
from tests.skips import LIST, unlisted

from tutelage import errors
from tutelage.errors import TutelageError

ERRORS = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, Exception)]


def test_every_folder_of_modules_is_a_package() -> None:
    folders = {path.parent for path in modules().values()}
    assert [str(f.relative_to(ROOT)) for f in folders if not (f / "__init__.py").is_file()] == []


@in_one_item("error", ERRORS)
def test_an_error_survives_pickling(error: type[Exception]) -> None:
    raised = error("what happened: 'x'; do this")
    again = pickle.loads(pickle.dumps(raised))
    assert type(again) is error
    assert again.args == raised.args
    assert str(again) == str(raised)


@in_one_item("error", ERRORS)
def test_an_error_is_ours_and_also_a_standard_one(error: type[Exception]) -> None:
    assert issubclass(error, TutelageError)
    assert error.__doc__
    assert error.__doc__.strip().endswith(".")
    assert error("x").exit_code in (1, 2, 69)
    if error is not TutelageError:
        standard = [b for b in error.__mro__ if b.__module__ == "builtins"]
        assert standard[0] not in (Exception, BaseException)


def test_exit_codes_are_those_of_the_tree() -> None:
    text = errors.__doc__ or ""
    said = {m.group(1): int(m.group(2)) for m in re.finditer(r"(\w+Error) .*exit (\d+)", text)}
    for error in ERRORS:
        assert issubclass(error, TutelageError)
        wanted = said.get(error.__name__, said["TutelageError"])
        assert error.exit_code == wanted


# ------------------------------------------------------------ skips


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
    assert len(reasons) >= 5
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


# ------------------------------------------------------------ the public surface


def test_the_public_surface_is_the_pinned_one() -> None:
    assert surface() == PINNED.read_text(encoding="utf-8"), (
        "what `from tutelage import ...` gives has changed: if that is meant, write "
        "tests/contract/public.txt again with `python tests/contract/public.py`, and name it in "
        "CHANGELOG.md"
    )
