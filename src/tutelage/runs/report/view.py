"""What the page says, as plain values for the template: every number formatted, every part
optional.

A part whose facts are missing is empty, and the template then leaves a short remark instead. The
sentences are made from what the run recorded, too; the curves come from `charts.py`; `page.py`
renders.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from tutelage.resources import SHIPPED
from tutelage.runs.figures import finite
from tutelage.runs.report.charts import MAX_DLOGP, draw_charts
from tutelage.runs.report.formatting import (
    count,
    counted,
    cut,
    duration,
    exact_percent,
    points,
    short,
)
from tutelage.runs.report.rates import WORDS, rate_parts, report_quantities
from tutelage.runs.report.source import ReportSource
from tutelage.runs.report.transcripts import Transcript, choose, outcomes
from tutelage.runs.stored_evaluation import (
    NO_TOOLS,
    REWARD,
    SUCCESS,
    control_estimator,
    judged_lines,
    read_evaluation,
)
from tutelage.tasks.overlap import footnote, split_name
from tutelage.tools.loading import display_name
from tutelage.types import JSON

_FINISHED = ("succeeded", "finished", "completed", "done", "ok")
"""Statuses after which there is nothing to resume."""
_PHASE_NAMES: Mapping[str, str] = {
    "rl": "RL",
    "sft": "supervised training",
    "before": "measuring before",
    "demonstrations": "measuring after the demonstrations",
    "after": "measuring after",
    "after_control": "measuring the control",
}
"""Phases whose names need more words; the others speak for themselves."""
_VALUE_LIMIT = 400
"""Characters of one configured value that the page shows."""


def make_view(source: ReportSource) -> dict[str, Any]:
    """What the template is filled with. Pure; raises nothing for the sake of what the run
    recorded."""
    kind, pair_kind = _kind(source), _pair_kind(source)
    status = source.text("status") or "not ended"
    finished, evaluations = status in _FINISHED, source.evaluations
    ends = {f"before/{kind}": "before", f"after/{kind}": "after", f"control/{kind}": "control"}
    ends |= {"after/no_tools": "no tools, greedy"}
    endings: dict[str, Sequence[Transcript]] = {
        name: evaluations[label] for label, name in ends.items() if label in evaluations
    }
    story = (
        ("Supervised" if source.phase("sft") else "Cold start", _cold_start(source)),
        ("Learning", _learning(source)),
        ("Measuring", _measuring(source)),
    )
    rows = [] if source.config is None else source.config.to_table()
    pairs = choose(*_sides(source, pair_kind))
    told: object = source.result.get("warnings")
    warnings = cast("list[Any]", told) if isinstance(told, list) else []
    return {
        "name": source.path.name or source.path.resolve().name,
        "what": "run report",
        "pill": ("good" if finished else "open", status),
        "headline": _headline(source),
        "story": [(title, sentence) for title, sentence in story if sentence],
        "facts": list(_facts(source)),
        "warnings": [cut(str(text), 600) for text in warnings],
        "remarks": [*source.remarks, *filter(None, [footnote(source.result)]), *_good_news(source)],
        "judged": [cut(line, 400) for line in judged_lines(source.result)],
        "conclusions": list(filter(None, (_against_control(source), _without_tools(source)))),
        **draw_charts(source),
        **rate_parts(source, kind),
        "family_kind": kind,
        "pairs": pairs,
        "pair_kind": pair_kind,
        "endings": outcomes(endings),
        "endings_of": [(name, len(episodes)) for name, episodes in endings.items()],
        "failed": source.failed,
        "trained_rollouts": source.trained_rollouts,
        "phases": _phases(source),
        "settings": [
            (
                row.key,
                cut(json.dumps(row.value, ensure_ascii=False), _VALUE_LIMIT),
                cut(row.origin, _VALUE_LIMIT),
                cut(row.note, _VALUE_LIMIT),
                not row.origin.startswith("default"),
            )
            for row in rows
        ],
        "conditions": list(_flat(source.conditions)),
        "commands": list(_commands(source, finished, [p.after.rollout_id for p in pairs])),
    }


def _good_news(source: ReportSource) -> Iterator[str]:
    """What was found while it ran that is no warning."""
    told: object = source.result.get("health")
    for entry in cast("list[Any]", told) if isinstance(told, list) else []:
        if isinstance(entry, dict) and not entry.get("warning", True):
            yield cut(f"Step {entry.get('step')}: {entry.get('text')}.", 400)


def _facts(source: ReportSource) -> Iterator[tuple[str, str, str, bool]]:
    """Numbers worth a tile: name, value, note, and whether it is out of its bounds."""
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


def _kind(source: ReportSource) -> str:
    """The kind of evaluation to count by: sampled where it was made both before and after."""
    for kind in ("sampled", "greedy"):
        if all(_sides(source, kind)):
            return kind
    return "sampled" if any(_sides(source, "sampled")) else "greedy"


def _pair_kind(source: ReportSource) -> str:
    """The kind of evaluation to show rollouts of: the one with more to see, greedy when equal."""

    def variety(kind: str) -> int:
        return len({(p.verdict, p.after.family) for p in choose(*_sides(source, kind))})

    return max(("greedy", "sampled"), key=variety)


def _sides(source: ReportSource, kind: str) -> tuple[Sequence[Transcript], Sequence[Transcript]]:
    transcripts = source.evaluations
    return transcripts.get(f"before/{kind}", ()), transcripts.get(f"after/{kind}", ())


def _phases(source: ReportSource) -> list[tuple[str, str, float, str]]:
    """How long each phase took: its name, formatted, its share of the whole, its colour."""
    times: object = source.result.get("phases")
    values = cast("JSON", times) if isinstance(times, dict) else {}
    read = {name: finite(value) for name, value in values.items()}
    known = {name: s for name, s in read.items() if s is not None and s >= 0}
    total = sum(known.values()) or 1.0
    # The colour of a phase elsewhere on the page; other phases alternate in grey.
    roles = {"cold": "before", "control": "control", "rl": "after"}
    phases: list[tuple[str, str, float, str]] = []
    for position, (name, seconds) in enumerate(known.items()):
        shown = _PHASE_NAMES.get(name) or cut(name.replace("_", " ").replace("/", ", "), 60)
        role = name.split("_")[0].split("/")[0]
        colour = roles.get(role, ("muted", "faint")[position % 2])
        phases.append((shown, duration(seconds), seconds / total, colour))
    return phases


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


def _commands(
    source: ReportSource, finished: bool, rollouts: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Why, and what to type."""
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
    config = source.settings
    if config is not None and config.recipe == "math" and config.model.path in (None, SHIPPED):
        harder = f"tutelage train math --level hard --seed {config.seed + 1}"
        yield "Give it harder tasks, and another seed", harder
    yield (
        "Train on your own tasks, tools and reward",
        "tutelage train math --model PATH_OR_HF_ID --train a.jsonl --val b.jsonl"
        " --reward FILE.py:fn --tools FILE.py:fn",
    )
    if source.text("policy") is not None or (path / "policy").is_dir():
        line = f"AutoModelForCausalLM.from_pretrained({f'{run}/policy'!r})"
        yield "Load the policy in Python, an ordinary Hugging Face folder", line


