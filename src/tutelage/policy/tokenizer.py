"""The embedded policy's tokenizer: a byte-level BPE of about 512 tokens, trained on first use.

Digits and operators are separate tokens, so that numbers can be copied digit by digit; every byte
has a token, so any text can be encoded. It is saved as an ordinary Hugging Face tokenizer with the
chat template of `template.py`; other modules use it through `codec.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tutelage.policy.template import CHAT_TEMPLATE, PAD, SPECIAL_TOKENS, TURN_END

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

ISOLATED = r"[0-9+\-*/%()]"
"""Characters that are always separate tokens."""


def train_tokenizer(
    corpus: Iterable[str], *, vocab_size: int = 512, max_length: int = 512
) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer deterministically on `corpus`."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(  # pyright: ignore[reportAttributeAccessIssue]
        [
            pre_tokenizers.Split(Regex(ISOLATED), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    special = "|".join(map(re.escape, SPECIAL_TOKENS))  # not used for merges
    pieces = (piece for text in corpus for piece in re.split(special, text) if piece)
    tokenizer.train_from_iterator(pieces, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=TURN_END,
        padding_side="left",
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast
