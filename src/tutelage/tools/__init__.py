"""Tools: functions that a model can call, and how its calls are run.

Read `tool.py` for the decorator, `schema.py` for how a signature becomes a JSON schema,
`execute.py` for how calls become observations, `environments.py` for state of a rollout,
`builtin.py` for tools that need nothing, `python.py` and `search.py` for those that do, `sandbox/`
for where model-written code runs. `expression.py` is the arithmetic that calculator and graders
share. Rewards come next: `tutelage.rewards`.
"""

from tutelage.tools.environments import rollout_environments
from tutelage.tools.execute import execute_tool_calls
from tutelage.tools.options import ToolOptions
from tutelage.tools.registry import resolve_tools
from tutelage.tools.tool import Tool, ToolEnvironment, ToolError, tool

__all__ = [
    "Tool",
    "ToolEnvironment",
    "ToolError",
    "ToolOptions",
    "execute_tool_calls",
    "resolve_tools",
    "rollout_environments",
    "tool",
]
