"""Phase 1: training loop of a planner, one epoch per call.

Training uses Adam with clipped gradients and a running average of the weights, which is the version
that is validated and kept. The held-out share decides when to reduce the learning rate and when to
stop early. The search weights (retrieval prior, consensus, length, edge threshold) are then chosen
on that share. With `refit`, the best planner is trained for a few more epochs on all workflows,
including the held-out share. Random numbers come from the seed tree by epoch, so a trainer restored
from `get_state` continues exactly as the original. Batches contain texts of similar length, and
constant inputs (features, shared words) are computed once. `orchestration/job.py` runs the training
in a folder.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from tutelage.orchestration.data.workflows import Workflow
from tutelage.orchestration.evaluation.metrics import PlanScores
from tutelage.orchestration.plan.catalog import Catalog
from tutelage.orchestration.planner.confidence import Confidence, calibrate
from tutelage.orchestration.planner.model import (
    BeamResult,
    EncodedInstructions,
    PlannerModel,
    SearchSettings,
)
from tutelage.orchestration.planner.settings import Phase1Settings
from tutelage.orchestration.planner.targets import PlanTargets
from tutelage.seeds import SeedTree

Stage = Literal["search", "refit", "done"]

CHOICES: Mapping[str, tuple[float, tuple[float, ...]]] = {
    "prior_weight": (0.5, (0.0, 0.25, 0.5, 1.0, 2.0)),
    "consensus": (1.0, (0.0, 1.0)),
    "length_bonus": (0.0, (-0.4, -0.2, 0.0, 0.2, 0.4)),
    "edge_threshold": (0.5, (0.3, 0.4, 0.5, 0.6)),
}
"""Search settings chosen on the validation set, in this order: start value and candidates."""
_TUNED_ON = 500
"""Maximum number of held-out workflows used to choose the search weights."""
_AFTER_SEARCH = ("consensus", "edge_threshold")
"""Settings that do not change the beams, so no new search is needed."""
_LOSS_ROWS = 128
_POOL = 8
"""Number of batches whose workflows are sorted by length together."""
_REFIT = 0.25
"""Epochs of the refit on all workflows, as a share of the best number of epochs."""
_GAIN = 0.003
"""Minimum gain of the mean validation score that resets the patience. Smaller gains are kept."""
_AVERAGED = 0.99
"""Decay of the running average of the weights, after enough steps."""
_FEW_STEPS = {"early_stopping": 100, "plateau_patience": 40}
"""Minimum patience in optimizer steps. Small sets have few steps per epoch."""


@dataclass(slots=True)
class _TrainingState:
    """Serializable state of a training run."""

    stage: Stage = "search"
    epoch: int = 0
    """Completed epochs of the stage."""
    best_epoch: int = 0
    best_loss: float = math.inf
    """Validation loss at the best epoch."""
    best_score: float = -math.inf
    since_best: int = 0
    waited: int = 0
    rate: float = 0.0
    rates: list[float] = field(default_factory=list[float])
    """Learning rate of each epoch of the search stage."""
    best_metrics: dict[str, float] = field(default_factory=dict[str, float])


class PlannerTrainer:
    """Supervised trainer of a planner. Call `train_epoch` until `done`, then use `model`."""

    def __init__(
        self,
        train: Sequence[Workflow],
        held_out: Sequence[Workflow],
        catalog: Catalog,
        settings: Phase1Settings,
        seeds: SeedTree,
    ) -> None:
        self.train, self.held_out = list(train), list(held_out)
        self.catalog, self.settings, self.seeds = catalog, settings, seeds
        self.at = _TrainingState(rate=settings.learning_rate)
        self.best: dict[str, Any] | None = None
        workflows = self.train + self.held_out
        longest = max(len(w.tools) for w in workflows)
        self.search = SearchSettings(
            beam=settings.beam,
            repeats=any(len(set(w.tools)) < len(w.tools) for w in workflows),
            max_nodes=settings.max_nodes or longest + longest // 2,
        )
        self.confidence: Confidence | None = None
        """Confidence model of the best epoch; None before the search stage ends."""
        self._build(self.train)

    @property
    def done(self) -> bool:
        """True if the training is finished."""
        return self.at.stage == "done"

    @property
    def epochs_left(self) -> int:
        """Maximum number of remaining epochs in this stage."""
        wanted = self.settings.num_epochs if self.at.stage == "search" else self._refit_epochs
        return max(0, wanted - self.at.epoch)

    @property
    def _refit_epochs(self) -> int:
        return math.ceil(_REFIT * self.at.best_epoch)

    # -------------------------------------------------------------- one epoch

    def train_epoch(self) -> dict[str, float]:
        """Train for one epoch and return the metrics by name."""
        refit = self.at.stage == "refit"
        if not refit:
            self.at.rates.append(self.at.rate)
        elif self.at.epoch == (self._refit_epochs + 1) // 2:
            # The second half uses at most a reduced rate.
            reduced = self.at.rates[0] * self.settings.plateau_factor
            self.at.rate = min(self.at.rate, reduced)
        for group in self.optimizer.param_groups:
            group["lr"] = self.at.rate
        prepared, targets = self._given_stage
        place = self.seeds.child(self.at.stage, self.at.epoch)
        sizes = [len(item.words) for item in prepared.items]
        batches = make_batches(sizes, self.settings.batch_size, place.child("order").numpy())
        self.model.train()
        totals: dict[str, float] = {}
        with _seed_torch(place.child("dropout")):
            for chosen in batches:
                loss = self._loss(prepared.rows(chosen), targets.rows(chosen))
                self.optimizer.zero_grad()
                loss["total_loss"].backward()
                parameters = list(self.model.parameters())
                loss["grad_norm"] = nn.utils.clip_grad_norm_(parameters, 1.0)
                self.optimizer.step()
                self.steps += 1
                kept = min(_AVERAGED, (1 + self.steps) / (10 + self.steps))
                for average, weight in zip(self.average, parameters, strict=True):
                    average.lerp_(weight.detach(), 1 - kept)
                for name, part in loss.items():
                    value = float(part.detach()) * len(chosen) / len(sizes)
                    totals[name] = totals.get(name, 0.0) + value
        self.at.epoch += 1
        self._swap_weights()
        metrics = {"train_loss": totals.pop("total_loss"), **totals, "learning_rate": self.at.rate}
        metrics |= {} if refit else self._validate()
        ended = self.at.epoch >= self._refit_epochs if refit else self._update_best(metrics)
        if ended:
            (self._finish if refit else self._end_search)()
        else:
            self._swap_weights()
        return metrics

    def _loss(self, inputs: EncodedInstructions, targets: PlanTargets) -> dict[str, torch.Tensor]:
        weight = self.settings.lambda_dag
        return self.model.compute_supervised_loss(self.model(inputs), targets, weight)

    @torch.no_grad()
    def _swap_weights(self) -> None:
        """Swap the model weights and their running average."""
        for weight, average in zip(self.model.parameters(), self.average, strict=True):
            kept = weight.clone()
            weight.copy_(average)
            average.copy_(kept)

    @torch.no_grad()
    def _validate(self) -> dict[str, float]:
        """Compute the loss and the scores of greedy plans on the held-out workflows."""
        self.model.eval()
        loss = 0.0
        prepared, targets = self._held_out
        for begin in range(0, len(self.held_out), _LOSS_ROWS):
            rows = list(range(begin, min(begin + _LOSS_ROWS, len(self.held_out))))
            tensor = self._loss(prepared.rows(rows), targets.rows(rows))["total_loss"]
            loss += float(tensor) * len(rows) / len(self.held_out)
        greedy = replace(self.search, beam=1, prior_weight=0.0, consensus=0.0, length_bonus=0.0)
        planned = self.model.plan_all(prepared, greedy)
        raw, plans = [p.raw_valid for p in planned], [p.plan for p in planned]
        values = PlanScores.score(plans, self.held_out, raw).summary()
        names = ("node_f1", "edge_f1", "exact_nodes", "exact", "validity", "raw_validity")
        scores = {f"val_{name}": values[name] for name in names}
        return {"val_loss": loss, **scores, "workflow_validity": values["raw_validity"]}

    def _patience(self, name: str) -> int:
        steps = math.ceil(len(self.train) / self.settings.batch_size)
        return max(getattr(self.settings, name), math.ceil(_FEW_STEPS[name] / steps))

    def _update_best(self, metrics: dict[str, float]) -> bool:
        """Save the best weights and reduce the learning rate on a plateau. Return True to stop.

        The best epoch is the epoch with the best plans. Its validation loss is reported.
        """
        at, settings = self.at, self.settings
        quality = (metrics["val_node_f1"] + metrics["val_edge_f1"] + metrics["val_exact_nodes"]) / 3
        if quality > at.best_score + _GAIN:
            at.since_best = at.waited = 0
        else:
            at.since_best, at.waited = at.since_best + 1, at.waited + 1
        if quality > at.best_score + 1e-9:
            at.best_score, at.best_loss, at.best_epoch = quality, metrics["val_loss"], at.epoch
            at.best_metrics = {k: v for k, v in metrics.items() if k.startswith("val_")}
            trained = {"model": self.model, "optimizer": self.optimizer}
            self.best = {k: copy.deepcopy(part.state_dict()) for k, part in trained.items()}
        if at.waited > self._patience("plateau_patience"):
            at.rate *= settings.plateau_factor
            at.waited = 0
        return at.since_best >= self._patience("early_stopping") or at.epoch >= settings.num_epochs

    def _end_search(self) -> None:
        if self.best is not None:
            self.model.load_state_dict(self.best["model"])
        self.model.set_memory(self.train)
        self.search = tune(self.model, self.held_out[:_TUNED_ON], self.search)
        self.model.settings = self.search
        self.confidence = calibrate(self.model, self.held_out, self.seeds.child("confidence"))
        if not self.settings.refit or self.best is None:
            self._finish()
            return
        self.at.stage, self.at.epoch = "refit", 0
        self.at.rate = self.at.rates[self.at.best_epoch - 1]
        self._build(self.train + self.held_out, {**self.best, "steps": self.steps})

    def _finish(self) -> None:
        self.model.set_memory(self.remembered)
        self.model.settings, self.model.confidence = self.search, self.confidence
        self.model.eval()
        self.at.stage = "done"

    # -------------------------------------------------------------- state

    def get_state(self) -> dict[str, Any]:
        """Return the training state for a checkpoint, as tensors and plain data."""
        return {
            "at": asdict(self.at),
            "search": asdict(self.search),
            "confidence": self.confidence and asdict(self.confidence),
            "best": self.best,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": list(self.average),
            "steps": self.steps,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the training state. Data, settings and seeds must be the same."""
        self.at = _TrainingState(**state["at"])
        self.search = SearchSettings(**state["search"])
        sure = state["confidence"]
        self.confidence = None if sure is None else Confidence(**sure)
        self.best = state["best"]
        everything = self.at.stage == "refit" or (self.done and self.settings.refit)
        self._build(self.train + self.held_out if everything else self.train, state)
        self.average = list(state["average"])
        if self.done:
            self._finish()

    def _build(self, workflows: list[Workflow], state: Mapping[str, Any] | None = None) -> None:
        """Create a model and an optimizer for these workflows. Weights and steps are loaded from
        `state`; without a state, the initial weights are the same at every call."""
        with _seed_torch(self.seeds.child("weights")):
            self.model = PlannerModel.of(
                self.train + self.held_out, self.catalog, self.settings.width
            )
        self.model.settings = self.search
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=self.at.rate, fused=True)
        if state is not None:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
        self.average = [p.detach().clone() for p in self.model.parameters()]
        self.steps = 0 if state is None else state["steps"]
        self.remembered = workflows
        """Workflows of this stage, in order. At the end they become the memory of the model."""
        self._given_stage = self._prepare(workflows)
        self._held_out = self._prepare(self.held_out)

    def _prepare(self, workflows: list[Workflow]) -> tuple[EncodedInstructions, PlanTargets]:
        prepared = self.model.prepare([w.instruction for w in workflows])
        return prepared, PlanTargets.build(workflows, self.model.vocabulary)


