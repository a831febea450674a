"""`Trainer`: any agent is trained through the same loop; every way to hold it wrong is named."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from tutelage import (
    RL,
    SFT,
    Callback,
    LitAgent,
    PromptTemplate,
    Screen,
    Trainer,
    rollout,
)
from tutelage.errors import ConfigError, FailureBudgetError, RunError
from tutelage.resources import LLM, NamedResources
from tutelage.runs.folder import RunFolder
from tutelage.runs.progress import Progress
from tutelage.store import open_store
from tutelage.testing import tiny_policy
from tutelage.tracing import span
from tutelage.types import Mode, Rollout
from tutelage.weights import jobs

TASKS = [{"id": f"t{i}", "question": f"What is {i} + 1?"} for i in range(9)]
DIGITS = set("0123456789")


def keys(steps: int = 8, **more: Any) -> RL:
    """Short steps of a tiny policy: one turn of four tokens."""
    return RL(
        {
            "lr": 1e-2,
            "steps": steps,
            "agent.num_chains": 8,
            "data.train_batch_size": 4,
            "agent.max_turns": 1,
            "agent.max_tokens_per_turn": 4,
            "rollout.max_len": 128,
            "trainer.device": "cpu",
            "trainer.threads": 1,
            **more,
        }
    )


def trainer(folder: Path, steps: int = 8, **options: Any) -> Trainer:
    more = options.pop("keys", {})
    given: dict[str, Any] = {
        "algorithm": keys(steps, **more),
        "train_dataset": TASKS,
        "policy": tiny_policy(),
        "output_dir": folder / "run",
        "n_runners": 32,
    }
    return Trainer(**{**given, **options})


def digits(text: str | None) -> float:
    return float(sum(c in DIGITS for c in text or ""))


@rollout
async def likes_digits(task: Any, llm: LLM) -> float:
    """One call; the reward counts digits."""
    return digits((await llm.chat(task["question"], max_tokens=4)).reply.content)


def rises(rewards: list[float], by: float) -> bool:
    return sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + by


def weights(policy: Any) -> dict[str, torch.Tensor]:
    return {n: t.detach().clone() for n, t in policy.named_tensors()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[n], b[n]) for n in a)


# ---------------------------------------------------------------- training


def test_a_function_is_trained_to_a_higher_reward(tmp_path: Path, one_thread: None) -> None:
    policy = tiny_policy()
    before = weights(policy)
    result = trainer(tmp_path, policy=policy).fit(likes_digits)
    assert (result.status, result.steps, result.failures) == ("finished", 8, {})
    assert rises(result.rewards(), 0.2), result.rewards()
    assert result.reward_before is not None
    assert result.reward_after is not None
    assert not same(before, weights(policy))
    assert result.policy is not None
    assert (result.policy / "config.json").is_file()
    assert json.loads((result.folder / "agent.json").read_text())["agent"] == "likes_digits"
    with open_store(result.folder / "store.db") as store:
        played = list(store.rollouts(result.folder.name, mode=Mode.TRAIN))
    assert len(played) == 8 * 4 * 8
    assert all(len(r.last.calls) == 1 for r in played)
    assert max(m["max_dlogp"] for m in result.metrics if m["phase"] == "rl") < 1e-4


@pytest.mark.parametrize(
    "algorithm", [RL(), SFT("shown.jsonl"), Screen(), RL({"agent.num_chains": 2})]
)
async def test_a_name_that_is_no_model_here_is_not_the_small_policy(
    algorithm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever names a model and has none gets a refusal with the ways on, before anything runs."""
    for variable in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)
    Path("shown.jsonl").write_text('{"question": "q", "answer": "a"}\n')
    tasks = {} if isinstance(algorithm, SFT) else {"train_dataset": TASKS}
    named = LLM("openai/gpt-4o-mini", trainable=True)
    made = Trainer(
        algorithm=algorithm, resources={"llm": named, "p": PromptTemplate("Be brief.")}, **tasks
    )
    with pytest.raises(ConfigError, match=r"'openai/gpt-4o-mini'.*model=.*policy=.*LLM\(\)"):
        await made.train(likes_digits)
    assert not Path("runs").exists() or not [*Path("runs").iterdir()]


