"""The tool for a question's attached file. It reads text; other kinds it names and refuses.

A rollout sees its own task's file and no other. Pictures, sound and office documents need tools of
yours (`--tools` takes any number, MCP servers among them), and most questions need the web.
"""

from __future__ import annotations

import asyncio
import zipfile
from pathlib import Path

from tutelage import ToolError, tool
from tutelage.types import Task

PAGE = 3000
"""Characters that one call shows."""
LARGEST = 5_000_000
"""Bytes; a larger file is refused."""
TEXT = (".txt", ".csv", ".tsv", ".json", ".jsonld", ".xml", ".html", ".md", ".py", ".pdb")


class Files:
    """A rollout's attached file."""

    def __init__(self, task: Task) -> None:
        self._path = Path(task.fields["file"]) if task.fields.get("file") else None

    async def __aenter__(self) -> Files:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Nothing is held open."""

    @tool
    async def read_file(self, page: int = 1) -> str:
        """Read the attached file as text.

        Args:
            page: Which page of it, from 1.
        """
        if self._path is None:
            raise ToolError("this question has no attached file")
        text = await asyncio.to_thread(_text, self._path)
        pages = max(1, -(-len(text) // PAGE))
        if not 1 <= page <= pages:
            raise ToolError(f"the file has the pages 1 to {pages}")
        more = f"\n[page {page} of {pages}]" if pages > 1 else ""
        return text[(page - 1) * PAGE : page * PAGE] + more


def _text(path: Path) -> str:
    if path.stat().st_size > LARGEST:
        raise ToolError(f"the file has more than {LARGEST // 1_000_000} MB")
    if path.suffix.lower() == ".zip":
        with zipfile.ZipFile(path) as archive:
            return "\n".join(f"{i.filename}, {i.file_size} bytes" for i in archive.infolist())
    if path.suffix.lower() not in TEXT:
        raise ToolError(f"a file of the kind {path.suffix!r} is no text; this tool cannot read it")
    return path.read_text(encoding="utf-8", errors="replace")
