"""The entropy of the policy at each token, for the bonus `- entropy_coeff * agg(entropy)`.

It is computed exactly over the vocabulary, from logits divided by the sampling temperature.
`aggregate.py` averages it.

Legend: B rows, T tokens, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor


def entropy(logits_BTV: Tensor) -> Tensor:
    """Compute `H = -sum_v p_v log p_v`, p = softmax(logits), in nats [B, T], with gradient.

    A logit of minus infinity (a token that cannot be sampled) adds 0.
    """
    logp_BTV = torch.log_softmax(logits_BTV, dim=-1)
    # 0 * log 0 is 0; the fill also keeps NaN out of the gradient.
    surprise_BTV = -logp_BTV.masked_fill(logp_BTV == -torch.inf, 0)
    return (logp_BTV.exp() * surprise_BTV).sum(dim=-1)
