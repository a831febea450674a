"""What is printed while it trains: each iteration's prompt, tasks, rewards and average."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tutelage import Callback
from tutelage.runs.rounds import Round
from tutelage.types import Mode, Rollout

SHOWN = 20


def iteration(number: int, prompt: str | None, tasks: int, rewards: Sequence[float]) -> str:
    """One iteration, in the form of the original system's."""
    lines = [f"### Iteration {number}"]
    if prompt is not None:
        told = prompt.strip().replace("\n", "\n         ")
        lines.append(f'Prompt: "{told}"')
    lines.append(f"Tasks: {tasks} math problems")
    if rewards:
        shown = ", ".join(str(round(float(value), 2)) for value in rewards[:SHOWN])
        lines.append(f"Rewards: [{shown}{', ...' if len(rewards) > SHOWN else ''}]")
        judged = "" if len(rewards) == tasks else f" ({len(rewards)} of {tasks} judged)"
        lines.append(f"Average: {sum(rewards) / len(rewards):.2f}{judged}")
    return "\n".join(lines) + "\n"


def improvement(before: float, after: float) -> str:
    """`Improvement: 0.40 -> 0.98 (145% increase)`, or what it is instead."""
    word = "Improvement" if after > before else "Change"
    share = "" if before <= 0 else f" ({abs(after - before) / before:.0%} "
    if share:
        share += "increase)" if after >= before else "decrease)"
    return f"{word}: {before:.2f} -> {after:.2f}{share}"


def iterations(done: int, asked: int, ended: str | None) -> str:
    """`Iterations: 10 of 10`, or why there were fewer."""
    told = f"Iterations: {done} of {asked}"
    return told if done >= asked else f"{told}; {ended or 'it ended before'}"


class Printout(Callback):
    """Prints iterations as they end: rounds of a prompt search, or steps of training weights."""

    def __init__(self, say: Any = print) -> None:
        self._say = say
        self._played: list[Rollout] = []
        self._phase = ""

    def on_phase_start(self, name: str) -> None:
        """Measurements and supervised training are told in a line."""
        self._phase = name
        self._played.clear()
        self._say(f"[{name}]")

    def on_rollout_end(self, rollout: Rollout) -> None:
        """Keep what a step of weights has played."""
        if rollout.mode is Mode.TRAIN and not rollout.label:
            self._played.append(rollout)

    def on_round_end(self, found: Round) -> None:
        """A round of a prompt search: the prompt that it began with."""
        prompt = "\n".join(found.components.values())
        self._say(iteration(found.number, prompt, found.rollouts, found.rewards))

    def on_step_end(self, step: int, metrics: Mapping[str, float]) -> None:
        """A step of training weights; each task's reward is the mean of its rollouts."""
        by_task: dict[str, list[float]] = {}
        for rollout in self._played:
            if rollout.reward is not None:
                by_task.setdefault(rollout.task.id, []).append(rollout.reward.value)
        self._played.clear()
        if by_task:
            means = [sum(some) / len(some) for some in by_task.values()]
            self._say(iteration(step, None, len(means), means))
        elif "loss/sft" in metrics:
            self._say(f"step {step}: loss {metrics['loss/sft']:.4f}")
