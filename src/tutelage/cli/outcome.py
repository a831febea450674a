"""Result of a run: the before/after table, totals, and commands to try next.

Made from `result.json`, with lost workers and servers from `events.jsonl`, so that the end of a
training and `tutelage show RUN` print the same. Numbers that were not measured have no row. A
graded reward is summarised by its mean and interval (`runs/stored_evaluation.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from rich.console import Console

from tutelage.cli.console import (
    build_table,
    echo,
    echo_pairs,
    echo_text,
    escape,
    format_path,
    number,
    percent,
    print_steps,
    shorten,
)
from tutelage.errors import TutelageError, pluralize
from tutelage.runs.estimate import duration
from tutelage.runs.figures import Table, TableRow, read_object
from tutelage.runs.folder import RunFolder
from tutelage.runs.resume_hint import format_question
from tutelage.runs.stored import open_run
from tutelage.runs.stored_evaluation import (
    EVALUATIONS,
    KINDS,
    NO_TOOLS,
    REWARD,
    SIDES,
    SUCCESS,
    Quantity,
    StoredEvaluation,
    control_estimator,
    is_graded,
    judged_lines,
    parse_evaluation,
    quantities,
    read_evaluation,
)
from tutelage.statistics.outcome import format_cause
from tutelage.tasks.overlap import footnote, success_title
from tutelage.types import Mode

_SEARCHED_ROLLOUTS = 20
"""Number of rollouts among which an example question is searched."""
_HEADERS = {"before": "nothing", "demonstrations": "demonstrations alone", "after": "with RL"}
"""Column headers of a run that learned `data.demonstrations` first."""
_COUNTED = (("rl_steps", "step"), ("rollouts", "rollout"), ("tokens", "token"))
_COUNTED_SFT = (
    *(("sft_steps", "supervised step"), ("examples", "example")),
    ("trained_tokens", "trained token"),
)
"""Units of the amounts of a result, by key; of supervised training here, of rollouts above."""
_FORMATS = {SUCCESS: percent, REWARD: number}


def build_tables(result: Mapping[str, Any]) -> list[Table]:
    """Return tables of the evaluations before and after training and of the control run: mean
    reward if it is graded, and success if it is defined, in one table if the columns are equal."""
    tables = [_build_table(result, what) for what in quantities(is_graded(result))]
    found = [table for table in tables if table is not None]
    if is_graded(result) or len(found) < 2 or found[0].columns[1:] != found[1].columns[1:]:
        return found
    success, reward = found
    kinds = [row for row in reward.rows if row.cells[0] in KINDS]
    rows = [replace(row, cells=(f"mean reward, {row.cells[0]}", *row.cells[1:])) for row in kinds]
    return [replace(success, rows=[*success.rows, *rows])]


def _build_table(result: Mapping[str, Any], metric: Quantity) -> Table | None:
    stored = {key: read_evaluation(result, key) for key in EVALUATIONS}
    columns = [n for n in SIDES if any(metric.has_value(stored[f"{n}_{kind}"]) for kind in KINDS)]
    without = stored[NO_TOOLS] if metric.has_value(stored[NO_TOOLS]) else None
    columns += ["after"] * (without is not None and "after" not in columns)
    if not columns:
        return None
    if {"before", "after"} <= set(columns):
        columns.insert(columns.index("after") + 1, "change")
    rows: list[TableRow] = []
    for kind in KINDS:
        by_side = {name: stored[f"{name}_{kind}"] for name in SIDES}
        if not any(map(metric.has_value, by_side.values())):
            continue
        rows.append(_build_row(kind, by_side, columns, metric))
        if metric is REWARD and is_graded(result):
            intervals = {name: metric.format_range(one, number) for name, one in by_side.items()}
            ends_row = ("  95 % interval", *(intervals.get(name, "") for name in columns))
            if any(ends_row[1:]):  # one task has no interval
                rows.append(TableRow(ends_row, ("dim",) * len(ends_row)))
        by_name = {name: result.get(f"families_{name}_{kind}") or {} for name in SIDES}
        for family in dict.fromkeys(family for data in by_name.values() for family in data):
            one = {n: parse_evaluation(data.get(family, {})) for n, data in by_name.items()}
            if any(map(metric.has_value, one.values())):
                rows.append(_build_row(f"  {escape(family)}", one, columns, metric))
    if without is not None:
        cell = metric.text(without, _FORMATS[metric])
        rows.append(TableRow(("greedy, no tools", *(cell * (n == "after") for n in columns))))
    tasks = result.get("test_tasks")
    head = success_title(result, metric.name) + (f", {tasks} tasks" if tasks else "")
    estimator = control_estimator(result)
    names = {"control": "control" if estimator is None else f"control: {estimator}"}
    names |= _HEADERS if "demonstrations" in columns else {}
    heads = [names.get(name, name) for name in columns]
    return Table((head, *heads), rows, right=range(1, len(columns) + 1))


def _build_row(
    title: str, sides: Mapping[str, StoredEvaluation | None], names: Sequence[str], metric: Quantity
) -> TableRow:
    """Return the table row of evaluations before and after training and of the control run."""
    cells = {name: metric.text(one, _FORMATS[metric]) for name, one in sides.items()}
    before, after = metric.value_of(sides["before"]), metric.value_of(sides["after"])
    cells["change"], tone = "", ""
    if before is not None and after is not None:
        gap = after - before
        cells["change"] = f"{100 * gap:+.1f}" if metric is SUCCESS else f"{gap:+.3f}"
        tone = "good" if gap > 0 else "bad" if gap < 0 else ""
    tones = [tone if name == "change" else "" for name in names]
    return TableRow((title, *(cells[name] for name in names)), ("", *tones))


def show_outcome(
    console: Console, folder: RunFolder, result: Mapping[str, Any], *, show_next: bool = False
) -> None:
    """Print the tables with footnotes, the totals and paths, and if `show_next` is True the next
    commands."""
    tables = build_tables(result)
    for table in tables:
        console.print(build_table(table))
    if tables:
        for line in _list_footnotes(result):
            echo_text(console, line, "dim")
        echo(console)
    echo_pairs(console, _list_totals(folder, result))
    if show_next:
        echo(console)
        path, (own, reward) = format_path(folder.path), folder.own_agent()
        target = path if own is None else f"{format_path(own)} --model {format_path(folder.policy)}"
        graded = f" --reward {reward}" if own and reward else ""
        verbs = [f"ask {target} {_find_question(folder)}", f"show {path}"]
        verbs += [f"eval {target} --test FILE.jsonl{graded}", "runs"]
        config = read_object(folder.config).get("config", {})
        if environment := config.get("environment", {}).get("name"):
            flag = f" --environment {environment}" if own else ""
            verbs[0:3] = [f"show {path}", f"eval {target}{flag}"]
        print_steps(console, *(f"tutelage {verb}" for verb in verbs))


def _find_question(folder: RunFolder) -> str:
    """Return a short question from the test, validation or training tasks, quoted for a shell."""
    with suppress(TutelageError), open_run(folder) as (store, run_id):
        for mode in (Mode.TEST, Mode.VAL, Mode.TRAIN):
            for rollout in store.rollouts(run_id, mode=mode, limit=_SEARCHED_ROLLOUTS):
                if (question := format_question(rollout.task)) is not None:
                    return question
    return "QUESTION"


def _list_footnotes(result: Mapping[str, Any]) -> Iterator[str]:
    if shared := footnote(result):
        yield shared
    yield from judged_lines(result)
    estimator = control_estimator(result)
    if estimator is not None and any(read_evaluation(result, f"control_{kind}") for kind in KINDS):
        same = "the same training from the same start with the estimator"
        yield f"control: {same} {escape(estimator)}, as many steps and rollouts."
    if read_evaluation(result, NO_TOOLS) is not None:
        yield "no tools: without them the policy must answer from its weights."
    clean, what = read_evaluation(result, "clean_greedy"), quantities(is_graded(result))[0]
    if what.has_value(clean):
        message = what.text(clean, _FORMATS[what])
        yield f"after the clean demonstrations alone, on these tasks: {message}, greedy."


def _list_totals(folder: RunFolder, result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if "status" in result:
        count = len(result.get("warnings") or ())
        yield "status", result["status"] + (f", with {pluralize(count, 'warning')}" * bool(count))
    yield from list_findings(result)
    supervised = "sft_steps" in result
    words = list[str]()
    if "demonstrations" in result:
        steps = pluralize(result.get("cold_start_steps") or 0, "supervised step")
        shown = pluralize(result["demonstrations"], "demonstration")
        words.append(f"{steps} on {shown}: {result.get('demonstrations_from', 'of files')}")
    for key, noun in _COUNTED_SFT if supervised else _COUNTED:
        if result.get(key) is not None:
            whole = key == "examples" and "epochs" in result
            epochs = f"{number(result['epochs'])} epochs of " if whole else ""
            words.append(epochs + pluralize(result[key], noun))
    if supervised and result.get("rollouts"):
        words.append(f"{pluralize(result['rollouts'], 'rollout')} of measurements")
    if "wall_seconds" in result:
        words.append(f"{duration(result['wall_seconds'])} wall time")
    if "seed" in result:
        words.append(f"seed {result['seed']}")
    yield "done", ", ".join(words)
    for name in ("train", "val"):
        before, after = (result.get(f"{name}_loss_{when}") for when in ("before", "after"))
        if after is not None:
            course = number(after) if before is None else f"{number(before)} -> {number(after)}"
            what = "of the first and the last batch" if name == "train" else "of the --val file"
            yield f"{name} loss", f"{course} nats a token, {what}"
    first: Mapping[str, str] = result.get("first_failures") or {}
    for cause, count in (result.get("failures") or {}).items():
        message = f" (the first: {shorten(first[cause], 200)})" if cause in first else ""
        yield "failed", f"{number(count)} {format_cause(cause)}{message}"
    with suppress(TutelageError):
        # A worker that was lost does not come back; a server may, and be lost again.
        events = folder.read_events()
        workers = sum(event.get("event") == "worker_lost" for event in events)
        servers = {str(e.get("server")) for e in events if e.get("event") == "server_lost"}
        counts = {"Ray worker": workers, "vLLM server": len(servers)}
        if words := [pluralize(count, what) for what, count in counts.items() if count]:
            yield "lost", f"{' and '.join(words)}; {folder.events.name} says when"
    yield "run", format_path(folder.path)
    if folder.policy.is_dir():
        yield "policy", f"{format_path(folder.policy)} (an ordinary Hugging Face folder)"
    if folder.report.is_file():
        yield "report", format_path(folder.report)


def list_findings(result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the warnings and other findings of a run as (name, text) pairs."""
    for warning in result.get("warnings") or ():
        yield "warning", warning
    for entry in result.get("health") or ():
        if not entry["warning"]:
            yield entry["name"], entry["text"]
