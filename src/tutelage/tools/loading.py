"""`FILE.py:name`: how the command line and configs point at a user's own function.

The file is executed once per content, under a module name made from its path, so that two files of
the same name do not meet and `a.py:f` and `a.py:g` share one module. Nothing is looked up on the
import path. Used for tools here, for rewards in `tutelage.rewards.registry`, and for agents.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, cast

from tutelage.errors import ConfigError, TutelageError

USER_MODULE = "tutelage_user_"
"""How the names of modules begin that were made from a file."""
_FRAME = re.compile(r'^ *File "([^"]+)", line \d+', re.MULTILINE)
_PACKAGE = Path(__file__).resolve().parents[1]
_LIBRARY = sysconfig.get_path("stdlib")


def hint(
    word: str, known: Iterable[str], form: str = "; did you mean {!r}?", *, cutoff: float = 0.5
) -> str:
    """`form` with the known name closest to `word`; empty when nothing is close."""
    # The word may be megabytes of a model's text; no name is that long.
    close = difflib.get_close_matches(word[:100], list(known), n=1, cutoff=cutoff)
    return form.format(close[0]) if close else ""


def near_file(path: Path) -> str:
    """The Python file beside `path` whose name is closest, as `hint`, empty when nothing is close:
    that all end in `.py` makes none alike."""
    beside = (other for other in path.parent.glob("*.py") if other.is_file())
    found = {other.stem: str(other) for other in beside}
    near = hint(path.stem, found, "{}")
    return f"; did you mean {found[near]!r}?" if near else ""


def import_attribute(place: str) -> Any:
    """What stands at `module:attribute` in this package, imported when it is asked for."""
    module, _, attribute = place.partition(":")
    return getattr(importlib.import_module(module), attribute)


def is_file_reference(reference: str) -> bool:
    """Whether `reference` has the form `FILE.py:name` (or lacks only the name)."""
    return reference.rpartition(":")[0].endswith(".py") or reference.endswith(".py")


def shown_name(reference: str) -> str:
    """The name in `FILE.py:name`, to show; any other name as it is."""
    return reference.rpartition(":")[2] if is_file_reference(reference) else reference


def load_attribute(reference: str, what: str) -> object:
    """The object that `FILE.py:name` points at; `what` names its kind in errors.

    Raises `ConfigError` when the file or the name is missing, or the file fails when it runs.
    """
    file, _, name = reference.rpartition(":")
    if not file.endswith(".py") or not name:
        raise ConfigError(f"{what} {reference!r} must have the form FILE.py:name")
    module = load_file(file, f"{what} {reference!r}")
    if not hasattr(module, name):
        public = [k for k, v in vars(module).items() if k[0] != "_" and not inspect.ismodule(v)]
        near = hint(name, public)
        raise ConfigError(f"{what} {reference!r}: {Path(file).name} does not define {name!r}{near}")
    return getattr(module, name)


def load_file(file: str, what: str) -> ModuleType:
    """The module of a file; `what` begins errors. Raises `ConfigError`, with the nearest file
    for a missing one."""
    path = Path(file).expanduser()
    if not path.is_file():
        raise ConfigError(f"{what}: file not found: {str(path)!r}" + near_file(path))
    return load_module(path.resolve(), what)


class _CurrentSource(SourceFileLoader):
    """Compiles a file as it is now. Python's cache of compiled files knows one by its size and the
    second of its last change, and who edits a number and tries again is faster."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def load_module(path: Path, what: str) -> ModuleType:
    """The module of a file, by its whole path; `what` begins errors. Raises `ConfigError`."""
    digest = hashlib.blake2b(str(path).encode() + b"\0" + path.read_bytes(), digest_size=8)
    module_name = f"{USER_MODULE}{path.stem}_{digest.hexdigest()}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    loader = _CurrentSource(module_name, str(path))
    spec = importlib.util.spec_from_file_location(module_name, path, loader=loader)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{what}: cannot load {str(path)!r} as a Python file")
    module = importlib.util.module_from_spec(spec)
    # Registered while it runs: dataclasses and type hints look their module up by name.
    sys.modules[module_name] = module
    # Files beside it can be imported, as when Python runs it as a script; but only meanwhile.
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except TutelageError:
        del sys.modules[module_name]
        raise
    except (Exception, SystemExit) as error:
        del sys.modules[module_name]
        raise ConfigError(f"{what}: failed to load {path}{_raised(error, path)}") from error
    finally:
        if str(path.parent) in sys.path:
            sys.path.remove(str(path.parent))
    return module


def raised_by(function: object, error: BaseException) -> str:
    """What a user's function raised, and at which line of its file: ", line 5: ValueError: ..."."""
    return _raised(error, Path(inspect.getfile(inspect.unwrap(cast("Any", function)))))


def user_traceback(text: str) -> str:
    """A traceback from the first frame on that is a user's: above it stands how it was called, in
    this package and in Python's library. Whole where there is no such frame."""
    frames = list(_FRAME.finditer(text))
    for frame in frames:
        file = Path(frame[1])
        library = file.is_relative_to(_LIBRARY) and "site-packages" not in file.parts
        if not (file.is_relative_to(_PACKAGE) or library or frame[1].startswith("<frozen")):
            return text[: frames[0].start()] + text[frame.start() :]
    return text


def _raised(error: BaseException, path: Path) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    where = f", line {lines[-1]}" if lines else ""
    return f"{where}: {type(error).__name__}: {error}"
