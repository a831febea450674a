"""Data of a planner run.

Without a training file, the workflows are synthetic, over the built-in tool graph. Without a test
file, a tenth of the training file is held back for the test. `job.py` executes the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tutelage.errors import DataError
from tutelage.orchestration.data.synthetic import (
    builtin_graph,
    generate,
    generate_plain,
    split,
    to_graph,
)
from tutelage.orchestration.data.workflows import Workflow, build_catalog, read_workflows
from tutelage.orchestration.plan.catalog import Catalog, check_plan, read_catalog
from tutelage.orchestration.planner.settings import Phase1Settings, PlannerConfig
from tutelage.seeds import SeedTree
from tutelage.tasks.overlap import count_overlap, find_overlap, hash_value

EXPERTS, AUGMENTED, TESTED = 300, 1000, 300
"""Default numbers of synthetic workflows: training, augmentation and test."""
TEST_SHARE = 0.1
FEWEST_TO_SPLIT = 50


@dataclass(frozen=True, slots=True)
class PlannerDatasets:
    """Datasets and tool catalog for training the planner (phase 1)."""

    train: list[Workflow]
    held_out: list[Workflow]
    test: list[Workflow]
    catalog: Catalog
    facts: Mapping[str, str]
    """Description of the data, by name."""
    leaks: tuple[str, ...] = ()
    """Test workflows whose instruction also occurs in training, by name or row."""


def read_datasets(request: PlannerConfig, settings: Phase1Settings) -> PlannerDatasets:
    """Load or generate the workflows of a run. Raises `DataError` for invalid or small files."""
    seeds = SeedTree(request.seed).child("planner", "data")
    augmented: list[Workflow] = []
    if request.train is None:
        graph = (
            builtin_graph() if request.catalog is None else to_graph(read_catalog(request.catalog))
        )
        catalog = graph.catalog
        more = settings.synthetic_augmentations
        count = (settings.train_data_size or EXPERTS) + (AUGMENTED if more is None else more)
        made = generate(graph, count + TESTED, seeds.child("synthetic"))
        given, test = made[:count], made[count:]
        taken = {w.instruction for w in made}
        plain = generate_plain(graph, 2 * count, seeds.child("plain"))
        short = [w for w in plain if w.instruction not in taken]
        workflows = [*given, *short]
        fields = {
            "workflows": f"synthetic, over {len(catalog)} tools: {len(given)} like those of the "
            f"test and {len(short)} short ones"
        }
    else:
        catalog, workflows, test, fields = _read_files(request, settings, seeds)
        count = settings.synthetic_augmentations or 0
        place = seeds.child("synthetic")
        augmented = generate(to_graph(catalog), count, place) if count else []
        if augmented:
            fields["synthetic"] = f"{len(augmented)} workflows added to the training set"
    if len(workflows) < 2:
        raise DataError(f"training needs at least 2 workflows, got {len(workflows)}")
    train, held_out = split(workflows, settings.validation_share, seeds.child("validation"))
    overlap = count_overlap([*workflows, *augmented], (), test, key=instruction_key)
    if notes := overlap.notes(generated=request.train is None):
        fields["overlap"] = "; ".join(notes)
    known = find_overlap([*workflows, *augmented], test, instruction_key)
    leaks = tuple(test[place].name or f"row {place}" for place in known)
    fields["sets"] = (
        f"{len(train) + len(augmented)} train, {len(held_out)} validation, {len(test)} test"
    )
    return PlannerDatasets(train + augmented, held_out, test, catalog, fields, leaks)


def _read_files(
    request: PlannerConfig, settings: Phase1Settings, seeds: SeedTree
) -> tuple[Catalog, list[Workflow], list[Workflow], dict[str, str]]:
    """Read the files of a run: catalog, workflows, test workflows, and their description."""
    assert request.train is not None
    beside = Path(request.train).with_name(f"{Path(request.train).stem}.catalog.json")
    named = request.catalog or (str(beside) if beside.is_file() else None)
    known = None if named is None else read_catalog(named)
    workflows = read_workflows(request.train, known)
    test = [] if request.test is None else read_workflows(request.test, known)
    catalog = known or build_catalog(workflows)
    fields = {"workflows": f"{len(workflows)} from {request.train}, {len(catalog)} tools"}
    if known is None:
        fields["catalog"] = "made of the tools in the training file; --catalog FILE names all"
    for workflow in test:
        check_plan(workflow.plan, catalog)
    if request.test is None and len(workflows) >= FEWEST_TO_SPLIT:
        workflows, test = split(workflows, TEST_SHARE, seeds.child("test"))
        held = {instruction_key(w) for w in test}
        workflows = [w for w in workflows if instruction_key(w) not in held]
        fields["test"] = "a tenth of the training file, held back; --test FILE names another"
    if settings.train_data_size is not None and settings.train_data_size < len(workflows):
        size, draw = settings.train_data_size, seeds.child("size").python()
        fields["train_data_size"] = f"{size} of {len(workflows)} workflows of the file are used"
        workflows = [workflows[i] for i in sorted(draw.sample(range(len(workflows)), size))]
    return catalog, workflows, test, fields


def instruction_key(workflow: Workflow) -> str:
    """Return a key of the instruction that is the same for instructions with the same words."""
    return hash_value(workflow.instruction)
