"""Advantage estimators as slow, flat loops over Python lists, written from the formulas.

Nothing here calls the library: these are what `tutelage.algorithms.rl.advantages` must agree with.
A batch is lists of rows: `rewards[b][t]`, `mask[b][t]`, and per row the ids of its group and of its
rollout. `estimate` returns (advantages, returns), both `[b][t]`.
"""

from __future__ import annotations

import math


def estimate(
    name,
    rewards,
    mask,
    *,
    groups,
    rollouts,
    values=None,
    baselines=None,
    successes=None,
    gamma=1.0,
    lam=1.0,
    norm_by_std=True,
    single_member="zero",
):
    rows_of = {}
    for b, rollout in enumerate(rollouts):
        rows_of.setdefault(rollout, []).append(b)

    # The trained positions of each rollout in time order, its reward, and its token rewards.
    places, final, token_reward = {}, {}, {}
    for rollout, rows in rows_of.items():
        places[rollout] = [(b, t) for b in rows for t in range(len(mask[b])) if mask[b][t]]
        final[rollout] = 0.0
        stray = 0.0
        for b in rows:
            for t in range(len(mask[b])):
                final[rollout] += rewards[b][t]
                if mask[b][t]:
                    token_reward[b, t] = rewards[b][t]
                else:
                    stray += rewards[b][t]
        if places[rollout]:
            token_reward[places[rollout][-1]] += stray

    advantage, returned = {}, {}
    if name == "gae":
        for rollout in rows_of:
            next_a = next_v = 0.0
            for b, t in reversed(places[rollout]):
                delta = token_reward[b, t] + gamma * next_v - values[b][t]
                next_a = delta + gamma * lam * next_a
                next_v = values[b][t]
                advantage[b, t] = next_a
                returned[b, t] = next_a + values[b][t]
        advantage = whitened(advantage)
    elif name == "reinforce_plus_plus":
        for rollout in rows_of:
            running = 0.0
            for b, t in reversed(places[rollout]):
                running = token_reward[b, t] + gamma * running
                returned[b, t] = running
        advantage = whitened(returned)
    elif name == "remax":
        for rollout in rows_of:
            running = 0.0
            for b, t in reversed(places[rollout]):
                running += token_reward[b, t]
                returned[b, t] = running
                advantage[b, t] = running - baselines[b]
    elif name == "raft":
        for rollout, rows in rows_of.items():
            won = final[rollout] >= 1 - 1e-9 if successes is None else successes[rows[0]]
            for place in places[rollout]:
                advantage[place] = returned[place] = 1.0 if won else 0.0
    else:
        members = {}
        for rollout, rows in rows_of.items():
            members.setdefault(groups[rows[0]], []).append(rollout)
        lonely = set()
        for group in members.values():
            lengths = [len(places[r]) for r in group]
            scores = outcome(name, [final[r] for r in group], lengths, norm_by_std, final)
            if len(group) < 2:
                lonely.add(group[0])
                alone = lonely_score(name, final[group[0]], norm_by_std, final)
                scores = [alone if single_member == "verl" else 0.0]
            for rollout, score in zip(group, scores, strict=True):
                for place in places[rollout]:
                    advantage[place] = score
        if name == "reinforce_plus_plus_baseline":
            out = set()
            if single_member == "zero":
                out = {place for rollout in lonely for place in places[rollout]}
            counted = {p: a for p, a in advantage.items() if p not in out}
            advantage = {**advantage, **whitened(counted)}
        returned = advantage

    shape = [len(row) for row in mask]
    return tuple(
        [[table.get((b, t), 0.0) for t in range(width)] for b, width in enumerate(shape)]
        for table in (advantage, returned)
    )


def outcome(name, scores, lengths, norm_by_std, final):
    """One advantage for each rollout of a group of two or more."""
    n = len(scores)
    mean = sum(scores) / n
    std = math.sqrt(sum((r - mean) ** 2 for r in scores) / (n - 1)) if n > 1 else 1.0
    if name == "grpo":
        return [(r - mean) / (std + 1e-6) if norm_by_std else r - mean for r in scores]
    if name == "rloo":
        return [
            r - sum(scores[:i] + scores[i + 1 :]) / (n - 1) if n > 1 else 0.0
            for i, r in enumerate(scores)
        ]
    if name == "reinforce_plus_plus_baseline":
        return [r - mean for r in scores]
    if name == "opo":
        total = sum(lengths)
        base = sum(w * r for w, r in zip(lengths, scores, strict=True)) / total if total else 0.0
        return [r - base for r in scores]
    if name == "gpg":
        return [gpg_scale(final) * (r - mean) for r in scores]
    if name == "grpo_passk":
        if n < 2:
            return [0.0]
        first, second = sorted(scores, reverse=True)[:2]
        lead = (first - second) / ((std + 1e-6) if norm_by_std else 1.0)
        best = scores.index(first)
        return [lead if i == best else 0.0 for i in range(n)]
    if name == "maxrl":
        return [(r - mean) / mean if mean > 0 else 0.0 for r in scores]
    if name == "best_of_n":
        return [float(r == max(scores) and min(scores) < max(scores)) for r in scores]
    if name == "advantage_filtered":
        return [float(r - mean > 1e-6 * std and min(scores) < max(scores)) for r in scores]
    raise KeyError(name)


def lonely_score(name, reward, norm_by_std, final):
    """verl's advantage for a group of one: mean 0, deviation 1."""
    if name == "grpo" and norm_by_std:
        return reward / (1 + 1e-6)
    if name == "gpg":
        return gpg_scale(final) * reward
    if name in ("maxrl", "best_of_n"):
        return 0.0
    if name == "advantage_filtered":
        return float(reward > 1e-6)
    return reward


def gpg_scale(final):
    return len(final) / max(1, sum(1 for r in final.values() if r != 0))


def whitened(table):
    """(x - mu) / sqrt(var + 1e-8), var with n - 1."""
    if not table:
        return {}
    mean = sum(table.values()) / len(table)
    if len(table) > 1:
        variance = sum((x - mean) ** 2 for x in table.values()) / (len(table) - 1)
    else:
        variance = 0.0
    return {place: (x - mean) / math.sqrt(variance + 1e-8) for place, x in table.items()}
