"""The row: one training sequence, of demonstrations or of what a policy sampled.

`rollouts/rows.py` makes rows of calls, `packing.py` lays them out for a forward pass; this module
needs no torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from tutelage.policy.grammar import ConstrainedSpan


@dataclass(frozen=True, slots=True)
class Row:
    """One training sequence: ids, and 1 in `mask` where a token was sampled and is trained.

    Trained tokens inside a `narrowed` part count among the tokens that its grammar allowed only.
    What was sampled has log-probabilities, as many as ids, 0 where `mask` is 0.
    """

    ids: tuple[int, ...]
    mask: tuple[int, ...]
    narrowed: tuple[ConstrainedSpan, ...] = ()
    logprobs: tuple[float, ...] = ()
    oldest_version: int = 0
    newest_version: int = 0
    """The oldest and the newest version of the policy that sampled any of its tokens."""

    @property
    def trained(self) -> int:
        """Number of tokens with a loss."""
        return sum(self.mask)

    def prompt_length(self) -> int:
        """Number of leading tokens that carry no loss."""
        return next((i for i, m in enumerate(self.mask) if m), len(self.mask))
