"""Options of tools and rewards, beyond their names.

A plain record, so that tools and rewards can be created without a configuration: `ToolOptions()`
reads the environment variables. The registries pass it to the tools and rewards that need it. API
keys are read from the environment only, never from a file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ToolOptions:
    """Options of tools and rewards."""

    search_index: str | None = None
    """Path of the corpus for `search`, created by `tutelage index`."""
    judge_base_url: str | None = None
    """Base URL of the judge's OpenAI-compatible server, including `/v1`."""
    judge_model: str | None = None
    """Name of the judge model."""
    allow_unsandboxed: bool = False
    """True if model-written code may run without a sandbox if none works."""
    environ: Mapping[str, str] = field(default_factory=os.environ.copy, repr=False)
    """Environment variables."""

    @property
    def index_path(self) -> str | None:
        """Return the path of the search index from `search_index` or `TUTELAGE_SEARCH_INDEX`, or
        None."""
        return self.search_index or self.environ.get("TUTELAGE_SEARCH_INDEX") or None
