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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle

import numpy as np
import numpy.typing as npt

from tutelage.errors import ConfigError
from tutelage.prompts.bank import GENERIC
from tutelage.prompts.lineage import Candidate
from tutelage.prompts.rounds import Candidates, Demonstrate, Scores, SearchRound, numbers
from tutelage.prompts.search_state import SearchState
from tutelage.prompts.selection import successive_halving
from tutelage.prompts.sentence_model import DIGITS, rounded

ROLLOUTS_A_PHRASE = 10
WAVES = 3
"""Waves of the experiment; each has a third of its rollouts."""
LATER = 2
"""Rollouts a phrase of a wave that follows the experiment."""
RANDOM = 4
"""Subsets of a round without an experiment."""
ADDED = 4
"""Phrases that a round of polish tries to add."""
PLAYED = 3
"""Subsets of the experiment that are validated as they were played."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Screen:
    """Settings. `bank` are the phrases; `component` None screens the first component."""

    bank: tuple[str, ...] = GENERIC
    subset: int = 6
    """Phrases of a subset; of a later wave, at most `limit`."""
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

    def affords_experiment(self, rollouts: int) -> bool:
        """Whether every phrase can be tried often enough; else random subsets are validated."""
        return ROLLOUTS_A_PHRASE * len(self.bank) <= self.share * rollouts

    def search(self, shop: SearchState) -> Iterator[SearchRound]:
        """Rounds until nothing improves or the budget ends, then demonstrations.

        Raises `ConfigError` without a phrase or a component to screen.
        """
        if not self.bank:
            raise ConfigError("screen needs phrases to try; pass bank=('...', ...)")
        phrases = _Phrases(self, shop, self.component or shop.names[0])
        if phrases.component not in shop.seed.components:
            raise ConfigError(f"unknown component {phrases.component!r}")
        room = shop.budget.limits.rollouts
        trials = ROLLOUTS_A_PHRASE * len(self.bank)
        if room is not None and not self.affords_experiment(room):
            subsets = _RandomSubsets(phrases)
            for subsets.number in numbers(self.rounds):
                yield subsets
        else:
            waves = [trials * (i + 1) // WAVES - trials * i // WAVES for i in range(WAVES)]
            yield from self._screened(phrases, waves)
        yield _Demonstrate(shop)

    def _screened(self, phrases: _Phrases, waves: Sequence[int]) -> Iterator[SearchRound]:
        """The experiment, then candidates and polish, then further waves while they help."""
        waited = 0
        while waited <= self.patience:
            before = phrases.best
            yield _Experiment(phrases, waves)
            if not phrases.trials:
                return  # every trial was lost
            while phrases.polishing:
                yield _Polish(phrases)
            waited = waited + 1 if phrases.best == before else 0
            if phrases.perfect or phrases.polish_over:
                return
            waves = [LATER * len(self.bank)]


_Trial = tuple[tuple[int, ...], int, float]
"""The phrases that were tried, by number, their task, and what they earned."""


@dataclass(slots=True)
class _Phrases:
    """The phrases of one search: what was played of them, and the candidates that it produced."""

    settings: Screen
    shop: SearchState
    component: str
    best: Candidate = field(init=False)
    trials: list[_Trial] = field(default_factory=list[_Trial])
    picked: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    """The phrases of each candidate."""
    waves: int = 0
    polished: int = 0
    skipped: int = 0
    """Phrases outside the best candidate that were tried in vain, the most promising ones."""
    unpolished: bool = True
    """Whether a phrase is left to drop or to add."""

    def __post_init__(self) -> None:
        self.best = self.shop.seed
        self.picked[self.best.id] = ()

    @property
    def polish_over(self) -> bool:
        """Whether there were as many rounds of polish as there may be."""
        rounds = self.settings.rounds
        return rounds is not None and self.polished >= rounds

    @property
    def perfect(self) -> bool:
        """Whether validation has nothing left to tell of the best candidate."""
        known = self.shop.validated.get(self.best.id)
        return known is not None and known[1].exact == 1.0

    @property
    def polishing(self) -> bool:
        """Whether the next round is one of polish."""
        return self.unpolished and not self.polish_over and not self.perfect

    def text(self, picked: Sequence[int]) -> str:
        """The seed with these phrases, one a line."""
        bank, seed = self.settings.bank, self.shop.seed.components[self.component]
        return "\n".join([seed, *(bank[i] for i in picked)])

    def propose(self, picked: Sequence[int], operation: str) -> list[Candidate]:
        """The seed with these phrases as a candidate; none where it was rejected."""
        return self.shop.propose([self.shop.seed], {self.component: self.text(picked)}, operation)

    async def play(self, trials: int) -> None:
        """Play `count` subsets, each on one training task, and keep what they earned."""
        rng = self.shop.seeds.child("screen", "wave", self.waves).numpy()
        subsets = self._drawn(trials, rng)
        rewards = await self.shop.experiment(self.component, [self.text(s) for s in subsets])
        tried = zip(subsets, cycle(range(len(self.shop.train))), rewards, strict=False)
        self.trials += [trial for trial in tried if np.isfinite(trial[2])]
        self.waves += 1

    def _drawn(self, trials: int, rng: np.random.Generator) -> list[tuple[int, ...]]:
        phrases = len(self.settings.bank)
        size = min(self.settings.subset, phrases)
        if not self.trials:
            dealt = (rng.choice(phrases, size, replace=False) for _ in range(trials))
            return [tuple(sorted(int(i) for i in subset)) for subset in dealt]
        mean, covariance = self.effects()
        drawn = rounded(rng.multivariate_normal(mean, covariance, trials, method="cholesky"))
        return [_best(effects, size) for effects in drawn]

    def effects(self) -> tuple[Floats, Floats]:
        """What each phrase adds to the reward, from all trials: mean and covariance."""
        subsets, tasks, rewards = zip(*self.trials, strict=True)
        bank = range(len(self.settings.bank))
        design = np.array([[i in subset for i in bank] for subset in subsets], dtype=float)
        return effects(design, np.asarray(tasks), np.asarray(rewards), self.settings.ridge)

    def earned(self, subset: tuple[int, ...]) -> float:
        """The mean reward of a subset's trials."""
        return float(np.mean([reward for tried, _, reward in self.trials if tried == subset]))

    def candidates(
        self, tried: Sequence[tuple[str, Sequence[int]]], mean: Floats
    ) -> list[Candidate]:
        """New candidates of subsets, those that the regression thinks best first: where few tasks
        cannot tell candidates apart, the earlier ones go on."""
        made: list[Candidate] = []
        for operation, picked in sorted(tried, key=lambda t: -_total(mean, t[1])):
            chosen = tuple(sorted(picked))
            new = self.propose(chosen, operation)
            self.picked.update((c.id, chosen) for c in new)
            made += new
        return made


