"""Screening: which phrases help, by a designed experiment and a regression; no optimiser LLM.

Subsets of a bank of phrases are each played on one training task, in waves. Ridge regression of the
reward on the phrases says what each is worth. The first wave's subsets are random; those of later
waves are drawn by Thompson sampling (Agrawal and Goyal 2013, arXiv 1209.3352) from what is known so
far: phrases that help only together with others are then seen among those others. The best k
together are validated for several k, with the best subsets played, and the winner is polished by
dropping and adding one phrase at a time. Where that ends before the budget, a further wave looks
for what was missed. It needs about ten rollouts a phrase; below that, whole random subsets are
validated. `bank.py` makes the phrases, `grips.py` is the baseline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import numpy.typing as npt

from tutelage.errors import ConfigError
from tutelage.prompts.bank import GENERIC
from tutelage.prompts.lineage import Candidate
from tutelage.prompts.narrowing import halve
from tutelage.prompts.pool import DIGITS, rounded
from tutelage.prompts.workshop import Workshop

ROLLOUTS_A_PHRASE = 10
WAVES = 3
"""Waves of the experiment; each has a third of its rollouts."""
LATER = 2
"""Rollouts a phrase of a wave that follows the experiment."""
PLAYED = 3
"""Subsets of the experiment that are validated as they were played."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Screen:
    """Settings. `bank` are the phrases; `component` None screens the first component."""

    bank: tuple[str, ...] = GENERIC
    subset: int = 6
    """Phrases of a subset; of a later wave's at most so many."""
    ridge: float = 1.0
    component: str | None = None
    share: float = 0.6
    """The most of the rollouts that the experiment may take, without the waves that follow it."""
    rounds: int | None = None
    """Rounds of random subsets, or of polish, at most; None lets the budget and progress end it."""
    patience: int = 2
    """Waves after the experiment that may find nothing better, one after the other."""

    name = "screen"
    needs_optimiser = False

    def proposals(self, rollouts: int, val: int) -> int:
        """How many candidates are sure to fit the validation, after the experiment."""
        return int(max(0, rollouts - val) * (1 - self.share)) // val

    async def search(self, shop: Workshop) -> None:
        """Runs until nothing improves or the budget ends. Raises `BudgetSpent` at the latter."""
        if not self.bank:
            raise ConfigError("screen needs phrases to try; give bank=('...', ...)")
        component = self.component or shop.names[0]
        if component not in shop.seed.components:
            raise ConfigError(f"there is no component {component!r} to screen")
        await shop.validate([shop.seed])
        room = shop.budget.limits.rollouts
        trials = ROLLOUTS_A_PHRASE * len(self.bank)
        if room is not None and trials > self.share * room:
            await self._random(shop, component)
        else:
            await _Screening(self, shop, component).run(trials)
        await shop.validate(await shop.demonstrate(shop.leaders()[0], 0))

    async def _random(self, shop: Workshop, component: str) -> None:
        """Whole subsets, four at a time, halved against the best so far."""
        leader = shop.seed
        number = 0
        for _ in count() if self.rounds is None else range(self.rounds):
            made: list[Candidate] = []
            for _ in range(4):
                rng = shop.seeds.child("screen", "random", number).python()
                size = min(self.subset, len(self.bank))
                picked = sorted(rng.sample(range(len(self.bank)), size))
                made += self.propose(shop, component, picked, "random subset")
                number += 1
            leader = (await halve(shop, [leader, *made], 1))[0]
            shop.lineage.decide(leader, "accepted", "best subset so far")
            shop.end_round()

    def propose(
        self, shop: Workshop, component: str, picked: Sequence[int], operation: str
    ) -> list[Candidate]:
        """The seed with these phrases as a candidate; none where it was rejected."""
        made = shop.propose([shop.seed], {component: self.text(shop, component, picked)}, operation)
        return [] if made is None else [made]

    def text(self, shop: Workshop, component: str, picked: Sequence[int]) -> str:
        """The seed with these phrases, one a line."""
        return "\n".join([shop.seed.components[component], *(self.bank[i] for i in picked)])


