"""The policy: tokenizer and chat codec (no torch), weights and forward passes (torch).

Start at `model.py` (what a policy is), then `decoder.py` (how it computes) and `codec.py` (how
messages become tokens and tokens become tool calls).
"""
