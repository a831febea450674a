"""The trained router: drives the real executor with what phase 2 learned.

It turns each `RouteState` into the `Situation` that the policy was trained on. What the state does
not say, it remembers by itself for each run: which nodes it sent where, when they may be expected
back, and how likely each is right. Workers are matched by name; one that the predictor never saw
is judged by the skill that it claims and by the pool's estimates, until `adopt` gives it outcomes.
`environment.py` is the fast twin of the executor; a test holds the two together.

Legend: N nodes in topological order, W workers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from tutelage.errors import RunError
from tutelage.orchestration.data.outcomes import Floats
from tutelage.orchestration.execution.worker_files import kind_of
from tutelage.orchestration.execution.workers import Worker, prompt_tokens
from tutelage.orchestration.plan.dag import Plan, levels
from tutelage.orchestration.routing.contract import Choice, RouteState
from tutelage.orchestration.routing.foresight import Progress, expected_plan, foresee
from tutelage.orchestration.routing.policy import ModelSelector, draw_actions, see
from tutelage.orchestration.routing.predictor import OutcomePredictor, Support
from tutelage.orchestration.routing.situation import Situation, Terms, look_ahead
from tutelage.orchestration.routing.workflows import single_worker

REMEMBERED = 4096
"""Runs whose notes are kept; those of the longest untouched go first."""


@dataclass(slots=True)
class _Notes:
    """What is known of one run beyond its states."""

    order: tuple[int, ...]
    """The plan's nodes, parents first."""
    parents_NN: NDArray[np.bool_]
    support: Support
    prior_NW: Floats
    cost_NW: Floats
    seconds_NW: Floats
    chance_N: Floats
    plan_cost_N: Floats
    plan_seconds_N: Floats
    least_N: Floats
    cost_ref: float
    latency_ref: float
    if_pass_N: Floats
    expected_end_N: Floats
    running: dict[int, float] = field(default_factory=dict[int, float])
    """Nodes under way and the bound of their cost."""
    lost: bool = False
    """A node was given up, so the workflow cannot succeed: nothing more is spent on it."""


