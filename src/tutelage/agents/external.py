"""`ExternalAgent`: any program as an agent, one process per rollout.

The program receives the task as JSON, on its standard input or in a file, its model by
`OPENAI_BASE_URL` and `OPENAI_API_KEY`, and its prompts in the file that `TUTELAGE_RESOURCES_FILE`
names; it writes its result to standard output. It leads a process group, which is killed completely
at the deadline and after the program has ended, so that no child process remains. Its output is
read continuously and kept in part, so endless output neither hangs nor fills the memory.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import signal
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Literal, cast

from tutelage.agents.agent import Agent, AgentFailedError
from tutelage.agents.session import RolloutSession
from tutelage.bounded import bypass_proxy_on_loopback, json_lines, parse_json, replace_surrogates
from tutelage.errors import ConfigError, EngineError
from tutelage.resources import LLM, NamedResources, PromptTemplate
from tutelage.tools.tool import Tool
from tutelage.types import Task

KEPT = 1 << 20
"""Maximum bytes kept of each output, the latest ones."""
SHOWN = 2000
"""Characters of the error output in a failure's message."""
GRACE_SECONDS = 1.0
"""Seconds for cleanup between SIGTERM and SIGKILL."""

Output = Literal["answer", "reward", "json"]


class ExternalAgent(Agent):
    """Agent that runs a command for each rollout.

    `output` is the format of its standard output: `answer`, a text for the reward function;
    `reward`, whose last line is a number or a JSON object of named ones; `json`, whose last line is
    an object with `answer`, `reward`, or both. `task` is `stdin`, or `file`, with the path in
    TUTELAGE_TASK_FILE and for `{task}` in the command. `env_map` names variables that hold a part
    of the task, as in agent-lightning: `input.question` is a field, `input.steps.0` a part of one,
    `input` the complete task, and any other value is literal text. Values other than text are JSON.
    A program may post its reward to TUTELAGE_REWARD_URL instead of printing it.
    """

    def __init__(
        self,
        command: str | Sequence[str],
        *,
        output: Output = "answer",
        task: Literal["stdin", "file"] = "stdin",
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        env_map: Mapping[str, str] | None = None,
    ) -> None:
        """Raise `ConfigError` if the program does not exist."""
        self.command = shlex.split(command) if isinstance(command, str) else [*command]
        self.output: Output = output
        self.task: Literal["stdin", "file"] = task
        self.cwd = None if cwd is None else Path(cwd)
        self.env, self.env_map = dict(env or {}), dict(env_map or {})
        _check_command(self.command, self.cwd)

    @property
    def name(self) -> str:
        """Return the program's file name."""
        words = [w for w in self.command[1:2] if not w.startswith("-")]
        return Path([self.command[0], *words][-1]).name

    def environment_refusal(self) -> str:
        """Return the reason why the agent cannot use an environment of this process."""
        return (
            "it is a program, and the environment is in this process; use a built-in agent or a "
            "function with a parameter named environment"
        )

    async def play(self, task: Task, session: RolloutSession, resources: NamedResources) -> Any:
        """Run the program and return its result. Raises `AgentFailedError` if it fails, and
        `EngineError` if it cannot be started, for example because a variable is longer than 128
        KiB."""
        try:
            with tempfile.TemporaryDirectory(prefix="tutelage-") as folder:
                path = Path(folder, "task.json")
                path.write_text(json.dumps(session.task, ensure_ascii=False), encoding="utf-8")
                given = Path(folder, "resources.json")
                # Read again in each rollout, so that a search can put others in their place.
                texts = {n: t for n, v in resources.items() if (t := resource_text(v)) is not None}
                given.write_text(json.dumps(texts), encoding="utf-8")
                words = [w.replace("{task}", str(path)) for w in self.command]
                with open(path if self.task == "stdin" else os.devnull, "rb") as stdin:
                    out = await self._execute(words, self._make_env(session, path, given), stdin)
        except (OSError, ValueError) as error:
            raise EngineError(
                f"cannot start {self.name}: {error}; a variable of env_map cannot hold NUL or more "
                "than 128 KiB"
            ) from error
        return self._read_result(out, session)

    def _make_env(self, session: RolloutSession, path: Path, prompts: Path) -> dict[str, str]:
        """Return the environment variables of the program."""
        facts = {
            "TUTELAGE_ROLLOUT_ID": session.rollout_id,
            "TUTELAGE_ATTEMPT_ID": session.attempt_id,
            "TUTELAGE_MODE": session.mode.value,
            "TUTELAGE_TASK_FILE": str(path),
            "TUTELAGE_RESOURCES_FILE": str(prompts),
        }
        if session.policy is not None:
            llm = session.resources.get(session.policy)
            if isinstance(llm, LLM) and llm.model:
                facts["OPENAI_MODEL"] = llm.model
        mapped = {name: _read_task_path(session.task, path) for name, path in self.env_map.items()}
        return {**os.environ, **self.env, **mapped, **session.env, **facts}

    async def _execute(self, argv: Sequence[str], env: Mapping[str, str], stdin: IO[bytes]) -> str:
        """Run the program and return its standard output. Raises `AgentFailedError`."""
        process = await _start_process(argv, self.cwd, env, stdin)
        out, err = bytearray(), bytearray()
        readers = [
            asyncio.create_task(_read_stream(cast("asyncio.StreamReader", stream), kept))
            for stream, kept in ((process.stdout, out), (process.stderr, err))
        ]
        try:
            code = await _wait_for_exit(process)
            # What it left behind holds its pipes open: that ends first.
            _signal_group(process.pid, signal.SIGKILL)
            await asyncio.wait(readers, timeout=GRACE_SECONDS)
        except asyncio.CancelledError:
            await asyncio.shield(_terminate(process))
            raise
        finally:
            for reader in readers:
                reader.cancel()
            _close_pipes(process)
        if code != 0:
            cause = f"exit status {code}" if code > 0 else f"signal {signal.Signals(-code).name}"
            raise AgentFailedError(f"{self.name} failed with {cause}: {_output_tail(err or out)}")
        return bytes(out).decode("utf-8", "replace")

    def _read_result(self, out: str, session: RolloutSession) -> Any:
        """Parse the result in the program's output. Raises `AgentFailedError`."""
        if self.output == "answer":
            session.answer = out.strip()
            return session.answer
        last = next((line.strip() for _, line in reversed([*json_lines(out)])), "")
        try:
            value = replace_surrogates(parse_json(last))
        except ValueError:
            posted = session.posted is not None and session.posted.final.done()
            if self.output == "reward" and posted:
                return None  # what was posted counts
            value = None
        fields = cast("dict[str, Any]", value if isinstance(value, dict) else {})
        if value is None or (self.output == "json" and not {"answer", "reward"} & {*fields}):
            number = "a number or " if self.output == "reward" else ""
            raise AgentFailedError(
                f"the last line of {self.name}'s output must be {number}a JSON object with "
                f"'answer' or 'reward', not {last!r:.200}"
            )
        if self.output == "reward":
            return value
        if fields.get("answer") is not None:
            session.answer = str(fields["answer"])
        return fields["reward"] if fields.get("reward") is not None else session.answer


