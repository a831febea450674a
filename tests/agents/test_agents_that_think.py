"""What a model thinks is neither obeyed nor graded, whatever its template says of thoughts."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from tutelage.agents.agent import Agent
from tutelage.agents.code import CodeAgent
from tutelage.agents.loop import LoopAgent
from tutelage.agents.react import ReactAgent
from tutelage.agents.session import RolloutSession
from tutelage.agents.tool_calling import ToolCallingAgent
from tutelage.policy.codec import Codec
from tutelage.policy.named_templates import TEMPLATES
from tutelage.resources import NamedResources
from tutelage.rewards import resolve_reward
from tutelage.rollouts.models import EngineModelProvider
from tutelage.rollouts.runner import RolloutSpec, Runner, RunnerSettings
from tutelage.seeds import SeedTree
from tutelage.testing import ScriptedEngine
from tutelage.tools import tool
from tutelage.types import Attempt, Mode, Sampling, Task

noted: list[str] = []
OPENED = "{%- if add_generation_prompt -%}{{- '<think>\\n' -}}{%- endif -%}"
TEMPLATE = {
    "unmarked": None,
    "marked": TEMPLATES["qwen3"],
    "opened": TEMPLATES["qwen3"] + OPENED,
    "brackets": TEMPLATES["qwen3"].replace("</think>", "[/THINK]").replace("<think>", "[THINK]"),
}
CALL = '<tool_call>{"name": "note", "arguments": {"text": "%s"}}</tool_call>'
BLOCK = "```python\nprint(1)\n```"
FORM = "Maybe\nAction: note\nAction Input: x\n"
SCRIPTS: list[tuple[type[LoopAgent], list[str], list[str], str]] = [
    (ToolCallingAgent, [f"<think>I could {CALL % 'a'}</think>5"], [], "5"),
    (ToolCallingAgent, [f"<think>a</think>{CALL % 'b'}", "<think>b</think>5"], ["b"], "5"),
    (ToolCallingAgent, [f"<think>maybe {CALL % 'a'}"], [], ""),
    (ReactAgent, [f"<think>{FORM}</think>\nThought: I know.\nAnswer: 5"], [], "5"),
    (ReactAgent, ["<think>\nThe form is\nAnswer: TEXT\n</think>\nAnswer: 5"], [], "5"),
    (ReactAgent, [f"<think>{FORM}</think>\nThought: I know.", "<think></think>Answer: 5"], [], "5"),
    (ReactAgent, [f"<think>{CALL % 'a'}</think>\nAnswer: 5"], [], "5"),
    (CodeAgent, [f"<think>\n{BLOCK}\nAnswer: 6\n</think>\nAnswer: 5"], [], "5"),
]


@tool(destructive=True, inline=True)
def note(text: str) -> str:
    """Keep a text.

    Args:
        text: It.
    """
    noted.append(text)
    return "kept"


class Says(Agent):
    """An agent of one's own that returns the model's text."""

    schedule = "deterministic"

    async def play(self, task: Task, session: RolloutSession, resources: NamedResources) -> str:
        assert session.client is not None
        call = await session.client.chat(task.messages(), sampling=Sampling())
        return f"{call.reply.content}\n"


async def play(codec: Codec, agent: Agent, script: list[str]) -> Attempt:
    noted.clear()
    models = EngineModelProvider(ScriptedEngine(codec, script), codec)
    runner = Runner(agent, models, RunnerSettings("t"), reward=resolve_reward("exact_text"))
    task = Task("t", {"question": "2 + 3?", "answer": "5"})
    done = await runner.run([RolloutSpec(task, Mode.VAL, "g", 0, SeedTree(0))])
    return done[0].last


def spoken(template: str, script: list[str]) -> list[str]:
    """A script as a model of this template says it."""
    if template == "opened":
        return [said.removeprefix("<think>") for said in script]
    marks = {"<think>": "[THINK]", "</think>": "[/THINK]"} if template == "brackets" else {}
    for mark, other in marks.items():
        script = [said.replace(mark, other) for said in script]
    return script


def codec_of(tiny: Any, template: str) -> Codec:
    tokenizer = deepcopy(tiny("qwen2").codec.tokenizer)
    tokenizer.chat_template = TEMPLATE[template] or tokenizer.chat_template
    return Codec(tokenizer)


@pytest.mark.parametrize("template", TEMPLATE)
@pytest.mark.parametrize(("kind", "script", "got", "answer"), SCRIPTS)
async def test_a_thought_is_no_instruction(
    tiny: Any, template: str, kind: type[LoopAgent], script: list[str], got: list[str], answer: str
) -> None:
    agent = kind({} if kind is CodeAgent else {"note": note}, Sampling(max_tokens=2000))
    last = await play(codec_of(tiny, template), agent, spoken(template, script))
    assert (noted, last.answer, last.failure) == (got, answer, None)
    assert last.reward is not None
    assert last.reward.value == float(answer == "5")
    assert last.thought
    assert len(last.calls) == len(script)


@pytest.mark.parametrize("template", TEMPLATE)
@pytest.mark.parametrize(
    ("said", "answer"),
    [("<think>\nIs it 6?\n</think>\n\n5", "5"), ("<think>\nThe answer is 5.", "")],
)
async def test_a_text_of_an_own_agent_is_graded_without_its_thought(
    tiny: Any, template: str, said: str, answer: str
) -> None:
    (line,) = spoken(template, [said])
    last = await play(codec_of(tiny, template), Says(), [line])
    assert (last.answer or "").strip() == answer
    assert last.reward is not None
    assert last.reward.value == float(answer == "5")
    assert last.thought.strip() == line.strip().removesuffix("5").strip()
    assert last.calls[0].reply.content == line.strip()
