"""What a user names to evaluate or ask: a run by its name, or a model by its folder or hub name.

A run brings its final policy, tools, reward and limits; a bare model brings only itself, so tools
and reward must be named. Tasks are played on the engine's invariant mode, so a task's result does
not depend on the other tasks or on their order; `statistics/outcome.py` adds the rollouts up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tutelage.agents.builtin import AGENTS, told_by_template
from tutelage.config import Resolved, RunConfig
from tutelage.engine.factory import make_engine
from tutelage.errors import ConfigError, DataError, MissingExtraError, RunError
from tutelage.evaluate.config import LABEL, AskConfig, EvaluationConfig
from tutelage.gateway.serving import ServedPolicy
from tutelage.policy.model import Policy, load
from tutelage.rewards import RewardFunction, check, resolve_reward
from tutelage.rewards import reward as reward_function
from tutelage.rewards.function import REWARD_SECONDS
from tutelage.rollouts.models import EngineModels
from tutelage.rollouts.runner import Runner, RunnerSettings, Spec
from tutelage.runs.again import resume_command
from tutelage.runs.folder import RunFolder, find
from tutelage.runs.inputs import load_tools, told_tools, training_tasks
from tutelage.runs.progress import Progress
from tutelage.runs.trust import check_trusted, code_of
from tutelage.seeds import SeedTree
from tutelage.statistics.outcome import Evaluation, Success, summarise
from tutelage.tasks.arithmetic import EMBEDDED_REWARD
from tutelage.tasks.dataset import Dataset
from tutelage.tasks.demonstrations import load_demonstrations, overlap_of
from tutelage.tasks.overlap import content, count_overlap, distinct
from tutelage.tools.registry import resolve_tools
from tutelage.tools.tool import Tool
from tutelage.types import Mode, Rollout, Sampling, Task

_SLOTS = 64
UNKEPT = "evaluation"
"""The run that rollouts name which no run folder keeps."""


@dataclass(frozen=True, slots=True)
class _Subject:
    """What is evaluated: a policy, its tools, and the limits of its agent."""

    policy: Policy
    tools: Mapping[str, Tool]
    max_turns: int = 4
    max_tokens_per_turn: int = 256
    token_budget: int = 1 << 20
    max_length: int = 1024
    failure_reward: float = 0.0
    reward_timeout: float = REWARD_SECONDS
    agent_type: str = "hf"
    system_prompt: str | None = None


def _play(
    subject: _Subject,
    specs: Sequence[Spec],
    grader: RewardFunction,
    *,
    temperature: float,
    run_id: str = UNKEPT,
    known: Mapping[str, Rollout] | None = None,
    on_done: Callable[[Rollout], None] | None = None,
) -> list[Rollout]:
    """Run rollouts of a subject in the invariant mode, but for those that are `known` by id."""
    policy = subject.policy
    slots = min(_SLOTS, max(1, len(specs)))
    engine = make_engine(policy, slots=slots, max_length=subject.max_length, invariant=True)
    agent = AGENTS.find(subject.agent_type)(
        subject.tools,
        Sampling(temperature=temperature, max_tokens=subject.max_tokens_per_turn),
        max_turns=subject.max_turns,
        token_budget=subject.token_budget,
        system_prompt=subject.system_prompt,
    )
    settings = RunnerSettings(
        run_id,
        failure_reward=subject.failure_reward,
        reward_timeout=subject.reward_timeout,
    )
    found = dict(known or {})
    left = [spec for spec in specs if spec.seeds.id("roll") not in found]

    async def run() -> list[Rollout]:
        models = EngineModels(engine, policy.codec)
        return await Runner(agent, models, settings, reward=grader).run(left, on_done)

    found |= {rollout.id: rollout for rollout in asyncio.run(run())}
    return [found[spec.seeds.id("roll")] for spec in specs]


_SERVED_LENGTH = 4096


@dataclass(frozen=True, slots=True)
class PreparedEvaluation:
    """Whose policy plays which tasks, and how they are graded: all of it read and checked."""

    asked: EvaluationConfig
    subject: _Subject
    tasks: Dataset[Any]
    grader: RewardFunction
    reward: str
    """The grader as it was named."""
    success: str | None
    """What succeeds, as it was said; None is the grader's own word."""
    run: tuple[RunFolder, RunConfig] | None
    """The run whose policy it is; None for a bare model."""

    def play(
        self,
        progress: Progress,
        run_id: str = UNKEPT,
        known: Mapping[str, Rollout] | None = None,
        keep: Callable[[Rollout], None] | None = None,
    ) -> list[Rollout]:
        """Play all tasks, each sample with seeds of its own. What is `known` by its id is not
        played again; `keep` gets each rollout as it ends."""
        seeds = SeedTree(self.asked.seed).child("eval")
        specs = [
            Spec(task, Mode.TEST, task.id, i, seeds.child(task.id, i), label=LABEL)
            for task in self.tasks
            for i in range(self.asked.samples)
        ]
        done = len(known or ())

        def count(rollout: Rollout) -> None:
            nonlocal done
            done += 1
            progress.evaluation(LABEL, done, len(specs))
            if keep is not None:
                keep(rollout)

        return _play(
            self.subject,
            specs,
            self.grader,
            temperature=self.asked.sampled_at,
            run_id=run_id,
            known=known,
            on_done=count,
        )

    def add_up(self, played: Sequence[Rollout], progress: Progress) -> Evaluation:
        """What rollouts of all tasks come to, and how many of the tasks were trained on."""
        found = summarise(played, Success.of(self.success))
        seen = None if self.run is None else _trained_on(*self.run, self.tasks, self.grader)
        if self.run is not None and seen is None:
            progress.note("whether it was trained on these tasks is not known: its files are gone")
        repeated = len(self.tasks) - len(distinct(self.tasks, content))
        return replace(found, in_training=seen, repeated=repeated)


