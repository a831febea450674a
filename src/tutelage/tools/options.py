"""What a user may configure about tools and rewards, beyond their names.

A plain record, so that both can be made without a configuration (`ToolOptions()` and what the
environment variables say). The registries hand it to the tools and rewards that need it. Keys of
services are taken from the environment, never from a file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ToolOptions:
    """Options of tools and rewards."""

    search_index: str | None = None
    """The corpus that `search` reads: a file made by `tutelage index`."""
    judge_base_url: str | None = None
    """Address of the OpenAI-compatible server that judges, including its `/v1`."""
    judge_model: str | None = None
    """Model that judges."""
    allow_unsandboxed: bool = False
    """Run model-written code even where no sandbox works."""
    environ: Mapping[str, str] = field(default_factory=os.environ.copy, repr=False)
    """Environment variables."""

    @property
    def index_path(self) -> str | None:
        """The corpus: the option's, else `TUTELAGE_SEARCH_INDEX`."""
        return self.search_index or self.environ.get("TUTELAGE_SEARCH_INDEX") or None
