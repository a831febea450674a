"""What each sentence is worth, learned from every rollout, and prompts made of the best ones.

Candidates share sentences, so a rollout of one tells something of all that share them. A Bayesian
ridge regression of the rewards on sentences and tasks pools all that was played, rejected
candidates too. Trials then play sets of sentences on single training tasks, drawn by Thompson
sampling (Thompson 1933): what looks good or is little known is tried most. The sentences that help
are composed into one prompt (`compose.py`), which must win its place on the validation tasks like
any edit. It is to an LLM's sentences what `screen.py` is to a bank of phrases. `search.py`
keeps the pool.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tutelage.prompts.contract import Components

Vector = npt.NDArray[np.float64]
Feature = tuple[str, str]
"""A component and one of its sentences."""
Row = tuple[frozenset[Feature], str, float]
"""The sentences, task and reward of a rollout."""

OPTIMISM = 0.1
"""What a sentence is thought to add to the reward before it was played: an edit had a reason."""
SPREAD = 0.15
"""Standard deviation of what sentences add, before they were played."""
TASK_SPREAD = 0.2
"""Standard deviation of how easy tasks are."""
LEAST_NOISE = 0.03
NOISE_SHARE = 0.7
"""Of the variance of the rewards, how much is taken for noise."""
WORTH = 0.02
"""A sentence must add so much to stand in the composed prompt: each one costs attention."""
MOST = 12
"""Sentences that a composed prompt adds at most."""
BATCH = 6
"""Trials that are played between two fits."""

DIGITS = 9
"""Of what is estimated; a worth of a reward is never known so well."""
SAME = 0.5
"""So alike, two sentences say the same, and a prompt needs one of them."""
_WORD = re.compile(r"\w+")
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")


@lru_cache
def sentences(text: str) -> tuple[str, ...]:
    """The different sentences and lines of a prompt."""
    return tuple(dict.fromkeys(s for s in _SENTENCE.split(text) if s.strip()))


def rounded(values: Vector) -> Vector:
    """Numbers without their last digits, in which processors differ.

    What is equal but for them is a tie, and ties are broken by the order of proposal.
    """
    return np.round(values, DIGITS)


def sentence_similarity(features: Sequence[Feature]) -> Vector:
    """How alike sentences are [n, n]: shared words over all words, a little more for themselves.

    A positive definite kernel (Tanimoto's), so that what one sentence earns is believed in part of
    others that say nearly the same.
    """
    words = [{*_WORD.findall(text.lower())} for _, text in features]
    known = {word: i for i, word in enumerate(sorted({w for one in words for w in one}))}
    has = np.zeros((len(features), max(1, len(known))))
    for row, one in zip(has, words, strict=True):
        row[[known[word] for word in one]] = 1
    shared = has @ has.T
    sizes = np.diag(shared)
    alike = shared / np.maximum(1.0, sizes[:, None] + sizes[None, :] - shared)
    same = np.array([[a[0] == b[0] for b in features] for a in features], dtype=np.float64)
    return alike * same + 0.05 * np.eye(len(features))


@dataclass(slots=True)
class SentenceModel:
    """All rollouts of a search as rows, and the sentences that its candidates added to the seed."""

    seed: Components
    known: dict[Feature, int] = field(default_factory=dict[Feature, int])
    """Sentences in the order in which they came, with their place in that order."""
    rows: list[Row] = field(default_factory=list[Row])

    def note(self, components: Components, task: str, reward: float) -> None:
        """Keep one rollout; its sentences become known."""
        self.rows.append((frozenset(self.learn(components)), task, reward))

    def learn(self, components: Components) -> list[Feature]:
        """The sentences that the seed does not have; all are known from now on."""
        pairs: list[Feature] = []
        for name in sorted(components):
            always = sentences(self.seed.get(name, ""))
            pairs += [(name, s) for s in sentences(components[name]) if s not in always]
        for feature in pairs:
            self.known.setdefault(feature, len(self.known))
        return pairs

    def fit(self, component: str) -> tuple[list[str], Vector, Vector]:
        """Sentences of a component [n], the mean [n] and covariance [n, n] of what they add."""
        place = self.known
        tasks = {t: i for i, t in enumerate(sorted({t for _, t, _ in self.rows}), len(place))}
        design = np.zeros((len(self.rows), len(place) + len(tasks) + 1))
        for row, (features, task, _) in zip(design, self.rows, strict=True):
            row[[*(place[feature] for feature in features), tasks[task], -1]] = 1
        rewards = np.array([reward for _, _, reward in self.rows])
        noise = max(LEAST_NOISE, float(rewards.var()) * NOISE_SHARE)
        prior = np.zeros(design.shape[1])
        prior[: len(place)] = OPTIMISM
        penalties = np.full(design.shape[1], noise / TASK_SPREAD**2)
        penalties[-1] = 1e-4  # the level of the seed is free
        precision = np.diag(penalties)
        if place:
            alike = SPREAD**2 * sentence_similarity([*place])
            precision[: len(place), : len(place)] = noise * np.linalg.inv(alike)
        inverse = np.linalg.inv(design.T @ design + precision)
        mean = prior + inverse @ (design.T @ (rewards - design @ prior))
        mine = [i for feature, i in place.items() if feature[0] == component]
        covariance = np.asarray(noise * inverse[np.ix_(mine, mine)], dtype=np.float64)
        names = [sentence for name, sentence in place if name == component]
        return names, rounded(mean[mine]), covariance

    def text(self, component: str, names: Sequence[str], worth: Vector) -> str:
        """The seed's text with the sentences that are worth something, the best first."""
        ranked = [int(i) for i in np.argsort(-worth, kind="stable") if worth[i] > 0]
        alike = sentence_similarity([(component, name) for name in names])
        kept: list[int] = []
        for i in ranked:
            if len(kept) < MOST and all(alike[i, k] < SAME for k in kept):
                kept.append(i)
        return "\n".join([self.seed[component], *(names[i] for i in kept)])

    def expected(self, components: Components, component: str) -> float:
        """What the sentences of a component are expected to add together."""
        names, mean, _ = self.fit(component)
        worth = dict(zip(names, mean, strict=True))
        return sum(float(worth[s]) for n, s in self.learn(components) if n == component)
