"""The figures of a prompt search for reports, and the rows of its held-out test.

The terminal and the pages show the same rows and sentences, which are made here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from tutelage.runs.figures import (
    Figures,
    Labels,
    Measure,
    ResourceUsage,
    RunFiles,
    folder_hash,
)
from tutelage.runs.job_inputs import AGENT_REWARD
from tutelage.runs.stored_evaluation import format_judged, parse_evaluation
from tutelage.tasks.arithmetic import PROMPTED_REWARD
from tutelage.types import JSON

_OPTIMISER = ("gradient", "edit")
"""Roles of optimiser models; all other models play the tasks."""


def build_figures(files: RunFiles) -> Figures:
    """Return the figures of a prompt search for reports."""
    settings, result = files.settings, files.result
    measure: Measure = "sampled" if settings.get("temperature") else "greedy"
    own = files.config.get("python") or settings.get("agent")
    components, success = result.get("components"), settings.get("success")
    model: str | None = settings.get("model")
    models: Mapping[str, JSON] = dict(files.config.get("models") or {})
    played = [one for name, one in models.items() if name not in _OPTIMISER]
    named = ", ".join(dict.fromkeys(f"{m.get('model')} at {m.get('base_url')}" for m in played))
    base = model or named or "embedded, follows prompts"
    rounds, tried = sum(line.get("phase") == "search" for line in files.metrics()), ""
    if (candidates := files.count("candidates")) is not None:
        tried = f", {candidates} candidates"
    on_test = cast("Mapping[str, Any]", result.get("test_spent") or {})
    return Figures(
        trained="prompt",
        algorithm=str(result.get("algorithm") or settings.get("algorithm") or "unknown"),
        base=base,
        base_mark=base if model is None else folder_hash(Path(model)) or f"model:{model}",
        agent=str(own or Figures.BUILT_IN),
        agent_mark=files.agent_hash() if own else None,
        grader=str(settings.get("reward") or (AGENT_REWARD if own else PROMPTED_REWARD)),
        labels={measure: Labels("seed", "best", "sampled")},
        success=str(success) if success else None,
        failed_reward=0.0,
        start_won=bool(components) and components == result.get("seed_components"),
        spent=ResourceUsage(
            rollouts=files.count("rollouts"),
            test_rollouts=on_test.get("rollouts"),
            calls=files.count("task_calls"),
            optimiser_calls=files.count("optimiser_calls"),
            tokens=files.count("tokens"),
            dollars=files.number("dollars") if result.get("dollars_known") else None,
            seconds=files.number("wall_seconds"),
        ),
        updates=f"{rounds} rounds{tried}",
        best=files.run.path / "best_prompt.txt",
    )


# ---------------------------------------------------------------- the held-out test


VERDICTS: Mapping[str, tuple[str, str, str]] = {
    "improved": ("good", "the new prompt is better", "lies above 0"),
    "no evidence": (
        "open",
        "nothing shows that the new prompt is better; keep the old one",
        "contains 0",
    ),
    "regressed": ("bad", "the new prompt is worse; keep the old one", "lies below 0"),
}
"""Tone and meaning of a verdict, and the position of the interval of the difference."""
UNCHANGED = "no better prompt was found; the seed prompt stays"
HOLDOUT_COLUMNS = ("seed", "best", "difference", "95 % interval", "wins", "losses", "ties")
"""Columns of a held-out test, after the name of the row."""


def holdout_rows(test: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield a table row for the reward and, if defined, one for the success rate."""
    for name in ("reward", "exact"):
        if (gap := test[name]) is not None:
            yield (
                name,
                f"{test[f'seed_{name}']:.3f}",
                f"{test[f'best_{name}']:.3f}",
                f"{gap['mean']:+.3f}",
                f"{gap['low']:+.3f} to {gap['high']:+.3f}",
                *(str(gap[key]) for key in HOLDOUT_COLUMNS[4:]),
            )


def judged_lines(test: Mapping[str, Any]) -> Iterator[str]:
    """Yield a text with the number of judged rollouts for each prompt."""
    for side in ("seed", "best"):
        if f"{side}_sums" in test:
            yield f"{side}: {format_judged(parse_evaluation(test[f'{side}_sums']))}"


def format_spend(spent: Mapping[str, Any], format_number: Callable[[float], str]) -> str:
    """Format the nonzero costs as text: `120 rollouts, 8 optimiser calls, 31 200 tokens,
    $0.0123`."""
    nouns = {"rollouts": "rollout", "optimiser_calls": "optimiser call", "tokens": "token"}
    words = [
        f"{format_number(spent[name])} {noun}{'s' * (spent[name] != 1)}"
        for name, noun in nouns.items()
        if spent[name]
    ]
    return ", ".join([*words, *[f"${spent['dollars']:.4f}"] * bool(spent["dollars"])])