@dataclass(slots=True)
class _Screening:
    """One screening: what was played in waves, and the candidates that came of it."""

    settings: Screen
    shop: Workshop
    component: str
    subsets: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    """The phrases of each trial, by number."""
    tasks: list[int] = field(default_factory=list[int])
    rewards: list[float] = field(default_factory=list[float])
    picked: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    """The phrases of each candidate."""
    polished: int = 0
    waves: int = 0

    async def run(self, trials: int) -> None:
        """The experiment, then candidates and polish, then further waves while they help."""
        for i in range(WAVES):
            await self._wave(trials * (i + 1) // WAVES - trials * i // WAVES)
        if not self.rewards:
            return  # every trial was lost
        best, waited = self.shop.seed, 0
        self.picked[best.id] = ()
        while True:
            before = best
            best = await self._polish(await self._better(best, self._promising()))
            waited = waited + 1 if best == before else 0
            if self._perfect(best) or waited > self.settings.patience or self._polish_over():
                return
            await self._wave(LATER * len(self.settings.bank))

    async def _wave(self, trials: int) -> None:
        """Play so many subsets, each on one training task, and keep what they earned."""
        rng = self.shop.seeds.child("screen", "wave", self.waves).numpy()
        subsets = self._subsets(trials, rng)
        texts = [self.settings.text(self.shop, self.component, s) for s in subsets]
        rewards = await self.shop.experiment(self.component, texts)
        for i, (subset, reward) in enumerate(zip(subsets, rewards, strict=True)):
            if np.isfinite(reward):
                self.subsets.append(subset)
                self.tasks.append(i % len(self.shop.train))
                self.rewards.append(reward)
        self.waves += 1

    def _subsets(self, trials: int, rng: np.random.Generator) -> list[tuple[int, ...]]:
        phrases = len(self.settings.bank)
        size = min(self.settings.subset, phrases)
        if not self.rewards:
            dealt = (rng.choice(phrases, size, replace=False) for _ in range(trials))
            return [tuple(sorted(int(i) for i in subset)) for subset in dealt]
        mean, covariance = self._effects()
        drawn = rounded(rng.multivariate_normal(mean, covariance, trials, method="cholesky"))
        return [_best(effects, size) for effects in drawn]

    def _effects(self) -> tuple[Floats, Floats]:
        return effects(
            _design(self.subsets, len(self.settings.bank)),
            np.asarray(self.tasks),
            np.asarray(self.rewards),
            self.settings.ridge,
        )

    def _promising(self) -> list[Candidate]:
        """The best k phrases for several k, and the subsets that did best as they were played."""
        mean, _ = self._effects()
        ranked = [int(i) for i in np.argsort(-mean, kind="stable")]
        useful = max(1, int((mean > 0).sum()))
        sizes = sorted({k for k in (1, 2, 3, 4, 6, 8, 12, useful) if k <= useful})
        tried = [(f"best {k}", ranked[:k]) for k in sizes]
        order = sorted({*self.subsets}, key=lambda s: (-self._earned(s), -_total(mean, s), s))
        tried += [("best played", list(subset)) for subset in order[:PLAYED]]
        return self._candidates(tried, mean)

    def _earned(self, subset: tuple[int, ...]) -> float:
        """The mean reward of a subset's trials."""
        return float(
            np.mean([r for s, r in zip(self.subsets, self.rewards, strict=True) if s == subset])
        )

    def _candidates(
        self, tried: Sequence[tuple[str, Sequence[int]]], mean: Floats
    ) -> list[Candidate]:
        """New candidates of subsets, those that the regression thinks best first: where few tasks
        cannot tell candidates apart, the earlier ones go on."""
        made: list[Candidate] = []
        for operation, picked in sorted(tried, key=lambda t: -_total(mean, t[1])):
            chosen = tuple(sorted(picked))
            new = self.settings.propose(self.shop, self.component, chosen, operation)
            self.picked.update((c.id, chosen) for c in new)
            made += new
        return made

    async def _better(self, best: Candidate, made: Sequence[Candidate]) -> Candidate:
        """The best of new candidates, where it does better than the best so far.

        They are halved among themselves: on few tasks a new one may tie with the best so far, whose
        failures on the others are known.
        """
        shop = self.shop
        found = (await halve(shop, made, 1))[:1] if made else []
        before = shop.validated[best.id][1].reward
        return next((c for c in found if shop.validated[c.id][1].reward > before), best)

    async def _polish(self, best: Candidate) -> Candidate:
        """Drop or add one phrase while the validation score rises; the best there is then.

        Additions are tried four at a time, the most promising first, until none is left.
        """
        shop, skipped = self.shop, 0
        while not self._polish_over() and not self._perfect(best):
            self.polished += 1
            shop.close_round()
            shop.lineage.decide(best, "accepted", "best so far")
            now = self.picked[best.id]
            mean, _ = self._effects()
            outside = [int(i) for i in np.argsort(-mean, kind="stable") if i not in now]
            new = outside[skipped : skipped + 4]
            neighbours = [[i for i in now if i != out] for out in now] if not skipped else []
            neighbours += [[*now, i] for i in new]
            made = self._candidates([("polish", n) for n in neighbours if n], mean)
            found = await self._better(best, made)
            if found != best:
                best, skipped = found, 0
            elif skipped + 4 < len(outside):
                skipped += 4
            else:
                break
        return best

    def _polish_over(self) -> bool:
        return self.settings.rounds is not None and self.polished >= self.settings.rounds

    def _perfect(self, best: Candidate) -> bool:
        """Whether validation has nothing left to tell."""
        known = self.shop.validated.get(best.id)
        return known is not None and known[1].exact == 1.0


def effects(
    design: Floats, tasks: npt.NDArray[np.int_], rewards: Floats, penalty: float
) -> tuple[Floats, Floats]:
    """What each phrase adds to the reward: mean [phrases] and covariance [phrases, phrases].

    The posterior of a linear model of 0/1 `design` [trials, phrases] on `rewards` [trials], both
    centred, with normal priors on phrases and on the difficulty of the task of each trial
    (`tasks`), of the noise's variance over `penalty`: ridge with a random intercept a task.
    """
    dummies = (tasks[:, None] == np.unique(tasks)).astype(float)
    both = np.concatenate([design, dummies], axis=1)
    centred, values = both - both.mean(axis=0), rewards - rewards.mean()
    inverse = np.linalg.inv(centred.T @ centred + penalty * np.eye(both.shape[1]))
    found = inverse @ (centred.T @ values)
    # Not below a floor: where all earned the same, the next wave should still vary.
    noise = max(float(np.mean((values - centred @ found) ** 2)), 1e-4)
    phrases = design.shape[1]
    return rounded(found[:phrases]), noise * inverse[:phrases, :phrases]


def _design(subsets: Sequence[tuple[int, ...]], phrases: int) -> Floats:
    design = np.zeros((len(subsets), phrases))
    for row, subset in zip(design, subsets, strict=True):
        row[list(subset)] = 1
    return design


def _total(mean: Floats, picked: Sequence[int]) -> float:
    """What phrases add together; sums in another order are ties."""
    return round(sum(float(mean[i]) for i in picked), DIGITS)


def _best(values: Floats, size: int) -> tuple[int, ...]:
    """The phrases of positive value, the `size` best of them; at least two."""
    ranked = [int(i) for i in np.argsort(-values, kind="stable")]
    room = min(size, max(2, int((values > 0).sum())))
    return tuple(sorted(ranked[:room]))
