"""Load a user's functions by `FILE.py:name`, as the command line and configs refer to them.

A file is executed once per content, under a module name derived from its path, so that two files
of the same name do not collide and `a.py:f` and `a.py:g` share one module. The import path is not
searched. Used for tools here, for rewards in `tutelage.rewards.registry`, and for agents.
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
"""Prefix of the module names of loaded user files."""
_FRAME = re.compile(r'^ *File "([^"]+)", line \d+', re.MULTILINE)
_PACKAGE = Path(__file__).resolve().parents[1]
_LIBRARY = sysconfig.get_path("stdlib")


def hint(
    word: str, names: Iterable[str], template: str = "; did you mean {!r}?", *, cutoff: float = 0.5
) -> str:
    """Return a suggestion of the name closest to `word`, or "" if no name is close."""
    # Truncate the word: it may be megabytes of a model's text.
    close = difflib.get_close_matches(word[:100], list(names), n=1, cutoff=cutoff)
    return template.format(close[0]) if close else ""


def suggest_file(path: Path) -> str:
    """Return a suggestion of a Python file in the same folder with a similar name.

    The suffix `.py` is not compared.
    """
    siblings = (other for other in path.parent.glob("*.py") if other.is_file())
    files = {other.stem: str(other) for other in siblings}
    near = hint(path.stem, files, "{}")
    return f"; did you mean {files[near]!r}?" if near else ""


def import_attribute(location: str) -> Any:
    """Import an attribute of this package, given as `module:attribute`."""
    module, _, attribute = location.partition(":")
    return getattr(importlib.import_module(module), attribute)


def is_file_reference(reference: str) -> bool:
    """Return True if `reference` has the form `FILE.py:name` or `FILE.py`."""
    return reference.rpartition(":")[0].endswith(".py") or reference.endswith(".py")


def display_name(reference: str) -> str:
    """Return the name in `FILE.py:name` for display, and any other name unchanged."""
    return reference.rpartition(":")[2] if is_file_reference(reference) else reference


def load_attribute(reference: str, kind: str) -> object:
    """Load the object that `FILE.py:name` refers to.

    `kind` describes the object in errors. Raises `ConfigError` if the file or the name is
    missing, or the file fails to execute.
    """
    file, _, name = reference.rpartition(":")
    if not file.endswith(".py") or not name:
        raise ConfigError(f"{kind} {reference!r} must have the form FILE.py:name")
    module = load_file(file, f"{kind} {reference!r}")
    if not hasattr(module, name):
        public = [k for k, v in vars(module).items() if k[0] != "_" and not inspect.ismodule(v)]
        near = hint(name, public)
        raise ConfigError(f"{kind} {reference!r}: {Path(file).name} does not define {name!r}{near}")
    return getattr(module, name)


def load_file(file: str, kind: str) -> ModuleType:
    """Load a Python file as a module. Raises `ConfigError` with a message that begins with `kind`.

    For a missing file, the message suggests the closest name.
    """
    path = Path(file).expanduser()
    if not path.is_file():
        raise ConfigError(f"{kind}: file not found: {str(path)!r}" + suggest_file(path))
    return load_module(path.resolve(), kind)


class _CurrentSource(SourceFileLoader):
    """Loader that always compiles the current source. Python's bytecode cache compares size and
    modification time in seconds, and misses a quick edit of the same length."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def load_module(path: Path, kind: str) -> ModuleType:
    """Load the module at a full path. Raises `ConfigError` with a message that begins with
    `kind`."""
    digest = hashlib.blake2b(str(path).encode() + b"\0" + path.read_bytes(), digest_size=8)
    module_name = f"{USER_MODULE}{path.stem}_{digest.hexdigest()}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    loader = _CurrentSource(module_name, str(path))
    spec = importlib.util.spec_from_file_location(module_name, path, loader=loader)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{kind}: cannot load {str(path)!r} as a Python file")
    module = importlib.util.module_from_spec(spec)
    # Register it before execution: dataclasses and type hints look up their module by name.
    sys.modules[module_name] = module
    # While it loads, it can import files of its folder, as a script run by Python can.
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except TutelageError:
        del sys.modules[module_name]
        raise
    except (Exception, SystemExit) as error:
        del sys.modules[module_name]
        raise ConfigError(f"{kind}: failed to load {path}{_describe_error(error, path)}") from error
    finally:
        if str(path.parent) in sys.path:
            sys.path.remove(str(path.parent))
    return module


def error_text(function: object, error: BaseException) -> str:
    """Describe an error in a user's function with its line: ", line 5: ValueError: ..."."""
    return _describe_error(error, Path(inspect.getfile(inspect.unwrap(cast("Any", function)))))


def user_traceback(text: str) -> str:
    """Remove the traceback frames before the first frame in user code.

    A traceback without such a frame is returned unchanged.
    """
    frames = list(_FRAME.finditer(text))
    for frame in frames:
        file = Path(frame[1])
        library = file.is_relative_to(_LIBRARY) and "site-packages" not in file.parts
        if not (file.is_relative_to(_PACKAGE) or library or frame[1].startswith("<frozen")):
            return text[: frames[0].start()] + text[frame.start() :]
    return text


def _describe_error(error: BaseException, path: Path) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    where = f", line {lines[-1]}" if lines else ""
    return f"{where}: {type(error).__name__}: {error}"
