"""Train the math agent of the Lightning documents: a calculator behind MCP, a reward, `VERL`.

    python examples/math_mcp/train_math_agent.py --model runs/start/policy --output runs/math-agent

The agent is a function: it asks the model, runs the tool calls that come back, and returns the
reward of its answer. The name of its LLM is the document's; the model that is trained is the one of
`Trainer(model=...)`.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grader import MathProblem, _evaluate_math_result, _load_jsonl

from tutelage import LLM, VERL, NamedResources, Trainer, TutelageError, init, rollout
from tutelage.runs.signals import exit_code, handle_signals
from tutelage.tools import Tool, execute_tool_calls, resolve_tools
from tutelage.tools.registry import close_tools
from tutelage.types import Message

HERE = Path(__file__).parent
SERVER = f"mcp:{shlex.join([sys.executable, str(HERE / 'calculator_server.py')])}"
NAME = "openai/gpt-4o-mini-2024-07-18"
MAX_TURNS = 4


@rollout(model=LLM(name=NAME), tokenizer=LLM(name=NAME, tokenizer_only=True))
async def run_task(task: MathProblem, llm: LLM, calculator: Tool) -> float:
    """Answer one problem with the calculator; 1.0 for a right answer, else 0.0."""
    messages, text = [Message("user", task["question"])], ""
    for _ in range(MAX_TURNS):
        reply = (await llm.chat(messages, tools=[calculator.spec])).reply
        text = reply.content or ""
        if not reply.tool_calls:
            break
        results = await execute_tool_calls(reply.tool_calls, {calculator.name: calculator})
        messages += [reply, *(Message("tool", r.text, (), r.call_id, r.name) for r in results)]
    return float(_evaluate_math_result(text, task["result"]))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 0 when the training finished."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="model to train: a folder, or OWNER/NAME")
    parser.add_argument("--train", type=Path, default=HERE / "train.jsonl")
    parser.add_argument("--val", type=Path, default=HERE / "val.jsonl")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("outputs/math_agent"))
    parser.add_argument("--dev", action="store_true", help="play three problems, train nothing")
    parser.add_argument("keys", nargs="*", help="keys of the algorithm, such as lr=1e-6")
    args = parser.parse_args(argv)
    try:
        tools = resolve_tools([SERVER])
        try:
            return _run(args, tools)
        finally:
            close_tools(tools)
    except TutelageError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt as stopped:
        again = f"--output {shlex.quote(str(args.output))}"
        print(f"Stopped. Run it again with the same {again} to go on.", file=sys.stderr)
        return exit_code(stopped)


def _run(args: argparse.Namespace, tools: Mapping[str, Tool]) -> int:
    init()
    keys: dict[str, Any] = dict(key.split("=", 1) for key in args.keys)
    trainer = Trainer(
        algorithm=VERL(keys),
        num_epochs=None if "steps" in keys else args.epochs,
        train_dataset=_load_jsonl(args.train),
        val_dataset=_load_jsonl(args.val),
        resources=NamedResources(tools),
        model=args.model,
        n_runners=32,
        output_dir=args.output,
    )
    if args.dev:
        print(trainer.dev(run_task))
        return 0
    result = trainer.fit(run_task)
    print(f"reward on the held-out problems: {result.reward_before} -> {result.reward_after}")
    print(f"rollouts {result.rollouts}, failures {dict(result.failures)}, run {result.folder}")
    return 0 if result.status == "finished" else 1


if __name__ == "__main__":
    handle_signals()  # SIGTERM and SIGHUP save and end like Ctrl-C
    sys.exit(main())
