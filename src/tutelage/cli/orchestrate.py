"""`tutelage orchestrate`: the verbs of orchestration, one file each; this one joins them.

`plan` draws a plan, `run` executes an instruction, `collect` many, `prepare` makes training data of
their logs, `eval` scores a planner, `audit` looks at what a reward wants. What several of
them read from options (workers, pools, routers, planners) is in `orchestrate_parts.py`.
"""

from __future__ import annotations

import typer

from tutelage.cli.failures import PLAIN
from tutelage.cli.options import as_command
from tutelage.cli.orchestrate_audit import audit
from tutelage.cli.orchestrate_collect import collect
from tutelage.cli.orchestrate_eval import evaluate
from tutelage.cli.orchestrate_plan import plan
from tutelage.cli.orchestrate_prepare import prepare
from tutelage.cli.orchestrate_run import run


def orchestrate_app() -> typer.Typer:
    """The group with its verbs."""
    group = typer.Typer(
        help="Plan an instruction as a graph of subtasks, choose workers, and run it.",
        no_args_is_help=True,
        **PLAIN,
    )
    group.command("plan")(as_command(plan))
    group.command("run")(as_command(run, "instruction"))
    group.command("collect")(as_command(collect))
    group.command("prepare")(as_command(prepare))
    group.command("eval")(as_command(evaluate))
    group.command("audit")(as_command(audit))
    return group
