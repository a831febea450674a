"""Whole runs that sample at servers: what is trained, what a server's death costs, what is refused.

The servers stand in for vLLM (`tests/testing/vllm_server.py`); with vLLM itself `make test-scale`
runs.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from rich.console import Console
from tests.testing.vllm_server import VLLMServer

from tutelage.cli.outcome import show_outcome
from tutelage.errors import ConfigError, EngineError, FailureBudgetError, RunError, SyncError
from tutelage.policy.model import load_policy
from tutelage.runs.folder import RunFolder, create
from tutelage.store import open_store
from tutelage.testing import tiny_policy
from tutelage.types import Mode
from tutelage.weights import jobs
from tutelage.weights.config import resolve

from .samples import LAPTOP
from .tiny_job import Notes, material, overrides, steps

A_STEP = 6
"""Rollouts of a step: two tasks, three each."""


@pytest.fixture(scope="module")
def source(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return material(tmp_path_factory.mktemp("source"))


@pytest.fixture
def servers(source: Path) -> Iterator[list[VLLMServer]]:
    """Two servers of the model."""
    policy = load_policy(str(source / "model"))
    with VLLMServer(policy) as one, VLLMServer(policy) as other:
        yield [one, other]


def begin(
    source: Path, out: Path, servers: list[VLLMServer], **changed: object
) -> tuple[RunFolder, Notes]:
    """Train to the end, or to what ends it."""
    folder, notes = create(out), Notes()
    urls = ",".join(server.url for server in servers)
    keys = {"rollout__name": "vllm", "rollout__servers": f"[{urls}]", **changed}
    keys = {"trainer__total_training_steps": 2, "trainer__save_freq": 1, **keys}
    jobs.train(resolve("math", overrides(source, **keys), machine=LAPTOP), folder, notes)
    return folder, notes


def check_record(folder: RunFolder, trained: int) -> None:
    """Each step was trained once, on its rollouts, each of which is in the store once."""
    assert [line["step"] for line in steps(folder)] == list(range(1, trained + 1))
    with open_store(folder.store) as store:
        played = [r for r in store.rollouts(folder.name) if r.mode is Mode.TRAIN]
    assert len({r.id for r in played}) == len(played) == A_STEP * trained
    assert set(Counter(r.step for r in played).values()) == {A_STEP}
    assert all(r.reward is not None for r in played)


def test_a_run_trains_on_what_servers_sample(
    source: Path, tmp_path: Path, servers: list[VLLMServer]
) -> None:
    folder, _ = begin(source, tmp_path / "run", servers)
    check_record(folder, 2)
    assert all(line["max_dlogp"] < 1e-3 for line in steps(folder))
    assert all(0 < line["vllm/probe"] < 1e-3 for line in steps(folder))
    for server in servers:
        assert [path for path, _ in server.requests].count("/update_weights") == 3
    assert [server.weight_version for server in servers] == ["free", "free"]
    assert not (folder.path / "vllm_weights").exists()
    with open_store(folder.store) as store:
        calls = [c for r in store.rollouts(folder.name, step=2) for c in r.last.calls]
    assert {c.sampled.policy_version for c in calls} == {1}


@pytest.mark.full
def test_servers_sample_ahead_of_the_steps_and_take_new_weights_meanwhile(
    source: Path, tmp_path: Path, servers: list[VLLMServer]
) -> None:
    keys = {"async_training__staleness_threshold": 2, "trainer__total_training_steps": 4}
    folder, _ = begin(source, tmp_path / "run", servers, **keys)
    assert [line["step"] for line in steps(folder)] == [1, 2, 3, 4]
    assert max(line["max_dlogp"] for line in steps(folder) if "max_dlogp" in line) < 1e-3
    assert 1 <= max(line.get("staleness/max", 0) for line in steps(folder)) <= 2
    with open_store(folder.store) as store:
        calls = [c for r in store.rollouts(folder.name, mode=Mode.TRAIN) for c in r.last.calls]
    versions = {c.sampled.policy_version for c in calls}
    assert 0 in versions, "ahead of the first update"
    assert 1 <= max(versions) <= 3, "which of the later ones is a matter of time"


MOMENTS = random.Random(17).sample(range(14, 42), 8)
"""Requests at which a server dies."""


KILLS = [pytest.param(m, i % 2, marks=[pytest.mark.full] * (i > 1)) for i, m in enumerate(MOMENTS)]


@pytest.mark.full
@pytest.mark.parametrize(("number", "how"), KILLS)
def test_a_server_that_is_killed_costs_nothing(
    source: Path, tmp_path: Path, servers: list[VLLMServer], number: int, how: int
) -> None:
    """Killed before or after it did what was asked; in a request for tokens or in an update."""

    def fault(path: str, count: int) -> str | None:
        if count == number:
            servers[0].kill()
            return "drop" if how else "deaf"
        return None

    servers[0].fault = fault
    folder, notes = begin(source, tmp_path / "run", servers)
    check_record(folder, 2)
    assert servers[0].dead
    assert any("excluded" in note for note in notes.notes)
    (lost,) = [e for e in folder.read_events() if e["event"] == "server_lost"]
    assert lost["server"] == servers[0].url
    assert lost["phase"] in ("rl", "after")
    assert lost["version"] in (0, 1, 2)
    assert f"no answer from the vLLM server {servers[0].url!r}" in lost["reason"]
    console = Console(width=200)
    with console.capture() as shown:
        show_outcome(console, folder, folder.read_result() or {})
    assert re.search(r"lost +1 vLLM server; events.jsonl says when", shown.get())


def lose_the_only_server(source: Path, out: Path, only: list[VLLMServer]) -> RunFolder:
    """A run that has ended in its second step, since its server did."""

    def fault(path: str, count: int) -> str | None:
        trained = only[0].weight_version.endswith(":1")
        if trained and path.endswith("generate") and count % 5 == 0:
            only[0].kill()
        return None

    only[0].fault = fault
    go_on = f"Continue with: tutelage resume {out}"
    with pytest.raises(FailureBudgetError, match=f"no vLLM server responded.*{re.escape(go_on)}"):
        begin(source, out, only, rollout__server_patience=0.2)
    only[0].fault = None
    folder = RunFolder(out)
    assert [line["step"] for line in steps(folder)] == [1]
    return folder


@pytest.mark.full
def test_with_no_server_left_the_run_ends_and_is_continued(
    source: Path, tmp_path: Path, servers: list[VLLMServer]
) -> None:
    folder = lose_the_only_server(source, tmp_path / "run", servers[:1])
    told = r"no server is usable; no answer from .*\. Start one, then run the command again$"
    with pytest.raises(EngineError, match=told):
        jobs.resume(folder, Notes())
    servers[0].restart()
    jobs.resume(folder, Notes())
    check_record(folder, 2)


@pytest.mark.full
def test_a_run_goes_on_with_servers_at_other_addresses(
    source: Path, tmp_path: Path, servers: list[VLLMServer]
) -> None:
    folder = lose_the_only_server(source, tmp_path / "run", servers[:1])
    text = folder.config.read_text()
    assert servers[0].url in text
    folder.config.write_text(text.replace(servers[0].url, servers[1].url))
    with pytest.raises(RunError, match=r"rollout.servers was .* and is .* --allow-changes"):
        jobs.resume(folder, Notes())
    jobs.resume(folder, Notes(), allow_changes=True)
    check_record(folder, 2)


@pytest.mark.full
def test_an_update_that_lies_ends_the_run_before_it_is_sampled_from(
    source: Path, tmp_path: Path, servers: list[VLLMServer]
) -> None:
    def fault(path: str, count: int) -> str | None:
        servers[1].lies = servers[1].weight_version.endswith(":0")
        return None

    servers[1].fault = fault
    with pytest.raises(SyncError, match="different weights than the trainer"):
        begin(source, tmp_path / "run", servers)
    folder = RunFolder(tmp_path / "run")
    with open_store(folder.store) as store:
        assert len(list(store.rollouts(folder.name))) == A_STEP
    servers[1].fault, servers[1].lies = None, False
    jobs.resume(folder, Notes())
    check_record(folder, 2)


@pytest.mark.full
def test_adapters_are_trained_at_servers(
    source: Path, tmp_path: Path, servers: list[VLLMServer]
) -> None:
    lora = {"model__lora__rank": 4, "rollout__weight_transfer": "lora"}
    folder, _ = begin(source, tmp_path / "run", servers[:1], **lora)
    assert all(line["max_dlogp"] < 1e-3 for line in steps(folder))
    assert not any(path == "/update_weights" for path, _ in servers[0].requests)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"rollout__servers": "[localhost:8000]"}, "each text such as http://HOST:PORT"),
        ({"rollout__servers": "[http://a:1/v1]"}, "each text such as http://HOST:PORT"),
        ({"rollout__weight_transfer": "lora"}, "model.lora.rank is 0"),
        ({"agent__tool_choice": "required"}, "grammar of a tool call"),
        ({"agent__placement": "ray"}, "Ray workers cannot sample from vLLM servers"),
    ],
)
def test_what_vllm_cannot_do_is_refused_before_anything_is_loaded(
    source: Path, changed: dict[str, object], sentence: str
) -> None:
    keys = {"rollout__name": "vllm", "rollout__servers": "[http://a:1]", **changed}
    with pytest.raises(ConfigError, match=sentence) as refused:
        resolve("math", overrides(source, **keys), machine=LAPTOP)
    assert "problems" not in str(refused.value), "one is told"


ROOT = str(Path(__file__).parents[2])
INTERPRETER = """#!{python}
import json, os, sys
from pathlib import Path

