"""What a prompt search tells of itself, as `runs/figures.py` has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from tutelage.runs.figures import Figures, Labels, Measure, RunFiles, Spent
from tutelage.tasks.arithmetic import PROMPTED_REWARD
from tutelage.types import JSON

_OPTIMISER = ("gradient", "edit")
"""Models that are asked for prompts; the others play the tasks."""


def figures_of(files: RunFiles) -> Figures:
    """The figures of a search."""
    settings, result = files.settings, files.result
    measure: Measure = "sampled" if settings.get("temperature") else "greedy"
    components, success = result.get("components"), settings.get("success")
    base = _base(files)
    return Figures(
        trained="prompt",
        algorithm=str(result.get("algorithm") or settings.get("algorithm") or "unknown"),
        base=base,
        base_mark=f"prompt:{base}",
        grader=_grader(files),
        labels={measure: Labels("seed", "best", "sampled")},
        success=str(success) if success else None,
        failed_reward=0.0,
        start_won=bool(components) and components == result.get("seed_components"),
        spent=_spent(files),
        updates=_updates(files),
        best=files.run.path / "best_prompt.txt",
    )


def _base(files: RunFiles) -> str:
    """The models that play, in words."""
    models: Mapping[str, JSON] = dict(files.config.get("models") or {})
    played = [model for name, model in models.items() if name not in _OPTIMISER]
    named = (f"{m.get('model')} at {m.get('base_url')}" for m in played)
    return ", ".join(dict.fromkeys(named)) or "embedded, follows prompts"


def _grader(files: RunFiles) -> str:
    """The reward's name; an agent that grades itself is named."""
    by_agent = files.config.get("python") or files.settings.get("agent")
    own = f"agent {by_agent}" if by_agent else PROMPTED_REWARD
    return str(files.settings.get("reward") or own)


def _updates(files: RunFiles) -> str:
    rounds = sum(line.get("phase") == "search" for line in files.metrics())
    candidates = files.count("candidates")
    tried = "" if candidates is None else f", {candidates} candidates"
    return f"{rounds} rounds{tried}"


def _spent(files: RunFiles) -> Spent:
    on_test = cast("Mapping[str, Any]", files.result.get("test_spent") or {})
    known = bool(files.result.get("dollars_known"))
    return Spent(
        rollouts=files.count("rollouts"),
        test_rollouts=on_test.get("rollouts"),
        calls=files.count("task_calls"),
        optimiser_calls=files.count("optimiser_calls"),
        tokens=files.count("tokens"),
        dollars=files.number("dollars") if known else None,
        seconds=files.number("wall_seconds"),
    )