class _RandomSubsets(SearchRound):
    """Whole subsets, four at a time, halved against the best so far."""

    def __init__(self, phrases: _Phrases) -> None:
        super().__init__(phrases.shop)
        self.phrases = phrases

    def select(self) -> Candidates:
        """The best so far."""
        return [self.phrases.best]

    async def propose(self, parents: Candidates, scores: Scores) -> Candidates:
        """The seed with random phrases of the bank."""
        made: list[Candidate] = []
        bank = len(self.phrases.settings.bank)
        for i in range(RANDOM):
            rng = self.shop.seeds.child("screen", "random", RANDOM * self.number + i).python()
            picked = sorted(rng.sample(range(bank), min(self.phrases.settings.subset, bank)))
            made += self.phrases.propose(picked, "random subset")
        return made

    async def validate(self, parents: Candidates, candidates: Candidates) -> Candidates:
        """The best of old and new."""
        return await successive_halving(self.shop, [*parents, *candidates], 1)

    def keep(self, ranked: Candidates) -> None:
        """It is the best so far."""
        self.phrases.best = ranked[0]
        ranked[0].decide("accepted", "best subset so far")


class _Experiment(SearchRound):
    """Waves of trials, and candidates of what they say of the phrases."""

    def __init__(self, phrases: _Phrases, waves: Sequence[int] = ()) -> None:
        super().__init__(phrases.shop)
        self.phrases, self.waves = phrases, waves

    def select(self) -> Candidates:
        """The best so far, which what is new has to beat."""
        return [self.phrases.best]

    async def play(self, parents: Candidates) -> Scores:
        """The waves, which the phrases remember."""
        for trials in self.waves:
            await self.phrases.play(trials)
        return []

    async def propose(self, parents: Candidates, scores: Scores) -> Candidates:
        """The best k phrases for several k, and the subsets that did best as they were played."""
        phrases = self.phrases
        if not phrases.trials:
            return []
        mean, _ = phrases.effects()
        ranked = [int(i) for i in np.argsort(-mean, kind="stable")]
        useful = max(1, int((mean > 0).sum()))
        sizes = sorted({k for k in (1, 2, 3, 4, 6, 8, 12, useful) if k <= useful})
        tried = [(f"best {k}", ranked[:k]) for k in sizes]
        played = {subset for subset, _, _ in phrases.trials}
        order = sorted(played, key=lambda s: (-phrases.earned(s), -_total(mean, s), s))
        tried += [("best played", list(subset)) for subset in order[:PLAYED]]
        return phrases.candidates(tried, mean)

    async def validate(self, parents: Candidates, candidates: Candidates) -> Candidates:
        """The best of the new ones.

        They are halved among themselves: on few tasks a new one may tie with the best so far, whose
        failures on the others are known.
        """
        return await successive_halving(self.shop, candidates, 1) if candidates else []

    def keep(self, ranked: Candidates) -> None:
        """Keep it where it does better than the best so far; polish begins again."""
        self.phrases.skipped, self.phrases.unpolished = 0, True
        self.better(ranked)

    def better(self, ranked: Sequence[Candidate]) -> bool:
        """Whether one did better, which then is the best so far."""
        before = self.phrases.best
        for candidate in ranked:
            if self.shop.reward(candidate) > self.shop.reward(before):
                self.phrases.best = candidate
        return self.phrases.best != before

    def record(self) -> None:
        """Report it where polish goes on; else what follows is reported with it."""
        if self.phrases.polishing:
            self.shop.close_round()


