"""The row: one training sequence, from demonstrations or from sampled calls.

`rollouts/rows.py` builds rows from calls, `packing.py` packs them for a forward pass. This module
does not need torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from tutelage.policy.grammar import ConstrainedSpan


@dataclass(frozen=True, slots=True)
class Row:
    """One training sequence: token ids, and a mask that is 1 for trained tokens.

    The log-probability of a trained token inside a `narrowed` span is among the tokens that its
    grammar allowed. Sampled rows have one entry in `logprobs` per id, which is 0 where `mask` is 0.
    """

    ids: tuple[int, ...]
    mask: tuple[int, ...]
    narrowed: tuple[ConstrainedSpan, ...] = ()
    logprobs: tuple[float, ...] = ()
    oldest_version: int = 0
    newest_version: int = 0
    """The oldest and the newest version of the policy that sampled tokens of the row."""
    rewards: tuple[tuple[int, float], ...] = ()
    """Rewards of turns, each with the column of its turn's last trained token."""

    @property
    def n_trained(self) -> int:
        """Return the number of trained tokens."""
        return sum(self.mask)

    def prompt_length(self) -> int:
        """Return the number of tokens before the first trained token."""
        return next((i for i, m in enumerate(self.mask) if m), len(self.mask))
