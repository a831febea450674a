"""A calculator as an MCP server: `python calculator_server.py`, on standard input.

The same arithmetic as the built-in tool `calculator`, with the same name and description, behind
the Model Context Protocol.
"""

from __future__ import annotations

from typing import Annotated

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import Field

from tutelage.tools.expression import ExpressionError, evaluate, format_number

_Expression = Annotated[
    str, Field(description="Numbers with + - * / // % ** and parentheses, such as 17 * 23 + 5.")
]


# A wrong expression is the model's business, nothing to log.
server = MCPServer("tutelage-calculator", log_level="ERROR")
"""For `mcp:FILE.py:server`, which needs no process of its own."""


@server.tool(
    "calculator",
    description="Evaluate an arithmetic expression.",
    annotations=ToolAnnotations(read_only_hint=True),
    structured_output=False,
)
def _calculate(expression: _Expression) -> str:  # pyright: ignore[reportUnusedFunction]
    try:
        return format_number(evaluate(expression))
    except ExpressionError as error:
        raise ToolError(str(error)) from error


if __name__ == "__main__":
    server.run()
