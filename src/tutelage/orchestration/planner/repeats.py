"""Calls that failed and fail again when they are made again, so that no further plan is made of
them alone.

A call is a tool with its arguments, references filled in. It fails again where what it failed by
surely lasts, such as arguments that do not fit or a file that is not there, unless something was
done since: no node of the plan may have ended well after it began. Whatever else it failed by may
pass: a busy server, a lock, a network. `llm.py` tells the model that plans, and refuses what it
repeats.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from tutelage.errors import DataError
from tutelage.orchestration.execution.record import Execution
from tutelage.orchestration.execution.workers import ErrorKind, WorkerError
from tutelage.orchestration.plan.arguments import tool_arguments
from tutelage.orchestration.plan.dag import Node
from tutelage.tools.schema import ArgumentError
from tutelage.tools.tool import Tool

_LASTING: frozenset[ErrorKind] = frozenset({"invalid_arguments", "bad_result"})
_LASTING_EXCEPTION = re.compile(
    r"(?:Error: )?(?:TypeError|ValueError|ZeroDivisionError|OverflowError|KeyError|IndexError"
    r"|AttributeError|NameError|NotImplementedError|ImportError|ModuleNotFoundError"
    r"|FileNotFoundError|FileExistsError|NotADirectoryError|IsADirectoryError)(?::|$)"
)
"""How the message of a tool that raised begins where the same arguments raise the same again; in
journals of before, `Error: ` comes first."""


class FailedCalls:
    """The calls of an execution that fail again, each with the last node that made it."""

    def __init__(self, execution: Execution, tools: Mapping[str, Tool]) -> None:
        self._tools = tools
        kept = [node for node in execution.nodes if node.kept]
        self._outputs = {node.node: node.output for node in kept if node.output is not None}
        answers = ((step.node, step.answer) for step in execution.steps)
        self._plain = {node for node, answer in answers if answer is not None and answer.plain}
        self._count = len(execution.plan.nodes)
        done = max((node.ended for node in kept), default=0.0)
        self._node_of: dict[str, int] = {}
        for step in execution.steps:
            error = None if step.answer is None else step.answer.error
            if step.worker in tools and _lasts(error) and done <= step.started:
                self._node_of[self._call(execution.plan.nodes[step.node])] = step.node

    def told(self) -> str:
        """A sentence about them for the model that plans; empty without any."""
        nodes = sorted(self._node_of.values())
        if not nodes:
            return ""
        calls = "The call of node" if len(nodes) == 1 else "The calls of nodes"
        listed = ", ".join(map(str, nodes))
        return (
            f"{calls} {listed} will fail again with the same arguments: give other arguments, do "
            "something else first, or use another tool.\n\n"
        )

    def check(self, nodes: Sequence[Node]) -> None:
        """Raise `DataError` where all that further nodes begin with is among them."""
        first = [node for node in nodes if all(k < self._count for k in node.parents)]
        again = [(node, self._node_of.get(self._call(node))) for node in first]
        failed = [(node, before) for node, before in again if before is not None]
        if failed and len(failed) == len(first):
            node, before = failed[0]
            given = json.dumps(dict(node.arguments), ensure_ascii=False, default=str)
            raise DataError(
                f"it only repeats what failed: {node.tool} {given} is the call of node {before}, "
                "which fails again with the same arguments"
            )

    def _call(self, node: Node) -> str:
        inputs = {k: self._outputs[k] for k in node.parents if k in self._outputs}
        given: object = dict(node.arguments)
        if node.tool in self._tools:
            try:
                tool = self._tools[node.tool]
                given = tool_arguments(node.arguments, inputs, tool, self._plain)
            except ArgumentError:
                given = [given, inputs]
        # 3 may be right where 3.0 was wrong.
        return json.dumps([node.tool, given], sort_keys=True, default=str)


def _lasts(error: WorkerError | None) -> bool:
    if error is None or error.kind in _LASTING:
        return error is not None
    return error.kind == "raised" and _LASTING_EXCEPTION.match(error.message) is not None
