"""What the model says to the clients of `matrix.py`, and the record of one conversation.

The model is a script that is played through a tokenizer, so each call has token ids and each
conversation makes training rows; its identifiers come from the name of the attempt, so a recorded
conversation can be sent again. `clients/cells.py` has what the user and the tools say.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from typing import Any

from tutelage.engine.chat import ChatSession
from tutelage.engine.driver import EngineDriver
from tutelage.engine.script import ScriptedReply
from tutelage.policy.codec import Codec
from tutelage.policy.named_templates import set_template
from tutelage.seeds import SeedTree
from tutelage.testing import ScriptedEngine, tiny_engine, tiny_policy
from tutelage.types import Message

CONTEXT = 16384


def _call(name: str, **arguments: str) -> tuple[str, str]:
    return name, json.dumps(arguments, ensure_ascii=False)


SCRIPTS: dict[str, tuple[ScriptedReply, ...]] = {
    "text": (
        ScriptedReply("Grün ist's, señor — 緑 🌿 und 21 °C."),
        ScriptedReply('1. a < b && c > d\n2. "quoted" \\ backslash\n\n\tand <b>more</b> &amp; {}'),
        ScriptedReply("```python\nprint('{\"x\": [1, 2]}')\n```"),
        ScriptedReply("Yes ✓"),
    ),
    "tools": (
        ScriptedReply("Ich prüfe das – 請稍候.", (_call("lookup", city="Zürich", day="mañana"),)),
        ScriptedReply(
            None,
            (
                _call("calculator", expression="12*(3+4)"),
                _call("lookup", city="São Paulo", day='a "quoted"\nday \\ 🌧'),
            ),
        ),
        ScriptedReply(None, (_call("now"),)),
        ScriptedReply('Fertig: 84, 21 °C ✓\n\n{"ok": true, "rest": null}'),
    ),
    "empty": (ScriptedReply(""), ScriptedReply("Sí."), ScriptedReply(""), ScriptedReply("✓")),
    "thoughts": (
        ScriptedReply("<think>\nA city; 天気?\n</think>\n\nGrün, 21 °C."),
        ScriptedReply("<think>\n\n</think>\n\nAlso green."),
        ScriptedReply("No thought at all."),
        ScriptedReply("<think>\nThanks.\n</think>\n\nYes ✓"),
    ),
}
FINAL_ANSWER = ScriptedReply(None, (_call("final_answer", answer="84, 21 °C ✓"),))
"""How smolagents wants its answer."""


@cache
def codec(template: str) -> Codec:
    """A tokenizer of bytes and few merges, with a template by name, of which thoughts are kept."""
    tokenizer = tiny_policy(max_positions=CONTEXT).codec.tokenizer
    set_template(tokenizer, template)
    made = Codec(tokenizer)
    if template == "qwen3":
        made.choose_thinking("keep", None)
    return made


def scripted(kind: str, name: str) -> ChatSession:
    """The record of a conversation with the script `kind`; `name` seeds its identifiers."""
    last = (FINAL_ANSWER,) if kind == "final answer" else ()
    lines = [*SCRIPTS["tools"][:-1], *last] if last else list(SCRIPTS[kind])
    known = codec("qwen3" if kind == "thoughts" else "qwen2.5")
    engine = ScriptedEngine(known, lines, max_length=CONTEXT)
    return ChatSession(engine, known, seeds=SeedTree(0).child(name), name=name)


def sampled(name: str) -> ChatSession:
    """The record of a conversation with a very small policy, which says what nobody would write."""
    policy = tiny_policy(max_positions=4096)
    driver = EngineDriver(tiny_engine(policy, slots=1), schedule="free")
    return ChatSession(driver, policy.codec, seeds=SeedTree(0).child(name), name=name)


def said(turn: Message) -> tuple[str, list[tuple[str, Any]]]:
    """Text and tool calls of a turn, as a client should understand them: without its thought."""
    text = (turn.content or "").rpartition("</think>")[2].lstrip("\n")
    return text, [(each.name, json.loads(each.arguments)) for each in turn.tool_calls]


def turns_of(messages: Iterable[Message]) -> list[Message]:
    """The assistant's turns."""
    return [message for message in messages if message.role == "assistant"]


def handed_back(turn: Message) -> tuple[str, list[tuple[str, str]]]:
    """What has to come back of a turn: its calls; without any, its text. The text beside calls is
    left out or written anew by some clients; the ids of the calls bring it back."""
    calls = [(call.id, call.name) for call in turn.tool_calls]
    return "" if calls else turn.content or "", calls