def evaluate(
    target: str, asked: EvaluationConfig, *, progress: Progress, trust: bool = False
) -> Evaluation:
    """Play tasks with a run's or a model's policy, and keep nothing; see `prepare_evaluation`."""
    ready = prepare_evaluation(target, asked, trust=trust)
    return ready.add_up(ready.play(progress), progress)


def prepare_evaluation(
    target: str, asked: EvaluationConfig, *, trust: bool = False, trusted: Collection[str] = ()
) -> PreparedEvaluation:
    """Read and check all that an evaluation needs.

    Without an `asked.success` the run's holds, with the run's own reward. Raises `ConfigError`
    where code that a run of somebody else names would be run, unless `trust`, or all of it is among
    what is `trusted`.
    """
    rows: list[Task] = [task for path in asked.test for task in Dataset.load(path)]
    tasks = Dataset(rows[: asked.limit])
    run, reward = _run_of(target), asked.reward
    trust = trust or (run is not None and {*code_of(run[0])} <= {*trusted})
    name = reward or (run[1].agent.reward_name or EMBEDDED_REWARD if run else None)
    if name is None:
        raise ConfigError(
            f"{target!r} is a model, not a run, so it has no reward of its own: name one with "
            "--reward NAME or --reward FILE.py:function"
        )
    if run is not None and reward is None:
        check_trusted(run[0], [name], trust=trust)
    grader, success = resolve_reward(name), asked.success
    _check_success(success)
    if success is None and run is not None and reward in (None, run[1].agent.reward_name):
        success = run[1].reward.success
    _check_agent(run, trust)
    subject = _subject(target, run, asked.tools, trust)
    check(grader, tasks)
    return PreparedEvaluation(asked, subject, tasks, grader, name, success, run)


def _trained_on(
    folder: RunFolder, config: RunConfig, tasks: Sequence[Task], grader: RewardFunction
) -> int | None:
    """How many of the tasks stand in what a run was trained on; None where its files are gone."""
    try:
        if config.recipe == "sft":
            return overlap_of(load_demonstrations(config.data.train_files), (), tasks).test_in_train
        recorded = folder.tasks("train")
        own = recorded.is_file()
        known = Dataset[Any].recorded(recorded) if own else training_tasks(config)
    except (DataError, MissingExtraError):
        return None
    fields = None if own else grader.fields_read
    return count_overlap(known, (), tasks, lambda task: content(task, fields)).test_in_train