# ---------------------------------------------------------------- in sentences


def _headline(source: ReportSource) -> str:
    """The result in one line."""
    what, withheld = report_quantities(source)[0], None
    tasks = split_name(source.result)
    for kind in ("sampled", "greedy"):
        before, after = (
            read_evaluation(source.result, f"{when}_{kind}") for when in ("before", "after")
        )
        if after is not None and after.withheld:
            withheld = after
        old, new = what.of(before), what.of(after)
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


def _guess_share(source: ReportSource) -> float | None:
    """The share of the mixed demonstrations that guess: as measured, else as configured."""
    measured = source.number("guess_share")
    if (measured is None or not 0 <= measured <= 1) and source.settings is not None:
        return source.settings.sft.guess_share
    return measured


def _cold_start(source: ReportSource) -> str:
    steps = len(source.curve("cold_start", "loss/sft"))
    config = source.settings
    if config is None:
        who = "The policy"
    elif config.model.path == SHIPPED:
        return (
            "It begins with a small language model that is shipped, which was trained on "
            "demonstrations: clean ones, then ones of which most guess, as it does since."
        )
    elif config.model.path is None:
        who = f"A small language model (size {config.model.size}), built from scratch,"
    else:
        who = f"The model {cut(config.model.path, 120)}"
    shown = len(source.curve("sft", "loss/sft"))
    if shown:
        return f"{who} was trained on demonstrations, for {counted(shown, 'step')}."
    if not steps:
        return f"{who} went into training as it was, without a cold start." if config else ""
    if not source.result and not source.phase("rl"):
        return f"{who} is being trained on demonstrations: {counted(steps, 'step')} so far."
    sentence = f"{who} was first trained on demonstrations, for {counted(steps, 'step')}"
    guess = _guess_share(source)
    mixed = source.mixed_steps
    if guess is None or mixed == 0:
        return f"{sentence}."
    where = f"the last {counted(mixed, 'step')}" if mixed is not None else "the mixed part"
    if mixed is not None and mixed >= steps:
        where = "these steps" if mixed == steps else "the mixed steps, which come last"
    return (
        f"{sentence}; in {where}, {exact_percent(guess)} of the demonstrations, drawn at random, "
        "guess an answer instead of calling their tools."
    )


