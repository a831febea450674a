"""The code agent over a scripted model: blocks run in a sandbox, answers end, errors are told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tutelage.agents.code import EXECUTOR, CodeAgent
from tutelage.agents.session import RolloutSession
from tutelage.engine.chat import ChatSession
from tutelage.errors import ConfigError
from tutelage.policy.codec import Codec
from tutelage.seeds import SeedTree
from tutelage.testing import ScriptedEngine
from tutelage.tools import ToolOptions, resolve_tools
from tutelage.tools.sandbox import tier_problems
from tutelage.types import Call, Sampling, Task

TASK = Task("t", {"question": "What is 17 * 23?"})
pytestmark = pytest.mark.skipif(
    all(tier_problems()[tier] is not None for tier in ("namespaces", "rlimit")),
    reason="no sandbox works here",
)


def block(code: str, language: str = "python") -> str:
    return f"Let me see.\n```{language}\n{code}\n```"


@pytest.fixture
def codec(tiny: Any) -> Codec:
    return tiny("qwen2").codec


async def play(
    codec: Codec, script: Sequence[str], **options: Any
) -> tuple[RolloutSession, list[Call]]:
    engine = ScriptedEngine(codec, script, max_length=1 << 20)
    chat = ChatSession(engine, codec, seeds=SeedTree(0), name="att")
    outcome = RolloutSession(TASK, chat)
    tools = resolve_tools([EXECUTOR], ToolOptions())
    agent = CodeAgent(tools, Sampling(max_tokens=2000), **options)
    await agent.play(TASK, outcome, outcome.resources)
    return outcome, chat.calls


async def test_variables_live_across_turns(codec: Codec) -> None:
    script = [block("x = 17 * 23"), block("print('x is', x)\nx + 1"), "So.\nAnswer: 391"]
    outcome, calls = await play(codec, script)
    assert (outcome.answer, outcome.stop) == ("391", "answer")
    assert calls[1].messages[-1].content == "Output:\n(no output)"
    assert calls[2].messages[-1].content == "Output:\nx is 391\n392"
    assert [(r.name, r.error) for r in outcome.tool_results] == [(EXECUTOR, None)] * 2


async def test_every_rollout_has_an_interpreter_of_its_own(codec: Codec) -> None:
    await play(codec, [block("x = 1"), "Answer: 1"])
    outcome, calls = await play(codec, [block("x"), "Answer: 1"])
    assert outcome.tool_results[0].error == "raised"
    assert "NameError" in (calls[1].messages[-1].content or "")


async def test_code_after_the_word_answer_is_the_answer_and_is_not_run(codec: Codec) -> None:
    outcome, _ = await play(codec, [f"Answer:\n{block('raise SystemExit')}"])
    assert outcome.answer == block("raise SystemExit")
    assert outcome.tool_results == []


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("391", "no code and no answer"),
        ("", "no code and no answer"),
        (block("1") + "\n" + block("2"), "2 code blocks"),
        (block("1") + "\nAnswer: 1", "write one of them"),
        ("```python\n1", "not closed"),
        (block("ls", "bash"), "'bash' is not run"),
        (block("1 +"), "SyntaxError"),
        (block("1 / 0"), "ZeroDivisionError"),
        (block("import os; os._exit(1)"), "the interpreter ended"),
    ],
)
async def test_what_goes_wrong_is_told(codec: Codec, said: str, words: str) -> None:
    outcome, calls = await play(codec, [said, "Answer: x"])
    observed = calls[1].messages[-1].content or ""
    assert "Error:" in observed
    assert words in observed
    assert outcome.answer == "x"


def test_other_tools_are_refused() -> None:
    with pytest.raises(ConfigError, match="'calculator'"):
        CodeAgent(resolve_tools(["calculator"]), Sampling())


PIECES = ["```", "```python\n", "```python", "\n", "\n", "Answer:", "answer: ", "x = 1", "print(2)",
          "1/0", "```bash", "<tool_call>", "</tool_call>", "import os", "\u0000", "é"]  # fmt: skip


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(st.lists(st.sampled_from(PIECES), max_size=10).map("".join), min_size=2, max_size=2)
)
async def test_any_text_is_obeyed_or_answered(codec: Codec, script: list[str]) -> None:
    outcome, calls = await play(codec, script, max_turns=2)
    assert outcome.stop in ("answer", "max_turns")
    if len(calls) == 2:
        more = calls[1].messages[len(calls[0].messages) + 1 :]
        assert len(more) == 1
        assert (more[0].content or "").startswith(("Output:", "Error:"))