@pytest.mark.full
async def test_epochs_are_whole_passes_over_the_tasks(tmp_path: Path) -> None:
    """Of fewer tasks than a batch has, and of a number that it does not divide."""
    for count, batch, steps in ((5, 16, 3), (9, 4, 7)):
        made = Trainer(
            algorithm=RL({**keys().keys, "steps": None, "data.train_batch_size": batch}),
            train_dataset=TASKS[:count],
            val_dataset=TASKS[:1],
            num_epochs=3,
            policy=tiny_policy(),
            output_dir=tmp_path / f"run{count}",
            n_runners=32,
        )
        result = await made.train(likes_digits)
        assert result.steps == steps
        with open_store(result.folder / "store.db") as store:
            (run,) = store.runs()
            played = Counter(r.task.id for r in store.rollouts(run.id, mode=Mode.TRAIN))
        assert played == {f"t{i}": 3 * 8 for i in range(count)}


@pytest.mark.full
def test_training_replayed_from_the_record_gives_the_same_weights(
    tmp_path: Path, one_thread: None
) -> None:
    """Whatever timing the agents had: after a resume nothing is played that is on record."""
    early = tmp_path / "early"

    class KeepTheFirst(Callback):
        def on_step_end(self, step: int, metrics: Any) -> None:
            if step == 1:
                shutil.copytree(tmp_path / "run" / "checkpoints", early)

    first = trainer(tmp_path, 4, callbacks=[KeepTheFirst()]).fit(likes_digits)
    trained = torch.load(first.folder / "checkpoints/step_000004/tensors.pt", weights_only=True)

    def play_never(task: Any, llm: LLM) -> float:
        raise AssertionError("it is on record")

    play_never.__name__ = "likes_digits"
    shutil.rmtree(first.folder / "checkpoints")
    shutil.copytree(early, first.folder / "checkpoints")
    (first.folder / "result.json").unlink()
    lines = (first.folder / "metrics.jsonl").read_text().splitlines()
    again = trainer(tmp_path, 4, keys={"allow_changes": True}).fit(play_never)
    replayed = torch.load(again.folder / "checkpoints/step_000004/tensors.pt", weights_only=True)
    assert same(trained["policy"], replayed["policy"])
    assert (again.rollouts, again.tokens) == (first.rollouts, first.tokens)
    repeated = (again.folder / "metrics.jsonl").read_text().splitlines()
    for one, two in zip(lines, repeated, strict=True):
        a, b = json.loads(one), json.loads(two)
        clock = ("time/", "tokens_per_second")
        assert {k: v for k, v in a.items() if not k.startswith(clock)} == {
            k: v for k, v in b.items() if not k.startswith(clock)
        }


# ---------------------------------------------------------------- several models


def test_a_mark_that_names_no_agent_says_which_were_seen(tmp_path: Path, one_thread: None) -> None:
    class Misnamed(LitAgent):
        async def rollout_async(self, task: Any, resources: NamedResources, rollout: Any) -> float:
            with span("invoke_agent Math Agent", {"gen_ai.agent.name": "Math Agent"}):
                reply = await rollout.llm("main").chat(task["question"], max_tokens=4)
            rollout.mark_agent_as_trainable("MathAgent")
            return digits(reply.reply.content)

    with pytest.raises(FailureBudgetError, match=r"agents 'Math Agent' .* with mark_agent_as"):
        trainer(tmp_path, 1).fit(Misnamed())


