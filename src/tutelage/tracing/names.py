"""Names of span attributes, operations and events.

The names are those of OpenTelemetry's semantic conventions for generative AI; everything else in
the package imports them from here. `normalize_names` converts those of other instrumentations:
earlier names of the same conventions, and OpenInference's `llm.*`. `records.py` has the span they
belong to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Operations: the value of OPERATION, and the first word of a span's name.
INVOKE_AGENT = "invoke_agent"
CHAT = "chat"
EXECUTE_TOOL = "execute_tool"
INVOKE_WORKFLOW = "invoke_workflow"
PLAN = "plan"

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
AGENT = "gen_ai.agent.name"
CONVERSATION = "gen_ai.conversation.id"
REQUEST_MODEL = "gen_ai.request.model"
TEMPERATURE = "gen_ai.request.temperature"
TOP_P = "gen_ai.request.top_p"
TOP_K = "gen_ai.request.top_k"
MAX_TOKENS = "gen_ai.request.max_tokens"
STOP_SEQUENCES = "gen_ai.request.stop_sequences"
SEED = "gen_ai.request.seed"
RESPONSE_ID = "gen_ai.response.id"
RESPONSE_MODEL = "gen_ai.response.model"
FINISH_REASONS = "gen_ai.response.finish_reasons"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
TOOL = "gen_ai.tool.name"
TOOL_CALL_ID = "gen_ai.tool.call.id"
ERROR_TYPE = "error.type"

# Content, recorded only on request.
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
TOOL_ARGUMENTS = "gen_ai.tool.call.arguments"
TOOL_RESULT = "gen_ai.tool.call.result"

# Events.
EVALUATION = "gen_ai.evaluation.result"
EVALUATION_NAME = "gen_ai.evaluation.name"
SCORE = "gen_ai.evaluation.score.value"
SCORE_LABEL = "gen_ai.evaluation.score.label"
EXCEPTION = "exception"
EXCEPTION_TYPE = "exception.type"
EXCEPTION_MESSAGE = "exception.message"
EXCEPTION_STACKTRACE = "exception.stacktrace"

SERVICE = "service.name"

# Ours: identifiers of a span's run and rollout.
RUN_ID = "tutelage.run_id"
TURN_REWARD = "tutelage.turn.reward"
TURN_INFO = "tutelage.turn.info"
ROLLOUT_ID = "tutelage.rollout_id"
ATTEMPT_ID = "tutelage.attempt_id"
TASK_ID = "tutelage.task_id"
MODE = "tutelage.mode"
STEP = "tutelage.step"
LABEL = "tutelage.label"
POLICY_VERSION = "tutelage.policy_version"

# Ours: orchestration.
WORKFLOW = "gen_ai.workflow.name"
NODE = "tutelage.node"
NODE_STATUS = "tutelage.node.status"
WORKER = "tutelage.worker"
DECISION = "tutelage.decision"
"""Event of a router's choice and its result."""
ACTION = "tutelage.action"
COST = "tutelage.cost_usd"
VERDICT = "tutelage.verdict"
MOCK = "tutelage.mock"

OLD_NAMES: Mapping[str, str] = {
    "gen_ai.system": PROVIDER,
    "gen_ai.usage.prompt_tokens": INPUT_TOKENS,
    "gen_ai.usage.completion_tokens": OUTPUT_TOKENS,
    "gen_ai.openai.request.seed": SEED,
    "gen_ai.response.finish_reason": FINISH_REASONS,
    "llm.request.model": REQUEST_MODEL,
    "llm.response.model": RESPONSE_MODEL,
    "llm.usage.prompt_tokens": INPUT_TOKENS,
    "llm.usage.completion_tokens": OUTPUT_TOKENS,
    "llm.model_name": REQUEST_MODEL,
    "llm.provider": PROVIDER,
    "llm.system": PROVIDER,
    "llm.token_count.prompt": INPUT_TOKENS,
    "llm.token_count.completion": OUTPUT_TOKENS,
    "llm.response.id": RESPONSE_ID,
    "agent.name": AGENT,
    "tool.name": TOOL,
    "tool_call.id": TOOL_CALL_ID,
    "tool_call.function.name": TOOL,
    "tool_call.function.arguments": TOOL_ARGUMENTS,
}
"""Earlier and related names, to the present ones."""

_OPERATIONS: Mapping[str, str] = {
    "llm": CHAT,
    "agent": INVOKE_AGENT,
    "tool": EXECUTE_TOOL,
}
"""Span kinds of OpenInference (in upper case) and of OpenLLMetry, to operations."""


def normalize_names(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return span attributes, with outdated names added under their current names.

    If both names are given, the value under the present one is kept.
    """
    values: dict[str, Any] = {}
    for old, new in OLD_NAMES.items():
        if old in attributes:
            values.setdefault(new, attributes[old])
    for kind in ("openinference.span.kind", "traceloop.span.kind"):
        operation = _OPERATIONS.get(str(attributes.get(kind)).lower())
        if operation is not None:
            values.setdefault(OPERATION, operation)
    if isinstance(values.get(FINISH_REASONS), str):
        values[FINISH_REASONS] = [values[FINISH_REASONS]]
    return values | dict(attributes)
