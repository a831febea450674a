"""Trials of sets of sentences, and one prompt composed of the best.

`sentence_model.py` knows what each sentence is worth; `apo.py` and `gepa.py` compose.
"""

from __future__ import annotations

from tutelage.prompts.lineage import Candidate
from tutelage.prompts.search_state import SearchState
from tutelage.prompts.sentence_model import BATCH, WORTH, rounded


async def compose(
    shop: SearchState, parent: Candidate, component: str, trials: int, number: int
) -> list[Candidate]:
    """Try sets of sentences, then put the best together; none where that text was validated before.

    `number` addresses the draws. Trials end early where a full validation would not fit any more.
    """
    pool = shop.pool
    rng = shop.seeds.child("pool", number).numpy()
    for start in range(0, trials, BATCH):
        size = min(BATCH, trials - start)
        if not shop.budget.fits(size * shop.settings.samples + len(shop.val)):
            break
        names, mean, covariance = pool.fit(component)
        if not names:
            return []
        draws = rounded(rng.multivariate_normal(mean, covariance, size=size, method="cholesky"))
        tasks = [shop.train[int(i)] for i in rng.integers(0, len(shop.train), size=size)]
        texts = [pool.text(component, names, draw) for draw in draws]
        await shop.try_out(parent, component, texts, tasks)
    names, mean, _ = pool.fit(component)
    text = pool.text(component, names, mean - WORTH)
    known = shop.unvalidated(parent, component, text)
    if known is not None:
        return [known]
    added = {*pool.learn({component: text})}
    lines = [
        f"{worth:+.3f} {sentence}"
        for worth, sentence in sorted(zip(mean, names, strict=True), reverse=True)
        if (component, sentence) in added
    ]
    reason = "What its sentences are expected to add to the reward:\n" + "\n".join(lines)
    return shop.propose([parent], {component: text}, "compose", reason)
