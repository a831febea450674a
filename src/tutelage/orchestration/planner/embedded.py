"""The planner that is there before a user trained one: learned once, from synthetic workflows.

The one over the built-in tools is part of the package (`artefacts/planner`). The first use over
another catalog trains one in 80 to 130 CPU seconds and keeps it in the user's cache directory,
under a hash of the recipe, the catalog and the code that makes it; a change of any trains another.
It is a function of these alone, so every machine of a kind plans alike. It knows nothing of a
user's own instructions: logs and training data do (`data/prepare.py`, `fit.py`).
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.resources import files
from itertools import count
from pathlib import Path

import torch

from tutelage.errors import ModelError, RunError
from tutelage.files import cache_folder
from tutelage.orchestration.data.synthetic import (
    ToolGraph,
    builtin_graph,
    by_words,
    generate,
    generate_plain,
    generate_single,
    graph_of,
)
from tutelage.orchestration.data.workflows import Workflow
from tutelage.orchestration.plan.catalog import Catalog
from tutelage.orchestration.planner import saving
from tutelage.orchestration.planner.fit import PlannerTrainer
from tutelage.orchestration.planner.model import PlannerModel
from tutelage.orchestration.planner.settings import Phase1Settings
from tutelage.policy.machine import one_thread
from tutelage.policy.sources import artefact
from tutelage.seeds import SeedTree

Watch = Callable[[int, int], None]
"""Called before the first epoch and after each with the epochs that are done, and their number."""


@dataclass(frozen=True, slots=True)
class PlannerRecipe:
    """How it is trained."""

    workflows: int = 7200
    """Most of them short and plain: people ask for one, two or three things at a time."""
    held_out: int = 720
    """Of those, to choose the search weights and to fit the confidence on."""
    epochs: int = 10
    width: int = 64
    seed: int = 0
    for_each_tool: int = 160
    """Workflows at most for each tool: small catalogs need fewer."""

    def size(self, catalog: Catalog | None) -> int:
        """Workflows for a catalog; without one, for the built-in one."""
        tools = builtin_graph().catalog if catalog is None else catalog
        return min(self.workflows, self.for_each_tool * len(tools))

    def fingerprint(self, catalog: Catalog | None) -> str:
        """A hash of what decides the weights: recipe, catalog, and the code that makes workflows
        and planners."""
        own = None if catalog is None else (catalog.tools, catalog.links)
        values = (metadata.version("tutelage"), torch.__version__, asdict(self), own)
        digest = hashlib.blake2b(repr(values).encode("utf-8", "surrogatepass"), digest_size=10)
        here = files("tutelage.orchestration")
        code = [entry for entry in (here / "planner").iterdir() if entry.name.endswith(".py")]
        names = ("synthetic.py", "builtin_tools.json", "everyday.json", "other_requests.json")
        code += [here / "data" / name for name in names]
        for entry in sorted(code, key=lambda found: found.name):
            digest.update(entry.read_bytes())
        return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class EmbeddedPlanner:
    """A planner, ready, and where it is kept."""

    model: PlannerModel
    path: Path
    fresh: bool
    """True if it was trained just now."""
    unkept: str = ""
    """Why it could not be written to the cache, empty if it was."""


RECIPE = PlannerRecipe()
SINGLE_SHARE = 0.35
"""Of the workflows, those that are one everyday sentence at most; half of the others are short and
plain."""


def print_progress(done: int, of: int) -> None:
    """Write how far the training of an embedded planner is, a line an epoch, to standard error."""
    if done == 0:
        line = "No planner was trained over these tools yet. One is trained now, once: 80 to 130 s."
    else:
        line = f"training the embedded planner: epoch {done} of {of}, {time.strftime('%H:%M:%S')}"
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def embedded_planner(
    catalog: Catalog | None = None,
    cache: Path | None = None,
    *,
    recipe: PlannerRecipe | None = None,
    watch: Watch = print_progress,
) -> EmbeddedPlanner:
    """Return the planner over a catalog, from the cache or trained now; without a catalog and a
    recipe, the shipped one over the built-in tools.

    A cache that cannot be written is no reason to fail: `unkept` gives the reason. Processes that
    train the same one at once write the same file. Raises `ConfigError` for a catalog with too few
    tools for different instructions.
    """
    if catalog is None and recipe is None:
        shipped = artefact("planner") / saving.SHIPPED
        return EmbeddedPlanner(saving.load_shipped(shipped), shipped, fresh=False)
    recipe = recipe or RECIPE
    root = cache_folder("planner") if cache is None else cache
    path = root / f"{recipe.fingerprint(catalog)}.pth"
    if path.is_file():
        with contextlib.suppress(ModelError):  # one that is damaged is trained again
            return EmbeddedPlanner(saving.load_planner(path), path, fresh=False)
    fitting = train(catalog, recipe, watch)
    content = saving.checkpoint(fitting.model, {}, fitting.at.best_epoch, fitting.at.best_loss)
    try:
        saving.write(path, content)
    except RunError as error:
        return EmbeddedPlanner(fitting.model, path, fresh=True, unkept=str(error))
    return EmbeddedPlanner(saving.load_planner(path), path, fresh=True)


def train(
    catalog: Catalog | None, recipe: PlannerRecipe, watch: Watch | None = None
) -> PlannerTrainer:
    """Train the planner of a recipe over a catalog, by default the built-in one."""
    graph = builtin_graph() if catalog is None else graph_of(catalog)
    seeds = SeedTree(recipe.seed).child("embedded planner")
    known, new = by_words(graph)
    size = recipe.size(graph.catalog)
    held = min(recipe.held_out, size // 5)
    made = _made(known, size - held, seeds.child("known"))
    taken = {workflow.instruction for workflow in made}
    fresh = _made(new, held, seeds.child("new words"))
    held_out = [workflow for workflow in fresh if workflow.instruction not in taken]
    settings = Phase1Settings(
        num_epochs=recipe.epochs, width=recipe.width, early_stopping=recipe.epochs
    )
    if watch is not None:
        watch(0, recipe.epochs)
    with one_thread():
        fitting = PlannerTrainer(made, held_out, graph.catalog, settings, seeds.child("fit"))
        for epoch in count(1):
            fitting.epoch()
            if watch is not None and epoch <= recipe.epochs:
                watch(epoch, recipe.epochs)
            if fitting.done:
                break
    return fitting


def _made(graph: ToolGraph, size: int, seeds: SeedTree) -> list[Workflow]:
    """Workflows with different instructions, most of them short and plain, in a drawn order."""
    single = generate_single(graph, round(SINGLE_SHARE * size), seeds.child("single"))
    rest = size - len(single)
    short = generate_plain(graph, rest // 2, seeds.child("short"), everyday=True)
    longer = generate(graph, rest - rest // 2, seeds.child("longer"))
    made = list({w.instruction: w for w in (*single, *short, *longer)}.values())
    seeds.child("order").python().shuffle(made)
    return made
