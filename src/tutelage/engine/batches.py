"""Which prompts are prefilled together: jobs of similar length, a bounded number of tokens a batch.

A job is what several slots have in common: the same cached tokens in one row, and the same prompt.
`native.py` runs the batches.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tutelage.policy.kernels import rounded


@dataclass(slots=True)
class PrefillJob:
    """Prefill work: slots that have the same `cached` tokens in one row and get one prompt, whose
    first `shared` tokens are others' too."""

    slots: list[int]
    cached: int
    prompt: tuple[int, ...]
    shared: int

    @property
    def size(self) -> int:
        """New tokens."""
        return len(self.prompt) - self.cached

    @staticmethod
    def batches(jobs: Iterable[PrefillJob], limit: int) -> list[list[PrefillJob]]:
        """Cut prefill work into batches of similar length, of at most `limit` padded tokens."""
        batches: list[list[PrefillJob]] = []
        for job in sorted(jobs, key=lambda j: (j.size, j.slots)):
            width = rounded(job.size, 8)
            fits = batches and (len(batches[-1]) + 1) * width <= limit
            # Padding a short observation to a long prompt would waste more than a call costs.
            if fits and width <= 2 * rounded(batches[-1][0].size, 8):
                batches[-1].append(job)
            else:
                batches.append([job])
        return batches
