"""Tests of code as data: which expressions to ask the code for, and what must be true of them.

A test is one of
- `{"input": TEXT, "output": TEXT}`: the program reads one and prints the other;
- `{"call": "f(2, 3)", "expected": 5}`, or `{"args": [2, 3], "expected": 5}` with the task's
  `entry_point`;
- `"assert f(2, 3) == 5"`, or a block of such lines (MBPP), or HumanEval's `check(candidate)`.

An assertion is taken apart: each call of the code under test is asked for by itself, its value is
put in its place, and the rest is decided where that code does not run. Tests that cannot be taken
apart so (loops, values in comprehensions) are refused with the reason, never run beside the code.
"""

from __future__ import annotations

import ast
import builtins
import copy
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

from tutelage.errors import RewardError

_FORMS = (
    "use 'assert f(1) == 2', {'call': 'f(1)', 'expected': 2}, or {'input': '...', 'output': '...'}"
)
_PLACE = "__value_{}__"


class _Filled(ast.NodeTransformer):
    """Puts nodes in the place of names."""

    def __init__(self, nodes: Mapping[str, ast.expr]) -> None:
        self.nodes = nodes

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return copy.deepcopy(self.nodes.get(node.id, node))


@dataclass(frozen=True, slots=True)
class Program:
    """A program that must print `stdout` when it reads `stdin`."""

    stdin: str
    stdout: str


@dataclass(frozen=True, slots=True)
class Expression:
    """`asked` are expressions over the code; `test` is over their values, named by place."""

    asked: tuple[str, ...]
    test: str
    prelude: str = ""
    """What the tests import or define."""
    given: str = ""
    """The part of it that `asked` needs: all that the code under test may see of it."""
    expected: str | None = None
    """For a test `asked[0] == expected` with a literal: that literal."""
    from_data: bool = False
    """Whether that literal came from a file, where a tuple can only be written as a list."""

    def with_values(self, values: Sequence[str]) -> str:
        """The test with values, each a literal, in their places."""
        tree = ast.parse(self.test, mode="eval")
        places = {
            _PLACE.format(i): ast.parse(value, mode="eval").body for i, value in enumerate(values)
        }

        return ast.unparse(ast.fix_missing_locations(_Filled(places).visit(tree)))


Case: TypeAlias = Program | Expression


def read_tests(tests: Any, entry_point: str | None = None) -> list[Case]:
    """The tests of a task. Raises `RewardError` when there are none, or one cannot be used."""
    items = cast("Sequence[Any]", tests) if isinstance(tests, (list, tuple)) else [tests]
    cases: list[Case] = []
    for item in items:
        if isinstance(item, str):
            cases += _from_source(item, entry_point)
        elif isinstance(item, Mapping):
            cases.append(_from_mapping(cast("Mapping[str, Any]", item), entry_point))
        else:
            raise RewardError(f"invalid test {item!r:.80}; {_FORMS}")
    if not cases:
        raise RewardError(f"no tests in {tests!r:.80}; {_FORMS}")
    return cases


def answer_tests(answer: Any) -> Any:
    """The tests of a row of `question` and `answer`, in the forms above.

    `answer` is a list of them, or of `[input, output]` pairs; a text of assertions;
    `{"inputs": [...], "outputs": [...]}`, with `fn_name` for calls of it (APPS); any of these as
    JSON text; and any other text or number is what the program prints. Raises `RewardError`.
    """
    if isinstance(answer, str):
        found: Any = None
        if answer.lstrip()[:1] in ("[", "{"):
            with suppress(ValueError, RecursionError):
                found = json.loads(answer)
        # `[1, 2]` is what a program may print; a list of tests holds objects, pairs or texts.
        items = [found] if isinstance(found, dict) else found
        if isinstance(items, list) and items and isinstance(items[0], (dict, list, str)):
            return answer_tests(found)
        starts = ("assert ", "assert(", "def check(")
        is_source = any(line.startswith(starts) for line in answer.split("\n"))
        return [answer] if is_source else [{"output": answer}]
    if isinstance(answer, Mapping):
        row = cast("Mapping[str, Any]", answer)
        if "inputs" not in row and "outputs" not in row:
            return [row]
        inputs, outputs = cast("Any", row.get("inputs")), cast("Any", row.get("outputs"))
        both = isinstance(inputs, list) and isinstance(outputs, list)
        if not both or len(inputs) != len(outputs):
            raise RewardError(
                f"the answer {dict(row)!r:.120} needs 'inputs' and 'outputs', lists of one length"
            )
        pairs = list(zip(inputs, outputs, strict=True))
        if (name := row.get("fn_name")) is None:
            return [{"input": _lines(one), "output": _lines(other)} for one, other in pairs]
        return [
            {"call": f"{name}({', '.join(map(repr, one))})", "expected": other}
            for one, other in pairs
        ]
    if isinstance(answer, (list, tuple)):
        items = cast("Sequence[Any]", answer)
        return [
            {"input": _lines(item[0]), "output": _lines(item[1])}
            if isinstance(item, (list, tuple)) and len(cast("Sequence[Any]", item)) == 2
            else item
            for item in items
        ]
    if answer is None or isinstance(answer, bool):
        raise RewardError(f"the answer {answer!r} is not a test; {_FORMS}")
    return [{"output": str(answer)}]


def _lines(value: Any) -> str:
    """What a program reads or prints, where a file has it as a list of lines too."""
    return "\n".join(map(str, cast("list[Any]", value))) if isinstance(value, list) else str(value)


