"""Policy losses, aggregations, value loss and corrections as slow, flat loops over Python lists.

Written from the formulas; nothing here calls the library. Lists are `[b][t]`; `rollouts` has one id
per row. `policy` returns the loss and its gradient to `logp`, worked out by hand from the formula
with every stop-gradient kept (so that a forgotten `detach` shows).
"""

from __future__ import annotations

import math

OWN = {
    "vanilla": ("token-mean", (0.2, 0.2)),
    "gspo": ("seq-mean-token-mean", (0.0003, 0.0004)),
    "cispo": ("token-mean", (1.0, 0.2)),
    "sapo": ("seq-mean-token-mean", None),
    "gpg": ("token-mean", None),
    "geo_mean": ("seq-mean-token-mean", (0.4, 0.4)),
    "clip_cov": ("token-mean", (1.0, 1.0)),
    "kl_cov": ("token-mean", None),
}
"""Aggregation and clip range that each loss takes where nobody says otherwise: PPO's, the papers'
(GSPO section 5.1, SAPO, GMPO; MiniMax-M1 has no lower bound), else verl's. None: no ratio is
clipped."""


def trained(mask):
    return [(b, t) for b in range(len(mask)) for t in range(len(mask[b])) if mask[b][t]]


def clip(x, low, high):
    return min(max(x, low), high)


def weights(mask, mode, rollouts, scale=None):
    """What each trained token's number is multiplied by, the denominator included."""
    places = trained(mask)
    length = {}
    for b, _ in places:
        length[rollouts[b]] = length.get(rollouts[b], 0) + 1
    if mode == "token-mean":
        return {p: 1 / len(places) for p in places}
    if mode == "seq-mean-token-sum":
        return {p: 1 / len(length) for p in places}
    if mode == "seq-mean-token-mean":
        return {p: 1 / length[rollouts[p[0]]] / len(length) for p in places}
    if mode == "seq-mean-token-sum-norm":
        return {p: 1 / (len(length) * scale) for p in places}
    raise KeyError(mode)


def aggregate(x, mask, mode, rollouts, scale=None):
    return sum(w * x[b][t] for (b, t), w in weights(mask, mode, rollouts, scale).items())


def policy(mode, logp, old, adv, mask, rollouts, *, low, high, dual, aggregation, scale, selected):
    """(loss, {(b, t): d loss / d logp})."""
    w = weights(mask, aggregation, rollouts, scale)
    d = {(b, t): clip(logp[b][t] - old[b][t], -20, 20) for b, t in w}
    mates = {}
    for b, t in w:
        mates.setdefault(rollouts[b], []).append((b, t))
    loss, grad = 0.0, dict.fromkeys(w, 0.0)
    for (b, t), weight in w.items():
        a, q = adv[b][t], math.exp(d[b, t])
        together = mates[rollouts[b]]
        if mode == "vanilla":
            value, slope = ppo(a, q, low, high)
            if a < 0 and -a * dual < value:
                value, slope = -a * dual, 0.0
        elif mode == "gspo":
            log_s = sum(logp[i][j] - old[i][j] for i, j in together) / len(together)
            value, slope = ppo(a, math.exp(min(log_s, 10)), low, high)
            if log_s > 10:
                slope = 0.0
        elif mode == "cispo":
            c = clip(q, 1 - low, 1 + high)
            value, slope = -c * a * logp[b][t], -c * a
        elif mode == "sapo":
            tau = 1.0 if a > 0 else 1.05
            gate = 1 / (1 + math.exp(-tau * (q - 1)))
            value = -a * 4 / tau * gate
            slope = -a * 4 * gate * (1 - gate) * q
        elif mode == "gpg":
            value, slope = -a * logp[b][t], -a
        elif mode == "geo_mean":
            held = {}
            for i, j in together:
                held[i, j] = d[i, j]
                if adv[i][j] > 0:
                    held[i, j] = min(d[i, j], high)
                elif adv[i][j] < 0:
                    held[i, j] = max(d[i, j], -low)
            value, slope = -a * math.exp(sum(held.values()) / len(held)), 0.0
            for i, j in together:
                if held[i, j] == d[i, j]:
                    grad[i, j] += weight * value / len(held)
        elif mode == "clip_cov":
            value, slope = ppo(a, q, low, high)
            if (b, t) in selected:
                slope = 0.0
        elif mode == "kl_cov":
            value, slope = -a * q, -a * q
            if (b, t) in selected:
                value += 0.1 * abs(d[b, t])
                slope += math.copysign(0.1, d[b, t]) if d[b, t] else 0.0
        else:
            raise KeyError(mode)
        loss += weight * value
        grad[b, t] += weight * slope
    return loss, grad


def ppo(a, s, low, high):
    """max(-a s, -a clip(s)) and its derivative to log s."""
    held = clip(s, 1 - low, 1 + high)
    return (-a * s, -a * s) if -a * s >= -a * held else (-a * held, 0.0)


def covariances(logp, adv, mask):
    places = trained(mask)
    mean_a = sum(adv[b][t] for b, t in places) / len(places)
    mean_p = sum(logp[b][t] for b, t in places) / len(places)
    return {(b, t): (adv[b][t] - mean_a) * (logp[b][t] - mean_p) for b, t in places}


def value_loss(values, returns, old_values, mask, c):
    places = trained(mask)
    total = clipped = 0.0
    for b, t in places:
        v, g, o = values[b][t], returns[b][t], old_values[b][t]
        plain = (v - g) ** 2
        held = (clip(v, o - c, o + c) - g) ** 2
        total += max(plain, held)
        clipped += held > plain
    return 0.5 * total / len(places), clipped / len(places)


def correction(log_ratio, mask, level, cap, rollouts):
    out = [[0.0] * len(row) for row in mask]
    for b, t in trained(mask):
        token = math.exp(log_ratio[b][t])
        sequence = math.exp(
            sum(log_ratio[i][j] for i, j in trained(mask) if rollouts[i] == rollouts[b])
        )
        out[b][t] = {
            "none": 1.0,
            "token_tis": min(token, cap),
            "sequence_tis": min(sequence, cap),
            "sequence_mask": sequence if sequence <= cap else 0.0,
            "icepop": token if 1 / cap <= token <= cap else 0.0,
        }[level]
    return out
