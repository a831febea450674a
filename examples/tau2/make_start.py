"""A model to start the small airline from, made in a minute: it talks, but mostly serves badly.

A fresh model of 0.6 million parameters learns both roles from demonstrations. The customer's are
right. Of the assistant's, a stated share skips the work: it says that all is done and calls no
tool, or cancels what must not be cancelled. So reinforcement learning has something to find out.
All of the small airline's tasks are shown, so what it improves is the choice, not the skill.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from tau2_dialogue import GREETING
from tau2_small import SmallWorld
from tau2_tasks import SMALL, SerializedTask, load_rows

from tutelage.files import describe_folder
from tutelage.policy.model import Policy, build_policy
from tutelage.policy.row import Row
from tutelage.seeds import SeedTree
from tutelage.types import Message, ToolCall, ToolSpec
from tutelage.weights.optim import SUPERVISED, make_optimizer

STEPS, BATCH, RATE = 240, 16, 3e-3


def assistant_turns(task: dict[str, Any], world: SmallWorld, bad: bool) -> list[Message]:
    """The assistant's turns after the request, with what the tools answer."""
    actions = [(a["name"], a["arguments"]) for a in task["evaluation_criteria"]["actions"]]
    refused = "cancel" in _asked(task) and len(actions) == 1
    if bad:
        where = actions[0][1]
        actions = [("cancel_reservation", where)] if refused else []
    turns: list[Message] = []
    text = "Done."
    for i, (name, arguments) in enumerate(actions):
        call = ToolCall(f"c{i}", name, json.dumps(arguments))
        result, _ = world.call(call.id, name, arguments)
        turns += [
            Message("assistant", None, (call,)),
            Message("tool", result, tool_call_id=call.id, name=name),
        ]
        if "cost" in _asked(task):
            text = f"It cost {result.split()[1].strip(',')}."
    if refused and not bad:
        text = "Sorry, it has no insurance."
    return [*turns, Message("assistant", text)]


def demonstrations(row: SerializedTask, bad: bool) -> list[tuple[list[Message], list[ToolSpec]]]:
    """Both sides of one dialogue, each as its model sees it."""
    task, world = json.loads(row["data"]), SmallWorld(row)
    turns = assistant_turns(task, world, bad)
    tools = [ToolSpec(**t["function"]) for t in world.tools]
    assistant = [
        Message("system", world.assistant_prompt),
        Message("assistant", GREETING),
        Message("user", _asked(task)),
        *turns,
    ]
    user = [
        Message("system", world.user_prompt),
        Message("user", GREETING),
        Message("assistant", _asked(task)),
        Message("user", turns[-1].content),
        Message("assistant", "###STOP###"),
    ]
    return [(assistant, tools), (user, [])]


def make(rows: list[SerializedTask], bad_share: float, steps: int = STEPS, seed: int = 0) -> Policy:
    """Train the model; equal arguments give equal weights."""
    shown = {bad: [demonstrations(row, bad) for row in rows] for bad in (False, True)}
    talks = [one for both in shown.values() for pair in both for one in pair]
    corpus = [json.dumps(m.to_dict()) for messages, _ in talks for m in messages]
    policy = build_policy(corpus, size="xs", seed=seed, vocab_size=640, max_positions=512)
    encoded = {
        bad: [[_row(policy, *one) for one in pair] for pair in both] for bad, both in shown.items()
    }
    rng = SeedTree(seed).child("tau2", "start").python()
    optimizer = make_optimizer(
        policy.named_tensors(), SUPERVISED.model_copy(update={"lr": RATE}), "muon"
    )
    for step in range(steps):
        picked = rng.choices(range(len(rows)), k=BATCH // 2)
        batch = [one for i in picked for one in encoded[rng.random() < bad_share][i]]
        loss = -policy.score(batch).logp_K.sum() / sum(sum(r.mask) for r in batch)
        loss.backward()
        optimizer.step(min(1.0, (step + 1) / 20, 0.05 + (steps - step) / (steps / 2)))
    return policy


def _row(policy: Policy, messages: list[Message], tools: list[ToolSpec]) -> Row:
    """Ids of a dialogue; the greeting is given, so it is not trained."""
    ids, mask = policy.codec.encode_demonstration(messages, tools)
    if messages[1].role == "assistant":
        given, _ = policy.codec.encode_demonstration(messages[:2], tools)
        mask = (0,) * len(given) + mask[len(given) :]
    return Row(ids, mask)


def _asked(task: dict[str, Any]) -> str:
    return task["user_scenario"]["instructions"]["reason_for_call"]


def main() -> None:
    """Write the model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/tau2-start"))
    parser.add_argument("--bad-share", type=float, default=0.7)
    args = parser.parse_args()
    if (content := describe_folder(args.output)) is not None:
        parser.error(f"--output {str(args.output)!r}: {content}; name another folder")
    make(load_rows(SMALL), args.bad_share).save(args.output)


if __name__ == "__main__":
    main()
