"""What the page says, as plain records for the template: every number worded, every part optional.

A part whose facts are missing is empty, and the template then leaves a short remark instead. The
sentences come from `story.py`, the curves from `charts.py`; `page.py` renders.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from tutelage.runs.report import charts, rates, story
from tutelage.runs.report.charts import MAX_DLOGP, Chart
from tutelage.runs.report.episodes import Episode
from tutelage.runs.report.pick import VERDICTS, Outcome, Pair, choose, outcomes
from tutelage.runs.report.rates import Cell, Change, RateTable
from tutelage.runs.report.source import Failed, Source, mapping, number, text, texts
from tutelage.runs.report.words import count, cut, duration, percent, short
from tutelage.tasks.overlap import footnote, named

FINISHED = ("succeeded", "finished", "completed", "done", "ok")
"""Statuses after which there is nothing to resume."""
PHASE_NAMES: Mapping[str, str] = {
    "rl": "RL",
    "sft": "supervised training",
    "before": "measuring before",
    "after": "measuring after",
    "after_control": "measuring the control",
}
"""Phases whose names need more words; the others speak for themselves."""
VALUE_LIMIT = 400
"""Characters of one configured value that the page shows."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One number worth a tile; `bad` marks one that is out of its bounds."""

    name: str
    value: str
    note: str = ""
    bad: bool = False