class _Polish(_Experiment):
    """Drop or add one phrase, as long as the validation score rises.

    Additions are tried four at a time, the most promising first, until none is left.
    """

    def select(self) -> Candidates:
        """The best so far."""
        self.phrases.polished += 1
        self.phrases.best.decide("accepted", "best so far")
        return super().select()

    async def propose(self, parents: Candidates, scores: Scores) -> Candidates:
        """Its neighbours."""
        mean, _ = self.phrases.effects()
        now, skipped = self.phrases.picked[self.phrases.best.id], self.phrases.skipped
        self.outside = [int(i) for i in np.argsort(-mean, kind="stable") if i not in now]
        neighbours = [[i for i in now if i != out] for out in now] if not skipped else []
        neighbours += [[*now, i] for i in self.outside[skipped : skipped + ADDED]]
        return self.phrases.candidates([("polish", n) for n in neighbours if n], mean)

    def keep(self, ranked: Candidates) -> None:
        """Keep what does better; without, continue with the phrases that promise less."""
        phrases = self.phrases
        phrases.skipped = 0 if self.better(ranked) else phrases.skipped + ADDED
        phrases.unpolished = phrases.skipped < len(self.outside)


class _Demonstrate(Demonstrate):
    def record(self) -> None:
        """Tell of what polish left to tell as well."""
        self.shop.close_round()


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


def _total(mean: Floats, picked: Sequence[int]) -> float:
    """What phrases add together; sums in another order are ties."""
    return round(sum(float(mean[i]) for i in picked), DIGITS)


def _best(values: Floats, size: int) -> tuple[int, ...]:
    """The phrases of positive value, the `size` best of them; at least two."""
    ranked = [int(i) for i in np.argsort(-values, kind="stable")]
    room = min(size, max(2, int((values > 0).sum())))
    return tuple(sorted(ranked[:room]))
