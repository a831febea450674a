"""Every code block of the documents is run or checked; every link, file and option is there."""

from __future__ import annotations

import ast
import json
import re
import runpy
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import commands_page
import pytest
from pages import ROOT, Block, anchors, blocks, commands, inline_code, links, pages, write_files
from tests.in_one_item import in_one_item
from typer.main import get_command
from typer.testing import CliRunner

from tutelage.cli import build_app
from tutelage.cli.app import load_command
from tutelage.cli.prompt_train import convert_prompt_flags, is_prompt_search
from tutelage.cli.train import resolve_recipe
from tutelage.config import Machine
from tutelage.config.aliases import canonical_key
from tutelage.config.keys import section_names
from tutelage.prompts.config import resolve_prompt
from tutelage.runs.job_inputs import AGENT_REWARD
from tutelage.tasks.dataset import Dataset
from tutelage.testing import tiny_policy
from tutelage.tools.loading import is_file_reference
from tutelage.weights.config import resolve

LANGUAGES = {"bash", "python", "json", "jsonl", "toml", "text"}
OTHER_COMMANDS = {"source", "cd"}
"""Commands that documents may show besides `tutelage` and `make`."""
NO_FILES = {
    *("runs", "checkpoints", "policy", "reward", "RUN", "time", "group", "loss", "kl", "val"),
    *("test", "value", "rollout", "adapter", "wandb", "mlflow", "tensorboard", "refill"),
    *("staleness", "vllm", "Qwen", "HuggingFaceTB", "."),
}
"""First parts of names that look like files: of a run folder, or of a metric."""
PYTHON = [page for page in pages() if any(b.language == "python" for b in blocks(page))]


def every(*languages: str) -> list[Block]:
    """Blocks of some languages."""
    return [b for page in pages() for b in blocks(page) if b.language in languages]


def named(paths: list[Path]) -> list[Any]:
    """Pages as parameters; the one with whole trainings is a long test."""
    long = {ROOT / "docs" / "agents.md": pytest.mark.full}
    return [
        pytest.param(path, id=str(path.relative_to(ROOT)), marks=long.get(path, ()))
        for path in paths
    ]


# ------------------------------------------------------------ blocks


