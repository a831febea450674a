"""`Trainer`: train any agent from Python.

It takes an algorithm, tasks and resources, checks all of it before anything runs, and hands the job
to `weights/jobs.py`, the same one that the command line runs. Agents play in the event loop of the
caller (`rollouts/manager.py`); training computes in a thread beside it.

    trainer = Trainer(algorithm=RL(lr=1e-4), train_dataset=tasks)
    result = trainer.fit(agent)          # or: await trainer.train(agent)
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from tutelage.agents.agent import Isolation
from tutelage.agents.function import as_agent
from tutelage.config import Resolved
from tutelage.config.aliases import canonical
from tutelage.config.issues import ConfigIssue
from tutelage.errors import ConfigError
from tutelage.prompts import Algorithm
from tutelage.prompts.api import PROMPT_ALGORITHMS, search_agent, search_setup
from tutelage.prompts.play import AgentSpec
from tutelage.prompts.search_resources import preflight
from tutelage.prompts.setup import SearchSetup
from tutelage.resources import LLM, POLICY, NamedResources, Roles, model_folder
from tutelage.rewards import RewardFunction
from tutelage.rewards import reward as reward_function
from tutelage.rewards.registry import resolve_reward
from tutelage.rollouts.manager import RolloutManager
from tutelage.runs.callbacks import Callback, CallbackProgress, on_rollout
from tutelage.runs.folder import RunFolder, folder_at, fresh_name
from tutelage.runs.job_inputs import AGENT_REWARD, JobInputs
from tutelage.runs.progress import Progress
from tutelage.runs.result import DevReport, TrainingResult, read_result
from tutelage.runs.signals import graceful_exit
from tutelage.trainer.algorithm import RL, SFT
from tutelage.trainer.arguments import (
    Tasks,
    play_once,
    remotes_of,
    tasks_of,
    with_main_policy,
)
from tutelage.types import Task

if TYPE_CHECKING:
    from tutelage.policy.model import Policy

T = TypeVar("T")
_Splits = tuple[Sequence[Task] | None, Sequence[Task] | None, Sequence[Task] | None]
_Plan = tuple[Resolved, Path, JobInputs]
"""A training, checked and ready to run: its configuration, its folder, and its objects."""


class Trainer:
    """See the module's docstring; `docs/agents.md` has the whole story.

    The policy is `policy` (a `Policy`, or several by name), else the model at `model`, else the
    folder that the policy's `LLM` names, else the embedded small one. `endpoints` says where other
    LLMs are served, by resource or model name. `n_runners` rollouts run concurrently. `reward`
    grades agents that return no reward of their own.

    With `APO`, `GEPA`, `Screen` or `GRIPS` the agent's texts are searched over instead and the
    result is a `PromptResult`: `optimiser` is the LLM that is asked (else the environment says),
    `search` has keys of a prompt search, such as rollouts, budget_usd, components.
    """

    def __init__(
        self,
        *,
        algorithm: RL | Algorithm | None = None,
        num_epochs: int | None = None,
        train_dataset: Tasks | None = None,
        val_dataset: Tasks | None = None,
        test_dataset: Tasks | None = None,
        resources: NamedResources | Mapping[str, Any] | None = None,
        output_dir: str | Path | None = None,
        n_runners: int = 8,
        model: str | Path | None = None,
        policy: Policy | Mapping[str, Policy] | None = None,
        reward: RewardFunction | Callable[..., Any] | str | None = None,
        endpoints: Mapping[str, str] | None = None,
        seed: int | None = None,
        timeout: float | None = None,
        isolation: Isolation = "none",
        callbacks: Sequence[Callback] = (),
        progress: Progress | None = None,
        optimiser: LLM | None = None,
        search: Mapping[str, Any] | None = None,
    ) -> None:
        """Raises `ConfigError` for what can be seen to be wrong before there is an agent."""
        known = (RL, *PROMPT_ALGORITHMS)
        if algorithm is not None and not isinstance(cast("object", algorithm), known):
            raise ConfigError(
                f"algorithm={algorithm!r} is not one that Trainer runs; use RL(...) or SFT(...) "
                "for weights, APO(...), GEPA(...), Screen(...) or GRIPS(...) for prompts"
            )
        prompts = isinstance(algorithm, PROMPT_ALGORITHMS)
        if not prompts and (optimiser is not None or search is not None):
            raise ConfigError(
                "optimiser= and search= are for prompt searches; leave them out, or give "
                "algorithm=APO(...), GEPA(...), Screen(...) or GRIPS(...)"
            )
        if prompts and num_epochs is not None:
            raise ConfigError("num_epochs is for weights; bound a search by APO(rounds=...)")
        if n_runners < 1:
            raise ConfigError(f"n_runners={n_runners!r} must be at least 1")
        self.algorithm: RL | Algorithm = algorithm or RL()
        self.optimiser, self.search = optimiser, dict(search or {})
        self.num_epochs, self.n_runners = num_epochs, n_runners
        self.train_dataset, self.val_dataset = train_dataset, val_dataset
        self.test_dataset = test_dataset
        self.resources = NamedResources(resources or {})
        self.output_dir = None if output_dir is None else Path(output_dir)
        self.model, self.endpoints = model, dict(endpoints or {})
        self.seed, self.timeout = seed, timeout
        self.isolation: Isolation = isolation
        self.callbacks, self.progress = tuple(callbacks), progress or Progress()
        self._policies = _policies_of(policy)
        self._reward = _reward_of(reward)
        if model is not None and self._policies:
            raise ConfigError("give either model= or policy=, not both")

    # ------------------------------------------------------------ the three ways in

    async def train(
        self,
        agent: Any,
        train_dataset: Tasks | None = None,
        *,
        val_dataset: Tasks | None = None,
    ) -> TrainingResult:
        """Train `agent` and return its result; its rollouts play in this event loop.

        In a folder that holds the same run, unfinished, it goes on from the latest checkpoint.
        Cancelling ends the run, which can be continued. Raises `ConfigError` and other
        `TutelageError`s, most of them before anything runs.
        """
        if not isinstance(self.algorithm, RL):
            progress = CallbackProgress(self.progress, self.callbacks)
            setup = self._search(self.algorithm, agent, train_dataset, val_dataset, progress)
            return await search_agent(setup, self.output_dir, self.callbacks, progress)
        resolved, place, job_inputs = self._plan(
            self.algorithm, agent, train_dataset, val_dataset, claim=True
        )
        if self.output_dir is None:
            from tutelage.weights.paths import check_name_is_new

            check_name_is_new(resolved)
        async with job_inputs.stage as stage:
            work = asyncio.ensure_future(asyncio.to_thread(self._job, resolved, place, job_inputs))
            try:
                result = await asyncio.shield(work)
            except asyncio.CancelledError:
                stage.stop()
                await asyncio.wait({work})
                work.exception()
                raise
        if isinstance(result, KeyboardInterrupt):
            raise result
        for callback in self.callbacks:
            callback.on_train_end(result)
        return result

    def fit(
        self,
        agent: Any,
        train_dataset: Tasks | None = None,
        *,
        val_dataset: Tasks | None = None,
    ) -> TrainingResult:
        """`train` for code without an event loop. Ctrl-C, SIGTERM and SIGHUP end it, and it can be
        continued; after the latter two the process ends."""
        return _blocking(lambda: self.train(agent, train_dataset, val_dataset=val_dataset))

    def dev(self, agent: Any, n: int = 3) -> DevReport:
        """Play `n` training tasks with the untrained policy, or for a prompt search with the
        prompt as it is, and report what was seen.

        Nothing is trained and nothing is stored: it shows calls, agents, tokens, rewards and
        failures of an agent before a run is worth starting.
        """
        return _blocking(lambda: self.preflight(agent, n))

    async def preflight(self, agent: Any, n: int) -> DevReport:
        """`dev` for code in an event loop; the rollouts play in it."""
        if not isinstance(self.algorithm, RL):
            setup = self._search(self.algorithm, agent, None, None, self.progress)
            return DevReport(tuple(await preflight(setup, n)))
        if isinstance(self.algorithm, SFT):
            raise ConfigError("SFT plays no training tasks; give dev to a Trainer of RL")
        from tutelage.weights.inputs import prepare_rl

        resolved, _, job_inputs = self._plan(self.algorithm, agent, None, None)
        async with job_inputs.stage:
            setting = await asyncio.to_thread(prepare_rl, resolved.config, None, job_inputs)
            rollouts = await asyncio.to_thread(play_once, setting, job_inputs, n)
        return DevReport(tuple(rollouts))

    # ------------------------------------------------------------ what they share

    def _tasks(self, train: Tasks | None, val: Tasks | None) -> _Splits:
        """Training, validation and test tasks; `train` and `val` replace the trainer's own."""
        train = self.train_dataset if train is None else train
        val = self.val_dataset if val is None else val
        return tasks_of(train, "train"), tasks_of(val, "val"), tasks_of(self.test_dataset, "test")

    def _search(
        self,
        algorithm: Algorithm,
        agent: Any,
        train: Tasks | None,
        val: Tasks | None,
        progress: Progress,
    ) -> SearchSetup:
        if len(self._policies) > 1:
            raise ConfigError("a prompt search plays with one policy; give policy=Policy")
        return search_setup(
            algorithm,
            AgentSpec(
                as_agent(agent),
                self.resources,
                self._reward,
                isolation=self.isolation,
                policy=next(iter(self._policies.values()), None),
                urls=self.endpoints,
            ),
            self._tasks(train, val),
            {
                "runners": self.n_runners,
                "seed": self.seed,
                "timeout": self.timeout,
                "model": None if self.model is None else str(self.model),
                **self.search,
            },
            self.optimiser,
            progress,
        )

    def _plan(
        self,
        algorithm: RL,
        agent: Any,
        train_dataset: Tasks | None,
        val_dataset: Tasks | None,
        *,
        claim: bool = False,
    ) -> _Plan:
        """Check everything that can be checked without a model; `claim` makes a new folder."""
        player = as_agent(agent)
        values = {**player.own_resources(), **self.resources}
        if not any(isinstance(v, LLM) and not v.tokenizer_only for v in values.values()):
            values = {POLICY: LLM(), **values}
        resources = NamedResources(values)
        roles = Roles.of(resources, self.endpoints)
        if roles.main is None:
            raise ConfigError(
                "every LLM of this run has an endpoint or is frozen, so there is nothing to train; "
                "mark one as LLM(trainable=True)"
            )
        player.check([*resources])
        main = roles.policies[roles.main]
        if main != POLICY:
            roles = with_main_policy(roles, main)
        unknown = sorted({*self._policies} - {*roles.policies.values()})
        if unknown:
            raise ConfigError(
                f"policy={unknown[0]!r} is trained by no LLM of this run; give one "
                f"LLM(trainable=True, policy={unknown[0]!r})"
            )
        train, val, test = self._tasks(train_dataset, val_dataset)
        if isinstance(algorithm, SFT):
            if train is not None or val is not None:
                raise ConfigError(
                    "SFT learns from its demonstrations: leave train_dataset and val_dataset out; "
                    "test_dataset is what the agent plays before and after"
                )
        elif train is None and (val is not None or test is not None):
            raise ConfigError("val_dataset and test_dataset need a train_dataset as well")
        place = self.output_dir or fresh_name("agent", claim=claim)
        folder = model_folder(resources[cast("str", roles.main)])
        resolved = self._resolve(algorithm, train, test, place, folder)
        stage = RolloutManager(
            player,
            resources,
            roles,
            n_runners=self.n_runners,
            isolation=self.isolation,
            remote=remotes_of(resources, roles, resolved.config.rollout.temperature),
        )
        told = on_rollout(self.callbacks)
        values = JobInputs(
            player, resources, roles, stage, train, val, test, self._reward, self._policies, told
        )
        return resolved, place, values

    def _resolve(
        self,
        algorithm: RL,
        train: Sequence[Task] | None,
        test: Sequence[Task] | None,
        place: Path,
        folder: str | None,
    ) -> Resolved:
        flags: dict[str, Any] = {
            "seed": self.seed,
            "trainer.total_epochs": self.num_epochs,
            "agent.timeout": self.timeout,
            "model.path": str(self.model) if self.model is not None else folder,
        }
        if self._policies:
            flags["model.path"] = None
        run = RunFolder(place)
        graded = AGENT_REWARD if self._reward is None else self._reward.name
        if isinstance(algorithm, SFT):
            if test is not None:
                flags |= {"data.test_files": [str(run.tasks("test"))], "agent.reward_name": graded}
            return algorithm.resolve(own_agent=True, **flags)
        own_model = self._policies or flags["model.path"] is not None
        # What the embedded job's tasks hold is what its cold start demonstrates.
        shown = train is None or (not own_model and all("calls" in t.fields for t in train))
        if train is not None:
            flags |= {f"data.{s}_files": [str(run.tasks(s))] for s in ("train", "val", "test")}
            flags["agent.reward_name"] = graded
        if shown and self._policies:  # a policy that is passed has its skills already
            flags["sft.max_steps"] = 0
        # The control answers a question about algorithms, at the price of a second training.
        if "trainer.control" not in _canonical_names(algorithm.keys):
            flags["trainer.control"] = "none"
        return algorithm.resolve("math" if shown else "rl", own_agent=True, **flags)

    def _job(
        self, resolved: Resolved, place: Path, given: JobInputs
    ) -> TrainingResult | KeyboardInterrupt:
        """The training, in a thread. An interruption comes back as a value: raised in a thread, it
        would stop the event loop instead of this task."""
        from tutelage.weights import jobs

        folder = folder_at(place)
        progress = CallbackProgress(self.progress, self.callbacks)
        try:
            details = jobs.train(resolved, folder, progress, given)
        except KeyboardInterrupt as stopped:
            return stopped
        return read_result(folder, details, TrainingResult)


