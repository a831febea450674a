"""The code agent (`agent_type=code`): its actions are Python, and variables persist across turns.

One fenced block per turn runs in the rollout's sandbox (the tool `python_executor`); its output,
and the value of its last line, is the observation. A line `Answer: TEXT` outside of any block ends
the episode. The loop is `loop.py`, the sandbox `tools/sandbox/`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tutelage.agents.loop import LoopAgent, Turn
from tutelage.errors import ConfigError
from tutelage.types import Call, Message, ToolCall, ToolResult

EXECUTOR = "python_executor"
CODE_PROMPT = (
    "Solve the task with Python. Write one block a turn,\n```python\n...\n```\n"
    "and stop; you see what it prints and the value of its last line, and its variables stay. "
    "When you know the answer, write, outside of any block,\nAnswer: the answer alone"
)
_LANGUAGES = ("", "python", "py", "python3")
_MARK = re.compile(
    r"^[ \t]*(?:```[ \t]*(?P<language>[\w+#.-]*)[ \t]*$"
    r"|(?P<answer>(?:final )?answer)[ \t]*:[ \t]*)",
    re.IGNORECASE | re.MULTILINE,
)
"""The edge of a block, or the label of an answer."""
_FORM = "one ```python block to run, or a line 'Answer: TEXT' to end"


@dataclass(frozen=True, slots=True)
class CodeAgent(LoopAgent):
    """Agent that executes Python code with its only tool `python_executor`."""

    own_tools: ClassVar[tuple[str, ...]] = (EXECUTOR,)

    def __post_init__(self) -> None:
        """Raise `ConfigError` for tools other than `python_executor`."""
        refused = self.refusal([*self.tools])
        if refused is not None:
            raise ConfigError("; ".join(refused))

    @classmethod
    def refusal(cls, tools: Sequence[str]) -> tuple[str, str] | None:
        """Return the reason for refusing tools other than `python_executor`, or None."""
        others = [name for name in tools if name != EXECUTOR]
        if not others:
            return None
        return (
            f"the code agent runs Python and does not call tools, so it cannot use "
            f"{', '.join(map(repr, others))}",
            f"Use agent.tools=[{EXECUTOR}], or another agent.agent_type.",
        )

    def own_prompt(self) -> str:
        """Return the default system prompt with instructions for code and answers."""
        return CODE_PROMPT

    def read(self, call: Call) -> Turn:
        """Parse a model call as a code block or an answer."""
        if call.reply.tool_calls or call.parse_errors:
            return Turn.from_error(f"calls in <tool_call> tags are not read here; write {_FORM}")
        return self.read_text(call.answer, call.id)

    def read_text(self, text: str, turn_id: str) -> Turn:
        """Parse the text of a turn. A block and an answer in the same turn are an error.

        Everything after `Answer:` is the answer, including blocks, which are not run.
        """
        blocks, answer, open_fence = _split_blocks(text)
        if open_fence:
            return Turn.from_error("the code block is not closed by ```")
        if len(blocks) > 1:
            return Turn.from_error(f"{len(blocks)} code blocks in one turn; write one")
        if blocks and answer is not None:
            return Turn.from_error("a code block and an answer in one turn; write one of them")
        if answer is not None:
            return Turn(answer=answer)
        if not blocks:
            return Turn.from_error(f"no code and no answer; write {_FORM}")
        language, code = blocks[0]
        if language.lower() not in _LANGUAGES:
            return Turn.from_error(f"a block of {language!r} is not run; write {_FORM}")
        return Turn(calls=(ToolCall(f"{turn_id}.0", EXECUTOR, json.dumps({"code": code})),))

    def observe(self, call: Call, turn: Turn, results: Sequence[ToolResult]) -> list[Message]:
        """Return a message with the output of the code or the errors."""
        texts = [f"Output:\n{r.text.rstrip()}" for r in results]
        texts += [f"Error: {reason}" for reason in turn.errors]
        return [Message("user", "\n".join(texts))]


def _split_blocks(text: str) -> tuple[list[tuple[str, str]], str | None, bool]:
    """Split a text into the code blocks (language, code) before the answer, the answer or None, and
    True if a block is not closed."""
    blocks: list[tuple[str, str]] = []
    begin, language = -1, ""
    for match in _MARK.finditer(text):
        if match["answer"] is not None:
            if begin < 0:
                return blocks, text[match.end() :].strip(), False
        elif begin < 0:
            begin, language = match.end() + 1, match["language"]
        elif not match["language"]:
            blocks.append((language, text[begin : match.start()].rstrip("\n")))
            begin = -1
    return blocks, None, begin >= 0
