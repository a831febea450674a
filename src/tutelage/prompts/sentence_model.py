"""The estimated effect of each sentence, learned from every rollout, and prompts of the best ones.

Candidates share sentences, so a rollout of one is evidence about all that share them. A Bayesian
ridge regression of the rewards on sentences and tasks pools all rollouts, including rejected
candidates. Trials then play sets of sentences on single training tasks, drawn by Thompson sampling
(Thompson 1933): promising or uncertain sentences are tried most. The helpful sentences are composed
into one prompt (`compose.py`), which is validated like any edit. It does for an LLM's sentences
what `screen.py` does for a bank of phrases. `search.py` holds the model.
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
"""Prior mean of a sentence's effect on the reward: each edit had a reason."""
SPREAD = 0.15
"""Prior standard deviation of a sentence's effect."""
TASK_SPREAD = 0.2
"""Prior standard deviation of the tasks' difficulty."""
LEAST_NOISE = 0.03
NOISE_SHARE = 0.7
"""Share of the variance of the rewards that is assumed to be noise."""
WORTH = 0.02
"""Minimum effect of a sentence in the composed prompt, since each sentence costs attention."""
MOST = 12
"""Maximum number of sentences that a composed prompt adds."""
BATCH = 6
"""Trials between two fits."""

DIGITS = 9
"""Digits of estimates; further digits differ between processors."""
SAME = 0.5
"""Similarity from which two sentences count as equal."""
_WORD = re.compile(r"\w+")
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")


@lru_cache
def split_sentences(text: str) -> tuple[str, ...]:
    """Return the distinct sentences and lines of a prompt."""
    return tuple(dict.fromkeys(s for s in _SENTENCE.split(text) if s.strip()))


def round_off(values: Vector) -> Vector:
    """Round numbers to the digits that do not depend on the processor.

    Numbers that are then equal are a tie, and ties are broken by the order of proposal.
    """
    return np.round(values, DIGITS)


def sentence_similarity(features: Sequence[Feature]) -> Vector:
    """Return the similarity matrix [n, n] of sentences: the number of shared words over all words,
    plus a constant on the diagonal.

    A positive definite kernel (Tanimoto's), so that similar sentences share evidence.
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
    """Model of the effects of added sentences, fitted to all rollouts of a search."""

    seed: Components
    known: dict[Feature, int] = field(default_factory=dict[Feature, int])
    """Known sentences with their numbers in the order of appearance."""
    rows: list[Row] = field(default_factory=list[Row])

    def add_rollout(self, components: Components, task: str, reward: float) -> None:
        """Add one rollout and its sentences to the model."""
        self.rows.append((frozenset(self.add_sentences(components)), task, reward))

    def add_sentences(self, components: Components) -> list[Feature]:
        """Return the sentences that are not in the seed, and add them to the known sentences."""
        pairs: list[Feature] = []
        for name in sorted(components):
            always = split_sentences(self.seed.get(name, ""))
            pairs += [(name, s) for s in split_sentences(components[name]) if s not in always]
        for feature in pairs:
            self.known.setdefault(feature, len(self.known))
        return pairs

    def fit(self, component: str) -> tuple[list[str], Vector, Vector]:
        """Estimate the effects of a component's sentences; return the sentences [n], mean [n] and
        covariance [n, n]."""
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
        return names, round_off(mean[mine]), covariance

    def text(self, component: str, names: Sequence[str], effects: Vector) -> str:
        """Return the seed's text followed by the sentences with a positive effect, best first."""
        ranked = [int(i) for i in np.argsort(-effects, kind="stable") if effects[i] > 0]
        alike = sentence_similarity([(component, name) for name in names])
        kept: list[int] = []
        for i in ranked:
            if len(kept) < MOST and all(alike[i, k] < SAME for k in kept):
                kept.append(i)
        return "\n".join([self.seed[component], *(names[i] for i in kept)])

    def expected_effect(self, components: Components, component: str) -> float:
        """Return the expected total effect of the sentences of a component."""
        names, mean, _ = self.fit(component)
        worth = dict(zip(names, mean, strict=True))
        return sum(float(worth[s]) for n, s in self.add_sentences(components) if n == component)