@dataclass(frozen=True, slots=True)
class Phase:
    """How long one phase took: worded, and its share of the whole in percent."""

    name: str
    time: str
    share: float
    shown: str
    hue: str


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of the configuration."""

    key: str
    value: str
    origin: str
    note: str
    is_set: bool


@dataclass(frozen=True, slots=True)
class Command:
    """What to type next, and why."""

    why: str
    line: str


@dataclass(frozen=True, slots=True)
class View:
    """The whole page."""

    name: str
    status: str
    finished: bool
    headline: str
    story: Sequence[tuple[str, str]]
    graded: bool
    changes: Sequence[Change]
    facts: Sequence[Fact]
    warnings: Sequence[str]
    remarks: Sequence[str]
    tables: Sequence[RateTable]
    judged: Sequence[str]
    conclusions: Sequence[str]
    control_chart: Chart | None
    curves: Sequence[Chart]
    diagnostics: Sequence[Chart]
    family_rows: Sequence[tuple[str, int, Cell | None, Cell | None]]
    family_title: str
    family_kind: str
    pairs: Sequence[Pair]
    verdicts: Mapping[str, str]
    pair_kind: str
    endings: Sequence[Outcome]
    endings_of: Sequence[tuple[str, int]]
    failed: Sequence[Failed]
    trained_rollouts: int | None
    phases: Sequence[Phase]
    settings: Sequence[Setting]
    conditions: Sequence[tuple[str, str]]
    commands: Sequence[Command]


def make_view(source: Source) -> View:
    """Word everything. Pure; raises nothing for the sake of what the run recorded."""
    kind = _kind(source)
    pair_kind = _pair_kind(source)
    status = text(source.result, "status") or "not ended"
    endings = _endings(source)
    return View(
        name=source.path.name,
        status=status,
        finished=status in FINISHED,
        headline=story.headline(source),
        story=story.story(source),
        graded=source.kind.graded,
        changes=rates.changes(source),
        facts=_facts(source),
        warnings=texts(source.result, "warnings"),
        remarks=(*source.remarks, *filter(None, [footnote(source.result)])),
        tables=rates.tables(source),
        judged=list(rates.judged(source)),
        conclusions=story.conclusions(source),
        control_chart=charts.control_chart(source),
        curves=[c for c in (charts.cold_start_chart(source), charts.reward_chart(source)) if c],
        diagnostics=charts.diagnostics(source),
        family_rows=_families(source, kind),
        family_title=rates.quantities(source)[0].name,
        family_kind=kind,
        pairs=choose(*_sides(source, pair_kind)),
        verdicts=VERDICTS,
        pair_kind=pair_kind,
        endings=outcomes(endings),
        endings_of=[(name, len(episodes)) for name, episodes in endings.items()],
        failed=source.failed,
        trained_rollouts=source.trained_rollouts,
        phases=_phases(source),
        settings=_settings(source),
        conditions=list(_flat(source.conditions)),
        commands=_commands(source, status),
    )


def _facts(source: Source) -> list[Fact]:
    result = source.result
    wanted = (
        ("rl_steps", "RL steps", count),
        ("sft_steps", "supervised steps", count),
        ("rollouts", "rollouts", count),
        ("tokens", "sampled tokens", count),
        ("wall_seconds", "wall time", duration),
        (
            "test_tasks" if "test_tasks" in result else "val_tasks",
            f"{named(result)} tasks",
            count,
        ),
        ("seed", "seed", "{:.0f}".format),
    )
    facts = [
        Fact(name, show(value), "in all phases" if key in ("rollouts", "tokens") else "")
        for key, name, show in wanted
        if (value := number(result, key)) is not None
    ]
    if (level := text(result, "level")) is not None:
        facts.append(Fact("level", cut(level, 16)))
    if (gap := number(result, "max_dlogp")) is not None:
        facts.append(Fact("max |Δ log p|", short(gap), "bar: 1e−4 in fp32", gap >= MAX_DLOGP))
    return facts


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


def _families(source: Source, kind: str) -> list[tuple[str, int, Cell | None, Cell | None]]:
    """Family, its rollouts, and its rate or mean before and after."""
    quantity = rates.quantities(source)[0]
    sides = [source.families.get(f"{when}/{kind}", {}) for when in ("before", "after")]
    found: list[tuple[str, int, Cell | None, Cell | None]] = []
    for name in sorted({*sides[0], *sides[1]}):
        before, after = (side.get(name) for side in sides)
        known = after or before
        number = 0 if known is None else known.rollouts or 0
        found.append((cut(name, 40), number, quantity.cell(before), quantity.cell(after)))
    return found


def _endings(source: Source) -> dict[str, Sequence[Episode]]:
    kind = _kind(source)
    names = {f"before/{kind}": "before", f"after/{kind}": "after", f"control/{kind}": "control"}
    names |= {"after/no_tools": "no tools, greedy"}
    found = source.evaluations
    return {name: found[label] for label, name in names.items() if label in found}


def _phases(source: Source) -> list[Phase]:
    times = mapping(source.result, "phases")
    pairs = [(name, number(times, name)) for name in times]
    known = [(name, seconds) for name, seconds in pairs if seconds is not None and seconds >= 0]
    total = sum(seconds for _, seconds in known) or 1.0
    return [
        Phase(
            _phase_name(name),
            duration(seconds),
            100 * seconds / total,
            percent(seconds / total),
            _hue(name, position),
        )
        for position, (name, seconds) in enumerate(known)
    ]


def _phase_name(name: str) -> str:
    return PHASE_NAMES.get(name) or cut(name.replace("_", " ").replace("/", ", "), 60)


def _hue(phase: str, position: int) -> str:
    """The colour that stands for a phase elsewhere on the page; other phases alternate in grey."""
    for word, role in (("cold", "before"), ("control", "control"), ("rl", "after")):
        if phase.split("_")[0].split("/")[0] == word:
            return role
    return ("muted", "faint")[position % 2]


def _settings(source: Source) -> list[Setting]:
    if source.config is None:
        return []
    return [
        Setting(
            row.key,
            cut(json.dumps(row.value, ensure_ascii=False), VALUE_LIMIT),
            cut(row.origin, VALUE_LIMIT),
            cut(row.note, VALUE_LIMIT),
            not row.origin.startswith("default"),
        )
        for row in source.config.to_table()
    ]


def _flat(values: Mapping[str, Any], prefix: str = "", depth: int = 0) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for key, value in values.items():
        name = cut(f"{prefix}{key}", 120)
        if isinstance(value, dict) and value and depth < 4:
            pairs += _flat(cast("dict[str, Any]", value), f"{name}.", depth + 1)
        else:
            shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            pairs.append((name, cut(shown, VALUE_LIMIT)))
    return pairs


def _commands(source: Source, status: str) -> list[Command]:
    path = source.path
    run = shlex.quote(f"runs/{path.name}" if path.parent.name == "runs" else str(path))
    commands: list[Command] = []
    if status not in FINISHED:
        commands.append(Command("Go on where it stopped", f"tutelage resume {run}"))
    question = _question(source)
    if question is not None:
        commands.append(
            Command("Ask the policy, and watch its turns", f"tutelage ask {run} {question}")
        )
    rollout = next((p.after.rollout_id for p in choose(*_sides(source, _pair_kind(source)))), None)
    if rollout is not None:
        commands.append(
            Command("Read one rollout turn by turn", f"tutelage show {shlex.quote(rollout)}")
        )
    commands.append(Command("Measure it on your own tasks", f"tutelage eval {run} --test FILE"))
    config = None if source.config is None else source.config.config
    if config is not None and config.recipe == "math" and config.model.path is None:
        harder = f"tutelage train math --level hard --seed {config.seed + 1}"
        commands.append(Command("Give it harder tasks, and another seed", harder))
    commands.append(
        Command(
            "Train on your own tasks, tools and reward",
            "tutelage train math --model PATH_OR_HF_ID --train a.jsonl --val b.jsonl"
            " --reward FILE.py:fn --tools FILE.py:fn",
        )
    )
    if text(source.result, "policy") is not None or (path / "policy").is_dir():
        line = f"AutoModelForCausalLM.from_pretrained({f'{run}/policy'!r})"
        commands.append(Command("Load the policy in Python, an ordinary Hugging Face folder", line))
    return commands


def _question(source: Source) -> str | None:
    """A short held-out question, quoted for a shell."""
    for label in ("after/greedy", "after/sampled", "before/greedy"):
        for episode in source.evaluations.get(label, ()):
            if episode.question.isprintable() and len(episode.question) <= 120:
                return shlex.quote(episode.question)
    return None
