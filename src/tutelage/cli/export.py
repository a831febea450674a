"""`tutelage export RUN --format jsonl|sft|otlp|gguf`: a run's rollouts for other programs, or its
policy for llama.cpp.

`store/export.py` makes the rows, `policy/gguf_format.py` the GGUF file. Output is written to a
temporary file and renamed, so that an interrupted export leaves no file and no other file is
overwritten.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tutelage.config.fields import Section

if TYPE_CHECKING:
    pass


class _ExportOptions(Section):
    """Options of `export`."""

    format: Literal["jsonl", "sft", "otlp", "gguf"] = "jsonl"
    """Format: whole rollouts, chat rows of successful rollouts, traces as OTLP-JSON, or the final
    policy as a GGUF file in F16."""
    successful: bool = False
    """Export only rollouts of full reward; sft always does."""
    content: bool = False
    """Include messages, arguments and results in traces."""
    out: Path | None = None
    """Output file; default: standard output."""


def export(
    run: Annotated[str, typer.Argument(help="Run folder, or the beginning of its name in runs/.")],
    options: _ExportOptions,
) -> None:
    """Write a run's rollouts as JSON lines, or its policy as GGUF."""
    from tutelage.cli.kinds import find_kind
    from tutelage.errors import ConfigError, RunError, pluralize
    from tutelage.runs.figures import read_object
    from tutelage.runs.folder import find
    from tutelage.runs.stored import open_run
    from tutelage.runs.trust import find_code
    from tutelage.store import dump_json, export_rows
    from tutelage.types import Mode

    folder, fmt, out = find(run), options.format, options.out
    if fmt == "gguf":
        if out is None:
            raise ConfigError(f"--format gguf needs an output file: --out {folder.name}.gguf")
        from tutelage.policy.gguf_format import write_gguf
        from tutelage.policy.model import load_policy

        policy = load_policy(str(folder.final_policy()))
        with _replace_file(out) as aside:
            write_gguf(policy, aside, folder.name)
        typer.echo(f"the policy, {out.stat().st_size / 1e6:.1f} MB in {out}", err=True)
        return
    evaluation = read_object(folder.config).get("kind") == "evaluation"
    # An export runs no code that a run names: without tools the record of the calls has them.
    own = fmt == "sft" and not find_code(folder)
    tools = find_kind(folder).tools(folder) if own else None if fmt == "sft" else ()
    with open_run(folder) as (store, run_id):
        rows: Iterable[dict[str, Any]] = export_rows(
            store,
            run_id,
            fmt,
            tools=tools,
            mode=None if evaluation else Mode.TRAIN,
            content=options.content,
            successful=options.successful,
        )
        lines = (dump_json(row, "exported row") for row in rows)
        count, first = 0, next(lines, None)
        if first is not None:  # without rows no file is made
            with _replace_file(out) if out else contextlib.nullcontext() as aside:
                # Half of a surrogate pair is written as JSON escapes it.
                file = aside.open("w", -1, "utf-8", "backslashreplace") if aside else sys.stdout
                for line in itertools.chain([first], lines):
                    file.write(line + "\n")
                    count += 1
                if aside:
                    file.close()
    if not count:
        which = " that succeeded with full reward" * (options.successful or fmt == "sft")
        raise RunError(
            f"nothing to export: the run {folder.name!r} has no rollout{which}. List its rollouts "
            f"with: tutelage show {folder.name}"
        )
    if out is not None:
        typer.echo(f"{pluralize(count, 'row')} in {out}", err=True)


@contextlib.contextmanager
def _replace_file(out: Path) -> Generator[Path]:
    """Yield a temporary path that is renamed to `out` at the end. Raises `RunError` if it cannot be
    written."""
    from tutelage import files
    from tutelage.errors import RunError, TutelageError

    # A device or a pipe cannot be replaced by a file, so it is written straight.
    aside = files.temporary_path(out) if out.is_file() or not out.exists() else out
    try:
        yield aside
        if aside is not out:
            with aside.open("rb") as file:
                os.fsync(file.fileno())
            files.check_overwrite(out, aside, "--out")
            os.replace(aside, out)
    except BaseException as error:
        if aside is not out:
            aside.unlink(missing_ok=True)
        # A store that cannot be read is an OSError too, and says itself what is wrong.
        if isinstance(error, OSError) and not isinstance(error, (TutelageError, BrokenPipeError)):
            raise RunError(
                f"cannot write {str(out)!r}: {error.strerror or error}. Choose another --out, or "
                "free some space."
            ) from error
        raise
