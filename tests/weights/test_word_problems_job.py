"""The job `tutelage train word-problems`, whole, on a tiny model with the template of its own."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from policy.gguf_samples import tiny_llama
from typer.testing import CliRunner

from tutelage.cli import build_app
from tutelage.policy.named_templates import set_template
from tutelage.tasks.word_problems import LEVELS, make_word_problems

KINDS = LEVELS["default"]
SMALL = (
    "model.dtype=float32",
    "rollout.max_len=1600",  # its tokens are hardly longer than letters
    "sft.max_steps=1",
    "sft.cooldown_steps=0",
    "sft.batch_size=2",
    "data.train_batch_size=1",
    "agent.num_chains=2",
    "agent.max_tokens_per_turn=6",
    "trainer.val_tasks=1",
    "trainer.test_tasks=9",
)


def tutelage(*words: str) -> str:
    """What a command prints."""
    done = CliRunner().invoke(build_app(), words)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_job_trains_measures_each_kind_and_answers_a_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None
) -> None:
    monkeypatch.chdir(tmp_path)
    model = tiny_llama(max_position_embeddings=2048)
    set_template(model.codec.tokenizer, "smollm2")
    model.save(tmp_path / "model")
    told = tutelage(
        *("train", "word-problems", "--model", "model", "--output", "run"),
        *("--algorithm", "advantage_filtered", "--steps", "1", *SMALL),
    )
    result = json.loads(Path("run/result.json").read_text())
    tasks = make_word_problems("test", 9, 1, KINDS)
    measured = {name for name in result if name.startswith("families_")}
    assert measured == {
        f"families_{n}" for n in ("before_sampled", "after_sampled", "after_greedy")
    }
    assert result.get("success_no_tools_greedy") is None
    assert [path.name for path in Path("run/checkpoints").iterdir()] == ["step_000001"]
    for name in ("before_sampled", "after_sampled", "after_greedy"):
        families = result[f"families_{name}"]
        assert list(families) == [*sorted(KINDS), "seen templates", "unseen templates"]
        for family, found in families.items():
            of = family.removesuffix(" templates")
            played = [t for t in tasks if of in (t.fields["family"], t.fields["template"])]
            assert found["rollouts"] == len(played)
    table = told[told.index("held-out success, 9 tasks") :].splitlines()[2:]
    first = [line[:20].strip() for line in table[: 2 * len(KINDS)]]
    assert first[: len(KINDS) + 4] == [
        "sampled", *sorted(KINDS), "seen templates", "unseen templates", "greedy",
    ]  # fmt: skip
    metrics = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert [m["phase"] for m in metrics if m["step"]] == ["cold_start", "rl"]
    page = Path("run/report.html").read_text()
    assert page.index("unseen templates") > page.index("share") > page.index("By family")

    hint = next(line for line in told.splitlines() if line.strip().startswith("tutelage ask run"))
    assert "1" in tutelage(*shlex.split(hint)[1:]), "as it is printed"
    shown = tutelage("ask", "run", "What do 12 lamps cost?", "prices.lamp=23")
    assert "What do 12 lamps cost?" in shown
