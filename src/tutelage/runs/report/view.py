"""Content of the page as plain values for the template: formatted numbers and sentences.

A part without data is empty, and the template then shows a short remark instead. `charts.py` has
the curves; `page.py` renders.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from tutelage.resources import SHIPPED
from tutelage.runs.figures import to_finite
from tutelage.runs.kinds import FINISHED
from tutelage.runs.report.charts import MAX_DLOGP, draw_charts
from tutelage.runs.report.formatting import (
    count,
    count_noun,
    cut,
    duration,
    percent,
    short,
)
from tutelage.runs.report.rates import WORDS, make_rate_tables, report_quantities
from tutelage.runs.report.source import ReportSource
from tutelage.runs.report.transcripts import Transcript, count_outcomes, select_examples
from tutelage.runs.stored_evaluation import (
    REWARD,
    judged_lines,
    read_evaluation,
)
from tutelage.tasks.overlap import footnote, split_name
from tutelage.tools.loading import display_name
from tutelage.types import JSON

_PHASE_NAMES: Mapping[str, str] = {
    "rl": "RL",
    "sft": "supervised training",
    "before": "measuring before",
    "demonstrations": "measuring after the demonstrations",
    "after": "measuring after",
    "after_control": "measuring the control",
}
"""Displayed names of phases that differ from their names."""
_VALUE_LIMIT = 400
"""Maximum characters of a displayed configuration value."""


def make_view(source: ReportSource) -> dict[str, Any]:
    """Return the template values of a report. Invalid records do not raise errors."""
    kind = _select_kind(source)
    pair_kind = "greedy" if all(_sides(source, "greedy")) else kind
    status = source.text("status") or "not ended"
    finished, evaluations = status == FINISHED, source.evaluations
    ends = {f"before/{kind}": "before", f"after/{kind}": "after", f"control/{kind}": "control"}
    ends |= {"after/no_tools": "no tools, greedy"}
    endings: dict[str, Sequence[Transcript]] = {
        name: evaluations[label] for label, name in ends.items() if label in evaluations
    }
    story = (
        ("Supervised" if source.phase("sft") else "Cold start", _describe_cold_start(source)),
        ("Learning", _describe_learning(source)),
    )
    rows = [] if source.config is None else source.config.to_table()
    pairs = select_examples(*_sides(source, pair_kind))
    told: object = source.result.get("warnings")
    warnings = cast("list[Any]", told) if isinstance(told, list) else []
    return {
        "name": source.path.name or source.path.resolve().name,
        "what": "run report",
        "pill": ("good" if finished else "open", status),
        "headline": _make_headline(source),
        "story": [(title, sentence) for title, sentence in story if sentence],
        "facts": list(_fact_tiles(source)),
        "warnings": [cut(str(text), 600) for text in warnings],
        "remarks": [*source.remarks, *filter(None, [footnote(source.result)]), *_notices(source)],
        "judged": [cut(line, 400) for line in judged_lines(source.result)],
        **draw_charts(source),
        **make_rate_tables(source, kind),
        "family_kind": kind,
        "pairs": pairs,
        "pair_kind": pair_kind,
        "endings": count_outcomes(endings),
        "endings_of": [(name, len(episodes)) for name, episodes in endings.items()],
        "failed": source.failed,
        "trained_rollouts": source.trained_rollouts,
        "phases": list(_phase_tiles(source)),
        "settings": [
            (
                key,
                cut(json.dumps(value, ensure_ascii=False), _VALUE_LIMIT),
                cut(origin, _VALUE_LIMIT),
                cut(note, _VALUE_LIMIT),
                not origin.startswith("default"),
            )
            for key, value, origin, note in rows
        ],
        "conditions": list(_flatten(source.conditions)),
        "commands": list(_list_commands(source, finished, [p.after.rollout_id for p in pairs])),
    }


def _notices(source: ReportSource) -> Iterator[str]:
    """Yield the findings that are not warnings."""
    told: object = source.result.get("health")
    for entry in cast("list[Any]", told) if isinstance(told, list) else []:
        if isinstance(entry, dict) and not entry.get("warning", True):
            yield cut(f"Step {entry.get('step')}: {entry.get('text')}.", 400)


def _fact_tiles(source: ReportSource) -> Iterator[tuple[str, str, str, bool]]:
    """Yield tiles with name, value, note, and True if the value is out of bounds."""
    result = source.result
    tasks = "test_tasks" if "test_tasks" in result else "val_tasks"
    wanted: tuple[tuple[str, str, Callable[[float], str]], ...] = (
        ("rl_steps", "RL steps", count),
        ("sft_steps", "supervised steps", count),
        ("rollouts", "rollouts", count),
        ("tokens", "sampled tokens", count),
        ("wall_seconds", "wall time", duration),
        (tasks, f"{split_name(result)} tasks", count),
        ("seed", "seed", "{:.0f}".format),
    )
    for key, name, show in wanted:
        if (value := source.number(key)) is not None:
            yield name, show(value), "in all phases" if key in ("rollouts", "tokens") else "", False
    if (level := source.text("level")) is not None:
        yield "level", cut(level, 16), "", False
    if (gap := source.number("max_dlogp")) is not None:
        yield "max |Δ log p|", short(gap), "bar: 1e−4 in fp32", gap >= MAX_DLOGP


def _select_kind(source: ReportSource) -> str:
    """Return the kind of evaluation to report: `sampled`, unless only `greedy` was measured before
    and after training."""
    for kind in ("sampled", "greedy"):
        if all(_sides(source, kind)):
            return kind
    return "sampled" if any(_sides(source, "sampled")) else "greedy"


def _sides(source: ReportSource, kind: str) -> tuple[Sequence[Transcript], Sequence[Transcript]]:
    transcripts = source.evaluations
    return transcripts.get(f"before/{kind}", ()), transcripts.get(f"after/{kind}", ())


def _phase_tiles(source: ReportSource) -> Iterator[tuple[str, str, str, bool]]:
    """Yield a tile with name, duration and fraction of the total time for each phase."""
    times: object = source.result.get("phases")
    values = cast("JSON", times) if isinstance(times, dict) else {}
    read = {name: to_finite(value) for name, value in values.items()}
    known = {name: s for name, s in read.items() if s is not None and s >= 0}
    for name, seconds in known.items():
        shown = _PHASE_NAMES.get(name) or cut(name.replace("_", " ").replace("/", ", "), 60)
        yield shown, duration(seconds), percent(seconds / (sum(known.values()) or 1.0)), False


def _flatten(values: Mapping[str, Any], prefix: str = "", depth: int = 0) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for key, value in values.items():
        name = cut(f"{prefix}{key}", 120)
        if isinstance(value, dict) and value and depth < 4:
            pairs += _flatten(cast("dict[str, Any]", value), f"{name}.", depth + 1)
        else:
            shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            pairs.append((name, cut(shown, _VALUE_LIMIT)))
    return pairs


def _list_commands(
    source: ReportSource, finished: bool, rollouts: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yield pairs of a description and a command."""
    path = source.path
    run = shlex.quote(f"runs/{path.name}" if path.parent.name == "runs" else str(path))
    if not finished:
        yield "Go on where it stopped", f"tutelage resume {run}"
    labels = ("after/greedy", "after/sampled", "before/greedy")
    tried = (one.asked for label in labels for one in source.evaluations.get(label, ()))
    if (question := next(filter(None, tried), None)) is not None:
        yield "Ask the policy, and watch its turns", f"tutelage ask {run} {question}"
    if rollouts:
        yield (
            "Read one rollout turn by turn",
            f"tutelage show {shlex.quote(rollouts[0])} --run {run}",
        )
    yield "Measure it on your own tasks", f"tutelage eval {run} --test FILE"
    if source.text("policy") is not None or (path / "policy").is_dir():
        line = f"AutoModelForCausalLM.from_pretrained({f'{run}/policy'!r})"
        yield "Load the policy in Python, an ordinary Hugging Face folder", line