class LearnedRouter:
    """A `Router` that a model selector decides for; without one, the one-step lookahead."""

    def __init__(
        self,
        predictor: OutcomePredictor,
        terms: Terms,
        model: ModelSelector | None = None,
        *,
        sample: bool = False,
    ) -> None:
        """`sample` draws actions, as in training; otherwise the likeliest one is taken."""
        self.predictor, self.terms, self.model = predictor, terms, model
        self.name = "lookahead" if model is None else "ppo"
        self._sample = sample
        self._runs: OrderedDict[tuple[int, tuple[str | int, ...]], _Notes] = OrderedDict()

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
        notes = self._notes(state)
        node = notes.order.index(state.work.node)
        self._note_ended(notes, state, node)
        if notes.lost:
            only_stop = tuple(action == state.stop for action in range(len(state.mask)))
            return Choice(state.stop, 0.0, only_stop)
        at = self._situation(notes, state, node)
        logp_A = self._decide(at)
        if self._sample:
            action = int(draw_actions(logp_A[None], state.seeds.numpy().random(1))[0])
        else:
            action = int(logp_A.argmax())
        self._note_choice(notes, state, node, at, action)
        return Choice(action, float(logp_A[action]), state.mask)

    def _decide(self, at: Situation) -> torch.Tensor:
        if self.model is None:
            utility_A = torch.from_numpy(look_ahead(at, self.terms).utility_DA[0])
            best_A = torch.full_like(utility_A, -torch.inf)
            best_A[utility_A.argmax()] = 0.0
            return best_A
        with torch.no_grad():
            logp_DA, _ = self.model(see(at, self.terms))
        return logp_DA[0]

    # What is remembered of a run

    def _notes(self, state: RouteState) -> _Notes:
        key = (state.work.seeds.seed, state.work.seeds.path[:-2])
        if key not in self._runs:
            self._runs[key] = self._begin(state)
            while len(self._runs) > REMEMBERED:
                self._runs.popitem(last=False)
        self._runs.move_to_end(key)
        return self._runs[key]

    def _begin(self, state: RouteState) -> _Notes:
        plan, workers = state.plan, state.workers
        order = tuple(node for level in levels(plan) for node in sorted(level))
        places = {node: n for n, node in enumerate(order)}
        parents_NN = np.zeros((len(order), len(order)), dtype=np.bool_)
        for before, after in plan.edges:
            parents_NN[places[before], places[after]] = True
        texts = [_node_text(plan, node) for node in order]
        types = [plan.nodes[node].tool for node in order]
        labels = [_labels(plan, node, state) for node in order]
        support = self.predictor.support(texts, types)
        prior_NW, cost_NW, seconds_NW = self._expected(support, texts, labels, state)
        legal_NW = np.array([[worker.can(*both) for worker in workers] for both in labels])
        legal_NW[~legal_NW.any(axis=1)] = True  # of a kind that only its own state will name
        cost_1W, path_1W = single_worker(
            cost_NW[None], seconds_NW[None], legal_NW[None], parents_NN[None]
        )
        # A pool that costs nothing still needs something to be measured against.
        cost_ref, latency_ref = float(cost_1W.max()) or 1.0, float(path_1W.max()) or 1.0
        plan_cost_1N, plan_seconds_1N, least_1N = expected_plan(
            self.terms, prior_NW[None], cost_NW[None], seconds_NW[None], legal_NW[None],
            np.array([cost_ref]), np.array([latency_ref]),
        )  # fmt: skip
        return _Notes(
            order=order,
            parents_NN=parents_NN,
            support=support,
            prior_NW=prior_NW,
            cost_NW=cost_NW,
            seconds_NW=seconds_NW,
            chance_N=self._hope(support, np.where(legal_NW, prior_NW, -1.0), state),
            plan_cost_N=plan_cost_1N[0],
            plan_seconds_N=plan_seconds_1N[0],
            least_N=least_1N[0],
            cost_ref=cost_ref,
            latency_ref=latency_ref,
            if_pass_N=np.zeros(len(order)),
            expected_end_N=np.zeros(len(order)),
        )

    def _expected(
        self,
        support: Support,
        texts: Sequence[str],
        labels: Sequence[tuple[str, str]],
        state: RouteState,
    ) -> tuple[Floats, Floats, Floats]:
        """Chance, USD and seconds of each worker at each node, [N, W]."""
        predictor, workers = self.predictor, state.workers
        known = [worker.name for worker in predictor.workers]
        prior_NV = predictor.chances(support)
        tokens_N = np.array([float(prompt_tokens(text)) for text in texts])
        cost_NV, seconds_NV = predictor.expected(support, tokens_N)
        shape = (len(texts), len(workers))
        prior_NW, cost_NW, seconds_NW = np.empty(shape), np.empty(shape), np.empty(shape)
        for w, worker in enumerate(workers):
            if worker.name in known:
                v = known.index(worker.name)
                prior_NW[:, w], cost_NW[:, w] = prior_NV[:, v], cost_NV[:, v]
                seconds_NW[:, w] = seconds_NV[:, v]
            else:
                prior_NW[:, w] = [worker.skill(*both) for both in labels]
                cost_NW[:, w] = state.estimates[w].cost
                seconds_NW[:, w] = state.estimates[w].seconds
        return prior_NW, cost_NW, seconds_NW

    def _hope(self, support: Support, prior_NW: Floats, state: RouteState) -> Floats:
        names = [worker.name for worker in self.predictor.workers]
        if all(worker.name in names for worker in state.workers):
            columns = [names.index(worker.name) for worker in state.workers]
            wide_NV = np.full((len(prior_NW), len(names)), -1.0)
            wide_NV[:, columns] = prior_NW
            return self.predictor.hope(support, wide_NV, state.max_tries)
        return np.maximum(prior_NW, 0.0).max(axis=1)

    def _note_ended(self, notes: _Notes, state: RouteState, node: int) -> None:
        notes.running.pop(node, None)
        notes.lost = notes.lost or not all(state.done.values())
        for place, known in enumerate(notes.order):
            if known in state.done and place in notes.running:
                del notes.running[place]
                notes.chance_N[place] = notes.if_pass_N[place]

    def _note_choice(
        self, notes: _Notes, state: RouteState, node: int, at: Situation, action: int
    ) -> None:
        if action < len(state.workers):
            if_pass, chance = foresee(
                at.chance_DW, np.array([action]),
                self.terms.rates.passes_right, self.terms.rates.passes_wrong,
            )  # fmt: skip
            notes.if_pass_N[node], notes.chance_N[node] = if_pass[0], chance[0]
            notes.expected_end_N[node] = state.elapsed + at.seconds_DW[0, action]
            notes.running[node] = state.estimates[action].bound
        elif action == state.accept:
            notes.chance_N[node] = at.last_D[0]
        else:
            notes.lost = True

    # What is seen

    def _situation(self, notes: _Notes, state: RouteState, node: int) -> Situation:
        places, now = range(len(notes.order)), state.elapsed
        progress = Progress(
            node_D=np.array([node]),
            parents_DNN=notes.parents_NN[None],
            done_DN=np.array([[known in state.done for known in notes.order]]),
            running_DN=np.array([[place in notes.running for place in places]]),
            chance_DN=notes.chance_N[None],
            plan_cost_DN=notes.plan_cost_N[None],
            plan_seconds_DN=notes.plan_seconds_N[None],
            least_DN=notes.least_N[None],
            finish_DN=np.array([[state.ends.get(known, 0.0) for known in notes.order]]),
            expected_end_DN=notes.expected_end_N[None],
            now_D=np.array([now]),
        )
        spent = state.spent + sum(notes.running.values())
        budget = np.inf if state.budget_left is None else state.budget_left + spent
        deadline = np.inf if state.deadline_left is None else now + state.deadline_left

        def one(value: float) -> Floats:
            return np.array([float(value)])

        return progress.situation(
            mask_DA=np.array([state.mask]),
            chance_DW=self._chances(notes, state, node),
            cost_DW=notes.cost_NW[node][None],
            seconds_DW=notes.seconds_NW[node][None],
            load_DW=np.array([state.load or (0,) * len(state.workers)], dtype=np.float64),
            last_D=np.array([state.tries[-1].worker if state.tries else -1]),
            tries_D=one(len(state.tries)),
            max_tries=state.max_tries,
            spent_D=one(spent),
            budget_D=one(budget),
            deadline_D=one(deadline),
            cost_ref_D=one(notes.cost_ref),
            latency_ref_D=one(notes.latency_ref),
            nodes_D=one(len(notes.order)),
        )

    def _chances(self, notes: _Notes, state: RouteState, node: int) -> Floats:
        """Given which workers failed here; an unknown one's skill only falls by its own failure."""
        chance_DW = notes.prior_NW[node][None].copy()
        names = [worker.name for worker in self.predictor.workers]
        failed = np.zeros((1, len(names)), dtype=np.bool_)
        rates = self.terms.rates
        for tried in state.tries:
            name = state.workers[tried.worker].name
            if name in names:
                failed[0, names.index(name)] = True
            else:  # Bayes on this answer alone: what the failure says of others is not known
                missed = chance_DW[0, tried.worker] * (1 - rates.passes_right)
                caught = (1 - chance_DW[0, tried.worker]) * (1 - rates.passes_wrong)
                chance_DW[0, tried.worker] = missed / max(missed + caught, 1e-12)
        if not failed.any():
            return chance_DW
        found = self.predictor.chances(
            notes.support.take(np.array([node])),
            passed_BW=np.zeros_like(failed),
            failed_BW=failed,
            rates=rates,
        )
        for w, worker in enumerate(state.workers):
            if worker.name in names:
                chance_DW[0, w] = found[0, names.index(worker.name)]
        return chance_DW


