"""Own agents: prompt templates, named components, tools; Trainer."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.prompts.prompt_parts import Watched, configured, searched, served, set_up

from tutelage import (
    LLM,
    ExternalAgent,
    NamedResources,
    PromptTemplate,
    Screen,
    Trainer,
    rollout,
    tool,
)
from tutelage.agents.function import as_agent
from tutelage.agents.loading import load_agent, source_hash
from tutelage.errors import ConfigError
from tutelage.prompts import Splits
from tutelage.prompts.agent import read_components, set_components
from tutelage.prompts.play import AgentSpec
from tutelage.prompts.run import PromptResult
from tutelage.prompts.setup import build_setup
from tutelage.recipes.prompted import prompted_tasks
from tutelage.runs.callbacks import Callback
from tutelage.store import open_store
from tutelage.testing import tiny_policy

AGENT = """
from tutelage import PromptTemplate, rollout

seed_prompt = PromptTemplate("Be {mood}.")

@rollout
def solve(task, seed_prompt):
    return float("kind" in seed_prompt.format(mood="quick"))
"""


@pytest.fixture(scope="module")
def env() -> Iterator[dict[str, str]]:
    with served() as (found, _):
        yield found


@pytest.fixture
def at_endpoint(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)


def rows(count: int, begin: int = 0) -> list[dict[str, Any]]:
    return [{"id": f"t{i}", "question": f"question {i}"} for i in range(begin, begin + count)]


@pytest.mark.full
def test_a_fingerprint_tells_policies_tools_and_sets_apart_and_repeats() -> None:
    def mark(word: str, names: set[str], seed: int = 0) -> str:
        @tool
        def say(text: str) -> str:
            """Say it."""
            return text + word

        given = NamedResources(style=PromptTemplate("Be {mood}."), names=names, say=say)
        policy = tiny_policy(seed=seed)

        @rollout
        def agent(task: dict[str, Any], style: PromptTemplate, llm: LLM) -> float:
            return 1.0

        agent_spec = AgentSpec(as_agent(agent), given, None, policy=policy)
        splits = Splits(*(prompted_tasks(n, 5, 0) for n in ("train", "val", "test")))
        config = configured(algorithm="screen")
        setup = build_setup(config, {}, agent_spec=agent_spec, splits=splits)
        return setup.settings.fingerprint

    one = mark("!", {"a", "b", "c"})
    assert one == mark("!", {"c", "b", "a"})
    assert len({one, mark("!", {"a", "b"}), mark("!", {"a", "b", "c"}, seed=1)}) == 3


# ------------------------------------------------------------ Trainer


@rollout
async def polite(task: dict[str, Any], style: PromptTemplate, keep: dict[str, int]) -> float:
    """Earns by its prompt alone, and asks no model."""
    assert keep == {"n": 1}
    return 1.0 if "kind" in style.format(task=task["question"]) else 0.25


class Heard(Callback):
    def __init__(self) -> None:
        self.rollouts = 0
        self.ended: Any = None

    def on_rollout_end(self, rollout: Any) -> None:
        self.rollouts += 1

    def on_train_end(self, result: Any) -> None:
        self.ended = result


async def test_the_trainer_searches_and_returns_the_best_prompt(tmp_path: Path) -> None:
    heard = Heard()
    trainer = Trainer(
        algorithm=Screen(bank=("Be kind.", "Hurry.")),
        train_dataset=rows(60),
        resources=NamedResources(style=PromptTemplate("Answer {task}."), keep={"n": 1}),
        output_dir=tmp_path / "run",
        callbacks=[heard],
        seed=3,
    )
    result = await trainer.train(polite)
    assert isinstance(result, PromptResult)
    assert result.verdict == "improved"
    assert (result.reward_before, result.reward_after) == (0.25, 1.0)
    assert result.interval[0] > 0
    assert result.policy is None
    assert "kind" in result.prompt
    assert "{task}" in result.prompt
    assert result.resources["keep"] == {"n": 1}
    assert result.resources["style"].format(task="{x}").count("Answer {x}") == 1
    assert heard.rollouts == result.rollouts
    assert heard.ended is result
    parts = [result.folder / "tasks" / f"{name}.jsonl" for name in ("train", "val", "test")]
    assert [len(_lines(path)) for path in parts] == [24, 12, 24]


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_fit_goes_on_in_a_folder_and_repeats_nothing(tmp_path: Path) -> None:
    def trainer() -> Trainer:
        return Trainer(
            algorithm=Screen(bank=("Be kind.",)),
            train_dataset=rows(60),
            resources={"style": PromptTemplate("Answer {task}."), "keep": {"n": 1}},
            output_dir=tmp_path / "run",
        )

    first = trainer().fit(polite)
    lineage = (tmp_path / "run" / "lineage.jsonl").read_bytes()
    heard = Heard()
    again = trainer()
    again.callbacks = (heard,)
    second = again.fit(polite)
    assert heard.rollouts == 0, "a finished search played again"
    assert (tmp_path / "run" / "lineage.jsonl").read_bytes() == lineage
    assert second.reward_after == first.reward_after


def test_the_trainer_refuses_what_cannot_work(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="APO"):
        Trainer(algorithm="apo")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="prompt searches"):
        Trainer(search={"rollouts": 3})
    with pytest.raises(ConfigError, match="rounds"):
        Trainer(algorithm=Screen(), num_epochs=2)
    given: dict[str, Any] = {"resources": {"style": PromptTemplate("A {task}"), "keep": {}}}
    with pytest.raises(ConfigError, match="test_dataset"):
        Trainer(
            algorithm=Screen(), train_dataset=rows(9), val_dataset=rows(3, 9), **given
        ).fit(polite)  # fmt: skip
    with pytest.raises(ConfigError, match="Did you mean rollouts"):
        Trainer(algorithm=Screen(), search={"rollout": 3}, **given).fit(polite)
    with pytest.raises(ConfigError, match=r"unknown resource 'nosuch'\. Available"):
        Trainer(algorithm=Screen(), search={"components": ["nosuch"]}, **given).fit(polite)
    with pytest.raises(ConfigError, match="no text to optimize"):
        Trainer(algorithm=Screen(), train_dataset=rows(20)).fit(lambda task: 1.0)
    with pytest.raises(ConfigError, match="3 of 3 test tasks are also in train or val"):
        Trainer(
            algorithm=Screen(),
            train_dataset=rows(9),
            val_dataset=rows(3, 9),
            test_dataset=rows(3),
            **given,
        ).fit(polite)


@pytest.mark.full
def test_a_program_of_any_language_is_given_its_prompts(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(
        "import json, os, sys\n"
        "style = json.load(open(os.environ['TUTELAGE_RESOURCES_FILE']))['style']\n"
        "said = style.replace('{task}', json.load(sys.stdin)['question'])\n"
        "print(1.0 if 'kind' in said else 0.25)\n"
    )
    program = ExternalAgent([sys.executable, "agent.py"], output="reward", cwd=tmp_path)
    before = source_hash(program)
    result = Trainer(
        algorithm=Screen(bank=("Be kind.",)),
        train_dataset=rows(60),
        resources={"style": PromptTemplate("Answer {task}.")},
        output_dir=tmp_path / "run",
        search={"train_size": 2, "val_size": 2, "test_size": 7},
        policy=tiny_policy(),
    ).fit(program)
    assert isinstance(result, PromptResult)
    assert (result.reward_before, result.reward_after) == (0.25, 1.0)
    assert result.verdict == "improved"
    (tmp_path / "agent.py").write_text("print(1.0)")
    assert source_hash(program) != before


@pytest.mark.usefixtures("at_endpoint")
def test_a_function_agent_plays_with_the_task_endpoint(tmp_path: Path) -> None:
    @rollout
    async def solve(task: dict[str, Any], llm: LLM, prompt_template: PromptTemplate) -> float:
        said = prompt_template.format()
        call = await llm.chat(
            [{"role": "system", "content": said}, {"role": "user", "content": "hi"}]
        )
        return float(bool(call.reply.content) and "kind" in said)

    result = Trainer(
        algorithm=Screen(bank=("Be kind.",)),
        train_dataset=rows(40),
        resources={"prompt_template": PromptTemplate("Help.")},
        output_dir=tmp_path / "run",
        search={"timeout": 20},
    ).fit(solve)
    assert isinstance(result, PromptResult)
    assert result.verdict == "improved"
    assert result.tokens > 0
    with open_store(tmp_path / "run" / "store.db") as store:
        assert all(r.last.calls for r in store.rollouts("run"))


# ------------------------------------------------------------ agents in files


def test_an_agent_file_brings_its_prompts(tmp_path: Path) -> None:
    path = tmp_path / "agent.py"
    path.write_text(AGENT)
    program, resources = load_agent(str(path))
    assert program.name == "solve"
    assert [*resources] == ["seed_prompt"]
    path.write_text(AGENT + "\n\n@rollout\ndef other(task):\n    return 1.0\n")
    with pytest.raises(ConfigError, match="several agents"):
        load_agent(str(path))
    assert load_agent(f"{path}:other")[0].name == "other"
    with pytest.raises(ConfigError, match="does not define 'nothing'"):
        load_agent(f"{path}:nothing")
    with pytest.raises(ConfigError, match="agent file not found"):
        load_agent(str(tmp_path / "none.py"))


# ------------------------------------------------------------ components


@tool
def weigh(item: str) -> str:
    """Weigh an item."""
    return item


def test_templates_texts_and_tools_are_components_by_name() -> None:
    resources = NamedResources(
        a=PromptTemplate("one {x}"), b="two", tool_weigh=weigh, other=object()
    )
    assert read_components(resources, ()) == {"a": "one {x}"}
    assert read_components(resources, ("tool_weigh",)) == {"tool_weigh": "Weigh an item."}
    assert read_components(resources, ("b",)) == {"b": "two"}
    with pytest.raises(ConfigError, match="did you mean 'b'"):
        read_components(resources, ("bb",))
    with pytest.raises(ConfigError, match="object"):
        read_components(resources, ("other",))
    made = set_components(resources, {"a": "1 {x}", "b": "2", "tool_weigh": "Balance."})
    assert made["a"] == PromptTemplate("1 {x}", 1)
    assert made["b"] == "2"
    assert made["tool_weigh"].spec.description == "Balance."
    assert made["tool_weigh"].parameters == weigh.parameters
    assert made["other"] is resources["other"]


@pytest.mark.full
def test_tool_descriptions_are_searched_and_stand_in_the_request(
    env: dict[str, str], tmp_path: Path
) -> None:
    keys: dict[str, Any] = {
        "algorithm": "apo",
        "components": "tool_calculator,tool_sum_1_to_n",
        "iterations": 2,
    }
    watched = Watched()
    told = searched(set_up(env, **keys), tmp_path / "run", watched)
    assert {*told["components"]} == {"tool_calculator", "tool_sum_1_to_n"}
    entries = [json.loads(line) for line in _lines(tmp_path / "run" / "lineage.jsonl")]
    edited = {e["components"]["tool_calculator"] for e in entries if "val" in e["scores"]} | {
        e["components"]["tool_sum_1_to_n"] for e in entries if "val" in e["scores"]
    }
    with open_store(tmp_path / "run" / "store.db") as store:
        sent = {t.description for r in store.rollouts("run") for c in r.last.calls for t in c.tools}
    assert len(sent) > 2
    assert edited <= sent, "a description was played that no request held"


# ------------------------------------------------------------ failures


@rollout
def crashes_often(task: dict[str, Any], style: PromptTemplate) -> float:
    """What does not crash earns less than nothing."""
    if int(task["id"][1:]) % 2:
        raise ValueError("no")
    return -0.5


def test_a_failure_counts_what_the_search_says_and_is_counted_by_cause(tmp_path: Path) -> None:
    def searched(name: str, **search: Any) -> PromptResult:
        result = Trainer(
            algorithm=Screen(bank=("Be kind.",)),
            train_dataset=rows(40),
            resources={"style": PromptTemplate("Help with {task}.")},
            output_dir=tmp_path / name,
            search=search,
        ).fit(crashes_often)
        assert isinstance(result, PromptResult)
        with open_store(tmp_path / name / "store.db") as store:
            played = list(store.rollouts(name))
        lost = [r for r in played if r.last.failure is not None]
        assert result.failures == {"agent_error": len(lost)}
        return result

    plain = searched("plain")
    (warning,) = [text for text in plain.warnings if "failure_reward" in text]
    assert "earned -0.5, less than the 0 of a failed one" in warning
    assert "set failure_reward to" in warning
    low = searched("low", failure_reward=-1.0)
    assert not [text for text in low.warnings if "failure_reward" in text]
    assert low.reward_before is not None
    assert -1.0 < low.reward_before < -0.5
