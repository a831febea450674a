"""Runs `tutelage` in processes of its own, fast enough to do it a hundred times.

A process that imports torch takes seconds to start, so most tests fork theirs from a server (of the
standard library) that has imported everything the command needs and compiled its templates. From
there on it is the command as it is installed: its own arguments, streams, signals, limits and exit
code; only that it waits for no disk, since what is killed here is a process and not the machine.
`Script` starts the installed console script instead; a few tests use it to show that both agree.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from tutelage.cli import build_app

PATIENCE = 240.0
"""Seconds that a process may take on a busy machine before a test gives up."""

PRELOADED = (
    "tutelage.cli",
    "tutelage.weights.jobs",
    "tutelage.weights.training",
    "tutelage.evaluate.kind",
    "tutelage.evaluate.targets",
    "tutelage.cli.display",
    "tutelage.cli.outcome",
    "tutelage.cli.rollout_view",
    "tutelage.cli.export",
    "tutelage.store",
    "hydra.core.override_parser.overrides_parser",
    "transformers.models.auto.modeling_auto",
    "transformers.models.qwen2.modeling_qwen2",
    "transformers.models.qwen2.tokenization_qwen2",
    "transformers.models.qwen3.modeling_qwen3",
    "transformers.models.llama.modeling_llama",
    "tutelage.cli.job",
    "tutelage.policy.tokenizer",
    "tutelage.runs.report.view",
    "tutelage.runs.report.page",
    "matplotlib.backends.backend_svg",
    "rich.progress",
    "tutelage.cli.train",
    "tutelage.cli.resume",
    "tutelage.store.sqlite",
    "tutelage.agents.tool_calling",
    "tutelage.rewards.builtin",
    "tutelage.algorithms.rl.advantages.grpo",
    "tutelage.algorithms.rl.losses.vanilla",
)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended: exit code (negative: the signal that killed it) and its output."""

    code: int
    out: str
    err: str

    def check(self, code: int = 0) -> Ended:
        """This, when the exit code is the expected one and no bug was reported."""
        told = f"exit code {self.code}, not {code}\n{self.out}\n{self.err}"
        assert self.code == code, told
        if code != 1:
            assert "Traceback" not in self.err, told
        return self


@dataclass(slots=True)
class Running:
    """A process at work."""

    process: Any
    out: Path
    err: Path

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        code = self.process.poll() if hasattr(self.process, "poll") else self.process.exitcode
        return code is None

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self.alive:
            self.process.kill()
        self.end()

    def until(self, ready: Callable[[], bool], *, pause: float = 0.002) -> bool:
        """Wait for `ready()`; False when the process ended before."""
        limit = time.monotonic() + PATIENCE
        while self.alive:
            if ready():
                return True
            assert time.monotonic() < limit, f"never ready\n{self.err.read_text()}"
            time.sleep(pause)
        return ready()

    def says(self, text: str) -> bool:
        """Whether the error stream, where progress goes, holds `text`."""
        return text in self.err.read_text(errors="replace")

    def end(self) -> Ended:
        """Wait for its end."""
        if hasattr(self.process, "poll"):
            code = self.process.wait(PATIENCE)
        else:
            self.process.join(PATIENCE)
            code = self.process.exitcode
            if code is None:
                self.process.kill()
                raise AssertionError(f"it did not end\n{self.err.read_text()}")
        return Ended(code, self.out.read_text(), self.err.read_text(errors="replace"))


@dataclass(slots=True)
class Command:
    """`command("train", "math", ...)` in a folder; `start` does not wait for the end."""

    cwd: Path
    real: bool = False
    """Start the installed script, not a fork."""
    _count: int = field(default=0)

    def __call__(self, *args: str, **options: Any) -> Ended:
        return self.start(*args, **options).end()

    def here(self, *args: str) -> Ended:
        """The same in this process, for what ends before a run begins: no fork, no imports."""
        with contextlib.chdir(self.cwd):
            done = CliRunner().invoke(build_app(), args, prog_name="tutelage")
        return Ended(done.exit_code, done.stdout, done.stderr)

    def start(
        self, *args: str, out: str | None = None, max_file: int | None = None, **env: str
    ) -> Running:
        """Begin. `out` is a file for stdout, `max_file` a limit to every file's size in bytes."""
        self._count += 1
        streams = [self.cwd / f".{self._count}.{name}" for name in ("out", "err")]
        for stream in streams:
            stream.touch()
        stdout = Path(out) if out is not None else streams[0]
        places = {name: value for name, value in os.environ.items() if name.startswith("XDG_")}
        job = _Job(args, str(self.cwd), str(stdout), str(streams[1]), max_file, places | env)
        process = _script(job) if self.real else _fork(job)
        return Running(process, *streams)


@dataclass(frozen=True, slots=True)
class _Job:
    args: tuple[str, ...]
    cwd: str
    out: str
    err: str
    max_file: int | None
    env: dict[str, str]


def _limit(job: _Job) -> None:
    if job.max_file is not None:
        # Python ignores SIGXFSZ, so that a write beyond the limit fails as on a full disk.
        resource.setrlimit(resource.RLIMIT_FSIZE, (job.max_file, job.max_file))


def _script(job: _Job) -> subprocess.Popen[bytes]:
    script = Path(sys.executable).parent / "tutelage"
    with open(job.out, "ab") as out, open(job.err, "ab") as err:
        return subprocess.Popen(
            [str(script), *job.args],
            cwd=job.cwd,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=os.environ | job.env,
            preexec_fn=lambda: _limit(job),
        )


def _fork(job: _Job) -> Any:
    context = multiprocessing.get_context("forkserver")
    prepared = f"{__package__}.prepared"
    context.set_forkserver_preload([*PRELOADED, __name__, prepared])
    process = context.Process(target=_main, args=(job,), daemon=True)
    process.start()
    return process


def _main(job: _Job) -> None:
    """The life of a forked process."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(job.cwd)
    os.environ.update(job.env)
    for number, path in ((1, job.out), (2, job.err)):
        opened = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False, errors="backslashreplace")
    sys.argv = ["tutelage", *job.args]
    _limit(job)
    os.fsync = lambda _: None  # pyright: ignore
    from tutelage.cli import main

    main()
