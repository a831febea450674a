"""`python_executor`: Python code, run in a sandbox that lives as long as the rollout.

State is kept from call to call; each rollout has an interpreter and a folder of its own, started
when code first runs. What a sandbox keeps out is in `sandbox/`; how the rollout's end closes it is
in `environments.py`.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial

from tutelage.tools.options import ToolOptions
from tutelage.tools.sandbox import Sandbox, SandboxError, usable_tier
from tutelage.tools.tool import Tool, ToolEnvironment, ToolError, ToolTimeoutError, tool

TIMEOUT = 60.0
"""Seconds of a call: turns of parallel calls and the start of the interpreter are in it."""
NOTHING = "(no output)"

logger = logging.getLogger(__name__)


class _PythonEnvironment(Sandbox):
    """A rollout's sandbox, with the tool that runs code in it."""

    @tool("python_executor", timeout=TIMEOUT)
    async def execute(self, code: str) -> str:
        """Run Python code and see what it prints, and the value of its last line.

        Variables are kept between calls.

        Args:
            code: The code.
        """
        try:
            done = await self.run(code)
        except SandboxError as error:
            raise ToolError(f"no interpreter could be started: {error}") from error
        if done.error == "timeout":
            raise ToolTimeoutError(done.output.removeprefix("Error: ").strip())
        if done.error == "died":
            raise ToolError(done.output.removeprefix("Error: ").strip())
        if done.error is not None:
            raise ToolError(f"{done.error}\n{done.output}".strip())
        return done.output or NOTHING


def python_executor(options: ToolOptions) -> Tool:
    """The tool. Raises `ConfigError` where no sandbox works and none was not allowed."""
    tier = usable_tier(allow_unsandboxed=options.allow_unsandboxed)
    if tier == "none":
        logger.warning(
            "python_executor runs model-written code WITHOUT a sandbox (tools.allow_unsandboxed)"
        )
    environment = partial(ToolEnvironment, "python", lambda task: _PythonEnvironment(tier=tier))
    return replace(_PythonEnvironment.execute, environment=environment)
