"""Tests of code as data: expressions to evaluate, and conditions on their values.

A test is one of
- `{"input": TEXT, "output": TEXT}`: the program reads the input and prints the output;
- `{"call": "f(2, 3)", "expected": 5}`, or `{"args": [2, 3], "expected": 5}` with the task's
  `entry_point`;
- `"assert f(2, 3) == 5"`, or a block of such lines (MBPP), or HumanEval's `check(candidate)`.

An assertion is split: each call of the code under test is evaluated separately and replaced by its
value, and the rest is evaluated in a process without that code. Tests that cannot be split (loops,
values in comprehensions) are rejected with the reason, and never run in the process of the code.
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
_SLOT = "__value_{}__"


class _ReplaceNames(ast.NodeTransformer):
    """AST transformer that replaces names with other nodes."""

    def __init__(self, nodes: Mapping[str, ast.expr]) -> None:
        self.nodes = nodes

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return copy.deepcopy(self.nodes.get(node.id, node))


@dataclass(frozen=True, slots=True)
class Program:
    """Test that runs a program with the input `stdin` and expects the output `stdout`."""

    stdin: str
    stdout: str


@dataclass(frozen=True, slots=True)
class Expression:
    """Test that evaluates expressions with the tested code and checks their values."""

    expressions: tuple[str, ...]
    test: str
    prelude: str = ""
    """Imports and assignments of the tests."""
    setup: str = ""
    """The statements of `prelude` that `expressions` need; the tested code sees only these."""
    expected: str | None = None
    """The literal of a test `expressions[0] == expected`."""
    from_data: bool = False
    """True if `expected` is from a data file, where tuples are written as lists."""

    def fill_values(self, values: Sequence[str]) -> str:
        """Return the source of the test condition, with computed values filled in as literals."""
        tree = ast.parse(self.test, mode="eval")
        slots = {
            _SLOT.format(i): ast.parse(value, mode="eval").body for i, value in enumerate(values)
        }

        return ast.unparse(ast.fix_missing_locations(_ReplaceNames(slots).visit(tree)))


Case: TypeAlias = Program | Expression


def read_tests(tests: Any, entry_point: str | None = None) -> list[Case]:
    """Parse the tests of a task. Raises `RewardError` if a test is invalid or none is given."""
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
    """Convert the `answer` of a task to tests.

    `answer` is a list of tests or of `[input, output]` pairs; a text of assertions;
    `{"inputs": [...], "outputs": [...]}`, with `fn_name` for function calls (APPS); or any of these
    as JSON text. Other text and numbers are the output of the program. Raises `RewardError`.
    """
    if isinstance(answer, str):
        parsed: Any = None
        if answer.lstrip()[:1] in ("[", "{"):
            with suppress(ValueError, RecursionError):
                parsed = json.loads(answer)
        # `[1, 2]` may be the output of a program; a list of tests has objects, pairs or texts.
        items = [parsed] if isinstance(parsed, dict) else parsed
        if isinstance(items, list) and items and isinstance(items[0], (dict, list, str)):
            return answer_tests(parsed)
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
                f"the answer {dict(row)!r:.120} needs 'inputs' and 'outputs', lists of equal length"
            )
        pairs = list(zip(inputs, outputs, strict=True))
        if (name := row.get("fn_name")) is None:
            return [{"input": _to_text(one), "output": _to_text(other)} for one, other in pairs]
        return [
            {"call": f"{name}({', '.join(map(repr, one))})", "expected": other}
            for one, other in pairs
        ]
    if isinstance(answer, (list, tuple)):
        items = cast("Sequence[Any]", answer)
        return [
            {"input": _to_text(item[0]), "output": _to_text(item[1])}
            if isinstance(item, (list, tuple)) and len(cast("Sequence[Any]", item)) == 2
            else item
            for item in items
        ]
    if answer is None or isinstance(answer, bool):
        raise RewardError(f"the answer {answer!r} is not a test; {_FORMS}")
    return [{"output": str(answer)}]


def _to_text(value: Any) -> str:
    """Convert the input or output of a program, a text or a list of lines, to text."""
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
                f"the test {dict(item)!r:.120} has no function call: set 'call', or 'args' "
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
    test = f"{_SLOT.format(0)} == {expected}"
    return Expression((str(call),), test, expected=expected, from_data=True)


def _from_source(source: str, entry_point: str | None) -> list[Case]:
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise RewardError(f"invalid Python in tests {source!r:.120}: {error}; {_FORMS}") from error
    statements: list[ast.stmt] = []
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == "check":
            # HumanEval's `check(candidate)`, with the candidate replaced by the entry point.
            if entry_point is None or len(statement.args.args) != 1:
                raise RewardError("a test 'check(candidate)' needs the task's 'entry_point'")
            rename = _ReplaceNames({statement.args.args[0].arg: ast.Name(entry_point, ast.Load())})
            statements += [rename.visit(inner) for inner in statement.body]
        else:
            statements.append(statement)
    prelude: list[ast.stmt] = []
    asserts: list[ast.expr] = []
    for statement in statements:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        # `n, expected = 4, 5` would show both values to the code.
        has_tuple = any(isinstance(target, ast.Tuple | ast.List) for target in targets)
        if isinstance(statement, ast.Assert):
            asserts.append(statement.test)
        elif isinstance(statement, ast.Import | ast.ImportFrom | ast.Assign) and not has_tuple:
            prelude.append(statement)
        # `check(f)` at the end and docstrings need no check.
        elif not (isinstance(statement, ast.Expr) and _is_harmless(statement.value)):
            raise _unsupported_error(statement)
    prelude_source = "\n".join(ast.unparse(statement) for statement in prelude)
    known_names = {*dir(builtins), *_defined_names(prelude)} - {entry_point}
    cases = [_split_test(test, prelude_source, known_names) for test in asserts]
    return [replace(case, setup=_required_statements(case.expressions, prelude)) for case in cases]


def _required_statements(expressions: Sequence[str], prelude: Sequence[ast.stmt]) -> str:
    """Return the source of the statements that a test's expressions depend on.

    The other statements hold expected values, which the tested code must not see.
    """
    required: list[ast.stmt] = []
    names = {name for expression in expressions for name in _used_names(ast.parse(expression))}
    # Go backwards, because the names that a statement uses are defined before it.
    for statement in reversed(prelude):
        # `xs[0] = 1` and `x.y = 1` change the objects of these names.
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if names & (_defined_names([statement]) | {_root_name(target) for target in targets}):
            required.append(statement)
            names |= _used_names(statement)
    return "\n".join(ast.unparse(statement) for statement in reversed(required))


def _used_names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _is_harmless(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id == "check"
    return isinstance(value, ast.Constant)


def _unsupported_error(node: ast.AST) -> RewardError:
    return RewardError(
        f"the test {ast.unparse(node)!r:.160} cannot be split into single checks, which the "
        f"tested code could exploit; write single assertions: {_FORMS}"
    )


def _defined_names(statements: Sequence[ast.stmt]) -> set[str]:
    names: set[str] = set()
    for statement in statements:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            names |= {(a.asname or a.name).partition(".")[0] for a in statement.names}
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
    return names


def _split_test(test: ast.expr, prelude: str, known_names: set[str]) -> Expression:
    for node in ast.walk(test):
        if isinstance(node, (ast.comprehension, ast.Lambda, ast.NamedExpr, ast.Await)):
            raise _unsupported_error(test)
    expressions: list[str] = []

    class ReplaceCalls(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            root = _root_name(node)
            if root is not None and root not in known_names:
                expressions.append(ast.unparse(node))
                return ast.Name(_SLOT.format(len(expressions) - 1), ast.Load())
            return self.generic_visit(node)

    replaced = ReplaceCalls().visit(copy.deepcopy(test))
    if not expressions:
        raise RewardError(
            f"the test {ast.unparse(test)!r:.120} does not use the tested code; if its "
            "function has the name of a Python builtin, set the task's 'entry_point' to it"
        )
    ast.fix_missing_locations(replaced)
    expected = None
    if isinstance(replaced, ast.Compare) and isinstance(replaced.left, ast.Name):
        with suppress(ValueError, TypeError, SyntaxError):
            (equals,), (literal,) = replaced.ops, replaced.comparators
            ast.literal_eval(literal)
            expected = ast.unparse(literal) if isinstance(equals, ast.Eq) else None
    return Expression(tuple(expressions), ast.unparse(replaced), prelude, expected=expected)


def _root_name(node: ast.AST) -> str | None:
    """Return the first name in a chain of calls, attributes and subscripts, or None."""
    while isinstance(node, (ast.Call, ast.Attribute, ast.Subscript)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None
