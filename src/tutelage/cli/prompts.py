"""`tutelage prompts tree|diff|confirm|export`: inspect a prompt search, or test it again.

All verbs read the run folder; only `confirm` plays rollouts. A candidate is named by the beginning
of its id, or as `seed` or `best`. `prompt_train.py` runs searches.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tutelage.cli.failures import PLAIN_TEXT
from tutelage.cli.options import Trust, as_command
from tutelage.errors import RunError

if TYPE_CHECKING:
    from tutelage.runs.folder import RunFolder
    from tutelage.types import JSON

Run = Annotated[str, typer.Argument(help="Run folder, or the beginning of its name in runs/.")]


def prompts_app() -> typer.Typer:
    """Return the command group `prompts` with its subcommands."""
    group = typer.Typer(help="Inspect a prompt search.", no_args_is_help=True, **PLAIN_TEXT)
    for verb in (_tree, _diff, _confirm, _export):
        group.command(verb.__name__.removeprefix("_"))(as_command(verb))
    return group


def _tree(
    run: Run,
    rejected: Annotated[
        bool, typer.Option("--all", help="Candidates that were rejected or dropped, too.")
    ] = False,
) -> None:
    """Show the candidates of a search as a tree of edits."""
    from rich.tree import Tree

    from tutelage.cli.console import echo_text, output
    from tutelage.cli.prompt_view import EXPERIMENT
    from tutelage.errors import pluralize
    from tutelage.prompts.lineage import read_lineage

    entries = read_lineage(_find_search(run))
    below: dict[str, list[JSON]] = {}
    for entry in entries:
        below.setdefault(next(iter(entry["parents"]), ""), []).append(entry)

    def is_visible(entry: JSON) -> bool:
        if entry["decision"] == EXPERIMENT:
            return False
        visible = rejected or entry["decision"] not in _HIDDEN
        return visible or any(map(is_visible, below.get(entry["id"], ())))

    def add_children(branch: Tree, entry: JSON) -> None:
        for child in filter(is_visible, below.get(entry["id"], ())):
            add_children(branch.add(_format_candidate(child)), child)

    console = output()
    for entry in below.get("", ()):
        root = Tree(_format_candidate(entry))
        add_children(root, entry)
        console.print(root)
    hidden = sum(e["decision"] in _HIDDEN for e in entries)
    if hidden and not rejected:
        message = f"{pluralize(hidden, 'candidate')} rejected, dropped or pooled: use --all"
        echo_text(console, message, "dim")


def _diff(
    run: Run,
    one: Annotated[str, typer.Argument(metavar="A", help="A candidate: id, seed or best.")] = (
        "seed"
    ),
    two: Annotated[str, typer.Argument(metavar="B", help="Another one.")] = "best",
) -> None:
    """Show how the texts of two candidates differ."""
    import difflib

    from tutelage.cli.console import echo, escape, output
    from tutelage.prompts.lineage import find_candidate, read_lineage

    entries = read_lineage(_find_search(run))
    a, b = find_candidate(entries, one), find_candidate(entries, two)
    console = output()
    styles = {"+": "green", "-": "red", "@": "cyan"}
    lines: list[str] = []
    for name, text in b["components"].items():
        old, new = a["components"].get(name, "").splitlines(), text.splitlines()
        left, right = f"{name} {a['id'][5:15]}", f"{name} {b['id'][5:15]}"
        lines += difflib.unified_diff(old, new, left, right, lineterm="")
    for line in lines or ["The two have the same texts."]:
        echo(console, (escape(line), styles.get(line[:1], "")))


def _confirm(
    run: Run,
    test: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Fresh test tasks; generated ones need none."),
    ] = None,
    trust: Trust = False,
) -> None:
    """Compare the seed and the best prompt on new held-out tasks."""
    from tutelage.cli.console import messages, output, show_status
    from tutelage.cli.prompt_train import show_holdout_test
    from tutelage.cli.prompt_view import PromptDisplay
    from tutelage.prompts.holdout_test import Verdict
    from tutelage.prompts.run import confirm
    from tutelage.runs.trust import check_trusted, find_code

    folder = _find_search(run)
    check_trusted(folder, find_code(folder), trust=trust)
    display = PromptDisplay(messages())
    with show_status("playing fresh tasks ..."):
        fields = confirm(folder, display, test or ())
    show_holdout_test(output(), fields)
    if code := Verdict(fields["verdict"]).exit_code:
        raise typer.Exit(code)


def _export(
    run: Run,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write here, one file a component; else print it."),
    ] = None,
    candidate: Annotated[
        str, typer.Option(metavar="ID", help="Another candidate than the best one.")
    ] = "best",
) -> None:
    """Print the best prompt, or write its components to files."""
    import json

    from tutelage.cli.console import echo, messages
    from tutelage.errors import pluralize
    from tutelage.files import write_files
    from tutelage.prompts.lineage import find_candidate, read_lineage

    folder = _find_search(run)
    components: dict[str, str] = find_candidate(read_lineage(folder), candidate)["components"]
    whole = json.dumps(components, ensure_ascii=False, indent=2)
    if out is None:
        typer.echo(next(iter(components.values())) if len(components) == 1 else whole)
        return
    texts = {out / f"{name.replace('/', '_')}.txt": text for name, text in components.items()}
    write_files(texts | {out / "components.json": whole + "\n"}, "--out")
    echo(messages(), f"{pluralize(len(components), 'component')} written to {out}")


def _find_search(run: str) -> RunFolder:
    from tutelage.prompts.config import KIND
    from tutelage.runs.folder import find
    from tutelage.runs.kinds import kind_name

    folder = find(run)
    if kind_name(folder) != KIND:
        raise RunError(
            f"the run {folder.name!r} trained weights and has no prompts; start a search with: "
            "tutelage train math --algorithm screen"
        )
    return folder


_HIDDEN = ("rejected", "dropped", "pooled", "proposed", "infra_error")
"""Decisions whose candidates are shown only with --all."""


def _format_candidate(entry: JSON) -> Any:
    from rich.text import Text

    from tutelage.cli.console import shorten
    from tutelage.prompts.lineage import format_scores

    decision, scores = entry["decision"], format_scores(entry)
    style = {"winner": "bold green", "accepted": "green"}.get(decision, "dim")
    score = f"  {scores}  " if scores else "  "
    reason = f"{decision}: {shorten(entry['reason'], 70)}"
    return Text.assemble(
        (f"{entry['id'][5:15]}  {entry['operation']}", "bold"), score, (reason, style)
    )
