"""The embedded default of prompt search: a small policy that obeys its prompt, and its training.

The policy is trained from random weights on examples of `prompted.py`: random prompts, of useful
and useless phrases, and what an agent does that obeys just those. That its prompt matters was
trained in. It is a real network with real decoding and tools, on which a search can be run without
a key, and no benchmark of language models. The package has it ready (`artefacts/prompts`);
`make artefacts` trains it again, in about two minutes. `prompts/bank.py` has the phrases that a
search tries.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from tutelage.policy.machine import one_thread, threads_of, trim_memory
from tutelage.policy.model import Policy, build_policy
from tutelage.policy.numerics import Numerics
from tutelage.policy.row import Row
from tutelage.recipes.prompted import (
    MOST_TASKS,
    PROMPTED_TOOLS,
    draw_prompt,
    prompted_tasks,
    target_turns,
)
from tutelage.runs.progress import Progress
from tutelage.seeds import SeedTree
from tutelage.tools.registry import resolve_tools
from tutelage.types import Message, Task
from tutelage.weights import cold_start
from tutelage.weights.optim import supervised_optimizer

CONTEXT = 640
"""Tokens that the policy is made for: prompts of about 25 phrases."""


@dataclass(frozen=True, slots=True)
class PolicyRecipe:
    """How the policy is trained. Each step sees `prompts` prompts with `tasks` tasks each."""

    steps: int = 300
    cooldown: int = 100
    """Steps at the end over which the learning rate falls."""
    prompts: int = 24
    tasks: int = 4
    lr: float = 3e-3
    size: str = "xs"
    layout: str = "qwen3"
    vocabulary: int = 768
    seed: int = 0


def train_policy(recipe: PolicyRecipe, progress: Progress) -> Policy:
    """Train the policy from nothing; a function of the recipe, free of clock and neighbours.

    Gradients are added in a fixed order whatever the number of threads, so equal machines give
    equal weights.
    """
    seeds = SeedTree(recipe.seed).child("prompt policy")
    policy = build_policy(
        _corpus(seeds.child("corpus")),
        size=recipe.size,
        layout=recipe.layout,
        seed=seeds.child("weights").value(),
        vocab_size=recipe.vocabulary,
        max_positions=CONTEXT,
    )
    optimizer = supervised_optimizer(policy.named(), lr=recipe.lr)
    tasks = prompted_tasks("train", MOST_TASKS, recipe.seed)
    progress.phase("building the embedded policy", steps=recipe.steps)
    numerics = Numerics(torch.float32, threads_of()[0])
    with one_thread():
        for step in range(recipe.steps):
            rows = training_rows(policy, tasks, recipe, seeds.child("step", step))
            share = cold_start.learning_rate(step, recipe.steps - recipe.cooldown, recipe.cooldown)
            values = cold_start.supervised_step(
                policy, optimizer, rows, numerics, share, _TOKENS_AT_ONCE
            )
            progress.step(step + 1, {"loss/sft": values["loss/sft"]})
            if step % _TRIM_EVERY == 0:
                trim_memory()
    return policy


def training_rows(
    policy: Policy, tasks: Sequence[Task], recipe: PolicyRecipe, seeds: SeedTree
) -> list[Row]:
    """One batch: each drawn prompt with several tasks, whose rows share its computation.

    One of them is a sum phrased as an addition, the only ones that need the rule `single`.
    """
    rng = seeds.python()
    rare = [task for task in tasks if str(task.fields["question"]).startswith("Add up")]
    specs = [tool.spec for tool in resolve_tools(PROMPTED_TOOLS).values()]
    rows: list[Row] = []
    for _ in range(recipe.prompts):
        prompt, rules = draw_prompt(rng)
        for task in [rng.choice(rare), *rng.sample(tasks, recipe.tasks - 1)]:
            messages = [Message("system", prompt), *task.messages(), *target_turns(task, rules)]
            rows.append(Row(*policy.codec.demonstration(messages, specs)))
    return rows


_TOKENS_AT_ONCE = 8192
_TRIM_EVERY = 10
"""Steps after which freed memory goes back to the system."""


def _corpus(seeds: SeedTree) -> Iterator[str]:
    """What the tokenizer is trained on: examples, and what the template says around them."""
    rng = seeds.python()
    tasks = prompted_tasks("train", 500, seeds.seed)
    for _ in range(1500):
        prompt, rules = draw_prompt(rng)
        task = rng.choice(tasks)
        tools = "Tools: calculator(expression) sum_1_to_n(n)"
        yield f"system\n{prompt}\n{tools}\nuser\n{task.fields['question']}\nassistant\ntool\n"
        for message in target_turns(task, rules):
            if message.content:
                yield message.content
            for call in message.tool_calls:
                arguments = json.dumps(json.loads(call.arguments))
                yield f'{{"name": "{call.name}", "arguments": {arguments}}}'
