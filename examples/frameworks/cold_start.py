"""A small policy that speaks one framework: supervised training on its agent's own requests.

A model of 0.6 M parameters knows nothing before this. `gather.py` plays the agent with scripted
replies; the recorded calls give the tokenizer its corpus, the context its length, and training its
rows: the prompts that the framework really sent, with gold tool calls and answers as what is
learned. First clean rows until held-out ones are known by heart, then mixed ones of which most
guess without the calculator, as logs of real agents are full of. What is left to find out by reward
is that calling pays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from gather import Player, play

from tutelage.policy.codec import Codec
from tutelage.policy.model import Policy, build_policy
from tutelage.policy.named_templates import set_template
from tutelage.policy.packing import plan_micro_batches
from tutelage.policy.row import Row
from tutelage.rollouts.rows import build_rows
from tutelage.seeds import SeedTree
from tutelage.testing import tiny_policy
from tutelage.types import Rollout
from tutelage.weights.optim import SUPERVISED, Optimizer, make_optimizer
from tutelage.weights.process_group import ONE_PROCESS

TEMPLATE = "qwen2.5"
"""The chat template: it writes out the whole schema of a tool, as those of real models do."""
ROOM = 96
"""Tokens that a rollout may have beyond the longest one that was gathered."""


@dataclass(frozen=True)
class Recipe:
    """How much of everything; the defaults are those of benchmarks/frameworks."""

    tasks: int = 1000
    """Rollouts with gold calls that are gathered; a quarter as many guess."""
    held_out: int = 100
    corpus: int = 200
    """Rollouts from which the tokenizer is trained."""
    batch: int = 32
    lr: float = 3e-3
    clean_steps: int = 700
    """At most, before the cool-down."""
    known: float = 0.9
    """Share of held-out rows of which every token is likelier than all others together."""
    cooldown_steps: int = 100
    mixed_steps: int = 100
    """Enough for the policy to settle at the mixture, not to be caught on its way there."""
    guess_share: float = 0.8


@dataclass(frozen=True)
class Started:
    """The policy after its cold start, and what was measured on the way."""

    policy: Policy
    prompt_tokens: int
    """Of the first call."""
    max_len: int
    """A context that holds every rollout that was gathered, and more."""
    known: float
    calls: float
    steps: int


async def cold_start(
    player: Player,
    recipe: Recipe | None = None,
    *,
    api: str = "chat",
    seed: int = 0,
    say: Callable[[str], None] = print,
    resources: Mapping[str, Any] | None = None,
) -> Started:
    """Make the policy: gather, train clean, train mixed."""
    recipe, seeds = recipe or Recipe(), SeedTree(seed).child("cold start", player.name)
    policy, longest = await _untrained(player, recipe.corpus, api, seed, resources)
    tasks, held = (
        player.tasks("train", recipe.tasks, seed),
        player.tasks("val", recipe.held_out, seed),
    )
    lazy = player.lazy(seeds.child("guesses").python())
    rehearse = partial(play, player, codec=policy.codec, api=api, resources=resources)
    good = rows_of(await rehearse(tasks, script=player.gold()))
    bad = rows_of(await rehearse(tasks[::4], script=lazy))
    test = rows_of(await rehearse(held, script=player.gold()))
    first = test[0].prompt_length()
    say(f"{player.name}: {len(good)} + {len(bad)} rows, prompts of {first} tokens")

    trainer = _Supervised(policy, recipe, seeds)
    until = None
    while until is None or trainer.steps < until:
        share = 1.0
        if until is not None:
            share = 0.05 + 0.95 * (until - trainer.steps) / recipe.cooldown_steps
        trainer.step([(good, recipe.batch)], share)
        if until is None and (trainer.steps % 50 == 0 or trainer.steps >= recipe.clean_steps):
            known = share_known(policy, test)
            say(f"{player.name}: step {trainer.steps}: {known:.0%} of held-out rows known")
            if known >= recipe.known or trainer.steps >= recipe.clean_steps:
                until = trainer.steps + recipe.cooldown_steps
    known = share_known(policy, test)
    many = round(recipe.batch * recipe.guess_share)
    for step in range(recipe.mixed_steps):
        share = 0.2 * (1 - step / recipe.mixed_steps)
        trainer.step([(good, recipe.batch - many), (bad, many)], share)
    calls = likely_to_call(policy, test)
    say(f"{player.name}: {known:.0%} known, calls its tool with probability {calls:.2f}")
    return Started(policy, first, longest + ROOM, known, calls, trainer.steps)


def rows_of(rollouts: Sequence[Rollout]) -> list[Row]:
    """The training rows of what was gathered. Raises `RuntimeError` when a rollout failed."""
    failed = [r.last.failure for r in rollouts if r.last.failure is not None]
    if failed:
        raise RuntimeError(f"{len(failed)} rollouts failed, the first with: {failed[0]}")
    return [Row(row.ids, row.mask) for r in rollouts for row in build_rows(r.last.calls)]


def with_template(policy: Policy, template: str = TEMPLATE) -> Policy:
    """The policy with another chat template on its tokenizer."""
    set_template(policy.codec.tokenizer, template)
    return Policy(policy.network, policy.config, Codec(policy.codec.tokenizer))


async def _untrained(
    player: Player, corpus: int, api: str, seed: int, resources: Mapping[str, Any] | None
) -> tuple[Policy, int]:
    """A fresh policy whose tokenizer was trained on what the framework sends, and the length of its
    longest rollout in that tokenizer's tokens."""
    probe = with_template(tiny_policy(max_positions=16384)).codec
    tasks, script = player.tasks("train", corpus, seed), player.gold()
    seen = await play(player, tasks, probe, script, api=api, max_length=16384, resources=resources)
    texts = [probe.decode(row.ids) for row in rows_of(seen)]
    policy = build_policy(texts, size="xs", seed=seed, max_positions=4096)
    policy = with_template(policy)
    longest = max(len(policy.codec.encode(text)) for text in texts)
    return policy, longest


