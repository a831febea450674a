"""What is done about rollouts that are cut off: a length penalty, a mask, a bootstrapped value. And
what failed tool calls cost."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from tutelage.cli import build_app
from tutelage.errors import ConfigError
from tutelage.policy.numerics import Numerics
from tutelage.policy.row import Row
from tutelage.runs.metrics import is_truncated
from tutelage.seeds import SeedTree
from tutelage.store import open_store
from tutelage.types import Rollout, ToolResult
from tutelage.weights.batch import add_advantages, make_rows
from tutelage.weights.critic import Critic
from tutelage.weights.learner import Learner

from .samples import config, learn, rollout, step_of_rollouts
from .test_batch import turns
from .test_critic import GAE, value_model
from .tiny_job import material, overrides

Fresh = Callable[..., Any]
BUFFER = "reward_model.overlong_buffer"


def penalty_in_verl(length: int, most: int, buffer: int, factor: float) -> float:
    """As in verl's DAPO reward manager, line by line."""
    expected_len = most - buffer
    exceed_len = length - expected_len
    return min(-exceed_len / buffer * factor, 0)


def cut_off(policy: Any, seed: int = 0) -> list[Rollout]:
    """A step of which every third rollout was cut off."""
    out: list[Rollout] = []
    for i, one in enumerate(step_of_rollouts(policy, seed)):
        stop = ("token_budget", "answer", "answer")[i % 3]
        out.append(replace(one, attempts=(replace(one.last, stop=stop),)))
    return out


@pytest.mark.parametrize(
    ("reward", "failed", "penalty", "left"),
    [
        (1.0, 0, 0.2, 1.0),
        (1.0, 1, 0.2, 0.8),
        (0.5, 2, 0.2, 0.3),
        (1.0, 7, 0.2, 0.0),
        (0.0, 3, 0.2, 0.0),
        (-1.0, 1, 0.2, -1.0),
        (1.0, 2, 0.0, 1.0),
    ],
)
def test_failed_tool_calls_cost_a_success_and_no_failure(
    reward: float, failed: int, penalty: float, left: float
) -> None:
    one = rollout("a", "g", turns(random.Random(0), 3), reward)
    results = [ToolResult(str(i), "t", "{}", "Error", "raised") for i in range(failed)]
    results.append(ToolResult("good", "t", "{}", "2"))
    one = replace(one, attempts=(replace(one.last, tool_results=tuple(results)),))
    batch = make_rows([one], config(f"reward_model.tool_error_penalty={penalty}"))
    (played,) = batch.rollouts
    assert played.reward == pytest.approx(left)
    assert float(batch.rewards_BT.sum()) == pytest.approx(left)
    assert played.success is (reward == 1.0), "what is reported as success is not changed"
    told = batch.group_metrics.get("reward/tool_errors", 0.0)
    assert told == pytest.approx(left - reward)


def test_the_length_penalty_is_verls() -> None:
    rng = random.Random(0)
    played = [rollout(str(i), "g", turns(rng, 1 + i % 5), float(i % 2)) for i in range(12)]
    keys = (f"{BUFFER}.enable=true", f"{BUFFER}.len=8", f"{BUFFER}.penalty_factor=0.5")
    batch = make_rows(played, config(*keys, "rollout.response_length=16"))
    lengths = [sum(len(c.sampled.token_ids) for c in r.last.calls) for r in played]
    wanted = [i % 2 + penalty_in_verl(n, 16, 8, 0.5) for i, n in enumerate(lengths)]
    assert [one.reward for one in batch.rollouts] == pytest.approx(wanted)
    assert batch.rewards_BT.sum() == pytest.approx(sum(wanted))
    assert min(lengths) <= 8 < 16 < max(lengths), "without a penalty, and with more than all of it"
    assert [one.success for one in batch.rollouts] == [bool(i % 2) for i in range(12)]


@pytest.mark.parametrize("size", [0, 21])
def test_a_buffer_that_the_response_has_no_room_for_is_refused(size: int) -> None:
    keys = (f"{BUFFER}.enable=true", f"{BUFFER}.len={size}", "rollout.response_length=20")
    with pytest.raises(ConfigError, match=r"overlong_buffer\.len=4"):
        config(*keys)