@pytest.mark.full
def test_two_agents_with_two_policies_train_at_once_and_go_on_after_a_stop(
    tmp_path: Path, one_thread: None
) -> None:
    """One earns by digits, the other by anything else: no one policy could do both."""

    @rollout
    async def pair(task: Any, likes: LLM, dislikes: LLM) -> dict[str, float]:
        one = await likes.chat(task["question"], max_tokens=4)
        two = await dislikes.chat(task["question"], max_tokens=4)
        good, bad = digits(one.reply.content), digits(two.reply.content)
        return {"reward": good - bad, "good": good, "bad": bad}

    class StopAtFour(Callback):
        def on_step_end(self, step: int, metrics: Any) -> None:
            if step == 4 and "reward/good" in metrics:
                raise KeyboardInterrupt

    def make(folder: Path, **options: Any) -> tuple[Trainer, Any, Any]:
        a, b = tiny_policy(seed=0), tiny_policy(seed=1)
        made = trainer(
            folder,
            10,
            policy={"main": a, "b": b},
            resources=NamedResources(
                likes=LLM(trainable=True), dislikes=LLM(trainable=True, policy="b")
            ),
            keys={"trainer.save_freq": 2, "data.train_batch_size": 8},
            **options,
        )
        return made, a, b

    (tmp_path / "one").mkdir()
    made, a, b = make(tmp_path / "one")
    result = made.fit(pair)
    lines = [m for m in result.metrics if m["phase"] == "rl"]
    assert rises([m["reward/mean"] for m in lines], 0.3), [m["reward/mean"] for m in lines]
    assert lines[-1]["policy/b/grad_norm"] > 0
    assert not same(weights(a), weights(tiny_policy(seed=0)))
    assert not same(weights(b), weights(tiny_policy(seed=1)))
    assert (result.folder / "policies" / "b" / "config.json").is_file()
    with open_store(result.folder / "store.db") as store:
        calls = [c for r in store.rollouts("run", mode=Mode.TRAIN) for c in r.last.calls]
    assert {c.policy for c in calls} == {"main", "b"}

    (tmp_path / "two").mkdir()
    stopped, *_ = make(tmp_path / "two", callbacks=[StopAtFour()])
    with pytest.raises(KeyboardInterrupt):
        stopped.fit(pair)
    going, a2, b2 = make(tmp_path / "two")
    assert going.fit(pair).status == "finished"
    assert not same(weights(b2), weights(tiny_policy(seed=1)))
    assert not same(weights(a2), weights(tiny_policy(seed=0)))


# ---------------------------------------------------------------- around it


def test_dev_shows_calls_agents_tokens_rewards_and_failures(
    tmp_path: Path, one_thread: None
) -> None:
    @rollout
    async def agent(task: Any, llm: LLM, rollout: Any) -> float:
        await llm.chat(task["question"], max_tokens=3)
        with rollout.agent("helper"):
            await rollout.llm().chat(task["question"], max_tokens=2)
        if task["id"] == "t2":
            raise ValueError("no idea")
        return 0.5

    made = trainer(tmp_path)
    report = made.dev(agent, n=3)
    assert report.calls == 6
    assert report.agents == {"main": 3, "helper": 3}
    assert sorted(r for r in report.rewards if r is not None) == [0.0, 0.5, 0.5]
    assert len(report.failures) == 1
    assert "no idea" in report.failures[0]
    assert not report.ok
    assert "2 calls by main, helper" in str(report)
    assert not (tmp_path / "run").exists()


def test_callbacks_see_the_run(tmp_path: Path, one_thread: None) -> None:
    seen: list[str] = []

    class See(Callback):
        def on_train_start(self, title: str, facts: Any) -> None:
            seen.append(f"start {title}")

        def on_phase_start(self, name: str) -> None:
            seen.append(name)

        def on_step_end(self, step: int, metrics: Any) -> None:
            seen.append(f"step {step} {metrics['reward/mean'] >= 0}")

        def on_rollout_end(self, rollout: Rollout) -> None:
            if "rollout" not in seen:
                seen.append("rollout")

        def on_train_end(self, result: Any) -> None:
            seen.append(f"end {result.status}")

    trainer(tmp_path, 1, callbacks=[See()]).fit(likes_digits)
    assert seen == [
        "start likes_digits", "measure before", "rollout", "reinforcement learning", "step 1 True",
        "measure after", "end finished",
    ]  # fmt: skip


