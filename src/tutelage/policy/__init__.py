"""The policy: tokenizer and chat codec (without torch), weights and forward passes (with torch).

Read `model.py` (the policy) first, then `decoder.py` (the forward pass) and `codec.py` (messages to
tokens, and tokens to tool calls).
"""
