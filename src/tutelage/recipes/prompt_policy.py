"""The embedded default of prompt search: a small policy that obeys its prompt, built once.

The policy is trained from scratch on examples of `prompted.py`: random prompts, of useful and
useless phrases, and what an agent does that obeys just those. That its prompt matters was trained
in. It is a real network with real decoding and tools, on which a search can be run without a key,
and no benchmark of language models. The first use builds it in about a minute and keeps it in the
user's cache directory, under a hash of the recipe, the examples and the training code; a change of
any of them builds another, and the three that were used last are kept. `prompts/bank.py`
has the phrases that a search tries.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import torch

from tutelage import files
from tutelage.errors import ConfigError, ModelError
from tutelage.policy.machine import bfloat16_pays, one_thread, threads_of, trim_memory
from tutelage.policy.model import Policy, build_policy, load_policy
from tutelage.policy.numerics import Numerics
from tutelage.policy.row import Row
from tutelage.policy.template import CHAT_TEMPLATE
from tutelage.policy.tokenizer import ISOLATED
from tutelage.recipes.phrases import BOTH_TOOLS, FILLERS, USELESS, WORDINGS
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

KEPT = 3
"""Policies of the cache, the newest included; older ones are removed when another is built."""
_WORK = "builds the embedded policy"
RECORD = "built.json"
"""What is kept beside the weights: the recipe, and how long the build took."""


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


@dataclass(frozen=True, slots=True)
class _Built:
    """A policy from the cache. `seconds` and `cpu_seconds` are what its build took, once."""

    policy: Policy
    folder: Path
    fresh: bool
    """Whether it was built just now."""
    seconds: float
    cpu_seconds: float


def built_policy(
    cache: Path | None = None,
    *,
    recipe: PolicyRecipe | None = None,
    progress: Progress | None = None,
) -> _Built:
    """The policy with where it lies and what its build took.

    `cache` is a folder for all recipes, by default `tutelage/prompt-policy` in the user's cache
    directory. Processes that want the same policy at once build it once: the others wait. A build
    that is stopped leaves no policy behind. Raises `ConfigError` when the cache cannot be written.
    """
    recipe, progress = recipe or PolicyRecipe(), progress or Progress()
    root = files.cache_folder("prompt-policy") if cache is None else cache
    folder = root / fingerprint(recipe)
    built = _kept(folder, progress)
    if built is not None:
        return built
    try:
        root.mkdir(parents=True, exist_ok=True)
        with files.locked(root / f"{folder.name}.lock", progress.note, _WORK) as alone:
            built = _kept(folder, progress)  # another process may have built it meanwhile
            if built is None and alone:
                for left in root.glob(f"{folder.name}.*/"):  # by a build that was killed
                    shutil.rmtree(left, ignore_errors=True)
            return built or _build_into(folder, recipe, progress)
    except OSError as error:
        raise ConfigError(
            f"cannot keep the embedded policy in {str(root)!r}: {error}; make that folder "
            "writable, or set XDG_CACHE_HOME to one that is"
        ) from error


def fingerprint(recipe: PolicyRecipe | None = None) -> str:
    """A hash of what decides the weights: recipe, seed, examples, template, and the training code.

    Of the examples the phrases and a sample count, so that a comment elsewhere rebuilds nothing.
    """
    recipe = recipe or PolicyRecipe()
    rng = SeedTree(recipe.seed).child("fingerprint").python()
    demonstrations: list[object] = []
    for task in prompted_tasks("train", 100, recipe.seed):
        prompt, rules = draw_prompt(rng)
        demonstrations.append((task.id, dict(task.fields), prompt, target_turns(task, rules)))
    values = (
        (metadata.version("tutelage"), asdict(recipe), str(_dtype()), CHAT_TEMPLATE, ISOLATED),
        (sorted(WORDINGS.items()), BOTH_TOOLS, USELESS, FILLERS, demonstrations),
    )
    digest = hashlib.blake2b(repr(values).encode(), digest_size=10)
    for function in (train_policy, training_rows, cold_start.supervised_step, _corpus):
        digest.update(inspect.getsource(function).encode())
    return digest.hexdigest()


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
    numerics = Numerics(_dtype(), threads_of()[0])
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


def _dtype() -> torch.dtype:
    """Activations of the build; weights are float32 in any case."""
    return torch.bfloat16 if bfloat16_pays() else torch.float32


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


def _kept(folder: Path, progress: Progress) -> _Built | None:
    """The policy of a folder of the cache; None if there is none, or it is broken."""
    if not folder.is_dir():
        return None
    try:
        record = json.loads((folder / RECORD).read_text())
        policy = load_policy(str(folder))
        with suppress(OSError):  # a cache that others own, or that may only be read
            os.utime(folder / RECORD)
        return _Built(policy, folder, False, record["seconds"], record["cpu_seconds"])
    except (ModelError, OSError, ValueError, KeyError) as error:
        progress.note(f"the embedded policy in {folder} is broken and is built again: {error}")
        shutil.rmtree(folder, ignore_errors=True)
        return None


def _build_into(folder: Path, recipe: PolicyRecipe, progress: Progress) -> _Built:
    """Build beside `folder`, then rename: the folder is there whole, or not at all."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}.") as aside:
        wall, cpu = time.perf_counter(), time.process_time()
        policy = train_policy(recipe, progress)
        seconds, cpu_seconds = time.perf_counter() - wall, time.process_time() - cpu
        made = Path(aside) / "policy"
        policy.save(made)
        record = {"recipe": asdict(recipe), "seconds": seconds, "cpu_seconds": cpu_seconds}
        (made / RECORD).write_text(json.dumps(record, indent=2) + "\n")
        try:
            os.replace(made, folder)
        except OSError:
            if not folder.is_dir():
                raise
            # Where files cannot be locked another process came first, with the same policy.
    _prune(folder)
    progress.note(f"the embedded policy was built in {seconds:.0f} s and lies in {folder}")
    # What is read back is what the next use gets.
    return _Built(load_policy(str(folder)), folder, True, seconds, cpu_seconds)


def _prune(newest: Path) -> None:
    """Remove policies of older recipes, but for the few that were used last.

    What is lost by that is the time of a build: another installed version may still want its own.
    """
    used: list[tuple[float, Path]] = []
    for folder in newest.parent.iterdir():
        with suppress(OSError):
            if folder != newest:
                used.append(((folder / RECORD).stat().st_mtime, folder))
    for _, folder in sorted(used, reverse=True)[KEPT - 1 :]:
        shutil.rmtree(folder, ignore_errors=True)
