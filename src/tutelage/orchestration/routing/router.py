"""Trained router: selects workers in the real executor with the model of phase 2.

The router converts each `RouteState` into the `DecisionBatch` format of the training. It keeps the
missing information in memory for each run: the worker, expected end and probability of success of
each running node. Workers are matched by name; unknown workers are an error. The choice of a policy
contains its input (`Choice.features`) for the computation of the loss. `simulator.py` is the fast
simulation of the executor; a test checks that both agree.

Legend: N nodes in topological order, W workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from tutelage.errors import ConfigError, RunError
from tutelage.orchestration.data.synthetic import builtin_graph
from tutelage.orchestration.evaluation.rewards import RewardWeights
from tutelage.orchestration.execution.worker_files import WORKERS, tool_kind
from tutelage.orchestration.execution.workers import Worker, prompt_tokens
from tutelage.orchestration.plan.dag import adjacency, levels
from tutelage.orchestration.routing.contract import Choice, RouteState
from tutelage.orchestration.routing.phase2 import read_checkpoint
from tutelage.orchestration.routing.policy import DecisionFeatures, ModelSelector, draw_actions
from tutelage.orchestration.routing.predictor import OutcomePredictor
from tutelage.orchestration.routing.simulator import (
    DONE,
    READY,
    DecisionBatch,
    QueryForecast,
    RewardTerms,
    WorkflowBatch,
    WorkflowState,
    look_ahead,
)
from tutelage.tasks.overlap import format_list

REMEMBERED = 4096
"""Maximum number of runs in memory; the oldest run is dropped first."""


class _RunningWorkflow(WorkflowState):
    """State of one running workflow in addition to its `RouteState`, as a batch of size 1."""

    def __init__(self, predictor: OutcomePredictor, terms: RewardTerms, state: RouteState) -> None:
        """Create the state of a new run, with a forecast for each node of its plan."""
        plan, workers, catalog = state.plan, state.workers, builtin_graph().catalog
        self.order = [node for level in levels(plan) for node in level]
        nodes = [plan.nodes[node] for node in self.order]
        # Prompt of each subtask, approximated from the plan; `state.work` has the current labels.
        texts = [
            n.description or " ".join([n.tool, *map(str, n.arguments.values())]) for n in nodes
        ]
        labels = [
            state.work.labels
            if node == state.work.node
            else (each.tool, tool_kind(each.tool, each.description, catalog))
            for node, each in zip(self.order, nodes, strict=True)
        ]
        legal_NW = np.array([[worker.supports(*both) for worker in workers] for both in labels])
        legal_NW[~legal_NW.any(axis=1)] = True  # the node's labels are not known yet
        support = predictor.neighbours(texts, [each.tool for each in nodes])
        tokens_N = np.array([float(prompt_tokens(text)) for text in texts])
        known = QueryForecast.make(predictor, support, tokens_N, workers, legal_NW, state.max_tries)
        parents_NN = np.array(adjacency(plan), dtype=np.bool_)[np.ix_(self.order, self.order)]
        super().__init__(known, WorkflowBatch.from_plan(known, parents_NN), terms)
        self.reserved: dict[int, float] = {}
        """Upper bound of the cost of each running node, in USD."""
        self.lost = False
        """True if a node was given up: the workflow cannot succeed, so all other nodes stop."""

    def observe(self, state: RouteState, node: int) -> DecisionBatch:
        """Update the run from the router state; return the observation as a batch of size 1."""
        self.reserved.pop(node, None)
        self.status_BN[0, node] = READY
        self.lost = self.lost or not all(state.done.values())
        for place, known in enumerate(self.order):
            if known in state.done and self.status_BN[0, place] != DONE:
                if self.reserved.pop(place, None) is not None:
                    self.chance_BN[0, place] = self.if_pass_BN[0, place]
                self.status_BN[0, place] = DONE
        self.finish_BN[0] = [state.ends.get(known, 0.0) for known in self.order]
        failed_DW = np.zeros((1, len(state.workers)), dtype=np.bool_)
        failed_DW[0, list(state.tries)] = True
        spent, now = state.spent + sum(self.reserved.values()), state.elapsed
        budget = np.inf if state.budget_left is None else state.budget_left + spent
        deadline = np.inf if state.deadline_left is None else now + state.deadline_left
        load = state.load or (0,) * len(state.workers)
        return self.build_batch(
            np.array([0]),
            np.array([node]),
            np.array([float(now)]),
            failed_DW=failed_DW,
            last_D=np.array([state.tries[-1] if state.tries else -1]),
            mask_DA=np.array([state.mask]),
            load_DW=np.array([load], dtype=np.float64),
            spent_D=np.array([float(spent)]),
            budget_D=np.array([float(budget)]),
            deadline_D=np.array([float(deadline)]),
        )

    def record(self, state: RouteState, node: int, obs: DecisionBatch, action: int) -> None:
        """Record the selected action."""
        if action < len(state.workers):
            row, worker = np.array([0]), np.array([action])
            self.call(row, np.array([node]), worker, obs.chance_DW, obs.now_D)
            self.reserved[node] = state.estimates[action].bound
        elif action == state.accept:
            self.chance_BN[0, node] = obs.last_D[0]
        else:
            self.lost = True


class LearnedRouter:
    """Router with a trained model selector, or with the one-step lookahead if `model` is None."""

    def __init__(
        self,
        predictor: OutcomePredictor,
        terms: RewardTerms,
        model: ModelSelector | None = None,
        *,
        sample: bool = False,
    ) -> None:
        """Create a router. If `sample` is True, sample actions as in training; otherwise select the
        most probable action."""
        self.predictor, self.terms, self.model = predictor, terms, model
        self.name = "lookahead" if model is None else "ppo"
        self._sample = sample
        self._runs: dict[tuple[int, tuple[str | int, ...]], _RunningWorkflow] = {}

    def check(self, workers: Sequence[Worker]) -> None:
        """Raise `ConfigError` if the router was not trained on all of these workers."""
        known = {worker.name for worker in self.predictor.workers}
        strange = [worker.name for worker in workers if worker.name not in known]
        if strange:
            raise ConfigError(
                f"the router was not trained on {format_list(strange)}, only on "
                f"{format_list(sorted(known))}; use those workers (the {WORKERS} next to its "
                "checkpoint), train a router on these (tutelage train planner --phase 2), or use "
                "no router with tools: each tool has its own worker"
            )

    def choose(self, state: RouteState) -> Choice:
        """Select an action. Raises `ConfigError` for workers that were not in training."""
        key = (state.work.seeds.seed, state.work.seeds.path[:-2])
        if key not in self._runs:  # a run that is not in memory is treated as new
            self.check(state.workers)
            self._runs[key] = _RunningWorkflow(self.predictor, self.terms, state)
            if len(self._runs) > REMEMBERED:
                del self._runs[next(iter(self._runs))]
        run = self._runs[key]
        node = run.order.index(state.work.node)
        at = run.observe(state, node)
        if run.lost:
            return Choice(state.stop)
        features, log_prob = None, 0.0
        if self.model is None:
            action = int(look_ahead(at, self.terms)[0].argmax())
        else:
            features = DecisionFeatures.from_batch(at, self.terms)
            with torch.no_grad():
                logp_DA, _ = self.model(features)
            if self._sample:
                action = int(draw_actions(logp_DA, state.seeds.numpy().random(1))[0])
            else:
                action = int(logp_DA[0].argmax())
            log_prob = float(logp_DA[0, action])
        run.record(state, node, at, action)
        return Choice(action, log_prob, features=features)


def load_router(path: str | Path) -> LearnedRouter:
    """Load a router from a checkpoint of phase 2. Raises `RunError` if it contains no router."""
    state = read_checkpoint(path)
    if "router" not in state:
        raise RunError(
            f"{str(path)!r} has no router: it is not the best checkpoint of phase 2; train one "
            "with: tutelage train planner --phase 2"
        )
    router, model = state["router"], None
    if router["algorithm"] == "PPO":
        model = ModelSelector()
        model.load_state_dict(state["model_state_dict"])
    terms = RewardTerms(router["reward"], RewardWeights(**router["weights"]))
    return LearnedRouter(OutcomePredictor.from_state(router["predictor"]), terms, model)
