"""Tools: functions that a model can call, and the code that runs the calls.

Read `tool.py` for the decorator, `schema.py` for how a signature becomes a JSON schema,
`execute.py` for how calls become observations, `builtin.py` for tools without dependencies,
`python.py` and `search.py` for tools that need a sandbox, a corpus or a key, `sandbox/` for the
isolation of model-written code. `expression.py` is the arithmetic that the calculator and the
graders share. See also `tutelage.rewards`; the state of a rollout is in `tutelage.environments`.
"""

from tutelage.tools.execute import execute_tool_calls
from tutelage.tools.options import ToolOptions
from tutelage.tools.registry import resolve_tools
from tutelage.tools.tool import Tool, ToolClass, ToolError, environment_tools, tool

__all__ = [
    "Tool",
    "ToolClass",
    "ToolError",
    "ToolOptions",
    "environment_tools",
    "execute_tool_calls",
    "resolve_tools",
    "tool",
]
