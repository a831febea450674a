"""What a user may configure about rewards: the judge's model, and whether code may run unprotected.

`registry.py` hands it to the rewards that are made from it. Keys of services come from the
environment, never from a file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field


def _environ() -> Mapping[str, str]:
    return dict(os.environ)


@dataclass(frozen=True, slots=True)
class RewardOptions:
    """Options of rewards."""

    judge_base_url: str | None = None
    """Address of the OpenAI-compatible server that judges, up to and with its `/v1`."""
    judge_model: str | None = None
    """Model that judges."""
    allow_unsandboxed: bool = False
    """Run model-written code even where no sandbox works."""
    environ: Mapping[str, str] = field(default_factory=_environ, repr=False)
    """Environment variables."""
