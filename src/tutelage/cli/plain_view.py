"""Default view of a run, for kinds of run without a specific view."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from tutelage.runs.folder import RunFolder


def resume(folder: RunFolder, allow_changes: bool) -> None:
    """Resume a run and show its result."""
    from tutelage.cli.console import output
    from tutelage.cli.job import run_with_display
    from tutelage.cli.kinds import find_kind, find_view
    from tutelage.runs import lifecycle

    kind = find_kind(folder)
    run_with_display(
        folder, lambda display: lifecycle.resume(kind, folder, display, allow_changes=allow_changes)
    )
    find_view(folder).show(output(), folder)


def show(console: Console, folder: RunFolder) -> None:
    """Print the kind and configuration of a run, and its result or its latest metrics."""
    from tutelage.cli.console import echo, echo_pairs, shorten
    from tutelage.cli.runs import print_state, read_last_lines
    from tutelage.runs.figures import read_object
    from tutelage.runs.kinds import kind_name

    echo(console, ("Run ", "bold"), (folder.name, "bold"))
    fields = {"kind": kind_name(folder)}
    fields |= {f"set {k}": v for k, v in read_object(folder.config).items() if k != "kind"}
    echo_pairs(console, [(name, shorten(value, 100)) for name, value in fields.items()], indent=2)
    result = folder.read_result()
    if result is None:
        for row in read_last_lines(folder.metrics)[-1:]:
            echo_pairs(console, [(k, shorten(v, 100)) for k, v in row.items()], indent=2)
        print_state(console, folder)
        return
    echo(console)
    echo_pairs(console, [(name, shorten(value, 100)) for name, value in result.items()])
