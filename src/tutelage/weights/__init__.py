"""Weights: supervised and reinforcement learning of a policy."""
