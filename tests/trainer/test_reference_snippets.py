"""The reference document's snippets, with `tutelage` in place of upstream's packages.

What stands between the marks is the document's code as it is written there; around it is only what
it names and leaves out (its agent framework, its data).
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any, TypedDict

import pytest

import tutelage
from tutelage.testing import tiny_policy

SHORT = {
    "lr": 1e-2,
    "agent.num_chains": 8,
    "data.train_batch_size": 4,
    "agent.max_turns": 1,
    "agent.max_tokens_per_turn": 4,
    "rollout.max_len": 256,
    "trainer.device": "cpu",
    "trainer.threads": 1,
}
"""What makes a run of the small policy short; the document's own classes are used as they stand."""


class Result:
    """What the document's agents return."""

    def __init__(self, text: str) -> None:
        self.text = text


class MCPStdioTool:
    """Stands for the framework's tool; the small policy calls none."""

    def __init__(self, name: str, command: str, args: list[str]) -> None:
        self.name, self.command, self.args = name, command, args


class ChatAgent:
    """Stands for the framework's agent: one request over HTTP to whatever it is given."""

    def __init__(self, *, llm_client: Any, name: str = "", instruction: str = "", tools: Any = ()):
        self.llm = llm_client

    async def run(self, question: str) -> Result:
        import httpx2

        async with httpx2.AsyncClient(timeout=60) as http:
            done = await http.post(
                f"{self.llm.endpoint}/chat/completions",
                headers={"authorization": f"Bearer {self.llm.api_key}"},
                json={
                    "model": self.llm.name,
                    "messages": [{"role": "user", "content": question}],
                    "max_tokens": 4,
                },
            )
        done.raise_for_status()
        return Result(done.json()["choices"][0]["message"]["content"] or "")


def extract_answer(text: str) -> str:
    return text


def _evaluate_math_result(pred_result: str, true_result: str) -> bool:
    """For so small a model any digit will do."""
    return any(c.isdigit() for c in pred_result)


def run(source: str, names: dict[str, Any]) -> None:
    """Execute a snippet; what it defines stays in `names`."""
    exec(compile(source, "reference", "exec", dont_inherit=True), names)


def public() -> dict[str, Any]:
    """`from tutelage import *`, and the stand-ins."""
    names: dict[str, Any] = {"__name__": "snippets"}
    run("from tutelage import *", names)
    stand_ins = (ChatAgent, MCPStdioTool, extract_answer, _evaluate_math_result)
    names |= {s.__name__: s for s in stand_ins}
    names |= {"TypedDict": TypedDict, "json": json, "random": random, "os": os, "Path": Path}
    return names


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, one_thread: None) -> list[Any]:
    """Runs are short and of a tiny policy, `model=`; each Trainer that is made lies in the list."""
    import tutelage.trainer.trainer as module

    made: list[Any] = []
    init = module.Trainer.__init__
    folder = tmp_path / "model"
    tiny_policy(max_positions=512).save(folder)

    def short(self: Any, **options: Any) -> None:
        algorithm = tutelage.VERL({**SHORT, **options.pop("algorithm").keys})
        init(
            self,
            algorithm=algorithm,
            model=folder,
            n_runners=16,
            **options,
        )
        made.append(self)

    monkeypatch.setattr(module.Trainer, "__init__", short)
    monkeypatch.chdir(tmp_path)
    return made


def write_math(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name, count, start in (("train", 16, 0), ("val", 4, 100)):
        rows = [
            {
                "id": f"m{start + i}",
                "question": f"What is {i} + 1?",
                "chain": f"{i} + 1 = {i + 1}",
                "result": str(i + 1),
                "source": "made",
            }
            for i in range(count)
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))