class _Supervised:
    """Steps on batches that are drawn from the seed."""

    def __init__(self, policy: Policy, recipe: Recipe, seeds: SeedTree) -> None:
        self.policy, self.steps, self._seeds = policy, 0, seeds
        optim = SUPERVISED.model_copy(update={"lr": recipe.lr})
        self._optimizer: Optimizer = make_optimizer(policy.named_tensors(), optim, "muon")

    def step(self, parts: Sequence[tuple[Sequence[Row], int]], share: float) -> None:
        """One step on that many rows of each part, at a share of the learning rate."""
        rng = self._seeds.child("step", self.steps).python()
        rows = [row for source, count in parts for row in rng.sample(list(source), count)]
        total = sum(sum(row.mask) for row in rows)

        def loss(chosen: list[int]) -> tuple[torch.Tensor, None]:
            scores = self.policy.score([rows[i] for i in chosen])
            return -scores.logp_K.sum() / total, None

        ONE_PROCESS.accumulate(self.policy.parameters(), plan_micro_batches(rows, 4096), loss)
        self._optimizer.step(min(1.0, (self.steps + 1) / 20) * share)
        self.policy.version += 1
        self.steps += 1


@torch.no_grad()
def share_known(policy: Policy, rows: Sequence[Row]) -> float:
    """Share of rows that greedy sampling would write, because each token has more than half of the
    probability."""
    known = 0
    for row in rows:
        known += bool(policy.score([row]).logp_K.min() > math.log(0.5))
    return known / len(rows)


@torch.no_grad()
def likely_to_call(policy: Policy, rows: Sequence[Row]) -> float:
    """Mean probability of the first token of rows that begin with a tool call."""
    likely = [math.exp(float(policy.score([row]).logp_K[0])) for row in rows]
    return sum(likely) / len(likely)
