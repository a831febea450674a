"""The policy of a prompt search without an endpoint: how it is trained.

It is trained from random weights on examples: random prompts, of useful and useless phrases
(`prompt_phrases.py`), and what an agent does that obeys just those. It calls the calculator, calls
`sum_1_to_n`, makes one call at a time, states its answer in the form that the grader reads, and
writes the value in full, each only where its prompt says so. A rule that is missing makes it err in
a typed way: it repeats the last number it read instead of calculating, takes "add up 1 to 57" for
1 + 57, or calls both tools for it and answers with the wrong result, wraps the number in a sentence
unless the question ends with "= ?", and rounds numbers of four digits and more to one. So each rule
helps some tasks, most of them only with others. `artefacts.py` trains it, in about two minutes. No
phrase of the bank that a search tries (`prompts/bank.py`) is among the wordings.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from benchmarks.house.prompt_phrases import (
    BOTH_TOOLS,
    FILLERS,
    RULES,
    USELESS,
    WORDINGS,
    Rule,
)

from tutelage.policy.machine import single_thread, thread_settings, trim_memory
from tutelage.policy.model import Policy, build_policy
from tutelage.policy.numerics import Numerics
from tutelage.policy.row import Row
from tutelage.recipes.prompted import MOST_TASKS, PROMPTED_TOOLS, SEED_PROMPT, prompted_tasks
from tutelage.runs.progress import Progress
from tutelage.seeds import SeedTree
from tutelage.tools.registry import resolve_tools
from tutelage.types import Message, Task, ToolCall
from tutelage.weights import cold_start
from tutelage.weights.optim import SUPERVISED, make_optimizer

LONG = 4
"""Digits from which on a number is rounded unless the prompt forbids it."""
_ROLES = (
    SEED_PROMPT,
    "You are a math assistant.",
    "You help people with numbers.",
    "You are a tutor.",
    "Answer the user.",
)

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
    optimizer = make_optimizer(
        policy.named_tensors(), SUPERVISED.model_copy(update={"lr": recipe.lr}), "muon"
    )
    tasks = prompted_tasks("train", MOST_TASKS, recipe.seed)
    progress.phase("building the embedded policy", steps=recipe.steps)
    numerics = Numerics(torch.float32, thread_settings()[0])
    with single_thread():
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
            rows.append(Row(*policy.codec.encode_demonstration(messages, specs)))
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


def draw_prompt(rng: random.Random) -> tuple[str, frozenset[Rule]]:
    """A training prompt and the rules it states: each rule in about half of the prompts.

    One phrase a rule, sometimes two, among up to five useless ones, in any order, one a line.
    """
    rules: list[Rule] = [rule for rule in RULES if rng.random() < 0.6]
    phrases = [rng.choice(WORDINGS[rule]) for rule in rules if rng.random() < 0.2]
    own: Sequence[Rule] = rules
    if {"calculator", "sum"} <= {*rules} and rng.random() < 0.3:
        phrases.append(rng.choice(BOTH_TOOLS))
        own = [rule for rule in rules if rule not in ("calculator", "sum")]
    phrases += [rng.choice(WORDINGS[rule]) for rule in own]
    phrases += rng.sample(USELESS, rng.randint(0, 3))
    phrases += [_filler(rng) for _ in range(rng.randint(0, 2))]
    rng.shuffle(phrases)
    role = SEED_PROMPT if rng.random() < 0.6 else rng.choice(_ROLES)
    return "\n".join([role, *phrases]), frozenset(rules)


def _filler(rng: random.Random) -> str:
    """A sentence of random common words."""
    words = rng.choices(FILLERS, k=rng.randint(3, 11))
    if rng.random() < 0.3:
        words[len(words) // 2] += rng.choice(",:;")
    return " ".join(words).capitalize() + "."


def target_turns(task: Task, rules: frozenset[Rule]) -> list[Message]:
    """What the policy is trained to do with a task when its prompt states these rules.

    The messages after the question: calls and their results where a rule leads to them, the answer.
    """
    question = str(task.fields["question"])
    calls = _calls(task, question, rules)
    value = calls[-1][2] if calls else _last_number(question)
    asked = [
        ToolCall(f"call_{i}", name, json.dumps(arguments, separators=(",", ":")))
        for i, (name, arguments, _) in enumerate(calls)
    ]
    made = [Message("assistant", tool_calls=tuple(asked))] if asked else []
    for call, (name, _, result) in zip(asked, calls, strict=True):
        made.append(Message("tool", result, tool_call_id=call.id, name=name))
    text = value if "exact" in rules else _rounded(value)
    if "form" in rules:
        return [*made, Message("assistant", f"The answer is {text}")]
    bare = question.endswith("= ?")
    return [*made, Message("assistant", text if bare else f"That makes {text} in all.")]


def _calls(
    task: Task, question: str, rules: frozenset[Rule]
) -> list[tuple[str, dict[str, object], str]]:
    """Tool, arguments and result of each call that these rules lead to, all in one turn."""
    (call,) = task.fields["calls"]
    right = (str(call["name"]), dict(call["arguments"]), str(task.fields["answer"]))
    if task.fields["family"] == "arithmetic":
        return [right] if "calculator" in rules else []
    last = _last_number(question)
    added: dict[str, object] = {"expression": f"1+{last}"}
    wrong = ("calculator", added, str(1 + int(last)))
    if "sum" not in rules:
        return [wrong] if "calculator" in rules else []
    confusing = question.startswith("Add up") and "single" not in rules
    return [right, wrong] if confusing else [right]


def _last_number(question: str) -> str:
    return re.findall(r"\d+", question)[-1]


def _rounded(value: str) -> str:
    """A long number cut to its leading digit: 3910 becomes 3000, 391 stays."""
    sign, digits = ("-", value[1:]) if value.startswith("-") else ("", value)
    return value if len(digits) < LONG else sign + digits[0] + "0" * (len(digits) - 1)
