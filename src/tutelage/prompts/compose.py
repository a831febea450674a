"""Trials of sets of sentences, and one prompt composed of the best.

`sentence_model.py` estimates the effect of each sentence; `apo.py` and `reflect.py` compose.
"""

from __future__ import annotations

from tutelage.prompts.lineage import Candidate
from tutelage.prompts.search import SearchState
from tutelage.prompts.sentence_model import BATCH, WORTH, round_off


async def compose(
    state: SearchState, parent: Candidate, component: str, trials: int, number: int
) -> list[Candidate]:
    """Evaluate sets of sentences and return one candidate with the best sentences, or an empty list
    if that candidate was already validated.

    `number` addresses the draws. Trials end early if a full validation would no longer fit the
    budget.
    """
    pool = state.pool
    rng = state.seeds.child("pool", number).numpy()
    for start in range(0, trials, BATCH):
        size = min(BATCH, trials - start)
        if state.budget.find_exceeded(state.budget.worst.rollout_cost() * (size + len(state.val))):
            break
        names, mean, covariance = pool.fit(component)
        if not names:
            return []
        draws = round_off(rng.multivariate_normal(mean, covariance, size=size, method="cholesky"))
        tasks = [state.train[int(i)] for i in rng.integers(0, len(state.train), size=size)]
        texts = [pool.text(component, names, draw) for draw in draws]
        await state.try_texts(parent, component, texts, tasks, "trials")
    names, mean, _ = pool.fit(component)
    text = pool.text(component, names, mean - WORTH)
    known = state.find_unvalidated(parent, component, text)
    if known is not None:
        return [known]
    added = {*pool.add_sentences({component: text})}
    lines = [
        f"{worth:+.3f} {sentence}"
        for worth, sentence in sorted(zip(mean, names, strict=True), reverse=True)
        if (component, sentence) in added
    ]
    reason = "What its sentences are expected to add to the reward:\n" + "\n".join(lines)
    return state.propose([parent], {component: text}, "compose", reason)
