"""What is printed while it trains: each iteration's prompt, tasks, rewards and average."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tutelage import Callback
from tutelage.runs.rounds import Round
from tutelage.runs.stored_evaluation import (
    TOO_MANY_LOST,
    StoredEvaluation,
    format_judged,
    parse_evaluation,
)
from tutelage.statistics.outcome import summarise
from tutelage.types import Mode, Rollout

SHOWN = 20


def iteration(
    number: int, prompt: str | None, tasks: str, rewards: Sequence[float], played: StoredEvaluation
) -> str:
    """One iteration, in the form of the original system's, and of how many rollouts were judged.
    `tasks` is how many it played, as `6 of 20`; the others come in later iterations."""
    lines = [f"### Iteration {number}"]
    if prompt is not None:
        told = prompt.strip().replace("\n", "\n         ")
        lines.append(f'Prompt: "{told}"')
    lines.append(f"Tasks: {tasks} math problems{' (a minibatch)' * (' of ' in tasks)}")
    if rewards:
        shown = ", ".join(str(round(float(value), 2)) for value in rewards[:SHOWN])
        lines.append(f"Rewards: [{shown}{', ...' if len(rewards) > SHOWN else ''}]")
    mean = "none" if played.reward is None else f"{played.reward:.2f}"
    lines.append(f"Average: {mean} ({format_judged(played)})")
    return "\n".join(lines) + "\n"


def outcome(before: StoredEvaluation, after: StoredEvaluation) -> Iterator[str]:
    """What the held-out test says: both means and rates, and of how many rollouts."""
    if before.reward is not None and after.reward is not None:
        yield improvement(before.reward, after.reward)
    if before.success is not None and after.success is not None:
        yield f"Exact answers: {before.success:.1%} -> {after.success:.1%}"
    yield f"Before: {format_judged(before)}"
    yield f"After: {format_judged(after)}"
    if before.is_withheld or after.is_withheld:
        yield TOO_MANY_LOST


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

    def __init__(self, say: Any = print, train_size: int = 0) -> None:
        """`train_size` is the number of training tasks, of which a step may play some."""
        self._say, self._train_size = say, train_size
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
        played = StoredEvaluation(
            reward=found.average, rollouts=found.rollouts, judged=len(found.rewards)
        )
        self._say(iteration(found.number, prompt, found.tasks, found.rewards, played))

    def on_step_end(self, step: int, metrics: Mapping[str, float]) -> None:
        """A step of training weights; each task's reward is the mean of its rollouts."""
        played, by_task = list(self._played), dict[str, list[float]]()
        self._played.clear()
        for rollout in played:
            rewards = by_task.setdefault(rollout.task.id, [])
            if rollout.reward is not None:
                rewards.append(rollout.reward.value)
        if played:
            means = [sum(some) / len(some) for some in by_task.values() if some]
            told = parse_evaluation(summarise(played).record())
            some = len(by_task) < self._train_size
            tasks = f"{len(by_task)} of {self._train_size}" if some else str(len(by_task))
            self._say(iteration(step, None, tasks, means, told))
        elif "loss/sft" in metrics:
            self._say(f"step {step}: loss {metrics['loss/sft']:.4f}")
