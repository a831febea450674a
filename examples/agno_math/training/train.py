"""Train the agent: `python -m training.train`, from this example's folder.

    python -m training.train --dry-run
    python -m training.train --iterations 3 --train-size 5
    python -m training.train --algorithm rl
    python -m training.train --algorithm sft --model PATH_OR_ID

`apo` searches for a better prompt with the model that `.env` names; `sft` and `rl` train the
weights of your own model, or of a small policy that is made here. All three are tested on the same
tasks, so that `tutelage compare RUN RUN RUN` can set them side by side.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2

from training.agent import AgentManager, resources, solve
from training.config import (
    AgentConfig,
    TrainingConfig,
    asked_collector,
    configure,
    read_arguments,
)
from training.database import KeepRollouts, TrainingDb
from training.dataset import generate
from training.printout import Printout, iterations, outcome
from tutelage import APO, RL, SFT, Trainer, TrainingResult, TutelageError
from tutelage.engine.endpoint import read_endpoints, read_environment
from tutelage.errors import ConfigError
from tutelage.runs.folder import new_run_path
from tutelage.runs.progress import Progress
from tutelage.runs.signals import exit_code, handle_signals
from tutelage.runs.stored_evaluation import StoredEvaluation, read_evaluation

SFT_BATCH = 8


class Notes(Progress):
    """A `Progress` that prints what is worth a line; `Printout` prints the iterations."""

    def start(self, title: str, lines: Any) -> None:
        """The job begins."""
        print(title, *(f"  {name}: {value}" for name, value in lines.items()), sep="\n", flush=True)

    def note(self, text: str) -> None:
        """A warning, such as a collector that cannot be reached."""
        print(f"Note: {text}", file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit code: for apo that of the verdict."""
    given = read_arguments(arguments)
    try:
        training, agent = configure(given)
    except TutelageError as error:
        print(f"Error: {error}", file=sys.stderr)
        return error.exit_code
    if not given.dry_run and asked_collector(given) is None and training.otlp is not None:
        training = replace(training, otlp=default_collector(training.otlp))
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


def default_collector(url: str) -> str | None:
    """The address that nobody has configured, tried once: None where no collector listens."""
    with contextlib.suppress(httpx2.HTTPError, httpx2.InvalidURL, OSError):
        httpx2.post(url, content=b"", headers={"content-type": "application/x-protobuf"}, timeout=1)
        return url
    Notes().note(
        f"no collector listens at {url}, so traces stay in the run's store; start one, such as "
        "Jaeger, or name another with --otlp URL"
    )
    return None


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
        "output_dir": training.output or new_run_path(training.algorithm),
        "callbacks": [
            Printout(train_size=training.train_size),
            KeepRollouts(database, agent.sessions),
        ],
        "progress": Notes(),
        "model": training.model,
    }
    if training.algorithm == "apo":
        _check_endpoint()
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


def _check_endpoint() -> None:
    """Refuse apo without anybody to rewrite, in the words of this command."""
    if not {"gradient", "edit"} & {*read_endpoints(read_environment())}:
        raise ConfigError(
            "apo asks a model to rewrite the prompt, and no endpoint is set. Two ways out: name "
            "one in .env (OPENAI_BASE_URL or OPENAI_API_KEY; any OpenAI-compatible server, or the "
            "simulator of the README), or train weights, which needs none: --algorithm sft or "
            "--algorithm rl"
        )


async def _weights_trainer(
    training: TrainingConfig, train: Any, val: Any, shared: dict[str, Any]
) -> Trainer:
    """sft and rl: the same model, the same tasks, and demonstrations or rewards."""
    from training.policy import any_codec, base_policy, demonstrations
    from tutelage.policy.model import load_policy

    keys: dict[str, Any] = {
        "trainer.test_freq": -1,
        "trainer.save_freq": -1,
        "trainer.otlp_endpoint": training.otlp,
    }
    if training.model is None:
        base = await base_policy(training.base, seed=training.seed)
        keys |= {"agent.max_tokens_per_turn": 48, "rollout.max_len": base["max_len"]}
        shared |= {"model": training.base}
    else:
        keys |= {"agent.max_tokens_per_turn": 256, "rollout.max_len": 4096}
    shared |= {"n_runners": max(training.runners, 32)}
    if training.algorithm == "sft":
        place = Path(shared["output_dir"])
        file = place.with_name(place.name + ".demonstrations.jsonl")
        young = training.model is None
        codec = load_policy(str(training.base)).codec if young else any_codec()
        await demonstrations(train, codec, file)
        own: dict[str, Any] = {"epochs": training.iterations, "batch_size": SFT_BATCH}
        if young:  # the whole of that policy takes a rate that a pretrained model would not
            own["lr"] = 3e-4
        return Trainer(algorithm=SFT(file, {**keys, **own}), **shared)
    own = {
        "steps": training.iterations,
        "data.train_batch_size": min(8, len(train)),
        "agent.num_chains": 8,
        "actor.entropy_coeff": 0.0,  # reward alone moves the policy
        "actor.use_kl_loss": False,
    }
    if training.model is None:
        own["lr"] = 1e-4
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
    before, after = (
        read_evaluation(result.details, f"{when}_sampled") or StoredEvaluation()
        for when in ("before", "after")
    )
    print(iterations(_done(result, training), training.iterations, result.details.get("ended")))
    print(f"Result on {training.test_size} held-out tasks")
    print(*outcome(before, after), sep="\n")
    verdict = result.details.get("verdict")
    if verdict is not None:
        print(f"Verdict: {verdict}")
        prompt = (result.folder / "best_prompt.txt").read_text(encoding="utf-8")
        print("Best prompt:", *prompt.strip().splitlines(), sep="\n  ")
    print(f"Run: {result.folder}\nDatabase: {agent.database}")
    print(f"Compare: tutelage compare {result.folder} OTHER_RUN ...")
    return int(result.details.get("exit_code", 0))


def _done(result: TrainingResult, training: TrainingConfig) -> int:
    """Rounds, passes or steps that took place."""
    if training.algorithm != "sft":
        return result.steps
    passes = int(result.details["sft_steps"]) * SFT_BATCH // training.train_size
    return min(passes, training.iterations)  # the last batch may reach beyond the last pass


if __name__ == "__main__":
    handle_signals()  # SIGTERM and SIGHUP save and end like Ctrl-C
    sys.exit(main())
