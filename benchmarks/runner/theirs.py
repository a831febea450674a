"""No-op rollouts per second: agentlightning, by its own Trainer, runners and store.

Prints one line of JSON. `--way` is one of its execution strategies: `shm` has one runner in this
process (with several, in threads, rollouts fail here), `cs` has runners in processes that speak
HTTP to the store. The CPU time of `cs` is that of the process with the store alone. The store is in
memory, nothing is written to a disk. At its best settings: OtelTracer instead of
AgentOps, heartbeats off, no waiting between polls, no logging, rollouts enqueued in one call, and a
warm-up before the clock starts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import time
from typing import Any

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
logging.disable(logging.CRITICAL)

from agentlightning import LLM, LitAgent, Trainer, algo  # noqa: E402
from agentlightning.runner import LitAgentRunner  # noqa: E402
from agentlightning.tracer.otel import OtelTracer  # noqa: E402
from agentlightning.types import EnqueueRolloutRequest  # noqa: E402

logging.disable(logging.CRITICAL)
found: dict[str, float] = {}


class Noop(LitAgent[Any]):
    """One span, one reward."""

    async def rollout_async(self, task: Any, resources: Any, rollout: Any) -> float:
        logging.disable(logging.CRITICAL)
        import opentelemetry.trace as api

        with api.get_tracer("bench").start_as_current_span("work"):
            pass
        return 1.0


async def batch(store: Any, count: int) -> list[str]:
    made = await store.enqueue_many_rollouts(
        [EnqueueRolloutRequest(input={"question": f"q{i}"}, mode="train") for i in range(count)]
    )
    ids = [r.rollout_id for r in made]
    while True:
        done = await store.query_rollouts(
            status_in=["succeeded", "failed"], rollout_id_in=ids[-64:]
        )
        if len(done) >= min(64, count):
            rest = await store.query_rollouts(status_in=["succeeded", "failed"], rollout_id_in=ids)
            if len(rest) >= count:
                assert all(r.status == "succeeded" for r in rest)
                return ids
        await asyncio.sleep(0.02)


def algorithm(warm: int, count: int) -> Any:
    @algo
    async def run(*, store: Any, train_dataset: Any = None, val_dataset: Any = None) -> None:
        await store.add_resources({"llm": LLM(endpoint="http://localhost", model="m")})
        await batch(store, warm)
        start, cpu = time.perf_counter(), time.process_time()
        ids = await batch(store, count)
        found["seconds"] = time.perf_counter() - start
        found["cpu"] = time.process_time() - cpu
        spans = await store.query_spans(ids[-1])
        found["spans"] = len(spans)

    return run


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=2_000)
    parser.add_argument("--runners", type=int, default=8)
    parser.add_argument("--way", choices=("shm", "cs"), default="cs")
    parser.add_argument("--port", type=int, default=24747)
    args = parser.parse_args()
    tracer = OtelTracer()
    runner = LitAgentRunner[Any](
        tracer, poll_interval=0.01, interval_jitter=0.0, heartbeat_interval=0
    )
    from agentlightning.execution import (
        ClientServerExecutionStrategy,
        SharedMemoryExecutionStrategy,
    )

    strategy: Any
    if args.way == "shm":
        strategy = SharedMemoryExecutionStrategy(
            n_runners=args.runners, main_thread="algorithm", graceful_delay=0.1
        )
    else:
        strategy = ClientServerExecutionStrategy(
            n_runners=args.runners, server_port=args.port, graceful_timeout=0.5
        )
    trainer = Trainer(
        n_runners=args.runners,
        tracer=tracer,
        runner=runner,
        strategy=strategy,
        algorithm=algorithm(20 * args.runners, args.count),
    )
    trainer.fit(Noop(), train_dataset=[{"question": "q"}])
    assert found["spans"] == 2, found
    rate = args.count / found["seconds"]
    line = {
        "rollouts_per_second": rate,
        "cpu_us": found["cpu"] / args.count * 1e6,
        "runners": args.runners,
        "way": args.way,
    }
    print(json.dumps(line), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
