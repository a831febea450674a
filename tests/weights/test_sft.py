"""`train sft`: demonstrations in, a lower loss out; exact resume; bad rows before any model."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from tests.marks import long
from typer.testing import CliRunner

from tutelage.cli import build_app
from tutelage.errors import ConfigError, DataError, ModelError
from tutelage.policy import model
from tutelage.runs.folder import RunFolder, create
from tutelage.runs.progress import Progress
from tutelage.store import dump_json, export_rows, open_store
from tutelage.testing import tiny_policy
from tutelage.tools import resolve_tools
from tutelage.weights import jobs
from tutelage.weights.config import resolve
from tutelage.weights.inputs import prepare_sft
from tutelage.weights.sft import SFTPreview

from . import tiny_job
from .samples import LAPTOP

TOOLS = [t.spec.to_dict() for t in resolve_tools(["calculator"]).values()]


def chat(a: int, b: int) -> dict[str, Any]:
    """A row in which the calculator is used."""
    arguments = json.dumps({"expression": f"{a} + {b}"})
    call = {"id": "c0", "function": {"name": "calculator", "arguments": arguments}}
    return {
        "messages": [
            {"role": "user", "content": f"What is {a} + {b}?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": str(a + b), "tool_call_id": "c0", "name": "calculator"},
            {"role": "assistant", "content": str(a + b)},
        ],
        "tools": TOOLS,
    }


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A model and rows of both kinds."""
    tiny_policy("qwen2", 3).save(tmp_path / "model")
    rows = [chat(i, 7) for i in range(10, 16)] + [{"question": "Hi?", "answer": "12"}]
    write(tmp_path / "train.jsonl", rows)
    write(tmp_path / "val.jsonl", [chat(20, 7), chat(21, 7)])
    write(tmp_path / "test.jsonl", [{"question": "What is 1 + 1?", "answer": "2"}])
    return tmp_path


