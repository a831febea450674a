"""The trained router: drives the real executor with what phase 2 learned.

It turns each `RouteState` into the `DecisionBatch` that the policy was trained on. What the state
does not say, it remembers by itself for each run: which nodes it sent where, when they may be
expected back, and how likely each is right. Workers are matched by name; one that the predictor
never saw is judged by the skill that it claims and by the pool's estimates, until `adopt` gives it
outcomes. `simulator.py` is the fast twin of the executor; a test holds the two together.

Legend: N nodes in topological order, W workers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from tutelage.errors import RunError, check_given
from tutelage.orchestration.execution.worker_files import tool_kind
from tutelage.orchestration.execution.workers import Worker, prompt_tokens
from tutelage.orchestration.plan.dag import Plan, adjacency, levels
from tutelage.orchestration.routing.contract import Choice, RouteState
from tutelage.orchestration.routing.decisions import DecisionBatch, RewardTerms, look_ahead
from tutelage.orchestration.routing.lookahead import DONE, READY, WorkflowState
from tutelage.orchestration.routing.policy import DecisionFeatures, ModelSelector, draw_actions
from tutelage.orchestration.routing.predictor import OutcomePredictor
from tutelage.orchestration.routing.workflows import QueryForecast, WorkflowBatch

REMEMBERED = 4096
"""Runs whose notes are kept; those of the longest untouched go first."""


class _RunningWorkflow(WorkflowState):
    """What is known of one run beyond its states: a batch of one workflow."""

    def __init__(
        self, known: QueryForecast, plan: Plan, order: Sequence[int], terms: RewardTerms
    ) -> None:
        """`order` are the plan's nodes, parents first."""
        parents_NN = np.array(adjacency(plan), dtype=np.bool_)[np.ix_(order, order)]
        super().__init__(known, WorkflowBatch.whole(known, parents_NN), terms)
        self.order = order
        self.reserved: dict[int, float] = {}
        """Running nodes and the bound of their cost."""
        self.lost = False
        """A node was given up, so the workflow cannot succeed: nothing more is spent on it."""

    def decide(self, state: RouteState, node: int) -> DecisionBatch:
        """What is known before a try at a node, with all that has ended since the last one."""
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
        failed_DW[0, [tried.worker for tried in state.tries]] = True
        spent, now = state.spent + sum(self.reserved.values()), state.elapsed
        budget = np.inf if state.budget_left is None else state.budget_left + spent
        deadline = np.inf if state.deadline_left is None else now + state.deadline_left
        load = state.load or (0,) * len(state.workers)
        limits = {"spent_D": spent, "budget_D": budget, "deadline_D": deadline}
        return self.situation(
            np.array([0]),
            np.array([node]),
            np.array([float(now)]),
            failed_DW=failed_DW,
            last_D=np.array([state.tries[-1].worker if state.tries else -1]),
            mask_DA=np.array([state.mask]),
            load_DW=np.array([load], dtype=np.float64),
            **{name: np.array([float(value)]) for name, value in limits.items()},
        )

    def take(self, state: RouteState, node: int, at: DecisionBatch, action: int) -> None:
        """Note what is about to be done."""
        if action < len(state.workers):
            row, worker = np.array([0]), np.array([action])
            self.ask(row, np.array([node]), worker, at.chance_DW, at.now_D)
            self.reserved[node] = state.estimates[action].bound
        elif action == state.accept:
            self.chance_BN[0, node] = at.last_D[0]
        else:
            self.lost = True


