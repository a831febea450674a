"""Screening: selection of helpful phrases by a designed experiment and a regression, without an
optimiser LLM.

Subsets of a bank of phrases are each played on one training task, in waves. Ridge regression of the
reward on the phrases estimates the effect of each. The first wave's subsets are random; those of
later waves are drawn by Thompson sampling (Agrawal and Goyal 2013, arXiv 1209.3352) from the
current estimate, so phrases that help only together are played together. The best k are validated
for several k, with the best subsets played, and the winner is improved by dropping and adding one
phrase at a time. If budget is left, another wave follows. It needs about ten rollouts per phrase;
below that, random subsets are validated. `bank.py` makes the phrases.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from tutelage.errors import ConfigError
from tutelage.prompts.bank import GENERIC
from tutelage.prompts.lineage import Candidate
from tutelage.prompts.search import SearchState
from tutelage.prompts.selection import successive_halving
from tutelage.prompts.sentence_model import DIGITS, round_off

ROLLOUTS_A_PHRASE = 10
WAVES = 3
"""Waves of the experiment, of equal size."""
LATER = 2
"""Rollouts per phrase of a wave after the experiment."""
ADDED = 4
"""Phrases that a round of polish tries to add."""
PLAYED = 3
"""Played subsets of the experiment that are validated unchanged."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Screen:
    """Settings of the search algorithm `screen`, which adds phrases to the first component."""

    bank: tuple[str, ...] = GENERIC
    subset: int = 6
    """Phrases per subset."""
    ridge: float = 1.0
    share: float = 0.6
    """Maximum share of the rollouts for the experiment, without later waves."""
    rounds: int | None = None
    """Maximum rounds of polish; None is limited by budget and progress."""
    patience: int = 2
    """Consecutive waves without an improvement after which the search ends."""

    name: ClassVar[str] = "screen"
    address: ClassVar[str] = "screen"
    needs_optimiser: ClassVar[bool] = False

    def proposals(self, rollouts: int, val: int) -> int:
        """Return the number of proposals within a rollout budget; see `Algorithm`."""
        return int(max(0, rollouts - val) * (1 - self.share)) // val

    @property
    def experiment(self) -> int:
        """Return the minimum number of rollouts needed to test all phrases."""
        return math.ceil(ROLLOUTS_A_PHRASE * len(self.bank) / self.share)

    async def search(self, state: SearchState) -> None:
        """Run the search; see `Algorithm`. Raises `ConfigError` if there are no phrases."""
        if not self.bank:
            raise ConfigError("screen needs phrases to try; pass bank=('...', ...)")
        room, bank = state.budget.limits.rollouts, self.bank
        if room is not None:  # the generic phrases come first, the user's own last
            bank = bank[-max(1, int(self.share * room / ROLLOUTS_A_PHRASE)) :]
        phrases = _ScreenState(replace(self, bank=bank), state, state.names[0])
        trials = ROLLOUTS_A_PHRASE * len(bank)
        waves = [trials * (i + 1) // WAVES - trials * i // WAVES for i in range(WAVES)]
        waited = 0
        while waited <= self.patience:
            before = phrases.best
            for wave in waves:
                await phrases.play(wave)
            if not phrases.trials:
                return  # every trial was lost
            await phrases.validate_best()
            await phrases.polish()
            waited = waited + 1 if phrases.best == before else 0
            if phrases.is_polished:
                return
            waves = [LATER * len(bank)]


_Subset = tuple[int, ...]
"""Sorted numbers of phrases."""
_Trial = tuple[_Subset, int, float]
"""A played subset, its task, and its reward."""


@dataclass(slots=True)
class _ScreenState:
    """State of a screening: the trials and the candidates derived from them."""

    settings: Screen
    state: SearchState
    component: str
    best: Candidate = field(init=False)
    trials: list[_Trial] = field(default_factory=list[_Trial])
    picked: dict[str, _Subset] = field(default_factory=dict[str, tuple[int, ...]])
    """The phrases of each candidate."""
    waves: int = 0
    polished: int = 0

    def __post_init__(self) -> None:
        self.best = self.state.seed
        self.picked[self.best.id] = ()

    @property
    def is_polished(self) -> bool:
        """Return True after the last polishing round, or if the best candidate is always right."""
        rounds, known = self.settings.rounds, self.state.validated.get(self.best.id)
        perfect = known is not None and known[1].exact == 1.0
        return perfect or (rounds is not None and self.polished >= rounds)

    def text(self, subset: Sequence[int]) -> str:
        """Return the seed prompt with the given phrases appended, one per line."""
        bank, seed = self.settings.bank, self.state.seed.components[self.component]
        return "\n".join([seed, *(bank[i] for i in subset)])

    def propose(self, subset: Sequence[int], operation: str) -> list[Candidate]:
        """Propose the seed prompt with the given phrases; the list is empty if it is rejected."""
        return self.state.propose([self.state.seed], {self.component: self.text(subset)}, operation)

    async def play(self, trials: int) -> None:
        """Evaluate a wave of phrase subsets, each on one training task, and store the rewards."""
        rng = self.state.seeds.child("screen", "wave", self.waves).numpy()
        bank = len(self.settings.bank)
        size = min(self.settings.subset, bank)
        if self.trials:
            mean, covariance = self.estimate_effects()
            drawn = round_off(rng.multivariate_normal(mean, covariance, trials, method="cholesky"))
            subsets = [_select_best(effects, size) for effects in drawn]
        else:
            dealt = (rng.choice(bank, size, replace=False) for _ in range(trials))
            subsets = [tuple(sorted(int(i) for i in subset)) for subset in dealt]
        texts, train = [self.text(s) for s in subsets], self.state.train
        seed, tasks = self.state.seed, cycle(train)
        rewards = await self.state.try_texts(seed, self.component, texts, tasks, "experiment")
        tried = zip(subsets, cycle(range(len(train))), rewards, strict=False)
        self.trials += [trial for trial in tried if np.isfinite(trial[2])]
        self.waves += 1

    def estimate_effects(self) -> tuple[Floats, Floats]:
        """Estimate the effect of each phrase on the reward from all trials: mean and covariance."""
        subsets, tasks, rewards = zip(*self.trials, strict=True)
        bank = range(len(self.settings.bank))
        design = np.array([[i in subset for i in bank] for subset in subsets], dtype=float)
        return estimate_effects(design, np.asarray(tasks), np.asarray(rewards), self.settings.ridge)

    async def validate_best(self) -> None:
        """Validate the best k phrases for several values of k, and the best evaluated subsets.

        They are halved without the best candidate so far: on few tasks a new candidate may tie with
        it.
        """
        mean, _ = self.estimate_effects()
        ranked = [int(i) for i in np.argsort(-mean, kind="stable")]
        useful = max(1, int((mean > 0).sum()))
        sizes = sorted({k for k in (1, 2, 3, 4, 6, 8, 12, useful) if k <= useful})
        tried: list[tuple[str, Sequence[int]]] = [(f"best {k}", ranked[:k]) for k in sizes]
        earned: dict[_Subset, list[float]] = {}
        for subset, _, reward in self.trials:
            earned.setdefault(subset, []).append(reward)
        order = sorted(
            earned, key=lambda s: (-float(np.mean(earned[s])), -_sum_effects(mean, s), s)
        )
        tried += [("best played", subset) for subset in order[:PLAYED]]
        await self._validate(tried, mean)

    async def polish(self) -> None:
        """Remove or add one phrase at a time while the reward improves. Additions are tried in
        groups of four, the most promising first."""
        skipped, left = 0, True
        while left and not self.is_polished:
            self.state.close_round()
            self.polished += 1
            self.best.decide("accepted", "best so far")
            mean, _ = self.estimate_effects()
            now = self.picked[self.best.id]
            outside = [int(i) for i in np.argsort(-mean, kind="stable") if i not in now]
            neighbours = [[i for i in now if i != out] for out in now] if not skipped else []
            neighbours += [[*now, i] for i in outside[skipped : skipped + ADDED]]
            better = await self._validate([("polish", n) for n in neighbours if n], mean)
            skipped = 0 if better else skipped + ADDED
            left = skipped < len(outside)

    async def _validate(self, subsets: Sequence[tuple[str, Sequence[int]]], mean: Floats) -> bool:
        """Validate candidates for new subsets by successive halving, ordered by the regression.
        Return True if a candidate is better than the previous best."""
        made: list[Candidate] = []
        for operation, subset in sorted(subsets, key=lambda t: -_sum_effects(mean, t[1])):
            chosen = tuple(sorted(subset))
            new = self.propose(chosen, operation)
            self.picked.update((c.id, chosen) for c in new)
            made += new
        before = self.best
        for candidate in await successive_halving(self.state, made, 1) if made else []:
            if self.state.mean(candidate) > self.state.mean(before):
                self.best = candidate
        return self.best != before


def estimate_effects(
    design: Floats, tasks: npt.NDArray[np.int_], rewards: Floats, penalty: float
) -> tuple[Floats, Floats]:
    """Estimate the effect of each phrase on the reward: mean [phrases] and covariance [phrases,
    phrases].

    The posterior of a linear model of 0/1 `design` [trials, phrases] on `rewards` [trials], both
    centred, with normal priors on phrases and on the difficulty of the task of each trial
    (`tasks`), with the noise variance over `penalty`: ridge with a random intercept per task.
    """
    dummies = (tasks[:, None] == np.unique(tasks)).astype(float)
    both = np.concatenate([design, dummies], axis=1)
    centred, values = both - both.mean(axis=0), rewards - rewards.mean()
    inverse = np.linalg.inv(centred.T @ centred + penalty * np.eye(both.shape[1]))
    found = inverse @ (centred.T @ values)
    # Not below a floor: where all earned the same, the next wave should still vary.
    noise = max(float(np.mean((values - centred @ found) ** 2)), 1e-4)
    phrases = design.shape[1]
    return round_off(found[:phrases]), noise * inverse[:phrases, :phrases]


def _sum_effects(mean: Floats, subset: Sequence[int]) -> float:
    """Return the sum of the effects of phrases, rounded so that it does not depend on their
    order."""
    return round(sum(float(mean[i]) for i in subset), DIGITS)


def _select_best(values: Floats, size: int) -> _Subset:
    """Select the phrases with positive values, at least two and at most `size`."""
    ranked = [int(i) for i in np.argsort(-values, kind="stable")]
    room = min(size, max(2, int((values > 0).sum())))
    return tuple(sorted(ranked[:room]))