@in_one_item("page", pages())
def test_every_block_names_its_language(page: Path) -> None:
    assert {b.language for b in blocks(page)} <= LANGUAGES
    fences = re.findall(r"^ *```", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(fences) == 2 * len(list(blocks(page))), "a fence is not closed, or is indented"


@pytest.mark.parametrize("page", named(PYTHON))
def test_python_blocks_run_one_after_another(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in write_files(page, tmp_path):
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page):
        if block.language == "python":
            # Lines of the page, so that a traceback points there.
            code = "\n" * (block.line - 1) + block.text
            exec(compile(code, str(page), "exec", dont_inherit=True), names)


@in_one_item("block", every("json", "jsonl", "toml"))
def test_data_blocks_can_be_read(block: Block, tmp_path: Path) -> None:
    if block.language == "json":
        json.loads(block.text)
    elif block.language == "jsonl":
        path = tmp_path / "tasks.jsonl"
        path.write_text(block.text, encoding="utf-8")
        assert len(Dataset.load(path)) == len(block.text.splitlines())
    else:
        path = tmp_path / "keys.toml"
        path.write_text(block.text, encoding="utf-8")
        assert tomllib.loads(block.text)
        resolve("math", machine=Machine(cuda_devices=0, cores=2), file=path)


@in_one_item("block", every("bash"))
def test_every_command_is_one_that_exists(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / block.place.replace("/", "-")
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.joinpath("keys.toml").write_text("seed = 1\n")
    shown = [*write_files(block.page, folder)]
    if "tutelage init" in block.text:
        shutil.copytree(ROOT / "src/tutelage/cli/starter", folder, dirs_exist_ok=True)
        shown += ["agent.py", "tasks.py"]
    for words in commands(block):
        if words[0] == "tutelage":
            parse(words[1:])
        elif words[0] == "torchrun":
            parse(words[words.index("-m") + 2 :])
        elif words[0] == "make":
            check_make(words[1:])
        elif words[0] == "python":
            there = words[1] in shown or ROOT.joinpath(words[1]).is_file()
            assert there, f"{block.place}: there is no {words[1]!r}"
        else:
            assert words[0] in OTHER_COMMANDS, f"{block.place}: nothing checks {words[0]!r}"


def parse(args: list[str]) -> None:
    """Read a command as the command line does, and a training's keys as well; nothing is run."""
    group: Any = get_command(build_app())
    with group.make_context("tutelage", list(args)) as context:
        rest = [*context._protected_args, *context.args]
        name, verb, rest = group.resolve_command(context, rest)
        while hasattr(verb, "resolve_command"):  # a group: its own verb comes next
            with verb.make_context(name, rest, parent=context) as below:
                rest = [*below._protected_args, *below.args]
                name, verb, rest = verb.resolve_command(below, rest)
        with verb.make_context(name, rest, parent=context) as inner:
            given = dict(inner.params)
    if name != "train" or "recipe" not in given:  # the planner has its own options
        return
    others = ("recipe", "overrides", "config", "dry_run", "from_scratch", "all_keys")
    flags = {key: value for key, value in given.items() if value and key not in others}
    recipe, overrides = resolve_recipe(given["recipe"], given["overrides"] or (), flags)
    own, file = is_file_reference(recipe), given["config"] and Path(given["config"])
    if is_prompt_search(recipe, given["algorithm"]):
        words = [recipe, *overrides] if own else overrides
        resolve_prompt("prompt" if own else recipe, words, flags, file=file)
        return
    defaults = {"reward": AGENT_REWARD, "algorithm": "grpo"} if own else {}
    flags = defaults | convert_prompt_flags(flags)
    resolve(
        "rl" if own else recipe,
        overrides,
        own_agent=own,
        machine=Machine(cuda_devices=0, cores=2),
        flags=flags,
        file=file,
    )


def check_make(words: list[str]) -> None:
    """Each word is a target, or sets a variable that the Makefile has."""
    text = ROOT.joinpath("Makefile").read_text(encoding="utf-8")
    for word in words:
        variable, equals, _ = word.partition("=")
        pattern = rf"^{variable} \?=" if equals else rf"^{word}:.* ## "
        assert re.search(pattern, text, re.MULTILINE), f"the Makefile has no {word!r}"


def test_the_execution_of_the_readme_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = ROOT.joinpath("README.md").read_text(encoding="utf-8").splitlines()
    (line,) = [line for line in lines if line.startswith("tutelage orchestrate run ")]
    done = CliRunner().invoke(build_app(), shlex.split(line)[1:], prog_name="tutelage")
    assert done.exit_code == 0, done.output
    assert "execution  succeeded" in done.stdout


# ------------------------------------------------------------ links and names


@in_one_item("page", pages())
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        if link.startswith("http"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link} leads nowhere"
        if anchor:
            assert anchor in anchors(target), f"{link}: no such heading"


def test_every_page_is_linked_from_the_front_page() -> None:
    front, decisions = ROOT / "docs" / "README.md", ROOT / "docs" / "design" / "README.md"
    assert "docs/README.md" in links(ROOT / "README.md")
    for index in (front, decisions):
        linked = {(index.parent / link.partition("#")[0]).resolve() for link in links(index)}
        missing = {page for page in index.parent.glob("*.md") if page != index} - linked
        assert not missing, f"{index} does not lead to {sorted(missing)}"


@in_one_item("page", [page for page in pages() if page.name != "glossary.md"])
def test_files_that_are_named_exist(page: Path) -> None:
    named_files = [w for w in inline_code(page) if re.fullmatch(r"[\w./-]+/[\w.-]*", w)]
    for name in named_files:
        if name.split("/")[0] in NO_FILES:
            continue
        places = (ROOT / name, ROOT / "src" / "tutelage" / name, page.parent / name)
        assert any(place.exists() for place in places), f"{name} is not there"


@in_one_item("page", pages())
def test_keys_that_are_named_exist(page: Path) -> None:
    for word in inline_code(page):
        key = re.fullmatch(r"([a-z]\w*(?:\.\w+)+)(=\S*)?", word)
        if word.endswith(".py"):
            continue  # a file, such as agent.py
        if key is not None and key[1].split(".")[0] in section_names():
            assert canonical_key(key[1], None)


# ------------------------------------------------------------ what people are told to type


VALUE = "\0"
"""Stands where an f-string has a value."""
OTHERS = {
    *("--no-index", "--no-deps", "--only-binary", "--no-input", "--retries", "--dest"),  # pip's
    "--no-cache-dir",
    "--progress-bar",
    "--upgrade",
    "--index-url",
    "--install",  # of wsl
    *("--standalone", "--nnodes", "--nproc-per-node", "--max-restarts"),  # torchrun's
    "--rdzv-conf",  # torchrun's
    *("--head", "--address", "--num-cpus", "--num-gpus", "--working-dir"),  # Ray's
    *("--max-model-len", "--max-lora-rank", "--max-num-batched-tokens", "--dtype"),  # vLLM's
    *("--weight-transfer-config", "--logprobs-mode", "--enable-lora", "--enable-scale-out"),
    *("--no-enable-chunked-prefill", "--enforce-eager", "--served-model-name", "--max-num-seqs"),
    *("--gpu-memory-utilization", "--tensor-parallel-size"),
    "--lr",  # what people write who mean the key
}  # fmt: skip
"""Options of other programs that a text may name."""
SOURCES = sorted((ROOT / "src" / "tutelage").rglob("*.py"))


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Every string of a module with its line; of an f-string the whole."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [str(v.value) if isinstance(v, ast.Constant) else VALUE for v in node.values]
            inside |= {id(v) for v in ast.walk(node)}
            yield node.lineno, "".join(parts)
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in inside
        ):
            yield node.lineno, node.value


@cache
def every_text() -> list[tuple[str, str]]:
    """Place and text, of the source and of what documents write as code within a sentence."""
    return list(_every_text())


def _every_text() -> Iterator[tuple[str, str]]:
    for path in SOURCES:
        for line, text in texts(path):
            yield f"{path.relative_to(ROOT)}:{line}", text
    for page in pages():
        for text in inline_code(page):
            yield str(page.relative_to(ROOT)), text


def verbs(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every verb of the command line."""
    yield path, command
    for name in getattr(command, "commands", {}):
        yield from verbs(command.get_command(None, name), (*path, name))


TREE = dict(verbs(get_command(build_app())))
TREE["train", "planner"] = load_command("planner:train_planner")
OPTIONS = {
    option
    for load_command in TREE.values()
    for param in load_command.params
    for option in (*param.opts, *param.secondary_opts)
}
SCRIPTS = {
    option
    for folder in ("examples", "benchmarks")
    for path in (ROOT / folder).rglob("*.py")
    for option in re.findall(r"add_argument\(\s*\"(--[\w-]+)", path.read_text(encoding="utf-8"))
}
"""Options of examples and benchmarks, which documents name too."""


@pytest.mark.full
def test_every_command_that_is_named_exists() -> None:
    wrong: list[str] = []
    for place, text in every_text():
        for found in re.finditer(r"(?<![\w./-])tutelage ((?:[a-z]+ ?)+)", text):
            quoted = text[: found.start()].endswith(("`", ": ", "with ", "\n", "    "))
            words = found[1].split()
            if quoted and (words[0],) not in TREE:
                wrong.append(f"{place}: tutelage {found[1]}")
            below = hasattr(TREE.get((words[0],)), "commands") and len(words) > 1
            if below and tuple(words[:2]) not in TREE:
                wrong.append(f"{place}: tutelage {found[1]}")
    assert not wrong, "\n".join(wrong)


def test_every_option_that_is_named_exists() -> None:
    known = OPTIONS | OTHERS | {"--help", "--version"}
    wrong = [
        f"{place}: {option}"
        for place, text in every_text()
        if "var(--" not in text  # a style sheet
        for option in re.findall(r"(?<![\w-])(--[a-z][a-z0-9_-]*[a-z0-9])", text)
        # The command takes an underscore for a dash.
        if not {option, option.replace("_", "-")}
        & (known if place.startswith("src/") else known | SCRIPTS)
    ]
    assert not wrong, "\n".join(wrong)


# ------------------------------------------------------------ the way of `docs/start.md`


START = ROOT / "docs" / "start.md"
SMALL = ("--steps", "1", "data.train_batch_size=2", "num_chains=2", "agent.max_tokens_per_turn=4",
         "rollout.max_len=1024")  # fmt: skip
"""A training that tiny models end in a second."""


def typed() -> list[Block]:
    """The blocks of commands between the agent's file and the section that changes something."""
    text = START.read_text(encoding="utf-8")
    first, last = (text.count("\n", 0, text.index(f"\n## {h}")) for h in ("2. ", "Change"))
    return [b for b in blocks(START) if b.language == "bash" and first < b.line < last]


def quick(words: list[str]) -> list[str]:
    """A command with less to do: fewer steps; a search that plays one task."""
    if "screen" in words:
        return [*words[1:], "--model", "runs/first/policy", "--dry-run"]
    more = {"train": SMALL, "eval": ("--max-tokens", "4")}
    return [*words[1:], *more.get(words[1], ())]


@pytest.mark.full
def test_each_command_of_the_way_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in write_files(START, tmp_path):
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
    tiny_policy(max_positions=1024).save(tmp_path / "runs" / "first" / "policy")
    done: list[str] = []
    for words in (words for block in typed() for words in commands(block)):
        if words[0] == "python":
            runpy.run_path(words[1])
            for name in ("train", "val", "test"):
                lines = (tmp_path / f"{name}.jsonl").read_text().splitlines(keepends=True)
                (tmp_path / f"{name}.jsonl").write_text("".join(lines[:4]))
            continue
        ended = CliRunner().invoke(build_app(), quick(words), prog_name="tutelage")
        assert ended.exit_code == 0, f"{' '.join(words)}\n{ended.output}"
        done.append(words[1])
    assert done == [
        "eval",
        "eval",
        "train",
        "eval",
        "train",
        "ask",
        "show",
        "runs",
        "train",
        "init",
    ]


# ------------------------------------------------------------ the page of commands


def test_the_page_has_every_command_flag_and_key() -> None:
    text = commands_page.PAGE.read_text(encoding="utf-8")
    assert text == commands_page.written(text), (
        "flags or keys have changed: python tests/docs/commands_page.py writes the page again"
    )
