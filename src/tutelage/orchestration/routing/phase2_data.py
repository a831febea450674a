"""What phase 2 learns in: outcomes cut into splits, what is predicted from them, and the reward.

Before training it is asked whether the reward wants what it should: if a router that knows every
outcome does not rank first, or giving up at once earns more than it, training under that
reward teaches something else (`Phase2Data.reward_warning`). `phase2.py` makes a world and trains in
it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tutelage.orchestration.data.outcomes import OutcomeTable
from tutelage.orchestration.routing.choosers import baselines, oracle, run_chooser
from tutelage.orchestration.routing.decisions import RewardTerms
from tutelage.orchestration.routing.predictor import OutcomePredictor
from tutelage.orchestration.routing.settings import Phase2Settings
from tutelage.orchestration.routing.workflows import QueryTable, Scenario, WorkflowBatch
from tutelage.seeds import SeedTree
from tutelage.tasks.overlap import also_trained, content_of

JUDGED = 400
"""Validation workflows by which a reward is judged."""


@dataclass(frozen=True, slots=True)
class Phase2Data:
    """The boards of training and validation, the rows that are left for the test, the reward."""

    train: QueryTable
    val: QueryTable
    test: OutcomeTable
    terms: RewardTerms
    known: OutcomeTable
    """All rows that may be learned from once the choices are made: the whole table."""
    apart: bool
    """Whether the test rows are no part of that table, so that no fit ever sees them."""

    @staticmethod
    def of(
        table: OutcomeTable,
        scenario: Scenario,
        settings: Phase2Settings,
        seeds: SeedTree,
        test: OutcomeTable | None = None,
    ) -> Phase2Data:
        """Split a table and learn to predict from its training part; `test` are held-out outcomes,
        without which a part of the table is held out."""
        train, val, own = table.split(seeds, held_out=test is None)
        predictor, support = OutcomePredictor.fit(train, seeds)
        rates, steps = scenario.rates, settings.max_steps_per_episode
        terms = RewardTerms(settings.reward, settings.weights, rates, settings.prior, steps)
        learned = QueryTable.of(train, predictor, scenario, support)
        held_out = own if test is None else test
        val_table = QueryTable.of(val, predictor, scenario)
        return Phase2Data(learned, val_table, held_out, terms, table, test is not None)

    def refitted(self, seeds: SeedTree) -> OutcomePredictor:
        """The predictor of all known rows: what is shipped, when nothing is left to choose."""
        return OutcomePredictor.fit(self.known, seeds)[0]

    @property
    def leaks(self) -> list[str]:
        """The test queries that are learned from as well, word for word."""
        learned = self.known if self.apart else self.train.table
        asked = self.test.instructions
        return [self.test.ids[k] for k in also_trained(learned.instructions, asked, content_of)]

    @property
    def unmeasured(self) -> str:
        """The workers that were asked for some types alone, in the rows that are learned from."""
        table = self.train.table
        types = np.array(table.types)
        kinds = sorted(set(table.types))
        lost_W = sum((~table.known_QW[types == kind].any(axis=0)).astype(int) for kind in kinds)
        told = zip(table.names, np.atleast_1d(lost_W), strict=True)
        return ", ".join(f"{name} at {lost} of {len(kinds)} types" for name, lost in told if lost)

    def reward_warning(self, seeds: SeedTree) -> str | None:
        """What is wrong with training under this reward; None when nothing was found."""
        flows = WorkflowBatch.draw(self.val, JUDGED, seeds.child("judged"))
        terms = self.terms
        rules = baselines(self.train.table, terms, seeds.child("random"))
        judged = ("random", "cheapest", "fastest", "most accurate")
        choosers = {"oracle": oracle(terms), **{name: rules[name] for name in judged}}
        means = {
            name: float(run_chooser(self.val, flows, terms, choose).reward_B.mean())
            for name, choose in choosers.items()
        }
        means["failing at once"] = 0.0
        best = max(means, key=means.__getitem__)
        if best == "oracle":
            return None
        return (
            f"under the reward {terms.preset!r} with {terms.weights!r}, {best!r} earns "
            f"{means[best]:.3f} and a router that knows every outcome {means['oracle']:.3f}: "
            "training will not teach to do the work; train under 'normalized', or change the "
            "weights"
        )
