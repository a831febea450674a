"""What the page says, as plain values for the template: every number worded, every part optional.

A part whose facts are missing is empty, and the template then leaves a short remark instead. The
sentences come from `story.py`, the curves from `charts.py`; `page.py` renders.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from tutelage.runs.measured import judged_lines
from tutelage.runs.report import charts, rates, story
from tutelage.runs.report.charts import MAX_DLOGP
from tutelage.runs.report.episodes import Episode
from tutelage.runs.report.pick import choose, outcomes
from tutelage.runs.report.rates import Cell
from tutelage.runs.report.source import Source, mapping, number, text, texts
from tutelage.runs.report.words import count, cut, duration, short
from tutelage.tasks.overlap import footnote, named

_FINISHED = ("succeeded", "finished", "completed", "done", "ok")
"""Statuses after which there is nothing to resume."""
_PHASE_NAMES: Mapping[str, str] = {
    "rl": "RL",
    "sft": "supervised training",
    "before": "measuring before",
    "after": "measuring after",
    "after_control": "measuring the control",
}
"""Phases whose names need more words; the others speak for themselves."""
_VALUE_LIMIT = 400
"""Characters of one configured value that the page shows."""


def make_view(source: Source) -> dict[str, Any]:
    """What the template is filled with. Pure; raises nothing for the sake of what the run
    recorded."""
    kind, pair_kind = _kind(source), _pair_kind(source)
    status = text(source.result, "status") or "not ended"
    finished, endings = status in _FINISHED, _endings(source)
    pairs = choose(*_sides(source, pair_kind))
    return {
        "name": source.path.name,
        "what": "run report",
        "pill": ("good" if finished else "open", status),
        "headline": story.headline(source),
        "story": story.story(source),
        "changes": list(rates.changes(source)),
        "facts": list(_facts(source)),
        "warnings": texts(source.result, "warnings"),
        "remarks": [*source.remarks, *filter(None, [footnote(source.result)])],
        "tables": list(rates.tables(source)),
        "judged": [cut(line, 400) for line in judged_lines(source.result)],
        "conclusions": story.conclusions(source),
        "control_chart": charts.control_chart(source),
        "curves": [c for c in (charts.cold_start_chart(source), charts.reward_chart(source)) if c],
        "diagnostics": charts.diagnostics(source),
        "family_rows": list(_families(source, kind)),
        "family_title": rates.told_in(source)[0].name.capitalize(),
        "family_kind": kind,
        "pairs": pairs,
        "pair_kind": pair_kind,
        "endings": outcomes(endings),
        "endings_of": [(name, len(episodes)) for name, episodes in endings.items()],
        "failed": source.failed,
        "trained_rollouts": source.trained_rollouts,
        "phases": _phases(source),
        "settings": _settings(source),
        "conditions": list(_flat(source.conditions)),
        "commands": list(_commands(source, finished, [p.after.rollout_id for p in pairs])),
    }


def _facts(source: Source) -> Iterator[tuple[str, str, str, bool]]:
    """Numbers worth a tile: name, value, note, and whether it is out of its bounds."""
    result = source.result
    tasks = "test_tasks" if "test_tasks" in result else "val_tasks"
    wanted: tuple[tuple[str, str, Callable[[float], str]], ...] = (
        ("rl_steps", "RL steps", count),
        ("sft_steps", "supervised steps", count),
        ("rollouts", "rollouts", count),
        ("tokens", "sampled tokens", count),
        ("wall_seconds", "wall time", duration),
        (tasks, f"{named(result)} tasks", count),
        ("seed", "seed", "{:.0f}".format),
    )
    for key, name, show in wanted:
        if (value := number(result, key)) is not None:
            yield name, show(value), "in all phases" if key in ("rollouts", "tokens") else "", False
    if (level := text(result, "level")) is not None:
        yield "level", cut(level, 16), "", False
    if (gap := number(result, "max_dlogp")) is not None:
        yield "max |Δ log p|", short(gap), "bar: 1e−4 in fp32", gap >= MAX_DLOGP


def _kind(source: Source) -> str:
    """The kind of evaluation to count by: sampled where it was made both before and after."""
    for kind in ("sampled", "greedy"):
        if all(_sides(source, kind)):
            return kind
    return "sampled" if any(_sides(source, "sampled")) else "greedy"


def _pair_kind(source: Source) -> str:
    """The kind of evaluation to show rollouts of: the one with more to see, greedy when equal."""

    def variety(kind: str) -> int:
        return len({(p.verdict, p.after.family) for p in choose(*_sides(source, kind))})

    return max(("greedy", "sampled"), key=variety)


def _sides(source: Source, kind: str) -> tuple[Sequence[Episode], Sequence[Episode]]:
    found = source.evaluations
    return found.get(f"before/{kind}", ()), found.get(f"after/{kind}", ())


def _families(source: Source, kind: str) -> Iterator[tuple[str, int, Cell | None, Cell | None]]:
    """Family, its rollouts, and its rate or mean before and after."""
    what = rates.told_in(source)[0]
    sides = [source.families.get(f"{when}/{kind}", {}) for when in ("before", "after")]
    for name in sorted({*sides[0], *sides[1]}):
        before, after = (side.get(name) for side in sides)
        known = after or before
        number = 0 if known is None else known.rollouts or 0
        yield cut(name, 40), number, rates.cell(what, before), rates.cell(what, after)


def _endings(source: Source) -> dict[str, Sequence[Episode]]:
    kind = _kind(source)
    names = {f"before/{kind}": "before", f"after/{kind}": "after", f"control/{kind}": "control"}
    names |= {"after/no_tools": "no tools, greedy"}
    found = source.evaluations
    return {name: found[label] for label, name in names.items() if label in found}


def _phases(source: Source) -> list[tuple[str, str, float, str]]:
    """How long each phase took: its name, worded, its share of the whole, its colour."""
    times = mapping(source.result, "phases")
    pairs = [(name, number(times, name)) for name in times]
    known = [(name, seconds) for name, seconds in pairs if seconds is not None and seconds >= 0]
    total = sum(seconds for _, seconds in known) or 1.0
    return [
        (_phase_name(name), duration(seconds), seconds / total, _hue(name, position))
        for position, (name, seconds) in enumerate(known)
    ]


def _phase_name(name: str) -> str:
    return _PHASE_NAMES.get(name) or cut(name.replace("_", " ").replace("/", ", "), 60)


def _hue(phase: str, position: int) -> str:
    """The colour that stands for a phase elsewhere on the page; other phases alternate in grey."""
    for word, role in (("cold", "before"), ("control", "control"), ("rl", "after")):
        if phase.split("_")[0].split("/")[0] == word:
            return role
    return ("muted", "faint")[position % 2]


def _settings(source: Source) -> list[tuple[str, str, str, str, bool]]:
    """Key, value, origin and note of each key, and whether somebody set it."""
    rows = [] if source.config is None else source.config.to_table()
    return [
        (
            row.key,
            cut(json.dumps(row.value, ensure_ascii=False), _VALUE_LIMIT),
            cut(row.origin, _VALUE_LIMIT),
            cut(row.note, _VALUE_LIMIT),
            not row.origin.startswith("default"),
        )
        for row in rows
    ]


def _flat(values: Mapping[str, Any], prefix: str = "", depth: int = 0) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for key, value in values.items():
        name = cut(f"{prefix}{key}", 120)
        if isinstance(value, dict) and value and depth < 4:
            pairs += _flat(cast("dict[str, Any]", value), f"{name}.", depth + 1)
        else:
            shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            pairs.append((name, cut(shown, _VALUE_LIMIT)))
    return pairs


def _commands(source: Source, finished: bool, rollouts: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Why, and what to type."""
    path = source.path
    run = shlex.quote(f"runs/{path.name}" if path.parent.name == "runs" else str(path))
    if not finished:
        yield "Go on where it stopped", f"tutelage resume {run}"
    if (question := _question(source)) is not None:
        yield "Ask the policy, and watch its turns", f"tutelage ask {run} {question}"
    if rollouts:
        yield "Read one rollout turn by turn", f"tutelage show {shlex.quote(rollouts[0])}"
    yield "Measure it on your own tasks", f"tutelage eval {run} --test FILE"
    config = None if source.config is None else source.config.config
    if config is not None and config.recipe == "math" and config.model.path is None:
        harder = f"tutelage train math --level hard --seed {config.seed + 1}"
        yield "Give it harder tasks, and another seed", harder
    yield (
        "Train on your own tasks, tools and reward",
        "tutelage train math --model PATH_OR_HF_ID --train a.jsonl --val b.jsonl"
        " --reward FILE.py:fn --tools FILE.py:fn",
    )
    if text(source.result, "policy") is not None or (path / "policy").is_dir():
        line = f"AutoModelForCausalLM.from_pretrained({f'{run}/policy'!r})"
        yield "Load the policy in Python, an ordinary Hugging Face folder", line


def _question(source: Source) -> str | None:
    """A short held-out question, quoted for a shell."""
    for label in ("after/greedy", "after/sampled", "before/greedy"):
        for episode in source.evaluations.get(label, ()):
            if episode.question.isprintable() and len(episode.question) <= 120:
                return shlex.quote(episode.question)
    return None
