"""A policy that is sampled at an endpoint and trained here: what the server sampled is trained."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.marks import long

from tutelage import RL, Trainer, rollout
from tutelage.engine.factory import make_engine
from tutelage.errors import ConfigError, FailureBudgetError
from tutelage.gateway import AttemptSession, Gateway, ScriptedClient
from tutelage.gateway.serving import ServedPolicy
from tutelage.policy.model import Policy
from tutelage.resources import LLM
from tutelage.seeds import SeedTree
from tutelage.store import open_store
from tutelage.testing import tiny_policy
from tutelage.types import Call, Mode

TASKS = [{"id": f"t{i}", "question": f"What is {i} + 1?"} for i in range(9)]
STEPS = 2


@rollout
async def counts(task: Any, llm: LLM) -> float:
    """The reward differs within a group."""
    call = await llm.chat(task["question"], max_tokens=4)
    return float(sum(c.isdigit() for c in call.reply.content or ""))


def trainer(folder: Path, policy: Policy, attempt_session: AttemptSession, **keys: Any) -> Trainer:
    return Trainer(
        algorithm=RL(
            {
                "lr": 1e-2,
                "steps": STEPS,
                "agent.num_chains": 4,
                "data.train_batch_size": 4,
                "agent.max_tokens_per_turn": 4,
                "rollout.max_len": 128,
                "trainer.device": "cpu",
                "trainer.threads": 1,
                "trainer.val_before_train": False,
                **keys,
            }
        ),
        train_dataset=TASKS,
        policy=policy,
        output_dir=folder / "run",
        resources={"llm": LLM("main", trainable=True, api_key=attempt_session.api_key)},
        endpoints={"llm": attempt_session.base_url},
        n_runners=8,
    )


@pytest.fixture
def gateway(one_thread: None) -> Iterator[Gateway]:
    with Gateway() as found:
        yield found


def served(gateway: Gateway, policy: Policy) -> AttemptSession:
    """The policy behind our own gateway, as `tutelage serve` puts one there."""
    engine = make_engine(policy, slots=8, max_length=128, schedule="free")
    return gateway.open("served", "main", ServedPolicy(engine, policy.codec, SeedTree(0)))


def test_what_an_endpoint_sampled_is_trained(gateway: Gateway, tmp_path: Path) -> None:
    policy = tiny_policy()
    before = [t.detach().clone() for t in policy.parameters()]
    result = trainer(tmp_path, policy, served(gateway, policy)).fit(counts)
    assert (result.status, result.failures) == ("finished", {})
    assert not all(torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))
    with open_store(result.folder / "store.db") as store:
        calls = [c for r in store.rollouts("run", mode=Mode.TRAIN) for c in r.last.calls]
        rows = store.training_rows("run")
    assert len(calls) == STEPS * 4 * 4
    assert {c.policy for c in calls} == {"main"}
    assert all(c.prompt_ids and len(c.sampled.token_ids) == len(c.sampled.logprobs) for c in calls)
    assert sum(row.tokens for row in rows) == sum(len(c.sampled.token_ids) for c in calls)
    # The server computes with the policy's own tensors, so each step is on policy: what it said of
    # its samples is what the trainer says of them.
    lines = (result.folder / "metrics.jsonl").read_text().splitlines()
    steps = [line for line in map(json.loads, lines) if line["phase"] == "rl"]
    assert len(steps) == STEPS
    # An endpoint does not say of which version it samples, so only the first step is sure to be.
    assert steps[0]["max_dlogp"] < 1e-4
    assert all(abs(line["kl/rollout"]) < 1e-6 and line["grad_norm"] > 0 for line in steps)


class Refusing(ScriptedClient):
    """Has no log-probabilities, and its server says so."""

    codec = None  # type: ignore[assignment]


class Mute(ScriptedClient):
    """Gives texts and no tokens, whatever it is asked for."""

    async def chat(self, *given: Any, **options: Any) -> Call:
        call = await super().chat(*given, **options)
        sampled = replace(call.sampled, token_ids=(), logprobs=(), raw_logprobs=())
        return replace(call, sampled=sampled)


@pytest.mark.parametrize(
    ("client", "words"),
    [(Mute, "returned no token IDs"), *long((Refusing, "does not support log-probabilities"))],
)
def test_an_endpoint_that_tells_no_tokens_cannot_be_trained_on(
    gateway: Gateway, tmp_path: Path, client: type[ScriptedClient], words: str
) -> None:
    attempt_session = gateway.open("served", "main", client(["It is 2."]))
    with pytest.raises(FailureBudgetError, match=words):
        trainer(tmp_path, tiny_policy(), attempt_session).fit(counts)


def test_samples_of_another_temperature_are_refused(gateway: Gateway, tmp_path: Path) -> None:
    attempt_session = gateway.open("served", "main", ScriptedClient(["It is 2."]))
    with pytest.raises(ConfigError, match=r"rollout\.temperature=1, not 0\.7"):
        trainer(tmp_path, tiny_policy(), attempt_session, **{"rollout.temperature": 0.7}).fit(
            counts
        )
