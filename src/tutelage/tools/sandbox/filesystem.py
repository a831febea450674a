"""Paths that sandboxed code can read: Python, system libraries, and a list of packages.

Other entries of `sys.path` are excluded: an editable project, the working folder or an unlisted
package may contain answers and keys. The server has no such folder on its own path (it runs without
`site`), and packages installed next to the listed ones are hidden. `confine.py` builds a file
system or access rules from these paths; see also `docs/sandbox.md`.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from glob import glob
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_PACKAGE_FOLDERS = ("site-packages", "dist-packages")
_LIBRARIES = ("/lib/*-linux-*", "/usr/lib/*-linux-*", "/lib64", "/usr/lib64")
_FALLBACK_LIBRARIES = ("/lib", "/usr/lib")
_SHARED_DATA = ("/usr/share/zoneinfo",)
_SYSTEM_PREFIXES = ("/usr", "/usr/local")


@dataclass(frozen=True, slots=True)
class FileSystemView:
    """Paths that a sandbox can read; all other paths are inaccessible."""

    folders: tuple[str, ...]
    """Folders that are readable with everything below them, except `hidden`."""
    hidden: tuple[str, ...]
    """Package folders inside `folders`."""
    parts: tuple[str, ...]
    """`folders` split up to exclude `hidden`, for rules that apply to whole folders only."""
    files: tuple[str, ...]
    modules: Mapping[str, str]
    """The file that an import executes, by name of the listed package."""

    def package_paths(self) -> list[str]:
        """Return the paths of the listed packages, including their bundled libraries."""
        names: list[str] = []
        for name, origin in self.modules.items():
            place = os.path.dirname(origin)
            if os.path.basename(origin).startswith("__init__."):
                names += [place, os.path.join(os.path.dirname(place), f"{name}.libs")]
            else:
                names.append(origin)
        return [path for path in names if os.path.exists(path)]

    def finder(self) -> _ListedPackages:
        """Return an import finder for the listed packages, for `sys.meta_path`."""
        return _ListedPackages(self.modules)


def site_folders() -> list[str]:
    """Return the folders of `sys.path` with installed packages."""
    return [p for p in sys.path if os.path.basename(p) in _PACKAGE_FOLDERS and os.path.isdir(p)]


def _find_modules(names: Iterable[str], folders: Sequence[str]) -> dict[str, str]:
    """Return the file of each named package that is installed in one of `folders`."""
    values: dict[str, str] = {}
    for name in names:
        spec = PathFinder.find_spec(name, list(folders)) if name.isidentifier() else None
        if spec is not None and spec.has_location and spec.origin is not None:
            # Resolve links to packages installed elsewhere.
            values[name] = os.path.realpath(spec.origin)
    return values


@functools.cache
def filesystem_view(packages: tuple[str, ...], search_path: tuple[str, ...]) -> FileSystemView:
    """Return the readable paths of a sandbox with this interpreter.

    They are the standard library and the `packages` installed in a folder of `search_path`. The
    interpreter must run without `site`.
    """
    paths = [path for path in sys.path if os.path.isdir(path)]
    paths += [os.path.realpath(path) for path in paths]
    paths += _find_libraries()
    files: list[str] = []
    if sys.base_prefix not in _SYSTEM_PREFIXES:
        paths.append(os.path.join(sys.base_prefix, "lib"))
    else:
        files += glob(os.path.join(sys.base_prefix, "lib", "lib*.so*"))
    paths += [path for path in _SHARED_DATA if os.path.isdir(path)]
    folders = _outermost_paths(paths)
    modules = _find_modules(packages, search_path)
    patterns = [f"{f}{deep}/{n}" for f in folders for n in _PACKAGE_FOLDERS for deep in ("", "/*")]
    hidden = [path for pattern in patterns for path in glob(pattern)]
    parts = [part for folder in folders for part in _exclude_hidden(folder, hidden)]
    return FileSystemView(
        tuple(folders), tuple(hidden), tuple(parts), tuple(_outermost_paths(files)), modules
    )


def _find_libraries() -> list[str]:
    names = {os.path.realpath(path) for pattern in _LIBRARIES for path in glob(pattern)}
    if not any(glob(f"{folder}/libc.so*") for folder in names):
        names |= {os.path.realpath(path) for path in _FALLBACK_LIBRARIES}
    return [path for path in names if os.path.isdir(path)]


def _outermost_paths(paths: Iterable[str]) -> list[str]:
    outermost: list[str] = []
    for path in sorted({os.path.abspath(path) for path in paths}):
        inside = any(path == k or path.startswith(k.rstrip("/") + "/") for k in outermost)
        if path != "/" and not inside:
            outermost.append(path)
    return outermost


def _exclude_hidden(folder: str, hidden: Sequence[str]) -> list[str]:
    if folder in hidden:
        return []
    if not any(path.startswith(folder + "/") for path in hidden):
        return [folder]
    names: list[str] = []
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        # Skip links that lead out of the folder, since they would open their target.
        if not os.path.islink(path) or os.path.realpath(path).startswith(folder + "/"):
            names += _exclude_hidden(path, hidden)
    return names


class _ListedPackages:
    """Import finder for the listed packages only."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        self._modules = dict(modules)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the import spec of a listed top-level package, else None."""
        origin = self._modules.get(name)
        if path is not None or origin is None:
            return None
        folder = os.path.dirname(origin)
        is_package = os.path.basename(origin).startswith("__init__.")
        return importlib.util.spec_from_file_location(
            name, origin, submodule_search_locations=[folder] if is_package else None
        )