def _read_task_path(task: Mapping[str, Any], path: str) -> str:
    """Return the value of a variable of `env_map`. Raises `KeyError` if the task has no field at
    this path."""
    root, *steps = path.split(".")
    if root != "input":
        return path
    value: Any = task
    for step in steps:
        try:
            value = value[int(step)] if isinstance(value, list) else value[step]
        except (KeyError, IndexError, TypeError, ValueError):
            fields = ", ".join(map(repr, task))
            raise KeyError(f"env_map needs {path!r}, but the task has only {fields}") from None
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


async def _start_process(
    argv: Sequence[str], cwd: Path | None, env: Mapping[str, str], stdin: IO[bytes]
) -> asyncio.subprocess.Process:
    """Start the program. If this is cancelled, the whole process group is killed.

    asyncio would kill only the program and wait for other processes that hold its pipes.
    """
    starting = asyncio.create_task(
        asyncio.create_subprocess_exec(
            *argv,
            stdin=stdin,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=cwd,
            env=bypass_proxy_on_loopback(dict(env)),
            start_new_session=True,
        )
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        with suppress(OSError):  # it never began
            await asyncio.shield(_terminate(await asyncio.shield(starting)))
        raise


def resource_text(value: object) -> str | None:
    """Return the text of a prompt template, a string or a tool description, or None for other
    resources."""
    if isinstance(value, PromptTemplate):
        return value.template
    if isinstance(value, Tool):
        return value.description
    return value if isinstance(value, str) else None


async def _read_stream(stream: asyncio.StreamReader, buffer: bytearray) -> None:
    """Read a stream to its end and keep its last bytes in `buffer`."""
    while piece := await stream.read(1 << 16):
        buffer += piece
        if len(buffer) > 2 * KEPT:
            del buffer[:-KEPT]


async def _wait_for_exit(process: asyncio.subprocess.Process) -> int:
    """Wait for the program and return its exit status, without waiting for its pipes, which child
    processes may keep open."""
    pause = 0.001
    while process.returncode is None:
        await asyncio.sleep(pause)
        pause = min(0.05, 2 * pause)
    return process.returncode


async def _terminate(process: asyncio.subprocess.Process) -> None:
    """Terminate the process group with SIGTERM, then with SIGKILL after a grace period, without
    waiting for pipes."""
    _signal_group(process.pid, signal.SIGTERM)
    with suppress(TimeoutError):
        await asyncio.wait_for(_wait_for_exit(process), GRACE_SECONDS)
    _signal_group(process.pid, signal.SIGKILL)
    await _wait_for_exit(process)
    _close_pipes(process)


def _close_pipes(process: asyncio.subprocess.Process) -> None:
    """Close the pipes now. asyncio closes them only after the other ends are closed."""
    cast("Any", process)._transport.close()


def _signal_group(pid: int, number: int) -> None:
    """Send a signal to a process group, if it exists."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _output_tail(output: bytearray) -> str:
    """Return the end of an output as text."""
    text = bytes(output[-4 * SHOWN :]).decode("utf-8", "replace").strip()
    return text[-SHOWN:] or "no output"


def _check_command(command: Sequence[str], cwd: Path | None) -> None:
    """Raise `ConfigError` if the program or its folder does not exist."""
    if not command:
        raise ConfigError("an ExternalAgent needs a command, such as ['python', 'agent.py']")
    if cwd is not None and not cwd.is_dir():
        raise ConfigError(f"the agent's folder {str(cwd)!r} does not exist")
    program = command[0]
    if not (shutil.which(program) or (os.sep in program and Path(cwd or "", program).exists())):
        raise ConfigError(f"the agent's program {program!r} was not found; pass its full path")
