"""dspy on the simulator: GEPA and MIPROv2, for a program of one predictor.

The task model is sent the instruction as its system prompt and the question, by a plain adapter:
dspy's own adapter adds some hundred words about fields, past which the simulated model reads
little. Proposers keep dspy's adapters. GEPA has its defaults; MIPROv2 proposes instructions only
(no demonstrations) without describing the program, with as many candidates and minibatch trials as
fit the ceilings.
"""

from __future__ import annotations

import argparse
import logging
from types import SimpleNamespace
from typing import Any

import dspy
from benchmarks.prompt.peers.client import Client, data, main
from benchmarks.prompt.worlds import World

logging.disable(logging.CRITICAL)


class Simulated(dspy.BaseLM):
    """A model of the server, in dspy's terms."""

    def __init__(self, client: Client, model: str) -> None:
        super().__init__(model=model, temperature=0.0, max_tokens=1000, cache=False)
        self._client = client

    def forward(self, prompt: Any = None, messages: Any = None, **kwargs: Any) -> Any:
        asked = messages or [{"role": "user", "content": prompt}]
        if self.model == "simulator-task":
            with self._client.lock:
                self._client.rollouts_left -= 1
            text = self._client.chat(self.model, asked)
        else:
            text = self._client.optimiser(asked)
        message = SimpleNamespace(content=text, role="assistant", tool_calls=None)
        choice = SimpleNamespace(message=message, finish_reason="stop", index=0, logprobs=None)
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        return SimpleNamespace(choices=[choice], usage=usage, model=self.model)

    def deepcopy(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self


class Plain(dspy.Adapter):
    """Instruction as the system prompt, question as the user's message, reply as the answer."""

    def format(self, signature: Any, demos: Any, inputs: Any) -> Any:
        return [
            {"role": "system", "content": signature.instructions},
            {"role": "user", "content": inputs["question"]},
        ]

    def parse(self, signature: Any, completion: str) -> Any:
        return {"answer": completion}


class Program(dspy.Module):
    """One predictor."""

    def __init__(self, instruction: str, lm: Any) -> None:
        super().__init__()
        self.predict = dspy.Predict(dspy.Signature("question -> answer", instruction))
        self.predict.lm = lm

    def forward(self, question: str) -> Any:
        with dspy.context(adapter=Plain()):
            return self.predict(question=question)


def examples(tasks: list[dict[str, Any]]) -> list[Any]:
    return [dspy.Example(question=t["question"], task=t).with_inputs("question") for t in tasks]


def search(here: World, client: Client, seed: int, given: argparse.Namespace) -> str:
    """The instruction of the program that the optimiser returns."""
    train, val = data(here, seed)
    task_lm = Simulated(client, "simulator-task")
    optimiser = Simulated(client, "simulator-optimiser")
    dspy.configure(lm=task_lm, adapter=dspy.ChatAdapter())
    program = Program(here.seed_prompt, task_lm)

    def feedback(
        gold: Any, pred: Any, trace: Any = None, name: Any = None, part: Any = None
    ) -> Any:
        grade = here.grade(gold.task, pred.answer)
        return dspy.Prediction(
            score=grade.reward, feedback=f"score {grade.reward:.3g}: {grade.feedback}"
        )

    def metric(gold: Any, pred: Any, trace: Any = None) -> float:
        return here.grade(gold.task, pred.answer).reward

    if given.optimiser == "gepa":
        made = dspy.GEPA(
            metric=feedback,
            max_metric_calls=given.rollouts,
            reflection_lm=optimiser,
            num_threads=1,
            track_stats=True,
            seed=seed,
        ).compile(program, trainset=examples(train), valset=examples(val))
        return made.predict.signature.instructions
    best = program
    # Validation 24 at the start and at every fifth trial, minibatches of 12 in between.
    trials = max(4, (given.rollouts - 24) * 5 // (5 * 12 + 24 + 12))
    made = dspy.MIPROv2(
        metric=metric,
        prompt_model=optimiser,
        task_model=task_lm,
        auto=None,
        num_candidates=min(10, max(3, given.calls - 8)),
        max_bootstrapped_demos=0,
        max_labeled_demos=0,
        num_threads=1,
        seed=seed,
        verbose=False,
    )
    best = made.compile(
        program,
        trainset=examples(train),
        valset=examples(val),
        num_trials=trials,
        minibatch=True,
        minibatch_size=12,
        program_aware_proposer=False,
    )
    return best.predict.signature.instructions


if __name__ == "__main__":
    main(
        "dspy",
        search,
        lambda parser: parser.add_argument(
            "--optimiser", choices=("gepa", "mipro"), default="gepa"
        ),
    )
