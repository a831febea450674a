"""What a training of weights tells of itself, as `runs/figures.py` has it."""

from __future__ import annotations

from pathlib import Path

from tutelage.runs.figures import MEASURES, Figures, Labels, RunFiles, folder_mark
from tutelage.tasks.arithmetic import EMBEDDED_REWARD

_JUDGE = "llm_judge"


def figures_of(files: RunFiles) -> Figures:
    """The figures of a run that learns from rewards or from demonstrations."""
    grader, success = _grader(files), files.section("reward").get("success")
    remote = bool(files.agent.get("remote")) or grader == _JUDGE
    return Figures(
        trained="weights",
        algorithm=_algorithm(files),
        base=_base(files),
        base_mark=_base_mark(files),
        grader=grader,
        labels={name: Labels(f"before/{name}", f"after/{name}", name) for name in MEASURES},
        success=str(success) if success else None,
        dollars=None if remote else 0.0,
        updates=_updates(files),
        best=files.run.policy,
    )


def _algorithm(files: RunFiles) -> str:
    section = files.section("algorithm")
    if not section:
        return str(files.result.get("algorithm") or "unknown")
    rewarded = section.get("name") == "rl" and files.settings.get("recipe") != "sft"
    return str(section.get("adv_estimator")) if rewarded else "sft"


def _updates(files: RunFiles) -> str:
    steps = files.count("sft_steps") or files.count("rl_steps") or files.count("cold_start_steps")
    return "" if steps is None else f"{steps} steps"


def _grader(files: RunFiles) -> str:
    """The reward's name; an agent that grades itself is named."""
    if files.agent and files.agent.get("reward") is None and files.run.tasks("test").is_file():
        return f"agent {files.agent.get('agent')}"
    named = files.section("agent").get("reward_name")
    return str(files.agent.get("reward") or named or EMBEDDED_REWARD)


def _base(files: RunFiles) -> str:
    """The model in words."""
    model = files.section("model")
    if model.get("path"):
        return str(model["path"])
    handed = files.agent and not files.section("sft").get("max_steps")
    return "handed over in Python" if handed else f"embedded {model.get('size', '')}".strip()


def _base_mark(files: RunFiles) -> str | None:
    path = files.section("model").get("path")
    found = folder_mark(Path(str(path)) if path else files.run.checkpoints / "initial")
    return found or (f"model:{path}" if path else None)
