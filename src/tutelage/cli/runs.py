"""`tutelage runs`: the runs in a folder, newest first, one line each.

Only the small files of a run folder are read, never its store, so that a hundred runs are listed at
once.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from tutelage.runs.folder import RunFolder

_TAIL_BYTES = 1 << 16
_STEPS = ("rl_steps", "sft_steps", "cold_start_steps")
"""Keys of steps in `result.json`, the last phase first."""
_COLD_START = ("max_steps", "cooldown_steps", "mixed_steps")
"""Keys of `sft` whose sum is the number of steps of a cold start."""
_OPTIONAL_COLUMNS = ("seed", "tested", "reward", "age", "steps", "disk", "phase")
"""Columns that are removed, in this order, if the terminal is too narrow."""


def runs(
    below: Annotated[
        Path,
        typer.Option(
            metavar="DIR", help="Folder that holds runs. Default: runs.", show_default=False
        ),
    ] = Path("runs"),
) -> None:
    """List the runs, newest first."""
    from tutelage.cli.console import echo, echo_text, escape, output, plain_table
    from tutelage.runs.folder import list_runs

    console = output()
    folders = list_runs(below)
    if not folders:
        echo(console, f"No runs below {str(below)!r} yet. Start with: tutelage train math")
        return
    lines = [_describe_run(folder, time.time()) for folder in folders]
    widths = {n: 2 + max(len(n), *(len(escape(line[n])) for line in lines)) for n in lines[0]}
    if not console.is_terminal:
        console.width = max(console.width, sum(widths.values()))
    columns = list(widths)
    for name in _OPTIONAL_COLUMNS:
        if sum(widths[n] for n in columns) - 2 > console.width:
            columns.remove(name)
    table = plain_table(*columns, right=("seed", "steps", "success", "reward", "tested", "disk"))
    table.columns[0].no_wrap = True
    for line in lines:
        table.add_row(*(escape(line[name]) for name in columns))
    console.print(table)
    if hidden := [name for name in widths if name not in columns]:
        echo_text(console, f"left out in this width: {', '.join(hidden)}", "dim")


def _describe_run(folder: RunFolder, now: float) -> dict[str, str]:
    """Return the table cells of one run by column; a cell is empty if its file is unreadable."""
    from tutelage.runs.figures import read_object
    from tutelage.runs.folder import is_locked

    config = read_object(folder.config).get("config", {})
    result = read_object(folder.result)
    status = str(result.get("status", "stopped"))
    last = {} if status == "finished" else (read_last_lines(folder.metrics) or [{}])[-1]
    if status != "finished" and is_locked(folder):
        status = "running"
    return {
        "run": folder.name,
        "status": status,
        "phase": str(last.get("phase", "")).replace("_", " "),
        "seed": str(config.get("seed", "")),
        "steps": _format_steps(folder, config, result),
        **_format_tests(result),
        "disk": format_disk_use(folder.path),
        "age": _format_age(now - folder.config.stat().st_mtime),
    }


def _format_steps(folder: RunFolder, config: dict[str, Any], result: dict[str, Any]) -> str:
    """Return the number of training steps, planner epochs or search rounds; `40/60` for unfinished
    training, `13/900` for a cold start, empty for a run without steps."""
    finished = result.get("status") == "finished"
    lines = (m for m in reversed(read_last_lines(folder.metrics)) if m.get("phase") != "control")
    last = next(lines, {})
    if not finished and last.get("phase") == "cold_start":
        steps = [config.get("sft", {}).get(key, 0) for key in _COLD_START]
        return str(last["step"]) + f"/{sum(steps)}" * (min(steps) >= 0)
    # If the last phase has not begun, those of the phase before it count.
    done = next((int(result[name]) for name in _STEPS if result.get(name)), 0)
    done = done or int(last.get("step", 0))
    total = (config.get("trainer") or {}).get("total_training_steps")
    short = isinstance(total, int) and done < total and not finished
    return f"{done}/{total}" if short else str(done or "")


def format_disk_use(path: Path) -> str:
    """Return the total size of the files in a folder, as `12.3 MB`."""
    size = 0
    for file in path.rglob("*"):
        with suppress(OSError):  # a run at work renames and removes files
            size += file.lstat().st_size
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def print_state(console: Console, folder: RunFolder) -> None:
    """Print that an unfinished run is running, or how to resume it."""
    from tutelage.cli.console import echo
    from tutelage.runs.folder import is_locked
    from tutelage.runs.resume_hint import resume_hint

    if is_locked(folder):
        echo(console, "It is running now.")
    else:
        echo(console, "It was stopped. ", resume_hint(folder.path))


def read_last_lines(path: Path) -> list[dict[str, Any]]:
    """Return the last complete lines of a metrics file; unreadable lines are skipped."""
    from tutelage.bounded import json_lines

    if not path.is_file():
        return []
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _TAIL_BYTES))
        complete = file.read().rpartition(b"\n")[0]
    lines: list[dict[str, Any]] = []
    for _, line in json_lines(complete):
        with suppress(ValueError, TypeError):
            lines.append(dict(json.loads(line)))
    return lines


def _format_tests(result: dict[str, Any]) -> dict[str, str]:
    """Return the table cells of test results: success in percent, mean reward, and the counts of
    judged rollouts and of tasks that were trained on. The results are sampled before and after
    training, or greedy if no others exist."""
    from tutelage.runs.stored_evaluation import REWARD, SUCCESS, read_evaluation
    from tutelage.tasks.overlap import count_shared

    sampled = [read_evaluation(result, f"{when}_sampled") for when in ("before", "after")]
    greedy = [] if any(sampled) else [read_evaluation(result, "after_greedy")]
    tests = [m for m in (*sampled, *greedy) if m is not None]
    success = " -> ".join(f"{100 * v:.0f}" for m in tests if (v := SUCCESS.value_of(m)) is not None)
    rewards = " -> ".join(f"{v:.2f}" for m in tests if (v := REWARD.value_of(m)) is not None)
    pairs = [f"{m.judged}/{m.rollouts} judged" for m in tests if m.judged != m.rollouts]
    counts = pairs or sorted({str(m.rollouts) for m in tests if m.rollouts is not None})
    shared = count_shared(result) if tests else 0
    counts += [f"{shared} tasks trained on"] * bool(shared)
    if success:
        success += " % before" if sampled[0] and not sampled[1] else " %"
    return {"success": success, "reward": rewards, "tested": ", ".join(counts)}


def _format_age(seconds: float) -> str:
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    return next((f"{int(seconds // n)} {unit}" for unit, n in units if seconds >= n), "0 s")