async def test_cancelling_stops_the_run_which_can_be_gone_on_with(
    tmp_path: Path, one_thread: None
) -> None:
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    class Begun(Callback):
        def on_step_end(self, step: int, metrics: Any) -> None:
            if step == 2:
                loop.call_soon_threadsafe(begun.set)

    made = trainer(tmp_path, 200, callbacks=[Begun()], keys={"trainer.save_freq": 1})
    work = asyncio.create_task(made.train(likes_digits))
    await begun.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    details = json.loads((tmp_path / "run" / "result.json").read_text())
    assert details["status"] == "stopped"
    assert details["rl_steps"] < 200
    with pytest.raises(RunError, match="trains the Python agent 'likes_digits'"):
        jobs.resume(RunFolder(tmp_path / "run"), Progress())
    with pytest.raises(RunError, match="the training tasks changed"):
        await trainer(tmp_path, 200, keys={"trainer.save_freq": 1}).train(
            likes_digits, train_dataset=TASKS[:5]
        )


async def test_resources_live_as_long_as_the_run(tmp_path: Path, one_thread: None) -> None:
    life: list[str] = []

    class Shop:
        async def __aenter__(self) -> Shop:
            life.append("open")
            self.task = asyncio.current_task()
            return self

        async def __aexit__(self, *exc_info: object) -> None:
            assert asyncio.current_task() is self.task
            life.append("closed")

    @rollout
    async def agent(task: Any, llm: LLM, shop: Shop) -> float:
        assert life == ["open"]
        return digits((await llm.chat(task["question"], max_tokens=4)).reply.content)

    result = await trainer(tmp_path, 1, resources=NamedResources(shop=Shop())).train(agent)
    assert result.failures == {}
    assert life == ["open", "closed"]


# ---------------------------------------------------------------- held wrong


@pytest.mark.parametrize(
    ("resources", "words"),
    [
        ({"a": LLM(), "b": LLM()}, "no endpoint or policy is set for the LLM 'a', 'b'"),
        ({"a": LLM(trainable=True), "b": LLM()}, "no endpoint or policy is set for the LLM 'b'"),
        ({"a": LLM(endpoint="http://x/v1")}, "nothing to train"),
    ],
)
def test_no_judge_is_silently_the_policy(
    resources: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=words):
        trainer(tmp_path, resources=NamedResources(resources)).fit(likes_digits)
    assert not (tmp_path / "run").exists()


def test_what_an_agent_needs_must_be_there_before_anything_runs(tmp_path: Path) -> None:
    def wants(task: Any, llm: LLM, database: Any) -> float:
        return 0.0

    class Empty(LitAgent):
        pass

    for agent, words in (
        (wants, "needs 'database'"),
        (Empty(), "no method for"),
        (Empty, "is a class"),
        (7, "is not an agent"),
        (lambda: 1.0, "no parameter for the task"),
    ):
        with pytest.raises(ConfigError, match=words):
            trainer(tmp_path).fit(agent)
    assert not (tmp_path / "run").exists()


def test_bad_options_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="n_runners"):
        Trainer(n_runners=0)
    with pytest.raises(ConfigError, match="not both"):
        Trainer(model="x", policy=tiny_policy())
    with pytest.raises(ConfigError, match="not supported by Trainer"):
        Trainer(algorithm="grpo")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="need a train_dataset"):
        Trainer(val_dataset=TASKS, policy=tiny_policy()).fit(likes_digits)
    with pytest.raises(ConfigError, match="policy='b'"):
        trainer(tmp_path, policy={"main": tiny_policy(), "b": tiny_policy()}).fit(likes_digits)
    with pytest.raises(ConfigError, match="endpoints has the unknown LLM 'judge'"):
        trainer(tmp_path, endpoints={"judge": "http://x"}).fit(likes_digits)
    with pytest.raises(ConfigError, match="lr_typo"):
        trainer(tmp_path, algorithm=RL(lr_typo=1)).fit(likes_digits)