class LearnedRouter:
    """A `Router` that a model selector decides for; without one, the one-step lookahead."""

    def __init__(
        self,
        predictor: OutcomePredictor,
        terms: RewardTerms,
        model: ModelSelector | None = None,
        *,
        sample: bool = False,
    ) -> None:
        """`sample` draws actions, as in training; otherwise the most probable one is taken."""
        self.predictor, self.terms, self.model = predictor, terms, model
        self.name = "lookahead" if model is None else "ppo"
        self._sample = sample
        self._runs: OrderedDict[tuple[int, tuple[str | int, ...]], _RunningWorkflow] = OrderedDict()

    def adopt(
        self,
        worker: Worker,
        instructions: Sequence[str],
        types: Sequence[str],
        right: Sequence[bool],
    ) -> LearnedRouter:
        """A router that knows one more worker; see `OutcomePredictor.adopt`."""
        predictor = self.predictor.adopt(worker, instructions, types, right)
        return LearnedRouter(predictor, self.terms, self.model, sample=self._sample)

    def choose(self, state: RouteState) -> Choice:
        """See `Router`."""
        run = self._run(state)
        node = run.order.index(state.work.node)
        at = run.decide(state, node)
        if run.lost:
            only_stop = tuple(action == state.stop for action in range(len(state.mask)))
            return Choice(state.stop, 0.0, only_stop)
        features = DecisionFeatures.of(at, self.terms)
        logp_A = self._decide(at, features)
        if self._sample:
            action = int(draw_actions(logp_A[None], state.seeds.numpy().random(1))[0])
        else:
            action = int(logp_A.argmax())
        run.take(state, node, at, action)
        return Choice(action, float(logp_A[action]), state.mask, features)

    @torch.no_grad()
    def _decide(self, at: DecisionBatch, features: DecisionFeatures) -> torch.Tensor:
        if self.model is not None:
            return self.model(features)[0][0]
        utility_A = torch.from_numpy(look_ahead(at, self.terms)[0])
        best_A = torch.full_like(utility_A, -torch.inf)
        best_A[utility_A.argmax()] = 0.0
        return best_A

    def _run(self, state: RouteState) -> _RunningWorkflow:
        """The run of a state. What is not in memory is taken to begin."""
        key = (state.work.seeds.seed, state.work.seeds.path[:-2])
        if key not in self._runs:
            order = [node for level in levels(state.plan) for node in level]
            known = self._forecast(state, order)
            self._runs[key] = _RunningWorkflow(known, state.plan, order, self.terms)
            if len(self._runs) > REMEMBERED:
                self._runs.popitem(last=False)
        self._runs.move_to_end(key)
        return self._runs[key]

    def _forecast(self, state: RouteState, order: Sequence[int]) -> QueryForecast:
        """What is expected of each node; workers that the predictor lacks, by what they claim."""
        plan, workers = state.plan, state.workers
        texts = [_node_text(plan, node) for node in order]
        labels = [_labels(plan, node, state) for node in order]
        legal_NW = np.array([[worker.can(*both) for worker in workers] for both in labels])
        legal_NW[~legal_NW.any(axis=1)] = True  # of a kind that only its own state will name
        skill_NW = np.array([[worker.skill(*both) for worker in workers] for both in labels])
        stated = np.array([[(e.cost, e.seconds) for e in state.estimates]] * len(order))
        support = self.predictor.support(texts, [plan.nodes[node].tool for node in order])
        tokens_N = np.array([float(prompt_tokens(text)) for text in texts])
        chances = (skill_NW, stated[:, :, 0], stated[:, :, 1])
        return QueryForecast.by(
            self.predictor, support, tokens_N, workers, legal_NW, state.max_tries, chances
        )


def _labels(plan: Plan, node: int, state: RouteState) -> tuple[str, str]:
    """Type and kind of a subtask; the executor has told the kind of the one under decision."""
    told = plan.nodes[node]
    if node == state.work.node:
        return state.work.labels
    return told.tool, tool_kind(told.tool, told.description)


def _node_text(plan: Plan, node: int) -> str:
    """What a subtask asks, as far as the plan says: its description, else tool and arguments."""
    told = plan.nodes[node]
    return told.description or " ".join([told.tool, *map(str, told.arguments.values())])


def load_router(path: str | Path) -> LearnedRouter:
    """The router of a phase 2 checkpoint. Raises `RunError` when it is none."""
    from tutelage.orchestration.routing.phase2 import read_checkpoint

    check_given("the checkpoint", path, (str, Path), "the path of a file", RunError)
    state = read_checkpoint(path)
    if "router" not in state:
        raise RunError(
            f"{str(path)!r} holds no router: it is not the best checkpoint of phase 2; train one "
            "with: tutelage train planner --phase 2"
        )
    router, model = state["router"], None
    if router["algorithm"] == "PPO":
        model = ModelSelector()
        model.load_state_dict(state["model_state_dict"])
    predictor = OutcomePredictor.from_state(router["predictor"])
    return LearnedRouter(predictor, RewardTerms.from_state(router), model)
