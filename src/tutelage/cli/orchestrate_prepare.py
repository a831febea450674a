"""`tutelage orchestrate prepare`: make a training set of execution logs.

Only executions that succeeded become examples, with the cheapest workers that were seen to succeed.
The file is what `tutelage train planner --train` reads; the catalog that its numbers refer to is
written beside it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tutelage.cli.orchestrate_parts import CatalogFile


def prepare(
    logs: Annotated[
        list[Path], typer.Option(metavar="PATH", help="Logs, or folders of them; may be repeated.")
    ],
    output: Annotated[Path, typer.Option(metavar="FILE", help="The training set to write.")] = Path(
        "training_data.json"
    ),
    catalog: CatalogFile = None,
) -> None:
    """Make a training set of what succeeded in execution logs."""
    from tutelage.cli.console import counted, facts, number, shown_path
    from tutelage.cli.console import output as console_output
    from tutelage.files import write_new
    from tutelage.orchestration.data.prepare import prepare as prepare_logs
    from tutelage.orchestration.data.synthetic import builtin_graph
    from tutelage.orchestration.data.workflows import catalog_of, to_row
    from tutelage.orchestration.plan.catalog import read_catalog

    known = None if catalog is None else read_catalog(catalog)
    made = prepare_logs(list(logs), known)
    used = {tool for workflow in made.workflows for tool in workflow.tools}
    if known is None:
        own = builtin_graph().catalog
        known = own if used <= set(own.names) else catalog_of(made.workflows)
    rows = [to_row(workflow, known) for workflow in made.workflows]
    tools = output.with_name(f"{output.stem}.catalog.json")
    listed = [
        {"name": t.name, "description": t.description, "inputs": t.inputs, "outputs": t.outputs}
        for t in known.tools
    ]
    made_files = {output: rows, tools: listed}
    write_new(
        {p: json.dumps(v, indent=1, ensure_ascii=False) + "\n" for p, v in made_files.items()},
        "--output",
    )
    facts(
        console_output(),
        [
            ("executions", f"{number(made.executions)}, {number(made.failed)} of them failed"),
            ("examples", f"{number(len(rows))}, one an instruction, the cheapest that succeeded"),
            (
                "cheaper",
                f"{counted(made.cheaper, 'subtask')} with a cheaper worker that also succeeded",
            ),
            ("written", shown_path(output)),
            ("catalog", shown_path(tools)),
            ("next", f"tutelage train planner --phase 1 --train {output} --catalog {tools}"),
        ],
    )