# ---------------------------------------------------------------- in sentences


def _make_headline(source: ReportSource) -> str:
    """Summarize the result in one line."""
    what, withheld = report_quantities(source)[0], None
    tasks = split_name(source.result)
    for kind in ("sampled", "greedy"):
        before, after = (
            read_evaluation(source.result, f"{when}_{kind}") for when in ("before", "after")
        )
        if after is not None and after.is_withheld:
            withheld = after
        old, new = what.value_of(before), what.value_of(after)
        if new is None:
            continue
        ends = " to ".join(WORDS[what](value) for value in (old, new) if value is not None)
        if what is REWARD:
            return f"Mean reward{'' if old is None else ' from'} {ends} on {tasks} tasks"
        return f"{'' if old is None else 'From '}{ends} of {tasks} tasks solved"
    if withheld is not None:
        judged = f"{withheld.judged} of {withheld.rollouts}"
        return f"No result: only {judged} {tasks} rollouts were judged"
    return f"A run without {'a before and after' if source.result else 'an outcome yet'}"


def _describe_cold_start(source: ReportSource) -> str:
    config = source.settings
    if config is None:
        who = "The policy"
    elif config.model.path == SHIPPED:
        return (
            "It starts from the shipped small language model, trained on demonstrations: first "
            "correct ones, then ones that mostly guess the answer, as the model does at first."
        )
    elif config.model.path is None:
        who = f"A small language model (size {config.model.size}), built from scratch,"
    else:
        who = f"The model {cut(config.model.path, 120)}"
    steps = len(source.curve("sft" if source.phase("sft") else "cold_start", "loss/sft"))
    if not steps:
        return f"{who} went into training as it was, without a cold start." if config else ""
    sentence = f"{who} was trained on demonstrations, for {count_noun(steps, 'step')}"
    mixed, guess = source.number("mixed_steps"), source.number("guess_share")
    if not mixed or not guess:
        return f"{sentence}."
    return (
        f"{sentence}; in the last {count_noun(int(mixed), 'step')}, {percent(guess)} of the "
        "demonstrations, drawn at random, guess an answer instead of calling their tools."
    )


def _describe_learning(source: ReportSource) -> str:
    steps = source.number("rl_steps")
    steps = len(source.phase("rl")) if steps is None else int(steps)
    if not steps:
        return ""
    config, rollouts = source.settings, source.trained_rollouts
    name = f" ({display_name(config.algorithm.adv_estimator).upper()})" if config else ""
    played = f"{count_noun(rollouts, 'rollout')} in " if rollouts else ""
    grouped = f", {config.agent.num_chains} for each task" if config and rollouts else ""
    return (
        f"It learned from rewards alone by reinforcement learning{name}: {played}"
        f"{count_noun(steps, 'step')}{grouped}."
    )