def _learning(source: ReportSource) -> str:
    steps = source.number("rl_steps")
    steps = len(source.phase("rl")) if steps is None else int(steps)
    if not steps:
        return ""
    config = source.settings
    name = f" ({display_name(config.algorithm.adv_estimator).upper()})" if config else ""
    rollouts = source.trained_rollouts  # those of the result are of all phases
    played = f"{counted(rollouts, 'rollout')} in " if rollouts else ""
    again = f", {config.agent.num_chains} for each task," if config and rollouts else ""
    grouped = config is not None and config.agent.num_chains > 1
    by = "where it earned more than the others of its task" if grouped else "by what it earned"
    first = "Then it" if source.phase("cold_start") else "It"
    # Measured without tools is only what has some.
    tools = " played with its tools" if read_evaluation(source.result, NO_TOOLS) else ""
    return (
        f"{first} learned from rewards alone by reinforcement learning{name}: {played}"
        f"{counted(steps, 'step')}{again if tools else again.rstrip(',')}{tools}; what it sampled "
        f"was reinforced {by}."
    )


def _measuring(source: ReportSource) -> str:
    tasks = source.number("test_tasks") or source.number("val_tasks")
    if tasks is None:
        return ""
    config = source.settings
    what = "The mean reward" if source.kind.graded else "Success"
    kind = f"{split_name(source.result)} task"
    sides = [when for when in ("before", "after") if _was_evaluated(source, when)]
    if not sides:
        return ""
    sentence = f"{what} is measured {' and '.join(sides)} on {counted(int(tasks), kind)}"
    if config is not None and config.recipe == "math":
        own = config.data.train_files or config.data.val_files
        sentence += "" if own else ", problems that training never shows"
    if _was_evaluated(source, "control"):
        estimator = cut(control_estimator(source.result) or "another", 40)
        sentence += "; beside it stands a control: the same training from the same start, with as "
        sentence += f"many steps and rollouts and the estimator {estimator}"
    return f"{sentence}."


def _was_evaluated(source: ReportSource, when: str) -> bool:
    kinds = ("sampled", "greedy")
    return any(read_evaluation(source.result, f"{when}_{kind}") for kind in kinds)


def _against_control(source: ReportSource) -> str:
    what = report_quantities(source)[0]
    stored_evaluation, against = (
        read_evaluation(source.result, f"{name}_sampled") for name in ("after", "control")
    )
    after, control = what.of(stored_evaluation), what.of(against)
    if stored_evaluation is None or against is None or after is None or control is None:
        return ""
    if abs(after - control) < 5e-4:
        return f"RL and the control end at the same sampled {what.name}."
    side = "above" if after > control else "below"
    gap = points(abs(after - control), signed=False) if what is SUCCESS else short(after - control)
    sentence = f"RL ends {gap.lstrip('−')} {side} the control, sampled"
    ends = what.interval(stored_evaluation), what.interval(against)
    if ends[0] is None or ends[1] is None:
        return f"{sentence}."
    overlap = ends[0][0] <= ends[1][1] and ends[1][0] <= ends[0][1]
    return f"{sentence}; their intervals {'overlap' if overlap else 'do not overlap'}."


def _without_tools(source: ReportSource) -> str:
    what = report_quantities(source)[0]
    bare, after = (what.of(read_evaluation(source.result, n)) for n in (NO_TOOLS, "after_greedy"))
    if bare is None:
        return ""
    sentence = (
        "With the tools taken out of the prompt and their results withheld, the trained policy "
        f"{'solves' if what is SUCCESS else 'earns'} {WORDS[what](bare)}, greedy"
    )
    if after is None:
        return f"{sentence}."
    sentence += f", against {WORDS[what](after)} with them"
    return f"{sentence}: the difference is tool use." if bare < after else f"{sentence}."
