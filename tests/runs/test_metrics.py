"""What a step says of its rollouts beside numbers: which prompt templates no model call has."""

from __future__ import annotations

import json
from textwrap import wrap

import pytest
from tests.builders import make_attempt, make_call, make_rollout

from tutelage.resources import PromptTemplate
from tutelage.runs.metrics import unused_template_warnings
from tutelage.types import Message, ToolSpec

TEXT = "You are a helpful assistant. Solve math problems.\nAlways use the tools: {tools}, then end."
PARTS = [
    "You are a helpful assistant.",
    "Solve math problems.",
    "Always use the tools: none, then end.",
]


def unused(*texts: str, template: str = TEXT, described: str = "") -> bool:
    """Whether a warning names the template after calls with these messages."""
    tools = (ToolSpec("t", described, {}),) if described else ()
    messages = tuple(Message("system", text) for text in texts)
    played = [make_rollout("r", make_attempt(make_call(messages=messages, tools=tools)))]
    return bool(unused_template_warnings(played, {"p": PromptTemplate(template), "other": 1}))


@pytest.mark.parametrize(
    "texts",
    [
        [" ".join(PARTS)],
        ["<instructions>\n" + "".join(f"- {part}\n" for part in PARTS) + "</instructions>"],
        ["\n".join(f"{i}. {part}" for i, part in enumerate(PARTS, 1))],
        PARTS,
        [*reversed(PARTS)],
        ["\n".join(wrap(" ".join(PARTS), 12))],
        [" ".join(PARTS).upper()],
        [json.dumps({"rules": PARTS})],
    ],
)
def test_a_prompt_that_the_agent_cuts_or_wraps_is_used(texts: list[str]) -> None:
    assert not unused(*texts)


@pytest.mark.parametrize(
    "text",
    ["Say a digit.", "You are a careful critic. Solve nothing.", "assistant helpful a are You"],
)
def test_a_prompt_of_which_the_calls_have_other_words_is_not(text: str) -> None:
    assert unused(text)
