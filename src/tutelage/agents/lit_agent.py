"""`LitAgent`: an agent as a class, for several agents, several models, or own state.

Override one of the six methods; the most specific override is played: the one for the rollout's
mode before the general one, the async one before the synchronous one. All take the task, the
resources and the rollout, and return the same as a function agent (`function.py`). A method with a
parameter `environment` receives the environment of the rollout.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import Any

from tutelage.agents.agent import Agent
from tutelage.agents.function import ENVIRONMENT
from tutelage.agents.session import RolloutSession
from tutelage.errors import ConfigError
from tutelage.resources import NamedResources
from tutelage.tools.execute import call
from tutelage.types import Mode, Task


class LitAgent(Agent):
    """Base class for agents that are classes; pass an instance to `Trainer.train`.

    One instance plays many rollouts concurrently: keep the state of a rollout in local variables.
    `isolation = "process"` plays each rollout in a process; then the instance must be picklable.
    """

    async def rollout_async(
        self, task: Any, resources: NamedResources, rollout: RolloutSession
    ) -> Any:
        """Play a rollout of any mode."""
        raise NotImplementedError

    def rollout(self, task: Any, resources: NamedResources, rollout: RolloutSession) -> Any:
        """Play a rollout of any mode synchronously, in a thread."""
        raise NotImplementedError

    async def training_rollout_async(
        self, task: Any, resources: NamedResources, rollout: RolloutSession
    ) -> Any:
        """Play a training rollout."""
        raise NotImplementedError

    def training_rollout(
        self, task: Any, resources: NamedResources, rollout: RolloutSession
    ) -> Any:
        """Play a training rollout synchronously."""
        raise NotImplementedError

    async def validation_rollout_async(
        self, task: Any, resources: NamedResources, rollout: RolloutSession
    ) -> Any:
        """Play a validation or test rollout."""
        raise NotImplementedError

    def validation_rollout(
        self, task: Any, resources: NamedResources, rollout: RolloutSession
    ) -> Any:
        """Play a validation or test rollout synchronously."""
        raise NotImplementedError

    def check(self, names: Collection[str]) -> None:
        """Raise `ConfigError` if a mode has no overridden method."""
        for training in (True, False):
            self._select_method(training)

    async def play(self, task: Task, session: RolloutSession, resources: NamedResources) -> Any:
        """Play the rollout with the method for its mode."""
        method = self._select_method(session.mode is Mode.TRAIN)
        parameters = inspect.signature(method).parameters
        named = {ENVIRONMENT: session.environment} if ENVIRONMENT in parameters else {}
        return await call(method, session.task, resources, session, **named)

    def _select_method(self, training: bool) -> Callable[..., Any]:
        """Return the most specific overridden method. Raises `ConfigError` if there is none."""
        kind = "training" if training else "validation"
        names = (f"{kind}_rollout_async", f"{kind}_rollout", "rollout_async", "rollout")
        for name in names:
            if getattr(type(self), name) is not getattr(LitAgent, name):
                return getattr(self, name)
        raise ConfigError(
            f"{self.name} has no method for {kind} rollouts: override {', '.join(names)}"
        )