def _from_mapping(item: Mapping[str, Any], entry_point: str | None) -> Case:
    if "output" in item:
        return Program(str(item.get("input", "")), str(item["output"]))
    if "expected" not in item:
        raise RewardError(f"the test {dict(item)!r:.120} has no 'expected' or 'output'; {_FORMS}")
    call = item.get("call")
    if call is None:
        if entry_point is None or "args" not in item:
            raise RewardError(
                f"the test {dict(item)!r:.120} does not say what to call: set 'call', or 'args' "
                "and the task's 'entry_point'"
            )
        names = [repr(a) for a in item["args"]]
        names += [f"{name}={value!r}" for name, value in dict(item.get("kwargs") or {}).items()]
        call = f"{entry_point}({', '.join(names)})"
    try:
        ast.parse(str(call), mode="eval")
    except SyntaxError as error:
        raise RewardError(f"the call {call!r} is not a Python expression: {error}") from error
    expected = repr(item["expected"])
    test = f"{_PLACE.format(0)} == {expected}"
    return Expression((str(call),), test, expected=expected, from_data=True)


def _from_source(source: str, entry_point: str | None) -> list[Case]:
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise RewardError(f"invalid Python in tests {source!r:.120}: {error}; {_FORMS}") from error
    statements: list[ast.stmt] = []
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == "check":
            # HumanEval's `check(candidate)`, of the function under its own name.
            if entry_point is None or len(statement.args.args) != 1:
                raise RewardError("a test 'check(candidate)' needs the task's 'entry_point'")
            rename = _Filled({statement.args.args[0].arg: ast.Name(entry_point, ast.Load())})
            statements += [rename.visit(inner) for inner in statement.body]
        else:
            statements.append(statement)
    prelude: list[ast.stmt] = []
    asserts: list[ast.expr] = []
    for statement in statements:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        # Of `n, expected = 4, 5` the code would see both.
        several = any(isinstance(target, ast.Tuple | ast.List) for target in targets)
        if isinstance(statement, ast.Assert):
            asserts.append(statement.test)
        elif isinstance(statement, ast.Import | ast.ImportFrom | ast.Assign) and not several:
            prelude.append(statement)
        # `check(f)` at the end, or a docstring: nothing that could fail by itself.
        elif not (isinstance(statement, ast.Expr) and _harmless(statement.value)):
            raise _refused(statement)
    before = "\n".join(ast.unparse(statement) for statement in prelude)
    known = {*dir(builtins), *_defined(prelude)} - {entry_point}
    cases = [_taken_apart(test, before, known) for test in asserts]
    return [replace(case, given=_needed(case.asked, prelude)) for case in cases]


def _needed(asked: Sequence[str], prelude: Sequence[ast.stmt]) -> str:
    """The statements whose names the asked expressions use, and what those use in turn.

    The others hold what is expected, and code that could read them would answer with them.
    """
    kept: list[ast.stmt] = []
    wanted = {name for expression in asked for name in _names(ast.parse(expression))}
    # From the last statement: what a name is made of stands before it.
    for statement in reversed(prelude):
        # `xs[0] = 1` and `x.y = 1` change what the names are.
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if wanted & (_defined([statement]) | {_root(target) for target in targets}):
            kept.append(statement)
            wanted |= _names(statement)
    return "\n".join(ast.unparse(statement) for statement in reversed(kept))


def _names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _harmless(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id == "check"
    return isinstance(value, ast.Constant)


def _refused(node: ast.AST) -> RewardError:
    return RewardError(
        f"the test {ast.unparse(node)!r:.160} cannot be split into single checks, which the "
        f"tested code could exploit; write single assertions: {_FORMS}"
    )


def _defined(statements: Sequence[ast.stmt]) -> set[str]:
    names: set[str] = set()
    for statement in statements:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            names |= {(a.asname or a.name).partition(".")[0] for a in statement.names}
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
    return names


def _taken_apart(test: ast.expr, prelude: str, known: set[str]) -> Expression:
    for node in ast.walk(test):
        if isinstance(node, (ast.comprehension, ast.Lambda, ast.NamedExpr, ast.Await)):
            raise _refused(test)
    asked: list[str] = []

    class Ask(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            root = _root(node)
            if root is not None and root not in known:
                asked.append(ast.unparse(node))
                return ast.Name(_PLACE.format(len(asked) - 1), ast.Load())
            return self.generic_visit(node)

    changed = Ask().visit(copy.deepcopy(test))
    if not asked:
        raise RewardError(
            f"the test {ast.unparse(test)!r:.120} does not use the tested code; if its "
            "function has the name of a Python builtin, set the task's 'entry_point' to it"
        )
    ast.fix_missing_locations(changed)
    expected = None
    if isinstance(changed, ast.Compare) and isinstance(changed.left, ast.Name):
        with suppress(ValueError, TypeError, SyntaxError):
            (equals,), (literal,) = changed.ops, changed.comparators
            ast.literal_eval(literal)
            expected = ast.unparse(literal) if isinstance(equals, ast.Eq) else None
    return Expression(tuple(asked), ast.unparse(changed), prelude, expected=expected)


def _root(node: ast.AST) -> str | None:
    """The name that a chain of calls, attributes and items begins with; None for no chain."""
    at = node
    while isinstance(at, (ast.Call, ast.Attribute, ast.Subscript)):
        at = at.func if isinstance(at, ast.Call) else at.value
    return at.id if isinstance(at, ast.Name) else None