@pytest.mark.full
async def test_the_math_example(small: list[Any]) -> None:
    """Section 2: the decorator, a dataset from JSONL, three epochs."""
    write_math(Path("data/math"))
    names = public()
    names["lightning_init"] = names["init"]
    results: list[Any] = []
    run(
        """
class MathProblem(TypedDict):
    id: str
    question: str
    chain: str
    result: str
    source: str

def _load_jsonl(file_path: str) -> Dataset[MathProblem]:
    with open(file_path) as f:
        return Dataset([MathProblem(**json.loads(line)) for line in f])

calculator_tool = MCPStdioTool(
    name="calculator",
    command="uvx",
    args=["mcp-server-calc"],
)

@rollout(
    model=LLM(name="openai/gpt-4o-mini-2024-07-18"),
    tokenizer=LLM(name="openai/gpt-4o-mini-2024-07-18", tokenizer_only=True),
)
async def run_task(task: MathProblem, llm, tokenizer) -> float:
    # 1. an agent with tools
    agent = ChatAgent(
        name="Math Agent",
        instruction="Solve math problems using the calculator tool.",
        llm_client=llm,
        tools=[calculator_tool],
    )

    # 2. run it
    result = await agent.run(task["question"])

    # 3. extract the answer
    predicted_answer = extract_answer(result.text)

    # 4. evaluate it and return the reward
    is_correct = _evaluate_math_result(predicted_answer, task["result"])
    return 1.0 if is_correct else 0.0

async def main():
    # 1. initialise
    lightning_init()

    # 2. load the data
    train_dataset = _load_jsonl("data/math/train.jsonl")
    val_dataset = _load_jsonl("data/math/val.jsonl")

    # 3. the trainer
    trainer = Trainer(
        algorithm=VERL(),
        num_epochs=3,
        train_dataset=train_dataset,
        val_dataset=val_dataset,
        output_dir="./outputs/math_agent",
    )

    # 4. train
    return await trainer.train(run_task)
""",
        names,
    )
    results.append(await names["main"]())
    (result,) = results
    assert (result.status, result.steps, result.failures) == ("finished", 12, {})
    rewards = result.rewards()
    assert sum(rewards[-3:]) > sum(rewards[:3]), rewards
    assert (Path("outputs/math_agent/policy") / "config.json").is_file()


