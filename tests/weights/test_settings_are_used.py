"""Settings that once were read and had no effect change what a run does, by command."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.marks import long
from torch import Tensor
from typer.testing import CliRunner

from tutelage.cli import build_app
from tutelage.policy.model import Policy
from tutelage.runs.folder import RunFolder
from tutelage.testing import tiny_policy
from tutelage.weights.scoring import compute_logp

from .parrot import rows, write_rows
from .samples import config
from .tiny_job import material, overrides

COUNTING = """
import asyncio
from pathlib import Path
from tutelage.agents.tool_calling import ToolCallingAgent

AT_ONCE = [0]


class Counting(ToolCallingAgent):
    async def play(self, task, session, resources):
        AT_ONCE[0] += 1
        try:
            with Path("at_once.txt").open("a") as file:
                file.write(f"{session.mode.value} {AT_ONCE[0]}\\n")
            await asyncio.sleep(0)
            return await super().play(task, session, resources)
        finally:
            AT_ONCE[0] -= 1
"""


@pytest.fixture(scope="module")
def source(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return material(tmp_path_factory.mktemp("source"))


@pytest.fixture
def train(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None
) -> Callable[..., Any]:
    """`tutelage train math` on a tiny model, in an empty directory."""
    monkeypatch.chdir(tmp_path)

    def run(*options: str, **changed: object) -> Any:
        keys = overrides(source, **{"trainer__total_training_steps": 1, **changed})
        done = CliRunner().invoke(build_app(), ["train", "math", *keys, *options])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done

    return run


@pytest.mark.full
def test_a_validation_file_is_played_whole_unless_a_number_is_set(
    train: Callable[..., Any], tmp_path: Path
) -> None:
    file = write_rows(tmp_path / "val.jsonl", rows(7, 201))
    short = {"agent__max_tokens_per_turn": 1, "agent__max_turns": 1, "agent__tools": "[]"}
    for number, played in ((None, 201), (3, 3)):
        out = f"run{number}"
        done = train("--output", out, data__val_files=file, trainer__val_tasks=number, **short)
        assert done.exit_code == 0, done.output
        result = RunFolder(Path(out)).read_result()
        assert result is not None
        assert result["rollouts"] == 6 + 2 * played, "a step, and each task sampled and greedy"


@pytest.mark.full
def test_what_is_measured_before_training_is_a_metric(train: Callable[..., Any]) -> None:
    done = train("--output", "run", trainer__val_before_train="true")
    assert done.exit_code == 0, done.output
    first, *_, last = RunFolder(Path("run")).read_metrics()
    assert (first["phase"], first["step"]) == ("before", 0)
    assert first["val/rollouts_sampled"] == first["val/rollouts_greedy"] == 2
    assert "val/reward_sampled" in first
    assert last["phase"] == "after"


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"output": "run"}, "differs in seed"),
        *long(
            ({"output": "full"}, "is not empty: it contains 'x'"),
            ({"output": "file"}, "is a file; choose another --output"),
        ),
    ],
)
def test_a_dry_run_says_what_the_run_would_refuse(
    train: Callable[..., Any], changed: dict[str, object], told: str
) -> None:
    Path("full").mkdir()
    for name in ("full/x", "file"):
        Path(name).touch()
    assert train("--output", "run").exit_code == 0
    done = train("--dry-run", seed=5, **changed)
    assert done.exit_code == 2, done.output
    assert told in done.stderr
    assert train(seed=5, **changed).stderr.splitlines()[-1] == done.stderr.splitlines()[-1]


def test_the_last_table_has_the_mean_reward_and_no_row_without_tools(
    train: Callable[..., Any], source: Path
) -> None:
    reward = {"agent__reward_name": f"{source / 'rewards.py'}:same", "reward__success": "'>=0.5'"}
    done = train(trainer__val_before_train="true", agent__tools="[]", **reward)
    assert done.exit_code == 0, done.output
    cells = [line.split() for line in done.stdout.splitlines()]
    assert ["mean", "reward,", "sampled", "1", "1", "+0.000"] in cells
    assert "no tools" not in done.stdout


def test_ask_is_suggested_with_a_question_of_the_run(train: Callable[..., Any]) -> None:
    done = train("--output", "run")
    suggested = next(line for line in done.stdout.splitlines() if "tutelage ask run" in line)
    assert re.search(r'ask run "\d: what is 6 [*] 7[?]"$', suggested), suggested


@pytest.mark.full
def test_val_batch_size_bounds_what_is_played_at_once(
    train: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "counting.py").write_text(COUNTING)
    agent = {"agent__agent_type": "counting.py:Counting", "trainer__val_before_train": "true"}
    done = train("--output", "run", data__val_batch_size=1, **agent)
    assert done.exit_code == 0, done.output
    lines = [line.split() for line in (tmp_path / "at_once.txt").read_text().splitlines()]
    most = {mode: max(int(n) for m, n in lines if m == mode) for mode, _ in lines}
    assert most["test"] == 1
    assert most["train"] == 6


def test_rows_of_a_pass_that_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, sizes = tiny_policy(), list[int]()
    real = Policy.score

    def count(self: Policy, some: Any, **rest: Any) -> Any:
        sizes.append(len(some))
        return real(self, some, **rest)

    monkeypatch.setattr(Policy, "score", count)
    some = [sample(policy, f"{n} apples and {n + 1} pears") for n in range(5)]
    whole = compute_logp(policy, some, config(), torch.float32)
    cut = compute_logp(
        policy, some, config("rollout.log_prob_micro_batch_size_per_gpu=2"), torch.float32
    )
    assert sizes == [5, 2, 2, 1]
    torch.testing.assert_close(whole, cut)


def sample(policy: Policy, text: str) -> Any:
    from tutelage.policy.row import Row

    ids = policy.codec.encode(text)
    return Row(tuple(ids), tuple([False] + [True] * (len(ids) - 1)))


@pytest.mark.parametrize("layout", ["qwen2", "qwen3"])
def test_gradient_checkpointing_keeps_the_gradient_and_less_memory(layout: str) -> None:
    policy = tiny_policy(layout)
    some = [sample(policy, "one two three"), sample(policy, "four five six seven")]

    def step() -> tuple[list[Tensor], int]:
        kept = dict[int, int]()

        def pack(t: Tensor) -> Tensor:
            kept[t.data_ptr()] = t.numel()
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            loss = policy.score(some).logp_K.sum()
        return list(torch.autograd.grad(loss, policy.parameters())), sum(kept.values())

    plain, most = step()
    policy.network.enable_checkpointing()
    again, least = step()
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))
    assert least < most / 2


@pytest.mark.full
def test_a_run_with_gradient_checkpointing_has_the_same_weights(
    train: Callable[..., Any],
) -> None:
    for name, on in (("plain", "false"), ("less", "true")):
        done = train("--output", name, model__enable_gradient_checkpointing=on)
        assert done.exit_code == 0, done.output
        assert "enable_gradient_checkpointing has no effect" not in done.stderr
    plain, less = (Path(name, "policy", "model.safetensors").read_bytes() for name in
                   ("plain", "less"))  # fmt: skip
    assert plain == less