def write(path: Path, rows: list[Any]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def resolved(source: Path, *keys: str, **flags: Any) -> Any:
    given = {"model": source / "model", "train": source / "train.jsonl", **flags}
    texts = {key: None if value is None else str(value) for key, value in given.items()}
    small = ["batch_size=3", "lr=1e-2", "actor.optim.warmup_steps=0", "trainer.threads=1"]
    return resolve("sft", [*small, *keys], machine=LAPTOP, flags=texts)


def run(source: Path, out: str, *keys: str, **flags: Any) -> tuple[RunFolder, dict[str, Any]]:
    folder = create(source / out)
    return folder, jobs.train(resolved(source, *keys, **flags), folder, Progress())


def losses(folder: RunFolder, name: str = "loss/sft") -> list[float]:
    return [x[name] for x in folder.read_metrics() if x["phase"] == "sft" and name in x]


@pytest.mark.full
def test_the_loss_falls_and_everything_is_left_behind(one_thread: None, source: Path) -> None:
    folder, result = run(
        source,
        "run",
        "trainer.test_freq=4",
        "agent.max_tokens_per_turn=8",
        "rollout.max_len=256",
        val=source / "val.jsonl",
        test=source / "test.jsonl",
        steps=12,
        tools="calculator",
        reward="math",
    )
    assert (result["status"], result["recipe"], result["sft_steps"]) == ("finished", "sft", 12)
    assert losses(folder)[-1] < 0.6 * losses(folder)[0]
    assert len(losses(folder, "val/loss")) == 1 + 3
    assert result["val_loss_after"] < result["val_loss_before"]
    assert result["val_loss_after"] == pytest.approx(losses(folder, "val/loss")[-1], abs=1e-6)
    assert result["success_before_greedy"] is not None
    assert result["success_after_greedy"] is not None
    trained = dict(model.load_policy(str(folder.policy)).named_tensors())
    assert any(
        not t.equal(trained[n]) for n, t in model.load_policy(str(source / "model")).named_tensors()
    )
    assert "Supervised training" in folder.report.read_text()


def command(source: Path, *more: str) -> Any:
    """`tutelage train sft` as a user types it, into a pipe."""
    files = [f"--{name}={source / name}.jsonl" for name in ("train", "val")]
    small = ("batch_size=3", "lr=1e-2", "trainer.threads=1", "--steps=5", "--model")
    words = ["train", "sft", *files, *small, str(source / "model"), *more]
    return CliRunner().invoke(build_app(), words, prog_name="tutelage")


def test_the_end_says_what_was_learned_and_a_command_that_fits(
    one_thread: None, source: Path
) -> None:
    done = command(source, f"--output={source / 'run'}")
    assert done.exit_code == 0, done.output
    said = " ".join(done.stdout.split())
    result = json.loads((source / "run" / "result.json").read_text())
    tokens = sum(sum(row.mask) for row in resolved_sft(source))
    assert result["trained_tokens"] > tokens, "five steps of three are two of seven"
    assert (
        f"5 supervised steps, {5 * 3 / 7:.4g} epochs of 7 examples, {result['trained_tokens']}"
        in (said)
    )
    found = losses(RunFolder(source / "run"))
    assert (result["train_loss_before"], result["train_loss_after"]) == (found[0], found[-1])
    assert f"train loss {found[0]:.4g} -> {found[-1]:.4g} nats a token" in said
    val = (result["val_loss_before"], result["val_loss_after"])
    assert f"val loss {val[0]:.4g} -> {val[1]:.4g} nats a token" in said
    assert not any(word in said for word in ("rollouts", "played", "17 * 23"))
    listed = CliRunner().invoke(build_app(), ["runs", "--below", str(source)]).stdout
    assert re.search(r"finished +0 +5 ", listed), listed


def test_a_dry_run_into_a_pipe_marks_what_is_trained(one_thread: None, source: Path) -> None:
    said = command(source, "--dry-run").stdout
    assert "green" not in said
    assert "what is trained stands between >>> and <<<" in said
    assert said.count(">>>") == said.count("<<<") == 1 + 2
    assert "trainer.threads=1" in said


def test_reasoning_that_the_template_leaves_out_is_said_once_a_file(
    one_thread: None, source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    thinks = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "5", "reasoning": "because"},
    ]
    for name in ("train", "val"):
        write(source / f"{name}.jsonl", [{"messages": thinks}, chat(1, 2), {"messages": thinks}])
    command(source, "--dry-run")
    made = command(source, f"--output={source / 'run'}")
    for text in (caplog.text, made.output):
        said = " ".join(text.split())
        assert said.count("is not trained, since the chat template") == 2, said
        assert "val.jsonl: the reasoning_content (or reasoning) of 2 rows" in said
    caplog.clear()
    (source / "model" / "chat_template.jinja").write_text(
        PLAIN.replace("{{ m.content }}", "{{ m.reasoning_content or '' }}{{ m.content }}")
    )
    for name in ("train", "val"):
        write(source / f"{name}.jsonl", [{"messages": thinks}])
    shown = command(source, "--dry-run").output
    assert ">>>because5" in shown
    assert "is not trained" not in shown + caplog.text


def resolved_sft(source: Path) -> Any:
    """The rows that are learned from."""
    setting = prepare_sft(resolved(source, steps=1).config)
    assert setting.sft_dataset is not None
    return setting.sft_dataset.train


def test_only_what_the_assistant_wrote_is_learned(one_thread: None, source: Path) -> None:
    found = jobs.dry_run(resolved(source, steps=1))
    assert isinstance(found, SFTPreview)
    trained = [text for text, learned in found.pieces if learned]
    assert len(trained) == 2
    assert '"expression": "10 + 7"' in trained[0]
    assert trained[1].startswith("17")
    assert not any("What is" in text for text in trained)
    assert found.rows == 7
    assert found.steps == 1
    assert math.isfinite(found.loss)


