"""The kit's tools in a file, as `--tools` takes it: `benchmarks/orchestration/kit_tools.py`.

The folder is made in `kit-folder`, where the command was started, unless it is there already; its
pages are served until the process ends. The environment variable `KIT_SEED` names another seed.
"""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.orchestration.kit import folder_contents, make_folder, make_tools, serve_pages

FOLDER, SEED = Path("kit-folder"), int(os.environ.get("KIT_SEED", "1"))

contents = folder_contents(SEED) if FOLDER.exists() else make_folder(FOLDER, SEED)
_open = ExitStack()
atexit.register(_open.close)
tools = make_tools(FOLDER, _open.enter_context(serve_pages(contents)), contents.today)
globals().update(tools)
__all__ = tuple(tools)  # pyright: ignore[reportUnsupportedDunderAll]
