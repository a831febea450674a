"""What every error promises, and that folders are packages."""

from __future__ import annotations

import pickle
import re

from source_tree import ROOT, modules
from tests.in_one_item import in_one_item

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


def test_the_tree_of_errors_in_the_docstring_is_the_tree_of_classes() -> None:
    lines = [
        (len(m.group(1)), m.group(2))
        for m in re.finditer(r"^([ │├└─]*)([A-Z]\w+Error) ", errors.__doc__ or "", re.MULTILINE)
    ]
    assert sorted(name for _, name in lines) == sorted(e.__name__ for e in ERRORS)
    parents: list[tuple[int, str]] = []
    for depth, name in lines:
        while parents and parents[-1][0] >= depth:
            parents.pop()
        bases = [b.__name__ for b in getattr(errors, name).__bases__]
        if parents:
            assert parents[-1][1] in bases, f"{name} stands below {parents[-1][1]}"
        parents.append((depth, name))


def test_exit_codes_are_those_of_the_tree() -> None:
    text = errors.__doc__ or ""
    said = {m.group(1): int(m.group(2)) for m in re.finditer(r"(\w+Error) .*exit (\d+)", text)}
    for error in ERRORS:
        assert issubclass(error, TutelageError)
        wanted = said.get(error.__name__, said["TutelageError"])
        assert error.exit_code == wanted
