"""Screening: which phrases help, by a designed experiment and a regression; no optimiser LLM.

Random subsets of a bank of phrases are each played on one training task; ridge regression of the
reward on the phrases ranks them; the best k together are validated for several k, and the winner is
polished by dropping and adding one phrase at a time. It needs about ten rollouts a phrase; below
that, whole random subsets are validated. `bank.py` makes the phrases, `grips.py` is the baseline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tutelage.algorithms.prompt.bank import GENERIC
from tutelage.algorithms.prompt.lineage import Candidate
from tutelage.algorithms.prompt.workshop import PREFIXES, Workshop
from tutelage.errors import ConfigError

ROLLOUTS_A_PHRASE = 10


@dataclass(frozen=True, slots=True)
class Screen:
    """Settings. `bank` are the phrases; `component` None screens the first component."""

    bank: tuple[str, ...] = GENERIC
    subset: int = 6
    ridge: float = 1.0
    component: str | None = None
    share: float = 0.6
    """The most of the rollouts that the experiment may take."""

    name = "screen"
    needs_optimiser = False

    def proposals(self, rollouts: int, val: int) -> int:
        """How many candidates are sure to fit the validation, after the experiment."""
        return int(max(0, rollouts - val) * (1 - self.share)) // val

    async def search(self, shop: Workshop) -> None:
        """Runs until nothing improves or the budget ends. Raises `BudgetSpent` at the latter."""
        if not self.bank:
            raise ConfigError("screen needs phrases to try; give bank=('...', ...)")
        component = self.component or min(shop.seed.components)
        if component not in shop.seed.components:
            raise ConfigError(f"there is no component {component!r} to screen")
        await shop.validate([shop.seed])
        room = shop.budget.limits.rollouts
        trials = ROLLOUTS_A_PHRASE * len(self.bank)
        if room is not None and trials > self.share * room:
            await self._random(shop, component)
        else:
            await self._regress(shop, component, trials)

    async def _random(self, shop: Workshop, component: str) -> None:
        """Whole subsets, four at a time, halved against the best so far."""
        leader = shop.seed
        number = 0
        while True:
            made: list[Candidate] = []
            for _ in range(4):
                rng = shop.seeds.child("screen", "random", number).python()
                size = min(self.subset, len(self.bank))
                picked = sorted(rng.sample(range(len(self.bank)), size))
                made += self._with(shop, component, picked, "random subset")
                number += 1
            leader = (await shop.halve([leader, *made], 1, PREFIXES))[0]
            shop.lineage.decide(leader, "accepted", "best subset so far")
            shop.budget.end_round()

    async def _regress(self, shop: Workshop, component: str, trials: int) -> None:
        design = np.zeros((trials, len(self.bank)))
        for i in range(trials):
            rng = shop.seeds.child("screen", "trial", i).python()
            design[i, rng.sample(range(len(self.bank)), min(self.subset, len(self.bank)))] = 1
        subsets = [[int(j) for j in np.flatnonzero(row)] for row in design]
        texts = [self._text(shop, component, picked) for picked in subsets]
        rewards = np.asarray(await shop.experiment(component, texts))
        heard = np.isfinite(rewards)
        if not heard.any():
            return
        design, rewards = design[heard], rewards[heard]
        effects = ridge(design, rewards, self.ridge)
        ranked = [int(i) for i in np.argsort(-effects, kind="stable")]
        useful = max(1, int((effects > 0).sum()))
        sizes = sorted({k for k in (1, 2, 3, 4, 6, 8, 12, useful) if k <= useful})
        made = [
            (c, ranked[:k])
            for k in sizes
            for c in self._with(shop, component, sorted(ranked[:k]), f"best {k}")
        ]
        chosen = {c.id: picked for c, picked in made} | {shop.seed.id: list[int]()}
        best = (await shop.halve([shop.seed, *(c for c, _ in made)], 1))[0]
        await self._polish(shop, component, best, chosen[best.id], ranked)

    async def _polish(
        self,
        shop: Workshop,
        component: str,
        best: Candidate,
        picked: Sequence[int],
        ranked: Sequence[int],
    ) -> None:
        """Drop or add one phrase while the validation score rises."""
        while True:
            shop.lineage.decide(best, "accepted", "best so far")
            outside = [i for i in ranked if i not in picked][:4]
            neighbours = [[i for i in picked if i != out] for out in picked]
            neighbours += [[*picked, new] for new in outside]
            made = [
                (c, subset)
                for subset in neighbours
                for c in self._with(shop, component, sorted(subset), "polish")
            ]
            if not made:
                return
            before = shop.validated[best.id][1].reward
            found = (await shop.halve([best, *(c for c, _ in made)], 2))[0]
            if found == best or shop.validated[found.id][1].reward <= before:
                return
            picked = next(subset for c, subset in made if c == found)
            best = found

    def _with(
        self, shop: Workshop, component: str, picked: Sequence[int], operation: str
    ) -> list[Candidate]:
        text = self._text(shop, component, picked)
        made = shop.propose([shop.seed], {component: text}, operation)
        return [] if made is None else [made]

    def _text(self, shop: Workshop, component: str, picked: Sequence[int]) -> str:
        return "\n".join([shop.seed.components[component], *(self.bank[i] for i in picked)])


def ridge(
    design: npt.NDArray[np.float64], rewards: npt.NDArray[np.float64], penalty: float
) -> npt.NDArray[np.float64]:
    """Effects [phrases] of a 0/1 design [trials, phrases] on rewards [trials], both centred."""
    centred = design - design.mean(axis=0)
    gram = centred.T @ centred + penalty * np.eye(design.shape[1])
    return np.linalg.solve(gram, centred.T @ (rewards - rewards.mean()))