def _check_success(text: str | None) -> None:
    try:
        Success.of(text)
    except ValueError as error:
        raise ConfigError(
            f"--success {text!r} says no success: {error}; write a part of the reward (right), a "
            "bound ('>=0.5') or both ('right>=0.5')"
        ) from error


def ask(target: str, question: str, asked: AskConfig, *, trust: bool = False) -> Rollout:
    """Play one question with a run's or a model's policy; `trust` as for `evaluate`."""
    run = _run_of(target)
    _check_agent(run, trust)
    subject = _subject(target, run, asked.tools, trust)
    task = Task("question", {"question": question})
    spec = Spec(task, Mode.TEST, task.id, 0, SeedTree(asked.seed).child("ask"), label="ask")
    return _play(subject, [spec], _ungraded, temperature=asked.temperature)[0]


@reward_function(name="ungraded")
def _ungraded(task: Task) -> float:
    return 0.0


def served(target: str, *, slots: int, max_length: int | None, seed: int) -> ServedPolicy:
    """A run's or a model's policy as a chat client; use it on one event loop.

    `max_length` is the context in tokens; without it a run's own, or at most 4096 of a model's.
    """
    run = _run_of(target)
    subject = _subject(target, run, ())
    policy = subject.policy
    if max_length is not None and max_length > policy.max_positions:
        raise ConfigError(
            f"--max-length {max_length} is more than the {policy.max_positions} positions of "
            f"{target!r}; give it at most those"
        )
    wanted = max_length or (subject.max_length if run else _SERVED_LENGTH)
    engine = make_engine(policy, slots=slots, max_length=wanted, schedule="free")
    return ServedPolicy(engine, policy.codec, SeedTree(seed).child("serve"))


def _run_of(target: str) -> tuple[RunFolder, RunConfig] | None:
    """The run that `target` names, None when it is a model folder or hub name."""
    path = Path(target)
    if (path / "tokenizer_config.json").is_file() or (not path.exists() and target.count("/") == 1):
        return None
    folder = find(target)
    return folder, Resolved.from_json(folder.config.read_text()).config


def _check_agent(run: tuple[RunFolder, RunConfig] | None, trust: bool) -> None:
    """An agent type of the user's is code that playing runs."""
    if run is not None:
        check_trusted(run[0], [run[1].agent.agent_type], trust=trust)


def _subject(
    target: str,
    run: tuple[RunFolder, RunConfig] | None,
    tools: Sequence[str] | None,
    trust: bool = False,
) -> _Subject:
    chosen = resolve_tools(tools) if tools is not None else None
    if run is None:
        told = chosen or {}
        return _Subject(load(target, tools=[tool.spec for tool in told.values()]), told)
    folder, config = run
    if not folder.policy.is_dir():
        raise RunError(
            f"the run {folder.name!r} has no final policy yet; finish it first: "
            f"{resume_command(folder.path)}"
        )
    if chosen is None:
        check_trusted(folder, config.agent.tools or (), trust=trust)
    given: Mapping[str, Tool] = load_tools(config) if chosen is None else chosen
    named = chosen is not None or config.agent.tools
    told = told_by_template(config.agent.agent_type, given) if named else []
    policy = load(str(folder.policy), tools=told)
    if not named:
        given = told_tools(config, given, knows_tools=policy.codec.knows_tools)
    return _Subject(
        policy=policy,
        tools=given,
        max_turns=config.agent.max_turns if config.agent.use_agent else 1,
        max_tokens_per_turn=config.agent.max_tokens_per_turn,
        token_budget=config.response_tokens,
        max_length=config.rollout.max_len,
        failure_reward=config.agent.failure_reward,
        reward_timeout=config.agent.reward_timeout,
        agent_type=config.agent.agent_type,
        system_prompt=config.agent.system_prompt,
    )