def tune(
    model: PlannerModel, held_out: Sequence[Workflow], search: SearchSettings
) -> SearchSettings:
    """Return the search settings with the best scores on the held-out workflows.

    A weight is changed from its start value only if the gain is above half the standard error of
    the difference, so a small held-out set changes little.
    """
    prepared = model.prepare([w.instruction for w in held_out])
    best = replace(search, **{name: start for name, (start, _) in CHOICES.items()})
    beams = list(model.search_beams(prepared, best))
    scores = _sample_scores(model, held_out, beams, best)
    for name, (_, values) in CHOICES.items():
        before = beams
        for value in values:
            if value == getattr(best, name):
                continue
            other = replace(best, **{name: value})
            tried = before if name in _AFTER_SEARCH else list(model.search_beams(prepared, other))
            tensor = _sample_scores(model, held_out, tried, other)
            gain = tensor - scores
            error = float(gain.std(correction=0)) / math.sqrt(len(gain))
            if float(gain.mean()) > 0.5 * error:
                best, scores, beams = other, tensor, tried
    return best


def _sample_scores(
    model: PlannerModel,
    held_out: Sequence[Workflow],
    beams: Sequence[BeamResult],
    settings: SearchSettings,
) -> torch.Tensor:
    planned = [plan for found in beams for plan in model.decode(found, settings)]
    plan_scores = PlanScores.score([p.plan for p in planned], held_out)
    parts = (plan_scores.node_f1, plan_scores.edge_f1, plan_scores.exact_nodes)
    return torch.tensor(parts, dtype=torch.float64).mean(0)


def make_batches(sizes: Sequence[int], size: int, rng: np.random.Generator) -> list[list[int]]:
    """Return the indices of the batches of an epoch: shuffled, then sorted by size within pools of
    a few batches to reduce padding."""
    order = rng.permutation(len(sizes))
    items: list[list[int]] = []
    for begin in range(0, len(order), _POOL * size):
        pool = sorted(order[begin : begin + _POOL * size].tolist(), key=sizes.__getitem__)
        made = [pool[i : i + size] for i in range(0, len(pool), size)]
        items += [made[i] for i in rng.permutation(len(made)).tolist()]
    return items


@contextmanager
def _seed_torch(seeds: SeedTree) -> Generator[None]:
    """Seed the random generator of torch, and restore its state on exit."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seeds.value())
        yield
