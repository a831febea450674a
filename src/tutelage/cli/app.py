"""Entry point of the `tutelage` command, with the list of its subcommands ("verbs").

The app is built by a function, so that importing this package has no effect. The module of a
subcommand is imported when the subcommand is called, so that help is quick. Help and usage errors
are those of typer, in plain text, with the closest match for a mistyped subcommand or option.
`failures.py` formats errors, `options.py` creates options.
"""

from __future__ import annotations

import atexit
import importlib
import io
import os
import re
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache, partial
from multiprocessing import active_children
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from tutelage.bounded import bypass_proxy_on_loopback
from tutelage.cli.failures import PLAIN_TEXT
from tutelage.errors import ConfigError
from tutelage.platforms import check_platform
from tutelage.runs.signals import ENDING, end_processes, exit_code, handle_signals

_HELP_WIDTH = 100
VERBS: Mapping[str, str] = {
    "init": "Write an agent, its tasks and its settings, ready to train.",
    "train": "Train weights, search for a better prompt, or train a planner.",
    "resume": "Resume a run that was stopped or killed.",
    "eval": "Evaluate agents, servers, runs or models on tasks.",
    "ask": "Ask an agent a question and show its turns.",
    "serve": "Serve a model to any client of OpenAI or Anthropic.",
    "runs": "List the runs, newest first.",
    "rm": "Delete a run's folder and everything in it.",
    "show": "Show what a run did, or one rollout turn by turn.",
    "compare": "Compare runs: gains on held-out tasks, and cost.",
    "export": "Write a run's rollouts as JSON lines, or its policy as GGUF.",
    "index": "Build a search index over local files.",
    "validate": "Test a reward on right, empty, constant and hacked answers.",
    "config": "List the keys of a run, with each recipe's values.",
    "doctor": "Check the hardware and the installed packages.",
    "prompts": "Inspect a prompt search.",
    "orchestrate": "Plan an instruction as a graph of subtasks, and run it.",
}
"""Help text of each verb or group of verbs; the module of a verb has the verb's name."""
_FUNCTIONS = {"eval": "evaluate", "prompts": "prompts_app", "orchestrate": "orchestrate_app"}
"""Function of a verb, where its name differs from the verb's."""


class _TrainCommand(TyperCommand):
    """Command with KEY=VALUE arguments; the error for an unknown option suggests KEY=VALUE."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """Return the context of the command; `train planner` has a separate command."""
        if info_name == "train" and args[:1] == ["planner"]:
            own = load_command("planner:train_planner")
            return own.make_context("train planner", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; the usage error for an unknown option names the closest key."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            # Typer's classes are private; only "no such option" has the field `option_name`.
            if (option := getattr(error, "option_name", None)) is not None:
                from tutelage.config.aliases import all_spellings, find_nearest

                key, matches = (
                    option.lstrip("-").replace("-", "_"),
                    getattr(error, "possibilities", ()),
                )
                if key not in all_spellings():  # an option is more likely where one is near
                    key = None if matches else find_nearest(key)
                if key is not None:
                    message = f"{vars(error)['message']}. Did you mean {key}=VALUE?"
                    vars(error).update(possibilities=None, message=message)
            raise


class _LazyGroup(TyperGroup):
    """Command group that imports the module of a subcommand only when it is called."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        vars(self)["commands"] = dict.fromkeys(VERBS)  # names; `get_command` loads one

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import and return a subcommand; None for an unknown name."""
        if cmd_name not in VERBS:
            return None
        kind = _TrainCommand if cmd_name == "train" else TyperCommand
        return load_command(f"{cmd_name}:{_FUNCTIONS.get(cmd_name, cmd_name)}", kind)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the subcommands with their help texts."""
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@cache
def load_command(target: str, command_class: type[TyperCommand] = TyperCommand) -> Any:
    """Return the command, or the group of commands, defined at `module:function`."""
    from tutelage.cli.options import as_command

    module, _, name = target.partition(":")
    verb = getattr(importlib.import_module(f"tutelage.cli.{module}"), name)
    if name.endswith("_app"):
        return get_command(verb())
    app = typer.Typer(**PLAIN_TEXT)
    app.command(cls=command_class)(as_command(verb))
    return get_command(app)


def build_app() -> typer.Typer:
    """Return the `tutelage` application with all subcommands."""
    app = typer.Typer(
        name="tutelage",
        cls=_LazyGroup,
        invoke_without_command=True,
        context_settings={
            "help_option_names": ["-h", "--help"],
            "max_content_width": _HELP_WIDTH,
            "token_normalize_func": partial(re.sub, "_", "-"),
        },
        **PLAIN_TEXT,
    )
    app.callback()(_main_callback)
    return app


def main() -> None:
    """Run the command line and exit. SIGTERM and SIGHUP are handled like Ctrl-C. Child processes
    that agents left running are killed, because Python would wait for `multiprocessing` children,
    and a reader of the output would wait for every child."""
    handle_signals()
    process = os.getpid()
    # A fork of an agent comes here too at its end, and knows the children of its parent.
    atexit.register(lambda: end_processes([os.getpid()], signal.SIGTERM))
    bypass_proxy_on_loopback(os.environ)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")  # what a terminal cannot show ends nothing
    try:
        check_platform()
    except ConfigError as error:
        raise SystemExit(f"Error: {error}") from None
    code: Any = 0
    try:
        get_command(build_app())(prog_name="tutelage")
    except SystemExit as ended:
        code = ended.code
    except KeyboardInterrupt as stopped:  # before a verb began, or after it ended
        code = exit_code(stopped)
    finally:
        pids = [c.pid for c in active_children() if c.pid and not c.daemon]
        end_processes(pids if os.getpid() == process else [], signal.SIGKILL)
    if code in [128 + number for number in (signal.SIGINT, *ENDING)]:
        # Threads may be sampling: Python would end them in the midst of C++, which aborts.
        vars(atexit)["_run_exitfuncs"]()
        with suppress(OSError):
            sys.stdout.flush()
        os._exit(code)
    raise SystemExit(code)


def _main_callback(
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
