"""What of the machine code in a sandbox can read: Python, system libraries, packages on a list.

Nothing else that is on `sys.path` is among it: a project that is installed as editable, the folder
that a program was started in, or a package nobody listed may hold answers and keys. The server has
no such folder on its own path (it runs without `site`), and what is installed beside the listed
packages is hidden. `confine.py` makes a file system or rules of this, and `docs/sandbox.md` says
the same in words.
"""

from __future__ import annotations

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
_WHERE_THERE_ARE_NONE = ("/lib", "/usr/lib")
_SHARED_DATA = ("/usr/share/zoneinfo",)
_PROGRAMS = ("/bin", "/usr/bin")
_SYSTEM_PREFIXES = ("/usr", "/usr/local")


@dataclass(frozen=True, slots=True)
class FileSystemView:
    """Paths of this machine that a sandbox has; everything else is not there, or closed."""

    folders: tuple[str, ...]
    """Read with all that is below them, but for what is hidden."""
    hidden: tuple[str, ...]
    """Folders of packages inside those."""
    parts: tuple[str, ...]
    """The same without what is hidden, for rules that can allow a folder but not a part of it."""
    files: tuple[str, ...]
    modules: Mapping[str, str]
    """Listed packages by name, with the file that importing one runs."""

    def package_paths(self) -> list[str]:
        """Folders and files of the listed packages, with the libraries that come with them."""
        names: list[str] = []
        for name, origin in self.modules.items():
            place = os.path.dirname(origin)
            if os.path.basename(origin).startswith("__init__."):
                names += [place, os.path.join(os.path.dirname(place), f"{name}.libs")]
            else:
                names.append(origin)
        return [path for path in names if os.path.exists(path)]

    def finder(self) -> _ListedPackages:
        """What imports the listed packages, for `sys.meta_path`."""
        return _ListedPackages(self.modules)


def site_folders() -> list[str]:
    """Where packages are installed for this interpreter: those of `sys.path` that are for that."""
    return [p for p in sys.path if os.path.basename(p) in _PACKAGE_FOLDERS and os.path.isdir(p)]


def _find_modules(names: Iterable[str], places: Sequence[str]) -> dict[str, str]:
    """The packages that are installed in one of `places`, with the file of each."""
    values: dict[str, str] = {}
    for name in names:
        spec = PathFinder.find_spec(name, list(places)) if name.isidentifier() else None
        if spec is not None and spec.has_location and spec.origin is not None:
            # One that is installed from elsewhere (a link) is where it is.
            values[name] = os.path.realpath(spec.origin)
    return values


def filesystem_view(
    packages: Iterable[str], places: Sequence[str], *, programs: bool
) -> FileSystemView:
    """What there is for this interpreter, which must have been started without `site`: its library
    and the `packages` that are installed in one of `places`.

    With `programs` also those of the system, for sandboxes that may start some.
    """
    wanted = [path for path in sys.path if os.path.isdir(path)]
    wanted += [os.path.realpath(path) for path in wanted]
    wanted += _libraries()
    files: list[str] = []
    if sys.base_prefix not in _SYSTEM_PREFIXES:
        wanted.append(os.path.join(sys.base_prefix, "lib"))
    else:
        files += glob(os.path.join(sys.base_prefix, "lib", "lib*.so*"))
    wanted += [path for path in _SHARED_DATA if os.path.isdir(path)]
    if programs:
        wanted += [path for path in _PROGRAMS if not os.path.islink(path)]
        files.append(os.path.realpath(sys.executable))
    folders = _outermost(wanted)
    modules = _find_modules(packages, places)
    hidden = [h for f in folders for name in _PACKAGE_FOLDERS for h in _hidden(f, name)]
    parts = [part for folder in folders for part in _parts(folder, hidden)]
    return FileSystemView(
        tuple(folders), tuple(hidden), tuple(parts), tuple(_outermost(files)), modules
    )


def _hidden(folder: str, name: str) -> list[str]:
    return [*glob(f"{folder}/{name}"), *glob(f"{folder}/*/{name}")]


def _libraries() -> list[str]:
    names = {os.path.realpath(path) for pattern in _LIBRARIES for path in glob(pattern)}
    if not any(glob(f"{folder}/libc.so*") for folder in names):
        names |= {os.path.realpath(path) for path in _WHERE_THERE_ARE_NONE}
    return [path for path in names if os.path.isdir(path)]


def _outermost(paths: Iterable[str]) -> list[str]:
    kept: list[str] = []
    for path in sorted({os.path.abspath(path) for path in paths}):
        inside = any(path == k or path.startswith(k.rstrip("/") + "/") for k in kept)
        if path != "/" and not inside:
            kept.append(path)
    return kept


def _parts(folder: str, hidden: Sequence[str]) -> list[str]:
    if folder in hidden:
        return []
    if not any(path.startswith(folder + "/") for path in hidden):
        return [folder]
    names: list[str] = []
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        # A link out of the folder would open what it leads to.
        if not os.path.islink(path) or os.path.realpath(path).startswith(folder + "/"):
            names += _parts(path, hidden)
    return names


class _ListedPackages:
    """Finds the listed packages where they are installed, without the folder around them."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        self._modules = dict(modules)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Python's protocol of finders."""
        origin = self._modules.get(name)
        if path is not None or origin is None:
            return None
        folder = os.path.dirname(origin)
        whole = os.path.basename(origin).startswith("__init__.")
        return importlib.util.spec_from_file_location(
            name, origin, submodule_search_locations=[folder] if whole else None
        )
