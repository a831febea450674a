"""Random batches of agent rollouts for hypothesis: observations inside rows, rollouts in rows.

A `Batch` is plain Python lists, so that the flat references read it as it is; `tensor` makes the
library's input of one of its fields. `split` and `observe` rewrite a batch in ways that must not
change what is learned.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, fields, replace

import torch
from hypothesis import strategies as st

PER_TOKEN = ("rewards", "mask", "values", "logp", "old", "adv")
PER_ROW = ("groups", "rollouts", "baselines")


@dataclass(frozen=True)
class Batch:
    rewards: list[list[float]]
    mask: list[list[int]]
    values: list[list[float]]
    logp: list[list[float]]
    old: list[list[float]]
    adv: list[list[float]]
    groups: list[str]
    rollouts: list[int]
    baselines: list[float]

    def tensor(self, name: str, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        return torch.tensor(getattr(self, name), dtype=dtype)

    def rows(self, wanted: list[int]) -> Batch:
        return Batch(**{f.name: [getattr(self, f.name)[b] for b in wanted] for f in fields(self)})


def make_batch(seed: int, *, empty_rows: bool = True, stray_rewards: bool = True) -> Batch:
    """A few groups of 1 to 4 rollouts of 1 to 3 rows each, rows shuffled but in time order."""
    rng = random.Random(seed)
    width = rng.randint(1, 7)
    rows = []
    rollout = 0
    for g in range(rng.randint(1, 3)):
        for _ in range(rng.randint(1, 4)):
            baseline = rng.choice([0.0, rng.random()])
            final = rng.choice([0.0, 1.0, rng.random()])
            # One sign of advantage per rollout, as group estimators give; clips see both signs.
            level = rng.choice([-1.5, 0.7, 0.0, rng.gauss(0, 1)])
            parts = rng.choice([1, 1, 2, 3])
            for part in range(parts):
                mask = [int(rng.random() < 0.6) for _ in range(width)]
                if not empty_rows and not any(mask):
                    mask[0] = 1
                reward = [0.0] * width
                if part == parts - 1:
                    ones = [t for t in range(width) if mask[t]]
                    at = rng.randrange(width) if stray_rewards or not ones else ones[-1]
                    reward[at] = final
                if rng.random() < 0.3:
                    t = rng.randrange(width)
                    if stray_rewards or mask[t]:
                        reward[t] += rng.gauss(0, 0.3)
                old = [-rng.random() * 3 for _ in range(width)]
                rows.append(
                    {
                        "rewards": reward,
                        "mask": mask,
                        "values": [rng.gauss(0, 1) for _ in range(width)],
                        "logp": [p + rng.gauss(0, 0.4) for p in old],
                        "old": old,
                        "adv": [level * m for m in mask],
                        "groups": f"task-{g}",
                        "rollouts": rollout,
                        "baselines": baseline,
                    }
                )
            rollout += 1
    # Interleave the rollouts; each one's rows stay in time order.
    order = [row["rollouts"] for row in rows]
    rng.shuffle(order)
    queues = {r: iter([row for row in rows if row["rollouts"] == r]) for r in order}
    rows = [next(queues[r]) for r in order]
    return Batch(**{f.name: [row[f.name] for row in rows] for f in fields(Batch)})


def batches(**options: bool) -> st.SearchStrategy[Batch]:
    """Batches by seed: hypothesis shrinks the seed, the batch stays realistic."""
    return st.integers(0, 10**6).map(lambda seed: make_batch(seed, **options))


def split(batch: Batch, seed: int) -> tuple[Batch, list[tuple[int, int]]]:
    """Cut rows in two at random: the same rollouts in more rows.

    Returns the new batch and, for each trained token of the old one in row order, its place in the
    new one.
    """
    rng = random.Random(seed)
    width = len(batch.mask[0])
    columns: dict[str, list] = {f.name: [] for f in fields(batch)}
    places = []
    for b in range(len(batch.mask)):
        cut = rng.choice([0, rng.randint(0, width)])
        for start, end in ((0, cut), (cut, width)) if cut else ((0, width),):
            pad = width - (end - start)
            for name in PER_TOKEN:
                columns[name].append(getattr(batch, name)[b][start:end] + [0] * pad)
            for name in PER_ROW:
                columns[name].append(getattr(batch, name)[b])
            row = len(columns["mask"]) - 1
            places += [(row, t - start) for t in range(start, end) if batch.mask[b][t]]
    return Batch(**columns), places


def observe(batch: Batch, seed: int) -> tuple[Batch, list[tuple[int, int]]]:
    """Insert observation tokens (mask 0, any value, no reward) at random; places as in `split`."""
    rng = random.Random(seed)
    extra = rng.randint(1, 4)
    columns: dict[str, list] = {name: [] for name in PER_TOKEN}
    places = []
    for b in range(len(batch.mask)):
        rows = {name: list(getattr(batch, name)[b]) for name in PER_TOKEN}
        for _ in range(extra):
            at = rng.randint(0, len(rows["mask"]))
            for name in PER_TOKEN:
                rows[name].insert(at, 0 if name in ("mask", "rewards") else rng.gauss(0, 5))
        for name in PER_TOKEN:
            columns[name].append(rows[name])
        places += [(b, t) for t, m in enumerate(rows["mask"]) if m]
    return replace(batch, **columns), places
