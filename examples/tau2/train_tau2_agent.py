"""Train an airline's customer service agent on tau2-bench, against a simulated customer.

Two models take part: `assistant` is trained, `user` plays the customer and stays as it is: the
policy from before training, or the model of any OpenAI-compatible server. Each is asked through an
endpoint that carries its name, and only the assistant is marked as trainable, so only its tokens
have a loss. The README has the commands.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import shlex
import ssl
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx2
from tau2_benchmark import BenchmarkWorld, import_benchmark
from tau2_dialogue import Client, World, talk
from tau2_small import SmallWorld
from tau2_tasks import SMALL, SerializedTask, data_folder, load_dataset

from tutelage import LLM, VERL, LitAgent, NamedResources, Rollout, Trainer, TutelageError, init
from tutelage.runs.signals import exit_code, handle_signals

ASSISTANT, USER = "assistant", "user"
TIMEOUT = 600.0
"""Seconds for one reply, when hundreds of rollouts wait for one model."""


class Tau2Agent(LitAgent):
    """One dialogue a rollout; its reward is the benchmark's."""

    def __init__(
        self, make_world: Callable[[SerializedTask], World] = BenchmarkWorld, max_steps: int = 20
    ) -> None:
        self.make_world, self.max_steps = make_world, max_steps

    async def rollout_async(
        self, task: SerializedTask, resources: NamedResources, rollout: Rollout
    ) -> Mapping[str, float]:
        """Play the task and grade it; a dialogue that the customer did not end earns 0."""
        # Reading the database and grading take the benchmark a while: not on the event loop.
        world = await asyncio.to_thread(self.make_world, task)
        with rollout.agent(ASSISTANT):
            assistant = rollout.llm("main_llm")
        with rollout.agent(USER):
            user = rollout.llm("user_llm")
        rollout.mark_agent_as_trainable(ASSISTANT)
        async with httpx2.AsyncClient(timeout=TIMEOUT, verify=_certificates()) as http:
            dialogue = await talk(
                world, Client(assistant, http), Client(user, http), max_steps=self.max_steps
            )
        rollout.stop = dialogue.stop
        if dialogue.stop != "user_stop":
            return {"reward": 0.0, "ended": 0.0}
        graded = await asyncio.to_thread(functools.partial(world.evaluate, dialogue.messages))
        return {**graded, "ended": 1.0}


@functools.cache
def _certificates() -> ssl.SSLContext:
    """Read once: a client that reads them by itself takes longer than a dialogue's requests."""
    return ssl.create_default_context()


def models(user_endpoint: str | None, user_model: str, api_key: str | None) -> NamedResources:
    """The two models; without an endpoint the customer is the policy from before training."""
    user = (
        LLM(frozen=True)
        if user_endpoint is None
        else LLM(user_model, endpoint=user_endpoint, api_key=api_key)
    )
    return NamedResources({"main_llm": LLM(trainable=True), "user_llm": user})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 0 when the training finished."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="play the small airline")
    parser.add_argument("--model", required=True, help="folder of the model to train")
    parser.add_argument("--user-endpoint", help="server of the customer, up to its /v1")
    parser.add_argument("--user-model", default="gpt-4o-mini", help="its model's name")
    parser.add_argument("--user-key", help="its key")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--runners", type=int, default=16, help="dialogues at once")
    parser.add_argument("--max-steps", type=int, default=20, help="messages of a dialogue")
    parser.add_argument("--output", type=Path, default=Path("runs/tau2"))
    parser.add_argument("--dev", action="store_true", help="play three tasks and train nothing")
    parser.add_argument("keys", nargs="*", help="keys of the algorithm, such as lr=1e-6")
    args = parser.parse_args(argv)
    try:
        return _run(args)
    except TutelageError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt as stopped:
        again = f"--output {shlex.quote(str(args.output))}"
        print(f"Stopped. Run it again with the same {again} to go on.", file=sys.stderr)
        return exit_code(stopped)


def _run(args: argparse.Namespace) -> int:
    if not args.small:
        import_benchmark()
    init()
    train, val = load_dataset(SMALL if args.small else data_folder())
    keys: dict[str, Any] = dict(key.split("=", 1) for key in args.keys)
    trainer = Trainer(
        algorithm=VERL(keys),
        num_epochs=None if "steps" in keys else args.epochs,
        train_dataset=train,
        val_dataset=val,
        resources=models(args.user_endpoint, args.user_model, args.user_key),
        model=args.model,
        n_runners=args.runners,
        output_dir=args.output,
    )
    agent = Tau2Agent(SmallWorld if args.small else BenchmarkWorld, args.max_steps)
    if args.dev:
        print(trainer.dev(agent))
        return 0
    result = trainer.fit(agent)
    print(f"reward on the held-out half: {result.reward_before} -> {result.reward_after}")
    print(f"rollouts {result.rollouts}, failures {dict(result.failures)}, run {result.folder}")
    return 0 if result.status == "finished" else 1


if __name__ == "__main__":
    handle_signals()  # SIGTERM and SIGHUP save and end like Ctrl-C
    sys.exit(main())
