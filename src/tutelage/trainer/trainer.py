"""`Trainer`: train any agent from Python.

It checks the algorithm, tasks and resources before anything runs, then starts the job in
`weights/jobs.py`, which the command line uses as well. Agents run in the event loop of the caller
(`rollouts/manager.py`); training runs in a separate thread.

    trainer = Trainer(algorithm=RL(lr=1e-4), train_dataset=tasks)
    result = trainer.fit(agent)          # or: await trainer.train(agent)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Never, cast

from tutelage.agents.agent import Isolation
from tutelage.config import Resolved
from tutelage.environments.loading import load_environment
from tutelage.environments.protocol import EnvironmentFactory
from tutelage.errors import ConfigError
from tutelage.policy.sources import check_llm_name, model_folder
from tutelage.prompts import Algorithm
from tutelage.prompts.play import AgentSpec
from tutelage.prompts.run import preflight, search_agent
from tutelage.prompts.setup import PROMPT_ALGORITHMS, SearchSetup, build_trainer_setup
from tutelage.resources import LLM, POLICY, SHIPPED, NamedResources
from tutelage.rewards import RewardFunction
from tutelage.rollouts.manager import RolloutManager
from tutelage.runs.callbacks import Callback, CallbackProgress, rollout_hook
from tutelage.runs.folder import RunFolder, new_run_path
from tutelage.runs.job_inputs import AGENT_REWARD, JobInputs
from tutelage.runs.launched import is_nonzero_rank
from tutelage.runs.progress import Progress
from tutelage.runs.result import DevReport, TrainingResult
from tutelage.statistics.outcome import Evaluation
from tutelage.trainer.algorithm import RL, SFT
from tutelage.trainer.arguments import (
    Tasks,
    as_reward,
    check_arguments,
    play_once,
    resolve_agent,
    resolve_environment,
    resolve_policies,
    resolve_roles,
    task_files,
    to_dataset,
    to_servers,
)
from tutelage.trainer.running import (
    Plan,
    agree_on_plan,
    default_progress,
    play_evaluation,
    prepare_agent,
    report_stop,
    run_blocking,
    train_weights,
)
from tutelage.types import Task

if TYPE_CHECKING:
    from tutelage.policy.model import Policy


class Trainer:
    """Trains an agent with an algorithm; `docs/agents.md` explains all arguments.

    The policy is `policy` (a `Policy`, or several by name), else the model at `model`, else the
    folder named in the policy's `LLM`, else the embedded small model. `endpoints` are the servers
    of other LLMs by resource or model name. `n_runners` rollouts run concurrently, by default 64 if
    all models are in this process and else 8. `reward` grades agents that return no reward. Tasks
    are rows, a `Dataset`, or files; without `train_dataset` they are the tasks of the environment,
    else of the embedded job. `environment` is a name, a class or an `EnvironmentFactory`; agents
    take it as an argument named `environment`. `progress=Progress()` shows nothing.

    With `APO`, `GEPA`, `Reflect` or `Screen` the prompts of the agent are optimised instead, and
    the result is a `PromptResult`: `optimiser` is the LLM that proposes edits (by default the one
    in the environment variables), `search` has keys of a prompt search, such as rollouts,
    budget_usd, components.
    """

    def __init__(
        self,
        *,
        algorithm: RL | Algorithm | None = None,
        num_epochs: int | None = None,
        train_dataset: Tasks | EllipsisType = ...,
        val_dataset: Tasks | None = None,
        test_dataset: Tasks | None = None,
        resources: NamedResources | Mapping[str, Any] | None = None,
        output_dir: str | Path | None = None,
        n_runners: int | None = None,
        model: str | Path | None = None,
        policy: Policy | Mapping[str, Policy] | None = None,
        reward: RewardFunction | Callable[..., Any] | str | None = None,
        endpoints: Mapping[str, str] | None = None,
        seed: int | None = None,
        timeout: float | None = None,
        isolation: Isolation = "none",
        environment: str | type | Callable[..., Any] | EnvironmentFactory | None = None,
        callbacks: Sequence[Callback] = (),
        progress: Progress | None = None,
        optimiser: LLM | None = None,
        search: Mapping[str, Any] | None = None,
        **unknown: Never,
    ) -> None:
        """Check the arguments. Raises `ConfigError` for invalid values and combinations."""
        check_arguments({**locals()}, unknown)
        types = (RL, *PROMPT_ALGORITHMS)
        if algorithm is not None and not isinstance(cast("object", algorithm), types):
            raise ConfigError(
                f"algorithm={algorithm!r} is not supported by Trainer; use RL(...) or SFT(...) for "
                "weights, APO(...), GEPA(...), Reflect(...) or Screen(...) for prompts"
            )
        prompts = isinstance(algorithm, PROMPT_ALGORITHMS)
        if not prompts and (optimiser is not None or search is not None):
            raise ConfigError(
                "optimiser= and search= are for prompt searches; remove them, or use "
                "algorithm=APO(...), GEPA(...), Reflect(...) or Screen(...)"
            )
        if prompts and num_epochs is not None:
            raise ConfigError("num_epochs needs RL or SFT; limit a search with APO(rounds=...)")
        if n_runners is not None and n_runners < 1:
            raise ConfigError(f"n_runners={n_runners!r} must be at least 1")
        self.algorithm: RL | Algorithm = algorithm or RL()
        self.optimiser, self.search = optimiser, dict(search or {})
        self.num_epochs, self.n_runners = num_epochs, n_runners
        self.train_dataset = _check_tasks("train_dataset", train_dataset)
        self.val_dataset, self.test_dataset = val_dataset, test_dataset
        self.resources = NamedResources(resources or {})
        self.output_dir = None if output_dir is None else Path(output_dir)
        self.model, self.endpoints = model, dict(endpoints or {})
        self.seed, self.timeout = seed, timeout
        self.isolation: Isolation = isolation
        self.callbacks = () if is_nonzero_rank() else tuple(callbacks)
        self.progress = Progress() if is_nonzero_rank() else progress
        self._policies = resolve_policies(policy)
        self._reward = as_reward(reward)
        self.environment, self._factory = environment, resolve_environment(environment)
        if model is not None and self._policies:
            raise ConfigError("pass either model= or policy=, not both")

    # ------------------------------------------------------------ the three ways in

    async def train(
        self,
        agent: Any,
        train_dataset: Tasks | EllipsisType = ...,
        *,
        val_dataset: Tasks | None = None,
    ) -> TrainingResult:
        """Train `agent` and return the result; rollouts run in this event loop. An agent is a
        function, an object, or a file reference: `AGENT.py` or `AGENT.py:name`.

        In a folder that holds the same run, unfinished, it goes on from the latest checkpoint.
        Cancelling ends the run, which can be continued. Raises `ConfigError` and other
        `TutelageError`s, most of them before anything runs.
        """
        tasks = _check_tasks("train_dataset", train_dataset)
        display = default_progress() if self.progress is None else self.progress
        progress, notify = CallbackProgress(display, self.callbacks), self.progress is None
        try:
            if not isinstance(self.algorithm, RL):
                setup = self._prepare_search(self.algorithm, agent, tasks, val_dataset)
                path = self.output_dir or new_run_path("prompt", claim=True)
                with report_stop(path, progress, notify=notify):
                    return await search_agent(setup, path, self.callbacks, progress)
            plan = partial(self._prepare, self.algorithm, agent, tasks, val_dataset)
            resolved, path, job_inputs = agree_on_plan(self.output_dir, plan)
            with report_stop(path, progress, notify=notify):
                result = await train_weights(resolved, path, job_inputs, progress)
            for callback in self.callbacks:
                callback.on_train_end(result)
            return result
        finally:
            progress.finish()

    def fit(
        self,
        agent: Any,
        train_dataset: Tasks | EllipsisType = ...,
        *,
        val_dataset: Tasks | None = None,
    ) -> TrainingResult:
        """Run `train` synchronously, also in notebooks. Ctrl-C, SIGTERM and SIGHUP stop the run,
        which can be resumed; SIGTERM and SIGHUP also end the process."""
        return run_blocking(self.train(agent, train_dataset, val_dataset=val_dataset))

    def evaluate(
        self,
        agent: Any,
        test_dataset: Tasks | EllipsisType = ...,
        *,
        samples: int = 1,
        temperature: float | None = None,
        success: str | None = None,
        output_dir: str | Path | None = None,
    ) -> Evaluation:
        """Evaluate an agent on the test tasks with the trainer's policy, model or endpoints.

        Each task has `samples` rollouts, at temperature 0 for one sample and 1 for several;
        `success` defines success, such as `right` or `>=0.5`. With `output_dir` the evaluation can
        be resumed. `a.compare(b)` is the paired difference of two evaluations.
        """
        passed = _check_tasks("test_dataset", test_dataset)
        tasks = self.test_dataset if passed is None else passed
        options: dict[str, Any] = {"samples": samples, "temperature": temperature}
        options |= {"success": success, "seed": self.seed, "runners": self.n_runners}
        options |= {"timeout": self.timeout, "output": output_dir and str(output_dir)}
        options = {k: v for k, v in options.items() if v is not None}
        factory, environment = self._factory, self.environment
        if isinstance(environment, str):
            factory = load_environment(environment)
        ready = prepare_agent(
            agent, options, tasks, self.resources, self.endpoints, self._reward, self._policies,
            self.model, factory,
        )  # fmt: skip
        player = replace(ready.evaluated_agent, isolation=self.isolation)
        ready = replace(ready, evaluated_agent=player, on_rollout=rollout_hook(self.callbacks))
        progress = default_progress() if self.progress is None else self.progress
        try:
            return run_blocking(play_evaluation(ready, progress))
        finally:
            progress.finish()

    def dev(self, agent: Any, n: int = 3) -> DevReport:
        """Run an agent on `n` training tasks with the untrained policy, or the initial prompt of a
        prompt search, and return a report.

        Nothing is trained or stored: the report shows calls, agents, tokens, rewards and failures.
        """
        return run_blocking(self.preflight(agent, n))

    async def preflight(self, agent: Any, n: int) -> DevReport:
        """Run `dev` asynchronously; rollouts run in the current event loop."""
        if not isinstance(self.algorithm, RL):
            setup = self._prepare_search(self.algorithm, agent, None, None)
            return DevReport(tuple(await preflight(setup, n)))
        if isinstance(self.algorithm, SFT):
            raise ConfigError("SFT does not play training tasks; use dev with a Trainer for RL")
        from tutelage.weights.inputs import prepare_rl

        path = self.output_dir or new_run_path("agent")
        resolved, _, job_inputs = self._prepare(self.algorithm, agent, None, None, path)
        async with job_inputs.manager:
            setting = await asyncio.to_thread(prepare_rl, resolved.config, None, job_inputs)
            rollouts = await asyncio.to_thread(play_once, setting, job_inputs, n)
        return DevReport(tuple(rollouts))

    # ------------------------------------------------------------ what they share

    def _split_tasks(self, train: Tasks | None, val: Tasks | None) -> dict[str, Tasks | None]:
        """Return the tasks by split; `train` and `val` override the trainer's datasets."""
        return {
            "train": self.train_dataset if train is None else train,
            "val": self.val_dataset if val is None else val,
            "test": self.test_dataset,
        }

    def _prepare_search(
        self,
        algorithm: Algorithm,
        agent: Any,
        train: Tasks | None,
        val: Tasks | None,
    ) -> SearchSetup:
        if len(self._policies) > 1:
            raise ConfigError("a prompt search supports only one policy; pass policy=POLICY")
        player, resources, _ = resolve_agent(agent, self.resources)
        tasks = [to_dataset(rows, split) for split, rows in self._split_tasks(train, val).items()]
        return build_trainer_setup(
            algorithm,
            AgentSpec(
                player,
                NamedResources(resources),
                self._reward,
                isolation=self.isolation,
                policy=next(iter(self._policies.values()), None),
                urls=self.endpoints,
                environment=self._factory,
            ),
            (tasks[0], tasks[1], tasks[2]),
            {
                "environment": self.environment if isinstance(self.environment, str) else None,
                "runners": self.n_runners,
                "seed": self.seed,
                "timeout": self.timeout,
                "model": None if self.model is None else str(self.model),
                **self.search,
            },
            self.optimiser,
        )

    def _prepare(
        self,
        algorithm: RL,
        agent: Any,
        train_dataset: Tasks | None,
        val_dataset: Tasks | None,
        path: Path,
    ) -> Plan:
        """Check all inputs that can be checked without a model, and return the training plan."""
        player, merged, file = resolve_agent(agent, self.resources)
        values = {**player.own_resources(), **merged}
        if not any(isinstance(v, LLM) and not v.tokenizer_only for v in values.values()):
            values = {POLICY: LLM(), **values}
        resources = NamedResources(values)
        player.check([*resources])
        roles = resolve_roles(resources, self.endpoints, self._policies)
        passed = self._split_tasks(train_dataset, val_dataset)
        train, val, test = (to_dataset(rows, split) for split, rows in passed.items())
        if isinstance(algorithm, SFT):
            if train is not None or val is not None:
                raise ConfigError(
                    "SFT learns from its demonstrations; remove train_dataset and val_dataset "
                    "(test_dataset is played before and after)"
                )
        elif train is None and (val is not None or test is not None):
            raise ConfigError("val_dataset and test_dataset need a train_dataset; pass one")
        main = cast("str", roles.main)
        resolved = self._configure(algorithm, train, test, path, model_folder(resources[main]))
        if not self._policies and resolved.config.model.path in (None, SHIPPED):
            check_llm_name(main, resources[main])
        manager = RolloutManager(
            player,
            resources,
            roles,
            n_runners=self.n_runners or (8 if roles.remote else 64),
            isolation=self.isolation,
            remote=to_servers(resources, roles, resolved.config),
        )
        hook = rollout_hook(self.callbacks)
        files = {split: task_files(rows) for split, rows in passed.items()}
        job_inputs = JobInputs(
            player, resources, roles, manager, train, val, test, self._reward, self._policies, hook,
            file, files, self._factory, None if self._factory is None else self.environment,
        )  # fmt: skip
        return resolved, path, job_inputs

    def _configure(
        self,
        algorithm: RL,
        train: Sequence[Task] | None,
        test: Sequence[Task] | None,
        path: Path,
        model_path: str | None,
    ) -> Resolved:
        flags: dict[str, Any] = {
            "seed": self.seed,
            "trainer.total_epochs": self.num_epochs,
            "agent.timeout": self.timeout,
            "model.path": str(self.model) if self.model is not None else model_path,
        }
        acts = self.environment is not None or algorithm.has("environment.name")
        if self.environment is not None:
            factory = self._factory
            flags["environment.name"] = self.environment if factory is None else factory.name
        if self._policies:
            flags["model.path"] = None
        run = RunFolder(path)
        graded = AGENT_REWARD if self._reward is None else self._reward.name
        if isinstance(algorithm, SFT):
            if test is not None:
                flags |= {"data.test_files": [str(run.tasks("test"))], "agent.reward_name": graded}
            return algorithm.resolve(own_agent=True, **flags)
        own_model = self._policies or flags["model.path"] not in (None, SHIPPED)
        if acts and self._reward is not None:
            flags["agent.reward_name"] = graded
        if train is not None:
            flags |= {f"data.{s}_files": [str(run.tasks(s))] for s in ("train", "val", "test")}
            flags["agent.reward_name"] = None if acts and self._reward is None else graded
        embedded = not acts and (train is None or not own_model)
        if embedded and self._policies:  # a policy that is passed has its skills already
            flags["sft.max_steps"] = 0
        return algorithm.resolve("math" if embedded else "rl", own_agent=True, **flags)


def _check_tasks(name: str, tasks: Tasks | EllipsisType) -> Tasks | None:
    """Return the tasks, or None if the argument was omitted. Raises `ConfigError` for `None`."""
    if cast("object", tasks) is None:
        raise ConfigError(
            f"{name}=None is not supported; pass rows, a Dataset or a file, or omit it for the "
            "default"
        )
    return None if isinstance(tasks, EllipsisType) else tasks