def _policies_of(policy: Policy | Mapping[str, Policy] | None) -> dict[str, Policy]:
    """Policies by name; one alone is the main one."""
    if policy is None:
        return {}
    return dict(policy) if isinstance(policy, Mapping) else {POLICY: policy}


def _reward_of(given: RewardFunction | Callable[..., Any] | str | None) -> RewardFunction | None:
    """A reward function, also from a plain function or a registered name."""
    if given is None or isinstance(given, RewardFunction):
        return given
    return resolve_reward(given) if isinstance(given, str) else reward_function(given)


def _canonical_names(keys: Mapping[str, Any]) -> set[str]:
    """The canonical names of keys; unknown names are refused later, with all other findings."""
    known: set[str] = set()
    for key, value in keys.items():
        with suppress(ConfigIssue):
            known.add(canonical(key, value))
    return known


def _blocking(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end, also where an event loop runs already, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        with graceful_exit():
            return asyncio.run(work())
    box: list[T | BaseException] = []

    def run() -> None:
        try:
            box.append(asyncio.run(work()))
        except BaseException as error:
            box.append(error)

    thread = threading.Thread(target=run, name="tutelage-fit")
    thread.start()
    thread.join()
    if isinstance(box[0], BaseException):
        raise box[0]
    return box[0]
