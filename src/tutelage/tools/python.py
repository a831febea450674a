"""`python_executor`: Python code, run in a sandbox that lives as long as the rollout.

State is kept between calls; each rollout has its own interpreter and folder, created when code
first runs. See `sandbox/` for the isolation, and `environments/lifecycle.py` for closing it
at the end of the rollout.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from tutelage.tools.options import ToolOptions
from tutelage.tools.sandbox import Sandbox, SandboxError, usable_tier
from tutelage.tools.tool import Tool, ToolClass, ToolError, ToolTimeoutError, tool

TIMEOUT = 60.0
"""Time limit of a call in seconds, with interpreter start and waiting for parallel calls."""
NOTHING = "(no output)"

logger = logging.getLogger(__name__)


class _PythonEnvironment(Sandbox):
    """Sandbox of a rollout, with a tool that runs code."""

    @tool("python_executor", timeout=TIMEOUT)
    async def execute(self, code: str) -> str:
        """Run Python code and see what it prints, and the value of its last line.

        Variables are kept between calls.

        Args:
            code: The code.
        """
        try:
            result = await self.run(code)
        except SandboxError as error:
            raise ToolError(f"no interpreter could be started: {error}") from error
        if result.error == "timeout":
            raise ToolTimeoutError(result.output.removeprefix("Error: ").strip())
        if result.error == "died":
            raise ToolError(result.output.removeprefix("Error: ").strip())
        if result.error is not None:
            raise ToolError(f"{result.error}\n{result.output}".strip())
        return result.output or NOTHING


def python_executor(options: ToolOptions) -> Tool:
    """Create the tool `python_executor`.

    Raises `ConfigError` if no sandbox works and `allow_unsandboxed` is off.
    """
    tier = usable_tier(allow_unsandboxed=options.allow_unsandboxed)
    if tier == "none":
        logger.warning(
            "python_executor runs model-written code WITHOUT a sandbox (tools.allow_unsandboxed)"
        )
    environment = ToolClass("python", lambda task: _PythonEnvironment(tier=tier))
    return replace(_PythonEnvironment.execute, environment=environment)
