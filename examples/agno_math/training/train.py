"""Train the agent: `python -m training.train`, from this example's folder.

    python -m training.train --dry-run
    python -m training.train --iterations 3 --train-size 5
    python -m training.train --algorithm rl

`apo` searches for a better prompt with the model that `.env` names; `sft` and `rl` train the
weights of a small policy that is made here. All three are tested on the same tasks, so that
`tutelage compare RUN RUN RUN` can set them side by side.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from training.agent import AgentManager, resources, solve
from training.config import AgentConfig, TrainingConfig, configure, read_arguments
from training.database import KeepTraces, TrainingDb
from training.dataset import generate
from training.printout import Printout, improvement
from tutelage import APO, RL, SFT, Trainer, TrainingResult, TutelageError
from tutelage.signals import exit_code, listen
from tutelage.train.folder import fresh_name


class Notes:
    """A `Progress` that prints what is worth a line; `Printout` prints the iterations."""

    def start(self, title: str, lines: Any) -> None:
        """The job begins."""
        print(title, *(f"  {name}: {value}" for name, value in lines.items()), sep="\n", flush=True)

    def phase(self, name: str, *, steps: int | None = None, seconds: float | None = None) -> None:
        """A phase begins; `Printout` says so."""

    def step(self, done: int, values: Any) -> None:
        """A step is complete; `Printout` says so."""

    def evaluation(self, label: str, done: int, total: int) -> None:
        """Held-out rollouts are played."""

    def note(self, text: str) -> None:
        """A warning, such as a collector that cannot be reached."""
        print(f"Note: {text}", file=sys.stderr, flush=True)

    def finish(self) -> None:
        """The job ended."""


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit code: for apo that of the verdict."""
    given = read_arguments(arguments)
    training, agent = configure(given)
    if given.dry_run and training.algorithm == "sft":
        training = replace(training, algorithm="rl")  # the agent that both train is the same
    database = TrainingDb(agent.database)

    async def run() -> int:
        # One event loop for all that plays: HTTP connections belong to the loop that opened them.
        trainer = await make_trainer(training, agent, database)
        if given.dry_run:
            return await dry_run(trainer, training, agent)
        return report(await trainer.train(solve), training, agent)

    try:
        return asyncio.run(run())
    except TutelageError as error:
        print(f"Error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt as stopped:
        print("Stopped. Run it again with the same --output to go on.", file=sys.stderr)
        return exit_code(stopped)
    finally:
        database.save()


async def make_trainer(
    training: TrainingConfig, agent: AgentConfig, database: TrainingDb
) -> Trainer:
    """The trainer of any of the three algorithms, with everything that they share."""
    manager = AgentManager(database, max_turns=agent.max_turns, most=agent.sessions)
    seed = training.seed
    train = generate("train", training.train_size, seed)
    val = [task.as_task() for task in generate("val", training.val_size, seed)]
    test = [task.as_task() for task in generate("test", training.test_size, seed)]
    shared: dict[str, Any] = {
        "test_dataset": test,
        "resources": resources(agent.prompt, manager),
        "n_runners": training.runners,
        "seed": seed,
        "output_dir": training.output or fresh_name(training.algorithm),
        "callbacks": [Printout(), KeepTraces(database, agent.sessions)],
        "progress": Notes(),
    }
    if training.algorithm == "apo":
        return Trainer(
            algorithm=APO(rounds=training.iterations),
            train_dataset=[task.as_task() for task in train],
            val_dataset=val,
            search={
                "rollouts": training.rollouts,
                "budget_usd": training.budget_usd,
                "max_turns": agent.max_turns,
                "otlp": training.otlp,
            },
            **shared,
        )
    return await _weights_trainer(training, train, val, shared)


async def _weights_trainer(
    training: TrainingConfig, train: Any, val: Any, shared: dict[str, Any]
) -> Trainer:
    """sft and rl: the same policy, the same tasks, and demonstrations or rewards."""
    from training.policy import base_policy, demonstrations
    from tutelage.policy.model import load

    base = await base_policy(training.base, seed=training.seed)
    keys: dict[str, Any] = {
        "agent.max_tokens_per_turn": 48,
        "rollout.max_len": base["max_len"],
        "trainer.test_freq": -1,
        "trainer.save_freq": -1,
        "trainer.otlp_endpoint": training.otlp,
    }
    shared |= {"model": training.base, "n_runners": max(training.runners, 32)}
    if training.algorithm == "sft":
        place = Path(shared["output_dir"])
        file = place.with_name(place.name + ".demonstrations.jsonl")
        await demonstrations(train, load(str(training.base)), file)
        # The whole of the policy is young, so it takes a rate that a pretrained model would not.
        own = {"epochs": training.iterations, "batch_size": 8, "lr": 3e-4}
        return Trainer(algorithm=SFT(file, {**keys, **own}), **shared)
    own = {
        "steps": training.iterations,
        "lr": 1e-4,
        "data.train_batch_size": min(8, len(train)),
        "agent.num_chains": 8,
        "actor.entropy_coeff": 0.0,  # reward alone moves the policy
        "actor.use_kl_loss": False,
    }
    return Trainer(
        algorithm=RL({**keys, **own}),
        train_dataset=[task.as_task() for task in train],
        val_dataset=val,
        **shared,
    )


async def dry_run(trainer: Trainer, training: TrainingConfig, agent: AgentConfig) -> int:
    """Show the configuration and play one task with the agent as it is."""
    for config in (training, agent):
        print(config)
    found = await trainer.preflight(solve, n=1)
    for rollout in found.rollouts:
        last = rollout.last
        print(f"\nTask: {rollout.task.fields['question']}")
        for call in last.calls:
            said = [f"{c.name}({c.arguments})" for c in call.reply.tool_calls]
            print(f"  model: {call.reply.content or ''}{' '.join(said)}")
        reward = "none" if rollout.reward is None else f"{rollout.reward.value:g}"
        print(f"Answer: {last.answer!r}, reward {reward}")
    for failure in found.failures:
        print(f"Failed: {failure}", file=sys.stderr)
    print("\nDry run: one task was played; nothing was trained.")
    return 1 if found.failures else 0


def report(result: TrainingResult, training: TrainingConfig, agent: AgentConfig) -> int:
    """Before and after on the held-out test, and where everything lies."""
    before, after = result.reward_before or 0.0, result.reward_after or 0.0
    print(f"Result on {training.test_size} held-out tasks")
    print(improvement(before, after))
    if result.success_before is not None and result.success_after is not None:
        print(f"Exact answers: {result.success_before:.1%} -> {result.success_after:.1%}")
    verdict = result.details.get("verdict")
    if verdict is not None:
        print(f"Verdict: {verdict}")
        prompt = (result.folder / "best_prompt.txt").read_text(encoding="utf-8")
        print("Best prompt:", *prompt.strip().splitlines(), sep="\n  ")
    print(f"Run: {result.folder}\nDatabase: {agent.database}")
    print(f"Compare: tutelage compare {result.folder} OTHER_RUN ...")
    return int(result.details.get("exit_code", 0))


if __name__ == "__main__":
    listen()  # SIGTERM and SIGHUP save and end like Ctrl-C
    sys.exit(main())
