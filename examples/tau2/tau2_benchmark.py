"""A task of the real benchmark: its environment, its prompts, its evaluation, from the checkout.

The benchmark's package is imported from the checkout that `TAU2_DATA_DIR` names and from nowhere
else, since the Python index has another package under its name. Nothing of it is changed. The
dialogue between the two models is ours (`tau2_dialogue.py`), so that both go through the gateway.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import pickle
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tau2_dialogue import JSON, arguments_of
from tau2_tasks import HOW, VARIABLE, SerializedTask, data_folder

from tutelage.errors import ConfigError

DOMAIN = "airline"
PARTS = {"DB": "db", "COMMUNICATE": "communicate", "ACTION": "action"}


def import_benchmark() -> None:
    """Make the checkout's `tau2` importable. Raises `ConfigError` when that cannot be."""
    data = data_folder()
    source = (data.parent / "src").resolve()
    if not (source / "tau2" / "__init__.py").is_file():
        raise ConfigError(f"{str(source)!r} has no package tau2, the benchmark's code.\n{HOW}")
    os.environ[VARIABLE] = str(data)  # The benchmark reads its data from there.
    if str(source) not in sys.path:
        sys.path.insert(0, str(source))
    try:
        package = importlib.import_module("tau2")
        where = Path(str(package.__file__)).resolve()
        if not where.is_relative_to(source):
            raise ConfigError(f"tau2 was imported from {str(where)!r}, not the checkout.\n{HOW}")
        importlib.import_module("tau2.evaluator.evaluator")
    except ImportError as error:
        raise ConfigError(
            f"the benchmark's code cannot be imported ({error}); install what it needs with "
            f"`pip install -e {source.parent}`"
        ) from error


class BenchmarkWorld:
    """See `tau2_dialogue.World`. Call `import_benchmark` before the first one is made."""

    def __init__(self, row: SerializedTask) -> None:
        """Raises `ConfigError` for a task that begins in the middle of a dialogue."""
        from tau2.agent.llm_agent import LLMAgent
        from tau2.data_model.tasks import Task
        from tau2.domains.airline.environment import get_environment
        from tau2.user.user_simulator import UserSimulator

        self._task = Task.model_validate(json.loads(row["data"]))
        if self._task.initial_state is not None:
            raise ConfigError(
                f"task {row['id']!r} has an initial state; this example plays tasks from the "
                "beginning, as all airline tasks are"
            )
        self._environment = get_environment(db=pickle.loads(_database()))
        tools = self._environment.get_tools()
        self.tools: Sequence[JSON] = [tool.openai_schema for tool in tools]
        self.assistant_prompt: str = LLMAgent(
            tools=tools, domain_policy=self._environment.get_policy(), llm="unused"
        ).system_prompt
        self.user_prompt: str = UserSimulator(
            instructions=str(self._task.user_scenario), llm="unused"
        ).system_prompt

    def call(self, call_id: str, name: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        """Ask the environment, as the benchmark's orchestrator does."""
        from tau2.data_model.message import ToolCall

        answer = self._environment.get_response(
            ToolCall(id=call_id, name=name, arguments=dict(arguments), requestor="assistant")
        )
        return answer.content or "", bool(answer.error)

    def evaluate(self, messages: Sequence[JSON]) -> Mapping[str, float]:
        """The benchmark's own evaluation of everything in the task's `reward_basis`."""
        from tau2.data_model.simulation import SimulationRun, TerminationReason
        from tau2.evaluator.evaluator import EvaluationType, evaluate_simulation

        run = SimulationRun(
            id=self._task.id,
            task_id=self._task.id,
            start_time="",
            end_time="",
            duration=0.0,
            termination_reason=TerminationReason.USER_STOP,
            messages=_as_theirs(messages),
        )
        info = evaluate_simulation(
            simulation=run,
            task=self._task,
            evaluation_type=EvaluationType.ALL,
            solo_mode=False,
            domain=DOMAIN,
        )
        parts = {str(k.value): float(v) for k, v in (info.reward_breakdown or {}).items()}
        named = {PARTS[k]: v for k, v in parts.items() if k in PARTS}
        return {"reward": float(info.reward), **named}


@functools.cache
def _database() -> bytes:
    """The airline's database, checked once: reading its 7 MB again takes seconds."""
    from tau2.domains.airline.data_model import FlightDB
    from tau2.domains.airline.utils import AIRLINE_DB_PATH

    return pickle.dumps(FlightDB.load(AIRLINE_DB_PATH))


def _as_theirs(messages: Sequence[JSON]) -> list[Any]:
    """Messages of Chat Completions as the benchmark's own."""
    from tau2.data_model.message import AssistantMessage, ToolCall, ToolMessage, UserMessage

    made: list[Any] = []
    for message in messages:
        role, content = message["role"], message["content"]
        if role == "user":
            made.append(UserMessage(role="user", content=content))
        elif role == "tool":
            call_id = message["tool_call_id"]
            made.append(
                ToolMessage(id=call_id, role="tool", content=content, requestor="assistant")
            )
        else:
            calls = [
                ToolCall(id=c["id"], name=c["function"]["name"], arguments=arguments_of(c))
                for c in message.get("tool_calls") or ()
            ]
            made.append(AssistantMessage(role=role, content=content, tool_calls=calls or None))
    return made
