"""agentlightning 0.3.0's APO on the simulator, at its defaults or set narrow by hand.

Run by its own Trainer, store and runner (one, in the process; its OtelTracer, heartbeats off). The
agent emits a span with the messages, as its own instrumentation of an OpenAI client does, since the
critique reads them. The ceilings stop it between evaluations, with the best prompt it then has.

For the comparison of quality two things that cost time and change no result are replaced: its sleep
of 2 s between polls, and the rendering of its five prompt files, which starts a program each time:
`poml` renders each file once with marks, the marks are replaced (`--as-is` leaves both alone; the
speed is measured so).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import random
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
logging.disable(logging.CRITICAL)

import agentlightning.algorithm.apo.apo as module  # noqa: E402
from agentlightning import LitAgent, Trainer  # noqa: E402
from agentlightning.adapter.messages import TraceToMessages  # noqa: E402
from agentlightning.algorithm.apo import APO  # noqa: E402
from agentlightning.execution import SharedMemoryExecutionStrategy  # noqa: E402
from agentlightning.runner import LitAgentRunner  # noqa: E402
from agentlightning.tracer.otel import OtelTracer  # noqa: E402
from agentlightning.types import PromptTemplate  # noqa: E402
from benchmarks.prompt.peers.client import Client, Spent, data, graded, main  # noqa: E402
from benchmarks.prompt.worlds import World  # noqa: E402

logging.disable(logging.CRITICAL)
CACHE = Path(tempfile.gettempdir()) / "agentlightning-prompts.json"


class Agent(LitAgent[Any]):
    """Plays one task with the prompt of the round."""

    def __init__(self, here: World, client: Client) -> None:
        super().__init__()
        self._world, self._client = here, client

    def rollout(self, task: Any, resources: Any, rollout: Any) -> float:
        import opentelemetry.trace as api

        (prompt,) = [r.template for r in resources.values() if hasattr(r, "template")]
        with api.get_tracer("agent").start_as_current_span("openai.chat.completion") as span:
            reply, grade = graded(self._world, self._client, prompt, task)
            said = [("system", prompt), ("user", task["question"])]
            for i, (role, text) in enumerate(said):
                span.set_attribute(f"gen_ai.prompt.{i}.role", role)
                span.set_attribute(f"gen_ai.prompt.{i}.content", text)
            span.set_attribute("gen_ai.completion.0.role", "assistant")
            span.set_attribute("gen_ai.completion.0.content", reply)
        return grade.reward


class Bounded(APO[Any]):
    """Its APO under the ceilings; nothing else is changed."""

    client: Client

    async def evaluate_prompt_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        tasks = args[2] if len(args) > 2 else kwargs["dataset"]
        if len(tasks) > self.client.rollouts_left:
            raise Spent
        return await super().evaluate_prompt_on_batch(*args, **kwargs)

    async def run(self, *args: Any, **kwargs: Any) -> None:
        with contextlib.suppress(Spent):
            await super().run(*args, **kwargs)


def openai_client(client: Client) -> Any:
    """What its APO uses of an OpenAI client."""

    async def create(model: str, messages: Any, temperature: float) -> Any:
        text = client.optimiser([dict(m) for m in messages], temperature=temperature)
        return SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(content=text))])

    return SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))


def search(here: World, client: Client, seed: int, given: argparse.Namespace) -> str:
    """The prompt of its `get_best_prompt`."""
    random.seed(seed)
    train, val = data(here, seed)
    narrow = {"beam_width": 2, "branch_factor": 2, "beam_rounds": 10} if given.narrow else {}
    found = Bounded(openai_client(client), **narrow)
    found.client = client
    runner = LitAgentRunner[Any](
        OtelTracer(), poll_interval=0.005, interval_jitter=0.0, heartbeat_interval=0
    )
    trainer = Trainer(
        n_runners=1,
        tracer=OtelTracer(),
        runner=runner,
        adapter=TraceToMessages(),
        strategy=SharedMemoryExecutionStrategy(
            n_runners=1, main_thread="algorithm", graceful_delay=0.05
        ),
        algorithm=found,
        initial_resources={"prompt": PromptTemplate(template=here.seed_prompt, engine="f-string")},
    )
    trainer.fit(Agent(here, client), train_dataset=train, val_dataset=val)
    return found.get_best_prompt().template


def quicken(cache: Path) -> None:
    """No sleep of seconds between polls, and its prompt files rendered once."""

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.01))

    module.asyncio = SimpleNamespace(sleep=sleep)
    real = module.poml.poml
    known = json.loads(cache.read_text()) if cache.exists() else {}

    def poml(template: Path, context: Any, format: str) -> Any:
        shown = context.get("experiments", [])
        key = f"{template.name}/{len(shown)}/{sum(len(e['spans']) for e in shown)}"
        if key not in known:
            marked = [
                {
                    "status": f"@@status{i}@@",
                    "final_reward": f"@@reward{i}@@",
                    "messages": [f"@@messages{i}@@"],
                    "spans": [{"mark": f"@@span{i}.{j}@@"} for j in range(len(e["spans"]))],
                }
                for i, e in enumerate(shown)
            ]
            texts = {"prompt_template": "@@prompt@@", "critique": "@@critique@@"}
            known[key] = real(template, context={**texts, "experiments": marked}, format=format)
            cache.write_text(json.dumps(known))
        text = {"@@prompt@@": context["prompt_template"], "@@critique@@": context.get("critique")}
        for i, e in enumerate(shown):
            text[f"@@status{i}@@"], text[f"@@reward{i}@@"] = e["status"], e["final_reward"]
            text[f'["@@messages{i}@@"]'] = json.dumps(e["messages"], default=str)
            for j, span in enumerate(e["spans"]):
                text[f'{{"mark":"@@span{i}.{j}@@"}}'] = json.dumps(span, default=str)
        made = [dict(m) for m in known[key]["messages"]]
        for message in made:
            for mark, said in text.items():
                message["content"] = message["content"].replace(mark, str(said))
            assert "@@" not in message["content"], message["content"]
        return {"messages": made}

    module.poml = SimpleNamespace(poml=poml, set_trace=None)


def options(parser: Any) -> None:
    parser.add_argument("--narrow", action="store_true")
    parser.add_argument("--as-is", action="store_true")
    parser.add_argument("--cache", type=Path, default=CACHE)


if __name__ == "__main__":
    if "--as-is" not in sys.argv:
        at = sys.argv.index("--cache") + 1 if "--cache" in sys.argv else None
        quicken(Path(sys.argv[at]) if at else CACHE)
    main("agentlightning 0.3.0 APO", search, options)
    os._exit(0)