@pytest.mark.parametrize("optimizer", ["muon", *long("adamw")])
def test_killed_and_resumed_is_the_same_bit_for_bit(
    one_thread: None, source: Path, optimizer: str
) -> None:
    keys = (f"sft.optimizer={optimizer}", "trainer.save_freq=2", "trainer.test_freq=3")
    flags: dict[str, Any] = {"val": source / "val.jsonl", "steps": 7}
    whole, _ = run(source, "whole", *keys, **flags)
    folder = create(source / "killed")
    with pytest.raises(tiny_job.Killed):
        jobs.train(resolved(source, *keys, **flags), folder, tiny_job.KillAt(5))
    (folder.path / "result.json").unlink(missing_ok=True)
    result = jobs.resume(folder, Progress())
    assert result["sft_steps"] == 7
    assert losses(folder) == losses(whole)
    assert losses(folder, "val/loss") == losses(whole, "val/loss")
    first, second = (
        dict(model.load_policy(str(f.policy)).named_tensors()) for f in (whole, folder)
    )
    assert all(first[name].equal(second[name]) for name in first)


@pytest.mark.full
def test_a_policy_is_made_for_the_demonstrations(one_thread: None, source: Path) -> None:
    folder, _ = run(source, "run", "sft.optimizer=muon", model=None, steps=6)
    assert losses(folder)[-1] < losses(folder)[0]
    made = model.load_policy(str(folder.policy))
    assert len(made.codec.encode("calculator")) < len("calculator")
    result = jobs.resume(folder, Progress())
    assert result["sft_steps"] == 6


@pytest.mark.full
def test_what_a_run_exports_can_be_trained_on(one_thread: None, tmp_path: Path) -> None:
    source = tiny_job.material(tmp_path)
    rewards = source / "rewards.py"
    played = tiny_job.run(
        source, tmp_path / "played", agent__reward_name=f"{rewards}:same", steps=None,
        trainer__total_training_steps=2,
    )  # fmt: skip
    tools = tuple(t.spec for t in resolve_tools(["calculator"]).values())
    with open_store(played.store) as store:
        rows = list(export_rows(store, played.name, "sft", tools=tools, successful=True))
    assert rows
    said = [row for row in rows if any(m["role"] == "assistant" for m in row["messages"])]
    path = tmp_path / "train.jsonl"
    path.write_text("".join(dump_json(row, "row") + "\n" for row in said))
    folder, _ = run(tmp_path, "tuned", steps=12)
    assert losses(folder)[-1] < losses(folder)[0]


@pytest.mark.parametrize(
    ("row", "keys", "told"),
    [
        ({"messages": [{"role": "user", "content": "x"}]}, (), "no assistant turn"),
        ({"question": "x", "answer": "1 " * 300}, (), "more than 256"),
        ({"question": "x", "answer": "1 " * 30}, ("data.max_length=20",), "more than 20"),
    ],
)
def test_bad_rows_stop_before_a_run_begins(
    source: Path, row: Any, keys: tuple[str, ...], told: str
) -> None:
    write(source / "train.jsonl", [{"question": "a", "answer": "b"}, row])
    with pytest.raises(DataError, match=r"train.jsonl:2") as caught:
        run(source, "run", *keys, steps=1)
    assert told in str(caught.value)
    assert not (source / "run" / "config.json").exists()


PLAIN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.full
def test_a_template_without_tools_plays_the_test_without_the_default_ones(
    one_thread: None, source: Path
) -> None:
    """Nobody asked for those; tools that are named are refused before any weight is read."""
    (source / "model" / "chat_template.jinja").write_text(PLAIN)
    write(source / "train.jsonl", [{"question": "Hi?", "answer": "12"}] * 3)
    tested = {"test": source / "test.jsonl", "reward": "math", "steps": 1}
    _, result = run(source, "out", **tested)
    assert result["failures"] == {}
    assert result["judged_after_greedy"]["judged"] == 1
    with pytest.raises(ModelError, match="ignores tools"):
        prepare_sft(resolved(source, **tested, tools="calculator").config)


def test_keys_that_do_not_fit() -> None:
    with pytest.raises(ConfigError, match="no data of its own"):
        resolve("sft", ["steps=1"], machine=LAPTOP)
    with pytest.raises(ConfigError, match="learns from demonstrations only"):
        resolve("sft", ["train=a.jsonl", "algorithm=rl"], machine=LAPTOP)
    with pytest.raises(ConfigError, match="need a reward"):
        resolve("sft", ["train=a.jsonl", "test=b.jsonl"], machine=LAPTOP)
