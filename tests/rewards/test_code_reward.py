"""Code graded by tests: every form of test, and programs that try to pass without passing."""

from __future__ import annotations

from typing import Any

import pytest

from tutelage.errors import RewardError
from tutelage.rewards import check, code_tests, compute_reward, resolve_reward
from tutelage.rewards.code import find_code
from tutelage.rewards.code_tests import read_tests
from tutelage.tools import ToolOptions
from tutelage.tools.sandbox import tier_problems
from tutelage.types import Attempt, Reward, RolloutStatus, Task

needs_sandbox = pytest.mark.skipif(
    all(tier_problems()[tier] is not None for tier in ("namespaces", "rlimit")),
    reason="no sandbox works here",
)
ADD = "def add(a, b):\n    return a + b"
ADD_TESTS = [
    "assert add(1, 2) == 3",
    "assert add('a', 'b') == 'ab'",
    {"call": "add(2, 2)", "expected": 4},
]


async def grade(prediction: str, tests: Any, **fields: Any) -> Reward:
    task = Task("t", {"question": "q", "tests": tests, **fields})
    attempt = Attempt("a", 0, RolloutStatus.SUCCEEDED, answer=prediction)
    return await compute_reward(resolve_reward("code_reward", ToolOptions()), task, attempt)


@needs_sandbox
@pytest.mark.parametrize(
    ("code", "tests", "share"),
    [
        (ADD, ADD_TESTS, 1.0),
        (f"Here it is:\n```python\n{ADD}\n```\nDone.", ADD_TESTS, 1.0),
        ("def add(a, b):\n    return 3", ADD_TESTS, 1 / 3),
        ("def sub(a, b):\n    return 3", ADD_TESTS, 0.0),
        ("I do not know.", ADD_TESTS, 0.0),
        (
            "print(2 * int(input()))",
            [{"input": "4\n", "output": "8"}, {"input": "x", "output": "8"}],
            0.5,
        ),
        ("print('a  \\nb')\nexit()", [{"output": "a\nb\n"}], 1.0),
        (
            "def f(x):\n    return [x / 3, (x,)]",
            [
                "import math\nassert math.isclose(f(1)[0], 1 / 3)\n"
                "assert abs(f(2)[0] - 0.6667) < 1e-3\nassert f(2)[1] == (2,)\nassert f(1) != 5"
            ],
            1.0,
        ),
        (
            "def f(n):\n    while n: pass\n    return n",
            ["assert f(0) == 0", "assert f(1) == 1", "assert f(0) == 0"],
            2 / 3,
        ),
    ],
)
async def test_the_fraction_of_tests_that_pass(code: str, tests: Any, share: float) -> None:
    found = await grade(code, tests)
    assert found.value == pytest.approx(share)
    assert found.parts["all"] == (share == 1.0)


@needs_sandbox
async def test_an_entry_point_and_a_check_function() -> None:
    body = "    assert candidate(2) == 4\n    assert candidate(3) == 9\n"
    check = f"def check(candidate):\n{body}check(sq)"
    assert (await grade("def sq(x): return x * x", check, entry_point="sq")).value == 1.0
    args = [{"args": [3], "expected": 9}, {"args": [], "kwargs": {"x": 2}, "expected": 4}]
    assert (await grade("def sq(x): return x * x", args, entry_point="sq")).value == 1.0


@needs_sandbox
async def test_a_tuple_is_a_list_in_a_file_and_a_tuple_in_an_assertion() -> None:
    code = "def f(): return [(1, 2), {'k': (3,)}]"
    assert (await grade(code, [{"call": "f()", "expected": [[1, 2], {"k": [3]}]}])).value == 1.0
    assert (await grade(code, ["assert f() == [[1, 2], {'k': [3]}]"])).value == 0.0


LEAKS = [
    "expected = [0, 1, 1, 2]\nassert fib(4) == expected",
    "n = 4\nfirst = [0, 1]\nexpected = first + [1, 2]\nassert fib(n) == expected",
]


@needs_sandbox
@pytest.mark.parametrize("tests", LEAKS)
async def test_what_is_expected_is_out_of_sight_of_the_code(tests: str) -> None:
    assert (await grade("def fib(n): return expected", tests)).value == 0.0
    peeking = (
        "def fib(n):\n    return next(iter([v for k, v in globals().items() if k == 'expected']))"
    )
    assert (await grade(peeking, tests)).value == 0.0
    assert (await grade("def fib(n): return [0, 1, 1, 2]", tests)).value == 1.0


