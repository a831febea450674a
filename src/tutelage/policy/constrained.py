"""What a grammar allowed, for the trainer: log-probabilities among the allowed tokens only.

A constrained token was drawn among those that its grammar allowed, and that distribution is what
its recorded log-probability belongs to. The sets are not kept: the grammar is run again over the
recorded tokens, and how many it allows must equal what was recorded. A token that was forced has no
loss and needs no set. `grammar.py` makes grammars; `network.py` scores with the sets found here.

Suffixes: K trained tokens, N of them narrowed, V vocabulary, W words of 32 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tutelage.errors import ModelError
from tutelage.policy.codec import Codec
from tutelage.policy.row import Row


def unpack(words_NW: Tensor, vocab: int) -> Tensor:
    """Bits, least significant first, as booleans [N, vocab]; beyond the last bit all is False."""
    bits = torch.arange(32, dtype=torch.int32, device=words_NW.device)
    tensor = ((words_NW[:, :, None] >> bits) & 1).bool().flatten(1)[:, :vocab]
    return torch.nn.functional.pad(tensor, (0, vocab - tensor.shape[1]))


@dataclass(frozen=True, slots=True)
class AllowedTokens:
    """Sets of allowed tokens as bits [N, W], and the number of each trained token's set, -1 where
    all tokens were allowed. Trained tokens are in the order of rows, then of columns."""

    words_NW: Tensor
    number_K: Tensor

    @staticmethod
    def replay(codec: Codec, rows: Sequence[Row], device: torch.device) -> AllowedTokens | None:
        """The sets of all trained tokens that a grammar narrowed; None when there are none.

        Raises `ModelError` when a grammar does not allow what was recorded under it, as happens
        when tokenizer, template or grammar library are others than those that sampled.
        """
        of: dict[tuple[int, int], int] = {}
        sets: list[np.ndarray] = []
        words = np.zeros(-(-len(codec.tokenizer) // 32), np.int32)
        for b, row in enumerate(rows):
            for part in row.narrowed:
                grammar = codec.grammar(part.tools, part.constraint)
                if grammar is None:
                    raise ModelError(f"{part.constraint!r} has no effect with this tokenizer")
                matcher = grammar.start()
                for column, count in enumerate(part.allowed, part.start):
                    matcher.fill(words)
                    found = int.from_bytes(words.tobytes(), "little").bit_count()
                    if count > 1 and found != count:
                        raise ModelError(
                            f"a grammar allows {found} tokens but {count} were recorded: use the "
                            "tokenizer and llguidance version that the run was sampled with"
                        )
                    if count > 1 and row.mask[column]:
                        of[b, column] = len(sets)
                        sets.append(words.copy())
                    matcher.accept(row.ids[column])
        if not sets:
            return None
        trained = ((b, c) for b, r in enumerate(rows) for c in range(1, len(r.ids)) if r.mask[c])
        numbers = torch.tensor([of.get(place, -1) for place in trained], dtype=torch.long)
        return AllowedTokens(torch.from_numpy(np.stack(sets)).to(device), numbers.to(device))
