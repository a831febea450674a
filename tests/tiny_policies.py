"""Small policies of random weights in the layouts that the tests use.

A module of its own, and no fixture: processes that a test starts find `fresh_policy` here by name.
"""

from __future__ import annotations

from typing import Any


def fresh_policy(name: str = "qwen2", seed: int = 0) -> Any:
    """A policy of that layout, the same for the same seed."""
    import torch
    import transformers

    from tutelage.policy.codec import Codec
    from tutelage.policy.hf_model import HFNetwork
    from tutelage.policy.model import Policy
    from tutelage.policy.tokenizer import train_tokenizer
    from tutelage.testing import tiny_policy
    from tutelage.testing.tiny import CORPUS

    if name in ("qwen2", "qwen3", "llama"):
        return tiny_policy(name, seed)
    codec = Codec(train_tokenizer(CORPUS, vocab_size=320))
    if name == "gpt2":
        config: Any = transformers.GPT2Config(
            vocab_size=320, n_positions=256, n_embd=32, n_layer=2, n_head=4
        )
    else:
        kind, options = {
            "gemma": ("Gemma3TextConfig", {"head_dim": 8, "sliding_window": 16,
                      "layer_types": ["sliding_attention", "full_attention"]}),
            "phi": ("PhiConfig", {}),
            "sliding": ("Qwen2Config", {"use_sliding_window": True, "sliding_window": 16,
                        "max_window_layers": 1}),
        }[name]  # fmt: skip
        shape: dict[str, Any] = {
            "vocab_size": 320, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "intermediate_size": 64, "max_position_embeddings": 256,
            "tie_word_embeddings": True,
        }  # fmt: skip
        config = getattr(transformers, kind)(**shape, **options)
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(0.2 * torch.randn_like(parameter))
            else:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return Policy(HFNetwork(model, torch.device("cpu")), config, codec)
