"""Usage of models: calls, tokens and US dollars.

`Usage` is for one rollout or one call of an optimiser, `Cost` for an evaluation.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Usage:
    """Cost of one rollout or one optimiser call: model calls, tokens and US dollars."""

    calls: int = 1
    tokens: int = 0
    dollars: float = 0.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of model calls: tokens read, tokens written and US dollars."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    dollars: float | None = 0.0
    """None if the price of a model is unknown; 0 if every model ran on this machine."""
    unknown: int = 0
    """Calls without token counts from the server, counted at their upper bound."""

    def __add__(self, other: Cost) -> Cost:
        priced = self.dollars is not None and other.dollars is not None
        return Cost(
            self.calls + other.calls,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            (self.dollars or 0.0) + (other.dollars or 0.0) if priced else None,
            self.unknown + other.unknown,
        )

    def __str__(self) -> str:
        paid = "price not known" if self.dollars is None else f"${self.dollars:.4g}"
        paid = paid if self.dollars != 0 else "$0 (models on this machine)"
        bound = f" ({self.unknown} calls at their bound)" if self.unknown else ""
        read, wrote = f"{self.prompt_tokens:,} tokens read", f"{self.completion_tokens:,} written"
        return f"{self.calls:,} calls, {read}, {wrote}, {paid}{bound}"
