"""What a user may configure about tools, beyond their names: the section `tools` of a run.

A plain record, so that tools can be made without a configuration (`ToolOptions()` and what the
environment variables say). `registry.py` hands it to the tools that need it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field


def _environ() -> Mapping[str, str]:
    return dict(os.environ)


@dataclass(frozen=True, slots=True)
class ToolOptions:
    """Options of tools; keys of services are taken from the environment, never from a file."""

    search_index: str | None = None
    """The corpus that `search` reads: a file made by `tutelage index`."""
    allow_unsandboxed: bool = False
    """Run model-written code even where no sandbox works."""
    environ: Mapping[str, str] = field(default_factory=_environ, repr=False)
    """Environment variables, where keys of search services are looked up."""

    @property
    def index_path(self) -> str | None:
        """The corpus: the option's, else `TUTELAGE_SEARCH_INDEX`."""
        return self.search_index or self.environ.get("TUTELAGE_SEARCH_INDEX") or None
