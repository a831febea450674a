"""gepa 0.1.4 on the simulator: `gepa.optimize` at its defaults, with an adapter for one prompt.

The reflective dataset holds what gepa's own default adapter would give: inputs, outputs, feedback.
`max_metric_calls` is the ceiling on rollouts, a stop callback the one on optimiser calls; gepa
looks at both between steps, so it overshoots, which is counted.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import gepa
from benchmarks.prompt.peers.client import Client, data, graded, main
from benchmarks.prompt.worlds import World
from gepa.core.adapter import EvaluationBatch


class Adapter:
    """One component, `prompt`."""

    propose_new_texts = None

    def __init__(self, here: World, client: Client) -> None:
        self._world, self._client = here, client

    def evaluate(
        self, batch: Sequence[Any], candidate: Mapping[str, str], capture_traces: bool = False
    ) -> Any:
        said = [graded(self._world, self._client, candidate["prompt"], task) for task in batch]
        kept = [(task, reply, grade) for task, (reply, grade) in zip(batch, said, strict=True)]
        return EvaluationBatch(
            outputs=[reply for reply, _ in said],
            scores=[grade.reward for _, grade in said],
            trajectories=kept if capture_traces else None,
        )

    def make_reflective_dataset(
        self, candidate: Mapping[str, str], batch: Any, components: Sequence[str]
    ) -> dict[str, list[dict[str, Any]]]:
        shown = [
            {
                "Inputs": task["question"],
                "Generated Outputs": reply,
                "Feedback": f"score {grade.reward:.3g}: {grade.feedback}",
            }
            for task, reply, grade in batch.trajectories
        ]
        return {"prompt": shown}


class Silent:
    """gepa's logger."""

    def log(self, message: str) -> None:
        """Nothing."""


def search(here: World, client: Client, seed: int, given: argparse.Namespace) -> str:
    """The prompt that gepa holds for the best."""
    train, val = data(here, seed)

    def reflect(prompt: str | list[dict[str, Any]]) -> str:
        asked = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        return client.optimiser(asked)

    result = gepa.optimize(
        seed_candidate={"prompt": here.seed_prompt},
        trainset=train,
        valset=val,
        adapter=Adapter(here, client),
        reflection_lm=reflect,
        max_metric_calls=given.rollouts,
        stop_callbacks=[lambda state: client.calls_left < 1],
        logger=Silent(),
        seed=seed,
        raise_on_exception=False,
    )
    return result.best_candidate["prompt"]


if __name__ == "__main__":
    main("gepa 0.1.4", search)
