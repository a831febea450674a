"""TRL's side of `grpo_step.py`: GRPO steps of word problems by `GRPOTrainer`, a JSON line each.

It runs in an environment with TRL 1.16 and is called by `grpo_step.py`, which says what is
compared. Settings, tokenizer and reward are those of `benchmarks/rl_step/trl_step.py`, at which TRL
was found to be fastest there; attention, micro-batch and cache are options. `max_new_tokens` bounds
each turn and `max_completion_length` the conversation, so that no turn is longer than ours. Its
prompts are compared with ours, token for token, before the first step.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.rl_step.trl_step import config, load_tokenizer, plain_tools, prepare, score

from tutelage.tools.builtin import ENVIRONMENTS
from tutelage.tools.tool import ToolError
from tutelage.types import Task


class Shop:
    """The project's price list as an environment of TRL: one for each rollout."""

    def reset(self, prices: str, **_: Any) -> None:
        """Take the prices of the rollout's task."""
        self._listed = ENVIRONMENTS["price_list"]()
        asyncio.run(self._listed.reset(Task("task", {"prices": json.loads(prices)}), 0))

    def lookup(self, item: str) -> str:
        """Look up the price of one item.

        Args:
            item: The name of the item.
        """
        try:
            return str(type(self._listed).lookup.fn(self._listed, item))
        except (ToolError, AttributeError) as error:
            return f"Error: {error}"


def read_tasks(path: Path) -> Any:
    """A data set of prompts, answers and prices as JSON, which differ in their keys."""
    from datasets import Dataset  # pyright: ignore[reportMissingImports]

    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return Dataset.from_dict(
        {
            "prompt": [[{"role": "user", "content": row["question"]}] for row in rows],
            "answer": [row["answer"] for row in rows],
            "prices": [json.dumps(row.get("prices", {})) for row in rows],
        }
    )


def make_trainer(args: argparse.Namespace, output: str, found: dict[str, float]) -> Any:
    """The trainer; `found` is filled with what the step's generation was."""
    import torch
    from transformers import AutoModelForCausalLM
    from trl import GRPOTrainer  # pyright: ignore[reportMissingImports]
    from trl.chat_template_utils import qwen3_template  # pyright: ignore[reportMissingImports]

    class Timed(GRPOTrainer):  # pyright: ignore[reportUntypedBaseClass]
        """TRL's trainer; only the clock is added."""

        def _generate(self, prompts: list[Any]) -> Any:
            start = time.perf_counter()
            out = super()._generate(prompts)
            found["generation"] = time.perf_counter() - start
            found["tokens"] = sum(map(sum, out[2]))
            said = [sum(m.get("role") == "assistant" for m in messages) for messages in out[3]]
            found["turns"] = sum(said) / len(said)
            return out

    def reward(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
        values = [score(c, a) for c, a in zip(completions, answer, strict=True)]
        found["reward"] = sum(values) / len(values)
        found["rows"] = len(values)
        return values

    chosen = config(args, output)
    chosen.shuffle_dataset, chosen.temperature = False, args.temperature
    model = AutoModelForCausalLM.from_pretrained(
        args.model,
        dtype=torch.bfloat16 if args.bf16_mode == "pure" else torch.float32,
        attn_implementation=args.attention,
    )
    tokenizer = load_tokenizer(args.model)
    tokenizer.response_template = qwen3_template  # its calls are written as ours are
    return Timed(
        model=model,
        reward_funcs=reward,
        args=chosen,
        train_dataset=read_tasks(args.tasks),
        processing_class=tokenizer,
        tools=plain_tools(["calculator"]),
        environment_factory=Shop,
    )


def check_prompts(trainer: Any, args: argparse.Namespace) -> None:
    """Raise unless TRL's prompts are ours."""
    from tutelage.policy.model import load_policy
    from tutelage.tools.registry import resolve_tools

    codec = load_policy(args.model).codec
    specs = [t.spec for t in resolve_tools(("calculator", "price_list")).values()]
    trainer._batch_environments = [None]
    for row in trainer.train_dataset:
        theirs = list(trainer._tokenize_prompts([row["prompt"]])[0][0])
        ours = list(
            codec.render(Task("task", {"question": row["prompt"][0]["content"]}).messages(), specs)
        )
        if theirs != ours:
            texts = [codec.tokenizer.decode(ids) for ids in (theirs, ours)]
            raise SystemExit("TRL's prompt is {!r}, ours is {!r}".format(*texts))


def parse_args() -> argparse.Namespace:
    """The command line; settings that stay as they are follow as defaults."""
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--model", required=True)
    p.add_argument("--tasks", type=Path, required=True)
    p.add_argument("--out", type=Path, required=True)
    for name in ("prompts", "group", "max_turns", "max_tokens", "steps", "threads", "seed"):
        p.add_argument(f"--{name.replace('_', '-')}", type=int, required=True)
    p.add_argument("--temperature", type=float, required=True)
    p.add_argument("--lr", type=float, required=True)
    p.add_argument("--micro-batch", type=int, required=True)
    p.add_argument("--bf16-mode", choices=["pure", "autocast"], required=True)
    p.add_argument("--attention", choices=["eager", "sdpa"], required=True)
    p.add_argument("--cache", default="")
    p.add_argument("--max-completion", type=int, default=256)
    p.set_defaults(
        dtype="bf16", malloc="keep", generate_batches=1, num_iterations=1, eval_batch=8,
        generation="{}", continuous_batching=False, loss="dapo", pad_to=0, warmup=0,
        adam_beta2=0.95, optim="adamw_torch_fused", compile=False,
    )  # fmt: skip
    return p.parse_args()


def main() -> None:
    """Train, and write a line for each step."""
    args = parse_args()
    prepare(args)
    import torch
    from transformers import PrinterCallback, TrainerCallback

    torch.set_num_threads(args.threads)
    found: dict[str, float] = {}

    class Meter(TrainerCallback):
        """Closes a step at the end of its optimizer step."""

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.start = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            now = time.perf_counter()
            seconds = now - self.start
            line = {"seconds": seconds, "update": seconds - found["generation"], **found}
            with args.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
            self.start = now

    with tempfile.TemporaryDirectory() as output:
        trainer = make_trainer(args, output, found)
        check_prompts(trainer, args)
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(Meter())
        trainer.train()


if __name__ == "__main__":
    main()