@pytest.mark.full
async def test_the_tau2_example(small: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Section 3: a class, resources, a split by seed, tasks without a question, agent filtering."""
    folder = Path("tau2-bench/tau2/domains/airline")
    folder.mkdir(parents=True)
    raw = [{"id": str(i), "instructions": f"change flight {i}"} for i in range(12)]
    (folder / "tasks.json").write_text(json.dumps(raw))
    monkeypatch.setenv("TAU2_DATA_DIR", str(Path("tau2-bench").resolve()))

    class Tau2Task:
        def __init__(self, id: str, instructions: str) -> None:
            self.id, self.instructions = id, instructions

    class Tau2TaskRunner:
        """Stands for the benchmark's runner: two agents that talk over plain chat completions."""

        def __init__(self, max_steps: int, assistant_sampling_temperature: float) -> None:
            self.rollout = names["the_rollout"]()

        async def run_task(self, task: Any, assistant_client: Any, user_client: Any) -> Any:
            here = self.rollout
            with here.agent("user"):
                await ChatAgent(llm_client=here.llm("main_llm")).run(task.instructions)
            with here.agent("assistant_agent"):
                said = await ChatAgent(llm_client=here.llm("main_llm")).run(task.instructions)
            reward = sum(c.isdigit() for c in said.text) / 4
            return {"evaluation": type("Evaluation", (), {"reward": reward})}

    names = public()
    from tutelage.agents.session import current_rollout

    names |= {
        "Tau2Task": Tau2Task,
        "Tau2TaskRunner": Tau2TaskRunner,
        "patch_env_set_state": lambda: None,
        "ASSISTANT_AGENT_ID": "assistant_agent",
        "the_rollout": current_rollout,
        "lightning_init": names["init"],
    }
    run(
        """
class SerializedTask(TypedDict):
    id: str
    data: str

def _load_dataset() -> tuple[Dataset[SerializedTask], Dataset[SerializedTask]]:
    # 1. read the tasks
    data_dir = os.getenv("TAU2_DATA_DIR")
    tasks_path = Path(data_dir) / "tau2/domains/airline/tasks.json"
    with tasks_path.open() as f:
        dataset = json.load(f)

    # 2. serialise
    dataset = [{"id": task["id"], "data": json.dumps(task)} for task in dataset]

    # 3. split
    random_state = random.Random(42)
    indices = list(range(len(dataset)))
    random_state.shuffle(indices)
    train_indices = indices[:int(len(dataset) * 0.5)]
    val_indices = indices[int(len(dataset) * 0.5):]
    train_dataset = [dataset[i] for i in train_indices]
    val_dataset = [dataset[i] for i in val_indices]

    return train_dataset, val_dataset

class Tau2Agent(LitAgent):
    async def rollout_async(
        self,
        task: SerializedTask,
        resources: NamedResources,
        rollout: Rollout
    ) -> float:
        # 1. resources
        llm = resources.get("main_llm")

        # 2. deserialise
        tau2_task = Tau2Task(**json.loads(task["data"]))

        # 3. patch
        patch_env_set_state()

        # 4. the runner
        runner = Tau2TaskRunner(
            max_steps=20,
            assistant_sampling_temperature=1.0
        )

        # 5. run
        result = await runner.run_task(
            task=tau2_task,
            assistant_client=llm,
            user_client=llm
        )

        # 6. the reward
        reward = result["evaluation"].reward

        # 7. which agent is trained
        rollout.mark_agent_as_trainable(ASSISTANT_AGENT_ID)

        return reward

async def main():
    lightning_init()
    train_dataset, val_dataset = _load_dataset()
    resources = NamedResources({
        "main_llm": LLM(name="openai/gpt-4o-mini-2024-07-18"),
    })
    agent = Tau2Agent()
    trainer = Trainer(
        algorithm=VERL(),
        num_epochs=6,
        train_dataset=train_dataset,
        val_dataset=val_dataset,
        resources=resources,
        output_dir="./outputs/tau2_agent",
    )
    return await trainer.train(agent)
""",
        names,
    )
    result = await names["main"]()
    assert (result.status, result.steps, result.failures) == ("finished", 9, {})
    rewards = result.rewards()
    assert sum(rewards[-3:]) > sum(rewards[:3]), rewards
    from tutelage.store import open_store
    from tutelage.types import Mode

    with open_store(result.folder / "store.db") as store:
        calls = [c for r in store.rollouts("tau2_agent", mode=Mode.TRAIN) for c in r.last.calls]
        ids = {r.task.id for r in store.rollouts("tau2_agent", mode=Mode.TRAIN)}
    assert {(c.agent, c.policy) for c in calls} == {("user", None), ("assistant_agent", "main")}
    order = list(range(12))
    random.Random(42).shuffle(order)
    assert ids == {str(i) for i in order[:6]}


@pytest.mark.full  # three seconds
async def test_the_workflow_with_two_models_says_what_serves_the_judge(small: list[Any]) -> None:
    """Section 4's `eval_llm` would silently be the policy; an endpoint by its name makes it run."""
    names = public()
    run(
        """
class MyMultiAgent(LitAgent):
    async def rollout_async(self, task, resources, rollout):
        llm = resources.get("main_llm")
        await ChatAgent(llm_client=llm).run(task["question"])
        reward = 0.5
        rollout.mark_agent_as_trainable("main")
        return reward

resources = NamedResources({
    "main_llm": LLM(name="openai/gpt-4o-mini-2024-07-18"),
    "eval_llm": LLM(name="openai/gpt-4o"),
})
""",
        names,
    )
    options = {
        "algorithm": tutelage.VERL(steps=1),
        "train_dataset": [{"question": f"q{i}"} for i in range(4)],
        "resources": names["resources"],
        "output_dir": "./outputs/two",
    }
    with pytest.raises(
        tutelage.TutelageError,
        match="no endpoint or policy is set for the LLM 'main_llm', 'eval_llm'",
    ):
        await tutelage.Trainer(**options).train(names["MyMultiAgent"]())
    made = tutelage.Trainer(**options, endpoints={"openai/gpt-4o": "http://127.0.0.1:9/v1"})
    result = await made.train(names["MyMultiAgent"]())
    assert result.failures == {}


def test_the_public_names_are_those_and_no_more() -> None:
    names = {name for name in public() if not name.startswith("_")}
    wanted = {"Trainer", "VERL", "LitAgent", "NamedResources", "Rollout", "LLM", "PromptTemplate"}
    wanted |= {"Dataset", "rollout", "init", "emit_reward"}
    assert wanted <= names
    assert set(tutelage.__all__) <= names
