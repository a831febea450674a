"""`train sft`: supervised training on demonstrations of the user's own.

Token rows come from files (`tasks/demonstrations.py`). Each turn is encoded as it would have been
sampled and observed, and only what the assistant wrote is trained (`Codec.demonstration`); what
does not fit the model is refused with its file and line before any weight is read. A step draws a
batch of rows in shuffled epochs, each draw addressed by the seed tree, so a step is a function of
seed and number and the phase goes on after any kill as if nothing had been. The step itself is
`cold_start.py`'s: mean negative log-likelihood over the batch's trained tokens. Tasks of `--test`
are played before and after where they are given. `phases.py` has what all phases share.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from tutelage.agents.builtin import told_by_template
from tutelage.config import RunConfig
from tutelage.errors import DataError, ModelError
from tutelage.policy.codec import Codec
from tutelage.policy.machine import choose, set_threads
from tutelage.policy.model import Policy, build, load, load_codec, max_positions
from tutelage.policy.packing import plan_micro_batches
from tutelage.policy.row import Row
from tutelage.resources import POLICY
from tutelage.rewards import check
from tutelage.runs.given import Given
from tutelage.runs.inputs import Tasks, load_test_tasks, load_tools, told_tools
from tutelage.seeds import SeedTree
from tutelage.tasks.demonstrations import Demonstration, load_demonstrations, overlap_of
from tutelage.types import JSON
from tutelage.weights import cold_start
from tutelage.weights.checkpoint import State
from tutelage.weights.context import Context
from tutelage.weights.optim import learning_rate_share, make_optimizer
from tutelage.weights.phases import SFT, end_step, ended, restore, seconds_left
from tutelage.weights.sampling import epoch_places
from tutelage.weights.setting import Lessons, Setting, adapted, reward_for

EMBEDDED_LENGTH = 1024
"""Positions of a policy that is made for the demonstrations, unless `data.max_length` is more."""

LEARNED = ("epochs", "trained_tokens", "train_loss_before", "train_loss_after")
"""What the phase remembers of its steps: passes over the examples, tokens from which it learned,
and the loss of the first and of the last batch."""


# ---------------------------------------------------------------- what it works with


def prepare_sft(
    config: RunConfig, policy_folder: Path | None = None, given: Given | None = None
) -> Setting:
    """Make the setting of a run. Every row is read and encoded before any weight is.

    `policy_folder` overrides where the policy comes from (resume); `given` is the Python agent
    that plays the test tasks, where there is one.
    """
    train = load_demonstrations(config.data.train_files)
    val = load_demonstrations(config.data.val_files)
    tasks = Tasks((), (), load_test_tasks(config) if given is None else given.test or ())
    reward = reward_for(config, given)
    if tasks.test and (given is None or given.reward is not None):
        check(reward, tasks.test)
    tools = load_tools(config) if tasks.test and given is None else {}
    seeds = SeedTree(config.seed)
    source = config.model.path if policy_folder is None else str(policy_folder)
    handed = None if given is None else given.policies.get(POLICY)
    if handed is not None:
        policy = handed
        if policy_folder is not None:  # the object is trained, from where the run began
            policy.load_tensors(dict(load(str(policy_folder)).named()))
        lessons = _lessons(config, policy.codec, policy.max_positions, train, val)
    elif source is None:
        policy = _fresh(config, train, seeds)
        lessons = _lessons(config, policy.codec, policy.max_positions, train, val)
    else:
        template = config.agent.template if policy_folder is None else None
        told = told_by_template(config.agent.agent_type, tools) if config.agent.tools else []
        known, codec = load_codec(source, template=template, tools=told)
        lessons = _lessons(config, codec, max_positions(known), train, val)
        policy = load(source, template=template)
        policy = adapted(policy, config)
    tools = told_tools(config, tools, knows_tools=policy.codec.knows_tools)
    choice = choose(config, policy.count())
    if choice.device != policy.device:
        policy = policy.to(choice.device)
    set_threads(choice, config, policy.count())
    return Setting(
        config,
        seeds,
        tasks,
        tools,
        reward,
        policy,
        choice,
        given=given,
        lessons=lessons,
        overlap=overlap_of(train, val, tasks.test),
    )


def _fresh(config: RunConfig, shown: Sequence[Demonstration], seeds: SeedTree) -> Policy:
    """The embedded policy, with a tokenizer of what the demonstrations say."""
    return build(
        _texts(shown[:2000]),
        size=config.model.size,
        layout=config.model.layout,
        seed=seeds.child("weights").value(),
        max_positions=max(EMBEDDED_LENGTH, config.data.max_length or 0),
    )


def _lessons(
    config: RunConfig,
    codec: Codec,
    positions: int,
    train: Sequence[Demonstration],
    val: Sequence[Demonstration],
) -> Lessons:
    limit = min(positions, config.data.max_length or positions)
    return Lessons(_encode(codec, train, limit), _encode(codec, val, limit))


def _encode(codec: Codec, shown: Sequence[Demonstration], limit: int) -> list[Row]:
    """The rows of demonstrations, each of at most `limit` tokens.

    Raises `DataError` with file and line for one that is longer, or that the chat template refuses.
    """
    return [_row(codec, one, limit) for one in shown]


def _texts(shown: Sequence[Demonstration]) -> Iterator[str]:
    """What demonstrations say, for a tokenizer of their own."""
    for one in shown:
        if one.tools:
            names = (
                f"{t.name}({', '.join(t.parameters.get('properties', {}))})" for t in one.tools
            )
            yield f"system\nTools: {' '.join(names)}\nuser\nassistant\ntool\n"
        for message in one.messages:
            if message.content:
                yield message.content
            for call in message.tool_calls:
                yield f'{{"name": "{call.name}", "arguments": {call.arguments}}}'


def _row(codec: Codec, one: Demonstration, limit: int) -> Row:
    try:
        row = Row(*codec.demonstration(one.messages, one.tools))
    except ModelError as error:
        raise DataError(f"{one.place}: field 'messages': {error}") from error
    if len(row.ids) > limit:
        raise DataError(
            f"{one.place}: field 'messages' has {len(row.ids)} tokens, more than {limit}; shorten "
            "it, or raise data.max_length as far as the model allows"
        )
    return row


# ---------------------------------------------------------------- the phase


def run_sft(ctx: Context) -> None:
    """The phase, from where the checkpoint left it."""
    setting, state = ctx.setting, ctx.state
    lessons, config = setting.lessons, setting.config
    if lessons is None:
        raise TypeError("the phase of supervised training needs lessons")
    named = setting.policy.named()
    ctx.optimizer = optimizer = restore(
        ctx, make_optimizer(named, config.actor.optim, config.sft.optimizer)
    )
    limit = _steps(config, len(lessons.train))
    ctx.run.progress.phase("supervised training", steps=limit, seconds=seconds_left(ctx))
    if state.phase_step == 0 and lessons.val and config.trainer.val_before_train:
        found = _loss_of(setting, lessons.val)
        state.results["val_loss_before"] = found
        ctx.log(SFT, 0, {"val/loss": found})
    size = config.data.train_batch_size
    order = setting.seeds.child(SFT, "order")
    while not ended(ctx, SFT, limit):
        start, step = time.perf_counter(), state.phase_step
        places = epoch_places(len(lessons.train), step * size, size, order)
        rate = learning_rate_share(step, limit, config.actor.optim)
        rows = [lessons.train[i] for i in places]
        values = cold_start.supervised_step(
            setting.policy,
            optimizer,
            rows,
            setting.choice.cold_start,
            rate,
            config.actor.max_tokens_per_micro_batch,
        )
        tokens = values.pop("tokens")
        data = state.phase_data
        data["trained_tokens"] = data.get("trained_tokens", 0) + int(tokens)
        data.setdefault("train_loss_before", values["loss/sft"])
        data["train_loss_after"] = values["loss/sft"]
        data["epochs"] = (step + 1) * size / len(lessons.train)
        state.phase_step, state.tick = step + 1, state.tick + 1
        seconds = time.perf_counter() - start
        values |= {
            "lr": config.actor.optim.lr * rate,
            "epoch": data["epochs"],
            "tokens_per_second": tokens / seconds,
            "time/step": seconds,
        }
        every = config.trainer.test_freq
        if lessons.val and every > 0 and state.phase_step % every == 0:
            values["val/loss"] = _loss_of(setting, lessons.val)
        end_step(ctx, SFT, values)
    if lessons.val:
        state.results["val_loss_after"] = _loss_of(setting, lessons.val)


def learned(state: State) -> JSON:
    """What the phase has done so far, for `result.json`."""
    return {name: state.phase_data[name] for name in LEARNED if name in state.phase_data}


def _steps(config: RunConfig, total: int) -> int | None:
    """Steps of the run, when the configuration bounds them: an epoch ends with its last row."""
    trainer = config.trainer
    if trainer.total_training_steps is not None:
        return trainer.total_training_steps
    if trainer.total_epochs is not None:
        return math.ceil(trainer.total_epochs * total / config.data.train_batch_size)
    return None


@torch.no_grad()
def _loss_of(setting: Setting, rows: Sequence[Row]) -> float:
    """Mean negative log-likelihood of the rows' trained tokens, in nats."""
    policy, dtype = setting.policy, setting.choice.cold_start.dtype
    total = 0.0
    for chosen in plan_micro_batches(rows, setting.config.actor.max_tokens_per_micro_batch):
        total -= float(policy.score([rows[i] for i in chosen], dtype=dtype).logp_K.sum())
    return total / sum(sum(row.mask) for row in rows)


# ---------------------------------------------------------------- the dry run


@dataclass(frozen=True, slots=True)
class Preview:
    """What a run would learn, without learning it."""

    rows: int
    tokens: int
    trained: int
    """Tokens that the assistant wrote."""
    longest: int
    steps: int | None
    loss: float
    """Of the untrained policy on one batch, in nats a trained token."""
    pieces: tuple[tuple[str, bool], ...]
    """The first demonstration as the model sees it, in pieces, and which of them are trained."""


def preview(setting: Setting, lessons: Lessons) -> Preview:
    """What the first demonstration looks like, and how much there is."""
    first, train = lessons.train[0], lessons.train
    decode = setting.policy.codec.decode
    pairs = zip(first.ids, first.mask, strict=True)
    groups = itertools.groupby(pairs, key=lambda pair: bool(pair[1]))
    return Preview(
        rows=len(train),
        tokens=sum(len(row.ids) for row in train),
        trained=sum(sum(row.mask) for row in train),
        longest=max(len(row.ids) for row in train),
        steps=_steps(setting.config, len(train)),
        loss=_loss_of(setting, train[: setting.config.data.train_batch_size]),
        pieces=tuple((decode([i for i, _ in group]), trained) for trained, group in groups),
    )