def _labels(plan: Plan, node: int, state: RouteState) -> tuple[str, str]:
    """Type and kind of a subtask; the executor has told the kind of the one under decision."""
    told = plan.nodes[node]
    if node == state.work.node:
        return state.work.labels
    return told.tool, kind_of(told.tool, told.description)


def _node_text(plan: Plan, node: int) -> str:
    """What a subtask asks, as far as the plan says: its description, else tool and arguments."""
    told = plan.nodes[node]
    if told.description:
        return told.description
    return " ".join([told.tool, *(str(value) for value in told.arguments.values())])


def load_router(path: str | Path, *, sample: bool = False) -> LearnedRouter:
    """The router of a phase 2 checkpoint. Raises `RunError` when it is none."""
    from tutelage.orchestration.routing.phase2 import read_checkpoint, terms_of

    state = read_checkpoint(path)
    if "router" not in state:
        raise RunError(
            f"{str(path)!r} holds no router: it is not the best checkpoint of phase 2; train one "
            "with: tutelage train planner --phase 2"
        )
    model = ModelSelector()
    model.load_state_dict(state["model_state_dict"])
    router = state["router"]
    predictor = OutcomePredictor.from_state(router["predictor"])
    return LearnedRouter(predictor, terms_of(router), model, sample=sample)
