"""Codecs with the chat templates of the kinds that tool-calling checkpoints carry."""

from __future__ import annotations

from typing import Any

from tutelage.policy.codec import Codec
from tutelage.policy.named_templates import TEMPLATES, set_template
from tutelage.policy.tokenizer import train_tokenizer
from tutelage.testing.tiny import CORPUS

QWEN25, QWEN3, LLAMA32 = (TEMPLATES[name] for name in ("qwen2.5", "qwen3", "llama-3.2"))
LLAMA_TOKENS = (
    "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>",
    "<|python_tag|>",
)  # fmt: skip


def make_codec(name: str) -> Codec:
    """A codec over the tiny tokenizer: `embedded`, `qwen2.5`, `qwen3` or `llama-3.2`."""
    tokenizer: Any = train_tokenizer(CORPUS, vocab_size=320)
    if name.startswith("llama"):
        tokenizer.add_special_tokens({"additional_special_tokens": list(LLAMA_TOKENS)})
        tokenizer.eos_token = "<|eot_id|>"
    if name != "embedded":
        set_template(tokenizer, name)
    return Codec(tokenizer)
