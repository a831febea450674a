"""Write a model's folder: first to a temporary folder, which is then renamed.

`model.py` writes the content. A reader never sees an incomplete folder, and a full disk does not
damage an existing one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tutelage import files
from tutelage.errors import ModelError, StoreError

if TYPE_CHECKING:
    from torch import Tensor


def write_folder(folder: Path, write: Callable[[Path], None], *, replace: bool) -> None:
    """Write a folder atomically: call `write` with a temporary folder, then rename the latter.

    With `replace`, an existing folder is replaced; files that the new folder lacks are kept.
    Raises `ModelError` if `folder` is not empty and `replace` is False, and `StoreError` if writing
    fails.
    """
    from safetensors import SafetensorError

    if not replace and (text := files.describe_folder(folder)) is not None:
        raise ModelError(
            f"refusing to write a policy to {str(folder)!r}: {text}, which would be lost; choose a "
            "new or empty folder"
        )
    temporary, old = files.temporary_path(folder), None
    try:
        temporary.mkdir(parents=True)
        write(temporary)
        if folder.exists():
            old = files.temporary_path(folder)
            os.replace(folder, old)
        os.replace(temporary, folder)
        if old is not None:
            for entry in [*old.iterdir()]:  # keep files that the new folder does not have
                if not os.path.lexists(folder / entry.name):
                    os.replace(entry, folder / entry.name)
            shutil.rmtree(old)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if old is not None and not folder.exists():
            os.replace(old, folder)
        raise StoreError(
            f"cannot write the policy to {str(folder)!r}: {error}; free some space"
        ) from error


def save_tensors(tensors: dict[str, Tensor], file: Path) -> None:
    """Write a safetensors file with the default permissions of new files.

    The package safetensors would make the file readable by its owner only.
    """
    from safetensors.torch import save_file

    file.touch()
    mode = file.stat().st_mode & 0o777
    save_file(tensors, file, metadata={"format": "pt"})
    with suppress(OSError):  # some filesystems have no permissions
        file.chmod(mode)
