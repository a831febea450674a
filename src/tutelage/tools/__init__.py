"""Tools: functions that a model can call, and how its calls are run.

Read `tool.py` for the decorator, `schema.py` for how a signature becomes a JSON schema,
`execute.py` for how calls become observations, `builtin.py` for the tools of the embedded job.
`expression.py` is the arithmetic that calculator and graders share. Rewards come next:
`tutelage.rewards`.
"""

from tutelage.tools.execute import execute_tool_calls
from tutelage.tools.registry import resolve_tools
from tutelage.tools.tool import Tool, ToolError, tool

__all__ = ["Tool", "ToolError", "execute_tool_calls", "resolve_tools", "tool"]
