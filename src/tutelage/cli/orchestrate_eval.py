"""`tutelage orchestrate eval`: how well a trained planner plans a set of workflows.

The same tables as at the end of a training, on any file of workflows. The baselines that copy need
the training set: with `--train` they stand in the table too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tutelage.cli.orchestrate_parts import CatalogFile, Seed


def evaluate(
    test: Annotated[Path, typer.Option(metavar="FILE", help="Workflows to plan.")],
    checkpoint: Annotated[
        Path, typer.Option(metavar="PATH", help="The planner: a run folder or a checkpoint.")
    ],
    catalog: CatalogFile = None,
    train: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What it learned from, for the baselines.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write its plans there, one a line.")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="The scores as JSON.")] = False,
    seed: Seed = 0,
) -> None:
    """Score a trained planner on a set of workflows."""
    from tutelage.cli.console import output as console_output
    from tutelage.cli.console import say, show_table, waiting
    from tutelage.files import write_new
    from tutelage.orchestration.data.formats import read_workflows
    from tutelage.orchestration.evaluation.tables import planning_tables
    from tutelage.orchestration.plan.catalog import read_catalog
    from tutelage.seeds import SeedTree

    with waiting("planning ..."):
        from tutelage.orchestration.evaluation.results import evaluate as score
        from tutelage.orchestration.evaluation.results import prediction_rows
        from tutelage.orchestration.planner.saving import load_planner

        model = load_planner(checkpoint)
        known = None if catalog is None else read_catalog(catalog)
        if known is not None:
            model.use_catalog(known)
        gold = read_workflows(test, known or model.catalog)
        learned = [] if train is None else read_workflows(train, known or model.catalog)
        result, planned = score(model, learned, gold, SeedTree(seed).child("planner", "bootstrap"))
    if output is not None:
        rows = prediction_rows(planned, gold, model)
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        write_new({output: text}, "--output")
    console = console_output()
    if json_output:
        say(console, json.dumps(result))
        return
    for table in planning_tables(result):
        show_table(console, table)