def test_what_was_cut_off_counts_in_its_group_and_has_no_loss(fresh: Fresh) -> None:
    policy = fresh("qwen2", 1)
    played = cut_off(policy)
    settings = config("algorithm.mask_truncated=true", "actor.ppo_mini_batch_size=4")
    masked = add_advantages(make_rows(played, settings), settings)
    plain = add_advantages(make_rows(played, config()), config())
    left = {n for n, r in enumerate(played) if is_truncated(r)}
    assert masked.left_out == left
    assert len(left) == 4
    parts = masked.mini_batches(4, SeedTree(0))
    rows = sorted(b for part in parts for b in part)
    assert rows == [b for b, n in enumerate(masked.rollouts_B) if n not in left]
    for b, number in enumerate(masked.rollouts_B):
        kept = torch.equal(masked.advantages_BT[b], plain.advantages_BT[b])
        assert kept if number not in left else not masked.advantages_BT[b].any()
    assert masked.zero_variance == plain.zero_variance


def test_a_step_that_was_cut_off_altogether_changes_nothing(fresh: Fresh) -> None:
    policy = fresh("qwen2", 1)
    settings = config("algorithm.mask_truncated=true")
    learner = Learner(policy, settings, Numerics())
    before = policy.snapshot()
    played = [r for r in cut_off(policy) if is_truncated(r)]
    _, told = learn(learner, played)
    assert told["grad_norm"] == 0.0
    assert all(torch.equal(tensor, before[name]) for name, tensor in policy.named_tensors())


def test_a_cut_is_worth_what_would_have_followed(fresh: Fresh) -> None:
    """`gamma` times the value of the state after the last token is added to the reward there."""
    policy = fresh("qwen2", 1)
    settings = config(*GAE, "algorithm.bootstrap_truncated=true", "algorithm.gamma=0.9")
    model = value_model(policy)
    critic, played = Critic(model, settings, Numerics()), cut_off(policy)
    batch = make_rows(played, settings)
    following_BT = critic.bootstrap_values(batch)
    assert following_BT is not None
    last = {n: b for b, n in enumerate(batch.rollouts_B)}
    for number, b in last.items():
        if not is_truncated(played[number]):
            assert not following_BT[b].any()
            continue
        row = batch.rows[b]
        end = max(i for i, m in enumerate(row.mask) if m)
        after = Row((*row.ids[: end + 1], 0), (*(0,) * (end + 1), 1))
        wanted = float(model.values([after]).values[0].detach())
        assert float(following_BT[b, end]) == pytest.approx(wanted, abs=1e-5)
    values_BT = critic.values(batch.rows)
    one = add_advantages(batch, settings, values_BT=values_BT)
    two = add_advantages(batch, settings, values_BT=values_BT, bootstrap_BT=following_BT)
    for b in last.values():
        end = int(batch.mask_BT[b].nonzero()[-1])
        gain = float(two.returns_BT[b, end] - one.returns_BT[b, end])
        assert gain == pytest.approx(0.9 * float(following_BT[b, end]), abs=1e-5)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return material(tmp_path_factory.mktemp("source"))


@pytest.mark.full
@pytest.mark.parametrize(
    "keys",
    [
        {f"{BUFFER}.enable": "true", f"{BUFFER}.len": 8, "algorithm.mask_truncated": "true"},
        {"algorithm.adv_estimator": "gae", "algorithm.bootstrap_truncated": "true"},
    ],
)
def test_the_command_trains_with_them(source: Path, tmp_path: Path, keys: dict[str, Any]) -> None:
    out = tmp_path / "run"
    more = [f"{key}={value}" for key, value in keys.items()]
    given = overrides(source, trainer__total_training_steps=2, rollout__response_length=12)
    args = ["train", "math", "--output", str(out), *given, *more]
    done = CliRunner().invoke(build_app(), args)
    assert done.exit_code == 0, done.output
    assert not [key for key in keys if f"{key} has no effect" in done.output]
    told = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in told if line["phase"] == "rl"]
    assert any(line["rollout/truncated"] > 0 for line in lines)
    if "algorithm.mask_truncated" not in keys:
        without = [*args[:3], str(tmp_path / "without"), *given, more[0]]
        assert CliRunner().invoke(build_app(), without).exit_code == 0
        trained = [(out.parent / n / "policy" / "model.safetensors") for n in ("run", "without")]
        assert trained[0].read_bytes() != trained[1].read_bytes()
        return
    assert all(line["reward/overlong"] < 0 for line in lines)
    with open_store(out / "store.db", create=False) as store:
        cut = {r.id for r in store.rollouts("run") if is_truncated(r)}
        rows = [row for row in store.training_rows("run") if row.rollout_id in cut]
    assert rows
    assert all(row.advantage == 0 and row.logprobs is None for row in rows)
