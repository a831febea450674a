"""Twenty real tools over a folder of everyday files, to plan with and to measure planners on.

`make_folder` writes the folder of a seed, `serve_pages` serves its web pages, `make_tools` gives
the tools. Read `contents.py` for what is in the folder, `file_tools.py`, `text_tools.py` and
`table_tools.py` for the tools. Nothing here needs torch. `benchmarks/orchestration/requests` has
requests that these tools can serve, and what grades them.
"""

from benchmarks.orchestration.kit.contents import FolderContents, folder_contents, make_folder
from benchmarks.orchestration.kit.make import make_tools
from benchmarks.orchestration.kit.pages import serve_pages

__all__ = ["FolderContents", "folder_contents", "make_folder", "make_tools", "serve_pages"]