@needs_sandbox
async def test_what_a_call_needs_is_there() -> None:
    tests = "import math\nxs = [1]\nxs[0] = math.pi\nys = xs\nassert f(ys) == 2 * ys"
    assert (await grade("def f(n): return n * 2", tests)).value == 1.0


HACKS = [
    "import sys\nsys.exit(0)",
    "import os\nos._exit(0)",
    "class A:\n    def __eq__(self, o): return True\n    def __bool__(self): return True\n"
    "    def __repr__(self): return '3'\n    __sub__ = __abs__ = lambda self, *a: self\n"
    "    __lt__ = __eq__\n    __hash__ = None\ndef add(*a): return A()",
    "class I(int):\n    def __eq__(self, o): return True\ndef add(*a): return I(3)",
    "import builtins\nbuiltins.bool = lambda x: True\nbuiltins.abs = lambda x: 0\n"
    "def add(*a): raise ValueError",
    # A reply made up beforehand, with a value that is no literal.
    "import os, json, struct\n"
    "reply = {'error': None, 'output': '', 'value': \"__import__('builtins').True\"}\n"
    "body = json.dumps(reply).encode()\n"
    "for fd in range(3, 20):\n    try: os.write(fd, struct.pack('>I', len(body)) + body)\n"
    "    except OSError: pass\ndef add(*a): return 0",
    "def add(*a):\n    import inspect\n    for f in inspect.stack():\n"
    "        for v in f.frame.f_locals.values():\n"
    "            if isinstance(v, dict) and 'expected' in v:\n"
    "                return v['expected']\n    return None",
]


@needs_sandbox
@pytest.mark.parametrize("code", HACKS)
async def test_no_trick_is_a_pass(code: str) -> None:
    tests = ["assert add(1, 2) == 3", "assert abs(add(1, 2) - 3) < 1e-6", "assert add(5, 5)"]
    assert (await grade(code, tests)).value == 0.0
    assert (await grade(code, [{"input": "", "output": "8"}])).value == 0.0


@pytest.mark.parametrize(
    ("tests", "words"),
    [
        ([], "no tests"),
        ("for i in range(3):\n    assert f(i)", "cannot be split into single checks"),
        ("assert 1 == 1", "does not use the tested code"),
        ([{"call": "f("}], "no 'expected'"),
        ("def check(candidate):\n    assert candidate(1)", "entry_point"),
    ],
)
def test_a_test_that_cannot_be_used_is_refused(tests: Any, words: str) -> None:
    with pytest.raises(RewardError, match=words):
        read_tests(tests)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("x = 1", "x = 1"),
        ("the capital is Paris", None),
        ("```py\na\n```\n```\nb\n```", "b\n"),
    ],
)
def test_the_code_of_a_text(text: str, code: str | None) -> None:
    assert find_code(text) == code


@needs_sandbox
@pytest.mark.parametrize(
    ("code", "answer", "share"),
    [
        (ADD, "assert add(1, 2) == 3\nassert add(0, 0) == 1", 0.5),
        (ADD, ["assert add(1, 2) == 3"], 1.0),
        ("print(sum(map(int, input().split())))", [["1 2", "3"], ["4 5", "8"]], 0.5),
        ("print(2 * int(input()))", {"inputs": ["4", "5\n"], "outputs": ["8", "10"]}, 1.0),
        ("print(int(input()) + int(input()))", {"inputs": [["4", "5"]], "outputs": [["9"]]}, 1.0),
        (ADD, {"fn_name": "add", "inputs": [[1, 2]], "outputs": [3]}, 1.0),
        (ADD, '{"fn_name": "add", "inputs": [[1, 2]], "outputs": [4]}', 0.0),
        ("print(sum(range(11)))", "55", 1.0),
        ("print(sum(range(11)))", 54, 0.0),
    ],
)
async def test_rows_of_question_and_answer(code: str, answer: Any, share: float) -> None:
    task = Task("t", {"question": "q", "answer": answer})
    attempt = Attempt("a", 0, RolloutStatus.SUCCEEDED, answer=code)
    found = await compute_reward(resolve_reward("code_reward", ToolOptions()), task, attempt)
    assert found.value == share


@needs_sandbox
def test_a_row_needs_tests_or_an_answer() -> None:
    with pytest.raises(RewardError, match="needs 'tests' or 'answer'"):
        check(resolve_reward("code_reward"), [Task("t", {"question": "q", "solution": "x"})])
    for answer in (None, {"inputs": ["1"], "outputs": []}, {"inputs": "1", "outputs": "2"}):
        with pytest.raises(RewardError):
            code_tests.answer_tests(answer)
