"""examples/gaia: its loader on folders of GAIA's format, its tool and reward, and its command."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from weights.parrot import make_parrot

from tutelage.environments import ToolEnvironment
from tutelage.errors import DataError
from tutelage.store import open_store
from tutelage.tools import ToolError, resolve_tools
from tutelage.types import Attempt, RolloutStatus, Task, ToolResult

ROOT = Path(__file__).parents[2]
HERE = ROOT / "examples" / "gaia"
sys.path.insert(0, str(HERE))

import gaia  # noqa: E402

SUM = "What is the sum of the amounts in the attached file?"


def row(i: int, **more: Any) -> dict[str, Any]:
    return {
        "task_id": f"g{i:02}",
        "Question": f"{i}: what is 6 * 7?",
        "Level": 1 + i % 3,
        "Final answer": "42",
        "file_name": "",
        "Annotator Metadata": {"Steps": "1. Multiply.", "Number of steps": "1"},
        **more,
    }


def write_split(folder: Path, rows: list[dict[str, Any]], name: str = "metadata.jsonl") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if name.endswith(".parquet"):
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / name)
    else:
        (folder / name).write_text("".join(json.dumps(r) + "\n" for r in rows))
    return folder


@pytest.fixture
def download(tmp_path: Path) -> Path:
    """A folder as the download is laid out, with one attached file."""
    attached = row(3, Question=SUM, file_name="bill.csv", **{"Final answer": "1,250"})
    split = write_split(tmp_path / "GAIA" / "2023" / "validation", [row(0), row(1), attached])
    (split / "bill.csv").write_text("item,amount\nbed,1000\nlamp,250\n")
    return tmp_path / "GAIA"


# ---------------------------------------------------------------- the loader


def test_a_download_becomes_tasks_with_their_files(download: Path) -> None:
    tasks = gaia.load(download)
    assert [t.id for t in tasks] == ["g00", "g01", "g03"]
    bill = tasks[2].fields
    assert bill["question"] == f"{SUM}\nAttached file: bill.csv"
    assert (bill["answer"], bill["level"]) == ("1,250", 1)
    assert Path(bill["file"]).read_text().startswith("item,amount")
    assert tasks[0].fields["file"] == tasks[0].fields["file_name"] == ""
    assert "Steps" not in json.dumps(dict(bill)), "how annotators solved it is no input"


def test_a_missing_folder_says_how_to_get_the_data(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="gaia-benchmark/GAIA --repo-type dataset --local-dir GAIA"):
        gaia.load(tmp_path / "nothing")


def test_secret_answers_are_left_out_and_none_at_all_is_refused(tmp_path: Path) -> None:
    secret = {"Final answer": "?"}
    split = write_split(tmp_path / "some", [row(0, **secret), row(1)])
    assert [t.id for t in gaia.load(split)] == ["g01"]
    with pytest.raises(DataError, match="none with a public answer"):
        gaia.load(write_split(tmp_path / "all", [row(0, **secret)]))


# ---------------------------------------------------------------- tool and reward


async def read(task: Task, **arguments: Any) -> str:
    tool = resolve_tools([f"{HERE}/gaia_tools.py:Files"])["read_file"]
    assert tool.environment is not None
    files = ToolEnvironment(tool.environment)
    await files.reset(task, 0)
    try:
        return await tool.bind(files.state)(**arguments)
    finally:
        await files.close()


async def test_a_rollout_reads_its_own_file(download: Path) -> None:
    assert "lamp,250" in await read(gaia.load(download)[2])
    with pytest.raises(ToolError, match="no attached file"):
        await read(gaia.load(download)[0])


@pytest.mark.parametrize(
    ("said", "truth", "earned"),
    [
        ("42", "42", 1.0),
        ("$42.00", "42", 1.0),
        ("I multiply.\nFINAL ANSWER: 42", "42", 1.0),
        ("43", "42", 0.0),
        ("I multiply, so 42", "42", 0.0),
        ("a, b", "a,b", 1.0),
        ("b, a", "a,b", 0.0),
        ("Saint Petersburg", "saint petersburg", 1.0),
    ],
)
def test_the_reward_is_gaias_scorer(said: str, truth: str, earned: float) -> None:
    from gaia_reward import gaia_reward

    used = ToolResult("c", "read_file", "{}", "text")
    attempt = Attempt("a", 0, RolloutStatus.RUNNING, tool_results=(used,))
    given = gaia_reward(said, attempt, truth)
    assert given == {"reward": earned, "exact": earned, "read": 1.0}


# ---------------------------------------------------------------- the commands


def test_the_command_writes_two_files_that_share_no_task(download: Path, tmp_path: Path) -> None:
    out = tmp_path / "tasks"
    done = subprocess.run(
        [sys.executable, str(HERE / "gaia.py"), str(download), "--output", str(out)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    ids = [
        {json.loads(line)["id"] for line in (out / f"{name}.jsonl").read_text().splitlines()}
        for name in ("train", "val")
    ]
    assert not ids[0] & ids[1]
    assert ids[0] | ids[1] == {"g00", "g01", "g03"}


@pytest.mark.full
def test_the_command_of_the_readme_trains_on_a_folder_of_the_format(
    one_thread: None, tmp_path: Path
) -> None:
    """With a model that multiplies with a calculator, or guesses, half of the time each."""
    make_parrot(tmp_path / "model", guesses=0.7)
    gaia.write(
        write_split(tmp_path / "GAIA", [row(i) for i in range(32)]), tmp_path, (1, 2, 3), 0.5
    )
    readme = (HERE / "README.md").read_text().replace("\\\n", " ").splitlines()
    words = shlex.split(next(line for line in readme if line.startswith("tutelage train")))
    places = {
        "MODEL": str(tmp_path / "model"),
        "tasks/train.jsonl": str(tmp_path / "train.jsonl"),
        "tasks/val.jsonl": str(tmp_path / "val.jsonl"),
        "runs/gaia": str(tmp_path / "run"),
        "lr=1e-6": "lr=1e-3",
        "100": "10",
        "rollout.max_len=8192": "rollout.max_len=512",
        "agent.max_turns=8": "agent.max_turns=2",
    }
    # The parrot knows one tool: which tools an agent has is part of what its model was taught.
    tools = {words[words.index("--tools") + 1]: "calculator"}
    args = [{**places, **tools}.get(word, word) for word in words[1:]]
    args = [word for word in args if not word.startswith("agent.system_prompt=")]
    small = ["batch_size=8", "num_chains=8", "trainer.val_tasks=16", "trainer.test_freq=-1"]
    small += ["agent.max_tokens_per_turn=48", "trainer.control=false"]
    main = "from tutelage.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", main, *args, *small],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    rewards = [line["reward/exact"] for line in metrics if line["phase"] == "rl"]
    assert len(rewards) == 10
    assert sum(rewards[-3:]) / 3 > rewards[0] + 0.1, rewards
    with open_store(tmp_path / "run" / "store.db") as store:
        (run,) = store.runs()
        ids = {r.task.id for r in store.rollouts(run.id)}
    assert ids <= {f"g{i:02}" for i in range(32)}
