"""Recompute which tokens a grammar allowed, for the trainer.

A constrained token was sampled among the tokens that its grammar allowed, and its recorded
log-probability belongs to that distribution. The sets are not stored: the grammar is run again over
the recorded tokens, and its number of allowed tokens must equal the recorded one. A token that was
the only choice has no loss and needs no set. `grammar.py` builds grammars; `network.py` scores with
these sets.

Suffixes: K trained tokens, N of them constrained, V vocabulary, W words of 32 bits.
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


def unpack_bits(words_NW: Tensor, vocab: int) -> Tensor:
    """Unpack bit masks, least significant bit first, to a boolean mask [N, vocab]."""
    bits = torch.arange(32, dtype=torch.int32, device=words_NW.device)
    tensor = ((words_NW[:, :, None] >> bits) & 1).bool().flatten(1)[:, :vocab]
    return torch.nn.functional.pad(tensor, (0, vocab - tensor.shape[1]))


@dataclass(frozen=True, slots=True)
class AllowedTokens:
    """Sets of allowed tokens as bit masks [N, W], and the index of each trained token's set.

    The index is -1 where all tokens were allowed. Trained tokens are ordered by row, then column.
    """

    words_NW: Tensor
    number_K: Tensor

    @staticmethod
    def replay(codec: Codec, rows: Sequence[Row], device: torch.device) -> AllowedTokens | None:
        """Recompute the sets of allowed tokens by replaying the grammars of training rows.

        Returns None if no trained token has a set. Raises `ModelError` if a grammar does not match
        the recorded tokens, which happens when tokenizer, template or grammar library differ from
        those used for sampling.
        """
        indices: dict[tuple[int, int], int] = {}
        sets: list[np.ndarray] = []
        words = np.zeros(-(-len(codec.tokenizer) // 32), np.int32)
        for b, row in enumerate(rows):
            for part in row.narrowed:
                grammar = codec.grammar(part.tools, part.constraint)
                if grammar is None:
                    raise ModelError(f"{part.constraint!r} has no effect with this tokenizer")
                matcher = grammar.start()
                for column, count in enumerate(part.allowed, part.start):
                    matcher.fill_bitmask(words)
                    allowed = int.from_bytes(words.tobytes(), "little").bit_count()
                    if count > 1 and allowed != count:
                        raise ModelError(
                            f"a grammar allows {allowed} tokens but {count} were recorded: use the "
                            "tokenizer and llguidance version that the run was sampled with"
                        )
                    if count > 1 and row.mask[column]:
                        indices[b, column] = len(sets)
                        sets.append(words.copy())
                    matcher.accept(row.ids[column])
        if not sets:
            return None
        trained = ((b, c) for b, r in enumerate(rows) for c in range(1, len(r.ids)) if r.mask[c])
        numbers = torch.tensor([indices.get(key, -1) for key in trained], dtype=torch.long)
        return AllowedTokens(torch.from_numpy(np.stack(sets)).to(device), numbers.to(device))
