"""The `tutelage` command: which verbs there are, and how the process begins and ends.

The app is built by a function, so that importing this package has no effect. Help and usage errors
are typer's own, in plain text; a mistyped verb or option is answered with the nearest one. What a
verb raises is worded in `failures.py`.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand
from typer.main import get_command

from tutelage.cli import prompts
from tutelage.cli.ask import ask
from tutelage.cli.compare import compare
from tutelage.cli.config import config
from tutelage.cli.doctor import doctor
from tutelage.cli.eval import evaluate
from tutelage.cli.export import export
from tutelage.cli.failures import reported
from tutelage.cli.index import index
from tutelage.cli.orchestrate import orchestrate_app
from tutelage.cli.planner import RECIPE, train_planner
from tutelage.cli.resume import resume
from tutelage.cli.runs import runs
from tutelage.cli.serve import serve
from tutelage.cli.show import show
from tutelage.cli.train import train
from tutelage.cli.validate import validate
from tutelage.runs.signals import exit_code, listen

_HELP_WIDTH = 100


class KeyedCommand(TyperCommand):
    """A verb that takes KEY=VALUE: an option that is really a key is answered with its spelling."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """The context of the recipe's own command where it has one (`train planner`)."""
        if info_name == "train" and args[:1] == [RECIPE]:
            own = typer.Typer(
                add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
            )
            own.command(cls=TyperCommand)(reported(train_planner))
            return get_command(own).make_context(f"train {RECIPE}", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments; a usage error passes with the key named."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            # Typer carries a copy of click whose classes are private, so the error is known by
            # the field that only "no such option" has.
            key = _as_key(getattr(error, "possibilities", ()), getattr(error, "option_name", None))
            if key is not None:
                vars(error)["possibilities"] = None
                vars(error)["message"] = f"{vars(error)['message']}. As a key: {key}=VALUE"
            raise


def build_app() -> typer.Typer:
    """The command with all its verbs."""
    app = typer.Typer(
        name="tutelage",
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        invoke_without_command=True,
        context_settings={
            "help_option_names": ["-h", "--help"],
            "max_content_width": _HELP_WIDTH,
        },
    )
    app.callback()(_root)
    app.command("train", cls=KeyedCommand)(reported(train))
    app.command("resume")(reported(resume))
    app.command("eval")(reported(evaluate))
    app.command("ask")(reported(ask))
    app.command("serve")(reported(serve))
    app.command("runs")(reported(runs))
    app.command("show")(reported(show))
    app.command("compare")(reported(compare))
    app.command("export")(reported(export))
    app.command("index")(reported(index))
    app.command("validate")(reported(validate))
    app.command("config")(reported(config))
    app.command("doctor")(reported(doctor))
    app.add_typer(_prompts(), name="prompts")
    app.add_typer(orchestrate_app(), name="orchestrate")
    return app


def _prompts() -> typer.Typer:
    """The verbs of prompt searches."""
    group = typer.Typer(help="Look into a prompt search.", no_args_is_help=True)
    group.command("tree")(reported(prompts.tree))
    group.command("diff")(reported(prompts.diff))
    group.command("confirm")(reported(prompts.confirm))
    group.command("export")(reported(prompts.export))
    return group


def main() -> None:
    """Run the command of this process; never returns. SIGTERM and SIGHUP are heard as Ctrl-C is."""
    listen()
    try:
        get_command(build_app())(prog_name="tutelage")
    except KeyboardInterrupt as stopped:  # before a verb began, or after it ended
        raise SystemExit(exit_code(stopped)) from None


def _root(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Train any LLM agent, its prompt, its weights or its orchestration, from the rewards it earns.

    Start with: tutelage train math
    """
    if version:
        from tutelage import __version__

        typer.echo(__version__)
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())
        raise typer.Exit


def _as_key(possible: Any, option: str | None) -> str | None:
    """The key that someone meant who wrote `--lr`; None when an option is more likely."""
    if option is None:
        return None
    from tutelage.config.aliases import all_spellings, nearest

    name = option.lstrip("-").replace("-", "_")
    if name in all_spellings():
        return name
    return None if possible else nearest(name)
