"""One reply to a question, with a system prompt for a search to better."""

from __future__ import annotations

from typing import Any

from tutelage import Message, PromptTemplate, rollout

prompt = PromptTemplate("You are a helpful assistant.")


@rollout
async def reply(task: dict[str, Any], llm: Any, prompt: PromptTemplate) -> str:
    """The reply, which the task's reward grades."""
    messages = [Message("system", prompt.format()), Message("user", task["question"])]
    call = await llm.chat(messages, max_tokens=32)
    return call.reply.content or ""