words = sys.argv[1:]
known = {{name: os.environ[name] for name in ("VLLM_SERVER_DEV_MODE", "PYTHONPATH")}}
known["ranks"] = sorted({{"TORCHELASTIC_USE_AGENT_STORE", "RANK"}} & {{*os.environ}})
Path(__file__).with_suffix(".json").write_text(json.dumps([os.getpid(), words, known]))
value = dict(zip(words, words[1:]))
sys.path.insert(0, {root!r})
from tests.testing.vllm_server import serve
serve(value["--model"], value["--port"])
"""
"""An interpreter that has the server that stands in for vLLM."""


@pytest.mark.full
def test_a_server_of_the_runs_own_is_started_and_ended(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("RANK", "0")
    python = tmp_path / "python"
    python.write_text(INTERPRETER.format(python=sys.executable, root=ROOT))
    python.chmod(0o755)
    keys = {"rollout__servers": "[]", "rollout__gpu_memory_utilization": 0.25}
    folder, notes = begin(source, tmp_path / "run", [], rollout__vllm_python=python, **keys)
    check_record(folder, 2)
    pid, words, known = json.loads(python.with_suffix(".json").read_text())
    value = dict(pairwise(words))
    assert (value["--host"], value["--gpu-memory-utilization"]) == ("127.0.0.1", "0.25")
    assert (value["--dtype"], value["--max-model-len"]) == ("float32", "256")
    assert {"--enable-scale-out", "--no-enable-chunked-prefill"} <= set(words)
    assert known["VLLM_SERVER_DEV_MODE"] == "1"
    assert known["ranks"] == [], "torchrun's variables are not the server's"
    assert (Path(known["PYTHONPATH"]) / "tutelage_vllm.py").is_file()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert any("starting vLLM" in note for note in notes.notes)


@pytest.mark.full
def test_a_refused_command_leaves_nothing_in_the_way_of_the_mended_one(
    source: Path, tmp_path: Path, servers: list[VLLMServer]
) -> None:
    out, bare = tmp_path / "run", VLLMServer(tiny_policy(), plugin=False)
    with bare as wrong, pytest.raises(ConfigError, match="cannot load this model's weights"):
        begin(source, out, [servers[0], wrong])
    assert servers[0].weight_version == "free"
    assert not out.exists()
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 3\n")
    python.chmod(0o755)
    own = {"rollout__servers": "[]", "rollout__vllm_python": python}
    with pytest.raises(EngineError, match="exited with code 3"):
        begin(source, out, [], **own)
    assert [p.name for p in out.iterdir()] == ["vllm.log"], "which the message names"
    folder, _ = begin(source, out, servers)
    check_record(folder, 2)


@pytest.mark.full
def test_a_kill_while_a_server_starts_leaves_nothing_in_the_way(
    source: Path, tmp_path: Path
) -> None:
    """The command that was killed is given again."""
    out, python = tmp_path / "run", tmp_path / "python"
    python.write_text("#!/bin/sh\necho $0 $*\nexec sleep 600\n")
    python.chmod(0o755)
    keys = {"rollout__name": "vllm", "rollout__vllm_python": python, "model__path": None}
    keys |= {"trainer__total_training_steps": 1, "sft__max_steps": 0, "trainer__test_tasks": 2}
    words = ["train", "math", "--output", str(out), *overrides(source, **keys)]
    job = subprocess.Popen([sys.executable, "-m", "tutelage", *words], stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 120
        log = out / "vllm.log"
        while not (log.is_file() and log.stat().st_size) and time.monotonic() < until:
            time.sleep(0.1)
    finally:
        job.kill()
        job.wait()
    assert "--model" in log.read_text()
    assert not (out / "config.json").exists()
    python.write_text(INTERPRETER.format(python=sys.executable, root=ROOT))
    subprocess.run([sys.executable, "-m", "tutelage", *words], check=True, capture_output=True)
    check_record(RunFolder(out), 1)
    assert not list(out.glob("*vllm_model*")), "what the servers had is gone with them"


@pytest.mark.full
def test_a_server_that_is_down_as_the_run_begins_is_recorded(
    source: Path, tmp_path: Path, servers: list[VLLMServer]
) -> None:
    servers[1].kill()
    folder, notes = begin(source, tmp_path / "run", servers)
    check_record(folder, 2)
    assert any("it is excluded until it responds again" in note for note in notes.notes)
    (lost,) = [e for e in folder.read_events() if e["event"] == "server_lost"]
    assert (lost["server"], lost["version"]) == (servers[1].url, -1)


def test_an_interpreter_that_is_not_there_is_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not an executable"):
        begin(source, tmp_path / "run", [], rollout__servers="[]", rollout__vllm_python="/no/such")
